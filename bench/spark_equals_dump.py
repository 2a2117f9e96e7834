"""Compare every row that a real Spark reads from a store of a gigabyte with `brokerstore dump --json`.

    python -m bench.spark_equals_dump [--bytes 1g] [--split-bytes 77777777] [--folder /tmp/bench-spark]

It takes too long for every change, so it is part of `make spark-night`.  Both sides become the same JSON text with sorted keys.
Spark's workers return a digest of each row, so that a gigabyte need not go through the driver.  Splits have an odd size.  Ends
with 1 and the first message that differs, if there is one.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.spark_against_arrow import make_store, session
from sparkstore.options import size_of

CHECKSUM = "__CRC32#"  # the source removes it from `properties`


def digest(row: dict[str, Any]) -> bytes:
    """Return the digest of a message in the tool's JSON."""
    row["properties"].pop(CHECKSUM, None)
    return hashlib.blake2b(json.dumps(row, sort_keys=True).encode(), digest_size=16).digest()


def digests_of_batches(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield physical offset and digest of each row, in a worker."""
    import pyarrow as pa

    for batch in batches:
        rows = batch.to_pylist()
        for row in rows:
            row["body_base64"] = base64.b64encode(row.pop("body")).decode()
            row["properties"] = dict(row["properties"])
            del row["born_time"], row["store_time"]
        places = pa.array([row["physical_offset"] for row in rows], pa.int64())
        yield pa.RecordBatch.from_arrays([places, pa.array([digest(row) for row in rows], pa.binary())], names=["at", "digest"])


def by_spark(path: Path, folder: Path, split_bytes: str) -> list[tuple[int, bytes]]:
    """Return offsets and digests in log order, as Spark reads them."""
    from sparkstore.source.reading import read_messages

    spark = session(folder)
    try:
        frame = read_messages(spark, str(path), splitBytes=split_bytes)
        found = frame.mapInArrow(digests_of_batches, "at bigint, digest binary").collect()
        return sorted((row["at"], bytes(row["digest"])) for row in found)
    finally:
        spark.stop()


def by_tool(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield offset and digest of each message, as the tool prints it."""
    command = [sys.executable, "-m", "brokerstore", "dump", "--json", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tool:
        assert tool.stdout is not None
        for line in tool.stdout:
            row = json.loads(line)
            yield row["physical_offset"], digest(row)
    assert tool.returncode == 0, f"the tool ended with {tool.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", default="1g")
    parser.add_argument("--split-bytes", default="77777777")
    parser.add_argument("--folder", default="/tmp/bench-spark")
    asked = parser.parse_args()
    folder = Path(asked.folder)
    folder.mkdir(parents=True, exist_ok=True)
    path, began = make_store(folder, size_of(asked.bytes)), time.monotonic()
    found = by_spark(path, folder, asked.split_bytes)
    print(f"Spark read {len(found)} rows in {time.monotonic() - began:.0f} s", file=sys.stderr)
    count = 0
    for count, truth in enumerate(by_tool(path), 1):
        if count > len(found) or found[count - 1] != truth:
            other = found[count - 1][0] if count <= len(found) else "none"
            print(f"row {count} differs: dump has physical offset {truth[0]}, Spark {other}")
            return 1
    if count != len(found):
        print(f"dump has {count} rows, Spark {len(found)}")
        return 1
    print(f"{count} rows are equal, splits of {asked.split_bytes} bytes, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
