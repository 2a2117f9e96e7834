"""Visibility times, stops and consumers of several topics of a shared store: workers that hang, are killed, or stop."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore, SharedStore, StoreConfig
from messagestore.shared import aio
from tests.helpers import bodies, until
from tests.shared.processes import CONFIG, Child, Counters, open_shared, owning_child

pytestmark = [pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"), pytest.mark.deep]
LONG_S = 600
DEAD = "%DLQ%G"


@pytest.fixture(params=["owner", "served"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SharedStore]:
    """Open a store, as the owner and as a process that another one serves, with a topic of two queues."""
    owner = owning_child(tmp_path / "s") if request.param == "served" else None
    with open_shared(tmp_path / "s") as opened:
        opened.create_topic("T", 2)
        yield opened
    if owner is not None:
        owner.kill()


def put(store: SharedStore, numbers: range) -> None:
    store.put_many([Message("T", b"%d" % number, queue_id=number % 2) for number in numbers])


def consumer_of(store: SharedStore, visibility_s: float = LONG_S, **options: Any) -> Any:
    return store.consumer("T", group="G", visibility_s=visibility_s, **options)


def taken(consumer: Any, count: int) -> list[Any]:
    """Poll until so many messages came."""
    found: list[Any] = []
    until(lambda: len(found.__iadd__(consumer.poll(count, 0.5))) >= count)
    return found


def dead_letters(store: SharedStore) -> list[bytes]:
    return sorted(bytes(message.body) for queue_id in store.queue_ids(DEAD) for message in store.read(DEAD, queue_id))


def test_message_of_a_hanging_consumer_goes_to_another_one(store: SharedStore) -> None:
    """While it lives; an extended one stays, and the late acknowledgement is refused."""
    put(store, range(2))
    with consumer_of(store, 1) as hanging:
        found = taken(hanging, 2)
        assert hanging.extend(found[1], LONG_S)
        with consumer_of(store, 1) as other:
            (again,) = taken(other, 1)
            assert (again.body, again.reconsume_times) == (found[0].body, 1)
            assert hanging.ack(found[0]) is False
            assert other.ack(again)
            assert hanging.ack(found[1])
            assert other.poll(1, 0.1) == []


def test_killed_worker_counts_and_a_closed_one_does_not(store: SharedStore) -> None:
    """What a killed process had comes again with a count, and ends among the dead letters."""
    put(store, range(1))
    consumer_of(store).close()
    for delivery in range(2):
        ready = Counters(1)

        def work(ready: Counters = ready) -> None:
            with open_shared(Path(store.path)) as own:
                consumer = consumer_of(own, max_deliveries=2)
                ready[0] = 1 + taken(consumer, 1)[0].reconsume_times
                signal.pause()

        worker = Child(work)
        ready.wait_for(0, 1 + delivery)
        worker.kill()
    with consumer_of(store, max_deliveries=2) as consumer:
        until(lambda: consumer.poll(1, 0.1) or dead_letters(store) == [b"0"])
        assert dead_letters(store) == [b"0"]


def test_killed_owner_ends_no_lease_of_others(tmp_path: Path) -> None:
    """A living consumer keeps what it has until its time ends; what the owner's own consumer had comes again, counted."""
    ready = Counters(2)

    def own() -> None:
        with open_shared(tmp_path / "s") as store:
            store.create_topic("T", 2)
            put(store, range(2))
            consumer = consumer_of(store)
            ready[0] = 1
            ready.wait_for(1, 1)
            taken(consumer, 1)
            ready[0] = 2
            signal.pause()

    owner = Child(own)
    ready.wait_for(0, 1)
    with open_shared(tmp_path / "s") as store, consumer_of(store) as consumer:
        (message,) = taken(consumer, 1)
        ready[1] = 1
        ready.wait_for(0, 2)
        owner.kill()
        (again,) = taken(consumer, 1)
        assert {message.body, again.body} == {b"0", b"1"}
        assert (message.reconsume_times, again.reconsume_times) == (0, 1)
        assert consumer.poll(1, 0.2) == []
        assert consumer.extend(message, LONG_S)
        assert consumer.ack(message)
        assert consumer.ack(again)
        assert consumer.lag() == 0


