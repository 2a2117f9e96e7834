"""Bytes that recovery cuts from a log of several files: kept beside the store, zeroed, and synced."""

from __future__ import annotations

import contextlib
import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK, DiskError
from storageio.testing import CountingDisk, FailingDisk, WrappedDisk
from tests.builds import World
from tests.commitlog.test_mapped_files import SIZE, open_log, put
from tests.helpers import overwrite
from tests.messagestore.kit import message, open_small, sync_mode
from tests.stores import small_config

SMALL = small_config()


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


def cut_in_the_first_of_three(folder: Path) -> tuple[list[Path], int]:
    """Write three log files, and damage the checksum of every record from a position in the first on."""
    with MessageStore.open(folder, config=SMALL) as store:
        while len(store.engine.log.queue.files) < 3:
            store.put(Message("T", bytes(range(256)) * 4, queue_id=0))
        offsets = [one.physical_offset for one in store.engine.log.messages()]
    files = sorted((folder / "commitlog").iterdir())
    size = files[0].stat().st_size
    for offset in offsets[5:]:
        overwrite(files[offset // size], offset % size + 8, b"\7\7\7\7")
    return files, offsets[5]


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_whole_files_behind_the_cut_are_moved_instead_of_copied(tmp_path: Path, is_elsewhere: bool) -> None:
    """A copy of a large log would need as much space again; only to another file system there is no other way."""

    class Elsewhere(WrappedDisk):
        def before(self, operation: str, path: str) -> None:
            if is_elsewhere and operation == "rename" and "commitlog" in path:
                raise DiskError("rename", path, errno.EXDEV, "Invalid cross-device link")

    files, cut = cut_in_the_first_of_three(tmp_path / "s")
    before = {int(path.name): (path.stat().st_ino, path.read_bytes()) for path in files}
    Recovery(str(tmp_path / "s"), Choice.TRUNCATE, disk=Elsewhere()).apply()
    kept = {int(path.name.split("-")[1]): path for path in (tmp_path / "s" / "brokerstore").glob("cut-*")}
    later = [int(path.name) for path in files[1:]]
    assert sorted(kept) == [cut, *later]
    assert kept[cut].read_bytes() == before[0][1][cut:].rstrip(b"\0")
    for start in later:
        inode, data = before[start]
        assert (kept[start].stat().st_ino == inode) != is_elsewhere
        assert kept[start].read_bytes().rstrip(b"\0") == data.rstrip(b"\0")
    assert [path.name for path in (tmp_path / "s" / "commitlog").iterdir()] == [files[0].name]
    with MessageStore.open(tmp_path / "s", "r") as store:
        assert len(store.get("T", 0, 0, 32).messages) == 5


@pytest.mark.deep
def test_a_recovery_that_cuts_three_files_and_is_killed_at_any_call_is_run_again(tmp_path: Path) -> None:
    """Files go from the end of the log, so what is left is always a log that ends with damage."""
    cut_in_the_first_of_three(tmp_path / "s")
    counting = CountingDisk()
    shutil.copytree(tmp_path / "s", tmp_path / "whole")
    Recovery(str(tmp_path / "whole"), Choice.TRUNCATE, disk=counting).apply()
    changes = [at for at, call in enumerate(counting.calls, 1) if call.operation in ("rename", "write", "sync", "delete")]
    for at in changes:
        store = tmp_path / str(at)
        shutil.copytree(tmp_path / "s", store)
        with contextlib.suppress(DiskError):
            Recovery(str(store), Choice.TRUNCATE, disk=FailingDisk(at, for_ever=True)).apply()
        Recovery(str(store), Choice.TRUNCATE).apply()
        assert verify_store(str(store)).problems == []
        with MessageStore.open(store, "r") as opened:
            assert len(opened.get("T", 0, 0, 32).messages) == 5
        shutil.rmtree(store)
