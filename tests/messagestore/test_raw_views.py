"""A queue's records as views of the log: whole, in order, and without any other byte."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Any

import pytest

from storageio import StoreCorrupt
from tests.builds import World
from tests.messagestore.kit import message, open_small

pytestmark = pytest.mark.both_builds

UNIT = struct.Struct(">qiq")


def fill(world: World, store: Any, count: int = 900) -> None:
    """Put messages to two queues in several log files."""
    for number in range(count):
        store.put(message(world, number, queue_id=number % 2, size=20 + number % 50))


def views_of(store: Any, *how: Any) -> list[bytes]:
    return [bytes(view) for views in store.read_raw("T", 0, *how) for view in views]


@pytest.mark.parametrize(("start", "stop"), [(0, None), (0, 300), (17, 18), (299, 301), (5, 5), (450, None), (-3, 9999)])
def test_views_are_the_records_that_read_decodes(world: World, tmp_path: Path, start: int, stop: int | None) -> None:
    """This holds for every range, across files of the queue and of the log."""
    with open_small(world, tmp_path) as store:
        fill(world, store)
        expected = [(one.physical_offset, one.size) for one in store.read("T", 0, max(start, 0), stop)]
        log = b"".join(path.read_bytes() for path in sorted((tmp_path / "commitlog").iterdir()))
        assert views_of(store, start, stop) == [log[offset : offset + size] for offset, size in expected]
        assert len(store.engine.log.queue.files) > 1


def test_empty_queue_has_no_views(world: World, tmp_path: Path) -> None:
    """It has no messages either, and the call creates nothing on the disk."""
    with open_small(world, tmp_path) as store:
        fill(world, store, 3)
        assert list(store.read_raw("T", 7)) == []
        assert not (tmp_path / "consumequeue" / "T" / "7").exists()


def test_a_view_outlives_the_store(world: World, tmp_path: Path) -> None:
    """It keeps the map of its file."""
    with open_small(world, tmp_path) as store:
        fill(world, store, 10)
        views = next(iter(store.read_raw("T", 0)))
        kept = [bytes(view) for view in views]
    assert [bytes(view) for view in views] == kept
    assert all(view.nbytes == len(view) == view.shape[0] and view.c_contiguous for view in views)


@pytest.mark.parametrize(
    "unit",
    [
        (1 << 50, 120, 0), (-5, 120, 0), (3, 120, 0), (0, 1 << 30, 0), (0, -1, 0), (0, 0, 0), (0, 5, 0), (0, 119, 0),
        ((1 << 63) - 1, (1 << 31) - 1, 0), ((64 << 10) - 3, 120, 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("position", [0, 40])
def test_unit_without_a_record_of_its_size_raises(
    world: World, tmp_path: Path, unit: tuple[int, int, int], position: int
) -> None:
    """Outside the log, inside a record, too long, too short: earlier records are returned, then the error is raised."""
    with open_small(world, tmp_path) as store:
        fill(world, store, 160)
    with open(tmp_path / "consumequeue" / "T" / "0" / ("0" * 20), "r+b") as file:
        file.seek(20 * position)
        file.write(UNIT.pack(*unit))
    with open_small(world, tmp_path, "r") as store:
        given = 0
        try:
            for views in store.read_raw("T", 0):
                given += len(views)
        except StoreCorrupt as error:
            assert str(position) in str(error)
        assert given <= 80
        if unit[1] > 0 and unit[0] >= 0:
            assert given == position


def test_header_with_a_wrong_offset_magic_or_size_raises(world: World, tmp_path: Path) -> None:
    """One bit of physical offset, magic or size is changed."""
    for at in (4, 3, 35):
        folder = tmp_path / str(at)
        with open_small(world, folder) as store:
            fill(world, store, 40)
            target = next(iter(store.read("T", 0, 7))).physical_offset
        (path,) = (folder / "commitlog").iterdir()
        with open(path, "r+b") as file:
            file.seek(target + at)
            found = file.read(1)[0]
            file.seek(target + at)
            file.write(bytes([found ^ 1]))
        with open_small(world, folder, "r") as store, pytest.raises(StoreCorrupt):
            views_of(store)


def test_unchecked_views_are_the_same_records(world: World, tmp_path: Path) -> None:
    """This holds across the log's files too."""
    with open_small(world, tmp_path) as store:
        fill(world, store)
        assert [bytes(view) for views in store.read_raw("T", 0, check=False) for view in views] == views_of(store)


@pytest.mark.parametrize("unit", [(1 << 50, 120, 0), (-5, 120, 0), (0, 1 << 30, 0), (0, -1, 0), ((64 << 10) - 3, 120, 0)])
def test_an_unchecked_view_never_leaves_the_log(world: World, tmp_path: Path, unit: tuple[int, int, int]) -> None:
    """Only the number of records that the damaged queue has is affected: nothing outside the log is viewed."""
    with open_small(world, tmp_path) as store:
        fill(world, store, 160)
    with open(tmp_path / "consumequeue" / "T" / "0" / ("0" * 20), "r+b") as file:
        file.seek(20 * 40)
        file.write(UNIT.pack(*unit))
    with open_small(world, tmp_path, "r") as store:
        given = 0
        with contextlib.suppress(StoreCorrupt):  # a unit of size 0 ends the queue
            for views in store.read_raw("T", 0, check=False):
                given += len(views)
        assert given == 40, given


def test_an_unchecked_view_touches_no_record(world: World, tmp_path: Path) -> None:
    """Its content is the caller's matter: damage in it is returned as it is."""
    with open_small(world, tmp_path) as store:
        fill(world, store, 40)
        target = next(iter(store.read("T", 0, 7))).physical_offset
    (path,) = (tmp_path / "commitlog").iterdir()
    with open(path, "r+b") as file:
        file.seek(target + 4)
        file.write(b"\x00")
    with open_small(world, tmp_path, "r") as store:
        views = [view for some in store.read_raw("T", 0, check=False) for view in some]
        assert len(views) == 20 and views[7][4] == 0
