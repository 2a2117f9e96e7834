"""The index folder: loading, expiry and shapes (docs/formats/indexfile.md#loading, #expiry)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storageio import REAL_DISK, DiskError, StoreCorrupt
from storageio.testing import CountingDisk, FailingDisk

BEGIN = 1_700_000_000_000


def filled(index: Any, files: int = 3) -> Any:
    """Return three files of two keys each, with records at 0, 100, ... 500, a second apart."""
    opened = index(7, 3)
    for number in range(2 * files):
        opened.build("T", f"k{number}", None, 100 * number, BEGIN + 1000 * number)
    return opened


# log minimum, files deleted: they end at 100, 300 and 500
EXPIRIES = [(0, 0), (100, 0), (101, 1), (300, 1), (301, 2), (9999, 2)]


@pytest.mark.parametrize(("log_min", "deleted"), EXPIRIES)
def test_delete_expired(index: Any, log_min: int, deleted: int) -> None:
    """Leading files that end below the log's minimum are deleted, never the last."""
    opened = filled(index)
    assert opened.delete_expired(log_min) == deleted
    assert len(opened.files) == len(index(7, 3).files) == 3 - deleted
    assert opened.select("T", "k5") == [500]


def test_destroy(index: Any, tmp_path: Path) -> None:
    """All files are deleted; later keys begin a new file."""
    opened = filled(index)
    opened.destroy()
    assert list((tmp_path / "index").iterdir()) == []
    opened.build("T", "k", None, 0, BEGIN)
    assert opened.select("T", "k") == [0]


def test_stray_names_are_skipped_and_reported(index: Any, tmp_path: Path) -> None:
    """Names that are no number and folders are ignored and reported."""
    filled(index).close()
    for name in ("20261120173254506.tmp", "notes", "99999999999999999999"):
        (tmp_path / "index" / name).write_bytes(b"x")
    (tmp_path / "index" / "12").mkdir()
    opened = index(7, 3)
    assert [Path(path).name for path in opened.strays] == ["12", "20261120173254506.tmp", "99999999999999999999", "notes"]
    opened.load()
    assert opened.select("T", "k3") == [300]


def test_other_slots_than_the_files_have_are_refused(index: Any) -> None:
    """RocketMQ would misread or grow the files."""
    filled(index).close()
    with pytest.raises(StoreCorrupt, match="index file size"):
        index(8, 3).load()


def test_a_reader_follows_a_live_writer(index: Any) -> None:
    """New keys are visible immediately, new files after a refresh."""
    writer = filled(index, 1)
    reader = index(7, 3, writable=False)
    assert reader.select("T", "k1") == [100]
    writer.build("T", "k2", None, 200, BEGIN + 2000)
    assert reader.select("T", "k2") == []
    reader.refresh()
    assert reader.select("T", "k2") == [200]
    writer.build("T", "k3", None, 300, BEGIN + 3000)
    assert reader.select("T", "k3") == [300]
    writer.delete_expired(150)
    reader.refresh()
    assert reader.select("T", "k1") == []


