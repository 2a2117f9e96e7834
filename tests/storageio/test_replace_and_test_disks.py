"""Replacement of a small file with each call failing in turn, and the disks that make calls fail."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from storageio import REAL_DISK, DiskError, DiskFull, Mode, StoreError, replace_file
from storageio.testing import CountingDisk, FailingDisk

REPLACE = ["create", "truncate", "write", "sync", "rename", "sync folder"]


def test_replace_file_syncs_before_and_after_the_rename(tmp_path: Path) -> None:
    """The new bytes are synced before the rename, the folder after it."""
    disk, path = CountingDisk(), str(tmp_path / "f")
    replace_file(disk, path, b"one")
    assert [call.operation for call in disk.calls] == REPLACE
    replace_file(disk, path, b"two", keep_backup=True)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["f", "f.bak"]
    assert (tmp_path / "f").read_bytes() == b"two"
    assert (tmp_path / "f.bak").read_bytes() == b"one"
    assert disk.counts["rename"] == 3


@pytest.mark.parametrize("keep_backup", [False, True])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_failed_replace_leaves_the_old_or_the_new_file_complete(tmp_path: Path, keep_backup: bool, code: int) -> None:
    """This holds for a failure of each call; with a backup the old bytes may be under that name."""
    path, failed = tmp_path / "f", 0
    for number in range(1, 20):
        path.write_bytes(b"old")
        (tmp_path / "f.bak").unlink(missing_ok=True)
        disk = FailingDisk(number, errno=code)
        try:
            replace_file(disk, str(path), b"new and longer", keep_backup=keep_backup)
        except StoreError as error:
            failed += 1
            assert isinstance(error, DiskFull) == (code == errno.ENOSPC)
        found = {item.read_bytes() for item in (path, tmp_path / "f.bak") if item.exists()}
        assert found & {b"old", b"new and longer"}
        assert found <= {b"old", b"new and longer"}
        replace_file(REAL_DISK, str(path), b"again")
        assert path.read_bytes() == b"again"
    assert failed == len(REPLACE) + 2 * keep_backup


def test_a_counting_disk_sees_every_call(tmp_path: Path) -> None:
    """The calls include those of its files and maps."""
    disk = CountingDisk()
    disk.make_folder(str(tmp_path / "x"))
    file = disk.open(str(tmp_path / "x" / "f"), Mode.CREATE)
    file.allocate(4096)
    file.write(0, b"abc")
    held = file.map(4096, writable=True)
    held.populate(0, 4096)
    held.expect_random()
    held.expect_sequential()
    assert (file.read(0, 3), bytes(held.view[:3]), file.size()) == (b"abc", b"abc", 4096)
    held.close()
    file.truncate(5)
    file.sync()
    file.close()
    assert disk.stat(file.path) is not None
    disk.rename(file.path, file.path + "2")
    disk.delete(file.path + "2")
    assert disk.list(str(tmp_path / "x")) == []
    disk.delete_folder(str(tmp_path / "x"))
    disk.sync_folder(str(tmp_path))
    disk.lock(str(tmp_path / "lock")).release()
    assert disk.space(str(tmp_path)).total_bytes > 0
    assert disk.now_ms() > 0
    assert set(disk.counts.values()) == {1}
    assert set(disk.counts) == {
        "make folder", "create", "allocate", "write", "map", "populate", "read", "size", "truncate", "sync", "stat", "rename",
        "delete", "list", "delete folder", "sync folder", "lock", "space",
    }  # fmt: skip


def test_failing_disk_fails_the_configured_call(tmp_path: Path) -> None:
    """It fails once or from then on, for one operation or for all."""
    once = FailingDisk(2, only="stat")
    path = str(tmp_path)
    once.list(path)
    assert once.stat(path) is not None
    with pytest.raises(DiskError, match="stat failed") as caught:
        once.stat(path)
    assert caught.value.errno == errno.EIO
    assert once.stat(path) is not None
    ever = FailingDisk(1, for_ever=True, errno=errno.EDQUOT)
    for _ in range(3):
        with pytest.raises(DiskFull):
            ever.list(path)
