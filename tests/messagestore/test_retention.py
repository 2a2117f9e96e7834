"""Retention: which log files are deleted, when, and what is deleted with them."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from commitlog import PutStatus
from messagestore import GetStatus, MessageStore
from messagestore.read.queue_reader import DECODED_UNITS
from messagestore.write.running_flags import Flag
from storageio import DiskError, PutRejected, Space, StoreClosed
from storageio.testing import FailingDisk, WrappedDisk
from tests.helpers import until
from tests.messagestore.writers import LOG_SIZE, log_files, message, number_of, open_store, put_all

HOUR_MS = 3_600_000
NOON_MS = int(datetime(2026, 11, 20, 12, 30).timestamp() * 1000)
FILES = 6


class Plenty(WrappedDisk):
    """A disk whose clock and free space a test sets."""

    now = NOON_MS
    used = 10

    def now_ms(self) -> int:
        return self.now

    def space(self, path: str) -> Space:
        self.before("space", path)
        return Space(100_000, 100_000 - 1000 * self.used)


class Store:
    """A store of six log files, each a day older than the next."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self.root = root
        self.disk = Plenty()
        quiet = {"delete_when": "04", "flush_interval_consume_queue_ms": 600_000}
        self.store = open_store(root, disk=self.disk, **(quiet | changes))
        number = 0
        while self.store.engine.log.written_offset < (FILES - 1) * LOG_SIZE + 1000:
            self.store.put(message(number))
            number += 1
        self.count = number
        self.settle()
        for position, path in enumerate(log_files(root)):
            self.age(path, 24 * (FILES - position))
        self.retention = self.store.engine.retention

    def settle(self) -> None:
        self.store.flush()
        self.store.get("t", 0, 0)
        with self.store.engine.housekeeper.guard:
            self.store.engine.housekeeper.flush_derived(thorough=True)

    def age(self, path: Path, hours: float) -> None:
        seconds = NOON_MS / 1000 - 3600 * hours
        os.utime(path, (seconds, seconds))

    def left(self) -> list[int]:
        """Return the numbers of the remaining log files."""
        return [int(path.name) // LOG_SIZE for path in log_files(self.root)]

    def at_hour(self, hour: int) -> None:
        self.disk.now = int(datetime(2026, 11, 20, hour, 30).timestamp() * 1000)


@pytest.fixture
def old(tmp_path: Path) -> Any:
    made = Store(tmp_path)
    yield made
    made.store.close()


# Which files


def test_files_older_than_the_reserved_time_go(old: Store) -> None:
    """With 72 hours, files of 6, 5, 4 and 3 days are deleted, those of 2 days and 1 stay."""
    assert old.store.delete_expired() == 4
    assert old.left() == [4, 5]
    assert old.store.engine.log.min_offset == 4 * LOG_SIZE
    assert old.store.delete_expired() == 0


def test_the_last_file_never_goes(tmp_path: Path) -> None:
    """Neither its age nor any request deletes it."""
    made = Store(tmp_path)
    for path in log_files(tmp_path):
        made.age(path, 10_000)
    assert made.store.delete_expired() == FILES - 1
    assert made.left() == [FILES - 1]
    assert made.store.delete_before(1 << 60) == 0
    made.store.put(message(made.count))
    made.store.close()


def test_it_stops_at_the_first_file_that_is_young(old: Store) -> None:
    """The log must not have a gap."""
    old.age(log_files(old.root)[1], 1)
    assert old.store.delete_expired() == 1
    assert old.left() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("offset", "gone"),
    [(0, 0), (LOG_SIZE - 1, 0), (LOG_SIZE, 1), (LOG_SIZE + 1, 1), (3 * LOG_SIZE, 3), (1 << 60, 5), (-5, 0)],
)
def test_delete_before_takes_whole_files_only(old: Store, offset: int, gone: int) -> None:
    """Files that end at or before the offset are deleted, even young ones."""
    for path in log_files(old.root):
        old.age(path, 0)
    assert old.store.delete_before(offset) == gone
    assert old.left() == list(range(gone, FILES))


def test_what_is_not_flushed_or_not_dispatched_stays(old: Store) -> None:
    """A file is deleted only when it is not needed any more."""
    engine = old.store.engine
    retention = engine.retention
    for settled, gone in ((2 * LOG_SIZE - 1, 1), (2 * LOG_SIZE, 1), (3 * LOG_SIZE, 1)):
        retention._settled = lambda given=settled: given  # type: ignore[method-assign,misc]
        assert old.store.delete_before(1 << 60) == gone
    assert old.left() == [3, 4, 5]


# When


