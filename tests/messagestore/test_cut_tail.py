"""Bytes that recovery cuts from a log of several files: kept beside the store, zeroed, and synced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storageio import REAL_DISK
from tests.builds import World
from tests.commitlog.test_mapped_files import SIZE, open_log, put
from tests.messagestore.kit import message, open_small, sync_mode


@pytest.mark.parametrize("position", [0, 1, 3, 4, 6, 8])
def test_each_file_behind_the_cut_is_kept_and_zeroed(world: World, tmp_path: Path, position: int) -> None:
    """They begin at the cut in its own file and at the first byte of later ones; earlier bytes stay unchanged."""
    log = open_log(world, tmp_path / "commitlog")
    put(world, log, 9)
    log.update_written()
    before = b"".join(bytes(file.view) for file in log.queue.files)
    cut = [stored.physical_offset for stored in log.messages()][position]
    expected = {}
    for start in range(0, 3 * SIZE, SIZE):
        first = max(start, cut)
        data = before[first : start + SIZE].rstrip(b"\0")
        if data:
            expected[f"cut-{first:020d}-0"] = data
    count = world.module("messagestore.recovery.log_end").cut_tail(log, cut, REAL_DISK, str(tmp_path))
    kept = {path.name: path.read_bytes() for path in (tmp_path / "brokerstore").iterdir()}
    assert kept == expected
    assert count == sum(map(len, expected.values()))
    after = b"".join(path.read_bytes() for path in sorted((tmp_path / "commitlog").iterdir()))
    assert after == before[:cut].ljust(len(before), b"\0")
    log.close()


def test_second_truncation_at_the_same_offset_keeps_the_first_backup(world: World, tmp_path: Path) -> None:
    """Each copy has a name of its own."""
    contents: list[bytes] = []
    for size in (900, 700, 500):
        log = open_log(world, tmp_path / "commitlog")
        put(world, log, 1, size)
        log.update_written()
        contents.append(bytes(log.queue.files[0].view).rstrip(b"\0"))
        world.module("messagestore.recovery.log_end").cut_tail(log, 0, REAL_DISK, str(tmp_path))
        log.close()
    names = [f"cut-{0:020d}-{number}" for number in range(3)]
    assert {path.name: path.read_bytes() for path in (tmp_path / "brokerstore").iterdir()} == dict(
        zip(names, contents, strict=True)
    )


def test_async_put_under_synchronous_flush_is_synced_by_the_flusher(world: Any, tmp_path: Path) -> None:
    """A future under synchronous flush is resolved by the flusher's rounds, without a minimum of pages."""
    changes = {"flush_commit_log_thorough_interval_ms": 3_600_000, "flush_disk_type": sync_mode(world)}
    with open_small(world, tmp_path / "s", **changes) as store:
        results = [store.put_async(message(world, number)).result(timeout=60) for number in range(3)]
        last = results[-1]
        assert store.engine.flusher.flushed_offset >= last.physical_offset + last.size_bytes
