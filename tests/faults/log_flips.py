"""The permitted effects of one flipped bit in a commit-log file, judged against the golden file itself."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from commitlog import verify as verification
from commitlog.verify import LogReport
from commitlog.walk import LogFiles, Piece
from storageio.testing import ForgettingDisk, Image
from storageio.testing.forgetting_nodes import FileNode
from tests.faults.golden import LogFile, unpacked

# Fields that nothing in the log covers, in records without the checksum property.  RocketMQ checks the body
# alone.  The property, which new stores have by default, covers all of these.
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
STRETCH_RECORDS = 6
GAP = 200  # zeros after the records of a stretch


def golden_log(name: str, above: Path) -> list[LogFile]:
    """Return the files of a golden store's log."""
    store = unpacked(name, above)
    offsets = [row["physicalOffset"] for row in json.loads((store.parent / "manifest.json").read_text())["messages"]]
    return [LogFile(path, above, offsets) for path in sorted((store / "commitlog").iterdir())]


def header_bits(file: LogFile, start: int, step: int) -> Iterator[int]:
    """Yield each `step`-th bit of the fields other than body, topic, properties and checksum, beginning with bit `start`."""
    header = [field for field in file.fields if field.name not in ("body", "topic", "properties", "checksum")]
    bits = [bit for field in header for bit in range(8 * field.start, 8 * field.stop)]
    yield from bits[start::step]


def sampled_bits(file: LogFile, count: int, seed: int) -> list[int]:
    """Return `count` random bits of the file."""
    return [random.Random(f"{seed} {file.base}").randrange(8 * len(file.data)) for _ in range(count)]


class Stretch:
    """Consecutive records of a golden file, as a log of their own in memory: it verifies ten times as fast.

    It has bytes start..stop of the file, followed by zeros; the last stretch has the file's end instead.
    """

    def __init__(self, file: LogFile, start: int, stop: int) -> None:
        self.file, self.start, self.stop = file, start, stop
        self.records = {at - start for at in file.records if start <= at < stop}
        is_last = stop == len(file.data)
        data = file.data[start:stop] if is_last else file.data[start:stop] + bytes(GAP)
        path = f"/log/{file.base + start:020d}"
        self.disk = ForgettingDisk.of(Image({path: data}, ("/log",), {path: 0}))
        node = self.disk._find(path)
        assert isinstance(node, FileNode)
        self.live = node.live
        self.usual = {problem.kind for problem in self.examine()[0].problems}  # the file's name is not a multiple of its size

    def examine(self) -> tuple[LogReport, set[int]]:
        """Return the report of a verification, and the positions of the records that its walk yields."""
        given: set[int] = set()

        class Watched(LogFiles):
            def walk(self) -> Iterator[Any]:
                for step in super().walk():
                    if isinstance(step, Piece):
                        given.update(step.positions)
                    yield step

        with mock.patch.object(verification, "LogFiles", Watched):
            return verification.verify_log(["/log"], self.disk), given

    def judge(self, bit: int) -> str:
        """Return `named` or `silent: FIELD` for a flipped bit; any other effect is an AssertionError."""
        field = self.file.owner(bit // 8)
        where = f"{self.file.path.name} bit {bit} ({field.name})"
        at, mask = bit // 8 - self.start, 1 << bit % 8
        self.live[at] ^= mask
        report, given = self.examine()
        self.live[at] ^= mask
        assert given <= self.records, f"{where}: records that nobody wrote at {sorted(given - self.records)}"
        others = self.records - given - {field.record - self.start}
        assert not others, f"{where}: records that were not touched are gone, at {sorted(others)}"
        if any(problem.kind not in self.usual for problem in report.problems):
            may_be_read = field.name in ("checksum", "separator", BEHIND)
            assert may_be_read or field.record - self.start not in given, f"{where}: given out as good, although named"
            return "named"
        _check_silence(self.file, field, where)
        return f"silent: {field.name}"


def stretches(file: LogFile) -> list[Stretch]:
    """Divide the whole file into stretches."""
    borders = [0, *file.records[STRETCH_RECORDS::STRETCH_RECORDS], len(file.data)]
    return [Stretch(file, *pair) for pair in itertools.pairwise(borders)]


def _check_silence(file: LogFile, field: Any, where: str) -> None:
    """Assert that a bit whose flip was not reported is one that no rule covers."""
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
    """Flip each of the bits; count the results."""
    parts = stretches(file)
    found: Counter[str] = Counter()
    for bit in bits:
        found[next(part for part in parts if bit < 8 * part.stop).judge(bit)] += 1
    return found