def test_old_files_stay_mapped_up_to_a_limit(index: Any, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of mapped files is limited because each holds a descriptor, and each file still answers."""
    filled(index, 30).close()
    for limit, mapped in ((8, 9), (256, 30)):
        monkeypatch.setattr(world.indexfile.index_files, "OPEN_FILES_MAX", limit)
        opened = index(7, 3)
        for _ in range(2):
            assert [opened.select("T", f"k{number}") for number in range(60)] == [[100 * number] for number in range(60)]
        assert sum(file.is_open for file in opened.files) == mapped
        opened.close()


def test_an_old_file_is_synced_after_its_descriptor_was_closed(index: Any) -> None:
    """`sync` opens the file again."""
    filled(index, 3).close()
    opened = index(7, 3)
    assert opened.select("T", "k1") == [100]
    assert opened.files[0].sync() == opened.files[0].header.end_timestamp_ms
    opened.close()


SHAPES = [(7, 28), (500, 2000), (1, 2), (1, 100), (7, 10), (13, 6), (100, 3), (1000, 77), (499, 2004), (60, 30), (120, 18)]


@pytest.mark.parametrize(("slots", "items"), SHAPES)
def test_slot_layout_is_detected_from_the_chains(index: Any, world: Any, slots: int, items: int) -> None:
    """Four or any other number of items per slot are detected, with few keys or many."""
    find, paths = world.indexfile.find_shape, world.indexfile.index_paths
    opened = index(slots, items)
    opened.build("T", "first", None, 5_000, BEGIN)
    for number in range(1, min(items - 2, 60) + 1):
        opened.build("T", f"key-{number}", "" if number % 3 else "x y", 5_000 + 1_000 * number, BEGIN + number)
        assert find(REAL_DISK, paths(REAL_DISK, opened.folder)[0]) == (slots, items), number


def test_slot_layout_without_items_is_the_default_or_none(index: Any, world: Any, tmp_path: Path) -> None:
    """Without a default shape the slots must be given; with them the size gives the items."""
    find = world.indexfile.find_shape
    assert find(REAL_DISK, []) is None
    for slots, items, expected in ((7, 28, (7, 28)), (7, 10, None)):
        opened = index(slots, items, folder=tmp_path / str(items))
        opened.active()
        assert find(REAL_DISK, [file.path for file in opened.files]) == expected
    assert world.indexfile.shape_for(40 + 4 * 7 + 20 * 10, 7) == (7, 10)
    assert world.indexfile.shape_for(40 + 4 * 7 + 20 * 10, 8) is None
    assert world.indexfile.shape_for(420_000_040, 5_000_000) == (5_000_000, 20_000_000)


def test_slot_layout_is_detected_while_an_item_is_being_written(
    index: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer has counted the item, but its offset is not in the header yet; the shape is found all the same."""
    opened = index(50, 400)
    for number in range(9):
        opened.build("T", f"key-{number}", "", 5_000 + number, BEGIN + number)
    (path,) = [Path(file.path) for file in opened.files]
    whole = path.read_bytes()

    def write(data: bytes) -> None:
        with path.open("r+b") as file:
            file.write(data)

    end_at = world.module("indexfile.layout").END_OFFSET_AT
    write(whole[:end_at] + bytes(8) + whole[end_at + 8 :])
    paths = world.indexfile.index_paths(REAL_DISK, opened.folder)[0]
    assert world.indexfile.find_shape(REAL_DISK, paths) is None, "nobody finishes it"
    disk = CountingDisk()
    monkeypatch.setattr(disk, "sleep", lambda pause_s: write(whole) if pause_s else None)
    assert world.indexfile.find_shape(disk, paths, world.indexfile.AT_REST) is None, "looked once"
    assert world.indexfile.find_shape(disk, paths) == (50, 400)


def test_file_of_unknown_slot_layout_gives_none(world: Any, tmp_path: Path) -> None:
    """Noise, a short file and zeros give None, or the default if there are no items, and no exception."""
    (tmp_path / "1").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "2").write_bytes(b"\0" * 39)
    (tmp_path / "3").write_bytes(b"")
    for name, expected in (("1", None), ("2", None), ("3", None)):
        assert world.indexfile.find_shape(REAL_DISK, [str(tmp_path / name)]) == expected


def test_slot_layout_of_one_record_at_offset_zero_is_detected(index: Any, world: Any) -> None:
    """Its offset 0 occurs in every unused slot too."""
    opened = index(50, 400)
    opened.build("T", "k", None, 0, BEGIN)
    assert world.indexfile.find_shape(REAL_DISK, [opened.files[0].path]) == (50, 400)


def test_slot_layout_is_read_from_an_older_file_if_the_newest_is_incomplete(index: Any, world: Any, tmp_path: Path) -> None:
    """A file without items, or no longer than a header, does not decide the shape of the others."""
    opened = index(50, 400)
    for number in range(20):
        opened.build("T", f"k{number}", None, 100 * number, BEGIN)
    opened.close()
    full = Path(opened.files[0].path)
    data = full.read_bytes()
    for newest in (bytes(len(data)), b"", data[:40]):
        (tmp_path / "index" / "99991231235959999").write_bytes(newest)
        paths = world.indexfile.index_paths(REAL_DISK, str(tmp_path / "index"))[0]
        assert world.indexfile.find_shape(REAL_DISK, paths) == (50, 400)
        with pytest.raises(StoreCorrupt, match="index shape"):
            world.module("indexfile.shape").refuse_other_shape(REAL_DISK, paths, world.module("indexfile.shape").Shape(55, 399))


def test_expired_file_is_not_synced_again(index: Any) -> None:
    """The next sync covers the remaining files only."""
    opened = filled(index)
    oldest = opened.files[0].path
    assert opened.delete_expired(200) == 1
    opened.sync()
    assert oldest not in [file.path for file in opened.files]
    assert opened.sync_full() == 0


def test_the_names_of_files_are_synced_after_an_unclean_stop(index: Any) -> None:
    """The writer may have died before their sync; a failed sync of the folder raises and is retried."""
    filled(index).close()
    disk = CountingDisk()
    opened = index(7, 3, disk=disk)
    opened.mark_unsynced()
    opened.sync_full()
    assert [call.path for call in disk.calls if call.operation == "sync folder"] == [opened.folder]
    failing = FailingDisk(1, only="sync folder")
    opened = index(7, 3, disk=failing)
    opened.mark_unsynced()
    with pytest.raises(DiskError):
        opened.sync_full()
    opened.sync_full()
    assert len(failing.calls) == 2


def test_a_closed_index_maps_nothing(index: Any) -> None:
    """No file is mapped after `close`."""
    opened = filled(index)
    assert any(file.is_open for file in opened.files)
    opened.close()
    assert not any(file.is_open for file in opened.files)
