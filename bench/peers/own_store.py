"""Our store, used like the Java store: the message is built inside the loop, and every result is read."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from brokerstore import FlushMode, Message, MessageStore, StoreConfig
from commitlog import StoredMessage

TAGS = ["TagA", "TagB", "TagC", "TagD"]
NO_TAGS = [None] * 4
QUEUES = 4
MODES: dict[str, dict[str, Any]] = {
    "async": {}, "pool": {"transient_store_pool_enable": True}, "sync": {"flush_disk_type": FlushMode.SYNC},
    "sync-ring": {"flush_disk_type": FlushMode.SYNC, "sync_flush_through_ring": True},
}  # fmt: skip


def body_of(size: int) -> bytes:
    """Return a body, which is the same at each call."""
    return random.Random(7).randbytes(size)


def read_pairs(messages: Iterable[StoredMessage]) -> int:
    """Read body and keys of each message, like a peer's record; return the number of messages."""
    count = size = 0
    for message in messages:
        size += len(message.body) + len(message.keys)
        count += 1
    return count


def read_all(messages: Iterable[StoredMessage]) -> int:
    """Read body, topic, tags, keys and properties of each message; return the number of messages."""
    count = size = 0
    for message in messages:
        size += len(message.body) + len(message.topic) + len(message.tags or "") + len(message.keys) + len(message.properties)
        count += 1
    return count


