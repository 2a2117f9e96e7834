"""Visibility times: deliveries that end by time or by a kill, what counts as one, and acknowledgements that come too late."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from storageio import InvalidMessage, InvalidSetting, StoreFull
from tests.amounts import amount
from tests.messagestore.kit import Clock, crash_copy, open_idle, open_small, put_numbers, read_all
from tests.messagestore.test_batch_topics import open_batch, put_inner
from tests.messagestore.test_delays import deliver

RETRY, DEAD = "%RETRY%G", "%DLQ%G"
VISIBILITY_S = 30


@pytest.fixture
def clock() -> Clock:
    return Clock()


def consumer_of(store: Any, **options: Any) -> Any:
    return store.consumer("T", group="G", visibility_s=VISIBILITY_S, **options)


def end_times(store: Any, clock: Clock, seconds: float = VISIBILITY_S) -> None:
    """Advance the clock and end deliveries, as the housekeeper does."""
    store.engine.settle()
    clock.now_ms += int(1000 * seconds)
    with store.engine.housekeeper.guard:
        store.engine.end_expired()
    store.engine.settle()


def taken(consumer: Any, count: int = 32) -> list[Any]:
    found = consumer.poll(count)
    return found + (consumer.poll(count - len(found)) if 0 < len(found) < count else [])


def numbers(messages: Any) -> list[int]:
    return [int(message.body[:8]) for message in messages]


def counts(messages: Any) -> list[tuple[int, int]]:
    """Return number and retries of each message."""
    return [(int(message.body[:8]), message.reconsume_times) for message in messages]


def test_message_of_a_hanging_consumer_goes_to_another_one(world: Any, tmp_path: Path, clock: Clock) -> None:
    """At the end of its time, not before; the rest of its queue goes with it, and what it does later is refused."""
    with open_idle(world, tmp_path / "s", clock) as store:
        put_numbers(world, store, range(3))
        hanging, other = consumer_of(store), consumer_of(store)
        (message,) = hanging.poll(1)
        end_times(store, clock, VISIBILITY_S - 0.001)
        assert other.poll() == [], "the queue stays with the consumer that has a message of it"
        end_times(store, clock, 0.001)
        assert counts(taken(other)) == [(0, 1), (1, 0), (2, 0)]
        assert hanging.ack(message) is False
        assert hanging.nack(message) is None
        assert hanging.extend(message, 10) is False
        other.commit()
        assert hanging.poll() == []
        assert store.committed_offsets("T", "G") == {0: 3}


def test_acknowledgement_after_the_time_is_refused_before_any_poll(world: Any, tmp_path: Path, clock: Clock) -> None:
    """The call itself finds that the time is over; one in time is accepted."""
    with open_idle(world, tmp_path / "s", clock) as store, consumer_of(store) as consumer:
        put_numbers(world, store, range(2))
        first, second = taken(consumer)
        clock.now_ms += 1000 * VISIBILITY_S - 1
        assert consumer.ack(first)
        clock.now_ms += 1
        assert consumer.ack(second) is False
        assert counts(taken(consumer)) == [(1, 1)]


def test_commit_leaves_out_what_is_over(world: Any, tmp_path: Path, clock: Clock) -> None:
    """It acknowledges only what is still in hand."""
    with open_idle(world, tmp_path / "s", clock) as store, consumer_of(store) as consumer:
        put_numbers(world, store, range(2))
        consumer.poll(1)
        clock.now_ms += 1000 * VISIBILITY_S
        consumer.commit()
        assert sorted(counts(taken(consumer))) == [(0, 1), (1, 0)]


def test_extend_sets_the_end_from_now_on(world: Any, tmp_path: Path, clock: Clock) -> None:
    """Later or earlier; also for a message of the retry topic."""
    with open_idle(world, tmp_path / "s", clock) as store, consumer_of(store) as consumer:
        put_numbers(world, store, range(1))
        (message,) = consumer.poll(1)
        clock.now_ms += 29_000
        assert consumer.extend(message, 60)
        end_times(store, clock, 59.999)
        assert consumer.poll() == []
        assert consumer.extend(message, 5)
        end_times(store, clock, 5)
        (again,) = taken(consumer)
        assert (again.topic, again.reconsume_times) == (RETRY, 1)
        assert consumer.extend(again, 100)
        end_times(store, clock, 99)
        assert consumer.ack(again)


@pytest.mark.parametrize("value", [0, -1, "5", True, float("nan"), 1e10])
def test_wrong_times_are_refused(world: Any, tmp_path: Path, value: Any) -> None:
    """With the name of what is wrong."""
    with open_idle(world, tmp_path / "s") as store:
        with pytest.raises(InvalidSetting, match="visibility_s is"):
            store.consumer("T", group="G", visibility_s=value)
        put_numbers(world, store, range(1))
        with consumer_of(store) as consumer, pytest.raises(InvalidSetting, match="seconds is"):
            consumer.extend(next(consumer), value)


def test_options_that_exclude_each_other_are_refused(world: Any, tmp_path: Path) -> None:
    """A consumer with queues has no retries; a reader writes nothing; without a time there is none to extend."""
    with open_idle(world, tmp_path / "s") as store:
        put_numbers(world, store, range(1))
        for options in ({"queues": [0]}, {"max_deliveries": 0}, {"max_deliveries": 1.5}, {"max_deliveries": True}):
            with pytest.raises(InvalidSetting):
                consumer_of(store, **options)
        with store.consumer("T", group="G") as consumer, pytest.raises(InvalidSetting, match="visibility_s"):
            consumer.extend(next(consumer), 5)
        with open_small(world, tmp_path / "s", "r") as reader, pytest.raises(InvalidSetting):
            consumer_of(reader)


def test_message_that_hangs_each_time_becomes_a_dead_letter(
    world: Any, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """After `max_deliveries` deliveries; each end is logged, and none waits in a delay level."""
    with open_idle(world, tmp_path / "s", clock) as store, consumer_of(store, max_deliveries=3) as consumer:
        put_numbers(world, store, range(1))
        for delivery in range(3):
            assert counts(taken(consumer)) == [(0, delivery)]
            end_times(store, clock)
        assert consumer.poll() == []
        (dead,) = read_all(store, DEAD)
        assert (numbers([dead]), dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == ([0], 3, "T")
    assert sum("the visibility time is over" in record.getMessage() for record in caplog.records) == 3
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_max_deliveries_counts_nacks_as_well(world: Any, tmp_path: Path, clock: Clock) -> None:
    """Without a visibility time, too; 1 means no second delivery."""
    with open_idle(world, tmp_path / "s", clock) as store:
        put_numbers(world, store, range(2))
        with store.consumer("T", group="G", max_deliveries=1) as consumer:
            first, _ = taken(consumer)
            assert store.message_at(consumer.nack(first).physical_offset).topic == DEAD
        with consumer_of(store, max_deliveries=2) as consumer:
            (second,) = taken(consumer)
            consumer.nack(second, delay_level=1)
            clock.now_ms += 1000
            deliver(store)
            assert counts(taken(consumer)) == [(1, 1)]
            end_times(store, clock)
        assert sorted(numbers(read_all(store, DEAD))) == [0, 1]


def test_stored_number_of_retries_holds_without_one_of_the_consumer(world: Any, tmp_path: Path, clock: Clock) -> None:
    """`retryMaxTimes` of the group does not count the first delivery."""
    with open_idle(world, tmp_path / "s", clock) as store, consumer_of(store) as consumer:
        store.engine.retries.groups.create("G", retry_max_times=1)
        put_numbers(world, store, range(1))
        for _ in range(2):
            assert taken(consumer)
            end_times(store, clock)
        assert numbers(read_all(store, DEAD)) == [0]


def test_closed_consumer_gives_back_without_a_count(world: Any, tmp_path: Path, clock: Clock) -> None:
    """Its messages come again in their order, from their queue."""
    with open_idle(world, tmp_path / "s", clock) as store:
        put_numbers(world, store, range(3))
        with consumer_of(store) as consumer:
            first, *_ = taken(consumer)
            consumer.ack(first)
        with consumer_of(store) as consumer:
            assert counts(taken(consumer)) == [(1, 0), (2, 0)]


def test_message_that_kills_its_process_becomes_a_dead_letter(world: Any, tmp_path: Path, clock: Clock) -> None:
    """Each kill counts what was in hand; what was only fetched or is acknowledged out of order is not counted."""
    folder = tmp_path / "0"
    with open_idle(world, folder, clock) as store:
        put_numbers(world, store, range(2))
    for delivery in range(3):
        with open_idle(world, folder, clock) as store:
            consumer = consumer_of(store, max_deliveries=3)
            found = taken(consumer) if delivery == 0 else consumer.poll(1, 20)
            assert counts(found) == [(0, delivery), (1, 0)][: 2 if delivery == 0 else 1]
            if delivery == 0:
                assert consumer.ack(found[1])
            folder = crash_copy(Path(store.path), tmp_path / str(delivery + 1))
    with open_idle(world, folder, clock) as store, consumer_of(store, max_deliveries=3) as consumer:
        put_numbers(world, store, range(2, 3))
        assert counts(taken(consumer)) == [(2, 0)]
        store.engine.settle()
        assert numbers(read_all(store, DEAD)) == [0]


def test_message_sent_back_without_a_delay_is_no_delivery_of_a_level(world: Any, tmp_path: Path, clock: Clock) -> None:
    """After a crash the search for deliveries would count it as that of the same message, which still waits."""
    with open_idle(world, tmp_path / "0", clock) as store, consumer_of(store) as consumer:
        put_numbers(world, store, range(1))
        for _ in range(2):
            (message,) = taken(consumer)
            consumer.nack(message, delay_level=1)
            clock.now_ms += 1000
            deliver(store)
            assert len(taken(consumer)) == 1
            end_times(store, clock)
        (message,) = taken(consumer)
        assert "DELAY" not in message.all_properties
        consumer.nack(message, delay_level=1)
        store.engine.settle()
        store.engine.flusher.flush_now()
        copy = crash_copy(Path(store.path), tmp_path / "1")
    with open_idle(world, copy, clock) as store, consumer_of(store) as consumer:
        clock.now_ms += 1000
        deliver(store)
        assert counts(taken(consumer)) == [(0, 5)]


def test_clean_stop_of_the_store_counts_nothing(world: Any, tmp_path: Path, clock: Clock) -> None:
    """Although its consumer was not closed, and acknowledgements out of order are kept."""
    with open_idle(world, tmp_path / "s", clock) as store:
        put_numbers(world, store, range(3))
        consumer = consumer_of(store)
        consumer.ack(taken(consumer)[1])
    with open_idle(world, tmp_path / "s", clock) as store, consumer_of(store) as consumer:
        assert counts(taken(consumer)) == [(0, 0), (2, 0)]


def test_seek_and_reset_count_nothing(world: Any, tmp_path: Path, clock: Clock) -> None:
    """The messages in hand come again from their queue."""
    with open_idle(world, tmp_path / "s", clock) as store, consumer_of(store) as consumer:
        put_numbers(world, store, range(2))
        taken(consumer)
        consumer.seek(0, 0)
        assert counts(taken(consumer)) == [(0, 0), (1, 0)]
        store.reset_offsets("T", "G", "first")
        assert counts(taken(consumer)) == [(0, 0), (1, 0)]


def test_batch_record_is_not_sent_back(world: Any, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """It stays with its consumer, because retry topics have no batch queues; a closed one gives it back."""
    with open_batch(world, tmp_path / "s", clock=clock) as store:
        put_inner(world, store, 3)
        with store.consumer("B", group="G", visibility_s=VISIBILITY_S) as consumer:
            (message,) = taken(consumer)
            end_times(store, clock)
            assert consumer.poll() == []
            assert consumer.extend(message, 5)
        with store.consumer("B", group="G", visibility_s=VISIBILITY_S) as consumer:
            assert consumer.ack(taken(consumer)[0])
    assert caplog.records == []


def test_message_that_cannot_be_sent_back_yet_is_nobodys(
    world: Any, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk a late acknowledgement is refused, and the message comes again when there is space."""

    def refused(*_arguments: Any) -> None:
        raise StoreFull(world.commitlog.PutStatus.SERVICE_NOT_AVAILABLE, "the disk is full", 1)

    with open_idle(world, tmp_path / "s", clock) as store, consumer_of(store) as consumer:
        put_numbers(world, store, range(1))
        (message,) = taken(consumer)
        clock.now_ms += 1000 * VISIBILITY_S
        with monkeypatch.context() as patched:
            patched.setattr(store.engine.retries, "send_back", refused)
            assert consumer.ack(message) is False
            assert consumer.extend(message, 5) is False
            consumer.commit()
            assert consumer.poll() == []
        assert counts(consumer.poll(1, 20)) == [(0, 1)]


