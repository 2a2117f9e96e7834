"""A put hands its message to a poll that waits, before the dispatcher has it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import SharedStore
from messagestore.shared.answers import unpack_answer
from messagestore.shared.groups import GroupOpening, Groups, Origin, Parked, Session
from messagestore.shared.protocol import HANDED_ROW, Operation, parse_frame
from storageio import PutRejected
from tests.shared.processes import CONFIG, open_shared


class Poller(Session):
    """A consumer of another process, and the physical offsets of the messages that its polls were answered with."""

    def __init__(self, groups: Groups, name: str = "id", tags: list[str] | None = None) -> None:
        self.answers: list[list[int]] = []
        self.handed = 0  # answers by a put
        self._groups = groups
        self._name = name
        self.consumer = groups.open(name, GroupOpening("T", "G", None, tags, "first", "wait", 0), [], Origin("", self))

    def answer(self, data: bytes) -> None:
        frame = parse_frame(data)
        if frame.operation == Operation.HANDED:
            self.handed += 1
            self.answers.append([position for position, _ in HANDED_ROW.iter_unpack(frame.payload)])
        else:
            self.answers.append(unpack_answer(frame)[0])

    def park(self) -> None:
        """Begin a poll that finds nothing and waits."""
        with pytest.raises(Parked):
            self._groups.poll(self._name, 8, True, Origin("", self))

    def end(self) -> None:
        """End the poll that waits."""
        with pytest.raises(Parked):
            self._groups.cancel(self._name)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SharedStore]:
    """Open a store with one message of queue 0, acknowledged by group G."""
    with open_shared(tmp_path / "s") as store:
        store.create_topic("T", 1)
        put(store, b"first")
        with store.consumer("T", group="G") as consumer:
            assert consumer.ack(consumer.poll(1, 5)[0])
        yield store


def groups_of(store: SharedStore) -> Groups:
    assert store._member.service is not None
    return store._member.service.groups


def put(store: SharedStore, body: bytes, **fields: Any) -> int:
    """Put a message and return its physical offset."""
    return store.put(Message("T", body, queue_id=0, **fields)).physical_offset


@contextlib.contextmanager
def held_dispatcher(store: SharedStore) -> Iterator[None]:
    """Let the dispatcher do nothing meanwhile."""
    with groups_of(store)._dispatcher._round:
        yield


def test_a_message_in_the_buffer_pool_is_delivered_only_once_it_is_in_the_file(tmp_path: Path) -> None:
    """Another process reads the file; a message that was handed out earlier would be skipped."""
    with open_shared(tmp_path / "s", config=dataclasses.replace(CONFIG, transient_store_pool_enable=True)) as store:
        store.create_topic("T", 1)
        local = store._member.local
        assert local is not None
        put(store, b"first")
        local.engine.flusher.commit(0)
        with store.consumer("T", group="G") as consumer:
            assert consumer.ack(consumer.poll(1, 5)[0])
        poller = Poller(groups_of(store))
        poller.park()
        with local.engine.log.buffers._committing:  # type: ignore[union-attr]
            position = put(store, b"x")
            assert poller.answers == []
        local.engine.flusher.commit(0)
        deadline = time.monotonic() + 20
        while not poller.answers and time.monotonic() < deadline:
            time.sleep(0.001)
        assert poller.answers == [[position]]


def test_a_put_answers_a_poll_that_waits(store: SharedStore) -> None:
    """Once each, in their order, also while earlier ones are not dispatched; pipelined puts as well."""
    poller = Poller(groups_of(store))
    with held_dispatcher(store):
        positions = []
        for number in range(3):
            poller.park()
            positions.append(put(store, b"%d" % number))
        poller.park()
        positions.append(store.put_async(Message("T", b"last", queue_id=0)).result().physical_offset)
        assert poller.answers == [[position] for position in positions]
    poller.park()
    poller.end()
    assert poller.answers[4:] == [[]] and poller.handed == 4
    assert [poller.consumer.ack_at("T", 0, offset) for offset in range(1, 5)] == [True] * 4
    assert store.committed_offsets("T", "G") == {0: 5}


class Interrupted:
    """A wait that the user interrupts."""

    def wait(self, _timeout_s: float | None) -> bool:
        raise KeyboardInterrupt


def test_a_put_answers_a_poll_of_a_consumer_in_the_owners_process(store: SharedStore) -> None:
    """Before the message is dispatched; a poll that ended without a message before loses nothing."""
    with store.consumer("T", group="G") as consumer, ThreadPoolExecutor() as pool:
        assert consumer.poll(1, 0.01) == []
        waiting = pool.submit(consumer.poll, 1, 20)
        deadline = time.monotonic() + 20
        while not groups_of(store).is_awaited and time.monotonic() < deadline:
            time.sleep(0.001)
        with held_dispatcher(store):
            put(store, b"x")
            (message,) = waiting.result(20)
        assert bytes(message.body) == b"x" and consumer.ack(message)
        assert consumer.poll(1, 0.01) == []
    assert store.committed_offsets("T", "G") == {0: 2}


def test_an_interrupted_poll_of_the_owner_loses_no_message(store: SharedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a put hands out meanwhile is returned by the next poll."""
    with store.consumer("T", group="G") as consumer:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(consumer._own_polls, "_answered", Interrupted())
            consumer.poll(1, 20)
        with held_dispatcher(store):
            put(store, b"x")
            assert [bytes(message.body) for message in consumer.poll(1)] == [b"x"]


