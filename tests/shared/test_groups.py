"""Consumer groups whose consumers are in several processes."""

from __future__ import annotations

import inspect
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import Consumer, MessageStore, SharedConsumer, SharedStore
from messagestore.shared import election, groups
from messagestore.shared.answers import unpack_answer
from messagestore.shared.groups import GroupOpening, Origin, Session
from messagestore.shared.presence import Presence, present
from messagestore.shared.protocol import parse_frame
from messagestore.write import dispatcher
from storageio import InvalidMessage, StoreClosed
from tests.helpers import bodies
from tests.shared.processes import CONFIG, Child, Counters, open_shared, owning_child

INTERNAL = (
    "abandon", "ack_at", "end_expired", "extend_at", "holds", "in_hand", "in_use", "lend", "restarting", "resume", "take",
    "take_put",
)  # fmt: skip  # what the owner calls
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[SharedStore]:
    """Open a store that another process owns, with a topic of four queues."""
    owner = owning_child(tmp_path / "s")
    with open_shared(tmp_path / "s") as store:
        store.create_topic("T", 4)
        yield store
    owner.kill()


def numbered(start: int, stop: int) -> list[Message]:
    return [Message("T", b"%d" % number, queue_id=number % 4) for number in range(start, stop)]


def drained(consumer: SharedConsumer, *, acks: bool = True) -> list[Any]:
    """Poll until nothing comes, and acknowledge."""
    found: list[Any] = []
    while batch := consumer.poll(64, 0.2):
        found += batch
        for message in batch if acks else ():
            assert consumer.ack(message)
    return found


def test_every_method_has_the_signature_of_the_consumer_of_one_process() -> None:
    """Parameters, defaults and kinds agree; no method is missing."""
    for name, member in inspect.getmembers(Consumer, inspect.isfunction):
        if not name.startswith("_") and name not in INTERNAL:
            one, other = inspect.signature(member), inspect.signature(getattr(SharedConsumer, name))
            shape = [[(p.name, p.kind, p.default) for p in found.parameters.values()] for found in (one, other)]
            assert shape[0] == shape[1], name


def test_messages_are_handed_out_and_acknowledged(served: SharedStore) -> None:
    """Each once, in the order of its queue; the owner has the group's offsets."""
    served.put_many(numbered(0, 40))
    with served.consumer("T", group="G") as consumer:
        assert consumer.queues == [0, 1, 2, 3]
        assert consumer.lag() == 40
        found = drained(consumer)
        assert [[int(m.body) for m in found if m.queue_id == q] for q in range(4)] == [list(range(q, 40, 4)) for q in range(4)]
        assert consumer.ack(found[0]) is False
        assert consumer.lag() == 0
    assert served.committed_offsets("T", "G") == {0: 10, 1: 10, 2: 10, 3: 10}
    with served.consumer("T", group="G") as consumer:
        assert consumer.poll(1, 0.05) == []


@pytest.mark.deep
def test_an_unacknowledged_message_is_redelivered(served: SharedStore) -> None:
    """To the next consumer of the group; `commit` acknowledges everything."""
    served.put_many(numbered(0, 8))
    with served.consumer("T", group="G") as consumer:
        assert len(drained(consumer, acks=False)) == 8
    with served.consumer("T", group="G") as consumer:
        assert len(drained(consumer, acks=False)) == 8
        consumer.commit()
    with served.consumer("T", group="G") as consumer:
        assert drained(consumer) == []


def test_a_waiting_consumer_is_woken(served: SharedStore) -> None:
    """By a put of another process, without looking again and again."""
    with served.consumer("T", group="G") as consumer:
        assert consumer.poll(1, 0.05) == []
        timer = threading.Timer(0.1, served.put, (Message("T", b"x"),))
        timer.start()
        began = time.monotonic()
        assert bodies(consumer.poll(1, 10)) == [b"x"]
        assert time.monotonic() - began < 5
        timer.join()


