"""The rows against RocketMQ's store, which has its defaults; ours has the same file sizes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .bounds import Bound, checked_records, decoded_in_memory, missed_in_a_dictionary
from .bounds_write import (
    build_many,
    built_and_committed,
    built_and_stored,
    built_and_synced,
    handed_over,
    longest_store,
    stored,
)
from .codecs import messages_with_properties
from .java_store import JavaStores
from .own_store import OwnStore
from .pages import read_data
from .turns import Row, Side, take_turns

PEER = "rocketmq"
WARM = 200_000
BATCH = 32
MANY = 1000
OBJECTS = ("decoded", "fields", "columns")  # scans for which the Java store decodes


class Bench:
    """The stores of both sides, and the number of rounds."""

    def __init__(self, jvm: JavaStores, folder: Path, rounds: int, scale: float, is_selected: Callable[[str], bool]) -> None:
        """Set up the rows; `scale` multiplies every number of messages."""
        self.jvm = jvm
        self.folder = folder
        self.rounds = rounds
        self.scale = scale
        self.expected = is_selected

    def count(self, messages: int) -> int:
        """Return the scaled number of messages, a multiple of what threads and batches need."""
        return max(4000, round(messages * self.scale) // 4000 * 4000)

    def row(
        self, name: str, target: float | None, ours: Side, theirs: Side, unit: str = "msg/s", bound: Bound | None = None
    ) -> Iterator[Row]:
        """Measure a row if it is selected.  For times, less is better."""
        if self.expected(name):
            row = Row(name, PEER, unit, target, less_is_better=unit in ("us", "ms"))
            yield take_turns(row, ours, theirs, self.rounds, bound, plain_rounds=self.rounds)

    def pair(self, mode: str) -> tuple[OwnStore, Any]:
        """Open and warm up both stores, so that the JVM has compiled the measured code."""
        paths = self.folder / f"ours-{mode}", self.folder / f"java-{mode}"
        ours, java = OwnStore(paths[0], "sync-ring" if mode == "sync" else mode), self.jvm.open(paths[1], mode)
        warm = self.count(2000 if mode == "sync" else WARM)
        for _ in range(2):
            java.put("Warm", warm, 128)
        java.put_batch("Warm", self.count(WARM), 128, BATCH)
        ours.put("Warm", self.count(20_000) if mode != "sync" else 400, 128)
        return ours, java

    def done(self, *stores: Any) -> None:
        """Close the stores and delete their folders."""
        for store in stores:
            store.close()
        for left in self.folder.iterdir():
            shutil.rmtree(left)


def rate(count: int, what: str = "seconds") -> Callable[[dict[str, Any]], float]:
    """Return a function that gives messages per second from a reported time."""
    return lambda measured: count / measured[what]


def put_rows(bench: Bench) -> Iterator[Row]:
    """Yield the rows of asynchronous flush through the maps."""
    ours, java = bench.pair("async")
    n, k = bench.count(600_000), bench.count(300_000)
    yield from bench.row("put, 1 thread, 100 B, until dispatched", 2.5,
        lambda: n / ours.put("A", n, 100)["seconds"], lambda: n / java.put("A", n, 100)["seconds"],
        bound=built_and_stored(bench.folder, n, 100))  # fmt: skip
    yield from bench.row("put, 1 thread, 1 KiB, until dispatched", 1.5,
        lambda: k / ours.put("A", k, 1024)["seconds"], lambda: k / java.put("A", k, 1024)["seconds"],
        bound=built_and_stored(bench.folder, k, 1024))  # fmt: skip
    yield from bench.row("put, 4 threads, 100 B", 1.5,
        lambda: n / ours.put("A", n, 100, 4)["seconds"], lambda: n / java.put("A", n, 100, 4)["seconds"])  # fmt: skip
    for what in ("p999", "max"):
        yield from bench.row(f"put, 1 thread, 1 KiB, {what}", 1,
            lambda what=what: 1e6 * ours.put("A", k, 1024, is_timed=True)[what],  # type: ignore[misc]
            lambda what=what: 1e6 * java.put("A", k, 1024, is_timed=True)[what], unit="us",  # type: ignore[misc]
            bound=longest_store(bench.folder, k, 1024) if what == "max" else None)  # fmt: skip
    bench.done(ours, java)


def batch_rows(bench: Bench) -> Iterator[Row]:
    """Yield the rows of many messages a call."""
    ours, java = bench.pair("async")
    n, k = bench.count(600_000), bench.count(300_000)
    for size, count, target in ((100, n, 2.5), (1024, k, 1.8)):
        yield from bench.row(f"put_many of 1,000 against a batch of 32, {size} B", None,
            lambda count=count, size=size: count / ours.put_many("B", count, size, MANY)["put_seconds"],  # type: ignore[misc]
            lambda count=count, size=size: count / java.put_batch("B", count, size, BATCH)["put_seconds"],  # type: ignore[misc]
            bound=built_and_stored(bench.folder, count, size, build=build_many))  # fmt: skip
        yield from bench.row(f"the same until dispatched, {size} B", None,
            lambda count=count, size=size: count / ours.put_many("B", count, size, MANY)["seconds"],  # type: ignore[misc]
            lambda count=count, size=size: count / java.put_batch("B", count, size, BATCH)["seconds"])  # type: ignore[misc]  # fmt: skip
        yield from bench.row(f"put_many of 1,000 bodies against a batch of 32, {size} B, until dispatched", target,
            lambda count=count, size=size: count / ours.put_bodies("B", count, size, MANY)["seconds"],  # type: ignore[misc]
            lambda count=count, size=size: count / java.put_batch("B", count, size, BATCH)["seconds"])  # type: ignore[misc]  # fmt: skip
    yield from bench.row("append_columns against one put a call, 100 B, until dispatched", 12,
        lambda: n / ours.append_columns("C", n, 100, 10_000)["seconds"],
        lambda: n / java.put("C", n, 100)["seconds"],
        bound=stored(bench.folder, n, 100))  # fmt: skip
    bench.done(ours, java)


def pool_rows(bench: Bench) -> Iterator[Row]:
    """Yield the rows with transientStorePoolEnable on both sides."""
    ours, java = bench.pair("pool")
    n, k = bench.count(600_000), bench.count(300_000)
    yield from bench.row("put through the pool, 1 thread, 1 KiB, until dispatched", 3,
        lambda: k / ours.put("P", k, 1024)["seconds"], lambda: k / java.put("P", k, 1024)["seconds"],
        bound=built_and_committed(bench.folder, k, 1024))  # fmt: skip
    yield from bench.row("put through the pool, 1 thread, 100 B, until dispatched", None,
        lambda: n / ours.put("P", n, 100)["seconds"], lambda: n / java.put("P", n, 100)["seconds"])  # fmt: skip
    bench.done(ours, java)


def sync_rows(bench: Bench) -> Iterator[Row]:
    """Yield the rows of synchronous flush with 1 KiB."""
    ours, java = bench.pair("sync")
    one, many = max(400, round(4000 * bench.scale)), bench.count(32_000)
    yield from bench.row("synchronous flush, 1 thread, 1 KiB", 1,
        lambda: one / ours.put("S", one, 1024)["put_seconds"],
        lambda: one / java.put("S", one, 1024)["put_seconds"])  # fmt: skip
    yield from bench.row("synchronous flush, 32 threads, 1 KiB", 1.5,
        lambda: many / ours.put("S", many, 1024, 32)["put_seconds"],
        lambda: many / java.put("S", many, 1024, 32)["put_seconds"],
        bound=handed_over(bench.folder, many, 1024, 32))  # fmt: skip
    yield from bench.row("synchronous flush, put_many of 1,000 against a batch of 32, 1 KiB", 10,
        lambda: 4 * many / ours.put_many("S", 4 * many, 1024, MANY)["put_seconds"],
        lambda: many / java.put_batch("S", many, 1024, BATCH)["put_seconds"],
        bound=built_and_synced(bench.folder, 4 * many, 1024))  # fmt: skip
    bench.done(ours, java)


def read_rows(bench: Bench) -> Iterator[Row]:
    """Yield the rows of reads from the page cache, with one topic of four queues."""
    ours, java = bench.pair("async")
    for size, messages in ((1024, 300_000), (100, 600_000)):
        count, topic = bench.count(messages), f"R{size}"
        begin = ours.store.log_end
        ours.put(topic, count, size)
        java.put(topic, count, size)
        java.scan(topic, is_decoded=True)
        ours.scan(topic, "columns")
        bounds = {"decoded": decoded_in_memory(messages_with_properties, size)}
        for kind, target in (("raw", 1), ("headed", None), ("decoded", None), ("fields", 1.4), ("columns", None)):
            yield from bench.row(f"scan, {kind}, {size} B", target,
                lambda kind=kind, topic=topic, count=count: count / ours.scan(topic, kind)["seconds"],  # type: ignore[misc]
                lambda kind=kind, topic=topic, count=count: count / java.scan(topic, is_decoded=kind in OBJECTS)["seconds"],  # type: ignore[misc]
                bound=bounds.get(kind))  # fmt: skip
        checking = checked_records(ours, begin)
        row = Row(f"scan, columns, {size} B", "C loop that checks", "msg/s", 0.7)
        if bench.expected(row.name):
            yield take_turns(row, lambda topic=topic, count=count: count / ours.scan(topic, "columns")["seconds"],  # type: ignore[misc]
                checking.rate, bench.rounds, plain_rounds=bench.rounds)  # fmt: skip
        if size == 100:
            break
        lookups = bench.count(200_000)  # a tenth of a second, since touching memory emptied all caches
        for what in ("message_at", "query_hit", "query_miss", "offset_by_time"):
            java.probe(topic, what, lookups, count)
            probe = {"topic": topic, "what": what, "count": lookups, "messages": count}
            yield from bench.row(what, 1,
                lambda probe=probe: probe["count"] / ours.probe(**probe)["seconds"],  # type: ignore[misc]
                lambda probe=probe: probe["count"] / java.probe(**probe)["seconds"], unit="calls/s",  # type: ignore[misc]
                bound=missed_in_a_dictionary(lookups, count) if what == "query_miss" else None)  # fmt: skip
    bench.done(ours, java)


def open_rows(bench: Bench) -> Iterator[Row]:
    """Open a store that RocketMQ filled on both sides: after a clean stop, after an abort, and without queues and index.

    The files are in the page cache, read just before.
    """
    folder = bench.folder / "open"
    count = bench.count(1_000_000)
    java = bench.jvm.open(folder)
    java.put("T", count, 1024)
    java.close()

    def clean() -> None:
        """Leave the folder as the last clean stop left it."""

    def abort() -> None:
        (folder / "abort").touch()
        (folder / "brokerstore" / "clean.json").unlink(missing_ok=True)

    def bare() -> None:
        for name in ("consumequeue", "index"):
            shutil.rmtree(folder / name)
        (folder / "brokerstore" / "clean.json").unlink(missing_ok=True)

    def theirs(prepare: Callable[[], None]) -> float:
        prepare()
        read_data(folder)
        store = bench.jvm.open(folder)
        store.close()
        return 1e3 * store.seconds

    def own(prepare: Callable[[], None]) -> float:
        prepare()
        read_data(folder)
        store = OwnStore(folder)
        store.close()
        return 1e3 * store.seconds

    for prepare, name, target in (
        (clean, "clean open", 3),
        (abort, "open after an abort", 5),
        (bare, "rebuild of queues and index", 8),
    ):
        yield from bench.row(f"{name}, {count:,} messages of 1 KiB", target,
            lambda prepare=prepare: own(prepare), lambda prepare=prepare: theirs(prepare), unit="ms")  # type: ignore[misc]  # fmt: skip
    bench.done()


GROUPS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "put": put_rows, "batch": batch_rows, "pool": pool_rows, "sync": sync_rows, "read": read_rows, "open": open_rows,
}  # fmt: skip
