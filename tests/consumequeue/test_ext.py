"""Reading of extended units (docs/formats/consumequeue.md#extended-unit)."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from storageio import REAL_DISK, StoreCorrupt


def opened(world: Any, folder: Path) -> Any:
    return world.consumequeue.ConsumeQueueExt(REAL_DISK, str(folder))


@pytest.mark.parametrize("name", ["cqext", "broker-ext"])
def test_every_unit_of_a_real_store(name: str, fixture_store: Any, queues: Any, world: Any) -> None:
    """Each queue unit's address leads to tags code, store time and bitmap, also in the next file."""
    fixture = fixture_store(name)
    plain = queues(units=100, writable=False, folder=fixture.store / "consumequeue")
    seen = 0
    for queue in fixture.expected()["queues"]:
        position = Path(queue["topic"]) / str(queue["queueId"])
        ext = opened(world, fixture.store / "consumequeue_ext" / position)
        units = [unit for _, unit in plain.get(queue["topic"], queue["queueId"]).units()]
        for unit, resolved, expected in zip(units, queue["cq"], queue["ext"], strict=True):
            assert world.consumequeue.is_ext_address(unit.tags_code) == (expected is not None)
            assert ext.tags_code(unit.tags_code) == resolved[2]
            if expected is not None:
                tags_code, store_time, bitmap, size = expected
                assert ext.unit(unit.tags_code) == (tags_code, store_time, base64.b64decode(bitmap or ""), size)
                seen += 1
        addresses = [unit.tags_code for unit in units if unit.tags_code < -(1 << 31)]
        assert [address for address, _ in ext.units()] == addresses
    assert seen > 100


def test_a_tags_code_is_no_address(world: Any, tmp_path: Path) -> None:
    """No 32-bit hash is taken for an address."""
    ext = opened(world, tmp_path / "none")
    assert ext.tags_code(-(1 << 31)) == -(1 << 31)
    assert ext.unit(5) is None
    assert list(ext.units()) == []


BASE = -(1 << 63)
UNITS = [
    ("past the file", 64, bytes(64)),
    ("zeros", 0, bytes(64)),
    ("no head before the file's end", 45, bytes(64)),
    ("a size that is not the bitmap's", 0, bytes.fromhex("0019" + "00" * 16 + "0004") + bytes(44)),
    ("a bitmap that leaves the file", 0, bytes.fromhex("4014" + "00" * 16 + "4000") + bytes(44)),
    ("a negative bitmap", 0, bytes.fromhex("0013" + "00" * 16 + "ffff") + bytes(44)),
]


@pytest.mark.parametrize(("name", "position", "data"), UNITS, ids=[row[0] for row in UNITS])
def test_address_of_an_incomplete_extended_unit_returns_none(
    world: Any, tmp_path: Path, name: str, position: int, data: bytes
) -> None:
    """The lookup returns None instead of other bytes; iterating over the file raises an error with the position."""
    (tmp_path / f"{0:020d}").write_bytes(data)
    ext = opened(world, tmp_path)
    assert ext.unit(BASE + position) is None
    assert ext.tags_code(BASE + position) is None
    if data != bytes(64):
        with pytest.raises(StoreCorrupt, match="extended unit"):
            list(ext.units())
