"""Queues and configuration that a real 5.3.3 broker keeps in RocksDB: equal to its own account, and each damage by name."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitlog.walk import LogFiles
from messagestore.derive.kinds.rocksdb import rocksdb_findings
from messagestore.rocksdb.config import read_config
from messagestore.rocksdb.database import can_read, open_database
from messagestore.rocksdb.queues import read_ends, read_units
from storageio import REAL_DISK, MissingExtra, StoreCorrupt, UnsupportedFormat
from tests.brokerstore.tool import run
from tests.faults.test_unknown_formats import snapshot

needs_rocksdict = pytest.mark.skipif(not can_read(), reason="rocksdict is not installed")
FIRST = bytes.fromhex("0000000901526f636b42617463680100000001010000000000000000")  # RockBatch, queue 1, offset 0
NEXT = bytes.fromhex("0000000901526f636b4261746368010000000101") + (50).to_bytes(8, "big")
MAX = bytes.fromhex("0000000901526f636b4261746368016d61780100000001")


@pytest.fixture
def store(fixture_store: Any) -> Path:
    """Return a copy of the broker's folder."""
    folder: Path = fixture_store("broker-rocksdb", own=True).store
    return folder


def change(path: Path, family: str, rows: dict[bytes, bytes | None]) -> None:
    """Write or delete rows of a database."""
    from rocksdict import Options, Rdict

    options = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(path))}
    database = Rdict(str(path), Options(raw_mode=True), column_families=options)
    table = database.get_column_family(family)
    for key, value in rows.items():
        if value is None:
            del table[key]
        else:
            table[key] = value
    table.flush()
    database.close()


@needs_rocksdict
def test_every_unit_is_the_brokers(fixture_store: Any) -> None:
    """Keys and values are those that the real broker's library listed; `ls` has its queues. Nothing in the folder changes."""
    fixture = fixture_store("broker-rocksdb")
    before = snapshot(fixture.store)
    expected = fixture.expected("manifest.json")["consumequeue"]
    with open_database(str(fixture.store / "consumequeue")) as database:
        units, ends = list(read_units(database)), list(read_ends(database))
    names = ("topic", "queueId", "queueOffset", "physicalOffset", "size", "tagsCode", "storeTimestamp")
    assert [tuple(unit) for unit in units] == [tuple(row[name] for name in names) for row in expected["default"]]
    assert len(units) == 243
    last: dict[tuple[str, int], int] = {}
    for row in expected["default"]:
        last[row["topic"], row["queueId"]] = row["queueOffset"]
    assert {(end.topic, end.queue_id): end.queue_offset for end in ends if end.is_max} == last
    listed = run("ls", "--json", fixture.store).json
    assert {(row["topic"], row["queue_id"]): row["max_offset"] - 1 for row in listed["queues"]} == last
    assert "RockTopic" in [row["topic"] for row in listed["topics"]]
    assert snapshot(fixture.store) == before


@needs_rocksdict
def test_the_configuration_is_the_brokers(fixture_store: Any) -> None:
    """Topics, groups and offsets are the texts that the real broker's library listed."""
    fixture = fixture_store("broker-rocksdb")
    expected = fixture.expected("manifest.json")
    found = read_config(REAL_DISK, str(fixture.store))
    for table, name in ((found.topics, "topics"), (found.groups, "subscriptionGroups")):
        rows = expected[f"config/{name}"]["default"]
        assert table == {row["keyText"]: json.loads(row["valueText"]) for row in rows}
    assert found.offsets == {
        "RockBatch@G_order": {1: 50, 2: 50, 3: 20},
        "RockTopic@G_rock": {0: 30, 1: 30, 2: 30, 3: 30},
    }


@needs_rocksdict
def test_a_sound_store_has_no_problem_and_is_read_completely(fixture_store: Any) -> None:
    """Each record has its unit, with code and time, and each queue its end."""
    store = fixture_store("broker-rocksdb").store
    assert not list(rocksdb_findings(str(store / "consumequeue"), LogFiles(REAL_DISK, [str(store / "commitlog")])))
    ran = run("verify", store)
    assert ran.code == 0
    assert "not read" not in ran.out


def unit(offset: int, size: int = 331, code: int = 2598902, time_ms: int = 1795434282657) -> bytes:
    return struct.pack(">qiqq", offset, size, code, time_ms)


