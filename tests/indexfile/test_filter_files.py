"""Files of key filters, against a plain model of the format page, made and damaged by hand, and the calls that write them."""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from storageio import REAL_DISK
from storageio.testing import CountingDisk, FailingDisk, ForgettingDisk
from tests.builds import World
from tests.indexfile.model import FILTER_HEAD, filter_file, key_hash, sealed_blocks, sealed_head
from tests.indexfile.test_filters import ITEMS, SLOTS, build_all, fill

KEYS = ITEMS - 1  # of a full file
BLOCKS = 4  # of 101 items: 1616 bits, 480 in a block
MAGIC = b"BSKEYS\0\1"
CHANGES = {"make folder", "create", "truncate", "write", "sync", "rename", "sync folder", "delete"}


def name_and_header(path: Path) -> tuple[int, bytes]:
    return int(path.name), path.read_bytes()[:40]


def expected(index: Any, first: int, width: int) -> bytes:
    """Return the filter file of `width` index files from number `first` on; file n has the keys from 100 n on."""
    return filter_file(
        SLOTS,
        ITEMS,
        [
            (*name_and_header(Path(index.files[n].path)), [key_hash(f"T#k{key}") for key in range(KEYS * n, KEYS * n + KEYS)])
            for n in range(first, first + width)
        ],
    )


def check_files(index: Any, folder: Path, *widths: int) -> None:
    """Compare all files of the folder with the model; `widths` are those of the filters, from the oldest index file on."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    firsts = [sum(widths[:n]) for n in range(len(widths))]
    requested = {
        f"{int(index.files[first].name)}-{width}.keys": expected(index, first, width)
        for first, width in zip(firsts, widths, strict=True)
    }
    assert sorted(found) == sorted(requested)
    for name, data in requested.items():
        assert found[name] == data, name


def used(index: Any) -> list[Any]:
    return [one for one in index.searched if hasattr(one, "live")]


def test_filter_files_match_the_format_page(world: World, index: Callable[..., Any], tmp_path: Path) -> None:
    """Every width; each bit and each checksum is that of the model."""
    opened = index(SLOTS, ITEMS)
    fill(opened, 0, 31 * KEYS + 1)
    build_all(world, opened, tmp_path / "keys")
    check_files(opened, tmp_path / "keys", 16, 8, 4, 2, 1)
    fill(opened, 31 * KEYS + 1, 65 * KEYS + 1)
    build_all(world, opened, tmp_path / "keys")
    check_files(opened, tmp_path / "keys", 64, 1)


def test_newest_index_file_has_no_filter_even_if_full(world: World, index: Callable[..., Any], tmp_path: Path) -> None:
    """The file before it gets its filter as soon as there is a newer one."""
    opened = index(SLOTS, ITEMS)
    folder = tmp_path / "keys"
    folder.mkdir()
    stops = [0, KEYS, KEYS + 1, 2 * KEYS, 2 * KEYS + 1]
    for (start, stop), widths in zip(pairwise(stops), [[], [1], [1], [2]], strict=True):
        fill(opened, start, stop)
        build_all(world, opened, folder)
        check_files(opened, folder, *widths)


# Files made by hand


class Two(NamedTuple):
    """An index of two full files and one that is not, and the columns of the full ones."""

    opened: Any
    folder: Path
    columns: list[bytes]


@pytest.fixture
def two(index: Callable[..., Any], tmp_path: Path) -> Two:
    opened = index(SLOTS, ITEMS)
    fill(opened, 0, 2 * KEYS + 50)
    (tmp_path / "keys").mkdir()
    return Two(opened, tmp_path / "keys", [struct.pack(">q", int(one.name)) + one.mapped_header() for one in opened.files])


def empty_filter(columns: list[bytes], blocks: int = BLOCKS, **changed: Any) -> bytes:
    """Return a file whose checksums are right and whose bits say that its index files have no key at all."""
    fields = {"magic": MAGIC, "width": len(columns), "slots": SLOTS, "items": ITEMS, "blocks": blocks} | changed
    head = sealed_head(FILTER_HEAD.pack(*fields.values()) + b"".join(columns))
    return head + sealed_blocks(zlib.crc32(head[:4092]), [bytes(64 * max(1, len(columns)) - 4)] * blocks)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def load(world: World, two: Two, data: bytes) -> list[Any]:
    """Return the filters that are used with this file in the folder."""
    (two.folder / f"{int(two.opened.files[0].name)}-2.keys").write_bytes(data)
    world.indexfile.KeyFilters(REAL_DISK, str(two.folder), two.opened).load()
    return used(two.opened)


def test_a_filter_made_by_hand_is_used(world: World, two: Two) -> None:
    """So the next test's files are unused for the one thing that is wrong with them."""
    (one,) = load(world, two, empty_filter(two.columns[:2]))
    assert [one.buffer.mask(key_hash(f"T#k{key}")) for key in range(50)] == [0] * 50 and one.live == 3
    assert not list(world.indexfile.damaged_filters(REAL_DISK, str(two.folder)))


