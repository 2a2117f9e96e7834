"""Deleting topics and groups, purging, setting offsets from a process that does not own the store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from messagestore import SharedStore
from storageio import InvalidMessage
from tests.helpers import bodies
from tests.shared.processes import Child, Counters, open_shared, owning_child

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def owner(tmp_path: Path) -> Child:
    """Fork a process that owns a store with 20 messages in two queues of the topic T."""

    def prepare(store: SharedStore) -> None:
        store.create_topic("T", 2)
        for number in range(20):
            store.put("T", b"%d" % number, queue_id=number % 2)

    return owning_child(tmp_path / "s", prepare)


@pytest.fixture
def served(owner: Child, tmp_path: Path) -> Iterator[SharedStore]:
    """Open that store in the process of the test."""
    with open_shared(tmp_path / "s") as store:
        yield store


def test_topic_is_deleted_for_all_processes(served: SharedStore) -> None:
    """It is refused while a consumer of any process is open."""
    assert bodies(served.read("T", 0))[:2] == [b"0", b"2"]
    with served.consumer("T", group="G") as consumer:
        consumer.ack(consumer.poll(1)[0])
        with pytest.raises(InvalidMessage, match="group 'G' on topic 'T'"):
            served.delete_topic("T")
    served.delete_topic("T")
    assert (served.topics(), served.queue_ids("T"), served.committed_offsets("T", "G")) == ([], [], {})
    with pytest.raises(InvalidMessage, match="no topic 'T'"):
        served.read("T", 0)
    served.put("T", b"new", queue_id=0)
    assert bodies(served.read("T", 0)) == [b"new"]


def test_deletion_is_repeated_at_the_next_owner(served: SharedStore, owner: Child) -> None:
    """A request whose answer was lost does not fail because the owner before carried it out."""
    served.delete_topic("T")
    served.put("U", b"")
    with served.consumer("U", group="G") as consumer:
        consumer.ack(consumer.poll()[0])
    served.delete_group("G")
    again = {"delete_topic": "T", "delete_group": "G"}
    for name, argument in again.items():
        with pytest.raises(InvalidMessage):
            getattr(served, name)(argument)
    owner.kill()
    assert served.topics() == ["U"]
    service = served._member.service
    assert service is not None
    for name, argument in again.items():
        assert service._calls[name](argument, [], True) is None


def test_purge_ends_the_work_of_another_process(served: SharedStore, tmp_path: Path) -> None:
    """Its messages in hand are not pending any more, and it gets what is put later; so it is after a takeover."""
    counters = Counters(3)

    def work() -> None:
        with open_shared(tmp_path / "s") as store, store.consumer("T", group="G") as consumer:
            held = consumer.poll(4, 5)
            counters[0] = len(held)
            counters.wait_for(1, 1)
            assert not any(consumer.ack(one) for one in held)
            assert bodies(consumer.poll(4, 5)) == [b"new"]
            counters[2] = 1

    worker = Child(work)
    counters.wait_for(0, 4)
    assert served.purge("T", "G") == 20
    served.put("T", b"new", queue_id=1)
    counters[1] = 1
    assert worker.exit_code() == 0


def test_offsets_set_back_survive_a_takeover(served: SharedStore, owner: Child) -> None:
    """The consumer claims at the new owner what it was given after the reset, and nothing that it had before."""
    with served.consumer("T", group="G") as consumer:
        found = [one for _ in range(3) for one in consumer.poll(64, 0.2)]
        for one in found[:15]:
            consumer.ack(one)
        assert served.reset_offsets("T", "G", "first") == {0: 0, 1: 0}
        assert len(consumer.poll(2, 1)) == 2
        owner.kill()
        rest = [one for _ in range(3) for one in consumer.poll(64, 0.2)]
        assert len(rest) == 18
    assert served.committed_offsets("T", "G") == {0: 0, 1: 0}


def test_a_time_and_single_queues_are_passed_on(served: SharedStore) -> None:
    """As an offset is."""
    assert served.reset_offsets("T", "G", datetime.fromtimestamp(0, UTC), queues=[1]) == {1: 0}
    assert served.reset_offsets("T", "G", 3, queues=[0]) == {0: 3}
    assert served.committed_offsets("T", "G") == {0: 3, 1: 0}


def test_set_offsets_wake_a_consumer_that_waits(served: SharedStore, tmp_path: Path) -> None:
    """Its poll was parked at the end of the queues."""
    counters = Counters(2)

    def work() -> None:
        with open_shared(tmp_path / "s") as store, store.consumer("T", group="G", start="last") as consumer:
            counters[0] = 1
            counters[1] = len(consumer.poll(1, 20))

    worker = Child(work)
    counters.wait_for(0, 1)
    served.reset_offsets("T", "G", "first")
    assert worker.exit_code() == 0
    assert counters[1] == 1


def test_queue_ids_are_right_after_create_topic(served: SharedStore) -> None:
    """In a process that does not own the store; another number is reported there too."""
    served.create_topic("U", 3)
    assert served.queue_ids("U") == [0, 1, 2]
    assert served.topics() == ["T", "U"]
    with pytest.raises(InvalidMessage, match="topic 'U' has 3 queues, not 4"):
        served.create_topic("U", 4)
