"""Delay levels of a store, kept, given or unknown: no delivery time is reported as wrong or changed by other levels."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from commitlog.topic_names import SCHEDULE_TOPIC
from consumequeue.layout import UNIT
from messagestore import MessageStore
from messagestore.config import DELAY_LEVELS
from messagestore.derive.kinds.scheduled import ENTRIES_MAX, DelayLevels, ScheduledEntry
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from messagestore.store_settings import read_levels
from storageio import REAL_DISK
from tests.brokerstore.tool import run
from tests.helpers import contents
from tests.messagestore.kit import START_MS, Clock, crash_copy, read_all
from tests.messagestore.test_index_sizes import SMALL

HOUR_MS = 3_600_000
OURS = "1s 1h"  # RocketMQ's second level is five seconds
QUEUE = Path("consumequeue", "SCHEDULE_TOPIC_XXXX", "1")


def opened(folder: Path, clock: Clock, levels: str | None = None, **changes: Any) -> MessageStore:
    """Return a store that delivers only when a test calls it."""
    config = SMALL.but(message_delay_level=levels, deliver_delayed=False, **changes)
    return MessageStore.open(folder, config=config, clock=clock)


def put_delayed(store: MessageStore, body: bytes, level: int = 2) -> None:
    store.put(Message("T", body, queue_id=0, keys=["key"], properties={"DELAY": str(level)}))


def due_times(folder: Path) -> list[int]:
    """Return the due times of the second level's units, read from the file's bytes."""
    data = (folder / QUEUE / f"{0:020d}").read_bytes()
    return [due for _, size, due in UNIT.iter_unpack(data) if size]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a closed store with one message that waits for an hour."""
    with opened(tmp_path / "store", Clock(), OURS) as made:
        put_delayed(made, b"first")
    assert due_times(tmp_path / "store") == [START_MS + HOUR_MS]
    return tmp_path / "store"


def without_settings(folder: Path) -> Path:
    """Remove the settings, as in a broker's folder, which keeps no levels."""
    shutil.rmtree(folder / "brokerstore")
    return folder


def problems(folder: Path, levels: str | None = None) -> list[str]:
    return [problem.kind for problem in verify_store(str(folder), SMALL.but(message_delay_level=levels)).problems]


@pytest.mark.parametrize("has_settings", [True, False])
def test_units_by_other_levels_than_rocketmqs_are_right_and_stay(store: Path, has_settings: bool) -> None:
    """Without levels, `verify` reports nothing, and `rebuild` and `recover` change no delivery time."""
    if not has_settings:
        without_settings(store)
    before = contents(store / "consumequeue")
    assert problems(store) == []
    assert Recovery(str(store), Choice.SKIP).plan().steps == []
    rebuild_store(str(store), config=SMALL)
    assert contents(store / "consumequeue") == before


def test_missing_due_time_is_computed_from_the_recorded_levels(store: Path) -> None:
    """Both `rebuild` and an open compute it."""
    before = contents(store / "consumequeue")
    for make in (lambda: rebuild_store(str(store), config=SMALL), lambda: opened(store, Clock(START_MS + 1)).close()):
        shutil.rmtree(store / "consumequeue")
        make()
        assert contents(store / "consumequeue") == before


