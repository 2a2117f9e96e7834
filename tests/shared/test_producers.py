"""What producers of a shared store have: priorities, ids and times to live, whichever process owns the store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from brokerstore import aio
from commitlog import Message
from messagestore.shared.protocol import marked_again
from storageio import PutRejected
from tests.shared.processes import CONFIG, Child, Counters, die, open_shared, owning_child

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def bodies(store: Any, topic: str) -> list[bytes]:
    return sorted(message.body for queue_id in store.queue_ids(topic) for message in store.read(topic, queue_id))


def test_an_id_counts_in_all_processes_and_after_the_owner_was_killed(tmp_path: Path) -> None:
    """The next owner finds the ids in the log: of puts of the killed owner, of others, and of delayed messages."""

    def prepare(store: Any) -> None:
        store.put("T", b"owner", dedup_id="a")
        store.put("T", b"late", dedup_id="late", delay=timedelta(minutes=3))

    owner = owning_child(tmp_path / "s", prepare)
    with open_shared(tmp_path / "s") as store:
        assert not store.is_owner
        first = store.put("T", b"served", dedup_id="b")
        results = [store.put("T", b"no", dedup_id="a"), store.put_async(Message("T", b"no", dedup_id="b")).result()]
        assert [one.is_duplicate for one in results] == [True, True]
        owner.kill()
        again = store.put("T", b"no", dedup_id="b")
        assert again.is_duplicate and again.message_id == first.message_id
        many = store.put_many(
            [Message("T", b"%d" % number, dedup_id=name) for number, name in enumerate(("a", "c", "late", "c"))]
        )
        assert (many.message_count, store.is_owner) == (1, True)
        assert bodies(store, "T") == [b"1", b"owner", b"served"]


def test_a_repeated_request_with_ids_stores_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer was lost: an id of another put is not counted as stored by this one."""
    with open_shared(tmp_path / "s") as owner, open_shared(tmp_path / "s") as store:
        owner.put("T", b"first", dedup_id="a")
        sent: list[bytes] = []
        exchange = store._member._channels.exchange
        monkeypatch.setattr(store._member._channels, "exchange", lambda data: sent.append(data) or exchange(data))
        messages = [Message("T", b"1"), Message("T", b"2", dedup_id="a"), Message("T", b"3", dedup_id="b")]
        assert store.put_many(messages).message_count == 2
        again = store._member.request(marked_again(sent[-1]))
        assert again.message_count == 2
        assert bodies(owner, "T") == [b"1", b"3", b"first"]


@pytest.mark.deep
def test_producers_of_several_processes_put_each_id_once_while_owners_are_killed(tmp_path: Path) -> None:
    """Three processes put the same ids, and each owner kills itself after some; every id is stored exactly once."""
    count, done = 300, Counters(3)

    def produce(position: int) -> Callable[[], None]:
        def work() -> None:
            with open_shared(tmp_path / "s") as store:
                for number in range(count):
                    store.put("T", b"%d" % number, dedup_id=str(number))
                    done[position] = number + 1

        return work

    def reign() -> None:
        store = open_shared(tmp_path / "s")
        threading.Timer(0.3, die).start()
        for number in range(10_000):
            store.put("T", b"%d" % (number % count), dedup_id=str(number % count))

    children = [Child(produce(position)) for position in range(3)]
    while min(done[position] for position in range(3)) < count:
        Child(reign).exit_code()
    assert [child.exit_code() for child in children] == [0, 0, 0]
    with open_shared(tmp_path / "s") as store:
        stored = bodies(store, "T")
    assert len(stored) == len(set(stored)) == count


def test_priorities_and_times_to_live_of_members(tmp_path: Path) -> None:
    """Consumers of each process take in the order, and expired messages reach the dead letters of their group."""
    with open_shared(tmp_path / "s") as owner, open_shared(tmp_path / "s") as store:
        with pytest.raises(PutRejected, match="has no priorities"):
            store.put("P", b"x", priority=1)
        store.create_topic("P", 4, attributes={"message.type": "PRIORITY"})
        for one in (owner, store):
            for priority in (0, 3, 1, 7):
                one.put("P", b"%d" % priority, priority=priority)
            store.put("P", b"gone", priority=2, ttl=timedelta(milliseconds=1))
            with one.consumer("P", group="g") as consumer:
                found = [consumer.poll(1, 20)[0] for _ in range(4)]
                assert [message.body for message in found] == [b"3", b"7", b"1", b"0"]
                for message in found:
                    consumer.ack(message)
                assert consumer.poll(1, 0) == []
        assert bodies(store, "%DLQ%g") == [b"gone", b"gone"]


def test_an_event_loop_has_them_too(tmp_path: Path) -> None:
    """`aio` takes the same arguments, and awaits space for many."""

    async def work() -> None:
        async with aio.open(tmp_path / "s", CONFIG) as store:
            await store.create_topic("P", 3, attributes={"message.type": "PRIORITY"})
            first = await store.put("P", b"1", priority=2, dedup_id="a", ttl=timedelta(hours=1))
            again = await store.put("P", b"1", priority=2, dedup_id="a")
            assert (first.queue_id, again.is_duplicate) == (2, True)
            result = await store.put_many([Message("P", b"2", dedup_id=name) for name in "abb"], block_s=1)
            assert result.message_count == 1
            assert (await store.put_many("P", [b"3"], block_s=1)).message_count == 1
            local = store.store._member.local
            assert local is not None
            local.engine.retention.used_percent = lambda: 99  # type: ignore[method-assign]
            with local.engine.housekeeper.guard:
                local.engine.retention.run()
            with pytest.raises(PutRejected):
                await store.put_many("P", [b"4"], block_s=0.1)
            assert (await store.put_many("P", [b"4"], block_s=0.1, check=False)).message_count == 0
            local.engine.retention.used_percent = lambda: 10  # type: ignore[method-assign]
            assert (await store.put_many("P", [b"4"], block_s=20)).message_count == 1

    asyncio.run(asyncio.wait_for(work(), 60))
