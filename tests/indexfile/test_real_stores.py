"""Comparison with files and answers of real stores."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from indexfile.layout import BAD_SLOT, SOUND

NAMES = ["plain", "cqext", "batchcq", "broker-ext", "broker-live", "lmq", "propcrc"]
ROLLBACK = 12


@pytest.mark.parametrize("name", NAMES)
def test_every_query_of_the_manifest(name: str, fixture_store: Any, index: Any) -> None:
    """Physical offsets, their order, limits, time ranges and the reported last update are the store's."""
    fixture = fixture_store(name)
    opened = index(500, 2000, writable=False, folder=fixture.store / "index")
    queries = fixture.expected()["queries"]
    assert len(queries) > 60
    for query in queries:
        got = opened.select(query["topic"], query["key"], query["maxNum"], query["begin"], query["end"])
        assert got == query["phyOffsets"], query
        header = opened.last_header()
        assert header.end_timestamp_ms == query["indexLastUpdateTimestamp"]
        assert header.end_physical_offset == query["indexLastUpdatePhyoffset"]


@pytest.mark.parametrize("name", NAMES)
def test_the_messages_of_a_real_store_give_its_files(
    name: str, fixture_store: Any, index: Any, clock_disk: Any, tmp_path: Any
) -> None:
    """With its clock the files are equal byte by byte; records dispatched twice are indexed once, except the last one."""
    fixture = fixture_store(name)
    real = {path.name: path.read_bytes() for path in sorted((fixture.store / "index").iterdir())}
    opened = index(500, 2000, disk=clock_disk(*real))
    messages = fixture.expected()["messages"]
    for _ in range(2):
        for message in messages:
            opened.build(
                message["topic"],
                message["properties"].get("UNIQ_KEY"),
                message["properties"].get("KEYS"),
                message["physicalOffset"],
                message["storeTimestamp"],
                is_rollback=message["sysFlag"] & ROLLBACK == ROLLBACK,
            )
        if opened.files:
            opened.sync()
            made = {path.name: path.read_bytes() for path in sorted((tmp_path / "index").iterdir())}
            assert made == real
        messages = messages[:-5]


@pytest.mark.parametrize("name", NAMES)
def test_real_files_are_valid_and_give_their_slot_layout(name: str, fixture_store: Any, index: Any, world: Any) -> None:
    """No chain is out of order, and four items per slot are detected from the size."""
    from storageio import REAL_DISK

    folder = fixture_store(name).store / "index"
    opened = index(500, 2000, writable=False, folder=folder)
    opened.load()
    for file in opened.files:
        file.check()
    paths, strays = world.indexfile.index_paths(REAL_DISK, str(folder))
    assert strays == []
    assert world.indexfile.find_shape(REAL_DISK, paths) == (500, 2000)


def test_slots_in_a_hole_are_empty(fixture_store: Any, index: Any) -> None:
    """A file of few items has holes between its slots. A hole in place of a used slot is damage."""
    opened = index(500, 2000, writable=False, folder=fixture_store("broker-ext").store / "index")
    buffer, items = opened.files[0].buffer, 2000
    used = [slot for slot in range(500) if any(buffer.data[40 + 4 * slot : 44 + 4 * slot])]
    assert 1 < len(used) < 500
    written = array("q", [bound for slot in used for bound in (slot, slot + 1)])
    assert buffer.check(items, None, written) == buffer.check(items) == (SOUND, 0)
    for position in (0, len(used) // 2, len(used) - 1):
        lacking = written[: 2 * position] + written[2 * position + 2 :]
        assert buffer.check(items, None, lacking) == (BAD_SLOT, used[position])
    assert buffer.check(items, None, array("q")) == (BAD_SLOT, used[0])
