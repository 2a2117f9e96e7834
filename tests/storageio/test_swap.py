"""New files in the place of old ones, and copies of what would be lost, with each call failing in turn."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from storageio import REAL_DISK, DiskError, Mode, free_path, keep, keep_copy, move_aside, staged
from storageio.testing import CountingDisk, FailingDisk, ForgettingDisk

STAGE = ["create", "truncate", "write", "sync", "rename", "sync folder"]


def test_staged_file_is_synced_before_it_gets_its_name(tmp_path: Path) -> None:
    """What an earlier attempt left under the name with `.new` is overwritten."""
    disk, path = CountingDisk(), tmp_path / "f"
    (tmp_path / "f.new").write_bytes(b"left by a crash, and longer")
    with staged(disk, str(path)) as file:
        file.write(0, b"new")
        assert not path.exists()
    assert [call.operation for call in disk.calls] == STAGE
    assert path.read_bytes() == b"new" and not (tmp_path / "f.new").exists()


def test_staged_file_is_not_committed_if_the_block_raises(tmp_path: Path) -> None:
    """The old file stays, and the descriptor is closed."""
    path, disk = tmp_path / "f", ForgettingDisk()
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="no"), staged(REAL_DISK, str(path)):
        raise ValueError("no")
    assert path.read_bytes() == b"old"
    disk.make_folder("/x")
    with pytest.raises(ValueError, match="no"), staged(disk, "/x/f"):
        raise ValueError("no")
    assert disk.open_files == 0 and disk.stat("/x/f") is None


def test_failed_call_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """Each call fails once."""
    path, failed = tmp_path / "f", 0
    for number in range(1, 10):
        path.write_bytes(b"old")
        try:
            with staged(FailingDisk(number), str(path)) as file:
                file.write(0, b"new")
        except DiskError:
            failed += 1
        assert path.read_bytes() in (b"old", b"new")
    assert failed == len(STAGE)


def test_entry_is_moved_aside_to_a_free_name(tmp_path: Path) -> None:
    """A symbolic link is moved and not followed."""
    path = tmp_path / "f"
    for number in range(3):
        path.symlink_to("nowhere")
        assert move_aside(REAL_DISK, str(path)) == f"{path}.aside-{number}"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["f.aside-0", "f.aside-1", "f.aside-2"]
    assert free_path(REAL_DISK, f"{path}.aside-") == f"{path}.aside-3"


def test_kept_copy_has_the_same_bytes_and_holes(tmp_path: Path) -> None:
    """Data, a hole of a terabyte, data, and a hole at the end; the folder is created."""
    path, target = tmp_path / "f", tmp_path / "kept" / "f"
    with path.open("wb") as file:
        file.write(b"head")
        file.seek(1 << 40)
        file.write(b"tail" * 1000)
        file.truncate((1 << 40) + (1 << 20))
    keep_copy(REAL_DISK, str(path), str(target))
    assert target.stat().st_size == path.stat().st_size and target.stat().st_blocks * 512 < 4 << 20
    with target.open("rb") as file:
        assert file.read(8) == b"head\0\0\0\0"
        file.seek(1 << 40)
        assert file.read(4001) == b"tail" * 1000 + b"\0"


def test_kept_bytes_are_durable() -> None:
    """After a power failure the file is there whole."""
    disk = ForgettingDisk()
    keep(disk, "/own/cut-0", lambda file: file.write(0, b"cut"))
    for image in disk.images(Random(1)):
        with ForgettingDisk.of(image).open("/own/cut-0", Mode.READ) as file:
            assert file.read(0, 9) == b"cut"