def test_an_expired_poll_waits_for_the_answer_of_a_slow_owner(tmp_path: Path) -> None:
    """As long as any other request: nothing else says whether it had a message."""
    owner = owning_child(tmp_path / "s", lambda store: store.create_topic("T", 1))
    with open_shared(tmp_path / "s") as store, store.consumer("T", group="G") as consumer:
        assert consumer.poll(1, 0.01) == []
        owner.stop()
        timer = threading.Timer(0.3, os.kill, (owner.process_id, signal.SIGCONT))
        timer.start()
        assert consumer.poll(1, 0.02) == []
        timer.join()
    owner.kill()


class Answers(Session):
    """Keeps what a connection would send."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def answer(self, data: bytes) -> None:
        self.sent.append(unpack_answer(parse_frame(data)))


def test_the_dispatcher_does_not_wait_for_a_consumer_in_use(tmp_path: Path) -> None:
    """Its user may wait for the dispatcher. The poll is answered when the consumer is free again."""
    with open_shared(tmp_path / "s") as store:
        assert store._member.service is not None
        parked, answers = store._member.service.groups, Answers()
        consumer = parked.open(
            "id", groups.GroupOpening("T", "G", None, None, "first", "wait", 0), [], groups.Origin("", answers)
        )
        with pytest.raises(groups.Parked):
            parked.poll("id", 8, True, groups.Origin("", answers))
        with consumer._lock:
            thread = threading.Thread(target=store.put, args=(Message("T", b"x"),), daemon=True)
            thread.start()
            thread.join(5)
            assert not thread.is_alive()
            assert answers.sent == []
        assert parked.call("id", "lag", None) == [1]
        assert [len(paths) for paths, *_ in answers.sent] == [1]


def test_a_put_wakes_the_dispatcher_while_a_poll_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a message of another topic, and after several that are put together. Otherwise it sleeps for a minute."""
    monkeypatch.setattr(dispatcher, "POLL_S", 60.0)
    monkeypatch.setattr(dispatcher, "IDLE_S", 61.0)
    with open_shared(tmp_path / "s") as store:
        assert store._member.service is not None
        parked, answers = store._member.service.groups, Answers()
        parked.open("id", groups.GroupOpening("T", "G", None, None, "first", "wait", 0), [], groups.Origin("", answers))
        with pytest.raises(groups.Parked):
            parked.poll("id", 8, True, groups.Origin("", answers))
        for topic in ("U", "T"):
            store.put(Message(topic, b"x"))
            _wait_until(lambda: parked._dispatcher.behind_bytes == 0)
        _wait_until(lambda: bool(answers.sent))
        with pytest.raises(groups.Parked):
            parked.poll("id", 8, True, groups.Origin("", answers))
        store.put_many([Message("T", b"y"), Message("T", b"z")])
        _wait_until(lambda: len(answers.sent) == 2)


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_close_ends_a_waiting_thread(served: SharedStore) -> None:
    """Also of the store."""
    for close_store in (False, True):
        consumer = served.consumer("T", group="G", timeout_s=None)
        found: list[Any] = []
        thread = threading.Thread(target=lambda c=consumer, f=found: f.extend(c))  # type: ignore[misc]
        thread.start()
        time.sleep(0.05)
        (served if close_store else consumer).close()
        thread.join(10)
        assert not thread.is_alive() and found == []
    with pytest.raises(StoreClosed):
        consumer.commit()


@pytest.mark.deep
def test_a_message_sent_back_is_redelivered_and_becomes_a_dead_letter(served: SharedStore) -> None:
    """From the group's retry topic, as in one process."""
    served.put(Message("T", b"x", queue_id=0))
    with served.consumer("T", group="G") as consumer:
        (message,) = consumer.poll(1, 5)
        result = consumer.nack(message, delay_level=1)
        assert result is not None
        assert consumer.nack(message) is None
        (again,) = consumer.poll(1, 10)
        assert (again.topic, again.body, again.reconsume_times) == ("%RETRY%G", b"x", 1)
        assert consumer.nack(again, delay_level=-1) is not None
    assert [message.body for message in served.read("%DLQ%G", 0)] == [b"x"]


