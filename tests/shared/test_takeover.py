"""The owner ends or is killed at any moment: another process takes over, and no message is lost or stored twice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import FlushMode, MessageStore, PutFuture, SharedStore
from messagestore.shared.election import Member
from messagestore.shared.service import Service
from storageio import StoreBusy, StoreCorrupt, StoreLocked
from tests.helpers import bodies
from tests.shared.kill_run import KillRun
from tests.shared.processes import CONFIG, Child, Counters, die, open_shared, owning_child

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def numbered(count: int) -> list[Message]:
    return [Message("T", b"%d" % number, queue_id=0) for number in range(count)]


def dies_after(name: str, count: int = 1) -> Callable[[SharedStore], None]:
    """Have the owner end after the n-th call of a method of its store, before the answer is sent."""

    def prepare(store: SharedStore) -> None:
        local: Any = store._member.local
        original, left = getattr(local, name), [count]

        def call(*arguments: Any, **options: Any) -> Any:
            result = original(*arguments, **options)
            left[0] -= 1
            if not left[0]:
                die()
            return result

        service = Service(_Patched(local, name, call))  # type: ignore[arg-type]
        store._member._owner.service = service  # type: ignore[union-attr]

    return prepare


class _Patched:
    """A store with one other method."""

    def __init__(self, store: MessageStore, name: str, call: Callable[..., Any]) -> None:
        self._store = store
        setattr(self, name, call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@contextlib.contextmanager
def dying_owner(folder: Path, prepare: Callable[[SharedStore], None]) -> Iterator[SharedStore]:
    """Open a store whose owner will end."""
    owner = owning_child(folder, prepare)
    with open_shared(folder) as store:
        yield store
    owner.exit_code()


def test_a_put_with_a_lost_answer_is_stored_once(tmp_path: Path) -> None:
    """The owner stored it and was killed; the caller gets the result from the next owner, which is this process."""
    with dying_owner(tmp_path / "s", dies_after("put", 3)) as store:
        results = [store.put(message) for message in numbered(5)]
        assert store.is_owner
        assert [result.queue_offset for result in results] == [0, 1, 2, 3, 4]
        assert bodies(store.read("T", 0)) == [b"0", b"1", b"2", b"3", b"4"]


def test_the_result_of_a_repeated_put_is_that_of_the_first(tmp_path: Path) -> None:
    """All fields are those of the record that has the message."""
    with dying_owner(tmp_path / "s", dies_after("put")) as store:
        result = store.put(Message("T", b"x", keys="k", queue_id=1))
        (found,) = store.query("T", "k")
        assert result.message_id == found.message_id
        assert (result.physical_offset, result.size_bytes, result.queue_id) == (found.physical_offset, found.size, 1)
        assert (result.queue_offset, result.store_timestamp_ms) == (found.queue_offset, found.store_timestamp_ms)


@pytest.mark.deep
def test_a_delayed_put_with_a_lost_answer_is_stored_once(tmp_path: Path) -> None:
    """It is found among the delayed messages, or where it was delivered."""
    with dying_owner(tmp_path / "s", dies_after("put")) as store:
        store.put(Message("T", b"late", queue_id=0, properties={"DELAY": "1"}))
        store.put(Message("T", b"end", queue_id=1))
        deadline = time.monotonic() + 5
        while not bodies(store.read("T", 0)) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.1)
        assert bodies(store.read("T", 0)) == [b"late"]


@pytest.mark.deep
def test_several_puts_with_a_lost_answer_are_stored_once(tmp_path: Path) -> None:
    """This holds if the owner is killed between two of them, too."""

    def part(store: SharedStore) -> None:
        local: Any = store._member.local

        def put_some(messages: list[Message], *, check: bool = True) -> None:
            local.put_many(messages[:3])
            die()

        store._member._owner.service = Service(_Patched(local, "put_many", put_some))  # type: ignore[union-attr,arg-type]

    for position, prepare in enumerate((dies_after("put_many"), part)):
        with dying_owner(tmp_path / str(position), prepare) as store:
            result = store.put_many(numbered(7))
            assert (result.message_count, result.queue_offset) == (7, 0)
            assert bodies(store.read("T", 0)) == [b"%d" % number for number in range(7)]


@pytest.mark.parametrize("mode", list(FlushMode))
def test_pipelined_puts_are_stored_once_and_in_order(mode: FlushMode, tmp_path: Path) -> None:
    """The unanswered ones are repeated before any later one."""
    config = CONFIG.but(flush_disk_type=mode)
    folder = tmp_path / "s"
    ready = Counters(1)

    def own() -> None:
        store = open_shared(folder, config=config)
        dies_after("put_async" if mode is FlushMode.SYNC else "put", 120)(store)
        ready[0] = 1
        time.sleep(60)

    owner = Child(own)
    ready.wait_for(0, 1)
    with open_shared(folder, config=config) as store:
        futures = [store.put_async(message) for message in numbered(300)]
        if mode is FlushMode.SYNC:  # the puts may have arrived one at a time
            with contextlib.suppress(ProcessLookupError):
                os.kill(owner.process_id, 9)
        assert [future.result(20).queue_offset for future in futures] == list(range(300))
        assert bodies(store.read("T", 0)) == [b"%d" % number for number in range(300)]
    owner.exit_code()


@pytest.mark.deep
def test_a_transaction_survives_the_owner_that_prepared_it(tmp_path: Path) -> None:
    """The next owner commits or rolls back, and a repeated begin or commit is carried out once."""
    for position, name in enumerate(("begin_transaction", "put")):
        with dying_owner(tmp_path / str(position), dies_after(name)) as store:
            with store.begin_transaction(Message("T", b"x", queue_id=0)) as transaction:
                store.put(Message("other", b""))
            assert transaction.committed is not None and transaction.committed.queue_offset == 0
            assert bodies(store.read("T", 0)) == [b"x"]
            assert store.undecided_transactions() == []


@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_a_transaction_decision_with_a_lost_answer_counts_once(decision: str, tmp_path: Path) -> None:
    """The caller sees no error."""

    def prepare(store: SharedStore) -> None:
        transactions: Any = store._member.local.engine.transactions  # type: ignore[union-attr]
        original = getattr(transactions, decision)
        setattr(transactions, decision, lambda half_offset: (original(half_offset), die()))

    with dying_owner(tmp_path / "s", prepare) as store:
        transaction = store.begin_transaction(Message("T", b"x", queue_id=0))
        getattr(transaction, decision)()
        assert bodies(store.read("T", 0)) == ([b"x"] if decision == "commit" else [])
        assert store.undecided_transactions() == []


def test_an_idle_process_takes_over(tmp_path: Path) -> None:
    """Delays and retention need an owner although nobody puts."""
    owner = owning_child(tmp_path / "s")
    with open_shared(tmp_path / "s") as store:
        owner.kill()
        deadline = time.monotonic() + 10
        while not store.is_owner and time.monotonic() < deadline:
            time.sleep(0.005)
        assert store.is_owner


def test_every_call_raises_the_error_of_a_failed_takeover(tmp_path: Path) -> None:
    """A damaged store stays closed, and unanswered puts fail."""
    owner = owning_child(tmp_path / "s", lambda store: store.put(Message("T", b"0", queue_id=0)))
    with open_shared(tmp_path / "s") as store:
        (tmp_path / "s" / "commitlog" / "stray").write_bytes(b"?")
        owner.kill()
        with pytest.raises(StoreCorrupt):
            store.put(Message("T", b"1"))
        with pytest.raises(StoreCorrupt):
            store.put_async(Message("T", b"1"))


@pytest.mark.deep
def test_calls_raise_store_busy_while_the_owner_is_stopped(tmp_path: Path) -> None:
    """Every kind of call ends with `StoreBusy` after `wait_s`; nobody takes over; all of them work when the owner goes on."""
    owner = owning_child(tmp_path / "s", lambda store: store.create_topic("T", 1))
    with open_shared(tmp_path / "s", wait_s=0.2) as store, store.consumer("T", group="G") as consumer:
        assert consumer.poll(1, 0.01) == []
        owner.stop()
        unanswered = store.put_async(Message("T", b"pipelined"))
        with pytest.raises(StoreBusy):
            unanswered.result(10)
        for call in (lambda: store.put(Message("T", b"one")), store.flush, lambda: consumer.poll(1, 0.3)):
            with pytest.raises(StoreBusy):
                call()
        with pytest.raises(StoreLocked):
            open_shared(tmp_path / "s", wait_s=0.2)
        assert not store.is_owner
        os.kill(owner.process_id, signal.SIGCONT)
        assert store.put_async(Message("T", b"later")).result(10).physical_offset > 0
        store.put(Message("T", b"last"))
        found = [message.body for _ in range(10) for message in consumer.poll(8, 0.1)]
        assert found[-2:] == [b"later", b"last"]
        assert len(found) == len(set(found))
    owner.kill()


# Kills


class Producers:
    """Processes that put numbered messages, each into a queue of its own, and count acknowledgements."""

    def __init__(self, folder: Path, count: int, in_flight: int) -> None:
        self.folder = folder
        self.count = count
        self.in_flight = in_flight  # puts of one process that are not acknowledged yet
        self.acknowledged: dict[tuple[int, int], int] = {}
        self._counters = Counters(2 * count)  # acknowledged, longest pause in ms
        self._lives = [0] * count
        self._children = [self._start(position) for position in range(count)]

    def _start(self, position: int) -> Child:
        self._counters[2 * position] = 0
        life = self._lives[position]

        def produce() -> None:
            with open_shared(self.folder) as store:
                futures: deque[PutFuture] = deque()
                for number in range(1_000_000):
                    began = time.monotonic()
                    message = Message("T", b"%d.%d" % (life, number), queue_id=position)
                    if self.in_flight == 1:
                        store.put(message)
                    else:
                        futures.append(store.put_async(message))
                        if len(futures) >= self.in_flight:
                            futures.popleft().result()
                    self._counters[2 * position] = number + 1 - len(futures)
                    pause_ms = int(1000 * (time.monotonic() - began))
                    self._counters[2 * position + 1] = max(self._counters[2 * position + 1], pause_ms)

        return Child(produce)

    def kill(self, position: int, *, again: bool = True) -> None:
        """Kill one, note what it was promised, and start its successor."""
        self._children[position].kill()
        self.acknowledged[position, self._lives[position]] = self._counters[2 * position]
        self._lives[position] += 1
        if again:
            self._children[position] = self._start(position)

    def stop(self) -> None:
        for position in range(self.count):
            self.kill(position, again=False)

    def longest_pause_ms(self) -> int:
        return max(self._counters[2 * position + 1] for position in range(self.count))

    def check(self) -> int:
        """Each life's numbers are in its queue without a gap or a repeat, and none that was acknowledged is missing."""
        total = 0
        with MessageStore.open(self.folder, config=CONFIG) as store:
            for position in range(self.count):
                found: dict[int, list[int]] = {}
                for body in bodies(store.read("T", position)):
                    life, number = map(int, body.split(b"."))
                    found.setdefault(life, []).append(number)
                for life in range(self._lives[position]):
                    numbers, promised = found.get(life, []), self.acknowledged[position, life]
                    assert numbers == list(range(len(numbers))), f"producer {position}, life {life}"
                    assert promised <= len(numbers) <= promised + self.in_flight, f"producer {position}, life {life}"
                    total += len(numbers)
        return total


