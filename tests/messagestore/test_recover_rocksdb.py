"""Recovery of a killed broker's store with queues in RocksDB: as sound as before, with a cut, with fillers, and interrupted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from commitlog import StoredMessage
from commitlog.walk import LogFiles
from messagestore.broker.config.delay_offsets import DelayOffsets
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.recover import Choice, Recovery
from messagestore.rocksdb.config import VERSION_2, copy_with_offsets, offsets_name, read_config
from messagestore.rocksdb.database import can_read, open_database
from storageio import REAL_DISK, DiskError, RealDisk
from tests.brokerstore.tool import run
from tests.faults.test_unknown_formats import records, snapshot

from .test_rebuild_rocksdb import expected_of, maxima, rows
from .test_rocksdb import change

pytestmark = pytest.mark.skipif(not can_read(), reason="rocksdict is not installed")
DONE = (6, 7)  # it was repaired, with or without loss
KEPT = 100  # records before the damaged one


@pytest.fixture
def store(fixture_store: Any) -> Path:
    """Return a copy of the broker's folder."""
    folder: Path = fixture_store("broker-rocksdb", own=True).store
    return folder


def spoil(store: Path, number: int) -> int:
    """Overwrite the beginning of a record and return its offset."""
    path, at = list(records(store))[number]
    with path.open("r+b") as file:
        file.seek(at + 4)
        file.write(b"\xee" * 32)
    return int(path.name) + at


def group_offsets(fixture_store: Any) -> dict[str, dict[int, int]]:
    """Return the offsets that the real broker's own library listed."""
    listed = fixture_store("broker-rocksdb").expected("manifest.json")["config/consumerOffsets"]["default"]
    tables = {row["keyText"]: json.loads(row["valueText"])["offsetTable"] for row in listed}
    return {key: {int(queue): offset for queue, offset in table.items()} for key, table in tables.items()}


def units_before(cut: int, fixture_store: Any) -> dict[bytes, bytes]:
    """Return the real broker's units of records before an offset."""
    units = expected_of(fixture_store)["default"]
    return {key: value for key, value in units.items() if int.from_bytes(value[:8], "big") < cut}


def ends_of(units: dict[bytes, bytes]) -> dict[tuple[str, int], int]:
    """Return the next offset of each queue, from the keys of its units."""
    ends: dict[tuple[str, int], int] = {}
    for key in units:
        topic = key[5 : 5 + int.from_bytes(key[:4], "big")].decode()
        queue_id, offset = int.from_bytes(key[-13:-9], "big"), int.from_bytes(key[-8:], "big")
        ends[topic, queue_id] = max(ends.get((topic, queue_id), 0), offset + 1)
    return ends


def check_offsets(fixture_store: Any, store: Path, units: dict[bytes, bytes]) -> int:
    """Compare the groups' offsets with the broker's, limited by the ends of the queues; return how many were lowered."""
    ends, before = ends_of(units), group_offsets(fixture_store)
    expected = {
        key: {queue: min(offset, ends.get((key.split("@")[0], queue), 0)) for queue, offset in table.items()}
        for key, table in before.items()
    }
    assert read_config(REAL_DISK, str(store)).offsets == expected
    return sum(expected[key][queue] != offset for key, table in before.items() for queue, offset in table.items())


def test_a_sound_store_of_a_killed_broker_only_loses_its_abort_file(fixture_store: Any, store: Path) -> None:
    """The databases are as they were."""
    before = snapshot(store)
    assert run("recover", store).code == 1 and snapshot(store) == before
    assert run("recover", store, "--apply").code in DONE
    after = snapshot(store)
    assert {name for name in before if after.get(name) != before[name]} == {"abort"}
    assert not Recovery(str(store)).plan().steps
    assert rows(store / "consumequeue")["default"] == expected_of(fixture_store)["default"]


@pytest.mark.deep
def test_queues_and_offsets_end_with_a_cut_log(fixture_store: Any, store: Path) -> None:
    """Units are the broker's up to the cut, and no group would skip a message; the old databases are kept."""
    cut = spoil(store, KEPT)
    before = snapshot(store)
    assert Recovery(str(store)).apply().needs_choice and snapshot(store) == before
    assert run("recover", store, "--truncate", "--apply").code in DONE
    expected = units_before(cut, fixture_store)
    found = rows(store / "consumequeue")
    assert found["default"] == expected and len(expected) == KEPT
    last = {key: offset - 1 for key, offset in ends_of(expected).items()}
    assert sorted(int.from_bytes(value[8:], "big") for value in maxima(found).values() if len(value) == 16) == sorted(
        last.values()
    )
    assert check_offsets(fixture_store, store, expected) > 0
    kept = {path.name for path in (store / "brokerstore").iterdir()}
    assert {"kept-consumequeue-0", "kept-config-consumerOffsets-0"} <= kept
    assert run("verify", store).code == 0 and not Recovery(str(store)).plan().steps
    assert not (store / "abort").exists()