def test_many_threads_lock_the_process_file_once(tmp_path: Path) -> None:
    """Consumers that are opened on several threads lock the file of their process once."""
    for number in range(20):
        presence = Presence(str(tmp_path), f"p{number}")
        failures: list[BaseException] = []
        start = threading.Barrier(8)

        def announce(presence: Presence = presence, start: threading.Barrier = start, failures: Any = failures) -> None:
            start.wait()
            try:
                presence.announce()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=announce) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert present(str(tmp_path)) == {f"p{number}"}
        presence.withdraw()
        assert present(str(tmp_path)) == set()


def test_positions(served: SharedStore) -> None:
    """`seek`, `seek_to_time`, `position` and `lag` work as in one process."""
    result = served.put_many(numbered(0, 40))
    with served.consumer("T", group="G", queues=[1]) as consumer:
        assert (consumer.queues, consumer.position(1)) == ([1], 0)
        consumer.seek(1, 7)
        assert (consumer.position(1), consumer.lag(1)) == (7, 3)
        assert set(bodies(drained(consumer))) == {b"29", b"33", b"37"}
        consumer.seek_to_time(result.store_timestamp_ms)
        assert consumer.position(1) == 0
        with pytest.raises(InvalidMessage):
            consumer.seek(2, 0)
    with pytest.raises(InvalidMessage):
        served.consumer("none", group="G", missing_topic="error")
    with served.consumer("T", group="other", start="last") as consumer:
        assert consumer.poll(1, 0.05) == []


def consuming_child(folder: Path, counters: Counters) -> Child:
    """Fork a process that takes what it gets of a group, and acknowledges nothing."""

    def consume() -> None:
        with open_shared(folder) as store, store.consumer("T", group="G") as consumer:
            counters[1] = 1
            while True:
                counters[0] += len(consumer.poll(64, 0.05))

    return Child(consume)


