"""Limits of a process, fork handlers, and the search for writing processes."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from storageio import maps_max, processes


@pytest.fixture
def limit() -> Iterator[int]:
    """Yield the hard limit on descriptors; restore both limits after the test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(("descriptors", "maps"), [(200, 64), (1024, 128), (4096, 512)])
def test_an_eighth_of_the_descriptors_is_for_maps(limit: int, descriptors: int, maps: int) -> None:
    """The minimum is 64 maps."""
    if limit != resource.RLIM_INFINITY and limit < descriptors:
        descriptors, maps = limit, max(64, limit // 8)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, limit))
    assert maps_max(1 << 30) == maps


def test_maps_of_one_gib_do_not_fill_32_bits_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps use at most a quarter of the addresses; one map is always allowed."""
    monkeypatch.setattr(processes, "ADDRESSES", 1 << 32)
    assert (maps_max(1 << 30), maps_max(1 << 31), maps_max(1 << 24)) == (1, 1, 64)


def test_no_fork_handler_is_registered_without_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a system without fork nothing is registered and no error is raised."""
    called: list[str] = []
    monkeypatch.delattr(os, "register_at_fork")
    processes.in_forked_child(lambda: called.append("child"))
    assert called == []


def test_process_that_ends_during_the_scan_is_not_reported_as_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptors were listed, but its flags and its name are gone: it is not reported, and no error is raised."""
    real, listed = os.readlink, os.listdir
    ended = "999999999"
    monkeypatch.setattr(os, "listdir", lambda path: [ended] if path == "/proc" else ["3"] if ended in path else listed(path))
    monkeypatch.setattr(os, "readlink", lambda path, **kept: str(tmp_path / "f") if ended in path else real(path, **kept))
    assert processes.writing_processes(str(tmp_path)) == ()
