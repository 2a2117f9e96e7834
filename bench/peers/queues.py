"""The rows of queues of jobs: put, take and acknowledge each, in one process and in several.

Both sides keep what was put, and what was acknowledged stays so: after the kill of any process, or with "synced" after a power
failure as well. huey has no acknowledgement: it deletes a job when it is taken, so a killed worker loses the one in hand.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from .shared import Numbers, Processes
from .turns import Row, take_turns

SIZES = (100, 1000)
COUNTS = {False: 5000, True: 500}  # of jobs in a round, by whether each is synced
PRODUCERS = CONSUMERS = 2
WAIT_S = 0.001
BUSY_S = 60.0
POSTGRES = Path("/usr/lib/postgresql/15/bin")


class Jobs(Protocol):
    """A queue of jobs that one process has open."""

    def put(self, body: bytes) -> None:
        """Put a job and return when it is stored."""

    def take(self) -> Any:
        """Return the next job, or None if there is none now."""

    def ack(self, job: Any) -> None:
        """Acknowledge a job and return when that is stored."""


Opened = Callable[[], Jobs]
Peer = Callable[[Path, bool], AbstractContextManager[Opened]]


class Own:
    """brokerstore, embedded in one process or shared by several."""

    def __init__(self, open_store: Any, folder: Path, is_synced: bool) -> None:
        import brokerstore

        how = {"flush_disk_type": "SYNC", "sync_flush_through_ring": True} if is_synced else {}
        self.store = open_store(folder, config=brokerstore.StoreConfig.small(**how))
        self.store.create_topic("jobs", CONSUMERS)
        self.consumer: Any = None

    def put(self, body: bytes) -> None:
        self.store.put("jobs", body)

    def take(self) -> Any:
        self.consumer = self.consumer or self.store.consumer("jobs", group="workers")
        found = self.consumer.poll(1, WAIT_S)
        return found[0] if found else None

    def ack(self, job: Any) -> None:
        self.consumer.ack(job)


@contextlib.contextmanager
def _embedded(folder: Path, is_synced: bool) -> Iterator[Opened]:
    import brokerstore

    made: list[Own] = []

    def opened() -> Jobs:
        made.append(Own(brokerstore.MessageStore.open, folder, is_synced))
        return made[-1]

    yield opened
    for own in made:
        own.store.close()


@contextlib.contextmanager
def _shared(folder: Path, is_synced: bool) -> Iterator[Opened]:
    import brokerstore

    yield lambda: Own(brokerstore.connect, folder, is_synced)


class Huey:
    """huey's storage in SQLite, with its write-ahead log."""

    def __init__(self, folder: Path, is_synced: bool) -> None:
        from huey.storage import SqliteStorage

        folder.mkdir(exist_ok=True)
        self.storage = SqliteStorage(filename=str(folder / "db"), fsync=is_synced, timeout=BUSY_S, strict_fifo=True)

    def put(self, body: bytes) -> None:
        self.storage.enqueue(body)

    def take(self) -> Any:
        return self.storage.dequeue()

    def ack(self, job: Any) -> None:
        """Do nothing: the job is gone."""


class PersistQueue:
    """persist-queue's SQLiteAckQueue, which keeps a job until it is acknowledged."""

    def __init__(self, folder: Path, is_synced: bool) -> None:
        import persistqueue

        self.empty = persistqueue.Empty
        self.queue: Any = persistqueue.SQLiteAckQueue(str(folder), auto_commit=True, multithreading=True, timeout=BUSY_S)
        for connection in {self.queue._getter, self.queue._putter}:  # it has no setting for this
            connection.execute(f"pragma synchronous={'full' if is_synced else 'off'}")

    def put(self, body: bytes) -> None:
        self.queue.put(body)

    def take(self) -> Any:
        with contextlib.suppress(self.empty):
            return self.queue.get(block=False)
        return None

    def ack(self, job: Any) -> None:
        self.queue.ack(job)