def test_time_goes_on_over_a_takeover(tmp_path: Path) -> None:
    """The next owner knows when the delivery ends: not from the takeover on."""
    owner = owning_child(tmp_path / "s", lambda store: store.create_topic("T", 2))
    with open_shared(tmp_path / "s") as store, consumer_of(store, 3) as consumer:
        put(store, range(1))
        (message,) = taken(consumer, 1)
        assert consumer.extend(message, LONG_S)
        owner.kill()
        until(lambda: store.is_owner)
        until(lambda: consumer._own is not None)
        (state,) = [state for state in consumer._own._states.values() if state.pending]
        assert abs(state.pending[0] / 1000 - time.time() - LONG_S) < 60
        assert consumer.ack(message)


def test_stop_ends_a_wait_and_others_get_the_queues(store: SharedStore) -> None:
    """From another thread: what is in hand can be acknowledged, also after the others took over."""
    put(store, range(2))
    stopped = store.consumer("T", group="G")
    (message,) = stopped.poll(1, 20)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(stopped))
    thread.start()
    until(lambda: len(found) == 1)
    stopped.stop()
    thread.join(20)
    assert not thread.is_alive()
    with store.consumer("T", group="G") as other:
        put(store, range(2, 4))
        assert other.poll(4, 0.2) == []
        assert stopped.ack(message)
        assert stopped.ack(found[0])
        assert sorted(bodies(taken(other, 2))) == [b"2", b"3"]
    assert stopped.poll(1, 5) == []
    stopped.close()


def test_stop_in_a_signal_handler(store: SharedStore) -> None:
    """A loop without a timeout ends; the consumer stays open for acknowledgements."""
    put(store, range(2))
    with store.consumer("T", group="G") as consumer:
        before = signal.signal(signal.SIGUSR1, lambda *_: consumer.stop())
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        began = time.monotonic()
        try:
            found = list(consumer)
        finally:
            timer.join()
            signal.signal(signal.SIGUSR1, before)
        assert time.monotonic() - began < 60
        assert all(consumer.ack(message) for message in found)
        assert len(found) == 2


def test_consumer_of_several_topics(store: SharedStore) -> None:
    """A pattern matches topics that are created while it waits; `stop` ends the wait."""
    put(store, range(2))
    with store.consumer(re.compile("T|new.*"), group="G", visibility_s=LONG_S) as consumer:
        for message in taken(consumer, 2):
            assert consumer.ack(message)
        timer = threading.Timer(0.2, store.put, ("new-one", b"x"))
        timer.start()
        message = next(consumer)
        timer.join()
        assert (message.topic, consumer.topics) == ("new-one", ["T", "new-one"])
        assert consumer.extend(message, 30)
        assert consumer.ack(message)
        timer = threading.Timer(0.2, consumer.stop)
        timer.start()
        assert list(consumer) == []
        timer.join()


def test_awaited_consumer_stops_and_gives_back_what_it_fetched(tmp_path: Path) -> None:
    """What is in hand can be acknowledged; the rest goes to another consumer while this one is still open."""

    async def work() -> None:
        async with aio.open(tmp_path / "s", CONFIG) as store:
            await store.create_topic("T", 2)
            await store.put_many([Message("T", b"%d" % number, queue_id=number % 2) for number in range(6)])
            stopped = store.consumer("T", group="G")
            message = await anext(stopped)
            stopped.stop()
            assert [one async for one in stopped] == []
            other = store.consumer("T", group="G")
            rest = [await anext(other) for _ in range(3)]
            assert {one.queue_id for one in rest} == {1 - message.queue_id}
            assert await message.ack()
            rest += [await anext(other) for _ in range(2)]
            assert sorted([message.body, *(one.body for one in rest)]) == [b"%d" % number for number in range(6)]

    asyncio.run(work())


