"""Spark on a store of 1 GiB against plain pyarrow and NumPy on the same machine, in turn.

    python -m bench.spark_against_arrow [--bytes 1g] [--rounds 3] [--minutes 30] [--only all,meta] [--folder ...] [--out ...]

Each figure is a ratio of medians, with the minimum and maximum ratio of the rounds.  *Plain* reads the same columns from the
same kernel with two processes, each with half of the file: what two cores can do.  Targets are minimums or maximums.  Spark
runs with the settings that docs/spark.md recommends.  *Floor* is a source that returns one batch again and again, so its
ratio is what Spark leaves to a source that takes no time at all.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from messagestore import MessageStore, StoreConfig
from sparkstore.options import size_of

BODY_SIZE = 830
TOPICS, QUEUES = 16, 8
HOSTS = "127.0.0.1:10911"
META = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "store_timestamp_ms")
DAY_MS = 86_400_000
FLOOR = "the best that any Python source could have"
# Arrow checks bounds and nulls of each value again; the parallel collector costs least with few cores.
JAVA_OPTIONS = "-XX:+UseParallelGC -Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"


def make_store(folder: Path, size_bytes: int) -> Path:
    """Make records of about a kilobyte, with tags, two index keys (one of them unique) and a property."""
    import numpy as np
    import pyarrow as pa

    path = folder / f"store-{size_bytes}"
    if (path / "made").exists():
        return path
    shutil.rmtree(path, ignore_errors=True)
    chance = np.random.default_rng(8)
    with MessageStore.open(path, config=StoreConfig(default_topic_queue_nums=QUEUES)) as store:
        number, rows = 0, 512
        while store._engine.log.written_offset < size_bytes - 2_000_000:
            topic, queue = f"topic-{number % TOPICS}", number // TOPICS % QUEUES
            bodies = pa.array([chance.bytes(BODY_SIZE) for _ in range(rows)], pa.binary())
            keys = pa.array([f"order-{(number * rows + row) % 100_000} user-{row % 97}" for row in range(rows)])
            tags = pa.array(["paid" if row % 3 else "open" for row in range(rows)])
            store.append_columns(topic, queue, bodies, keys=keys, tags=tags)
            number += 1
    (path / "made").touch()
    return path


def halves(path: Path, count: int = 2) -> list[Any]:
    """Return the splits of the log in `count` parts."""
    from sparkstore.options import parse_read_options
    from sparkstore.source.splits import plan_log
    from sparkstore.source.stores import find_stores

    options = parse_read_options({"path": str(path)})
    splits = plan_log(find_stores(options.paths)[0], options)
    return [splits[part::count] for part in range(count)]


def plain_read(splits: list[Any], columns: tuple[str, ...]) -> int:
    """Read batches with the library's own reader, without Spark."""
    from commitlog import open_log, read_columns

    rows = 0
    for split in splits:
        log = open_log(os.path.dirname(split.file))
        at = log.find_record(split.begin)
        for batch in read_columns(log, at, split.end, columns=columns, checks=7 if "body" in columns else 4):
            rows += batch.num_rows
        log.close()
    return rows