def test_message_that_can_never_be_sent_back_stays_with_its_consumer(
    world: Any, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one of too many properties: a late acknowledgement counts, since nobody else has it; a killed one's comes again."""

    def refused(*_arguments: Any) -> None:
        raise InvalidMessage("too many properties")

    with open_idle(world, tmp_path / "s", clock) as store, consumer_of(store) as consumer:
        monkeypatch.setattr(store.engine.retries, "send_back", refused)
        put_numbers(world, store, range(2))
        (message, _) = taken(consumer)
        copy = crash_copy(Path(store.path), tmp_path / "copy")
        end_times(store, clock)
        assert consumer.poll() == []
        assert consumer.ack(message)
    with open_idle(world, copy, clock) as store, consumer_of(store) as consumer:
        monkeypatch.setattr(store.engine.retries, "send_back", refused)
        found: list[Any] = []
        while len(found) < 2:
            found += consumer.poll(2, 1)
        assert counts(found) == [(0, 0), (1, 0)]
    assert sum("cannot be sent back" in record.getMessage() for record in caplog.records) >= 3


def test_suspended_consumer_takes_part_again_when_it_polls(world: Any, tmp_path: Path, clock: Clock) -> None:
    """The queues are divided as before."""
    with open_idle(world, tmp_path / "s", clock) as store:
        put_numbers(world, store, range(1))
        put_numbers(world, store, range(1, 2), queue_id=1)
        store.engine.settle()
        hanging, other = consumer_of(store), consumer_of(store)
        assert (hanging.queues, other.queues) == ([0], [1])
        assert numbers(hanging.poll(1)) == [0]
        end_times(store, clock)
        assert other.queues == [0, 1]
        assert sorted(numbers(taken(other))) == [0, 1]
        hanging.poll(1)
        other.commit()
        hanging.poll(1)
        assert (hanging.queues, other.queues) == ([0], [1])


class Model:
    """What consumers may be given, by the rules of the page about retries."""

    def __init__(self, max_deliveries: int) -> None:
        self.max_deliveries = max_deliveries
        self.acked: set[int] = set()
        self.dead: set[int] = set()
        self.counted: dict[int, int] = {}  # deliveries that ended by time, by a kill or by a nack
        self.in_hand: dict[int, tuple[Any, Any, int]] = {}  # consumer, message and end of each delivery
        self.waits_until: dict[int, int] = {}
        self.expires_ms: dict[int, int] = {}
        self.ranked_until = 0  # of the messages before it, those with the greatest remainder go first

    def end(self, number: int) -> None:
        del self.in_hand[number]
        self.counted[number] = self.counted.get(number, 0) + 1
        if self.counted[number] == self.max_deliveries:
            self.dead.add(number)

    def end_over(self, now_ms: int) -> None:
        for number in [number for number, (_, _, end_ms) in self.in_hand.items() if end_ms <= now_ms]:
            self.end(number)

    def answer(self, consumer: Any, action: str, number: int, now_ms: int) -> None:
        """Let a consumer acknowledge, send back or extend what it has: refused once the time of the delivery is over."""
        _, message, end_ms = self.in_hand[number]
        is_in_time = end_ms > now_ms
        if action == "ack":
            assert consumer.ack(message) is is_in_time
        elif action == "nack":
            assert (consumer.nack(message, delay_level=1) is not None) is is_in_time
        else:
            assert consumer.extend(message, 60) is is_in_time
        self.end_over(now_ms)
        if is_in_time and action == "ack":
            del self.in_hand[number]
            self.acked.add(number)
        elif is_in_time and action == "nack":
            self.end(number)
            self.waits_until[number] = now_ms + 1000
        elif is_in_time:
            self.in_hand[number] = consumer, message, now_ms + 60_000

    def deliver(self, consumer: Any, message: Any, now_ms: int) -> None:
        number = int(message.body[:8])
        assert number not in self.acked, "an acknowledged message came again"
        assert number not in self.in_hand, "a message is in two hands"
        assert number not in self.dead
        assert message.reconsume_times == self.counted.get(number, 0)
        assert self.waits_until.pop(number, 0) <= now_ms, "earlier than its delay"
        assert self.expires_ms.get(number, now_ms + 1) > now_ms, "its time to live is over"
        rank = number % 3 if message.topic == "T" else -1
        assert not any(one % 3 > rank and self.waits(one, now_ms) for one in range(self.ranked_until)), (
            "a higher priority waits"
        )
        self.in_hand[number] = consumer, message, now_ms + 1000 * VISIBILITY_S
        if message.topic == "T":
            before = range(number % 3, number, 3)  # the same queue
            assert not any(self.waits(one, now_ms) for one in before), "out of order"

    def waits(self, number: int, now_ms: int) -> bool:
        """Return whether a message waits for its first delivery."""
        is_over = self.expires_ms.get(number, now_ms + 1) <= now_ms
        return not (is_over or number in self.acked or number in self.in_hand or number in self.counted)


def drain(store: Any, model: Model, clock: Clock) -> None:
    """Acknowledge all that comes, until nothing waits."""
    with consumer_of(store, max_deliveries=4) as consumer:
        for _ in range(3):
            clock.now_ms += 1000
            deliver(store)
            while found := taken(consumer):
                for message in found:
                    model.deliver(consumer, message, clock.now_ms)
                    assert consumer.ack(message)
                    number = int(message.body[:8])
                    del model.in_hand[number]
                    model.acked.add(number)


@pytest.mark.deep
@pytest.mark.parametrize(("seed", "is_ranked", "count"), [
    *((seed, False, 3) for seed in range(12)), *((seed, True, 1 + 2 * (seed % 2)) for seed in range(amount(6, 30))),
])  # fmt: skip
def test_random_programs_of_consumers_follow_the_model(
    world: Any, tmp_path: Path, clock: Clock, seed: int, is_ranked: bool, count: int
) -> None:
    """Polls, acknowledgements, nacks, extends, hangs, stops, closes and kills; in the end nothing is lost.

    Half of the programs use priorities and times to live, too.
    """
    chance, model, put = Random(seed), Model(4), 0
    folder = tmp_path / "0"
    store = open_idle(world, folder, clock)
    store.create_topic("T", 3, attributes={"message.type": "PRIORITY"} if is_ranked else None)
    consumers = [consumer_of(store, max_deliveries=4) for _ in range(count)]
    for step in range(250):
        action = chance.choice(["put", "poll", "poll", "poll", "ack", "ack", "nack", "extend", "wait", "stop", "close", "kill"])
        position = chance.randrange(count)
        consumer = consumers[position]
        own = [number for number, (holder, _, _) in model.in_hand.items() if holder is consumer]
        if action == "put":
            for number in range(put, put + 5):
                live_s = chance.choice([5, 40, 100, None]) if is_ranked else None
                if live_s is not None:
                    model.expires_ms[number] = clock.now_ms + 1000 * live_s
                ttl, rank = live_s and timedelta(seconds=live_s), number % 3
                store.put("T", b"%08d" % number, **({"priority": rank, "ttl": ttl} if is_ranked else {"queue_id": rank}))
            put += 5
            model.ranked_until = put if is_ranked and count == 1 else 0
        elif action == "poll":
            model.end_over(clock.now_ms)
            for message in consumer.poll(chance.randrange(1, 6)):
                model.deliver(consumer, message, clock.now_ms)
        elif action in ("ack", "nack", "extend") and own:
            model.answer(consumer, action, chance.choice(own), clock.now_ms)
        elif action == "wait":
            end_times(store, clock, chance.choice([1, 10, 31]))
            model.end_over(clock.now_ms)
            deliver(store)
        elif action == "stop":
            consumer.stop()
            assert consumer.poll() == []
        elif action == "close" or (action == "kill" and step % 4):
            model.end_over(clock.now_ms)
            with store.engine.housekeeper.guard:
                store.engine.end_expired()
            consumer.close()
            for number in own:
                model.in_hand.pop(number, None)
            consumers[position] = consumer_of(store, max_deliveries=4)
        elif action == "kill":
            store.engine.settle()
            model.end_over(clock.now_ms)
            with store.engine.housekeeper.guard:
                store.engine.end_expired()
            copy = crash_copy(Path(store.path), tmp_path / str(step + 1))
            store.close()
            store = open_idle(world, copy, clock)
            for number in list(model.in_hand):
                model.end(number)
            consumers = [consumer_of(store, max_deliveries=4) for _ in range(count)]
    for consumer in consumers:
        consumer.close()
    model.end_over(clock.now_ms)
    model.in_hand.clear()
    drain(store, model, clock)
    model.dead |= {number for number, end_ms in model.expires_ms.items() if end_ms <= clock.now_ms} - model.acked
    assert model.acked | model.dead == set(range(put))
    assert sorted(numbers(read_all(store, DEAD))) == sorted(model.dead)
    store.close()