@pytest.mark.parametrize(
    ("delete_when", "hour", "is_time"),
    [
        ("04", 4, True),
        ("04", 5, False),
        ("4", 4, True),
        ("04;16", 16, True),
        (" 3 ; 5", 5, True),
        ("", 0, False),
    ],
)
def test_the_hours_of_delete_when(tmp_path: Path, delete_when: str, hour: int, is_time: bool) -> None:
    """The setting is a list of hours of the day, separated by semicolons."""
    made = Store(tmp_path, delete_when=delete_when)
    made.at_hour(hour)
    assert made.retention.is_hour() is is_time
    assert (made.retention.run() > 0) is is_time
    made.store.close()


def test_one_round_deletes_no_more_than_a_batch(tmp_path: Path) -> None:
    """The limit is `delete_file_batch_max` files; the next round continues."""
    made = Store(tmp_path, delete_file_batch_max=2)
    for path in log_files(tmp_path)[:4]:
        made.age(path, 1000)
    made.at_hour(4)
    assert [made.retention.run() for _ in range(3)] == [2, 2, 0]
    made.store.close()


@pytest.mark.parametrize(
    ("used", "forcibly", "gone", "is_full"),
    [
        (75, True, 0, False),  # at the ratio is not above it
        (76, True, 4, False),  # above 75: expired files, at any hour
        (85, True, 4, False),
        (86, True, 5, False),  # above 85: whatever their age
        (86, False, 4, False),  # unless that is forbidden
        (90, True, 5, False),
        (91, True, 5, True),  # above 90: no puts either
        (91, False, 4, True),
    ],
)
def test_a_full_disk_deletes_at_any_hour(tmp_path: Path, used: int, forcibly: bool, gone: int, is_full: bool) -> None:
    """The three ratios decide."""
    made = Store(tmp_path, clean_file_forcibly_enable=forcibly)
    made.disk.used = used
    assert made.retention.run() == gone
    assert made.store.engine.flags.has(Flag.DISK_FULL) is is_full
    made.store.close()


def test_used_space_is_rounded_up(tmp_path: Path) -> None:
    """A disk at 75.001 percent is above 75."""
    made = Store(tmp_path)
    made.disk.space = lambda _path: Space(100_000, 24_999)  # type: ignore[method-assign]
    assert made.retention.used_percent() == 76
    made.disk.space = lambda _path: Space(100_000, 25_000)  # type: ignore[method-assign]
    assert made.retention.used_percent() == 75
    made.disk.space = lambda _path: Space(0, 0)  # type: ignore[method-assign]
    assert made.retention.used_percent() == 0
    made.store.close()


@pytest.mark.parametrize(("ratio", "used", "is_full"), [(90, 91, True), (35, 35, False), (35, 36, True)])
def test_puts_are_refused_above_the_warning_ratio(tmp_path: Path, ratio: int, used: int, is_full: bool) -> None:
    """The least and the greatest ratio are those of RocketMQ."""
    made = Store(tmp_path, disk_space_warning_ratio=ratio)
    made.disk.used = used
    made.retention.run()
    assert made.store.engine.flags.has(Flag.DISK_FULL) is is_full
    made.store.close()


def test_puts_are_refused_while_the_disk_is_full(old: Store) -> None:
    """They are accepted again when there is space; stored messages stay readable."""
    old.disk.used = 95
    old.retention.run()
    with pytest.raises(PutRejected, match="95 %") as caught:
        old.store.put(message(0))
    assert caught.value.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert old.store.get("t", 0, old.store.min_offset("t", 0)).status is GetStatus.FOUND
    old.disk.used = 50
    old.retention.run()
    assert old.store.put(message(0)).status is PutStatus.PUT_OK


def test_permanently_full_disk_is_logged_once(old: Store, caplog: pytest.LogCaptureFixture) -> None:
    """A line every ten seconds would fill the rest of the disk; puts are refused until there is space."""
    old.disk.used = 95
    for _ in range(3):
        old.retention.run()
        with pytest.raises(PutRejected):
            old.store.put(message(0))
    assert caplog.text.count("puts are refused above") == 1
    old.disk.used = 50
    for _ in range(2):
        old.retention.run()
    assert caplog.text.count("puts are accepted again") == 1
    old.store.put(message(0))


def test_retention_runs_in_a_store_without_queues(tmp_path: Path) -> None:
    """Its folder of queues does not exist, so none of its space is used."""
    with open_store(tmp_path, disk=Plenty()) as store:
        assert not (tmp_path / "consumequeue").exists()
        assert store.engine.retention.used_percent() == 10
        assert store.engine.retention.run() == 0


def test_files_that_another_thread_deleted_meanwhile_are_no_reason_to_delete_more(old: Store) -> None:
    """Two rounds listed the same three files; the second finds the first one missing, and keeps those behind."""
    listed = old.store.engine.log.queue.files[:3]
    assert old.store.delete_before(3 * LOG_SIZE) == 3
    assert old.retention._delete(listed) == 0
    assert old.left() == [3, 4, 5]