WRONG: dict[str, Callable[[list[bytes]], bytes]] = {
    "another program's magic": lambda columns: empty_filter(columns, magic=b"BSKEYZ\0\1"),
    "a later version": lambda columns: empty_filter(columns, magic=b"BSKEYS\0\2"),
    "width 0": lambda columns: empty_filter([]),
    "width 3": lambda columns: empty_filter([*columns, columns[0]]),
    "width 48": lambda columns: empty_filter(columns * 24),
    "width 1 with the blocks of 2": lambda columns: empty_filter(columns, width=1),
    "a negative width": lambda columns: empty_filter(columns, width=-2),
    "a block too few": lambda columns: empty_filter(columns, blocks=BLOCKS - 1),
    "a block too many": lambda columns: empty_filter(columns, blocks=BLOCKS + 1),
    "no blocks": lambda columns: empty_filter(columns, blocks=0) + bytes(64),
    "a byte too few": lambda columns: empty_filter(columns)[:-1],
    "a byte too many": lambda columns: empty_filter(columns) + b"\0",
    "the first page alone": lambda columns: empty_filter(columns)[:4096],
    "nothing": lambda columns: b"",
    "ten bytes": lambda columns: empty_filter(columns)[:10],
    "half the first page": lambda columns: empty_filter(columns)[:2048],
    "the checksum of the first page": lambda columns: flipped(empty_filter(columns), 4095),
    "zeros": lambda columns: bytes(4096 + 128 * BLOCKS),
}
OTHERS: dict[str, Callable[[list[bytes]], bytes]] = {
    "other slots": lambda columns: empty_filter(columns, slots=SLOTS + 1),
    "other items of as many blocks": lambda columns: empty_filter(columns, items=ITEMS - 1),
    "other items": lambda columns: empty_filter(columns, items=ITEMS + 60, blocks=6),
    "files of other names": lambda columns: empty_filter([struct.pack(">q", 7) + one[8:] for one in columns]),
    "files with another header": lambda columns: empty_filter([one[:-1] + b"!" for one in columns]),
}


@pytest.mark.parametrize("kind", [*WRONG, *OTHERS])
def test_a_filter_that_cannot_be_used_is_ignored_and_built_again(world: World, two: Two, kind: str) -> None:
    """One of another index is no damage, but a writer replaces it as well."""
    assert not load(world, two, (WRONG | OTHERS)[kind](two.columns[:2]))
    assert [one.name for one in two.opened.searched] == [one.name for one in two.opened.files]
    assert bool(list(world.indexfile.damaged_filters(REAL_DISK, str(two.folder)))) == (kind in WRONG)
    build_all(world, two.opened, two.folder)
    build_all(world, two.opened, two.folder)
    check_files(two.opened, two.folder, 2)


@pytest.mark.parametrize("names", [[2], [1, 2], [3]])
def test_a_file_that_is_not_full_or_the_newest_is_searched(
    world: World, two: Two, index: Callable[..., Any], names: list[int]
) -> None:
    """A file that a recovery cut may have newer ones behind it for a moment, and gets its items again later."""
    last = Path(two.opened.files[-1].path)
    (last.parent / str(int(last.name) + 1)).write_bytes(Path(two.opened.files[0].path).read_bytes())
    reader = index(SLOTS, ITEMS, writable=False)
    columns = [struct.pack(">q", int(one.name)) + one.mapped_header() for one in reader.files]
    (two.folder / "1-1.keys").write_bytes(empty_filter([columns[n] for n in names]))
    world.indexfile.KeyFilters(REAL_DISK, str(two.folder), reader).load()
    assert [one.live for one in used(reader)] == ([1] if names == [1, 2] else [])
    writer = index(SLOTS, ITEMS)
    (two.folder / "1-1.keys").unlink()
    build_all(world, writer, two.folder)
    check_files(writer, two.folder, 2)


