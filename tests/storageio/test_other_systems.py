"""Systems that lack a call, do only part of one, or fail one: the disk returns the same bytes, or raises a named error."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from storageio import REAL_DISK, DiskError, Mode, processes, real_disk
from storageio.errors import UnsupportedPlatform

DATA = bytes(range(256)) * 40
PIECES = [DATA[:100], DATA[100:101], DATA[101:4000], DATA[4000:]]


def failing(number: int) -> Any:
    def call(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return call


def written(path: Path, write: Any) -> bytes:
    file = REAL_DISK.open(str(path), Mode.CREATE)
    try:
        write(file)
    finally:
        file.close()
    return path.read_bytes()


@pytest.mark.parametrize("most", [1, 99, 100, 101, 150, 5000])
def test_short_vectored_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A write may stop in a piece, at its end, or after several."""
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, pieces, at: whole(fd, [b"".join(pieces)[:most]], at))
    assert written(tmp_path / "f", lambda file: file.write_pieces(0, [memoryview(piece) for piece in PIECES])) == DATA


@pytest.mark.parametrize("most", [1, 99, 5000])
def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Each part continues where the previous one stopped."""
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, data[:most], at))
    data = DATA[:700] if most == 1 else DATA
    assert written(tmp_path / "f", lambda file: file.write(7, data)) == bytes(7) + data


def test_short_reads_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read comes in two, three and many parts, and is cut short by the file's end."""
    (tmp_path / "f").write_bytes(DATA)
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: whole(fd, min(size, 100), at))
    file = REAL_DISK.open(str(tmp_path / "f"), Mode.READ)
    for offset, size in ((3, 50), (3, 200), (3, 250), (3, 1000), (len(DATA) - 150, 400)):
        assert file.read(offset, size) == DATA[offset : offset + size]
    file.close()


def test_new_files_are_for_their_owner_to_write_and_for_all_to_read(tmp_path: Path) -> None:
    """The mode is that of a broker's files: not writable for others, and not executable."""
    before = os.umask(0o022)
    try:
        written(tmp_path / "f", lambda file: file.write(0, b"x"))
        REAL_DISK.lock(str(tmp_path / "lock")).release()
    finally:
        os.umask(before)
    assert {(tmp_path / name).stat().st_mode & 0o7777 for name in ("f", "lock")} == {0o644}


def test_pieces_are_written_one_by_one_where_there_is_no_call_for_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older systems have only `pwrite`."""
    monkeypatch.delattr(os, "pwritev")
    assert written(tmp_path / "f", lambda file: file.write_pieces(0, [memoryview(piece) for piece in PIECES])) == DATA


def test_failed_vectored_write_reports_file_and_errno(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the file and the system's error number."""
    monkeypatch.setattr(os, "pwritev", failing(errno.ENOSPC))
    with pytest.raises(DiskError) as caught:
        written(tmp_path / "f", lambda file: file.write_pieces(0, [memoryview(DATA)]))
    assert (caught.value.errno, caught.value.operation, str(tmp_path / "f") in str(caught.value)) == (
        errno.ENOSPC,
        "write",
        True,
    )


def test_a_sync_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error tells the caller that the bytes may be lost."""
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO))
    with pytest.raises(DiskError) as caught:
        written(tmp_path / "f", lambda file: file.sync())
    assert (caught.value.errno, caught.value.operation) == (errno.EIO, "sync")


def test_sync_uses_fsync_without_fdatasync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fsync` is called, and its failure is an error too."""
    synced: list[int] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(os, "fsync", synced.append)
    written(tmp_path / "f", lambda file: file.sync())
    assert len(synced) == 1
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(DiskError):
        written(tmp_path / "f", lambda file: file.sync())


def test_a_sync_on_macos_goes_past_the_drives_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`F_FULLFSYNC` is used, because `fsync` stops at the drive's cache there."""
    import fcntl

    requested: list[int] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(real_disk.sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "fcntl", lambda _fd, command: requested.append(command))
    written(tmp_path / "f", lambda file: file.sync())
    assert requested == [51]