def test_fillers_keep_the_later_messages(fixture_store: Any, store: Path) -> None:
    """The lost message's number is a filler's, so no queue has a gap."""
    spoil(store, KEPT)
    assert run("recover", store, "--skip-bad", "--apply").code in DONE
    found, expected = rows(store / "consumequeue")["default"], expected_of(fixture_store)["default"]
    assert found.keys() == expected.keys()
    assert sum(found[key] != expected[key] for key in expected) == 1
    assert check_offsets(fixture_store, store, expected) == 0
    assert run("verify", store).code == 0


def test_a_crash_tail_is_cut_without_a_choice(fixture_store: Any, store: Path) -> None:
    """The last record was not complete when the broker was killed; its unit goes too."""
    messages = [one for one in LogFiles(REAL_DISK, [str(store / "commitlog")]).messages() if isinstance(one, StoredMessage)]
    cut = spoil(store, len(messages) - 1)
    checkpoint = store / "checkpoint"
    checkpoint.write_bytes(bytes(8) + checkpoint.read_bytes()[8:])  # nothing was flushed
    assert run("recover", store, "--apply").code in DONE
    found = rows(store / "consumequeue")["default"]
    assert found == {
        key: value for key, value in expected_of(fixture_store)["default"].items() if int.from_bytes(value[:8], "big") < cut
    }


def test_a_rebuild_clamps_offsets_too(fixture_store: Any, store: Path) -> None:
    """Those of groups and of delay levels. Everything else in the database is as it was."""
    offsets = store / "config" / "consumerOffsets"
    key = b"RockTopic@G_rock"
    change(offsets, "default", {key: b'{"offsetTable":{"0":31,"1":30,"2":29,"9":4}}'})
    (store / "config" / "delayOffset.json").write_text('{"offsetTable":{9:7}}')
    with open_database(str(offsets)) as database:
        before = {family: dict(database.rows(family)) for family in database.families}
    rebuild_store(str(store), frozenset({"consumequeue"}))
    with open_database(str(offsets)) as database:
        after = {family: dict(database.rows(family)) for family in database.families}
    assert json.loads(after["default"].pop(key)) == {"offsetTable": {"0": 30, "1": 30, "2": 29, "9": 0}}
    del before["default"][key]
    assert after == before and len(before) == 3
    ends = ends_of(expected_of(fixture_store)["default"])
    assert DelayOffsets(REAL_DISK, str(store / "config")).get(9) == ends["SCHEDULE_TOPIC_XXXX", 8]
    assert Recovery(str(store)).queues.clamp(saves=False) == []


class NoRename(RealDisk):
    """A disk whose n-th rename fails."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def rename(self, source: str, target: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise DiskError("rename", source, 5, "planned")
        super().rename(source, target)


@pytest.mark.deep
def test_an_interrupted_recovery_is_repeated(fixture_store: Any, store: Path, tmp_path: Path) -> None:
    """After each rename. In between no offset is taken as absent, and the result is the same."""
    cut = spoil(store, KEPT)
    expected = units_before(cut, fixture_store)
    for number in range(1, 30):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(store, copy)
        disk = NoRename(number)
        try:
            Recovery(str(copy), Choice.TRUNCATE, disk=disk).apply()
        except DiskError:
            assert read_config(REAL_DISK, str(copy)).offsets.keys() == group_offsets(fixture_store).keys()
            Recovery(str(copy), Choice.TRUNCATE).apply()
        assert rows(copy / "consumequeue")["default"] == expected
        assert check_offsets(fixture_store, copy, expected) > 0 and not (copy / "abort").exists()
        shutil.rmtree(copy)
        if disk.left > 0:
            break
    assert number > 4


def test_offsets_of_version_2_are_changed_in_a_copy(fixture_store: Any, tmp_path: Path) -> None:
    """All other rows are the same."""
    root = fixture_store("broker-config-v2", own=True).store
    before = read_config(REAL_DISK, str(root))
    changes = {("V2Topic@G_v2", 0): 3, ("V2Topic@G_v2", 1): 0, ("other@G_v2", 2): 9}
    copy_with_offsets(REAL_DISK, str(root), str(tmp_path / "fresh"), changes)
    name = offsets_name(REAL_DISK, str(root))
    assert name == VERSION_2
    shutil.rmtree(root / name)
    (tmp_path / "fresh").rename(root / name)
    after = read_config(REAL_DISK, str(root))
    table = before.offsets["V2Topic@G_v2"]
    assert table[0] == 10 and table[1] == 4
    assert after == before._replace(offsets=before.offsets | {"V2Topic@G_v2": table | {0: 3, 1: 0}})