def test_a_reader_sees_that_a_file_was_cut(world: World, two: Two, index: Callable[..., Any]) -> None:
    """A recovery beside the reader cut it, and it may get other items."""
    build_all(world, two.opened, two.folder)
    reader = index(SLOTS, ITEMS, writable=False)
    world.indexfile.KeyFilters(REAL_DISK, str(two.folder), reader).load()
    assert [one.live for one in used(reader)] == [3]
    with Path(two.opened.files[1].path).open("r+b") as file:
        file.seek(36)
        file.write(struct.pack(">i", ITEMS - 1))
    reader.refresh()
    assert [one.live for one in used(reader)] == [1]


def test_an_index_file_that_a_writer_deleted(world: World, two: Two, index: Callable[..., Any]) -> None:
    """A reader that has not listed the folder again loads filters without an error."""
    build_all(world, two.opened, two.folder)
    reader = index(SLOTS, ITEMS, writable=False)
    Path(two.opened.files[0].path).unlink()
    world.indexfile.KeyFilters(REAL_DISK, str(two.folder), reader).load()
    assert [one.live for one in used(reader)] == [2]


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_merge_ends_at_damage_in_either_filter(
    world: World, two: Two, index: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, damaged: int
) -> None:
    """No filter gets wider than the greatest width; with a greater one the next writer would merge these."""
    with monkeypatch.context() as context:
        context.setattr(world.module("indexfile.filters"), "FILTER_WIDTH_MAX", 1)
        build_all(world, two.opened, two.folder)
        check_files(two.opened, two.folder, 1, 1)
    path = sorted(two.folder.iterdir())[damaged]
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-60] + bytes(60))
    again = index(SLOTS, ITEMS)
    build_rest(build_all(world, again, two.folder))
    check_files(again, two.folder, 2)


def test_damage_is_not_merged(world: World, index: Callable[..., Any], tmp_path: Path) -> None:
    """The checksums of the merged filter would cover it, and a query would miss a key in silence."""
    opened = index(SLOTS, ITEMS)
    folder = tmp_path / "keys"
    fill(opened, 0, KEYS + 1)
    build_all(world, opened, folder)
    opened.close()
    (path,) = folder.iterdir()
    for number in range(BLOCKS):
        data = bytearray(path.read_bytes())
        at = 4096 + 64 * number
        data[at + 4 : at + 64] = bytes(60)
        path.write_bytes(data)
        again = index(SLOTS, ITEMS)
        fill(again, KEYS + 1, 2 * KEYS + 1)
        filters = build_all(world, again, folder)
        for key in range(2 * KEYS):
            bits = [one.buffer.mask(key_hash(f"T#k{key}")) & one.live for one in used(again)]
            assert bits[key // KEYS] & 1 if len(bits) == 2 else bits[0] >> key // KEYS & 1, key
        build_rest(filters)
        check_files(again, folder, 2)
        again.close()
        Path(again.files[-1].path).unlink()  # file 1 is the newest again, and its filter goes
        (path,) = folder.iterdir()
        path.unlink()
        shorter = index(SLOTS, ITEMS)
        build_all(world, shorter, folder)
        (path,) = folder.iterdir()
        shorter.close()


def test_filter_found_damaged_by_a_query_is_rebuilt_by_its_writer(world: World, two: Two) -> None:
    """Until then every file of the filter is searched."""
    filters = build_all(world, two.opened, two.folder)
    (path,) = two.folder.iterdir()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"x" * 128 * BLOCKS)
    (one,) = used(two.opened)
    assert one.buffer.mask(key_hash("T#k5")) & 3 == 3
    build_rest(filters)
    check_files(two.opened, two.folder, 2)


def build_rest(filters: Any) -> None:
    """Run steps without a limit until nothing is left to do."""
    filters.step(clock(0.0))
    filters.step(clock(0.0))


