"""What a process may have."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from storageio import maps_max, processes


@pytest.fixture
def limit() -> Iterator[int]:
    """The hard limit on descriptors; what a test sets is taken back."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(("descriptors", "maps"), [(200, 64), (1024, 128), (4096, 512)])
def test_an_eighth_of_the_descriptors_is_for_maps(limit: int, descriptors: int, maps: int) -> None:
    """And 64 where that is less."""
    if limit != resource.RLIM_INFINITY and limit < descriptors:
        descriptors, maps = limit, max(64, limit // 8)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, limit))
    assert maps_max(1 << 30) == maps


def test_maps_of_one_gib_do_not_fill_32_bits_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of them at most, and one map always."""
    monkeypatch.setattr(processes, "ADDRESSES", 1 << 32)
    assert (maps_max(1 << 30), maps_max(1 << 31), maps_max(1 << 24)) == (1, 1, 64)