def test_reading_goes_on_without_the_calls_of_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no `pread`, no O_NOATIME and no hole detection."""
    (tmp_path / "f").write_bytes(DATA)
    monkeypatch.setattr(real_disk, "_NO_ACCESS_TIME", 0)
    monkeypatch.delattr(os, "pread")
    file = REAL_DISK.open(str(tmp_path / "f"), Mode.READ)
    assert file.read(7, 5000) == DATA[7:5007] and file.read(len(DATA) - 3, 9) == DATA[-3:]
    monkeypatch.delattr(os, "SEEK_DATA")
    monkeypatch.delattr(os, "SEEK_HOLE")
    assert (file.next_data(5), file.next_data(len(DATA) + 9)) == (5, len(DATA))
    assert (file.data_end(5), file.data_end(len(DATA) + 9)) == (len(DATA), len(DATA))
    file.close()
    assert [entry.name for entry in REAL_DISK.list(str(tmp_path))] == ["f"]


@pytest.mark.parametrize(("number", "found"), [(errno.EINVAL, 5), (errno.ENXIO, len(DATA)), (errno.EIO, None)])
def test_a_file_system_that_knows_no_holes_has_data_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, found: int | None
) -> None:
    """A failing call raises: bytes taken for a hole would be skipped."""
    (tmp_path / "f").write_bytes(DATA)
    file = REAL_DISK.open(str(tmp_path / "f"), Mode.READ)
    monkeypatch.setattr(os, "lseek", failing(number))
    if found is None:
        with pytest.raises(DiskError):
            file.next_data(5)
    else:
        assert (file.next_data(5), file.data_end(5)) == (found, len(DATA))
    file.close()


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system takes no such advice")
def test_pages_of_zeros_that_were_only_read_are_no_data_after_they_are_dropped(tmp_path: Path) -> None:
    """Written bytes stay, on the disk or not."""
    size = 4 << 20
    file = REAL_DISK.open(str(tmp_path / "f"), Mode.CREATE)
    file.allocate(size)
    file.sync()
    assert file.read(0, size) == bytes(size)
    file.write(size // 2, b"y")
    file.forget_zeros(0)
    assert file.next_data(0) > 0 or file.data_end(0) == size  # a file system without hole detection has data everywhere
    assert file.read(size // 2, 1) == b"y" and file.next_data(size // 2) == size // 2
    file.close()


def test_data_ends_where_nothing_was_written(tmp_path: Path) -> None:
    """Thus the part that an open reads after a log's end does not grow with each open."""
    size = 1 << 20
    file = REAL_DISK.open(str(tmp_path / "f"), Mode.CREATE)
    file.allocate(size)
    file.write(0, b"x" * 5000)
    file.write(size // 2, b"y")
    found = [(at, file.data_end(at)) for at in (0, size // 2)]
    assert [file.next_data(end) for _, end in found] == [size // 2, size]
    assert all(at < end <= at + 65536 for at, end in found)
    file.close()


def test_a_folder_is_not_made_where_a_file_is(tmp_path: Path) -> None:
    """The error names the path, and the file stays."""
    (tmp_path / "f").write_bytes(DATA)
    with pytest.raises(DiskError):
        REAL_DISK.make_folder(str(tmp_path / "f"))
    with pytest.raises(DiskError):
        real_disk_make(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA


def test_a_file_system_without_locks_is_named_and_costs_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network file system without its lock server no other process is blamed, and retries leak no descriptors."""
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "lockf", failing(errno.ENOLCK))
        for _ in range(3):
            with pytest.raises(DiskError) as caught:
                REAL_DISK.lock(str(tmp_path / "lock"))
            assert caught.value.errno == errno.ENOLCK
    assert len(os.listdir("/proc/self/fd")) <= before
    REAL_DISK.lock(str(tmp_path / "lock")).release()


def test_folder_created_concurrently_by_another_process_is_accepted(tmp_path: Path) -> None:
    """A folder created between the check and the call is no error."""
    real_disk_make(tmp_path / "d")
    real_disk_make(tmp_path / "d")
    assert (tmp_path / "d").is_dir()


def real_disk_make(path: Path) -> None:
    """Create a folder, as a faster process would."""
    try:
        real_disk._make_folder(str(path))
    except OSError as error:
        raise real_disk.disk_error("make folder", str(path), error) from error


def test_nothing_is_written_where_a_store_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows stores are read-only; a write raises an error with this reason."""
    (tmp_path / "f").write_bytes(DATA)
    monkeypatch.setattr(real_disk, "_IS_WINDOWS", True)
    for mode in (Mode.WRITE, Mode.CREATE):
        with pytest.raises(UnsupportedPlatform):
            REAL_DISK.open(str(tmp_path / "f"), mode)
    with pytest.raises(UnsupportedPlatform):
        REAL_DISK.lock(str(tmp_path / "lock"))
    REAL_DISK.sync_folder(str(tmp_path / "nowhere"))
    file = REAL_DISK.open(str(tmp_path / "f"), Mode.READ)
    assert file.read(0, 3) == DATA[:3]
    file.close()


def test_direct_open_without_o_direct_fails_with_einval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is EINVAL, as on a file system without direct writes: the pool then writes through the cache."""
    (tmp_path / "f").write_bytes(DATA)
    monkeypatch.delattr(os, "O_DIRECT")
    with pytest.raises(DiskError) as caught:
        REAL_DISK.open(str(tmp_path / "f"), Mode.DIRECT)
    assert caught.value.errno == errno.EINVAL


def test_unknown_system_limits_give_the_conservative_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults are one gibibyte of memory and 1024 descriptors."""
    import resource

    monkeypatch.setattr(os, "sysconf", failing(errno.EINVAL))
    monkeypatch.setattr(resource, "getrlimit", failing(errno.EINVAL))
    assert processes.memory_bytes() == 1 << 30
    assert processes.maps_max(1 << 20) == 128