@pytest.mark.deep
def test_queues_are_divided_among_processes_and_reassigned_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each queue has one reader; what the killed process did not acknowledge comes to the living one."""
    monkeypatch.setattr(groups, "HAND_OVER_S", 0.2)
    counters = Counters(2)
    owner = owning_child(tmp_path / "s", lambda store: store.create_topic("T", 4))
    with open_shared(tmp_path / "s") as store:
        store.put_many(numbered(0, 40))
        other = consuming_child(tmp_path / "s", counters)
        counters.wait_for(0, 40)
        with store.consumer("T", group="G") as consumer:
            assert consumer.queues == []
            time.sleep(0.25)
            assert consumer.queues == [2, 3]
            assert {message.queue_id for message in drained(consumer)} == {2, 3}
            other.kill()
            began = time.monotonic()
            found = drained(consumer)
            assert (len(found), {message.queue_id for message in found}) == (20, {0, 1})
            assert time.monotonic() - began < 10
    owner.kill()


def test_a_queue_is_given_to_a_new_consumer_when_its_messages_are_acknowledged(tmp_path: Path) -> None:
    """No message is in two hands, and the waiting consumer is woken by the last acknowledgement."""
    with open_shared(tmp_path / "s") as owner, open_shared(tmp_path / "s") as store, open_shared(tmp_path / "s") as other:
        owner.create_topic("T", 2)
        store.put_many([Message("T", b"%d" % number, queue_id=number % 2) for number in range(4)])
        with store.consumer("T", group="G") as first, other.consumer("T", group="G") as second:
            assert first.queues == [0] and second.queues == [1]
            second.close()
            held = drained(first, acks=False)
            assert len(held) == 4
            with other.consumer("T", group="G") as third:
                store.put(Message("T", b"4", queue_id=1))
                assert third.poll(1, 0.1) == first.poll(1, 0.1) == []
                found: list[Any] = []
                thread = threading.Thread(target=lambda: found.extend(third.poll(8, 10)))
                thread.start()
                assert [first.ack(message) for message in held] == [True] * 4
                thread.join(4)
                assert [message.body for message in found] == [b"4"]
                assert (first.queues, third.queues) == ([0], [1])


def test_a_consumer_goes_on_when_the_owner_is_killed(tmp_path: Path) -> None:
    """What it acknowledged does not come again, what it holds stays in its hand, and then the others come."""
    owner = owning_child(tmp_path / "s", lambda store: store.create_topic("T", 4))
    with open_shared(tmp_path / "s") as store:
        store.put_many(numbered(0, 40))
        with store.consumer("T", group="G") as consumer:
            first = [message for _ in range(20) for message in consumer.poll(1, 5)]
            assert len(first) == 20
            for message in first[:10]:
                assert consumer.ack(message)
            owner.kill()
            for message in first[10:15]:
                assert consumer.ack(message)
            rest = drained(consumer)
            assert {*bodies(first), *bodies(rest)} == {b"%d" % number for number in range(40)}
            assert len(rest) == 20
            for message in first[15:]:
                assert consumer.ack(message)
            assert store.is_owner and consumer.lag() == 0
        assert store.committed_offsets("T", "G") == {0: 10, 1: 10, 2: 10, 3: 10}


def test_a_message_that_was_sent_back_is_not_held_when_the_owner_is_killed(tmp_path: Path) -> None:
    """The next owner commits the offset behind it, so that it does not come twice."""
    owner = owning_child(tmp_path / "s", lambda store: store.create_topic("T", 1))
    with open_shared(tmp_path / "s") as store:
        for number in range(2):
            store.put(Message("T", b"%d" % number))
        with store.consumer("T", group="G") as consumer:
            first, second = drained(consumer, acks=False)
            consumer.nack(first, delay_level=18)
            assert consumer.ack(second)
            owner.kill()
            assert drained(consumer) == []
            assert store.is_owner and consumer.lag() == 0
        assert store.committed_offsets("T", "G") == {0: 2}


@pytest.mark.parametrize("way", ["seek", "seek_to_time"])
def test_a_seek_position_survives_a_killed_owner(tmp_path: Path, way: str) -> None:
    """It is before the committed offset, which the owner saved, and nothing is committed by it."""

    def prepare(store: SharedStore) -> None:
        store.create_topic("T", 1)
        threading.Thread(target=persist, args=(store._member.local,), daemon=True).start()

    def persist(local: Any) -> None:
        while True:
            local.engine.persist_offsets()
            time.sleep(0.01)

    owner = owning_child(tmp_path / "s", prepare)
    saved = tmp_path / "s" / "config" / "consumerOffset.json"
    with open_shared(tmp_path / "s") as store:
        results = [store.put(Message("T", b"%d" % number)) for number in range(6)]
        with store.consumer("T", group="G") as consumer:
            assert len(drained(consumer)) == 6
            deadline = time.monotonic() + 20
            while not saved.exists() or '"T@G":{0:6}' not in saved.read_text().replace("\n", "").replace("\t", ""):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            if way == "seek":
                consumer.seek(0, 4)
            else:
                consumer.seek_to_time(results[0].store_timestamp_ms)
            position = consumer.position(0)
            assert position == (4 if way == "seek" else 0)
            owner.kill()
            assert set(bodies(drained(consumer))) == {b"%d" % number for number in range(position, 6)}
            assert store.is_owner


def test_a_new_owner_expects_its_own_consumers_and_drops_old_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would get the queues of a consumer that it forgets."""
    given: list[list[str]] = []

    class Recorded(election.Owner):
        def __init__(self, store: Any, address: str, client_id: str, own_ids: Any) -> None:
            given.append(sorted(own_ids))
            super().__init__(store, address, client_id, own_ids)

    owner = owning_child(tmp_path / "s", lambda store: store.create_topic("T", 2))
    monkeypatch.setattr(election, "Owner", Recorded)
    with open_shared(tmp_path / "s") as store, store.consumer("T", group="G") as one, store.consumer("T", group="H") as other:
        store.consumer("T", group="I").close()
        store.put(Message("T", b"x"))
        assert store._member._channels._idle
        owner.kill()
        assert len(drained(one)) == len(drained(other)) == 1
        assert given == [sorted([one.id, other.id])]
        assert not store._member._channels._idle


