"""Rebuilding queues and index with the library: what it refuses, and kills at any point."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK, DiskError, StoreCorrupt, StoreLocked, UnknownStore
from storageio.testing import FailingDisk
from tests.helpers import contents
from tests.stores import small_config

SIZES = small_config(max_hash_slot_num=500, max_index_num=2000)


def test_rebuild_rejects_an_empty_or_unknown_selection(fixture_store: Any, tmp_path: Path) -> None:
    """A log is needed as well."""
    store = str(fixture_store("plain").store)
    for what in (frozenset(), frozenset({"everything"})):
        with pytest.raises(ValueError, match="wanted"):
            rebuild_store(store, what)
    with pytest.raises(UnknownStore):
        rebuild_store(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_rebuild_is_refused_while_a_writer_is_open(fixture_store: Any) -> None:
    """The writer holds the store's lock."""
    store = fixture_store("plain", own=True).store
    with MessageStore.open(store), pytest.raises(StoreLocked):
        rebuild_store(str(store))


def test_progress_adds_up_to_the_log(fixture_store: Any) -> None:
    """It is counted in bytes."""
    fixture = fixture_store("plain", own=True)
    seen: list[int] = []
    made = rebuild_store(str(fixture.store), progress=seen.append)
    assert sum(seen) == made.log_bytes == fixture.expected()["maxPhyOffset"]
    assert made.units == sum(len(queue["cq"]) for queue in fixture.expected()["queues"])


def test_a_crash_tail_is_no_damage(fixture_store: Any) -> None:
    """The records before it are dispatched."""
    fixture = fixture_store("crash-torn", own=True)
    rebuild_store(str(fixture.store))
    problems = {problem.kind for problem in verify_store(str(fixture.store)).problems}
    assert problems == {"bad_properties_size", "checkpoint_ahead"}


def test_damage_is_refused_with_nothing_changed(fixture_store: Any) -> None:
    """A log file is missing."""
    fixture = fixture_store("plain", own=True)
    (fixture.store / "commitlog" / f"{131072:020d}").unlink()
    before = contents(fixture.store)
    with pytest.raises(StoreCorrupt, match="missing_file"):
        rebuild_store(str(fixture.store))
    assert contents(fixture.store) == before


@pytest.mark.deep
@pytest.mark.parametrize("operation", ["rename", "delete", "write"])
def test_rebuild_killed_at_any_call_is_completed_by_the_next(fixture_store: Any, operation: str) -> None:
    """The second run gives the bytes of an undisturbed run."""
    fixture = fixture_store("propcrc", own=True)
    whole = contents(fixture.store)
    number = failed = 0
    while failed == number:
        number += 1
        try:
            rebuild_store(str(fixture.store), config=SIZES, disk=FailingDisk(number, only=operation, for_ever=True))
        except DiskError:
            failed += 1
            if number % 3 == 1:
                shutil.copytree(fixture.store, fixture.folder / f"killed-{number}")
    for killed in fixture.folder.glob("killed-*"):
        (killed / "brokerstore").mkdir(exist_ok=True)
        rebuild_store(str(killed), config=SIZES, disk=REAL_DISK)
        found = contents(killed)
        names = {name for name in whole if name.startswith("consumequeue/")}
        assert {name: found[name] for name in found if name.startswith("consumequeue/")} == {
            name: whole[name] for name in names
        }
        assert verify_store(str(killed)).is_ok
        shutil.rmtree(killed)


@pytest.mark.parametrize("operation", ["allocate", "sync"])
def test_work_files_of_a_rebuild_on_a_full_disk_are_deleted(fixture_store: Any, operation: str) -> None:
    """Work files as long as an index, or of forty gigabytes that were requested by mistake, are deleted."""
    fixture = fixture_store("propcrc", own=True)
    before = contents(fixture.store)
    with pytest.raises(DiskError):
        rebuild_store(str(fixture.store), config=SIZES, disk=FailingDisk(1, only=operation))
    assert contents(fixture.store) == before


def test_kill_while_queue_folders_are_swapped_keeps_the_file_size(tmp_path: Path) -> None:
    """Neither folder is in its place; queues of RocketMQ's default size must not be created."""
    sizes = small_config()
    store = tmp_path / "store"
    with MessageStore.open(store, config=sizes.but(max_hash_slot_num=100, max_index_num=400)) as opened:
        for number in range(150):
            opened.put(Message("T", b"%d" % number, queue_id=0, keys=["k"]))
    for name in ("consumequeue", "index"):
        (store / name).rename(store / "brokerstore" / f"replaced-{name}")
    (store / "abort").touch()
    with MessageStore.open(store, "r+") as opened:
        assert opened.max_offset("T", 0) == 150
    assert {path.stat().st_size for path in (store / "consumequeue" / "T" / "0").iterdir()} == {2000}
    assert {path.stat().st_size for path in (store / "index").iterdir()} == {40 + 4 * 100 + 20 * 400}