def plain_export(splits: list[Any], out: str) -> int:
    """Write Parquet by topic and day with pyarrow."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    from commitlog import open_log, read_columns

    def batches(split: Any) -> Any:
        log = open_log(os.path.dirname(split.file))
        for batch in read_columns(log, log.find_record(split.begin), split.end):
            day = pc.divide(batch.column("store_timestamp_ms"), DAY_MS).cast(pa.int32()).cast(pa.date32())
            arrays = [column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in batch.columns]
            yield pa.RecordBatch.from_arrays([*arrays, day], names=[*batch.schema.names, "day"])

    for split in splits:
        made = batches(split)
        first = next(made)
        ds.write_dataset(
            [first, *made], out, format="parquet", partitioning=["topic", "day"], partitioning_flavor="hive",
            basename_template=f"part-{split.begin}-{{i}}.parquet", existing_data_behavior="overwrite_or_ignore",
            file_options=ds.ParquetFileFormat().make_write_options(compression="zstd"),
        )  # fmt: skip
    return len(splits)


def numpy_reindex(path: str, out: str) -> int:
    """Build queues and index with NumPy in one process; only lengths are walked in Python."""
    import numpy as np

    os.makedirs(out, exist_ok=True)
    units: dict[tuple[bytes, int], list[bytes]] = {}
    hashes, positions = [], []
    for name in sorted(os.listdir(os.path.join(path, "commitlog"))):
        base = int(name)
        data = np.memmap(os.path.join(path, "commitlog", name), np.uint8, "r")
        view, at, starts = memoryview(data), 0, []
        while at + 8 <= len(view):
            size = int.from_bytes(view[at : at + 4], "big")
            if size == 0 or view[at + 4 : at + 8] == b"\xcb\xd4\x31\x94":
                break
            starts.append(at)
            at += size
        if not starts:
            continue
        rows = np.array(starts)

        def field(offset: int, width: int, rows: Any = rows, data: Any = data) -> Any:
            return data[rows[:, None] + np.arange(offset, offset + width)].view(f">i{width}")[:, 0].astype(np.int64)

        sizes, queue_ids, bodies = field(0, 4), field(16, 4), field(84, 4)
        topic_at = rows + 88 + bodies
        names, properties = _topics(view, topic_at), _properties(view, topic_at)
        codes, tags = {}, np.empty(len(rows), np.int64)
        for row, text in enumerate(properties):
            pairs = dict(pair.split(b"\x01", 1) for pair in text.split(b"\x02") if pair)
            tag = pairs.get(b"TAGS", b"")
            if tag not in codes:
                codes[tag] = java_hash(tag)
            tags[row] = codes[tag]
            for key in [pairs.get(b"UNIQ_KEY"), *pairs.get(b"KEYS", b"").split()]:
                if key:
                    hashes.append(names[row] + b"#" + key)
                    positions.append(base + starts[row])
        packed = np.empty(len(rows), np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")]))
        packed["offset"], packed["size"], packed["code"] = base + rows, sizes, tags
        lanes: dict[tuple[bytes, int], list[int]] = {}
        for row, lane in enumerate(zip(names, queue_ids.tolist(), strict=True)):
            lanes.setdefault(lane, []).append(row)
        for lane, chosen in lanes.items():
            units.setdefault(lane, []).append(packed[chosen].tobytes())
    for (topic, queue_id), parts in units.items():
        with open(os.path.join(out, f"{topic.decode()}-{queue_id}"), "wb") as file:
            file.write(b"".join(parts))
    codes = np.abs(_java_hashes(hashes))
    slot = codes % 5_000_000
    order = np.argsort(slot, kind="stable")
    np.savez(os.path.join(out, "index.npz"), codes=codes, positions=np.array(positions), order=order)
    return len(positions)


def _topics(view: memoryview, positions: Any) -> list[bytes]:
    return [bytes(view[at + 1 : at + 1 + view[at]]) for at in positions.tolist()]


def _properties(view: memoryview, positions: Any) -> list[bytes]:
    made = []
    for at in positions.tolist():
        start = at + 1 + view[at]
        made.append(bytes(view[start + 2 : start + 2 + int.from_bytes(view[start : start + 2], "big")]))
    return made


def java_hash(text: bytes) -> int:
    code = 0
    for letter in text:
        code = (31 * code + letter) & 0xFFFFFFFF
    return code


def _java_hashes(texts: list[bytes]) -> Any:
    """Return the hashes of all texts, computed one letter position at a time."""
    import numpy as np

    most = max(map(len, texts), default=0)
    letters = np.frombuffer(b"".join(text.ljust(most, b"\0") for text in texts), np.uint8).reshape(len(texts), most)
    lengths, codes = np.array([len(text) for text in texts]), np.zeros(len(texts), np.int32)
    with np.errstate(over="ignore"):
        for step in range(most):
            codes = np.where(step < lengths, codes * np.int32(31) + letters[:, step].astype(np.int32), codes)
    return codes


def worker_memory_bytes() -> int:
    """Return the highest peak memory of this session's Python workers, as the kernel counts it."""
    parents, sizes = {}, {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                status = (entry / "status").read_text()
                parents[int(entry.name)] = int(status.partition("PPid:")[2].split()[0])
                if b"-m\0pyspark." in (entry / "cmdline").read_bytes():
                    sizes[int(entry.name)] = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        except (OSError, IndexError):
            continue
    return max((size for pid, size in sizes.items() if _is_below(pid, parents)), default=0)


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()


def session(folder: Path, jar: str | None = None) -> Any:
    """Start Spark; without the jar "brokerstore" is the Python source."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "3g", "spark.local.dir": str(folder / "local"), "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS, "spark.jars": jar or "",
    }  # fmt: skip
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(path: Path, folder: Path, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of each round by name; warm-up rounds, in which the JVM compiles, do not count."""
    from bench.spark_floor import read_floor
    from commitlog.fields import COLUMNS
    from sparkstore.jobs import audit, export, reindex
    from sparkstore.source.reading import read_messages, read_meta

    spark, parts, out = session(folder), halves(path), Path(arguments.out or folder)
    requested = set(arguments.only.split(",")) if arguments.only else None
    spark_out, plain_out, numpy_out = (str(out / name) for name in ("export-spark", "export-plain", "numpy"))

    def noop(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    with ProcessPoolExecutor(2) as pool:
        works: dict[str, Callable[[], Any]] = {
            "plain all": lambda: list(pool.map(plain_read, parts, [COLUMNS] * 2)),
            "spark all": lambda: noop(read_messages(spark, str(path))),
            "floor all": lambda: noop(read_floor(spark, str(path), COLUMNS)),
            "plain meta": lambda: list(pool.map(plain_read, parts, [META] * 2)),
            "spark meta": lambda: noop(read_meta(spark, str(path))),
            "floor meta": lambda: noop(read_floor(spark, str(path), META)),
            "spark count": lambda: read_messages(spark, str(path), ["queue_id"]).count(),
            "plain audit": lambda: list(pool.map(plain_read, parts, [COLUMNS] * 2)),
            "spark audit": lambda: _sound(audit(spark, str(path))),
            "numpy reindex": lambda: numpy_reindex(str(path), numpy_out),
            "spark reindex": lambda: reindex(spark, str(path)),
            "plain export": lambda: list(pool.map(plain_export, parts, [plain_out] * 2)),
            "spark export": lambda: export(spark, str(path), spark_out, mode="overwrite"),
            "spark two": lambda: noop(read_messages(spark, [str(path), str(path) + "/."])),
        }
        works = {name: work for name, work in works.items() if requested is None or name.split()[1] in requested}
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for number in rounds_within(arguments.minutes, arguments.warm, arguments.rounds):
            for name, work in works.items():
                if name == "plain export":
                    shutil.rmtree(plain_out, ignore_errors=True)
                took = timed(work)
                print(f"round {number} {name}: {took:.2f} s", file=sys.stderr, flush=True)
                if number > 0:
                    seconds[name].append(took)
    seconds["worker bytes"] = [worker_memory_bytes()]
    spark.stop()
    return seconds


def rounds_within(minutes: float, warm: int, rounds: int) -> Iterator[int]:
    """Yield the numbers of rounds: those below 1 warm up, for at most half of the time; one counts in any case."""
    began = time.monotonic()
    for number in range(1 - warm, rounds + 1):
        part = (time.monotonic() - began) / (minutes * 60)
        if number > 1 and part >= 1:
            return
        if number > 0 or part < 0.5:
            yield number


def _sound(report: Any) -> None:
    assert report.is_ok, report.problems[:3]


def ratios(seconds: dict[str, list[float]]) -> dict[str, dict[str, float | str]]:
    """Return each target with its measured ratio."""
    table = {
        "source to noop, all columns, of plain": ("plain all", "spark all", "at least 0.55"),
        "source to noop, metadata, of plain": ("plain meta", "spark meta", "that of the floor"),
        "source to noop, metadata, times the floor": ("spark meta", "floor meta", "1"),
        "floor to noop, all columns, of plain": ("plain all", "floor all", FLOOR),
        "floor to noop, metadata, of plain": ("plain meta", "floor meta", FLOOR),
        "audit, times a plain scan": ("spark audit", "plain audit", "at most 1.2"),
        "reindex, of NumPy in one process": ("spark reindex", "numpy reindex", "at most 0.6"),
        "export, times plain": ("spark export", "plain export", "at most 1.8"),
        "two stores, times one": ("spark two", "spark all", "2, not more"),
    }
    made: dict[str, dict[str, float | str]] = {}
    for name, (upper, lower, target) in table.items():
        if upper not in seconds or lower not in seconds:
            continue
        each = [a / b for a, b in zip(seconds[upper], seconds[lower], strict=True)]
        middle = statistics.median(seconds[upper]) / statistics.median(seconds[lower])
        made[name] = {
            "median": round(middle, 2),
            "least": round(min(each), 2),
            "greatest": round(max(each), 2),
            "target": target,
        }
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", default="1g")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=30, help="after that no round begins")
    parser.add_argument("--warm", type=int, default=3, help="rounds before those")
    parser.add_argument("--folder", default="/tmp/bench-spark")
    parser.add_argument(
        "--only", help="words of the figures wanted, with commas: all, meta, count, audit, reindex, export, two"
    )
    parser.add_argument("--out", help="where exports go, of both sides; in memory the disk is no part of the figure")
    parser.add_argument("--json", help="a file for the figures")
    arguments = parser.parse_args()
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = make_store(folder, size_of(arguments.bytes))
    seconds = measure(path, folder, arguments)
    found = ratios(seconds)
    print(f"rounds counted: {max(map(len, seconds.values()))}")
    for name, row in found.items():
        print(f"{name:<42} {row['median']:>6} ({row['least']} to {row['greatest']})   {row['target']}")
    print(f"a Python worker had at most {seconds['worker bytes'][0] / 1e6:.0f} MB in memory   below 400 MB")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"seconds": seconds, "ratios": found}, indent=1))


if __name__ == "__main__":
    main()