def test_an_index_file_that_was_made_again_under_its_name(
    world: World, two: Two, index: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Its new filter takes the place of the old one, in the folder and in use."""
    first, second = (Path(one.path) for one in two.opened.files[:2])
    build_all(world, two.opened, two.folder)
    two.opened.close()
    data = second.read_bytes()
    for path in two.folder.iterdir():
        path.unlink()
    (two.folder / f"{int(first.name)}-1.keys").write_bytes(empty_filter([struct.pack(">q", int(first.name)) + data[:40]]))
    again = index(SLOTS, ITEMS)
    build_rest(build_all(world, again, two.folder))
    check_files(again, two.folder, 2)
    assert len(again.filters) == 1 and not warnings(caplog)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of the filters since the last call."""
    found = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    caplog.clear()
    return found


# The steps that write them


@pytest.fixture
def small_steps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a piece of work 30 items or one block of a filter, with a sync after three."""
    module = world.module("indexfile.filters")
    monkeypatch.setattr(module, "ITEMS_AT_ONCE", 30)
    monkeypatch.setattr(module, "CHUNK_SIZE", 64)
    monkeypatch.setattr(module, "CHUNKS_A_SYNC", 3)


def clock(pause_s: float) -> Callable[[], float]:
    """Return a clock that goes on each time it is read."""
    return map(pause_s.__mul__, count()).__next__


@pytest.mark.usefixtures("small_steps")
def test_the_calls_of_a_build_and_of_a_merge(world: World, two: Two) -> None:
    """A filter has its name when it is on the disk, and what it replaces goes when the name is on the disk."""
    disk = CountingDisk()
    filters = world.indexfile.KeyFilters(disk, str(two.folder), two.opened)
    filters.step(clock(0.0))
    first, second = (int(one.name) for one in two.opened.files[:2])

    def calls(name: str) -> list[tuple[str, str]]:
        file = [(one, f"{name}.new") for one in ("create", "truncate", *["write"] * 4, "sync", "write", "sync", "rename")]
        return [*file, ("sync folder", "keys")]

    made = [(one.operation, Path(one.path).name) for one in disk.calls if one.operation in CHANGES]
    assert made == [
        ("make folder", "keys"), *calls(f"{first}-1.keys"), *calls(f"{second}-1.keys"), *calls(f"{first}-2.keys"),
        ("delete", f"{first}-1.keys"), ("delete", f"{second}-1.keys"),
    ]  # fmt: skip


def test_next_writer_keeps_complete_filters(world: World, two: Two, index: Callable[..., Any]) -> None:
    """Filters that are whole are used and not written again."""
    build_all(world, two.opened, two.folder)
    disk = CountingDisk()
    again = index(SLOTS, ITEMS)
    world.indexfile.KeyFilters(disk, str(two.folder), again).step(clock(0.0))
    assert [one.operation for one in disk.calls if one.operation in CHANGES] == ["make folder"]
    assert [one.live for one in used(again)] == [3]


@pytest.mark.usefixtures("small_steps")
def test_leftover_of_an_unfinished_step_does_not_lengthen_a_filter(world: World, two: Two) -> None:
    """The writer that left it may be this one, which deleted such files when it began."""
    filters = build_all(world, two.opened, two.folder)
    (two.folder / f"{int(two.opened.files[2].name)}-1.keys.new").write_bytes(b"x" * 9000)
    fill(two.opened, 2 * KEYS + 50, 3 * KEYS + 1)
    filters.step(clock(0.0))
    check_files(two.opened, two.folder, 2, 1)


@pytest.mark.usefixtures("small_steps")
def test_step_respects_its_time_limit_and_leaves_nothing_open_on_close(world: World, two: Two) -> None:
    """It does pieces of work for 0.05 s; closed in the middle of a file it leaves nothing open and does nothing more."""
    disk = ForgettingDisk()
    done: list[str] = []
    disk.watch = lambda operation, _: done.append(operation)
    filters = world.indexfile.KeyFilters(disk, "/keys", two.opened)
    filters.step(clock(0.06))
    assert not done
    for writes in (0, 0, 3):  # two pieces a step: the items of a file are four, then the head and two blocks are written
        filters.step(clock(0.02))
        assert done.count("write") == writes
    assert not filters.is_idle and disk.open_files == 1
    done.clear()
    filters.close()
    assert filters.is_idle and disk.open_files == 0 and not done
    again = world.indexfile.KeyFilters(disk, "/keys", two.opened)
    again.step(clock(0.0))
    assert list(disk.files().values()) == [expected(two.opened, 0, 2)]


@pytest.mark.usefixtures("small_steps")
def test_disk_failure_stops_filter_building_but_no_query(world: World, two: Two, caplog: pytest.LogCaptureFixture) -> None:
    """Each call fails once: it is logged once, nothing stays open or is tried again, and the next writer builds everything."""
    whole = CountingDisk(ForgettingDisk())
    world.indexfile.KeyFilters(whole, "/keys", two.opened).step(clock(0.0))
    failed = 0
    for number in range(1, len(whole.calls) + 1):
        inner = ForgettingDisk()
        disk = FailingDisk(number, inner=inner)
        filters = world.indexfile.KeyFilters(disk, "/keys", two.opened)
        two.opened.use_filters([])
        filters.step(clock(0.0))
        calls = len(disk.calls)
        filters.step(clock(0.0))
        assert filters.is_idle and inner.open_files == 0
        if found := warnings(caplog):
            failed += 1
            assert len(found) == 1 and len(disk.calls) == calls
        for key in range(2 * KEYS):
            for one in used(two.opened):
                bit = one.files.index(two.opened.files[key // KEYS]) if two.opened.files[key // KEYS] in one.files else None
                assert bit is None or one.buffer.mask(key_hash(f"T#k{key}")) >> bit & 1
        two.opened.use_filters([])
        world.indexfile.KeyFilters(inner, "/keys", two.opened).step(clock(0.0))
        assert list(inner.files().values()) == [expected(two.opened, 0, 2)]
    assert failed > 30


@pytest.mark.usefixtures("small_steps")
def test_a_filter_that_was_not_built_is_not_tried_each_second(world: World, two: Two, index: Callable[..., Any]) -> None:
    """An index file with another number of items in its header stays as it is until the next writer looks."""
    path = Path(two.opened.files[1].path)
    two.opened.close()
    data = path.read_bytes()
    path.write_bytes(data[:36] + struct.pack(">i", ITEMS - 1) + data[40:])
    disk = CountingDisk()
    again = index(SLOTS, ITEMS)
    filters = build_all(world, again, two.folder)
    filters._disk = disk
    filters.step(clock(0.0))
    assert not disk.calls
    check_files(again, two.folder, 1)


@pytest.mark.usefixtures("small_steps")
def test_a_filter_that_is_not_used_is_not_built_each_second(world: World, two: Two, index: Callable[..., Any]) -> None:
    """The names of two index files may be one number, which is what a filter has of them."""
    first, second = (Path(one.path) for one in two.opened.files[:2])
    (first.parent / f"0{second.name}").write_bytes(first.read_bytes())
    disk = CountingDisk()
    again = index(SLOTS, ITEMS)
    filters = build_all(world, again, two.folder)
    filters._disk = disk
    filters.step(clock(0.0))
    assert not disk.calls and not all(again.has_filter(file) for file in again.files[:-1])
    for one in used(again):
        for file in filter(None, one.files):
            assert file.path == str(second) or file.path == str(first)


@pytest.mark.usefixtures("small_steps")
def test_a_power_failure_leaves_filters_that_are_right_or_unused(world: World, two: Two) -> None:
    """Every image of every moment: each key that a filter's files have passes it."""
    disk = ForgettingDisk()
    images: list[Any] = []
    disk.watch = lambda *_: images.extend(disk.images(Random(len(images)), chances=2))
    world.indexfile.KeyFilters(disk, "/keys", two.opened).step(clock(0.0))
    positions = {file.path: position for position, file in enumerate(two.opened.files)}
    seen = 0
    for image in {repr(sorted(image.files.items())): image for image in images}.values():
        two.opened.use_filters([])
        world.indexfile.KeyFilters(ForgettingDisk.of(image), "/keys", two.opened).load()
        for one in used(two.opened):
            seen += 1
            for bit, file in enumerate(one.files):
                for key in range(positions[file.path] * KEYS, positions[file.path] * KEYS + KEYS, 3):
                    assert one.buffer.mask(key_hash(f"T#k{key}")) >> bit & 1
    assert seen > 20
