"""A queue's index with torn segments, ends that look torn, terms that do not fit, and a failed disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rabbitstore.engine.queue_index_cy import QueueIndex
from rabbitstore.format.torn import SECTOR_SIZE
from rabbitstore.settings import IndexSettings
from storageio import REAL_DISK, DiskError
from storageio.testing import FailingDisk

SETTINGS = IndexSettings(segment_entries=16)
PUBLISH, MARK = 34, 2  # bytes in a segment


def ident(number: int) -> bytes:
    return number.to_bytes(16, "big")


def loaded(folder: Path, disk: Any = REAL_DISK, settings: IndexSettings = SETTINGS) -> tuple[QueueIndex, list[Any]]:
    index = QueueIndex(disk, str(folder), settings)
    return index, list(index.load(lambda _entry: True))


def filled(folder: Path, count: int, term: bytes = b"", disk: Any = REAL_DISK) -> QueueIndex:
    index, _ = loaded(folder, disk)
    for seq_id in range(count):
        index.publish(seq_id, ident(seq_id), 0, len(term), True, term)
    return index


@pytest.mark.parametrize("entries", [2, 300])
def test_a_flushed_acknowledgement_ending_one_byte_into_a_sector_is_kept(tmp_path: Path, entries: int) -> None:
    """The low byte of numbers 0 and 256 is zero, as after a lost sector: the message used to be delivered again."""
    folder = tmp_path / "q"
    index, _ = loaded(folder, settings=IndexSettings())
    last = 0 if entries == 2 else 256
    size = entries * (PUBLISH + MARK) + MARK
    term = b"x" * ((1 - size) % SECTOR_SIZE)
    for seq_id in range(entries):
        index.publish(seq_id, ident(seq_id), 0, 1, True, term if seq_id == 1 else None)
    index.flush()
    index.acknowledge([last])
    assert ((folder / "0.idx").stat().st_size + MARK) % SECTOR_SIZE == 1
    index.flush()
    index.abandon()
    again, found = loaded(folder, settings=IndexSettings())
    assert [entry.seq_id for entry in found] == [seq_id for seq_id in range(entries) if seq_id != last]
    assert [entry.term for entry in found if entry.seq_id == 1] == [term or None]
    again.publish(entries, ident(entries), 0, 1, True, None)
    again.close()
    assert len(loaded(folder, settings=IndexSettings())[1]) == entries


@pytest.mark.parametrize("lost", [1, 2])
def test_a_message_torn_in_its_segment_is_restored_from_the_journal(tmp_path: Path, lost: int) -> None:
    """A flush writes the segment first, so the journal still has the torn entry."""
    folder = tmp_path / "q"
    term = b"\x83" + b"y" * 1500
    index = filled(folder, 5, term)
    index.sync()
    journal = (folder / "journal.jif").read_bytes()
    index.flush()
    index.abandon()
    segment = bytearray((folder / "0.idx").read_bytes())
    for sector in range(1, 1 + lost):  # within the first message's bytes
        segment[sector * SECTOR_SIZE : (sector + 1) * SECTOR_SIZE] = bytes(SECTOR_SIZE)
    (folder / "0.idx").write_bytes(segment)
    (folder / "journal.jif").write_bytes(journal)
    again, found = loaded(folder)
    assert [(entry.seq_id, entry.term) for entry in found] == [(seq_id, term) for seq_id in range(5)]
    again.abandon()
    assert [entry.term for entry in loaded(folder)[1]] == [term] * 5


def cut(folder: Path) -> None:
    (folder / "1.idx").write_bytes((folder / "1.idx").read_bytes()[: 3 * (PUBLISH + MARK)])


@pytest.mark.parametrize(
    ("recorded", "next_seq_id", "damage", "fits", "left"),
    [
        ({0: 16, 1: 16, 2: 16}, 48, None, True, 48),
        ({0: 15, 1: 16, 2: 16}, 48, None, False, 48),  # the oldest
        ({0: 16, 1: 16, 2: 16}, 40, None, False, 48),  # numbers that the queue has given already
        ({0: 16, 1: 16}, 48, None, False, 48),
        ({0: 16, 1: 16, 2: 16, 3: 1}, 64, None, False, 48),
        ({0: 16, 1: 16, 2: 16}, 48, cut, False, 35),  # a file too short for its noted entries
    ],
)
def test_an_index_that_differs_from_the_clean_stop_is_not_resumed(
    tmp_path: Path, recorded: dict[int, int], next_seq_id: int, damage: Callable[..., Any] | None, fits: bool, left: int
) -> None:
    """The failed attempt loses nothing: a full read finds every entry in the files."""
    folder = tmp_path / "q"
    filled(folder, 48).close()
    if damage is not None:
        damage(folder)
    index = QueueIndex(REAL_DISK, str(folder), SETTINGS)
    assert index.resume(recorded, next_seq_id) == fits
    index.abandon()
    again, found = loaded(folder)
    assert len(found) == left == len({entry.seq_id for entry in found})
    assert again.next_seq_id == 48
    again.close()


def test_an_index_with_a_failed_journal_closes_and_writes_nothing_more(tmp_path: Path) -> None:
    """After a failed sync the state on disk is unknown: a flush might empty the only copy."""
    folder = tmp_path / "q"
    disk = FailingDisk(1, only="sync", for_ever=True)
    index, _ = loaded(folder)
    index.disk = disk
    for seq_id in range(4):
        index.publish(seq_id, ident(seq_id), 0, 1, True, None)
    with pytest.raises(DiskError):
        index.sync()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    index.close()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    shutil.copytree(folder, tmp_path / "copy")
    assert [entry.seq_id for entry in loaded(tmp_path / "copy")[1]] == [0, 1, 2, 3]


def test_an_entry_shows_its_number_its_message_and_its_marks(tmp_path: Path) -> None:
    """Its text allows finding the entry in a dump of the segment."""
    index = filled(tmp_path / "q", 2)
    index.close()
    entry = loaded(tmp_path / "q")[1][1]
    assert repr(entry) == "<1 " + "00" * 15 + "01 PD>"


def test_a_segment_is_compared_with_the_clean_stop_only_at_its_first_read(tmp_path: Path) -> None:
    """Acknowledgements between two reads do not count as a difference."""
    filled(tmp_path / "q", 48).close()
    index = QueueIndex(REAL_DISK, str(tmp_path / "q"), SETTINGS)
    assert index.resume({0: 16, 1: 16, 2: 16}, 48)
    assert len(index.read(16, 32)) == 16
    index.acknowledge([17])
    assert [entry.seq_id for entry in index.read(16, 32)] == [16, *range(18, 32)]
    assert index.problems == []
    index.close()
