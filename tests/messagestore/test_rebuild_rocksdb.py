"""Consume queues in RocksDB that are rebuilt from the log: the rows that the real 5.3.3 broker wrote."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from messagestore.repair.rebuild_store import rebuild_store
from messagestore.rocksdb.database import can_read, open_database
from storageio import REAL_DISK, StoreLocked
from tests.brokerstore.tool import run
from tests.faults.test_unknown_formats import snapshot

from .test_rocksdb import FIRST, change, lose_manifest, spoil_table, unit

pytestmark = pytest.mark.skipif(not can_read(), reason="rocksdict is not installed")
CHECKPOINT = bytes.fromhex("00000010") + b"\1CHECKPOINT_TOPIC\1max\1\0\0\0\0"
DUE = bytes.fromhex("00000013") + b"\1SCHEDULE_TOPIC_XXXX\1\0\0\0\x08\1" + bytes(8)  # the first message of level 9


@pytest.fixture
def store(fixture_store: Any) -> Path:
    """Return a copy of the broker's folder."""
    folder: Path = fixture_store("broker-rocksdb", own=True).store
    return folder


def rows(path: Path) -> dict[str, dict[bytes, bytes]]:
    with open_database(str(path)) as database:
        return {family: dict(database.rows(family)) for family in ("default", "offset")}


def maxima(found: dict[str, dict[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the ends; the beginnings are made by the broker when it needs them, and may be 0."""
    return {key: value for key, value in found["offset"].items() if b"\1max\1" in key}


def expected_of(fixture_store: Any) -> dict[str, dict[bytes, bytes]]:
    """Return the rows that the real broker's own library listed."""
    listed = fixture_store("broker-rocksdb").expected("manifest.json")["consumequeue"]
    return {
        family: {bytes.fromhex(row["key"]): bytes.fromhex(row["value"]) for row in listed[family]}
        for family in ("default", "offset")
    }


def lose_queues(store: Path) -> None:
    shutil.rmtree(store / "consumequeue")


def be_killed(store: Path) -> None:
    """Leave what a kill between the two renames leaves."""
    (store / "brokerstore").mkdir()
    (store / "consumequeue").rename(store / "brokerstore" / "replaced-consumequeue")


def lose_rows(store: Path) -> None:
    change(store / "consumequeue", "default", {FIRST: None, DUE: None})
    change(store / "consumequeue", "offset", {CHECKPOINT: bytes(8)})


@pytest.mark.parametrize("damage", [lose_manifest, spoil_table, lose_queues, be_killed, lose_rows])
def test_the_rebuilt_rows_are_the_brokers(fixture_store: Any, store: Path, damage: Any) -> None:
    """Every unit, with code, due time and store time, every end, and the checkpoint."""
    damage(store)
    made = rebuild_store(str(store), frozenset({"consumequeue"}))
    expected, found = expected_of(fixture_store), rows(store / "consumequeue")
    assert found["default"] == expected["default"]
    assert maxima(found) == maxima(expected)
    assert (made.units, made.queues) == (243, len(maxima(expected)) - 1)
    firsts = {key: value for key, value in found["offset"].items() if b"\1min\1" in key}
    assert len(firsts) == made.queues and all(value[8:] == bytes(8) for value in firsts.values())
    assert run("verify", store).code == 0


def test_the_command_rebuilds_queues_and_index_and_keeps_the_old_database(store: Path) -> None:
    """With `--plan` nothing changes; the index is the same again."""
    before = snapshot(store)
    assert run("rebuild", store, "--plan").code == 0 and snapshot(store) == before
    ran = run("rebuild", store, "--apply", "--json")
    assert (ran.code, ran.json["units"], ran.json["index_files"]) == (0, 243, 1)
    after = snapshot(store)
    kept = "brokerstore/kept-consumequeue-0/"
    changed = {name for name in before if after.get(name) != before[name] and not name.startswith("consumequeue/")}
    assert changed == set()
    assert {name.removeprefix(kept) for name in after if name.startswith(kept)} >= {"CURRENT"}


def test_the_due_time_of_an_old_unit_is_kept(store: Path) -> None:
    """The folder does not show which delay levels the broker had; a time that no level could have is not kept."""
    found = rows(store / "consumequeue")["default"]
    position, size, due, stored = (
        int.from_bytes(found[DUE][at:end], "big") for at, end in ((0, 8), (8, 12), (12, 20), (20, 28))
    )
    for code, expected in ((due + 5000, due + 5000), (stored - 1, due)):
        change(store / "consumequeue", "default", {DUE: unit(position, size, code, stored)})
        rebuild_store(str(store), frozenset({"consumequeue"}))
        assert int.from_bytes(rows(store / "consumequeue")["default"][DUE][12:20], "big") == expected


def test_rebuild_keeps_the_end_of_a_queue_without_records(store: Path) -> None:
    """Its next message would get the number 0 otherwise, and consumers would skip it. A deleted topic's end is not kept."""
    first = min((store / "commitlog").iterdir())
    first.unlink()
    gone, deleted = (bytes.fromhex("00000009") + name + b"\1max\1\0\0\0\7" for name in (b"\1RockTopic", b"\1RockTopiX"))
    change(store / "consumequeue", "offset", dict.fromkeys((gone, deleted), (100).to_bytes(8, "big") + (41).to_bytes(8, "big")))
    rebuild_store(str(store), frozenset({"consumequeue"}))
    found = rows(store / "consumequeue")["offset"]
    assert found[gone] == (100).to_bytes(8, "big") + (41).to_bytes(8, "big") and deleted not in found


def test_units_of_a_deleted_topic_are_left_out(store: Path) -> None:
    """Its records stay in the log; the table of topics lacks it."""
    change(store / "config" / "topics", "default", {b"RockBatch": None})
    made = rebuild_store(str(store), frozenset({"consumequeue"}))
    assert made.units < 243 and not [key for key in rows(store / "consumequeue")["default"] if b"RockBatch" in key]


def test_rebuild_of_a_locked_or_damaged_store_changes_nothing(store: Path) -> None:
    """A store in use, and a damaged log."""
    lock = REAL_DISK.lock(str(store / "lock"))
    try:
        with pytest.raises(StoreLocked):
            rebuild_store(str(store), frozenset({"consumequeue"}))
    finally:
        lock.release()
    with min((store / "commitlog").iterdir()).open("r+b") as file:
        file.seek(300)
        file.write(b"\xee" * 300)
    before = snapshot(store)
    assert run("rebuild", store, "consumequeue", "--apply").code not in (0, 7)
    assert snapshot(store) == before
