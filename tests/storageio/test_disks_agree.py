"""`ForgettingDisk` answers every call like the real disk; otherwise crash tests on it would test another store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storageio import REAL_DISK, DiskError, Kind, Mode, StoreLocked
from storageio.testing import ForgettingDisk

FILE_SIZE = 5000
Call = Callable[[Any, str], Any]


def prepared(disk: Any, root: str) -> None:
    """Create a file, an empty folder, and a folder with a file in it."""
    disk.make_folder(f"{root}/empty")
    disk.make_folder(f"{root}/full/below")
    for path in ("file", "full/file"):
        file = disk.open(f"{root}/{path}", Mode.CREATE)
        file.write(0, b"x" * FILE_SIZE)
        file.sync()
        file.close()


def seen(disk: Any, root: str) -> list[tuple[str, Kind, int]]:
    """Return every name below a folder, its kind, and a file's length."""
    found = []
    for entry in disk.list(root):
        found.append((entry.name, entry.kind, entry.size_bytes if entry.kind is Kind.FILE else 0))
        if entry.kind is Kind.FOLDER:
            found += [(f"{entry.name}/{name}", kind, size) for name, kind, size in seen(disk, f"{root}/{entry.name}")]
    return found


def answer(disk: Any, root: str, call: Call) -> tuple[object, Any]:
    """Return the result or error number of a call, and the state of the folder after it."""
    try:
        given = call(disk, root)
    except DiskError as error:
        given = error.errno
    return given, seen(disk, root)


def with_file(path: str, mode: Mode, use: Callable[[Any], Any]) -> Call:
    """Open a file, use it, close it twice."""

    def call(disk: Any, root: str) -> Any:
        file = disk.open(f"{root}/{path}", mode)
        try:
            return use(file)
        finally:
            file.close()
            file.close()

    return call


def bytes_of_a_map(file: Any, writable: bool) -> bytes:
    """Read a map.  Advice given twice, or for a closed map, changes nothing."""
    made = file.map(10, writable=writable)
    for _ in range(2 if writable else 0):
        made.populate(0, 10)
    made.expect_random()
    made.expect_sequential()
    data = bytes(made.view)
    made.close()
    made.expect_random()
    made.expect_sequential()
    made.populate(0, 10)
    return data


EDGES = (0, FILE_SIZE - 2, FILE_SIZE + 5, -1, (1 << 63) - 1)

CALLS: dict[str, Call] = {
    "open nothing": with_file("none", Mode.READ, lambda file: file.size()),
    "open a folder": with_file("empty", Mode.READ, lambda file: file.size()),
    "open below a file": with_file("file/x", Mode.CREATE, lambda file: file.size()),
    "open below nothing": with_file("none/x", Mode.CREATE, lambda file: file.size()),
    "open what is there to create it": with_file("file", Mode.CREATE, lambda file: file.size()),
    "map nothing of a file": with_file("file", Mode.READ, lambda file: file.map(0, writable=False)),
    "map more than a file": with_file("file", Mode.WRITE, lambda file: file.map(FILE_SIZE + 1, writable=True)),
    "map a part to read": with_file("file", Mode.READ, lambda file: bytes_of_a_map(file, False)),
    "map a part to write": with_file("file", Mode.WRITE, lambda file: bytes_of_a_map(file, True)),
    "allocate less than there is": with_file("file", Mode.WRITE, lambda file: file.allocate(10)),
    "allocate more than there is": with_file("file", Mode.WRITE, lambda file: file.allocate(9000)),
    "cut": with_file("file", Mode.WRITE, lambda file: file.truncate(3)),
    "read over the end": with_file("file", Mode.READ, lambda file: file.read(FILE_SIZE - 2, 10)),
    "read behind the end": with_file("file", Mode.READ, lambda file: file.read(FILE_SIZE + 2, 10)),
    "expect to read what is not there": with_file("file", Mode.READ, lambda file: [file.expect_read(at, 10) for at in EDGES]),
    "write behind the end": with_file("file", Mode.WRITE, lambda file: file.write(6000, b"abc")),
    "write in pieces": with_file("file", Mode.WRITE, lambda file: file.write_pieces(0, [memoryview(b"ab"), memoryview(b"c")])),
    "list nothing": lambda disk, root: disk.list(f"{root}/none"),
    "list a file": lambda disk, root: disk.list(f"{root}/file"),
    "stat nothing": lambda disk, root: disk.stat(f"{root}/none/x"),
    "stat below a file": lambda disk, root: disk.stat(f"{root}/file/x"),
    "stat a folder": lambda disk, root: disk.stat(f"{root}/empty").kind,
    "make a folder of a file": lambda disk, root: disk.make_folder(f"{root}/file"),
    "make a folder below a file": lambda disk, root: disk.make_folder(f"{root}/file/x"),
    "make a folder twice": lambda disk, root: disk.make_folder(f"{root}/empty"),
    "sync no folder": lambda disk, root: disk.sync_folder(f"{root}/none"),
    "unlink a file": lambda disk, root: (disk.unlink(f"{root}/file"), disk.free_unlinked()),
    "unlink nothing": lambda disk, root: disk.unlink(f"{root}/none"),
    "unlink a folder": lambda disk, root: disk.unlink(f"{root}/empty"),
    "delete nothing": lambda disk, root: disk.delete(f"{root}/none"),
    "delete a folder": lambda disk, root: disk.delete(f"{root}/empty"),
    "delete below a file": lambda disk, root: disk.delete(f"{root}/file/x"),
    "delete a folder of no name": lambda disk, root: disk.delete_folder(f"{root}/none"),
    "delete a folder that is a file": lambda disk, root: disk.delete_folder(f"{root}/file"),
    "delete a full folder": lambda disk, root: disk.delete_folder(f"{root}/full"),
    "delete an empty folder": lambda disk, root: disk.delete_folder(f"{root}/empty"),
    "rename nothing": lambda disk, root: disk.rename(f"{root}/none", f"{root}/x"),
    "rename into nothing": lambda disk, root: disk.rename(f"{root}/file", f"{root}/none/x"),
    "rename over a file": lambda disk, root: disk.rename(f"{root}/file", f"{root}/full/file"),
    "rename a folder over an empty one": lambda disk, root: disk.rename(f"{root}/full", f"{root}/empty"),
    "rename a folder over a full one": lambda disk, root: disk.rename(f"{root}/empty", f"{root}/full"),
    "rename a file over a folder": lambda disk, root: disk.rename(f"{root}/file", f"{root}/empty"),
    "rename a folder over a file": lambda disk, root: disk.rename(f"{root}/empty", f"{root}/file"),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_has_the_same_result_on_both_disks(tmp_path: Path, name: str) -> None:
    """Results, error numbers, and every name and length afterwards are equal."""
    forgetting = ForgettingDisk()
    prepared(REAL_DISK, str(tmp_path))
    prepared(forgetting, "/root")
    assert answer(forgetting, "/root", CALLS[name]) == answer(REAL_DISK, str(tmp_path), CALLS[name])


def test_lock_is_exclusive_and_creates_its_file(tmp_path: Path) -> None:
    """The lock can be taken again after its release."""
    for disk, root in ((ForgettingDisk(), ""), (REAL_DISK, str(tmp_path))):
        held = disk.lock(f"{root}/lock")
        with pytest.raises(StoreLocked, match="this process"):
            disk.lock(f"{root}/lock")
        held.release()
        disk.lock(f"{root}/lock").release()
        assert [entry.name for entry in disk.list(root or "/")] == ["lock"]
        assert disk.space(root or "/").free_bytes > 0 and disk.writers(root or "/") == ()
