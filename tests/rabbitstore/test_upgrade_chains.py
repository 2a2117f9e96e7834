"""Parts of folders that real servers left in chains of upgrades, stops and kills (docs/evidence/rabbitmq-upgrades.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from rabbitstore import apply_recovery, verify
from rabbitstore.format import layout
from rabbitstore.format.tables import read_summary
from rabbitstore.read.vhost_folder import VhostFolder
from rabbitstore.stream import StreamFolder
from rabbitstore.stream.check import check_stream
from tests.archives import unpack

ARCHIVE = Path(__file__).parents[1] / "data/rabbitmq-upgrades.tar.xz"
DELIVERED = 41  # by 3.10.8 after `recover`


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Unpack the parts of folders once for a test."""
    unpack(ARCHIVE, tmp_path)
    return tmp_path


def bodies(path: Path) -> list[bytes]:
    """Return the messages that are not acknowledged."""
    return [message.body for message in VhostFolder(str(path)).messages()]


def test_journal_without_its_last_marks_is_damage_that_recover_repairs(parts: Path) -> None:
    """3.10.8 was killed after a flush of marks to a segment that the journal did not have yet; it does not start on that."""
    path = parts / "journal"
    assert [(one.kind, one.offset) for one in verify(str(path)).problems] == [("mark_too_many", 0)]
    listed = bodies(path)
    assert len(listed) == DELIVERED
    plan = apply_recovery(str(path))
    assert (plan.messages_lost, bodies(path)) == (0, listed)
    assert verify(str(path)).problems == []


def test_file_that_is_longer_than_its_clean_stop_counts_is_intact(parts: Path) -> None:
    """4.0.5 was killed, and counted each file up to its last referenced message; acknowledged ones behind it stay."""
    path = parts / "longer"
    store = path / layout.PERSISTENT_FOLDER
    row, last = read_summary((store / layout.SUMMARY_NAME).read_bytes(), "")
    assert (row.file_size, (store / "0.rdq").stat().st_size) == (37110, 61850)
    assert verify(str(path)).problems == []
    with (store / f"{last.file}.rdq").open("ab") as file:
        file.write(bytes(100))
    assert "bad_table" in {one.kind for one in verify(str(path)).problems}


def test_file_that_is_shorter_than_its_clean_stop_counts_is_damage(parts: Path) -> None:
    """Whether a referenced message is cut or not."""
    path = parts / "longer"
    with (path / layout.PERSISTENT_FOLDER / "0.rdq").open("r+b") as file:
        file.truncate(37109)
    assert "bad_table" in {one.kind for one in verify(str(path)).problems}


def test_segment_of_a_stream_that_was_just_created_is_intact(parts: Path) -> None:
    """The server creates the index with its head, then the segment, then writes the segment's head."""
    (path,) = (parts / "segment").iterdir()
    (newest,) = [file for file in path.glob("*.segment") if not file.stat().st_size]
    assert check_stream(StreamFolder(str(path))).problems == []
    index = newest.with_suffix(".index")
    index.write_bytes(index.read_bytes() + bytes(29))
    assert "bad_segment_head" in {one.kind for one in check_stream(StreamFolder(str(path))).problems}