def test_an_owner_delivers_nothing_before_its_own_consumers_reconnect(tmp_path: Path) -> None:
    """They may hold the messages."""
    with MessageStore.open(tmp_path / "s", config=CONFIG) as store:
        store.create_topic("T", 1)
        opening = GroupOpening("T", "G", None, None, "first", "wait", 2)
        kept = groups.Groups(store, "me", ["own"])
        Presence(store.engine.paths.own, "me").announce()
        opened = threading.Event()
        thread = threading.Thread(target=lambda: (kept.open("other", opening, [], Origin("they", None)), opened.set()))
        thread.start()
        assert not opened.wait(0.2)
        kept.open("own", opening._replace(opened_ns=1), [], Origin("me", None))
        assert opened.wait(10)
        thread.join()
        kept.end()


def test_consumers_that_come_back_join_in_the_order_in_which_they_were_opened(tmp_path: Path) -> None:
    """Whichever is back first, so that each has the queues that it had at the owner before."""
    with MessageStore.open(tmp_path / "s", config=CONFIG) as store:
        store.put_many([Message("T", b"x", queue_id=queue_id) for queue_id in range(3)])
        store.engine.settle()
        opening = GroupOpening("T", "G", None, None, "first", "wait", 0)
        kept = groups.Groups(store, "me", ["0", "1", "2"])
        Presence(store.engine.paths.own, "me").announce()
        consumers: dict[int, Consumer] = {}

        def come_back(number: int) -> None:
            consumers[number] = kept.open(str(number), opening._replace(opened_ns=number), [], Origin("me", None))

        threads = [threading.Thread(target=come_back, args=(number,)) for number in (1, 0, 2)]
        for count, thread in enumerate(threads, 1):
            thread.start()
            if count < 3:
                _wait_until(lambda count=count: len(kept._waiting) == count)  # type: ignore[misc]
        for thread in threads:
            thread.join(20)
        assert {number: consumer.queues for number, consumer in consumers.items()} == {0: [0], 1: [1], 2: [2]}
        kept.end()


