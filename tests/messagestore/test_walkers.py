"""The walk by two threads after a crash stops where one walk stops, whatever is in the middle of the file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from commitlog import CommitLog, LogPaths, Message
from commitlog.commit_log import Stop
from commitlog.layout import BODY_AT, PHYSICAL_OFFSET_AT
from messagestore import MessageStore
from messagestore.paths import OWN_FOLDER
from messagestore.recovery import log_end as recovery
from storageio import REAL_DISK
from tests.stores import small_config

FILE_SIZE = 65536
CONFIG = small_config()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of five files, the last about half full."""
    folder = tmp_path_factory.mktemp("walkers") / "store"
    with MessageStore.open(folder, config=CONFIG) as store:
        for number in range(700):
            store.put(Message("T", b"x" * (number * 37 % 600), queue_id=0))
    return folder


@pytest.fixture
def log_folder(original: Path, tmp_path: Path) -> Path:
    """Return a copy to be damaged."""
    copy = tmp_path / "store"
    shutil.copytree(original, copy)
    return copy / "commitlog"


def both_walks(folder: Path, first: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Stop, Stop]:
    """Walk with one thread, and with two."""
    log = CommitLog(LogPaths(REAL_DISK, [str(folder)]))
    alone = recovery._walk(log, log.queue.files[first])
    monkeypatch.setattr(recovery, "WALK_ALONE_MAX", 0)
    return alone, recovery._walk(log, log.queue.files[first])


def records_of(folder: Path, number: int) -> list[tuple[int, int]]:
    """Return (position, size) of each record of a file, from the size fields alone."""
    data = (folder / f"{number * FILE_SIZE:020d}").read_bytes()
    found, at = [], 0
    while (size := int.from_bytes(data[at : at + 4], "big")) and data[at + 4 : at + 8] != bytes.fromhex("cbd43194"):
        found.append((at, size))
        at += size
    return found


def overwrite(folder: Path, number: int, at: int, data: bytes) -> None:
    """Overwrite bytes in a file of the log."""
    with open(folder / f"{number * FILE_SIZE:020d}", "r+b") as file:
        os.pwrite(file.fileno(), data, at)


@pytest.mark.parametrize("first", [0, 3, 4])
def test_parallel_walk_counts_every_record_of_a_log(log_folder: Path, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both reach its end and count every record once."""
    alone, together = both_walks(log_folder, first, monkeypatch)
    assert together == alone
    assert together.records == sum(len(records_of(log_folder, number)) for number in range(first, 5))


@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.4, 0.5, 0.6, 0.99])
def test_parallel_walk_stops_at_a_damaged_record_in_either_half(
    log_folder: Path, number: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing behind it counts, whichever thread walked there."""
    found = records_of(log_folder, number)
    at, _ = found[int(share * len(found))]
    overwrite(log_folder, number, at + PHYSICAL_OFFSET_AT, b"\xff")
    alone, together = both_walks(log_folder, min(number, 4), monkeypatch)
    assert together == alone
    assert together.offset == number * FILE_SIZE + at


def test_parallel_walk_counts_a_record_at_the_middle_once(log_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last file is full: each half is walked once, and both count."""
    (log_folder / f"{4 * FILE_SIZE:020d}").unlink()
    alone, together = both_walks(log_folder, 3, monkeypatch)
    assert together == alone
    assert together.records == len(records_of(log_folder, 3))
    at, _ = records_of(log_folder, 3)[-3]
    overwrite(log_folder, 3, at + PHYSICAL_OFFSET_AT, b"\xff")
    alone, together = both_walks(log_folder, 3, monkeypatch)
    assert together == alone
    assert together.offset == 3 * FILE_SIZE + at


@pytest.mark.parametrize("left", [0, 4, 7])
def test_a_file_that_ends_too_close_for_a_blank(tmp_path: Path, left: int) -> None:
    """No blank fits there, so the walk continues in the next file; those bytes are neither record nor damage."""
    with MessageStore.open(tmp_path / "store", config=CONFIG.but(enabled_append_prop_crc=False)) as store:
        store.put(Message("T", b"body", queue_id=0))
    record = record_moved_to(tmp_path / "store", 0)
    size = 3 * len(record) + left
    folder = tmp_path / "log"
    folder.mkdir()
    for number, count in ((0, 3), (1, 2)):
        positions = [number * size + position * len(record) for position in range(count)]
        data = b"".join(record_moved_to(tmp_path / "store", position) for position in positions)
        (folder / f"{number * size:020d}").write_bytes(data.ljust(size, b"\0" if number else b"\x55"))
    log = CommitLog(LogPaths(REAL_DISK, [str(folder)]))
    stop = recovery._walk(log, log.queue.files[0])
    assert (stop.offset, stop.records) == (size + 2 * len(record), 5)


@pytest.mark.parametrize("keep_backup", [True, False])
def test_truncated_tail_is_zeroed_and_backed_up_only_if_requested(
    log_folder: Path, keep_backup: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """This includes later files, and is synced; a second cut finds, logs and keeps nothing."""
    at, size = records_of(log_folder, 3)[-2]
    offset = 3 * FILE_SIZE + at
    before = {path.name: path.read_bytes() for path in log_folder.iterdir()}
    own = log_folder.parent / OWN_FOLDER
    log = CommitLog(LogPaths(REAL_DISK, [str(log_folder)]), writable=True)
    cut = recovery.cut_tail(log, offset, REAL_DISK, str(log_folder.parent), keep_backup=keep_backup)
    assert cut > size and caplog.text.count("cut a crash tail") == 1
    kept = sorted(own.glob("cut-*"))
    assert recovery.cut_tail(log, offset, REAL_DISK, str(log_folder.parent), keep_backup=keep_backup) == 0
    log.close()
    assert caplog.text.count("cut a crash tail") == 1 and sorted(own.glob("cut-*")) == kept
    assert len(kept) == (2 if keep_backup else 0)
    if keep_backup:
        assert kept[0].read_bytes() == before[f"{3 * FILE_SIZE:020d}"][at:].rstrip(b"\0")
    assert (log_folder / f"{3 * FILE_SIZE:020d}").read_bytes() == before[f"{3 * FILE_SIZE:020d}"][:at].ljust(FILE_SIZE, b"\0")
    assert not any((log_folder / f"{4 * FILE_SIZE:020d}").read_bytes())


def record_moved_to(folder: Path, physical_offset: int) -> bytes:
    """Return the first record of a store as it would be at another offset; no checksum covers its offset."""
    data = (folder / "commitlog" / f"{0:020d}").read_bytes()
    record = bytearray(data[: int.from_bytes(data[:4], "big")])
    record[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8] = physical_offset.to_bytes(8, "big")
    return bytes(record)


def test_parallel_walk_ignores_records_inside_a_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second thread begins inside a message, at bytes that look like a record of the log."""
    config = CONFIG.but(enabled_append_prop_crc=False)
    with MessageStore.open(tmp_path / "other", config=config) as other:
        other.put(Message("T", b"inner", queue_id=0))
    body = b""
    while len(body) < 50_000:
        body += record_moved_to(tmp_path / "other", BODY_AT + len(body))
    with MessageStore.open(tmp_path / "store", config=config) as store:
        store.put(Message("T", body, queue_id=0))
        store.put(Message("T", b"the last", queue_id=0))
    alone, together = both_walks(tmp_path / "store" / "commitlog", 0, monkeypatch)
    assert together == alone
    assert together.records == 2
