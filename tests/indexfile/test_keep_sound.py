"""Files and items that are kept after an unclean stop without a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from indexfile import IndexFiles
from storageio import REAL_DISK
from tests.stores import index_record

SLOTS, ITEMS = 10, 20
RECORD = 100


def build(folder: Path, records: int) -> IndexFiles:
    """Add a record per hundred bytes with two keys each, so that files become full in the middle of a record."""
    return put_all(IndexFiles(REAL_DISK, str(folder), writable=True, slots=SLOTS, items=ITEMS), records)


def put_all(files: IndexFiles, records: int) -> IndexFiles:
    """Index all records; those before the end of the index are skipped."""
    for number in range(records):
        index_record(files, "T", f"u{number}", f"k{number}", number * RECORD, 1_000_000 + number * 1000)
    return files


def found(files: IndexFiles, records: int) -> list[int]:
    """Return the records whose second key is found."""
    return [number for number in range(records) if files.select("T", f"k{number}") == [number * RECORD]]


def test_keep_sound_drops_only_the_last_record_of_the_last_file(tmp_path: Path) -> None:
    """The last records of older, full files stay, because nothing would index them again."""
    files = build(tmp_path / "index", 40)
    assert len(files.files) == 5
    files.keep_sound(0, 40 * RECORD)
    assert found(files, 40) == list(range(39))
    header = files.last_header()
    assert header is not None and header.end_physical_offset == 38 * RECORD


@pytest.mark.parametrize("number", [0, 2, 3])
def test_keep_sound_drops_a_damaged_file_and_all_later_ones(tmp_path: Path, number: int) -> None:
    """After the rest is indexed again, every key is found."""
    files = build(tmp_path / "index", 40)
    path = Path(files.files[number].path)
    files.close()
    data = bytearray(path.read_bytes())
    at = 40 + 4 * SLOTS + 20 * 5
    data[at : at + 40] = bytes(40)
    path.write_bytes(data)
    files = IndexFiles(REAL_DISK, str(tmp_path / "index"), writable=True, slots=SLOTS, items=ITEMS)
    files.keep_sound(0, 40 * RECORD)
    assert len(files.files) == number
    put_all(files, 40)
    assert [number for number in range(40) if number * RECORD in files.select("T", f"k{number}")] == list(range(40))


def test_keep_sound_drops_items_after_the_end_of_the_log(tmp_path: Path) -> None:
    """Items behind the end of the log are dropped, with every later file."""
    files = build(tmp_path / "index", 40)
    files.keep_sound(0, 15 * RECORD)
    assert found(files, 40) == list(range(14))
