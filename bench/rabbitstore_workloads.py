"""Workloads of rabbitstore; `test_rabbitstore.py` runs them alone, `peers/rabbitmq_modules.py` beside the server's modules.

Each workload does what the server's counterpart does: message terms are encoded and decoded inside the measured time.
Results are messages per second by step.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from rabbitstore import IndexSettings, RabbitSettings, StoreSettings
from rabbitstore.engine.msg_store_cy import MsgStore
from rabbitstore.engine.msg_store_recovery import open_store
from rabbitstore.engine.queue_index_cy import QueueIndex
from rabbitstore.engine.variable_queue_cy import VariableQueue
from rabbitstore.format.content import decode_content, encode_content
from rabbitstore.format.message import Content
from storageio import REAL_DISK

WINDOW = 1000
BATCH = 500
ACKS = 100
Rates = dict[str, float]


def _messages(count: int, size: int) -> list[Content]:
    body = b"x" * size
    return [Content("/", "", ("q",), b"\x10\x00\x02", body, os.urandom(16), True) for _ in range(count)]


def _rate(count: int, work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


@contextlib.contextmanager
def _freeing() -> Iterator[None]:
    """Free deleted files meanwhile, as the housekeeper of an open store and a process of the server do."""
    is_over = threading.Event()

    def free() -> None:
        while not is_over.wait(0.001):
            REAL_DISK.free_unlinked()

    thread = threading.Thread(target=free)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        REAL_DISK.free_unlinked()


def _index(folder: Path) -> QueueIndex:
    index = QueueIndex(REAL_DISK, str(folder / "queue"), IndexSettings())
    list(index.load(lambda _entry: True))
    return index


class Flight:
    """At most WINDOW unconfirmed messages; a second thread syncs, as the server's store process does."""

    def __init__(self, store: MsgStore) -> None:
        self._store = store
        self._count = 0
        self._is_over = False
        self._changed = threading.Condition()
        self.client = store.client()
        self._thread = threading.Thread(target=self._sync)
        self._thread.start()

    def _sync(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._count > 0 or self._is_over)
                if self._count == 0:
                    return
                count = self._count
            self._store.sync()
            with self._changed:
                self._count -= count
                self._changed.notify_all()

    def write(self, batch: list[tuple[bytes, bytes]]) -> None:
        """Wait for space in the window, then write."""
        with self._changed:
            self._changed.wait_for(lambda: self._count + len(batch) <= WINDOW)
        self.client.write_many(batch)
        with self._changed:
            self._count += len(batch)
            self._changed.notify_all()

    def land(self) -> None:
        """Wait until everything is confirmed."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()


def store(folder: Path, count: int, size: int) -> Rates:
    """Write with 1000 in flight, each synced; read in order and at random; remove."""
    shutil.rmtree(folder, ignore_errors=True)
    opened, _ = open_store(REAL_DISK, str(folder / "store"), StoreSettings(), {})
    flight = Flight(opened)
    client = flight.client
    messages = _messages(count, size)
    ids = [message.msg_id for message in messages]
    mixed = random.Random(1).sample(ids, len(ids))

    def write() -> None:
        for start in range(0, count, BATCH):
            flight.write([(one.msg_id, encode_content(one)) for one in messages[start : start + BATCH]])
        flight.land()

    def read(requested: list[bytes]) -> None:
        for msg_id in requested:
            decode_content(client.read(msg_id) or b"")

    def remove() -> None:
        client.remove(ids)
        opened.process()

    found = {"write": _rate(count, write), "read": _rate(count, lambda: read(ids))}
    found["read_random"] = _rate(count, lambda: read(mixed))
    with _freeing():
        found["remove"] = _rate(count, remove)
    opened.close()
    shutil.rmtree(folder)
    return found


def index(folder: Path, count: int, size: int, *, embedded: bool) -> Rates:
    """Publish (with the delivered mark), sync every 1000; read back by segment; acknowledge 100 at a time."""
    shutil.rmtree(folder, ignore_errors=True)
    opened = _index(folder)
    messages = _messages(count, size)

    def publish() -> None:
        for seq_id, message in enumerate(messages):
            opened.publish(seq_id, message.msg_id, 0, size, True, encode_content(message) if embedded else None)
            if seq_id % WINDOW == WINDOW - 1:
                opened.sync()

    def read() -> None:
        start = 0
        while start < count:
            stop = min(opened.segment_end(start), count)
            assert len(opened.read(start, stop)) == stop - start
            start = stop

    def acknowledge() -> None:
        for start in range(0, count, 100):
            opened.acknowledge(range(start, min(start + 100, count)))
        opened.flush()

    found = {"publish": _rate(count, publish)}
    opened.flush()
    found["read"] = _rate(count, read)
    with _freeing():
        found["ack"] = _rate(count, acknowledge)
    opened.close()
    shutil.rmtree(folder)
    return found


def _confirm(queue: VariableQueue, syncs: deque[tuple[Future[None], tuple[int, int]]]) -> None:
    future, position = syncs.popleft()
    future.result()
    queue.index.sync(position)


def variable_queue(folder: Path, count: int, size: int, *, mode: str) -> Rates:
    """Publish until every message is synced, 1000 a sync; then fetch, and acknowledge half one by one and half in lists."""
    shutil.rmtree(folder, ignore_errors=True)
    persistent, _ = open_store(REAL_DISK, str(folder / "persistent"), StoreSettings(), {})
    transient, _ = open_store(REAL_DISK, str(folder / "transient"), StoreSettings(), {}, is_synced=False)
    settings = RabbitSettings()
    queue = VariableQueue(_index(folder), persistent.client(), transient.client(), settings, REAL_DISK.now_ms, mode=mode)
    messages = _messages(count, size)

    def publish() -> None:
        syncs: deque[tuple[Future[None], tuple[int, int]]] = deque()
        with ThreadPoolExecutor(1) as pool:
            for number, message in enumerate(messages):
                embedded = size < settings.index.embed_below
                queue.publish(message.msg_id, encode_content(message), size, persistent=True, embedded=embedded)
                if number % WINDOW == WINDOW - 1 or number == count - 1:
                    position = queue.index.position()
                    syncs.append((pool.submit(persistent.sync), position))
                    while len(syncs) > 2 or (syncs and syncs[0][0].done()):
                        _confirm(queue, syncs)
            while syncs:
                _confirm(queue, syncs)

    def fetch(total: int, acks: int) -> None:
        for _ in range(total // acks):
            numbers = []
            for _ in range(acks):
                taken = queue.fetch()
                assert taken is not None
                decode_content(taken[1])
                numbers.append(taken[0].seq_id)
            queue.acknowledge(numbers)

    found = {"publish": _rate(count, publish)}
    with _freeing():
        found["fetch_ack"] = _rate(count // 2, lambda: fetch(count // 2, 1))
        found["fetch_ack_list"] = _rate(count // 2, lambda: fetch(count // 2, ACKS))
    queue.index.close()
    persistent.close()
    transient.close()
    shutil.rmtree(folder)
    return found