def test_a_store_without_an_index_deletes_files_too(tmp_path: Path) -> None:
    """No index file has to follow."""
    made = Store(tmp_path, message_index_enable=False)
    assert made.store.delete_expired() == 4
    assert not (tmp_path / "index").exists()
    found = [number_of(stored) for queue in range(3) for stored in made.store.read("t", queue)]
    assert sorted(found) == [number_of(stored) for stored in made.store.engine.log.messages()]
    made.store.close()


def test_the_housekeeper_runs_it(tmp_path: Path) -> None:
    """It runs a minute after the open and then at its interval."""
    made = Store(tmp_path, flush_interval_consume_queue_ms=5, clean_resource_interval_ms=1)
    made.at_hour(4)
    assert {0, 1, 2, 3, 4, 5} <= set(made.left())
    made.retention._next_run = 0.0
    until(lambda: min(made.left()) == 3)  # at half past four the fourth file is not three days old
    made.store.close()


# Queues, index and readers


def test_queues_and_index_follow_the_log(old: Store) -> None:
    """Files that only point at deleted records are deleted too, and minima rise; every remaining message is found."""
    store = old.store
    before = len(list((old.root / "consumequeue" / "t" / "0").iterdir())), len(list((old.root / "index").iterdir()))
    store.delete_expired()
    low = number_of(next(store.engine.log.messages()))
    after = len(list((old.root / "consumequeue" / "t" / "0").iterdir())), len(list((old.root / "index").iterdir()))
    assert after[0] < before[0]
    assert after[1] < before[1]
    for queue_id in range(3):
        first = -(-(low - queue_id) // 3)
        assert store.min_offset("t", queue_id) == first
        assert number_of(next(store.read("t", queue_id))) == 3 * first + queue_id
        page = store.get("t", queue_id, 0)
        assert (page.status, page.next_offset) == (GetStatus.OFFSET_TOO_SMALL, first)
    assert store.query("t", f"k{low - 1}") == []
    assert [number_of(stored) for stored in store.query("t", f"k{low}")] == [low]
    assert store.message_at(0) is None
    assert store.earliest_time() > 0


def test_reader_of_a_deleted_file_keeps_its_view(old: Store) -> None:
    """Returned bytes stay valid, and so does what is read from the map."""
    view = old.store.engine.log.select(0, 200)
    assert view is not None
    before = bytes(view)
    reading = old.store.engine.log.messages()
    assert number_of(next(reading)) == 0
    assert old.store.delete_before(LOG_SIZE) == 1
    assert bytes(view) == before
    assert number_of(next(reading)) == 1


def test_read_started_before_retention_continues_after_the_deleted_records(old: Store) -> None:
    """Deleted records are skipped, except those that were already read from the log."""
    reading = old.store.read("t", 0)
    assert number_of(next(reading)) == 0
    old.store.delete_expired()
    rest = [number_of(stored) for stored in reading]
    first = 3 * old.store.min_offset("t", 0)
    ahead = [number for number in rest if number < first]
    assert ahead == list(range(3, 3 * len(ahead) + 3, 3)) and len(ahead) < DECODED_UNITS
    assert rest[len(ahead) :] == list(range(first, old.count, 3))


def test_the_store_opens_again_behind_the_gap(tmp_path: Path) -> None:
    """After a clean stop and after a crash offsets continue."""
    made = Store(tmp_path)
    made.store.delete_expired()
    low = made.store.min_offset("t", 1)
    made.store.close()
    for is_crash in (False, True):
        if is_crash:
            (tmp_path / "abort").write_bytes(b"1")
        with open_store(tmp_path) as store:
            assert store.min_offset("t", 1) == low
            result = store.put(message(made.count, queues=1))
            assert result.queue_offset == store.max_offset("t", 0, committed=False) - 1
            made.count += 1


def test_a_delete_that_fails_changes_nothing_else(tmp_path: Path) -> None:
    """The error is logged; the store continues, and the file exists again at the next open."""
    made = Store(tmp_path)
    made.store.close()
    disk = FailingDisk(1, only="delete", for_ever=True)
    store = open_store(tmp_path, disk=disk) if not (tmp_path / "brokerstore" / "clean.json").exists() else None
    if store is None:
        (tmp_path / "brokerstore" / "clean.json").unlink()
        store = open_store(tmp_path, disk=disk)
    with pytest.raises(DiskError):
        store.delete_before(LOG_SIZE)
    assert store.put(message(made.count)).status is PutStatus.PUT_OK
    assert number_of(list(store.read("t", made.count % 3))[-1]) == made.count
    disk.fail_at = 1 << 40
    store.close()
    with open_store(tmp_path) as again:
        assert again.max_offset("t", made.count % 3) == made.count // 3 + 1


def test_a_closed_store_deletes_nothing(tmp_path: Path) -> None:
    """It raises as every other call does."""
    store: MessageStore = open_store(tmp_path)
    put_all(store, 0, 1)
    store.close()
    with pytest.raises(StoreClosed):
        store.delete_expired()
    with pytest.raises(StoreClosed):
        store.delete_before(0)
