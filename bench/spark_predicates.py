"""Compare random conditions in Spark with DuckDB over the exported Parquet, and rows of many split sizes with the dump.

    python -m bench.spark_predicates [--count 1000] [--minutes 30] [--seed 26] [--source NAME]
        [--folder /tmp/bench-spark-predicates]

Each condition is a tree of comparisons of numbers, times, texts and arrays.  Spark reads the store anew for each, with the
Python source (every other time with `pushFilters`) and, with the jar, with the JVM source; DuckDB reads the files that `export`
wrote.  Both return the number of rows and the sum of their physical offsets.  A job consists mostly of waiting for a planning
process, so two threads run jobs.  Ends with 1 if a condition differs, which it prints, or if not all were compared within
`--minutes`.  Part of `make spark-night`.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.spark_against_arrow import session
from bench.spark_equals_dump import SOURCES
from commitlog import Message
from messagestore import MessageStore, StoreConfig
from sparkstore.jar import jar_path

T0 = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
SMALL = StoreConfig.small().but(mapped_file_size_commit_log=1 << 20, max_hash_slot_num=100, max_index_num=4000)
COLUMNS = ("physical_offset", "topic", "queue_id", "queue_offset", "size", "tags", "keys", "store_timestamp_ms", "store_time")
SPLITS = ("64k", "100001", "1m", "64m", "1g", "0")
FEW_TASKS = ("500001", "1m", "1g", "0")  # a task takes longer than what it reads here
Sql = tuple[str, str]  # of Spark, of DuckDB


def make(path: Path, count: int) -> None:
    """Make a store of several files, topics, tags and keys over some hours."""
    chance, now = random.Random(count), [0]
    with MessageStore.open(path, config=SMALL, clock=lambda: now[0]) as store:
        for number in range(count):
            now[0] = int((T0 + timedelta(seconds=number * 7)).timestamp() * 1000) + number % 1000
            tags = chance.choice((None, "paid", "open", "sent"))
            keys = [f"k{number % 11}", f"only-{number}"][: chance.randrange(3)]
            body = chance.randbytes(chance.choice((0, 17, 300, 2000)))
            store.put(Message(f"topic-{number % 5}", body, tags=tags, keys=keys))


def condition(chance: random.Random, depth: int = 2) -> Sql:
    """Return a random condition in both dialects."""
    if depth and chance.random() < 0.6:
        left, right = condition(chance, depth - 1), condition(chance, depth - 1)
        word = chance.choice(("AND", "AND", "OR"))
        made: Sql = (f"({left[0]} {word} {right[0]})", f"({left[1]} {word} {right[1]})")
        return (f"NOT {made[0]}", f"NOT {made[1]}") if chance.random() < 0.15 else made
    return chance.choice(KINDS)(chance)


def _number(chance: random.Random) -> Sql:
    column, most = chance.choice((("queue_id", 8), ("queue_offset", 200), ("size", 2300), ("physical_offset", 2_000_000)))
    text = f"{column} {chance.choice(('=', '<', '<=', '>', '>=', '<>'))} {chance.randrange(most)}"
    return text, text


def _several(chance: random.Random) -> Sql:
    text = f"queue_id IN ({', '.join(str(chance.randrange(9)) for _ in range(3))})"
    return text, text


def _text(chance: random.Random) -> Sql:
    text = chance.choice((
        f"topic = 'topic-{chance.randrange(6)}'", "topic IN ('topic-1', 'topic-4')", "topic LIKE 'topic-%'", "tags IS NULL",
        "tags = 'paid'", "tags <> 'open'", "topic > 'topic-2'", "tags IS NOT NULL",
    ))  # fmt: skip
    return text, text


def _key(chance: random.Random) -> Sql:
    text = f"array_contains(keys, 'k{chance.randrange(12)}')"
    return text, text


def _time(chance: random.Random) -> Sql:
    at = T0 + timedelta(seconds=chance.randrange(40_000), microseconds=chance.choice((0, 1, 999, 5000)))
    sign, text = chance.choice(("<", "<=", ">", ">=")), at.strftime("%Y-%m-%d %H:%M:%S.%f")
    return f"store_time {sign} TIMESTAMP '{text}Z'", f"store_time {sign} TIMESTAMPTZ '{text}+00'"


KINDS: tuple[Callable[[random.Random], Sql], ...] = (_number, _number, _several, _text, _key, _time)
THREADS = 2
FACTS = "count(*) AS found, coalesce(sum(physical_offset), 0) AS places"


class Conditions:
    """Random conditions on a store and the Parquet files of its export, and what was found so far."""

    def __init__(self, spark: Any, path: Path, out: Path, source: str, ends: float = float("inf")) -> None:
        """Compare what a source reads until the monotonic time `ends`."""
        import duckdb

        self.spark, self.path, self.source, self.ends = spark, path, source, ends
        self.seconds: list[float] = []
        self.problems: list[str] = []
        self._files, self._lock = duckdb.connect(), threading.Lock()
        self._files.execute(f"CREATE VIEW rows AS SELECT * FROM read_parquet('{out}/**/*.parquet', hive_partitioning = true)")
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")

    def compare(self, count: int, seed: int) -> None:
        """Compare `count` conditions, two at a time, until one differs or the time is over."""
        chance = random.Random(seed)
        made = [(condition(chance), chance.choice(FEW_TASKS), number % 2 == 0) for number in range(count)]
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(self._compare, *zip(*made, strict=True)))

    def _compare(self, texts: Sql, split_bytes: str, is_pushed: bool) -> None:
        began = time.monotonic()
        if self.problems or began > self.ends:
            return
        reader = self.spark.read.format(self.source).option("columns", ",".join(COLUMNS))
        reader = reader.option("pushFilters", str(is_pushed).lower()).option("splitBytes", split_bytes)
        row = reader.load(str(self.path)).where(texts[0]).selectExpr(*FACTS.split(", ", 1)).collect()[0]
        with self._lock:
            expected = self._files.execute(f"SELECT {FACTS} FROM rows WHERE {texts[1]}").fetchone()
        if expected is None or tuple(row) != tuple(map(int, expected)):
            self.problems.append(
                f"{self.source}, {texts[0]}, splitBytes {split_bytes}: {tuple(row)} in Spark, {expected} in DuckDB"
            )
        self.seconds.append(time.monotonic() - began)


def compare_splits(spark: Any, path: Path, count: int, sources: Sequence[str]) -> str | None:
    """Return the first source and split size that have other rows, or None."""
    expected = None
    for source, size in itertools.product(sources, SPLITS):
        frame = spark.read.format(source).option("splitBytes", size).load(str(path))
        rows = frame.selectExpr("physical_offset", "xxhash64(to_json(struct(*))) AS digest")
        found = sorted(map(tuple, rows.collect()))
        if len(found) != count or found != (expected or found):
            return f"{source}, splitBytes {size}: {len(found)} rows, or other ones"
        expected = found
    return None


def main() -> int:
    """Make a store, export it, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="number of conditions")
    parser.add_argument("--minutes", type=float, default=30, help="after that no condition begins")
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=26)
    parser.add_argument("--source", choices=SOURCES, action="append", help="a source to compare; default: all")
    parser.add_argument("--folder", default="/tmp/bench-spark-predicates")
    arguments = parser.parse_args()
    folder, sources = Path(arguments.folder), arguments.source or SOURCES
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make(folder / "store", arguments.messages)
    spark = session(folder, jar_path())
    from sparkstore.jobs import export

    export(spark, str(folder / "store"), str(folder / "out"))
    began = time.monotonic()
    problem, done = compare_splits(spark, folder / "store", arguments.messages, sources), 0
    for source in sources:
        conditions = Conditions(spark, folder / "store", folder / "out", source, began + arguments.minutes * 60)
        if problem is None:
            conditions.compare(arguments.count, arguments.seed)
            problem = next(iter(conditions.problems), None)
        done, seconds = done + len(conditions.seconds), conditions.seconds or [0.0]
        print(f"{source}: a condition took {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f} s)")
    spark.stop()
    count = arguments.count * len(sources)
    print(problem or f"{done} of {count} conditions and {len(SPLITS)} split sizes of {', '.join(sources)}: the same rows")
    return 1 if problem or done < count else 0


if __name__ == "__main__":
    sys.exit(main())