def test_awaited_consumer_has_a_visibility_time(tmp_path: Path) -> None:
    """`extend` and the number of deliveries; several topics."""

    async def work() -> None:
        async with aio.open(tmp_path / "s", StoreConfig.small()) as store:
            await store.put("a", b"1")
            await store.put("b", b"2")
            async with store.consumer(["a", "b"], group="G", visibility_s=LONG_S, max_deliveries=1) as consumer:
                found = [await anext(consumer) for _ in range(2)]
                assert await found[0].extend(LONG_S)
                assert await found[0].ack()
                assert not await found[0].extend(LONG_S)
                assert await found[1].extend(0.001)
                await asyncio.sleep(0.01)
                assert not await found[1].ack()
            page = await store.get(DEAD, 0, 0)
            assert [one.body for one in page.messages] == [found[1].body]

    asyncio.run(work())


WORKER = """
import os, random, signal, sys, time
import brokerstore
from brokerstore import StoreConfig

chance, report = random.Random(int(sys.argv[2])), os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND)
with brokerstore.connect(sys.argv[1], StoreConfig.small()) as store:
    with store.consumer("T", group="G", visibility_s=0.5, max_deliveries=50) as consumer:
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        for message in consumer:
            os.write(report, b"+" + message.body + b"\\n")
            does = chance.random()
            if does < 0.05:
                time.sleep(0.8)  # hangs
            elif does < 0.1:
                consumer.extend(message, 5)
            elif does < 0.15:
                consumer.nack(message, delay_level=-1 if does < 0.11 else 1)
                continue
            os.write(report, b"?" + message.body + b"\\n")
            if consumer.ack(message):
                os.write(report, b"-" + message.body + b"\\n")
"""


@pytest.mark.parametrize("seed", range(2))
def test_workers_that_hang_stop_and_are_killed_lose_nothing(tmp_path: Path, seed: int) -> None:
    """Whichever process owns the store: all is acknowledged or dead in the end, and nothing comes after its acknowledgement."""
    chance, report, lives = random.Random(seed), tmp_path / "report", itertools.count(1000 * seed)
    report.touch()

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path / "s"), str(next(lives)), str(report)])

    with MessageStore.open(tmp_path / "s", config=StoreConfig.small(message_delay_level="1s")) as store:
        store.create_topic("T", 3)
        store.put_many([Message("T", b"%d" % number, queue_id=number % 3) for number in range(1500)])
    workers = [start() for _ in range(3)]
    for _ in range(8):
        seen = report.stat().st_size
        until(lambda seen=seen: report.stat().st_size > seen + 300)
        position = chance.randrange(3)
        workers[position].send_signal(chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        assert workers[position].wait(60) in (0, -signal.SIGKILL, -signal.SIGTERM)
        workers[position] = start()
    for worker in workers:
        worker.kill()
        worker.wait()
    lines = report.read_text().split()
    done: set[str] = set()
    last = {line[1:]: line[0] for line in lines}
    for line in lines:
        assert line[0] != "+" or line[1:] not in done, f"{line[1:]} came after its acknowledgement"
        if line[0] == "-":
            done.add(line[1:])
    with MessageStore.open(tmp_path / "s", config=StoreConfig.small(message_delay_level="1s")) as store:
        with store.consumer("T", group="G", visibility_s=60, timeout_s=3) as consumer:
            rest = {message.body.decode() for message in consumer if consumer.ack(message)}
        dead = {message.body.decode() for message in store.read(DEAD, 0)} if DEAD in store.topics() else set()
    assert len(done) > 100
    assert not rest & done
    missing = {str(number) for number in range(1500)} - done - rest - dead
    assert len(missing) <= 11, "one for each kill"
    assert {last[number] for number in missing} <= {"?"}, "a kill came between the acknowledgement and the report of it"
