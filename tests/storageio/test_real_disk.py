"""The real disk: what it opens, rejects and guarantees."""

from __future__ import annotations

import errno
import fcntl
import gc
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from storageio import (
    REAL_DISK,
    DiskError,
    DiskFull,
    Kind,
    Mode,
    StoreError,
    StoreLocked,
    disk,
)
from tests.processes import running


def make(path: Path, data: bytes = b"") -> str:
    path.write_bytes(data)
    return str(path)


def test_open_modes_read_write_or_create_a_file(tmp_path: Path) -> None:
    """READ and WRITE need a file, CREATE creates one; a file opened with READ cannot be written."""
    path = str(tmp_path / "f")
    for mode in (Mode.READ, Mode.WRITE):
        with pytest.raises(DiskError, match="open failed") as caught:
            REAL_DISK.open(path, mode)
        assert (caught.value.operation, caught.value.file) == ("open", path)
    made = REAL_DISK.open(path, Mode.CREATE)
    made.write(3, b"abc")
    assert (made.size(), made.read(0, 100), made.path) == (6, b"\0\0\0abc", path)
    made.close()
    made.close()
    reader = REAL_DISK.open(path, Mode.READ)
    with pytest.raises(DiskError, match="write failed"):
        reader.write(0, b"x")
    reader.close()
    assert REAL_DISK.open(path, Mode.CREATE).read(0, 3) == b"\0\0\0"


@pytest.mark.parametrize("is_free_threaded", [False, True])
def test_threads_may_slice_a_map_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_free_threaded: bool) -> None:
    """Without a GIL each asks for a view of its own, because CPython counts the slices of one view without a lock."""
    monkeypatch.setattr(disk, "FREE_THREADED", is_free_threaded or disk.FREE_THREADED)
    file = REAL_DISK.open(make(tmp_path / "f", bytes(8192)), Mode.WRITE)
    shared = file.map(8192, writable=True)
    shared.view[5] = 7
    assert (shared.view is not shared.view) == disk.FREE_THREADED
    assert (shared.view[5], len(shared.view), shared.view.readonly) == (7, 8192, False)
    assert file.map(8192, writable=False).view.readonly
    failed: list[BaseException] = []

    def cut() -> None:
        try:
            for at in range(4000):
                assert bytes(shared.view[at : at + 9]).count(7) == (at <= 5)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=cut) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    file.close()


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "device", "folder", "socket"])
@pytest.mark.parametrize("mode", [Mode.READ, Mode.WRITE, Mode.CREATE])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str, mode: Mode) -> None:
    """A link is not followed, a pipe does not block, a device is not opened."""
    path = tmp_path / "f"
    if kind == "link":
        make(tmp_path / "target", b"precious")
        path.symlink_to("target")
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DiskError):
        REAL_DISK.open(str(path), mode)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not (tmp_path / "nowhere").exists()


def test_invalid_file_names_raise_disk_error(tmp_path: Path) -> None:
    """A NUL or a too long name raises `DiskError`, not `ValueError`."""
    for name in ("a\0b", "x" * 300):
        path = str(tmp_path / name)
        for call in (
            lambda path=path: REAL_DISK.open(path, Mode.CREATE),
            lambda path=path: REAL_DISK.stat(path),
            lambda path=path: REAL_DISK.list(path),
            lambda path=path: REAL_DISK.make_folder(path),
            lambda path=path: REAL_DISK.lock(path),
            lambda path=path: REAL_DISK.rename(path, path),
            lambda path=path: REAL_DISK.delete(path),
        ):
            with pytest.raises(DiskError):
                call()


def test_a_map_beyond_the_end_is_refused(tmp_path: Path) -> None:
    """Touching it would kill the process; an empty map is rejected too."""
    file = REAL_DISK.open(make(tmp_path / "f", b"x" * 100), Mode.WRITE)
    for size in (101, 1 << 40, 0, -1):
        with pytest.raises(DiskError, match="map failed"):
            file.map(size, writable=True)
    assert bytes(file.map(100, writable=False).view) == b"x" * 100