DAMAGES: dict[str, tuple[str, dict[bytes, bytes | None], str]] = {
    "a unit is gone": ("default", {FIRST: None}, "rocksdb_unit"),
    "a unit leads elsewhere": ("default", {FIRST: unit(30861)}, "rocksdb_unit"),
    "a unit has another size": ("default", {FIRST: unit(30860, 330)}, "rocksdb_unit"),
    "a unit has another code": ("default", {FIRST: unit(30860, code=5)}, "rocksdb_unit"),
    "a unit has another time": ("default", {FIRST: unit(30860, time_ms=5)}, "rocksdb_unit"),
    "a unit belongs to no record": ("default", {NEXT: unit(30860)}, "rocksdb_extra_unit"),
    "a unit lies behind the log": ("default", {NEXT: unit(1 << 40)}, "rocksdb_extra_unit"),
    "a unit is shorter": ("default", {FIRST: unit(30860)[:-1]}, "unreadable"),
    "a key is unknown": ("default", {b"\0\0\0\1\1T\1x": unit(0)}, "unreadable"),
    "an end is earlier": ("offset", {MAX: struct.pack(">qq", 30860, 0)}, "rocksdb_end"),
    "an end is gone": ("offset", {MAX: None}, "rocksdb_end"),
    "an end is shorter": ("offset", {MAX: b"12345"}, "unreadable"),
}


@needs_rocksdict
@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_named(store: Path, name: str) -> None:
    """The kind is that of the damage, the file is the database, and the exit code is 1."""
    family, rows, kind = DAMAGES[name]
    change(store / "consumequeue", family, rows)
    ran = run("verify", "--json", store)
    assert ran.code == 1
    found = [(problem["kind"], problem["file"]) for problem in ran.json["problems"]]
    assert (kind, str(store / "consumequeue")) in found


def lose_manifest(store: Path) -> None:
    next((store / "consumequeue").glob("MANIFEST-*")).unlink()


def spoil_table(store: Path) -> None:
    path = max((store / "consumequeue").glob("*.sst"), key=lambda one: one.stat().st_size)
    data = bytearray(path.read_bytes())
    data[100:200] = bytes(100)
    path.write_bytes(data)


@needs_rocksdict
@pytest.mark.parametrize("damage", [lose_manifest, spoil_table])
def test_a_damaged_database_is_a_problem_and_the_log_is_listed(store: Path, damage: Callable[[Path], None]) -> None:
    """RocksDB's own text is reported; `ls` counts the queues from the log."""
    before = run("ls", "--json", store).json["queues"]
    damage(store)
    problems = run("verify", "--json", store).json["problems"]
    assert [(one["kind"], one["file"]) for one in problems] == [("unreadable", str(store / "consumequeue"))]
    ran = run("ls", "--json", store)
    assert (ran.code, ran.json["queues"]) == (1, before)


@needs_rocksdict
@pytest.mark.parametrize("value", [b"{", b"[]", b'{"offsetTable":{"x":1}}', b'{"offsetTable":{"0":"1"}}', b"{}"])
def test_a_damaged_configuration_is_a_problem(store: Path, value: bytes) -> None:
    """The row is shown with the error."""
    change(store / "config" / "consumerOffsets", "default", {b"T@G": value})
    with pytest.raises(StoreCorrupt, match="T@G"):
        read_config(REAL_DISK, str(store))
    assert run("verify", store).code == 1


@needs_rocksdict
def test_two_versions_of_the_configuration_are_refused_by_name(store: Path) -> None:
    """A broker with configManagerVersion=v2 uses config/rdb alone; `verify` lists it as not read beside another version."""
    (store / "config" / "rdb").mkdir()
    (store / "config" / "rdb" / "CURRENT").write_text("x")
    with pytest.raises(UnsupportedFormat, match="config/rdb"):
        read_config(REAL_DISK, str(store))
    assert "config/rdb: not read" in run("verify", store).out


def test_without_the_extra_every_database_is_named_as_not_read(
    fixture_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """The queues are counted from the log, and the command that installs the package is printed."""
    store = fixture_store("broker-rocksdb").store
    expected = run("ls", "--json", store).json["queues"]
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    assert "4 parts of the folder were not read." in run("verify", store).out
    ran = run("ls", "--json", store)
    assert (ran.code, ran.json["queues"]) == (0, expected)
    assert "brokerstore[rocksdb]" in ran.talk
    with pytest.raises(MissingExtra, match=r"brokerstore\[rocksdb\]"), open_database(str(store / "consumequeue")):
        pass
