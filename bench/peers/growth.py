"""The cost of a put, a get and a query at 1, 10 and 100 log files, and the engine's memory besides its maps."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from brokerstore import Message, MessageStore, StoreConfig

from .bounds import record_touched
from .folders import drop_pages
from .own_store import OwnStore
from .turns import Row

LOG_FILE = 4 << 20
BODY = 1024
PER_FILE = LOG_FILE // 1290
FILES = (1, 10, 100)
SIZES = {"mapped_file_size_commit_log": LOG_FILE, "max_hash_slot_num": 500_000, "max_index_num": 2_000_000}
TARGET = 1 / 1.2
INDEX_FILES = (1, 100)
ITEMS = 40_000
INDEX_TARGET = 1 / 1.5
STATES = {"in the processor's cache": (100, 1000), "warm": (3000, 1), "cold": (40, 1)}  # keys, and how often each is asked for


def rows(folder: Path, rounds: int, scale: float, is_selected: Callable[[str], bool]) -> Iterator[Row]:
    """Yield rows of ten and a hundred files against a single one: "ours" is the larger store, "theirs" the single file."""
    if not is_selected("growth"):
        return
    stores = {count: _filled(folder / str(count), count) for count in FILES}
    calls = max(200, int(5000 * scale))
    for what in (_puts, _gets, _queries):
        found: dict[int, list[float]] = {count: [] for count in FILES}
        at_best: dict[int, list[float]] = {count: [] for count in FILES}
        for number in range(rounds + 1):
            for count in FILES if number % 2 else reversed(FILES):
                rate = what(stores[count], count * PER_FILE, calls)
                if number:  # the first round only warms up
                    found[count].append(rate)
            if number and what is _queries:
                for count in FILES[1:]:
                    at_best[count].append(record_touched(stores[count], stores[1], found[1], calls).rate())
        for count in FILES[1:]:
            row = Row(
                f"growth: {what.__name__[1:]} at {count} log files", "1 log file", "calls/s", TARGET, found[count], found[1]
            )
            if at_best[count]:
                row.bound, row.bound_rates = record_touched(stores[count], stores[1], found[1], calls).name, at_best[count]
            yield row
    for store in stores.values():
        store.close()
    for left in folder.iterdir():
        shutil.rmtree(left)


def _filled(folder: Path, files: int) -> OwnStore:
    store = OwnStore(folder, **SIZES)
    store.put("T", files * PER_FILE, BODY)
    return store


def _puts(store: OwnStore, _messages: int, calls: int) -> float:
    return calls / store.put("P", calls // 20, BODY)["put_seconds"] / 20


def _gets(store: OwnStore, messages: int, calls: int) -> float:
    chosen, get = random.Random(5), store.store.get
    positions = [chosen.randrange(messages) for _ in range(calls)]
    began = time.perf_counter()
    for position in positions:
        get("T", position & 3, position >> 2, 1)
    return calls / (time.perf_counter() - began)


def _queries(store: OwnStore, messages: int, calls: int) -> float:
    chosen, query = random.Random(6), store.store.query
    keys = [f"key-0-{chosen.randrange(messages)}" for _ in range(calls)]
    began = time.perf_counter()
    for key in keys:
        query("T", key)
    return calls / (time.perf_counter() - began)


def index_rows(folder: Path, rounds: int, is_selected: Callable[[str], bool]) -> Iterator[Row]:
    """Yield rows of key queries over a hundred full index files against one, found and not found.

    The filters of the full files are built before.  With a hundred keys, all that both stores read stays in the processor's
    cache; with three thousand, only what the store of one file reads does.  Cold means that no page of the store is in the
    page cache.
    """
    if not is_selected("index files"):
        return
    for count in INDEX_FILES:
        with _open_indexed(folder / str(count)) as store:
            for start in range(0, count * (ITEMS - 1) + ITEMS // 2, 1000):
                store.put_many([Message("T", b"x" * 100, keys=f"key-{number}") for number in range(start, start + 1000)])
    for state in STATES:
        for kind in ("found", "not found"):
            found: dict[int, list[float]] = {count: [] for count in INDEX_FILES}
            for number in range(rounds + 1):
                for count in INDEX_FILES if number % 2 else reversed(INDEX_FILES):
                    rate = _indexed_queries(folder / str(count), count * (ITEMS - 1), kind == "found", state)
                    if number:  # the first round only warms up
                        found[count].append(rate)
            name = f"growth: queries of keys {kind}, {state}, at {INDEX_FILES[1]} index files"
            yield Row(name, "1 index file", "calls/s", INDEX_TARGET, found[INDEX_FILES[1]], found[INDEX_FILES[0]])
    for left in folder.iterdir():
        shutil.rmtree(left)


def _open_indexed(folder: Path) -> MessageStore:
    sizes = {"mapped_file_size_commit_log": 64 << 20, "max_hash_slot_num": ITEMS // 4, "max_index_num": ITEMS}
    return MessageStore.open(folder, "a", StoreConfig(**sizes))


def _indexed_queries(folder: Path, messages: int, is_found: bool, state: str) -> float:
    """Open the store with all of its filters, and return the rate of queries."""
    with _open_indexed(folder) as store:  # builds what is missing
        _build_filters(store)
    if state == "cold":
        drop_pages(folder)
    with _open_indexed(folder) as store:
        _build_filters(store)
        chosen, query = random.Random(6), store.query
        count, times = STATES[state]
        keys = [f"{'key' if is_found else 'no-key'}-{chosen.randrange(messages)}" for _ in range(count)]
        for key in [] if state == "cold" else keys:
            query("T", key)
        began = time.perf_counter()
        for key in keys * times:
            query("T", key)
        return count * times / (time.perf_counter() - began)


def _build_filters(store: MessageStore) -> None:
    """Do the housekeeper's steps without its pauses."""
    index, filters = store.engine.index, store.engine.key_filters
    while True:
        with store.engine.housekeeper.guard:
            filters.step()
        if filters.is_idle and all(index.has_filter(file) for file in index.files[:-1]):
            break


def anonymous_mib() -> float:
    """Return the anonymous memory of this process."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) / 1024


def memory_rows(folder: Path, scale: float, is_selected: Callable[[str], bool]) -> Iterator[Row]:
    """Write 10 GB of log times `scale`, and yield the growth of the process's memory."""
    if not is_selected("memory"):
        return
    before = anonymous_mib()
    store = OwnStore(folder / "memory")
    count = int(10e9 * scale / 1300 / 1000) * 1000
    for start in range(0, count, 100_000):
        store.put_many("M", min(100_000, count - start), 1100, 1000)
    held = max(1.0, anonymous_mib() - before)  # the process may have freed some meanwhile
    size_gb = store.store.engine.log.written_offset / 1e9
    store.close()
    shutil.rmtree(folder / "memory")
    yield Row(
        "memory beyond the maps", "100 MiB", "MiB", 1, [held], [100.0], note=f"{size_gb:.1f} GB of log", less_is_better=True
    )