def test_a_map_to_read_cannot_be_written(tmp_path: Path) -> None:
    """A reader cannot change a store by accident."""
    file = REAL_DISK.open(make(tmp_path / "f", b"x" * 100), Mode.READ)
    view = file.map(50, writable=False).view
    assert view.readonly and len(view) == 50
    with pytest.raises(DiskError, match="map failed"):
        file.map(50, writable=True)


def test_a_map_lives_as_long_as_a_view_of_it(tmp_path: Path) -> None:
    """A slice is readable after close, deletion and garbage collection."""
    path = make(tmp_path / "f", b"abc" * 5000)
    file = REAL_DISK.open(path, Mode.WRITE)
    held = file.map(15000, writable=True)
    part = held.view[9000:9003]
    held.view[0:3] = b"XYZ"
    held.expect_random()
    held.close()
    file.close()
    REAL_DISK.delete(path)
    del held, file
    gc.collect()
    assert bytes(part) == b"abc"
    assert REAL_DISK.stat(path) is None


@pytest.mark.parametrize(("start", "stop"), [(0, 8192), (4097, 1 << 40), (1 << 40, 1 << 41), (9, 3), (-5, 0)])
def test_populate_stays_inside_the_map(tmp_path: Path, start: int, stop: int) -> None:
    """Any range is accepted, and so is a closed map."""
    file = REAL_DISK.open(make(tmp_path / "f", bytes(16384)), Mode.WRITE)
    held = file.map(16384, writable=True)
    held.populate(start, stop)
    assert bytes(held.view) == bytes(16384)
    held.close()
    held.populate(start, stop)


def test_allocate_gives_real_blocks_of_zeros(tmp_path: Path) -> None:
    """A store through a map cannot meet a full disk later; the file never shrinks."""
    file = REAL_DISK.open(str(tmp_path / "f"), Mode.CREATE)
    file.allocate(1 << 20)
    assert file.size() == 1 << 20
    assert os.stat(file.path).st_blocks * 512 >= 1 << 20
    assert file.read((1 << 20) - 4, 100) == bytes(4)
    file.allocate(1000)
    file.allocate(0)
    assert file.size() == 1 << 20
    file.truncate(10)
    file.sync()
    assert file.size() == 10


