"""Log files that no store would load: everything that is removed is kept."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from storageio import DiskError, StoreCorrupt
from storageio.testing import FailingDisk, WrappedDisk
from tests.stores import small_config

SMALL = small_config(max_hash_slot_num=50)
TERABYTE = 1 << 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a cleanly closed store of two log files."""
    with MessageStore.open(tmp_path / "store", config=SMALL) as store:
        for number in range(200):
            store.put(Message("topic", b"%d" % number + b"x" * 300, queue_id=0, keys=["key"]))
    return tmp_path / "store"


class TwoDisks(WrappedDisk):
    """A disk on which no file can be renamed out of the log."""

    def rename(self, source: str, target: str) -> None:
        """Refuse as a rename between two file systems."""
        if "commitlog" in source and "commitlog" not in target:
            raise DiskError("rename", source, errno.EXDEV, os.strerror(errno.EXDEV))
        super().rename(source, target)


def test_second_stray_file_of_the_same_name_does_not_overwrite_the_first(folder: Path) -> None:
    """Both are moved, and neither overwrites the other."""
    for text in (b"first", b"second"):
        (folder / "commitlog" / "notes").write_bytes(text)
        Recovery(str(folder), Choice.SKIP, SMALL).apply()
    assert {path.read_bytes() for path in (folder / "brokerstore" / "strays").iterdir()} == {b"first", b"second"}
    assert not verify_store(str(folder), SMALL).problems


def test_a_stray_in_a_log_on_another_disk_is_put_aside(folder: Path) -> None:
    """It cannot be renamed, so it is copied."""
    content = b"\0" * (3 << 20) + b"x" + b"\0" * (1 << 20)
    (folder / "commitlog" / "notes").write_bytes(content)
    Recovery(str(folder), Choice.SKIP, SMALL, TwoDisks()).apply()
    assert (folder / "brokerstore" / "strays" / "notes").read_bytes() == content
    assert not (folder / "commitlog" / "notes").exists()
    assert not verify_store(str(folder), SMALL).problems


def test_a_log_file_of_a_terabyte_is_cut_and_its_end_kept(folder: Path) -> None:
    """There is no memory for its apparent size."""
    path = folder / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(TERABYTE - 4)
        file.write(b"tail")
    Recovery(str(folder), Choice.SKIP, SMALL).apply()
    assert path.stat().st_size == 65536
    (kept,) = (folder / "brokerstore").glob(f"cut-{65536:020d}-*")
    with kept.open("rb") as file:
        file.seek(-4, os.SEEK_END)
        assert file.read() == b"tail"
    assert kept.stat().st_size == TERABYTE - 65536
    assert not verify_store(str(folder), SMALL).problems


@pytest.mark.parametrize("size_bytes", [0, 65536], ids=["empty", "zeros"])
def test_recover_rejects_an_empty_file_with_a_far_offset(folder: Path, size_bytes: int) -> None:
    """Each file missing before it would have to be created, as many as its name says."""
    path = folder / "commitlog" / f"{65536 * 20_001:020d}"
    path.write_bytes(bytes(size_bytes))
    before = sorted((folder / "commitlog").iterdir())
    with pytest.raises(StoreCorrupt, match="at most 10000 files missing") as caught:
        Recovery(str(folder), Choice.SKIP, SMALL).plan()
    assert caught.value.file == str(path) and sorted((folder / "commitlog").iterdir()) == before


def test_file_size_of_a_log_of_two_empty_files_is_unknown(folder: Path) -> None:
    """Nothing shows how long a file is: no gap between them is measured."""
    first, second = sorted((folder / "commitlog").iterdir())
    first.write_bytes(b"")
    second.write_bytes(b"")
    plan = Recovery(str(folder), Choice.SKIP).plan()
    assert {finding.kind for finding in plan.findings} >= {"empty_file"}


def test_an_empty_first_file_is_a_hole_before_every_other_record(folder: Path) -> None:
    """A choice is needed, and its messages are counted, as for a file that is missing between others."""
    with MessageStore.open(folder, "r") as store:
        offsets = [message.physical_offset for message in store.read("topic", 0)]
    first = sum(offset < 65536 for offset in offsets)
    (folder / "commitlog" / f"{0:020d}").write_bytes(b"")
    assert Recovery(str(folder)).plan().needs_choice
    plan = Recovery(str(folder), Choice.SKIP).apply()
    assert (plan.messages_kept, plan.messages_lost) == (len(offsets) - first, first)
    assert not verify_store(str(folder)).problems


def test_a_stray_that_cannot_be_moved_stays_and_ends_the_recovery(folder: Path) -> None:
    """It is copied only if it is on another disk."""
    (folder / "commitlog" / "notes").write_bytes(b"mine")
    disk = FailingDisk(1, only="rename")
    with pytest.raises(DiskError):
        Recovery(str(folder), Choice.SKIP, SMALL, disk).apply()
    assert (folder / "commitlog" / "notes").read_bytes() == b"mine"
    Recovery(str(folder), Choice.SKIP, SMALL).apply()
    assert (folder / "brokerstore" / "strays" / "notes").read_bytes() == b"mine"


def test_a_log_file_that_is_too_long_by_nothing_but_zeros_is_cut(folder: Path) -> None:
    """There is nothing to keep."""
    path = folder / "commitlog" / f"{0:020d}"
    before = path.read_bytes()
    path.write_bytes(before + bytes(100_000))
    Recovery(str(folder), Choice.SKIP, SMALL).apply()
    assert path.read_bytes() == before and not list((folder / "brokerstore").glob("cut-*"))
    assert not verify_store(str(folder), SMALL).problems
