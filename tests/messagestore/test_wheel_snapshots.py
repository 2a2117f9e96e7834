"""Brokers of other years: LMQ units in RocksDB of 5.3.3, and snapshots of the timer wheel of 5.5.1."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from commitlog import Message
from commitlog.walk import LogFiles
from messagestore import MessageStore, StoreConfig
from messagestore.paths import StorePaths
from messagestore.repair.verification import verify_store
from messagestore.timers.check import timer_findings
from messagestore.timers.layout import WHEEL_SIZE
from messagestore.timers.rebuild_timers import rebuild_timers
from messagestore.timers.wheel import used_slots, wheel_path
from storageio import REAL_DISK
from tests.archives import unpack
from tests.brokerstore.tool import run

YEARS = Path(__file__).parents[1] / "data" / "years"


def store_of(name: str, target: Path) -> Path:
    """Unpack a folder and return its store."""
    unpack(YEARS / f"{name}.tar.xz", target)
    return next(path.parent for path in target.rglob("commitlog"))


def log_of(store: Path) -> LogFiles:
    """Return the files of a store's log."""
    return LogFiles(REAL_DISK, [str(store / "commitlog")])


def test_units_of_lmqs_in_rocksdb_belong_to_their_records(tmp_path: Path) -> None:
    """RocketMQ 5.3.3 with LMQs: nothing is wrong, and nothing is to be repaired."""
    pytest.importorskip("rocksdict")
    store = store_of("rocksqueues533-lmq", tmp_path)
    assert run("verify", store).code == 0
    assert "othing to repair" in run("recover", store).talk + run("recover", store).out


def test_rebuilt_queues_in_rocksdb_have_the_units_of_lmqs(tmp_path: Path) -> None:
    """After `rebuild` nothing is wrong either."""
    pytest.importorskip("rocksdict")
    store = store_of("rocksqueues533-lmq", tmp_path)
    assert run("rebuild", store, "consumequeue", "--apply").code in (0, 7)
    assert run("verify", store).code == 0


def test_the_snapshot_with_the_largest_position_is_the_wheel(tmp_path: Path) -> None:
    """The broker does not write `timerwheel` any more, which is empty; 9 is less than 416."""
    store = store_of("timersnap551", tmp_path)
    (store / "timerwheel.9").write_bytes(bytes(WHEEL_SIZE))
    assert wheel_path(REAL_DISK, str(store)) == str(store / "timerwheel.416")
    assert len(list(used_slots(REAL_DISK, str(store)))) >= 4
    assert not [one for one in timer_findings(REAL_DISK, str(store), log_of(store), None) if one.is_problem]


def test_units_behind_the_position_of_the_last_snapshot_need_no_slot(tmp_path: Path) -> None:
    """A killed broker reads them from the timer log again."""
    store = store_of("timersnap551", tmp_path)
    (store / "timerwheel.416").unlink()
    assert wheel_path(REAL_DISK, str(store)) == str(store / "timerwheel.0")
    assert not [one for one in timer_findings(REAL_DISK, str(store), log_of(store), None) if one.is_problem]
    (store / "timerwheel.0").rename(store / "timerwheel.416")
    assert [one.kind for one in timer_findings(REAL_DISK, str(store), log_of(store), None)] == ["timer_slot"] * 4


def test_a_rebuild_of_the_timer_files_puts_the_snapshots_aside(tmp_path: Path) -> None:
    """A broker would load the last one instead of the new wheel."""
    store = store_of("timersnap551", tmp_path)
    rebuild_timers(REAL_DISK, StorePaths(str(store)), log_of(store), None, keeps=True)
    assert sorted(name for name in os.listdir(store) if name.startswith("timerwheel")) == ["timerwheel"]
    assert len([name for name in os.listdir(store / "brokerstore") if name.startswith("kept-timerwheel")]) == 3
    assert len(list(used_slots(REAL_DISK, str(store)))) >= 1


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no tmpfs")
def test_verify_of_a_sparse_log_on_tmpfs_takes_no_memory(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A hole that is read through a map gets blocks there."""
    root = Path("/dev/shm") / f"brokerstore-sparse-{os.getpid()}"
    (root / "commitlog").mkdir(parents=True)
    try:
        path = root / "commitlog" / ("0" * 20)
        with path.open("wb") as file:
            file.truncate(1 << 30)
        assert run("verify", root).code == 0
        assert path.stat().st_blocks * 512 <= 1 << 20
    finally:
        shutil.rmtree(root)


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no tmpfs")
def test_verify_of_sparse_index_and_queue_files_on_tmpfs_takes_no_memory(tmp_path: Path) -> None:
    """The slots of an index file have 20 MB, whatever number of items it has."""
    config = StoreConfig(mapped_file_size_commit_log=1 << 16, max_index_num=2000)
    with MessageStore.open(tmp_path / "store", config=config) as store:
        for number in range(100):
            store.put(Message("T", bytes(100), keys=[str(number)], queue_id=number % 4))
    root = Path("/dev/shm") / f"brokerstore-sparse-{os.getpid()}"
    try:
        for path in (tmp_path / "store").rglob("*"):
            if path.is_file():
                copy_sparse(path, root / path.relative_to(tmp_path / "store"))
        assert sum(path.stat().st_size for path in root.rglob("*")) > 40 << 20
        assert verify_store(str(root), config).problems == []
        assert sum(path.stat().st_blocks * 512 for path in root.rglob("*")) <= 1 << 20
    finally:
        shutil.rmtree(root)


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a file with a hole for each page of zeros."""
    target.parent.mkdir(parents=True, exist_ok=True)
    data = source.read_bytes()
    with target.open("wb") as file:
        for at in range(0, len(data), 4096):
            if any(data[at : at + 4096]):
                file.seek(at)
                file.write(data[at : at + 4096])
        file.truncate(len(data))