def run_kills(folder: Path, seconds: float, seed: int, in_flight: int = 1) -> Producers:
    chance = random.Random(seed)
    producers = Producers(folder, 3, in_flight)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(chance.uniform(0.02, 0.25))
        producers.kill(chance.randrange(producers.count))
    producers.stop()
    return producers


@pytest.mark.deep
def test_processes_killed_at_random(tmp_path: Path) -> None:
    """Whether owner or not: nothing acknowledged is lost or stored twice, and the order of each producer is kept."""
    assert run_kills(tmp_path / "s", 1, 1).check() > 0


@pytest.mark.deep
def test_pipelined_puts_of_processes_killed_at_random(tmp_path: Path) -> None:
    """The same for `put_async`: what was not acknowledged is repeated in its order, at this process or at another one."""
    assert run_kills(tmp_path / "s", 1, 3, in_flight=50).check() > 0


@pytest.mark.deep
def test_processes_killed_at_random_for_a_minute(tmp_path: Path) -> None:
    """The same holds for longer runs, and no call waits for more than a few seconds."""
    producers = run_kills(tmp_path / "s", 60, 2)
    assert producers.check() > 1000
    assert producers.longest_pause_ms() < 5000


@pytest.mark.deep
def test_producers_and_consumers_killed_at_random(tmp_path: Path) -> None:
    """Nothing is lost, order is kept, and no message is in two living hands; `tests.faults.night` runs it for longer."""
    run = KillRun(tmp_path / "s", seed=1)
    run.run(60, 0.05)
    run.check()
    assert run.pauses_ms()


def test_a_consumer_is_reopened_if_the_owner_died_during_its_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the call returns, so that a message that is put then is behind its first position, the end of the queue."""
    join = Member._try_to_join

    def join_slowly(member: Member) -> bool:
        time.sleep(0.1)
        return join(member)

    monkeypatch.setattr(Member, "_try_to_join", join_slowly)
    with dying_owner(tmp_path / "s", dies_after("consumer")) as store:
        store.put(Message("T", b"before", queue_id=0))
        with store.consumer("T", group="G", start="last") as consumer:
            assert store.is_owner  # it waited for an owner
            store.put(Message("T", b"after", queue_id=0))
            assert [message.body for message in consumer.poll(8, 5)] == [b"after"]
