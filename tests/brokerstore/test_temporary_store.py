"""`TemporaryStore`: everything with a due time or an age follows the clock that the test moves."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from brokerstore.testing import TemporaryStore
from brokerstore.testing.temporary_store import temporary_store
from commitlog import Message, StoredMessage
from messagestore import StoreConfig
from tests.packaging.pages import DOCS, files_of

assert temporary_store is not None, "a fixture of this module"
DAY = timedelta(days=1)


def bodies(messages: list[StoredMessage]) -> list[bytes]:
    return [message.body for message in messages]


@pytest.mark.parametrize("delay", [timedelta(seconds=10), timedelta(minutes=61), 2 * DAY + timedelta(hours=3), 30 * DAY])
def test_delayed_message_arrives_when_the_clock_reaches_it(temporary_store: TemporaryStore, delay: timedelta) -> None:
    """A delay level, timers, and one that the timer files keep in several rounds; a timer is due when its second is over."""
    temporary_store.store.put("t", b"1", delay=delay)
    temporary_store.clock.advance(seconds=delay.total_seconds() - 2)
    assert temporary_store.drain("t") == []
    temporary_store.clock.advance(seconds=3)
    (delivered,) = temporary_store.drain("t")
    assert delivered.body == b"1"
    assert delivered.store_timestamp_ms == temporary_store.clock()


def test_message_that_is_sent_back_waits_for_the_clock(temporary_store: TemporaryStore) -> None:
    """Each retry waits longer: 10 s, then 30 s, as in RocketMQ."""
    temporary_store.store.put("t", b"1")
    seen: list[int] = []

    def refuse(message: StoredMessage) -> bool:
        seen.append(message.reconsume_times)
        return False

    temporary_store.drain("t", "g", refuse)
    for wait_s in (10, 30):
        temporary_store.clock.advance(seconds=wait_s - 1)
        assert temporary_store.drain("t", "g", refuse) == []
        temporary_store.clock.advance(seconds=1)
        assert bodies(temporary_store.drain("t", "g", refuse)) == [b"1"]
    assert seen == [0, 1, 2]


def test_drain_delivers_what_its_function_puts(temporary_store: TemporaryStore) -> None:
    """It ends when nothing is due; each group has its own progress."""

    def pass_on(message: StoredMessage) -> None:
        if message.body != b"0":
            temporary_store.store.put("t", b"%d" % (int(message.body) - 1))

    temporary_store.store.put("t", b"3")
    assert bodies(temporary_store.drain("t", handle=pass_on)) == [b"3", b"2", b"1", b"0"]
    assert temporary_store.drain("t") == []
    assert len(temporary_store.drain("t", "others")) == 4


def test_exception_of_the_function_leaves_the_message_unacknowledged(temporary_store: TemporaryStore) -> None:
    """A failed assertion in a test's function is not lost, and the message comes again."""
    temporary_store.store.put("t", b"1")

    def fail(_message: StoredMessage) -> None:
        raise AssertionError("seen")

    with pytest.raises(AssertionError, match="seen"):
        temporary_store.drain("t", handle=fail)
    assert bodies(temporary_store.drain("t")) == [b"1"]


def test_reopened_store_keeps_its_clock_and_what_waits(temporary_store: TemporaryStore) -> None:
    """A restart loses no delayed message, neither one of a level nor a timer."""
    store = temporary_store.store
    store.put("t", b"level", delay=timedelta(minutes=10))
    store.put("t", b"timer", delay=timedelta(minutes=11))
    temporary_store.clock.advance(minutes=9)
    assert temporary_store.reopen() is temporary_store.store is not store
    temporary_store.clock.advance(minutes=3)
    assert sorted(bodies(temporary_store.drain("t"))) == [b"level", b"timer"]


def test_age_of_a_transaction_follows_the_clock(temporary_store: TemporaryStore) -> None:
    """A half message is asked about when it is older than `transaction_timeout_ms` (6 s)."""
    store = temporary_store.store
    store.begin_transaction(Message("t", b"1"))
    assert store.check_transactions(lambda _half: True) == 0
    temporary_store.clock.advance(seconds=7)
    assert store.check_transactions(lambda _half: True) == 1
    assert bodies(temporary_store.drain("t")) == [b"1"]


def test_retention_by_age_follows_the_clock() -> None:
    """Files expire by the clock, at an hour of `delete_when`; one that was written after a jump is young."""
    config = StoreConfig.small(retention="limits", mapped_file_size_commit_log=1 << 20, file_reserved_time_hours=48)
    with TemporaryStore(config) as temporary:
        store = temporary.store
        store.put_many("t", [bytes(1000)] * 2500)
        temporary.clock.advance(hours=47)
        store.put_many("t", [bytes(1000)] * 2500)
        files = len(store.engine.log.queue.files)
        assert store.engine.log.min_offset == 0
        temporary.clock.advance(hours=25)  # passes 4 o'clock
        kept = len(store.engine.log.queue.files)
        assert kept < files
        assert store.engine.log.min_offset == 2 << 20, "the third file was written until the jump"
        temporary.clock.advance(days=3)
        assert store.engine.log.min_offset > 2 << 20


def test_clock_does_not_move_by_itself_or_backwards(temporary_store: TemporaryStore) -> None:
    """Two puts have one time; the folder is gone after the test."""
    first, second = (temporary_store.store.put("t", b"1").store_timestamp_ms for _ in range(2))
    assert first == second == temporary_store.clock()
    with pytest.raises(ValueError, match="forwards"):
        temporary_store.clock.advance(seconds=-1)
    folder = Path(temporary_store.store.path)
    assert folder.is_dir()
    temporary_store.close()
    assert not folder.parent.exists()


def test_the_page_has_a_program_of_ten_lines() -> None:
    """`test_pages.py` runs it; a reader copies it."""
    (program,) = files_of(DOCS / "howto" / "test-a-program.md").values()
    assert sum(bool(line) for line in program.splitlines()) <= 10