def test_rebuild_warns_that_it_assumes_delay_levels(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It warns if neither queue nor store gives the due time; with given levels it is right and does not warn."""
    shutil.rmtree(without_settings(store) / QUEUE)
    with caplog.at_level(logging.WARNING):
        rebuild_store(str(store), config=SMALL)
    assert "no unit says when 1 delayed messages are due: the delay levels '1s 5s 10s" in caplog.text
    assert due_times(store) == [START_MS + 5000]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        rebuild_store(str(store), config=SMALL.but(message_delay_level=OURS))
    assert due_times(store) == [START_MS + HOUR_MS] and caplog.text == ""


def test_open_warns_that_it_assumes_delay_levels(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It uses the levels that it was opened with, and logs it."""
    shutil.rmtree(without_settings(store) / "consumequeue")
    with caplog.at_level(logging.WARNING):
        opened(store, Clock(START_MS + 1)).close()
    assert due_times(store) == [START_MS + 5000]
    assert "made by the current delay levels" in caplog.text


@pytest.mark.parametrize("due_ms", [START_MS - 1, 7])
def test_a_delivery_time_before_the_store_time_is_wrong_by_any_levels(store: Path, due_ms: int) -> None:
    """A damaged unit is found even if the levels are unknown; given levels repair it."""
    path = without_settings(store) / QUEUE / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(12)
        file.write(due_ms.to_bytes(8, "big"))
    assert problems(store) == ["wrong_unit"]
    rebuild_store(str(store), config=SMALL.but(message_delay_level=OURS))
    assert due_times(store) == [START_MS + HOUR_MS]


def test_given_levels_count_where_none_were_kept(store: Path) -> None:
    """The broker's configuration defines the units; without the setting RocketMQ's levels count."""
    assert problems(store, DELAY_LEVELS) == [], "kept ones are known to be right"
    without_settings(store)
    assert problems(store, OURS) == []
    assert problems(store, DELAY_LEVELS) == ["wrong_unit"]
    conf = store.parent / "broker.conf"
    for text, code in ((f"messageDelayLevel={OURS}", 0), ("brokerName=b", 1)):
        conf.write_text(text)
        assert run("verify", "--config", conf, store).code == code, text


def test_levels_that_change_leave_waiting_messages_their_times(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each message is due by the levels of its put; the change is logged; everything agrees, even after a rebuild."""
    clock = Clock(START_MS + 1000)
    with caplog.at_level(logging.WARNING), opened(store, clock, "1s 2m") as made:
        put_delayed(made, b"second")
        made.engine.settle()
        clock.now_ms = START_MS + 1000 + 120_000
        made.engine.delays.deliver_due()
        assert [message.body for message in read_all(made, "T")] == []
    assert "delay levels are 1s 2m; before: 1s 1h." in caplog.text
    assert due_times(store) == [START_MS + HOUR_MS, START_MS + 1000 + 120_000]
    assert problems(store) == []
    shutil.rmtree(store / "consumequeue")
    rebuild_store(str(store), config=SMALL)
    assert due_times(store) == [START_MS + HOUR_MS, START_MS + 1000 + 120_000]
    assert problems(store) == []


def test_a_message_of_unknown_levels_is_not_delivered_early(store: Path) -> None:
    """RocketMQ's levels allow no hour at level 2, but the message is not delivered immediately."""
    clock = Clock(START_MS + HOUR_MS - 1)
    with opened(without_settings(store), clock) as made:
        made.engine.delays.deliver_due()
        assert read_all(made, "T") == []
        clock.now_ms += 1
        made.engine.delays.deliver_due()
        assert [message.body for message in read_all(made, "T")] == [b"first"]


def test_a_killed_stores_undispatched_messages_keep_the_levels_they_were_put_with(tmp_path: Path) -> None:
    """The next open has other levels."""
    with opened(tmp_path / "store", Clock(), OURS) as made:
        made.engine.dispatcher.thread.stop()
        put_delayed(made, b"first")
        copy = crash_copy(tmp_path / "store", tmp_path / "copy")
    with opened(copy, Clock(START_MS + 1), "1s 2m") as made:
        put_delayed(made, b"second")
    assert due_times(copy) == [START_MS + HOUR_MS, START_MS + 1 + 120_000]
    assert problems(copy) == []


def test_records_written_by_a_broker_between_opens_have_unknown_levels(tmp_path: Path) -> None:
    """Records behind our clean stop are not judged by our levels, nor those before the next open after that."""
    folder, aside = tmp_path / "store", tmp_path / "aside"
    opened(folder, Clock()).close()
    for number in range(2):
        with opened(folder, Clock(START_MS + number)) as made:
            put_delayed(made, b"ours")
        (folder / "brokerstore").rename(aside)  # a broker ignores it
        with opened(folder, Clock(START_MS + number), OURS) as made:
            put_delayed(made, b"a broker's")
        shutil.rmtree(folder / "brokerstore")
        aside.rename(folder / "brokerstore")
        before = due_times(folder)
        assert before[-2:] == [START_MS + number + 5000, START_MS + number + HOUR_MS]
        assert problems(folder) == []
        rebuild_store(str(folder), config=SMALL)
        assert due_times(folder) == before
    path = folder / QUEUE / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[12:20] = data[32:40]  # our first unit gets the due time of the broker's
    path.write_bytes(data)
    assert problems(folder) == ["wrong_unit"]


def kept(folder: Path) -> list[ScheduledEntry]:
    """Return the kept entries without what follows the clean stop."""
    *entries, behind = read_levels(REAL_DISK, str(folder / "brokerstore"), None).entries
    assert behind.levels is None
    return entries


def test_delay_levels_are_recorded_with_their_start_offsets(tmp_path: Path, store: Path) -> None:
    """Entries begin at their offset; unchanged levels add none; in a broker's folder the older ones are unknown."""
    (first,) = kept(store)
    assert first == ScheduledEntry(0, OURS)
    for levels in (None, OURS, "1s  60m"):
        opened(store, Clock(), levels).close()
        assert kept(store) == [first]
    with opened(store, Clock(), "2s") as made:
        put_delayed(made, b"second")
    end = kept(store)[1].start
    assert kept(store) == [first, ScheduledEntry(end, "2s")] and end > 0
    with opened(without_settings(store), Clock()) as made:
        end = made.log_end
        put_delayed(made, b"third")
    assert kept(store) == [ScheduledEntry(0, None), ScheduledEntry(end, DELAY_LEVELS)]


def test_level_entries_after_the_end_of_a_truncated_log_are_dropped() -> None:
    """Entries behind the end of the log are dropped, so the table stays short."""
    levels = DelayLevels([ScheduledEntry(0, "1s"), ScheduledEntry(500, "2s")])
    assert levels.opened_at(400, is_empty=False).entries == [ScheduledEntry(0, "1s"), ScheduledEntry(400, "2s")]
    assert levels.opened_at(0, is_empty=True).entries == [ScheduledEntry(0, "2s")]
    many = DelayLevels([ScheduledEntry(at, f"{at + 1}s") for at in range(ENTRIES_MAX)], given="7d")
    cut = many.opened_at(10_000, is_empty=False).entries
    assert len(cut) == ENTRIES_MAX and cut[0] == ScheduledEntry(0, None) and cut[-1] == ScheduledEntry(10_000, "7d")
    assert cut[1] == ScheduledEntry(2, "3s")


def test_a_message_without_a_level_has_no_delivery_time(tmp_path: Path) -> None:
    """Its unit has the hash of its tags, whatever the levels, even in the schedule topic, where no put brings it."""
    with opened(tmp_path / "store", Clock()) as made:
        for topic, level in (("T", "1"), (SCHEDULE_TOPIC, "0"), (SCHEDULE_TOPIC, "-1"), (SCHEDULE_TOPIC, "1")):
            made.engine.log.appender.append(Message(topic, b"x", properties={"DELAY": level}), 0)
        messages = list(made.engine.log.messages(0, made.log_end))
    unknown, known = DelayLevels([]), DelayLevels([], given="5s")
    assert [known.due_ms(message) for message in messages] == [None, None, None, START_MS + 5000]
    assert [unknown.may_be_due(message, START_MS) for message in messages] == [False, False, False, True]
    assert DelayLevels([], given="").due_ms(messages[-1]) == START_MS + 1000
