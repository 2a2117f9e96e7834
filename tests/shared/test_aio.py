"""A shared store in an event loop: nothing blocks it, and a cancelled coroutine loses nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from brokerstore import aio
from commitlog import Message, PutStatus
from messagestore.shared.election import Member
from messagestore.shared.news import News
from storageio import PutRejected, StoreBusy, StoreClosed
from tests.shared.processes import CONFIG, owning_child

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine; it must not take long."""
    asyncio.run(asyncio.wait_for(work, 30))


@pytest.fixture(params=[pytest.param("owner", marks=pytest.mark.deep), "served"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Name a store that this process will own, or one that another process owns."""
    if request.param == "served":
        owning_child(tmp_path / "s", lambda store: store.create_topic("T", 4))
    return tmp_path / "s"


def test_puts_and_reads(folder: Path) -> None:
    """Puts that are awaited together are stored in their order."""

    async def work() -> None:
        async with aio.open(folder, CONFIG) as store:
            results = await asyncio.gather(*(store.put(Message("T", b"%d" % number, queue_id=0)) for number in range(500)))
            assert [result.queue_offset for result in results] == list(range(500))
            assert (await store.put_many([Message("T", b"k", keys="k", queue_id=0)])).queue_offset == 500
            assert (await store.put_many("T", [b"l", b"m"], queue_id=1, tags=["t", None])).message_count == 2
            assert (await store.get("T", 0, 499)).messages[0].body == b"499"
            assert [message.body for message in await store.query("T", "k")] == [b"k"]
            with pytest.raises(PutRejected):
                await store.put(Message("T" * 300, b""))
            assert (await store.put(Message("T" * 300, b""), check=False)).status is PutStatus.MESSAGE_ILLEGAL
            with pytest.raises(TypeError):
                await store.put("text")  # type: ignore[arg-type]
        with pytest.raises(StoreClosed):
            store.store.flush()

    run(work())


def test_a_consumer_is_iterated_and_acknowledges(folder: Path) -> None:
    """The iteration waits for messages, and ends at the time-out."""

    async def work() -> None:
        async with aio.open(folder, CONFIG) as store:

            async def produce() -> None:
                for number in range(20):
                    await store.put(Message("T", b"%d" % number, queue_id=0))
                    await asyncio.sleep(0.005)

            producer = asyncio.create_task(produce())
            found = []
            async with store.consumer("T", group="G", timeout_s=0.5) as consumer:
                async for message in consumer:
                    found.append(message.body)
                    assert await message.ack()
            await producer
            assert found == [b"%d" % number for number in range(20)]
            assert await store.call(store.store.committed_offsets, "T", "G") == {0: 20}

    run(work())


@pytest.mark.deep
def test_a_message_that_is_sent_back_is_redelivered(folder: Path) -> None:
    """From the retry topic, after its delay."""

    async def work() -> None:
        async with aio.open(folder, CONFIG) as store:
            await store.put(Message("T", b"x", queue_id=0))
            async with store.consumer("T", group="G") as consumer:
                first = await anext(consumer)
                await first.nack(delay_level=1)
                again = await anext(consumer)
                assert (again.body, again.reconsume_times) == (b"x", 1)

    run(work())


@pytest.mark.deep
def test_a_cancelled_wait_loses_no_message(folder: Path) -> None:
    """Waits are cancelled at many moments; each message comes once and in order."""

    async def work() -> None:
        async with aio.open(folder, CONFIG) as store, store.consumer("T", group="G") as consumer:
            found: list[bytes] = []

            async def produce() -> None:
                for number in range(200):
                    await store.put(Message("T", b"%d" % number, queue_id=0))
                    await asyncio.sleep(0.001)

            producer = asyncio.create_task(produce())
            pause_s = 0.0
            while len(found) < 200:
                pause_s = (pause_s + 0.00013) % 0.004
                try:
                    async with asyncio.timeout(pause_s):
                        found.append((await anext(consumer)).body)
                except TimeoutError:
                    continue
            await producer
            assert found == [b"%d" % number for number in range(200)]

    run(work())


def test_a_cancelled_put_is_stored(folder: Path) -> None:
    """A message that was handed over cannot be taken back."""

    async def work() -> None:
        async with aio.open(folder, CONFIG) as store:
            for number in range(50):
                put = asyncio.create_task(store.put(Message("T", b"%d" % number, queue_id=0)))
                await asyncio.sleep(0)
                put.cancel()
            await store.put(Message("T", b"end", queue_id=0))
            found = [message.body for message in await store.call(lambda: list(store.store.read("T", 0)))]
            assert found == [*(b"%d" % number for number in range(50)), b"end"]

    run(work())


@pytest.mark.deep
def test_many_consumers_need_no_thread_each(folder: Path) -> None:
    """A hundred of them wait with as many threads as one."""

    others = set(threading.enumerate())  # other tests may leave some, which may end meanwhile

    async def work() -> None:
        async with aio.open(folder, CONFIG) as store:
            consumers = [store.consumer("T", group=f"G{number}") for number in range(100)]
            waits = [asyncio.create_task(anext(consumer)) for consumer in consumers]
            await asyncio.sleep(0.8)
            threads = set(threading.enumerate()) - others
            await store.put(Message("T", b"x", queue_id=0))
            assert [(await wait).body for wait in waits] == [b"x"] * 100
            assert len(threads) < 40

    run(work())


def test_the_loop_goes_on_when_the_owner_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts and consumers go on with the next owner, and the event loop is not blocked meanwhile."""
    join = Member._try_to_join

    def join_slowly(member: Member) -> bool:
        time.sleep(0.2)
        return join(member)

    owner = owning_child(tmp_path / "s", lambda store: store.create_topic("T", 1))

    async def work() -> None:
        async with aio.open(tmp_path / "s", CONFIG) as store, store.consumer("T", group="G") as consumer:
            await store.put(Message("T", b"0", queue_id=0))
            assert (await anext(consumer)).body == b"0"
            waiting = asyncio.create_task(anext(consumer))
            await asyncio.sleep(0.05)
            monkeypatch.setattr(Member, "_try_to_join", join_slowly)
            owner.kill()
            turns = 0
            putting = asyncio.create_task(store.put(Message("T", b"1", queue_id=0)))
            while not waiting.done():
                await asyncio.sleep(0.001)
                turns += 1
            assert (await putting).queue_offset == 1
            assert (await waiting).body == b"1"
            assert turns > 5, "the takeover blocked the event loop"

    run(work())


async def until(is_so: Callable[[], Any]) -> None:
    while not is_so():
        await asyncio.sleep(0.005)


def test_closing_a_consumer_ends_its_iteration(folder: Path) -> None:
    """Without a message and without an error."""

    async def work() -> None:
        async with aio.open(folder, CONFIG) as store:
            consumer = store.consumer("T", group="G")

            async def iterate() -> list[bytes]:
                return [message.body async for message in consumer]

            iterating = asyncio.create_task(iterate())
            await until(lambda: store._news._waiting)
            await consumer.close()
            assert await iterating == []

    run(work())


def test_a_consumer_without_a_pending_wait_fetches_no_messages(folder: Path) -> None:
    """Its wait ended with the time-out. What comes then is handed out by the next wait, not kept in this process before."""

    async def work() -> None:
        async with aio.open(folder, CONFIG) as store:
            idle, busy = store.consumer("T", group="idle", timeout_s=0.2), store.consumer("T", group="busy")
            assert [message async for message in idle] == []
            waiting = asyncio.create_task(anext(busy))
            await until(lambda: busy in store._news._waiting)
            await store.put(Message("T", b"x", queue_id=0))
            assert (await waiting).body == b"x"
            await asyncio.sleep(0.1)
            assert idle.opened.position(0) == 0
            assert [message.body async for message in idle] == [b"x"]

    run(work())


def test_an_error_of_the_wait_for_messages_reaches_the_coroutine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that does not answer is an error of the iteration, which goes on afterwards."""
    monkeypatch.setattr("messagestore.shared.aio.NEWS_S", 0.05)

    def silent(_news: News, _seen: int, _timeout_s: float) -> int:
        raise StoreBusy("the owner does not answer")

    async def work() -> None:
        async with aio.open(folder, CONFIG) as store, store.consumer("T", group="G") as consumer:
            waiting = asyncio.create_task(anext(consumer))
            await until(lambda: store._news._waiting)
            with monkeypatch.context() as patched:
                patched.setattr(News, "wait", silent)
                with pytest.raises(StoreBusy):
                    await waiting
            await store.put(Message("T", b"x", queue_id=0))
            assert (await anext(consumer)).body == b"x"

    run(work())
