"""What one flipped bit in a commit-log file may do, judged against the golden file itself."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from commitlog.verify import verify_log
from commitlog.walk import LogFiles, Piece
from storageio import REAL_DISK
from tests.faults.golden import LogFile, flipped, unpacked

# Fields that nothing in the log itself speaks about, in records without the checksum property.  RocketMQ checks the body
# alone; with the property (the default of stores made here) each of these is covered.
UNCOVERED = {
    "queue_id": "compared with the queue files by the verification of the whole store",
    "queue_offset": "compared with the queue files by the verification of the whole store",
    "topic": "compared with the queue files by the verification of the whole store",
    "properties": "keys with the index, tags with the queues; the rest by nobody",
    "sys_flag": "transaction bits with the queues; compression and batch bits by nobody",
    "flag": "the user's own number",
    "born_timestamp": "the producer's clock",
    "born_host": "the producer's address",
    "store_timestamp": "the broker's clock",
    "store_host": "the broker's address",
    "reconsume_times": "a count of deliveries",
    "prepared_offset": "read for transactions alone",
}
EMPTY_BODY = "the checksum of no body is read by nobody"
BEHIND = "behind the records"  # zeros and blank records


def golden_log(name: str, above: Path) -> list[LogFile]:
    """The files of a golden store's log."""
    store = unpacked(name, above)
    offsets = [row["physicalOffset"] for row in json.loads((store.parent / "manifest.json").read_text())["messages"]]
    return [LogFile(path, above, offsets) for path in sorted((store / "commitlog").iterdir())]


def header_bits(file: LogFile, start: int, step: int) -> Iterator[int]:
    """Each `step`-th bit of the record headers, from the `start`-th on: all but bodies, topics and properties."""
    header = [field for field in file.fields if field.name not in ("body", "topic", "properties", "checksum")]
    bits = [bit for field in header for bit in range(8 * field.start, 8 * field.stop)]
    yield from bits[start::step]


def sampled_bits(file: LogFile, count: int, seed: int) -> list[int]:
    """Any bits of the file."""
    return [random.Random(f"{seed} {file.base}").randrange(8 * len(file.data)) for _ in range(count)]


def judge(file: LogFile, bit: int) -> str:
    """Flip, look, flip back.  What happened: `named`, or `silent: FIELD`.  Anything that may not happen is an error."""
    field = file.owner(bit // 8)
    where = f"{file.path.name} bit {bit} ({field.name})"
    with flipped(file.path, bit):
        report = verify_log([str(file.folder)])
        given = _given(file)
    records = set(file.records)
    assert given <= records, f"{where}: records that nobody wrote at {sorted(given - records)}"
    others = records - given - {field.record}
    assert not others, f"{where}: records that were not touched are gone, at {sorted(others)}"
    if report.problems:
        may_be_read = field.name in ("checksum", "behind the records")
        assert may_be_read or field.record not in given, f"{where}: given out as good, although named"
        return "named"
    _check_silence(file, field, where)
    return f"silent: {field.name}"


def _given(file: LogFile) -> set[int]:
    """Where the records begin that a reader is given."""
    steps = LogFiles(REAL_DISK, [str(file.folder)]).walk()
    return {at for step in steps if isinstance(step, Piece) for at in step.positions}


def _check_silence(file: LogFile, field: Any, where: str) -> None:
    """Nothing was said: then nothing can have been wrong, or no rule covers the bit."""
    if field.record < 0:
        return
    names = {other.name for other in file.fields if other.record == field.record}
    if field.name == "body_crc":
        body = next(other for other in file.fields if other.record == field.record and other.name == "body")
        assert body.start == body.stop, f"{where}: {EMPTY_BODY}, and this one is not empty"
        return
    assert "checksum" not in names, f"{where}: a record with a checksum, and nothing was said"
    assert field.name in UNCOVERED, f"{where}: nothing was said"


def sweep(file: LogFile, bits: Iterable[int]) -> Counter[str]:
    """Many flips."""
    return Counter(judge(file, bit) for bit in bits)