@contextlib.contextmanager
def _in_files(kind: Callable[[Path, bool], Jobs], folder: Path, is_synced: bool) -> Iterator[Opened]:
    yield lambda: kind(folder, is_synced)


class Redis:
    """A list of a Redis server, and one for the jobs in hand."""

    def __init__(self, address: Path) -> None:
        import redis

        self.client: Any = redis.Redis(unix_socket_path=str(address))

    def put(self, body: bytes) -> None:
        self.client.lpush("jobs", body)

    def take(self) -> Any:
        return self.client.blmove("jobs", "taken", WAIT_S, "RIGHT", "LEFT")

    def ack(self, job: Any) -> None:
        self.client.lrem("taken", 1, job)


@contextlib.contextmanager
def _redis(folder: Path, is_synced: bool) -> Iterator[Opened]:
    """Serve with an append-only file, which is written before each answer, and synced before it or each second."""
    folder.mkdir()
    address, sync = folder / "socket", "always" if is_synced else "everysec"
    settings = ("--port", "0", "--unixsocket", str(address), "--appendonly", "yes", "--appendfsync", sync, "--save", "")
    server = subprocess.Popen(["redis-server", *settings, "--dir", str(folder)], stdout=subprocess.DEVNULL)
    try:
        _wait_until(lambda: Redis(address).client.ping())
        yield lambda: Redis(address)
    finally:
        server.kill()
        server.wait()


class Postgres:
    """A table whose next job is locked with SKIP LOCKED, as queues on PostgreSQL do."""

    TAKE = (
        "update jobs set is_taken = true where id = (select id from jobs where not is_taken order by id limit 1 "
        "for update skip locked) returning id"
    )

    def __init__(self, folder: Path) -> None:
        import psycopg

        self.connection: Any = psycopg.connect(f"host={folder} user=postgres dbname=postgres", autocommit=True)

    def put(self, body: bytes) -> None:
        self.connection.execute("insert into jobs (body) values (%s)", (body,))

    def take(self) -> Any:
        row = self.connection.execute(self.TAKE).fetchone()
        return None if row is None else row[0]

    def ack(self, job: Any) -> None:
        self.connection.execute("delete from jobs where id = %s", (job,))