def test_allocate_on_a_full_disk_is_a_clean_error(tmp_path: Path) -> None:
    """On a file system of 1 MiB it raises `DiskFull`, and existing data stays."""
    script = (
        "import sys\n"
        "from storageio import REAL_DISK, DiskFull, Mode\n"
        "file = REAL_DISK.open(sys.argv[1] + '/f', Mode.CREATE)\n"
        "file.write(0, b'kept')\n"
        "try:\n"
        "    file.allocate(1 << 21)\n"
        "except DiskFull as error:\n"
        "    print(error.operation, file.read(0, 4))\n"
    )
    mounted = 'mount -t tmpfs -o size=1m none "$2" && exec "$0" -c "$1" "$2"'
    command = ["unshare", "-rm", "sh", "-c", mounted, sys.executable, script, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare" in found.stderr or "mount" in found.stderr:
        pytest.skip("no private mounts here")
    assert found.stdout == "allocate b'kept'\n", found.stderr


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_and_no_quota_are_both_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """ENOSPC and EDQUOT raise the same error."""

    def full(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", full)
    file = REAL_DISK.open(make(tmp_path / "f", b"kept"), Mode.WRITE)
    with pytest.raises(DiskFull, match="allocate failed"):
        file.allocate(4096)
    assert file.read(0, 10) == b"kept"


def test_allocate_writes_zeros_without_posix_fallocate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes zeros instead."""
    monkeypatch.delattr(os, "posix_fallocate")
    file = REAL_DISK.open(make(tmp_path / "f", b"kept"), Mode.WRITE)
    file.allocate((2 << 20) + 5)
    assert (file.size(), file.read(0, 8)) == ((2 << 20) + 5, b"kept\0\0\0\0")


def test_list_returns_sorted_entries_with_their_kinds(tmp_path: Path) -> None:
    """Symbolic links are not followed."""
    make(tmp_path / "b", b"12")
    (tmp_path / "a").mkdir()
    (tmp_path / "c").symlink_to("b")
    os.mkfifo(tmp_path / "d")
    found = [(entry.name, entry.kind) for entry in REAL_DISK.list(str(tmp_path))]
    assert found == [("a", Kind.FOLDER), ("b", Kind.FILE), ("c", Kind.OTHER), ("d", Kind.OTHER)]
    entry = REAL_DISK.stat(str(tmp_path / "b"))
    assert entry is not None and entry.size_bytes == 2
    assert entry.modified_ms == os.stat(tmp_path / "b").st_mtime_ns // 1_000_000
    assert REAL_DISK.stat(str(tmp_path / "b" / "below")) is None


def test_make_folder_creates_parents_and_delete_folder_needs_an_empty_one(tmp_path: Path) -> None:
    """A file at the path is an error."""
    deep = tmp_path / "x" / "y" / "z"
    for _ in range(2):
        REAL_DISK.make_folder(str(deep))
    assert deep.is_dir()
    make(deep / "f")
    for bad in (deep / "f", deep / "f" / "g"):
        with pytest.raises(DiskError, match="make folder"):
            REAL_DISK.make_folder(str(bad))
    with pytest.raises(DiskError, match="delete folder"):
        REAL_DISK.delete_folder(str(deep))
    REAL_DISK.rename(str(deep / "f"), str(tmp_path / "g"))
    REAL_DISK.sync_folder(str(tmp_path))
    REAL_DISK.delete_folder(str(deep))
    assert (tmp_path / "g").exists() and not deep.exists()


def _try_lock(path: str, answer: multiprocessing.SimpleQueue[str]) -> None:
    try:
        REAL_DISK.lock(path).release()
        answer.put("got it")
    except StoreError as error:
        answer.put(type(error).__name__)


def _from_another_process(path: str) -> str:
    context = multiprocessing.get_context("spawn")
    answer: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    other = context.Process(target=_try_lock, args=(path, answer))
    other.start()
    found = answer.get()
    other.join()
    return found


def test_one_lock_in_all_processes_and_in_this_one(tmp_path: Path) -> None:
    """It is held once, also under another name of the same file, and is free after its release."""
    path, other_name = str(tmp_path / "lock"), str(tmp_path / "hard")
    held = REAL_DISK.lock(path)
    os.link(path, other_name)
    for name in (path, other_name):
        with pytest.raises(StoreLocked, match="this process"):
            REAL_DISK.lock(name)
    assert _from_another_process(path) == "StoreLocked"
    held.release()
    held.release()
    assert _from_another_process(path) == "got it"
    REAL_DISK.lock(path).release()


def test_the_lock_is_a_posix_record_lock_on_byte_0(tmp_path: Path) -> None:
    """As in RocketMQ, `lockf` of another process conflicts with it, `flock` does not, and byte 1 is free."""
    path = str(tmp_path / "lock")
    held = REAL_DISK.lock(path)
    script = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1)\n"
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "try:\n"
        "    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "except BlockingIOError:\n"
        "    print('refused')\n"
    )
    found = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    assert found.stdout == "refused\n"
    held.release()


def test_a_lock_of_another_program_is_respected(tmp_path: Path) -> None:
    """The other program holds it as a broker would."""
    path = make(tmp_path / "lock", b"lock")
    script = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with running([sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdin is not None and broker.stdout is not None
        assert broker.stdout.readline() == b"held\n"
        with pytest.raises(StoreLocked, match=r"process \d+, has the store open"):
            REAL_DISK.lock(path)
        waiting = threading.Timer(0.1, broker.stdin.close)
        waiting.start()
        REAL_DISK.lock(path, wait=True).release()
        waiting.join()
    assert Path(path).read_bytes() == b"lock"


def test_a_forked_child_does_not_free_the_lock(tmp_path: Path) -> None:
    """Release in the child does nothing: the lock is the parent's."""
    path = str(tmp_path / "lock")
    held = REAL_DISK.lock(path)
    child = os.fork()
    if child == 0:
        held.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert _from_another_process(path) == "StoreLocked"
    held.release()


def test_a_lock_path_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """A link cannot redirect the lock to another store."""
    make(tmp_path / "target")
    (tmp_path / "lock").symlink_to("target")
    with pytest.raises(DiskError):
        REAL_DISK.lock(str(tmp_path / "lock"))
    with open(tmp_path / "target", "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)


def test_space_and_clock(tmp_path: Path) -> None:
    """The values are plausible; a missing path raises a named error."""
    space = REAL_DISK.space(str(tmp_path))
    assert 0 <= space.free_bytes <= space.total_bytes
    assert REAL_DISK.now_ms() > 1_600_000_000_000
    with pytest.raises(DiskError, match="space failed"):
        REAL_DISK.space(str(tmp_path / "missing"))


def test_disk_usage_equals_df_and_rocketmq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that are free and reserved count neither as used nor as free: retention would delete what has room."""
    whole = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: whole._replace(total=1000, used=200, free=300))
    assert REAL_DISK.space(str(tmp_path)) == (500, 300)


def test_no_call_leaves_a_descriptor_open(tmp_path: Path) -> None:
    """A store that syncs a folder every second would use up its descriptors within the hour."""
    gc.collect()  # what tests before this one left
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        REAL_DISK.make_folder(str(tmp_path / "a" / "b"))
        REAL_DISK.sync_folder(str(tmp_path))
        REAL_DISK.list(str(tmp_path))
        REAL_DISK.lock(str(tmp_path / "lock")).release()
        file = REAL_DISK.open(str(tmp_path / "f"), Mode.CREATE)
        file.allocate(4096)
        held = file.map(4096, writable=True)
        file.close()
        held.close()
        with pytest.raises(StoreError):
            REAL_DISK.open(str(tmp_path / "a"), Mode.READ)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says what is mapped")
def test_a_closed_map_is_unmapped_when_its_last_view_goes(tmp_path: Path) -> None:
    """A closed map object keeps no memory and no address space."""
    path = make(tmp_path / "mapped", bytes(4096))
    file = REAL_DISK.open(path, Mode.WRITE)
    held = file.map(4096, writable=True)
    view = held.view[:10]
    held.close()
    assert path in Path("/proc/self/maps").read_text(), "a view is left"
    view.release()
    del view
    gc.collect()
    assert path not in Path("/proc/self/maps").read_text()
    held.close()
    file.close()


def test_an_unlinked_file_has_no_name_and_keeps_its_space_until_it_is_freed(tmp_path: Path) -> None:
    """Freeing 16 MiB takes the system most of a millisecond, which a removal of messages must not wait for."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 5000)
    REAL_DISK.free_unlinked()
    with path.open("rb") as reader:
        before = os.fstat(reader.fileno())
        held = _descriptors_of(before)
        REAL_DISK.unlink(str(path))
        assert not path.exists() and _descriptors_of(before) == held + 1
        REAL_DISK.free_unlinked()
        assert _descriptors_of(before) == held


def test_a_limited_number_of_unlinked_files_is_held(tmp_path: Path) -> None:
    """The others are freed by the call that goes beyond."""
    REAL_DISK.free_unlinked()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(100):
        path = tmp_path / str(number)
        path.write_bytes(b"x")
        REAL_DISK.unlink(str(path))
    assert len(os.listdir("/proc/self/fd")) - before == 64
    REAL_DISK.free_unlinked()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_is_unlinked_without_a_free_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then its space is freed in the call."""
    path = tmp_path / "file"
    path.write_bytes(b"x")

    def full(*_arguments: Any) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "open", full)
    REAL_DISK.unlink(str(path))
    monkeypatch.undo()
    assert not path.exists()


def _descriptors_of(found: os.stat_result) -> int:
    """Return how many descriptors of this process are of the file."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    return sum(1 for number in numbers if _is_of(number, found))


def _is_of(number: int, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(number), found)
    except OSError:  # the descriptor that listed the folder
        return False
