"""A failed sync whose marker could not be written: the next open must not trust the page cache."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from storageio import DiskError, Mode, PutRejected
from storageio.testing import CountingDisk, ForgettingDisk
from tests.messagestore.kit import message, open_small, sync_mode

FOLDER = Path("/s/store")


def refuse(operation: str, path: str) -> None:
    """Refuse to sync log pages, and to write any byte of a marker."""
    if operation == "sync" and "/commitlog/" in path:
        raise DiskError(operation, path, errno.EIO, os.strerror(errno.EIO))
    if operation == "write" and path.endswith("doubt.json"):
        raise DiskError(operation, path, errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_unwritable_sync_failure_marker_makes_the_next_open_rewrite_the_whole_log(world: Any) -> None:
    """It exists and is empty, and must not count as missing: the second open would report lost bytes as flushed."""
    disk = ForgettingDisk()
    disk.make_folder("/s")
    store = open_small(world, FOLDER, disk=disk, flush_disk_type=sync_mode(world))
    store.put(message(world, 0))
    disk.refuse = refuse
    with pytest.raises(PutRejected):
        store.put(message(world, 1))
    store.close()
    disk.refuse = None
    with open_small(world, FOLDER, disk=disk) as store:
        found = [one.body for one in store.read("T", 0)]
        store.flush()
    after = ForgettingDisk.of(disk.least())
    with open_small(world, FOLDER, disk=after) as store:
        assert [one.body for one in store.read("T", 0)] == found


def test_rewrite_after_a_sync_failure_skips_symlinked_files(world: Any, tmp_path: Path) -> None:
    """After a failed sync every file of the store is rewritten; a file elsewhere is not, because another program writes it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "theirs").write_bytes(b"not ours")
    with open_small(world, tmp_path / "s") as store:
        store.put(message(world, 0))
    (tmp_path / "s" / "consumequeue" / "elsewhere").symlink_to(outside)
    (tmp_path / "s" / "brokerstore" / "doubt.json").write_bytes(b'{"flushed_offset": 0}')
    disk = CountingDisk()
    with open_small(world, tmp_path / "s", disk=disk) as store:
        assert [one.body for one in store.read("T", 0)] == [message(world, 0).body]
    written = {call.path for call in disk.calls if call.operation in ("write", "sync")}
    assert any("consumequeue/T/0/" in path for path in written)
    assert not [path for path in written if "/elsewhere" in path or path.startswith(str(outside))]
    assert not (tmp_path / "s" / "brokerstore" / "doubt.json").exists()


def test_rewrite_after_a_sync_failure_syncs_bytes_and_names(world: Any) -> None:
    """Files in nested folders get their bytes and the names that the earlier process had not synced."""
    sync_failure, disk = world.module("messagestore.write.sync_failure"), ForgettingDisk()
    expected = {
        f"/store/{name}": name.encode() * 900 for name in ("consumequeue/T/0/a", "consumequeue/T/1/b", "index/c", "index/d")
    }
    for path, data in expected.items():
        disk.make_folder(path.rpartition("/")[0])
        file = disk.open(path, Mode.CREATE)
        file.write(0, data)
        file.close()
    assert disk.least().files == {}
    sync_failure.mark_sync_failure(disk, "/store/brokerstore", 0)
    sync_failure.rewrite_after_sync_failure(
        disk, "/store/brokerstore", [], ["/store/consumequeue", "/store/index", "/store/absent"]
    )
    left = disk.least().files
    assert {path: left.get(path) for path in expected} == expected
    assert "/store/brokerstore/doubt.json" not in disk.files()
