"""The whole engine: put, dispatcher lag, group commit, puts beside readers.  Ratios are of one run, both sides in turn.

The figures are in `extra_info` of each benchmark; with `--benchmark-disable` each runs once on a few messages.
"""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.builds import is_compiled_here, load

BODY = b"x" * 100
THREADS = 16
READERS = 4
ROUNDS = 5


@pytest.fixture
def engine() -> Any:
    """Load the compiled build; the plain one has no performance targets."""
    if not is_compiled_here():
        pytest.skip("the kernels are not compiled here")
    return load("compiled")


def open_store(engine: Any, folder: Path, is_sync: bool = False) -> Any:
    mode = engine.messagestore.FlushMode
    config = engine.messagestore.StoreConfig.small(flush_disk_type=mode.SYNC if is_sync else mode.ASYNC)
    return engine.messagestore.MessageStore.open(folder, config=config)


def in_threads(count: int, call: Any) -> float:
    """Return the seconds until all threads are done."""
    threads = [threading.Thread(target=call, args=(number,)) for number in range(count)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def put_times(store: Any, message: Any, count: int) -> list[float]:
    """Return the seconds of each put."""
    put, clock, times = store.put, time.perf_counter, []
    for _ in range(count):
        start = clock()
        put(message)
        times.append(clock() - start)
    return times


def percentile_99(times: list[float]) -> float:
    return sorted(times)[len(times) * 99 // 100]


def test_put_through_the_whole_engine(engine: Any, benchmark: Any, tmp_path: Path, is_real: bool) -> None:
    """Single puts beside dispatcher, flusher and housekeeper, against the appender alone."""
    count = 100_000 if is_real else 20
    message = engine.commitlog.Message("T", BODY, queue_id=0, tags="a", keys=["order-17"])
    with open_store(engine, tmp_path / "s") as store:
        bare, whole = [], []

        def bare_round() -> None:
            append = store.engine.log.appender.append
            start = time.perf_counter()
            for _ in range(count):
                append(message, 0)
            bare.append(time.perf_counter() - start)

        def whole_round() -> None:
            start = time.perf_counter()
            for _ in range(count):
                store.put(message)
            whole.append(time.perf_counter() - start)

        bare_round()
        bare.clear()
        benchmark.pedantic(whole_round, setup=bare_round, rounds=ROUNDS if is_real else 1)
        store.flush()
    benchmark.extra_info["puts_per_s"] = round(count / statistics.median(whole))
    benchmark.extra_info["share_of_bare_append"] = round(statistics.median(bare) / statistics.median(whole), 2)


def test_dispatcher_lag_after_a_million_puts(engine: Any, benchmark: Any, tmp_path: Path, is_real: bool) -> None:
    """The time after the last of a million puts until it can be read (target: under 100 ms)."""
    count = 1_000_000 if is_real else 50
    messages = [
        engine.commitlog.Message("T", BODY, queue_id=number % 8, tags="a", keys=[f"k{number}"]) for number in range(1000)
    ]
    with open_store(engine, tmp_path / "s") as store:
        lags, behind = [], []

        def fill() -> None:
            for number in range(count):
                store.put(messages[number % 1000])
            behind.append(store.engine.dispatcher.behind_bytes)

        def catch_up() -> None:
            start = time.perf_counter()
            store.engine.dispatcher.wait_for(store.engine.log.written_offset)
            lags.append((time.perf_counter() - start) * 1000)

        benchmark.pedantic(catch_up, setup=fill, rounds=3 if is_real else 1)
    benchmark.extra_info["lag_ms"] = [round(lag, 2) for lag in lags]
    benchmark.extra_info["behind_bytes"] = behind


def test_sixteen_threads_with_synchronous_flush_against_one(engine: Any, benchmark: Any, tmp_path: Path, is_real: bool) -> None:
    """Group commit (target: at least 3.5 times)."""
    each = 300 if is_real else 5
    message = engine.commitlog.Message("T", BODY, queue_id=0)
    with open_store(engine, tmp_path / "s", is_sync=True) as store:
        one, many = [], []

        def put_each(_: int) -> None:
            for _ in range(each):
                store.put(message)

        def one_round() -> None:
            one.append(each / in_threads(1, put_each))

        def many_round() -> None:
            many.append(THREADS * each / in_threads(THREADS, put_each))

        benchmark.pedantic(many_round, setup=one_round, rounds=ROUNDS if is_real else 1)
    benchmark.extra_info["one_thread_per_s"] = round(statistics.median(one))
    benchmark.extra_info["sixteen_threads_per_s"] = round(statistics.median(many))
    benchmark.extra_info["ratio"] = round(statistics.median(after / before for before, after in zip(one, many, strict=True)), 2)


def test_put_p99_beside_four_readers(engine: Any, benchmark: Any, tmp_path: Path, is_real: bool) -> None:
    """The slowest percent of puts beside four readers, against puts alone (target: at most 2 times)."""
    count = 50_000 if is_real else 50
    message = engine.commitlog.Message("T", BODY, queue_id=0)
    with open_store(engine, tmp_path / "s") as store:
        alone, beside = [], []
        is_reading, is_over = threading.Event(), threading.Event()

        def read(_: int) -> None:
            offset = 0
            while not is_over.is_set():
                if not is_reading.is_set():
                    is_reading.wait(0.05)
                    offset = store.max_offset("T", 0)
                    continue
                page = store.get("T", 0, offset)
                offset = page.next_offset
                if not page.messages:
                    time.sleep(0.001)

        readers = [threading.Thread(target=read, args=(number,)) for number in range(READERS)]
        for reader in readers:
            reader.start()

        def alone_round() -> None:
            is_reading.clear()
            alone.append(percentile_99(put_times(store, message, count)))
            is_reading.set()

        def beside_round() -> None:
            beside.append(percentile_99(put_times(store, message, count)))

        benchmark.pedantic(beside_round, setup=alone_round, rounds=ROUNDS if is_real else 1)
        is_over.set()
        for reader in readers:
            reader.join()
    benchmark.extra_info["p99_us_alone"] = round(statistics.median(alone) * 1e6, 2)
    benchmark.extra_info["p99_us_with_readers"] = round(statistics.median(beside) * 1e6, 2)
    benchmark.extra_info["ratio"] = round(statistics.median(beside) / statistics.median(alone), 2)
