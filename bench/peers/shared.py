"""The rows of one store that several processes use, beside what such programs use otherwise.

Each side has a first process that opens the queue and then only serves or waits. "put" is the median of single puts of
another process. "pipelined" is the rate of four putting processes together. "wake-up" is the time from the begin of a put in
one process to the message in another, which acknowledges it afterwards: of two processes beside the first one, and with the
first one on either side; its median, and what one of a thousand exceeds. "idle" is the processor time of the first process
and of a waiting consumer.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from .turns import Row, take_turns

PROCESSES = 4
BODY = bytes(100)
POLL_S = 0.001  # of peers that cannot wait for a message of another process
WARM = 200
PACE_S = 0.002  # between two puts of "wake-up"
IDLE_S = 5.0
LEAST = 0.01  # % of a core: what the clock resolves
BUSY_S = 60.0


class Queue(Protocol):
    """A queue that one process has open."""

    def put(self, body: bytes) -> None:
        """Put one message and return when it is stored."""

    def put_all(self, bodies: list[bytes]) -> None:
        """Put messages without waiting for each."""

    def take(self) -> bytes:
        """Wait for the next message; one that this process took before is acknowledged or removed first."""


class Own:
    """brokerstore.connect: the first process owns the store."""

    def __init__(self, folder: Path) -> None:
        import brokerstore

        self.message = brokerstore.Message
        self.store = brokerstore.connect(folder, brokerstore.StoreConfig.small())
        self.store.create_topic("T", 1)
        self.consumer: Any = None
        self.taken: Any = None

    def put(self, body: bytes) -> None:
        self.store.put(self.message("T", body, queue_id=0))

    def put_all(self, bodies: list[bytes]) -> None:
        message, put = self.message, self.store.put_async
        for future in [put(message("T", body, queue_id=0)) for body in bodies]:
            future.result()

    def take(self) -> bytes:
        self.consumer = self.consumer or self.store.consumer("T", group="G")
        if self.taken is not None:
            self.consumer.ack(self.taken)
        self.taken = next(self.consumer)
        return bytes(self.taken.body)


class Sqlite:
    """One SQLite file with a write-ahead log and synchronous=OFF."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.base = sqlite3.connect(folder / "db", isolation_level=None, timeout=BUSY_S)
        self.base.execute("pragma journal_mode=wal")
        self.base.execute("pragma synchronous=off")
        self.base.execute("create table if not exists messages (number integer primary key autoincrement, body blob)")
        self.taken = -1

    def put(self, body: bytes) -> None:
        self.base.execute("insert into messages (body) values (?)", (body,))

    def put_all(self, bodies: list[bytes]) -> None:
        for start in range(0, len(bodies), 100):
            self.base.execute("begin immediate")
            self.base.executemany("insert into messages (body) values (?)", [(body,) for body in bodies[start : start + 100]])
            self.base.execute("commit")

    def take(self) -> bytes:
        if self.taken >= 0:
            self.base.execute("delete from messages where number = ?", (self.taken,))
        while True:
            row = self.base.execute("select number, body from messages order by number limit 1").fetchone()
            if row is not None:
                self.taken = row[0]
                return bytes(row[1])
            time.sleep(POLL_S)