def test_a_message_that_is_not_the_next_of_its_queue_is_left_to_the_dispatcher(store: SharedStore) -> None:
    """A message behind one that no poll waited for: both come in their order. A poll ends with what was put before."""
    poller = Poller(groups_of(store))
    with held_dispatcher(store):
        positions = [put(store, b"nobody waits")]
        poller.park()
        positions.append(put(store, b"1"))
        assert poller.answers == []
    poller.end()
    assert [position for answer in poller.answers for position in answer] == positions and not poller.handed


@pytest.mark.parametrize("fields", [{"properties": {"DELAY": "1"}}, {"sys_flag": 4}])
def test_a_message_that_is_not_in_its_queue_is_not_handed_out(store: SharedStore, fields: dict[str, Any]) -> None:
    """A delayed one, and a prepared one of a transaction. What its result says is the offset of another queue."""
    poller = Poller(groups_of(store))
    poller.park()
    for _ in range(2):  # the second one has the offset that the poll waits for, in another queue
        put(store, b"x", **fields)
    assert not poller.handed


def test_a_consumer_with_tags_gets_only_its_messages(store: SharedStore) -> None:
    """The dispatcher answers its polls."""
    poller = Poller(groups_of(store), tags=["a"])
    poller.park()
    put(store, b"x", tags="b")
    position = put(store, b"x", tags="a")
    poller.end()
    assert [answer for answer in poller.answers if answer] == [[position]]
    assert not poller.handed


def test_a_refused_put_answers_no_poll(store: SharedStore) -> None:
    """Nothing is in the store."""
    poller = Poller(groups_of(store))
    poller.park()
    with pytest.raises(PutRejected):
        store.put(Message("T" * 200, b"x"))
    store.put(Message("T" * 200, b"x"), check=False)
    poller.end()
    assert poller.answers == [[]]


def test_a_new_consumer_starts_after_acknowledged_messages_that_are_not_dispatched(store: SharedStore) -> None:
    """The queue ends before the group's offset then."""
    groups = groups_of(store)
    one, other = Poller(groups, "one"), Poller(groups, "other")
    one.park()
    other.park()
    with held_dispatcher(store):
        put(store, b"1")
        assert one.consumer.ack_at("T", 0, 1)
        groups.close("one")
        assert [(topic, position) for topic, _, _, position, *_ in other.consumer.in_hand()] == [("T", 2)]
    other.end()
    assert other.answers == [[]] and one.handed == 1


def test_the_end_of_the_owner_ends_the_polls_that_wait(store: SharedStore) -> None:
    """Without messages, so that their processes ask the next owner."""
    poller = Poller(groups_of(store))
    poller.park()
    groups_of(store).end()
    assert poller.answers == [[]]
    assert groups_of(store).find("id") is None
