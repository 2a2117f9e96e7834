"""A DLedger log of a real broker through the data source: the rows of `dump`, wherever splits meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkstore.source.log_position import LogEnds
from tests.dledger import HEADER, entries, peer, unpacked

from .local import audited, dumped, rows

pytest.importorskip("pyspark")


@pytest.mark.parametrize("name", ["dledger497", "dledger-mixed"])
@pytest.mark.parametrize("split_bytes", ["0", "5000", "333"])
def test_rows_are_those_of_dump(name: str, split_bytes: str, tmp_path: Path) -> None:
    """Splits may begin in a header, between it and its record, or in a record."""
    store = unpacked(name, tmp_path)
    found = rows(store, splitBytes=split_bytes)
    assert [row["physical_offset"] for row in found] == [row["physical_offset"] for row in dumped(store)]
    assert [row["body"] for row in found] == [row["body"] for row in dumped(store)]


def test_a_read_between_two_offsets_has_the_records_from_the_first_on(tmp_path: Path) -> None:
    """Offsets are those of records: the header before the first one lies before the range, that before the last one inside."""
    store = unpacked("dledger497", tmp_path)
    offsets = [entry.position + HEADER.size for entry in entries(store)]
    for first, last in ((0, 1), (3, 9), (195, 197), (640, 649)):
        found = rows(store, startingOffsets=offsets[first], endingOffsets=offsets[last])
        assert [row["physical_offset"] for row in found] == offsets[first:last]


def test_an_audit_finds_nothing(tmp_path: Path) -> None:
    """Queues and index agree with the log."""
    report = audited(unpacked("dledger497", tmp_path), splitBytes="5000")
    assert [row["kind"] for row in report.problems if row["kind"] not in ("abort_file",)] == []


def test_the_end_of_a_stream_is_that_of_the_last_entry(tmp_path: Path) -> None:
    """A batch of so many messages ends behind a record, which is where the next header begins."""
    store = unpacked("dledger551", tmp_path)
    model = entries(store)
    ends = LogEnds(str(store), [str(peer(store) / "data")])
    end = ends.end()
    assert end.physical_offset == model[-1].position + HEADER.size + len(model[-1].record)
    assert ends.cut_messages(0, 10, end).physical_offset == model[10].position