class PersistQueue:
    """persist-queue's SQLiteQueue, which several processes may open."""

    def __init__(self, folder: Path) -> None:
        import persistqueue

        self.empty = persistqueue.Empty
        self.queue: Any = persistqueue.SQLiteQueue(str(folder), auto_commit=True, multithreading=True, timeout=BUSY_S)

    def put(self, body: bytes) -> None:
        self.queue.put(body)

    def put_all(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self.queue.put(body)

    def take(self) -> bytes:
        while True:
            try:
                return bytes(self.queue.get(block=False))
            except self.empty:
                time.sleep(POLL_S)


class Lmdb:
    """LMDB without syncs and with a writable map; the key is a counter."""

    def __init__(self, folder: Path) -> None:
        import lmdb

        self.env = lmdb.open(str(folder), map_size=1 << 30, sync=False, metasync=False, writemap=True)
        self.taken = b""

    def put(self, body: bytes) -> None:
        self.put_all([body])

    def put_all(self, bodies: list[bytes]) -> None:
        for start in range(0, len(bodies), 100):
            with self.env.begin(write=True) as transaction, transaction.cursor() as cursor:
                first = int.from_bytes(cursor.key(), "big") + 1 if cursor.last() else 0
                batch = bodies[start : start + 100]
                cursor.putmulti([((first + n).to_bytes(8, "big"), body) for n, body in enumerate(batch)], append=True)

    def take(self) -> bytes:
        if self.taken:
            with self.env.begin(write=True) as transaction:
                transaction.delete(self.taken)
        while True:
            with self.env.begin() as transaction, transaction.cursor() as cursor:
                if cursor.first():
                    self.taken = bytes(cursor.key())
                    return bytes(cursor.value())
            time.sleep(POLL_S)


class Redis:
    """A list of a Redis server on a Unix socket, with an append-only file that is not synced."""

    def __init__(self, folder: Path) -> None:
        import redis

        folder.mkdir(exist_ok=True)
        address = folder / "socket"
        if not address.exists():
            if shutil.which("redis-server") is None:
                raise ImportError("no redis-server")
            settings = ("--port", "0", "--unixsocket", str(address), "--appendonly", "yes", "--appendfsync", "no", "--save", "")
            subprocess.Popen(["redis-server", *settings, "--dir", str(folder)], stdout=subprocess.DEVNULL)
        self.client = redis.Redis(unix_socket_path=str(address))
        self._wait()

    def _wait(self) -> None:
        for _ in range(500):
            with contextlib.suppress(Exception):  # not there yet
                self.client.ping()
                return
            time.sleep(0.01)

    def put(self, body: bytes) -> None:
        self.client.rpush("T", body)

    def put_all(self, bodies: list[bytes]) -> None:
        for start in range(0, len(bodies), 100):
            pipe = self.client.pipeline(transaction=False)
            for body in bodies[start : start + 100]:
                pipe.rpush("T", body)
            pipe.execute()

    def take(self) -> bytes:
        return bytes(self.client.blpop("T")[1])


PEERS: dict[str, Callable[[Path], Queue]] = {
    "sqlite": Sqlite, "persist-queue": PersistQueue, "lmdb": Lmdb, "redis": Redis,
}  # fmt: skip
SLOW = {"persist-queue": 0.1}  # share of the number of messages


class Numbers:
    """Numbers that forked processes share."""

    def __init__(self, count: int) -> None:
        self._map = mmap.mmap(-1, 8 * count)
        self.at = memoryview(self._map).cast("q")

    def wait(self, position: int, value: int = 1) -> None:
        """Wait until a number has been reached."""
        while self.at[position] < value:
            time.sleep(0.0001)


class Processes:
    """Forked processes in groups of their own, so that what they start ends with them."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def start(self, call: Callable[[], None]) -> int:
        """Fork a process that makes a call."""
        process_id = os.fork()
        if process_id == 0:
            os.setpgid(0, 0)
            code = 1
            with contextlib.suppress(BaseException):
                call()
                code = 0
            os._exit(code)
        self.ids.append(process_id)
        return process_id

    def end(self) -> None:
        """Kill them and what they started."""
        for process_id in self.ids:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process_id, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process_id, 0)


def _sleep_on() -> None:
    while True:
        time.sleep(10)


@contextlib.contextmanager
def _served(
    opened: Callable[[Path], Queue], folder: Path, work: Callable[[Queue], None] | None = None
) -> Iterator[tuple[Processes, int]]:
    """Start the first process, which has the queue open, and works or waits."""
    processes, ready = Processes(), Numbers(1)

    def first() -> None:
        queue = opened(folder)
        ready.at[0] = 1
        if work is not None:
            work(queue)
        _sleep_on()
        del queue

    host = processes.start(first)
    try:
        ready.wait(0)
        yield processes, host
    finally:
        processes.end()
        shutil.rmtree(folder, ignore_errors=True)


def put_us(opened: Callable[[Path], Queue], folder: Path, count: int) -> float:
    """Return the median time of a put in microseconds."""
    found = Numbers(count + 1)

    def work() -> None:
        queue = opened(folder)
        for _ in range(WARM):
            queue.put(BODY)
        for position in range(1, count + 1):
            began = time.perf_counter_ns()
            queue.put(BODY)
            found.at[position] = time.perf_counter_ns() - began
        found.at[0] = 1

    with _served(opened, folder) as (processes, _):
        processes.start(work)
        found.wait(0)
    return statistics.median(found.at[1:]) / 1000


def pipelined(opened: Callable[[Path], Queue], folder: Path, count: int) -> float:
    """Return messages per second of four processes that do not wait for each put."""
    state = Numbers(3)  # of each process: ready, done; and the start
    done = Numbers(2 * PROCESSES)

    def work(position: int) -> None:
        queue = opened(folder)
        queue.put(BODY)
        done.at[position] = 1
        state.wait(0)
        queue.put_all([BODY] * count)
        done.at[PROCESSES + position] = 1

    with _served(opened, folder) as (processes, _):
        for position in range(PROCESSES):
            processes.start(lambda position=position: work(position))  # type: ignore[misc]
        for position in range(PROCESSES):
            done.wait(position)
        began = time.perf_counter()
        state.at[0] = 1
        for position in range(PROCESSES):
            done.wait(PROCESSES + position)
        return PROCESSES * count / (time.perf_counter() - began)


def _wake_times(opened: Callable[[Path], Queue], folder: Path, count: int, first: str) -> list[int]:
    """Return nanoseconds from the begin of a put to the message in another process, sorted.

    `first`: the first process "serves" two others, "puts", or "consumes".
    """
    times = Numbers(2 * count + 2)  # of each message: put, taken; then ready, done

    def consume(queue: Queue) -> None:
        queue.take()
        times.at[2 * count] = 1
        for position in range(count):
            queue.take()
            times.at[2 * position + 1] = time.perf_counter_ns()
        times.at[2 * count + 1] = 1

    def produce(queue: Queue) -> None:
        queue.put(BODY)
        times.wait(2 * count)
        for position in range(count):
            time.sleep(PACE_S)
            times.at[2 * position] = time.perf_counter_ns()
            queue.put(BODY)

    roles = {"puts": produce, "consumes": consume}
    with _served(opened, folder, roles.get(first)) as (processes, _):
        for role, work in roles.items():
            if role != first:
                processes.start(lambda work=work: work(opened(folder)))  # type: ignore[misc]
        times.wait(2 * count + 1)
    return sorted(times.at[2 * position + 1] - times.at[2 * position] for position in range(count))


def wake_us(opened: Callable[[Path], Queue], folder: Path, count: int, first: str = "serves") -> float:
    """Return the median of a wake-up in microseconds."""
    return statistics.median(_wake_times(opened, folder, count, first)) / 1000


def late_wake_us(opened: Callable[[Path], Queue], folder: Path, count: int) -> float:
    """Return the microseconds that one wake-up of a thousand exceeds."""
    return _wake_times(opened, folder, count, "serves")[count * 999 // 1000] / 1000


def idle_percent(opened: Callable[[Path], Queue], folder: Path, _count: int) -> float:
    """Return the processor time of the first process and a waiting consumer, in percent of a core."""
    ready = Numbers(1)

    def consume() -> None:
        queue = opened(folder)
        ready.at[0] = 1
        queue.take()

    with _served(opened, folder) as (processes, host):
        consumer = processes.start(consume)
        ready.wait(0)
        time.sleep(1.0)
        before = _processor_ns(host) + _processor_ns(consumer)
        time.sleep(IDLE_S)
        used = _processor_ns(host) + _processor_ns(consumer) - before
    return max(LEAST, used / (1e7 * IDLE_S))


def _processor_ns(group: int) -> int:
    """Return the processor time of a process group in nanoseconds."""
    total = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                    total += sum(int((task / "schedstat").read_text().split()[0]) for task in (entry / "task").iterdir())
    return total


MEASURES: tuple[tuple[str, str, bool, Callable[[Callable[[Path], Queue], Path, int], float], int], ...] = (
    ("shared: put, 100 B", "us", True, put_us, 2000),
    ("shared: pipelined puts of four processes, 100 B", "msg/s", False, pipelined, 20_000),
    ("shared: wake-up of a consumer, 100 B", "us", True, wake_us, 500),
    ("shared: wake-up of a consumer, 100 B, 99.9 %", "us", True, late_wake_us, 2000),
    ("shared: wake-up by a put of the first process, 100 B", "us", True, partial(wake_us, first="puts"), 500),
    ("shared: wake-up of a consumer in the first process, 100 B", "us", True, partial(wake_us, first="consumes"), 500),
    ("shared: idle, owner and consumer", "% of a core", True, idle_percent, 1),
)


def rows(folder: Path, rounds: int, scale: float, is_selected: Callable[[str], bool]) -> Iterator[Row]:
    """Yield the rows of every peer; report peers that are not installed."""
    for peer, opened in PEERS.items():
        reason = _why_not(peer)
        if reason:
            print(f"no shared rows against {peer}: {reason}")
            continue
        for name, unit, less_is_better, measure, messages in MEASURES:
            if is_selected(f"{name} {peer}"):
                count = max(1, int(messages * scale))
                theirs = max(1, int(count * SLOW.get(peer, 1)))
                row = Row(name, peer, unit, None, less_is_better=less_is_better)
                yield take_turns(
                    row,
                    lambda measure=measure, count=count: measure(Own, folder / "own", count),  # type: ignore[misc]
                    lambda measure=measure, opened=opened, theirs=theirs: measure(opened, folder / "peer", theirs),  # type: ignore[misc]
                    rounds,
                    is_of_memory=False,
                )


def _why_not(peer: str) -> str:
    """Return why a peer cannot be measured; empty if it can."""
    modules = {"persist-queue": "persistqueue", "lmdb": "lmdb", "redis": "redis"}
    try:
        if peer in modules:
            __import__(modules[peer])
    except ImportError as error:
        return str(error)
    return "no redis-server" if peer == "redis" and shutil.which("redis-server") is None else ""