@contextlib.contextmanager
def _postgres(_folder: Path, is_synced: bool) -> Iterator[Opened]:
    """Serve a new cluster; without `fsync` a commit is written before its answer, and survives the processes."""
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []  # it does not run as root
    with tempfile.TemporaryDirectory() as above:
        data = Path(above) / "data"
        data.mkdir()
        if as_user:
            Path(above).chmod(0o755)
            shutil.chown(data, "postgres")
        subprocess.run(
            [*as_user, POSTGRES / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"],
            check=True, stdout=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
        settings = {"fsync": "on" if is_synced else "off", "listen_addresses": "", "unix_socket_directories": str(data)}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        server = subprocess.Popen(
            [*as_user, POSTGRES / "postgres", "-D", data, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        try:
            _wait_until(lambda: Postgres(data))
            connection = Postgres(data).connection
            connection.execute("create table jobs (id bigserial primary key, body bytea, is_taken boolean default false)")
            connection.execute("create index on jobs (id) where not is_taken")
            connection.close()
            yield lambda: Postgres(data)
        finally:
            stopping = [*as_user, POSTGRES / "pg_ctl", "stop", "-D", data, "-m", "immediate"]
            subprocess.run(stopping, check=False, stdout=subprocess.DEVNULL, cwd="/")
            server.wait()


def _wait_until(call: Callable[[], object]) -> None:
    """Call until it raises nothing, for ten seconds at most."""
    for _ in range(500):
        with contextlib.suppress(Exception):  # not there yet
            call()
            return
        time.sleep(0.02)
    call()


PEERS: dict[str, Peer] = {
    "huey": partial(_in_files, Huey), "persist-queue": partial(_in_files, PersistQueue),
    "redis": _redis, "postgresql": _postgres,
}  # fmt: skip


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def one_process(peer: Peer, folder: Path, is_synced: bool, count: int, size: int) -> float:
    """Return jobs per second of one process that puts all of them, and then takes and acknowledges each."""
    body = bytes(size)
    with _new_folder(folder), peer(folder, is_synced) as opened:
        jobs = opened()
        began = time.perf_counter()
        for _ in range(count):
            jobs.put(body)
        left = count
        while left:
            job = jobs.take()
            if job is not None:
                jobs.ack(job)
                left -= 1
        return count / (time.perf_counter() - began)


def several_processes(peer: Peer, folder: Path, is_synced: bool, count: int, size: int) -> float:
    """Return jobs per second of two processes that put and two that acknowledge, beside one that has the queue open."""
    body, each = bytes(size), count // PRODUCERS
    ready, start, done = Numbers(1 + PRODUCERS + CONSUMERS), Numbers(1), Numbers(CONSUMERS)

    def host(opened: Opened) -> None:
        jobs = opened()
        ready.at[0] = 1
        while True:
            time.sleep(10)
        del jobs

    def work(opened: Opened, position: int) -> None:
        jobs = opened()
        ready.at[position] = 1
        start.wait(0)
        if position <= PRODUCERS:
            for _ in range(each):
                jobs.put(body)
            time.sleep(BUSY_S)
        while True:
            job = jobs.take()
            if job is not None:
                jobs.ack(job)
                done.at[position - PRODUCERS - 1] += 1

    with _new_folder(folder), peer(folder, is_synced) as opened:
        processes = Processes()
        try:
            processes.start(lambda: host(opened))
            ready.wait(0)
            for position in range(1, 1 + PRODUCERS + CONSUMERS):
                processes.start(lambda position=position: work(opened, position))  # type: ignore[misc]
            for position in range(1, 1 + PRODUCERS + CONSUMERS):
                ready.wait(position)
            began = time.perf_counter()
            start.at[0] = 1
            while sum(done.at) < each * PRODUCERS:
                time.sleep(0.0005)
            return each * PRODUCERS / (time.perf_counter() - began)
        finally:
            processes.end()


MEASURES: tuple[tuple[str, Callable[[Peer, Path, bool, int, int], float], Peer], ...] = (
    ("one process", one_process, _embedded),
    ("several processes", several_processes, _shared),
)


def rows(folder: Path, rounds: int, scale: float, is_selected: Callable[[str], bool]) -> Iterator[Row]:
    """Yield the rows of every peer; report peers that are not installed."""
    for peer_name, peer in PEERS.items():
        reason = _why_not(peer_name)
        if reason:
            print(f"no rows of queues against {peer_name}: {reason}")
            continue
        for is_synced in (False, True):
            for where, measure, own in MEASURES:
                for size in SIZES:
                    name = f"queues: {where}, {size:,} B{', synced' if is_synced else ''}"
                    if not is_selected(f"{name} {peer_name}"):
                        continue
                    count = max(10, int(COUNTS[is_synced] * scale))  # of both sides: a start weighs more in a short run
                    yield take_turns(
                        Row(name, peer_name, "jobs/s", None),
                        partial(measure, own, folder / "own", is_synced, count, size),
                        partial(measure, peer, folder / "peer", is_synced, count, size),
                        rounds, is_of_memory=False,
                    )  # fmt: skip


def _why_not(peer: str) -> str:
    """Return why a peer cannot be measured; empty if it can."""
    module = {"persist-queue": "persistqueue", "postgresql": "psycopg"}.get(peer, peer)
    try:
        __import__(module)
    except ImportError as error:
        return str(error)
    if peer == "redis" and shutil.which("redis-server") is None:
        return "no redis-server"
    return f"no {POSTGRES}" if peer == "postgresql" and not POSTGRES.exists() else ""
