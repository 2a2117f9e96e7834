"""Compare every row that a real Spark reads from each kind of folder with `brokerstore dump --json`.

    python -m bench.spark_equals_dump [--bytes 1g] [--minutes 80] [--source NAME] [--folder /tmp/bench-spark]

The folders are those of real brokers in `tests/data`, whole and with a condition that is pushed down, with splits from 64 KiB
to 1 GiB; then two stores of one message size: 64 MiB with small splits, and `--bytes` with large ones.  With the jar each
comparison is made with the Python source and with the JVM source, unless `--source` names one.  Both sides become the same
JSON text with sorted keys.  Spark's workers return a digest of each row, so that a gigabyte need not go through the driver.
Ends with 1 if a comparison differs, or if not all were made within `--minutes`.  Part of `make spark-night`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import itertools
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.spark_against_arrow import make_store, session
from sparkstore.jar import JVM_FORMAT, PYTHON_FORMAT, jar_path
from sparkstore.options import size_of
from sparkstore.schema import RABBIT_COLUMNS
from sparkstore.source.reading import FORMAT
from tests.archives import unpack

CHECKSUM = "__CRC32#"  # the source removes it from `properties`
DATA = Path(__file__).resolve().parents[1] / "tests" / "data"
SPLITS = ("64k", "1g")  # log files of real folders here have 64 KiB, so sizes in between are the same plan
SMALL_BYTES, SMALL_SPLITS = "64m", ("64k", "1000003", "16m")  # a task takes longer to start than to read 64 KiB
LARGE_SPLITS = ("77777777", "256m", "1g")
NO_FOLDERS = {  # parts, or several
    "rabbitmq4-restart", "rabbitmq-queue-machine", "rabbitmq38-snapshot", "rabbitmq43-cluster", "rabbitmq38-upgraded",
    "rabbitmq-upgrades",
}  # fmt: skip
RABBIT_NULLS: dict[str, Any] = dict.fromkeys(set(RABBIT_COLUMNS) - {"body"})  # the dump leaves out keys of other types of queue
SOURCES = (FORMAT,) if jar_path() is None else (PYTHON_FORMAT, JVM_FORMAT)
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
Row = dict[str, Any]


class Condition(NamedTuple):
    """A condition for Spark, and the same for a line of the dump."""

    sql: str
    holds: Callable[[Row], bool]


class Folder:
    """A folder and the digests of the lines of its dump."""

    def __init__(self, path: Path) -> None:
        """Run the tool; a folder whose dump is not clean is read with `badRecords=skip`."""
        command = [sys.executable, "-m", "brokerstore", "dump", "--json", str(path)]
        self.path, self.lines, self.condition = path, Counter[bytes](), Condition("", lambda _: True)
        self.selected = Counter[bytes]()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tool:
            assert tool.stdout is not None and tool.stderr is not None
            for line in tool.stdout:
                row = json.loads(line)
                if not self.lines:
                    self.is_rabbit, self.condition = "seq_id" in row, some_condition(row)
                is_selected = self.condition.holds(row)
                made = digest(RABBIT_NULLS | row if self.is_rabbit else row)
                self.lines[made] += 1
                self.selected[made] += is_selected
            problem = tool.stderr.read().decode()
        self.is_damaged = tool.returncode == 1
        assert tool.returncode in (0, 1) and self.lines, f"{path}: the tool ended with {tool.returncode}: {problem}"
        self.selected += Counter()  # without zeros

    def compare(self, spark: Any, source: str, split_bytes: str, is_filtered: bool) -> str | None:
        """Return how the rows of a source differ from the dump, or None."""
        reader = spark.read.format(source).option("badRecords", "skip" if self.is_damaged else "fail")
        if not self.is_rabbit:
            reader = reader.option("splitBytes", split_bytes).option("pushFilters", str(is_filtered).lower())
        spark.conf.set(PUSHDOWN, str(is_filtered).lower())
        frame = reader.load(str(self.path))
        frame = frame.where(self.condition.sql) if is_filtered else frame
        found = Counter(bytes(row["digest"]) for row in frame.mapInArrow(digests_of_batches, "digest binary").collect())
        expected = self.selected if is_filtered else self.lines
        if found == expected:
            return None
        missing, others = (expected - found).total(), (found - expected).total()
        what = f"{source}, splitBytes {split_bytes}" + (f" where {self.condition.sql}" if is_filtered else "")
        return f"{self.path}, {what}: {missing} messages of the dump missing, {others} other rows"


def some_condition(row: Row) -> Condition:
    """Return a condition for which the first message of a dump is an example."""
    if "seq_id" in row:
        queue, size = row["queue"], row["size"]
        return Condition(f"queue = '{queue}' AND size <= {size}", lambda one: one["queue"] == queue and one["size"] <= size)
    topic, stored = row["topic"], row["store_timestamp_ms"]
    return Condition(
        f"topic = '{topic}' AND queue_offset >= 3 OR store_timestamp_ms <= {stored}",
        lambda one: (one["topic"] == topic and one["queue_offset"] >= 3) or one["store_timestamp_ms"] <= stored,
    )


def digest(row: Row) -> bytes:
    """Return the digest of a message in the tool's JSON."""
    row.pop("type", None)
    if "seq_id" not in row:
        row["properties"].pop(CHECKSUM, None)
    return hashlib.blake2b(json.dumps(row, sort_keys=True).encode(), digest_size=16).digest()


