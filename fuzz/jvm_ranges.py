"""Compare damaged ranges of logs as Java's decoder and the Python source read them, without Spark.

    python -m fuzz.jvm_ranges --ranges 1000000 [--seed N] [--folder /dev/shm/jvm-ranges]

Each file of a log gets up to three changes.  The planner of the JVM source plans a read of random columns, options and
conditions.  Java's rows of a range must be those of the Python source, findings among them, up to the record where Java
stopped, and all of them if it did not; a split without a range must have no rows.  One JVM decodes all ranges, thousands
with a request; a job of Spark for each log takes many times as long.  It needs a JDK, pyspark and the jar.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from commitlog import Message
from commitlog.row_filter import IN, Condition
from fuzz.mutate import NUMBERS
from messagestore import MessageStore, StoreConfig
from sparkstore.jar import jar_path
from sparkstore.schema import MESSAGE_COLUMNS, message_schema
from sparkstore.source import jvm_side
from sparkstore.source.data_source import BrokerStoreSource

if TYPE_CHECKING:
    import pyarrow as pa

FILE_BYTES = 4096
FILES = 1000  # of a log: ranges of one request, or twice as many
AT = "physical_offset"
OPENS = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/java.lang", "java.base/java.util")
Term = tuple[str, str, list[Any]]


class Compared(NamedTuple):
    """What was equal: ranges, those that Java read to their end, and rows of Java."""

    ranges: int = 0
    ended: int = 0
    rows: int = 0


@contextmanager
def decoder(work: Path) -> Iterator[subprocess.Popen[str]]:
    """Compile and run `JvmRanges.java` with Spark's jars."""
    import pyspark

    classes = ":".join((str(work), str(jar_path()), f"{Path(pyspark.__file__).parent}/jars/*"))
    source = Path(__file__).with_name("JvmRanges.java")
    subprocess.run(["javac", "-Xlint:none", "-cp", classes, "-d", work, source], check=True)
    opens = [f"--add-opens={name}=ALL-UNNAMED" for name in OPENS]
    command = ["java", *opens, "-Xmx1g", "-XX:+UseSerialGC", "-cp", classes, "brokerstore.spark.JvmRanges"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as java:
        yield java
        _of(java.stdin).close()


class Log:
    """A healthy log whose files are damaged anew for each comparison."""

    def __init__(self, path: Path, chance: random.Random, *, has_crc: bool) -> None:
        """Put messages until there are enough files; `has_crc`: records have a checksum of their own."""
        config = StoreConfig.small().but(mapped_file_size_commit_log=FILE_BYTES, enabled_append_prop_crc=has_crc)
        self.path, folder = path, path / "commitlog"
        with MessageStore.open(path, config=config) as store:
            while not folder.exists() or len(list(folder.iterdir())) < FILES:
                store.put_many([_message(chance) for _ in range(1000)])
        self.files = [(file, file.read_bytes()) for file in sorted(folder.iterdir()) if file.name.isdecimal()]

    def damage(self, chance: random.Random) -> None:
        """Write each file with up to three changes."""
        for file, whole in self.files:
            data = bytearray(whole)
            for _ in range(chance.randint(0, 3)):
                _change(chance, data)
            with file.open("r+b", buffering=0) as target:
                target.write(data[:FILE_BYTES])


def _message(chance: random.Random) -> Message:
    body = chance.randbytes(chance.choice((0, 1, 40, 300, 900)))
    properties = {chance.choice("abcde"): chance.choice(("1", "x y", "ü")) for _ in range(chance.randrange(3))}
    return Message(
        chance.choice(("topic-0", "topic-1", "%RETRY%group", "t")), body, properties=properties,
        tags=chance.choice((None, "paid", "маленький")), keys=["key", f"k{chance.randrange(9)}"][: chance.randrange(3)],
        sys_flag=0x40 if chance.random() < 0.005 else chance.choice((0, 2, 8)),
        born_host="[::1]:7" if chance.random() < 0.005 else None,
    )  # fmt: skip


def _change(chance: random.Random, data: bytearray) -> None:
    at, kind = chance.randrange(FILE_BYTES), chance.randrange(8)
    if kind < 3:
        data[at] = chance.choice((0, 1, 2, 0x20, 0x30, 0x80, 0xFF))
    elif kind < 5:
        data[at] ^= 1 << chance.randrange(8)
    elif kind == 5:
        size = chance.choice((1, 2, 4, 8))
        data[at : at + size] = (chance.choice(NUMBERS) % (1 << 8 * size)).to_bytes(size, "big")
    elif kind == 6:
        start, size = chance.randrange(FILE_BYTES), chance.choice((1, 4, 20, 512))
        data[at : at + size] = data[start : start + size]
    else:
        size = chance.choice((1, 8, 512))
        data[at : at + size] = bytes(size)
    del data[FILE_BYTES:]
    data.extend(bytes(FILE_BYTES - len(data)))


def _conditions(chance: random.Random, log: Log) -> list[Term]:
    """Return none in most cases, else a comparison of the topic, a number or an offset."""
    most = len(log.files) * FILE_BYTES
    return chance.choice((
        [], [], [], [("topic", "eq", ["topic-1"])], [("topic", "in", ["t", "nosuch"])], [("size", "gt", [300])],
        [(AT, "ge", [chance.randrange(most)])], [("queue_id", "in", [0, 3]), ("size", "le", [500])],
    ))  # fmt: skip


class Comparison:
    """One read of a damaged log by both."""

    def __init__(self, log: Log, chance: random.Random) -> None:
        """Choose columns, options and conditions."""
        names = list(MESSAGE_COLUMNS) if chance.random() < 0.5 else chance.sample(list(MESSAGE_COLUMNS), chance.randint(1, 5))
        self.table, self.schema = (message_schema(found, problem=True) for found in (None, [*{AT: 0, **dict.fromkeys(names)}]))
        self.options = {
            "path": str(log.path), "badRecords": "report", "batchRows": "64",
            "splitBytes": chance.choice(("0", "0", "0", "1500")),
            "checkCrc": chance.choice(("auto", "true", "false")),
            "bodyDecoding": chance.choice(("stored", "stored", "plain")),
        }  # fmt: skip
        self.conditions = _conditions(chance, log)

    def run(self, java: subprocess.Popen[str], target: Path) -> Compared:
        """Compare.  Raises `AssertionError` with the first row that differs."""
        import pyarrow as pa

        plan = jvm_side.plan({
            "table": self.table.json(), "schema": self.schema.json(), "options": self.options, "conditions": self.conditions,
        })  # fmt: skip
        assert plan["columns"], "Java decodes every column"
        ranges = plan.pop("ranges")
        request = {"plan": {**plan, "python": ""}, "ranges": ranges, "schema": self.schema.json(), "rows": str(target)}
        print(json.dumps(request), file=java.stdin, flush=True)
        expected, owners = self._of_python(ranges)  # while Java decodes
        stops = [sys.maxsize if stop < 0 else stop for stop in json.loads(_of(java.stdout).readline())]
        with pa.ipc.open_stream(target.read_bytes()) as stream:
            found = stream.read_all()
        kept = pa.array([stops[owner] for owner in owners], pa.int64())
        expected = expected.filter(pa.compute.less(expected.column(AT), kept))
        if found.cast(expected.schema) != expected:
            raise AssertionError(f"{self.options}, {self.schema.names}, {self.conditions}: {_difference(found, expected)}")
        return Compared(len(ranges), stops.count(sys.maxsize), found.num_rows)

    def _of_python(self, ranges: list[Any]) -> tuple[pa.Table, list[int]]:
        """Return all rows of the Python source, and for each the number of its range."""
        import pyarrow as pa

        # The JVM source computes checksums where the table has a body, so that the rows do not depend on the columns.
        check_crc = self.options["checkCrc"].replace("auto", "true")
        reader: Any = BrokerStoreSource({**self.options, "pushFilters": "true", "checkCrc": check_crc}).reader(self.schema)
        reader.take([Condition(name, how, tuple(given) if how == IN else given[0]) for name, how, given in self.conditions])
        numbers = {jvm_side._unpacked(one["split"]).value: number for number, one in enumerate(ranges)}
        batches, owners = [], list[int]()
        for part in reader.partitions():
            owner = numbers.pop(part.value, None)
            for batch in reader.read(part):
                assert owner is not None, f"{part.value}: no range, {batch.num_rows} rows"
                batches.append(batch)
                owners += [owner] * batch.num_rows
        assert not numbers, f"the Python source does not have the ranges {numbers}"
        return pa.Table.from_batches(batches, reader.request.arrow), owners


def _difference(found: pa.Table, expected: pa.Table) -> str:
    """Return the first row that differs."""
    for number, (one, other) in enumerate(zip(found.to_pylist(), expected.to_pylist(), strict=False)):
        if one != other:
            return f"row {number}: {one} in Java, {other} in Python"
    return f"{found.num_rows} rows in Java, {expected.num_rows} in Python"


def _of(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def compare(count: int, seed: int, work: Path) -> Iterator[Compared]:
    """Compare at least `count` ranges; yield what was equal so far."""
    chance, done = random.Random(seed), Compared()
    logs = [Log(work / f"log-{has_crc}", chance, has_crc=has_crc) for has_crc in (True, False)]
    with decoder(work) as java:
        while done.ranges < count:
            log = chance.choice(logs)
            log.damage(chance)
            done = Compared(*map(sum, zip(done, Comparison(log, chance).run(java, work / "rows"), strict=True)))
            yield done


def main() -> int:
    """Compare, and print the progress."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranges", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--folder", default="/dev/shm/jvm-ranges")
    arguments = parser.parse_args()
    work, began = Path(arguments.folder), time.monotonic()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for done in compare(arguments.ranges, arguments.seed, work):
        ends = f"{done.ranges} ranges, {done.ended} of them read to their end by Java, {done.rows} rows"
        print(f"{ends}: equal, {time.monotonic() - began:.0f} s", flush=True)
    shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