def test_a_consumer_that_comes_back_does_not_wait_for_one_that_never_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only for the time that all have to come back."""
    monkeypatch.setattr(groups, "GRACE_S", 0.1)
    entered, released, consumer = threading.Event(), threading.Event(), MessageStore.consumer

    def consumer_slowly(store: MessageStore, topic: str, **options: Any) -> Consumer:
        if topic == "slow":
            entered.set()
            released.wait(30)
        return consumer(store, topic, **options)

    monkeypatch.setattr(MessageStore, "consumer", consumer_slowly)
    with MessageStore.open(tmp_path / "s", config=CONFIG) as store:
        kept = groups.Groups(store, "me")
        opening = GroupOpening("slow", "G", None, None, "first", "wait", 1)
        origin = Origin("me", None)
        slow = threading.Thread(target=kept.open, args=("slow", opening, [], origin))
        quick = threading.Thread(target=kept.open, args=("quick", opening._replace(topic="T", opened_ns=0), [], origin))
        slow.start()
        assert entered.wait(20)
        quick.start()
        quick.join(10)
        has_joined = not quick.is_alive()
        released.set()
        slow.join(20)
        quick.join(20)
        assert has_joined
        kept.end()


def test_acknowledgements_survive_the_reassignment_of_their_queue(tmp_path: Path) -> None:
    """The owner, which has not saved it, and the other process are killed: the one that did it tells the next owner."""
    gate = Counters(1)

    def own() -> None:
        with open_shared(tmp_path / "s") as store:
            store.create_topic("T", 2)
            gate[0] = 1
            gate.wait_for(0, 2)
            with store.consumer("T", group="G") as consumer:
                gate[0] = 3
                while True:
                    consumer.poll(8, 1)

    owner = Child(own)
    gate.wait_for(0, 1)
    with open_shared(tmp_path / "s") as store, store.consumer("T", group="G") as consumer:
        store.put_many([Message("T", b"%d" % number, queue_id=number % 2) for number in range(8)])
        assert len(drained(consumer)) == 8
        gate[0] = 2
        gate.wait_for(0, 3)
        _wait_until(lambda: consumer.queues == [0])
        assert consumer.poll(8) == []  # its answer says which queues are left
        owner.kill()
        assert drained(consumer) == []
        assert store.is_owner and store.committed_offsets("T", "G") == {0: 4, 1: 4}


def test_consumers_of_two_processes_keep_their_queues_when_the_owner_is_killed(tmp_path: Path) -> None:
    """Neither gets a message that the other holds."""
    counters = Counters(2)
    owner = owning_child(tmp_path / "s", lambda store: store.create_topic("T", 4))
    with open_shared(tmp_path / "s") as store:
        with store.consumer("T", group="G") as consumer:
            store.put_many(numbered(0, 4))
            assert len(drained(consumer)) == 4
            other = consuming_child(tmp_path / "s", counters)
            counters.wait_for(1, 1)
            assert consumer.queues == [0, 1]
            store.put_many(numbered(4, 44))
            held = drained(consumer, acks=False)
            counters.wait_for(0, 20)
            owner.kill()
            assert drained(consumer) == []
            assert consumer.queues == [0, 1]
            assert counters[0] == 20
            assert [consumer.ack(message) for message in held] == [True] * 20
        other.kill()


# Kills


class Workers:
    """Producers and consumers in processes of their own; a ledger in shared counters says what each consumer acknowledged."""

    QUEUES = 4
    NUMBERS = 1 << 18  # queue offsets: more than a minute of puts

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with MessageStore.open(folder, config=CONFIG) as store:
            store.create_topic("T", self.QUEUES)
        self.put = Counters(self.QUEUES)  # of each queue: messages that were acknowledged to the producer
        self.seen = Counters(self.QUEUES * self.NUMBERS)  # of each queue offset: how often it was acknowledged by a consumer
        self.kills = 0  # of consumers
        self._children = [self._start(position) for position in range(4)]

    def _start(self, position: int) -> Child:
        return Child(lambda: self._produce(position) if position < 2 else self._consume())

    def _produce(self, position: int) -> None:
        with open_shared(self.folder) as store:
            while True:
                for queue_id in (position, position + 2):
                    result = store.put(Message("T", b"x", queue_id=queue_id))
                    self.put[queue_id] = result.queue_offset + 1
                time.sleep(0.0005)

    def _consume(self) -> None:
        with open_shared(self.folder) as store, store.consumer("T", group="G") as consumer:
            while True:
                for message in consumer.poll(8, 1):
                    if consumer.ack(message):
                        self.seen[message.queue_id * self.NUMBERS + message.queue_offset] += 1

    def kill_for(self, seconds: float, seed: int) -> None:
        chance = random.Random(seed)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(chance.uniform(0.05, 0.4))
            position = chance.randrange(4)
            self.kills += position >= 2
            self._children[position].kill()
            self._children[position] = self._start(position)
        for child in self._children:
            child.kill()

    def check(self) -> int:
        """Consume the rest, and look whether every message that was put was acknowledged by a consumer, or is there now."""
        with open_shared(self.folder) as store, store.consumer("T", group="G") as consumer:
            for message in drained(consumer):
                self.seen[message.queue_id * self.NUMBERS + message.queue_offset] += 1
            ends = [store.max_offset("T", queue_id) for queue_id in range(self.QUEUES)]
        missing = 0
        for queue_id, end in enumerate(ends):
            assert end >= self.put[queue_id]
            missing += sum(not self.seen[queue_id * self.NUMBERS + offset] for offset in range(end))
        assert missing <= self.kills + 2  # each may hit between an acknowledgement and its note here
        return sum(ends)


@pytest.mark.deep
def test_workers_killed_at_random(tmp_path: Path) -> None:
    """Every message is consumed, whoever is killed."""
    workers = Workers(tmp_path / "s")
    workers.kill_for(1, 1)
    assert workers.check() > 0


@pytest.mark.deep
def test_workers_killed_at_random_for_a_minute(tmp_path: Path) -> None:
    """As above, for longer."""
    workers = Workers(tmp_path / "s")
    workers.kill_for(60, 2)
    assert workers.check() > 500