def digests_of_batches(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the digest of each row, in a worker."""
    import pyarrow as pa

    for batch in batches:
        rows = batch.to_pylist()
        for row in rows:
            row["body_base64"] = base64.b64encode(row.pop("body")).decode()
            if "seq_id" in row:
                row["properties"] = json.loads(row["properties"])
            else:
                row["properties"] = dict(row["properties"])
                del row["born_time"], row["store_time"]
        yield pa.RecordBatch.from_arrays([pa.array([digest(row) for row in rows], pa.binary())], names=["digest"])


def names() -> list[str]:
    """Return the names of the folders of real brokers."""
    return sorted({path.name.partition(".")[0] for path in DATA.glob("*.tar.xz")} - NO_FOLDERS)


def real_folder(name: str, above: Path) -> Path:
    """Unpack a folder of a real broker."""
    unpack(DATA / f"{name}.tar.xz", above / name)
    return next(path for part in (f"{name}/store", "node", "vhost") if (path := above / name / part).exists())


def every(folder: Path, size_bytes: int) -> Iterator[tuple[Folder, tuple[str, ...]]]:
    """Yield each folder with its splits."""
    shutil.rmtree(folder / "real", ignore_errors=True)
    for name in names():
        made = Folder(real_folder(name, folder / "real"))
        yield made, ("one task a queue",) if made.is_rabbit else SPLITS
    yield Folder(make_store(folder, min(size_bytes, size_of(SMALL_BYTES)))), SMALL_SPLITS
    yield Folder(make_store(folder, size_bytes)), LARGE_SPLITS


def main() -> int:
    """Compare until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", default="1g", help="size of the largest store")
    parser.add_argument("--minutes", type=float, default=80, help="after that no comparison begins")
    parser.add_argument("--source", choices=SOURCES, action="append", help="a source to compare; default: all")
    parser.add_argument("--folder", default="/tmp/bench-spark")
    arguments = parser.parse_args()
    folder, began, compared, rows = Path(arguments.folder), time.monotonic(), Counter[str](), 0
    folder.mkdir(parents=True, exist_ok=True)
    spark, sources = session(folder, jar_path()), arguments.source or SOURCES
    for one, splits in every(folder, size_of(arguments.bytes)):
        for source, split_bytes, is_filtered in itertools.product(sources, splits, (False, True)):
            if time.monotonic() - began > arguments.minutes * 60:
                print(f"the time is over before {one.path} with splits of {split_bytes}; equal were {dict(compared)}")
                return 1
            problem = one.compare(spark, source, split_bytes, is_filtered)
            if problem:
                print(problem)
                return 1
            compared[source] += 1
            rows += (one.selected if is_filtered else one.lines).total()
        print(f"{one.path}: {one.lines.total()} rows; where {one.condition.sql}: {one.selected.total()}", file=sys.stderr)
    spark.stop()
    print(f"comparisons {dict(compared)} of {rows} rows: equal, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