class OwnStore:
    """One open store with the Java store's sizes and with whole-record checksums."""

    def __init__(self, folder: Path, mode: str = "async", **settings: Any) -> None:
        """Open the store; `seconds` is how long it took until queues and index had caught up."""
        began = time.perf_counter()
        self.store = MessageStore.open(folder, config=StoreConfig(**MODES[mode], **settings))
        self.settle()
        self.seconds = time.perf_counter() - began

    def settle(self) -> None:
        """Wait until everything that was put is in queues and index."""
        engine = self.store.engine
        while engine.dispatcher.behind_bytes:
            if engine.log.buffers is not None:
                engine.flusher.commit(0)
            if engine.config.is_sync_flush:
                engine.flusher.flush_now()
            if not engine.dispatcher.wait_for(engine.dispatch_limit()):
                raise RuntimeError("the dispatcher is stuck")

    def flush_all(self) -> None:
        """Flush the log and wait for the dispatcher."""
        self.store.flush()
        self.settle()

    def _timed(self, threads: int, work: Callable[[int], Any]) -> dict[str, Any]:
        all_threads = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        began = time.perf_counter()
        if threads == 1:
            work(0)
        else:
            for thread in all_threads:
                thread.start()
            for thread in all_threads:
                thread.join()
        put_seconds = time.perf_counter() - began
        self.settle()
        return {"put_seconds": put_seconds, "seconds": time.perf_counter() - began}

    def put(
        self, topic: str, count: int, body: int, threads: int = 1, *, is_timed: bool = False, tags: Sequence[str | None] = TAGS
    ) -> dict[str, Any]:
        """Put one message a call; `put` raises if the status is not PUT_OK."""
        data, put, each = body_of(body), self.store.put, count // threads
        times: list[list[int]] = [[] for _ in range(threads)]

        def plain(thread: int) -> None:
            for i in range(each):
                put(Message(topic, data, tags[i & 3], f"key-{thread}-{i}", None, (thread + i) & 3))

        def timed(thread: int) -> None:
            clock, found = time.perf_counter_ns, times[thread]
            for i in range(each):
                message = Message(topic, data, tags[i & 3], f"key-{thread}-{i}", None, (thread + i) & 3)
                began = clock()
                put(message)
                found.append(clock() - began)

        measured = self._timed(threads, timed if is_timed else plain)
        if is_timed:
            sorted_times = sorted(time_ns for found in times for time_ns in found)
            measured |= {"p50": sorted_times[len(sorted_times) // 2] / 1e9, "max": sorted_times[-1] / 1e9}
            measured["p999"] = sorted_times[int(len(sorted_times) * 0.999)] / 1e9
        return measured

    def put_many(self, topic: str, count: int, body: int, size: int, *, tags: Sequence[str | None] = TAGS) -> dict[str, Any]:
        """Call `put_many` with `size` messages, over four queues."""
        data, put_many = body_of(body), self.store.put_many

        def work(_: int) -> None:
            for i in range(count // size):
                put_many([Message(topic, data, tags[k & 3], f"key-{i}-{k}", None, k & 3) for k in range(size)])

        return self._timed(1, work)

    def put_bodies(self, topic: str, count: int, body: int, size: int, *, tags: Sequence[str | None] = TAGS) -> dict[str, Any]:
        """Call `put_many` with `size` bodies, tags and keys, and without message objects."""
        data, put_many = body_of(body), self.store.put_many
        column = [tags[k & 3] for k in range(size)] if any(tags) else None

        def work(_: int) -> None:
            for i in range(count // size):
                put_many(topic, [data] * size, tags=column, keys=[f"key-{i}-{k}" for k in range(size)])

        return self._timed(1, work)

    def append_columns(self, topic: str, count: int, body: int, size: int) -> dict[str, Any]:
        """Append Arrow columns of bodies, keys and tags, which exist before, as a caller would have them."""
        import pyarrow as pa

        data = body_of(body)
        bodies = pa.array([data] * size, pa.binary())
        tags = pa.array([TAGS[k & 3] for k in range(size)])
        keys = [pa.array([f"key-{i}-{k}" for k in range(size)]) for i in range(count // size)]

        def work(_: int) -> None:
            for i, column in enumerate(keys):
                self.store.append_columns(topic, i & 3, bodies, keys=column, tags=tags)

        return self._timed(1, work)

    def scan(self, topic: str, kind: str) -> dict[str, Any]:
        """Read every message of four queues.

        `kind` is "raw" or "headed" for views, "decoded" for objects read whole, "fields" for body, keys and topic, "pairs" for
        body and keys, or "columns".
        """
        began = time.perf_counter()
        count = sum(getattr(self, f"_scan_{kind}")(topic, queue) for queue in range(QUEUES))
        return {"seconds": time.perf_counter() - began, "count": count}

    def _scan_raw(self, topic: str, queue: int, *, check: bool = False) -> int:
        count = 0
        for views in self.store.read_raw(topic, queue, check=check):
            for _view in views:
                count += 1
        return count

    def _scan_headed(self, topic: str, queue: int) -> int:
        return self._scan_raw(topic, queue, check=True)

    def _scan_decoded(self, topic: str, queue: int) -> int:
        return read_all(self.store.read(topic, queue))

    def _scan_fields(self, topic: str, queue: int) -> int:
        count = 0
        for message in self.store.read(topic, queue):
            message.body, message.keys, message.topic  # noqa: B018
            count += 1
        return count

    def _scan_pairs(self, topic: str, queue: int) -> int:
        return read_pairs(self.store.read(topic, queue))

    def _scan_columns(self, topic: str, queue: int) -> int:
        columns = ["body", "topic", "tags", "keys", "queue_offset", "physical_offset", "store_timestamp_ms"]
        return sum(batch.num_rows for batch in self.store.read_columns(topic, queue, columns=columns))

    def probe(self, topic: str, what: str, count: int, messages: int) -> dict[str, Any]:
        """Look up random messages by `what`."""
        store, chosen = self.store, random.Random(3)
        numbers = [chosen.randrange(messages) for _ in range(count)]
        found = [store.get(topic, number & 3, number >> 2, 1).messages[0] for number in numbers]
        offsets, times = [message.physical_offset for message in found], [message.store_timestamp_ms for message in found]
        began = time.perf_counter()
        if what == "message_at":
            for offset in offsets:
                len(store.message_at(offset).body)  # type: ignore[union-attr]
        elif what == "offset_by_time":
            for number, time_ms in zip(numbers, times, strict=True):
                store.offset_by_time(topic, number & 3, time_ms)
        else:
            prefix = "key-0-" if what == "query_hit" else "none-"
            for number in numbers:
                for message in store.query(topic, prefix + str(number)):
                    len(message.body)
        return {"seconds": time.perf_counter() - began}

    def close(self) -> None:
        """Stop the store cleanly."""
        self.store.close()
