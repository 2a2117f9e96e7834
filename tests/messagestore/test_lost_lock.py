"""The store's lock, and code of its own process that opens and closes the file: POSIX releases the lock then."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from storageio import PutRejected
from tests.messagestore.writers import message, open_store, put_all

OTHER = """
import sys
from messagestore import MessageStore, StoreConfig
from storageio import StoreLocked
try:
    store = MessageStore.open(sys.argv[1], "r+")
except StoreLocked:
    print("locked")
else:
    print("opened", flush=True)
    if sys.argv[2] == "stay":
        sys.stdin.read()
    store.close()
"""
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its own record locks")


def other(folder: Path, stays: bool = False) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OTHER, str(folder), "stay" if stays else "go"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=60)


def touch_lock(folder: Path) -> None:
    """Read the lock file, as a backup, a checksum tool or `shutil.copytree` in the writing process does."""
    with (folder / "lock").open("rb") as file:
        file.read()


def open_quiet(folder: Path, **changes: Any) -> Any:
    """Open a store whose housekeeper checks the lock only when the test calls it."""
    return open_store(folder, flush_interval_consume_queue_ms=600_000, **changes)


def test_closing_the_lock_file_in_the_writing_process_frees_the_lock_until_it_is_renewed(tmp_path: Path) -> None:
    """This is the effect that docs/safety.md describes, and the housekeeper's remedy."""
    with open_quiet(tmp_path) as store:
        put_all(store, 0, 3)
        lock = store.engine._lock
        touch_lock(tmp_path)
        process = other(tmp_path)
        assert answer(process) == "opened"
        end(process)
        lock.renew()
        process = other(tmp_path)
        assert answer(process) == "locked"
        end(process)
        assert lock.renew() is False


@linux_only
def test_lost_lock_is_acquired_again_and_logged(tmp_path: Path, caplog: Any) -> None:
    """No other process opened the store in between: puts continue, and other writers are refused again."""
    with open_quiet(tmp_path) as store, caplog.at_level(logging.WARNING):
        store.engine._keep_lock()
        assert caplog.records == []
        touch_lock(tmp_path)
        store.engine._keep_lock()
        assert [record.getMessage() for record in caplog.records] == [
            f"{tmp_path}/lock: the lock was lost and taken again: code in this process closed the file"
        ]
        process = other(tmp_path)
        assert answer(process) == "locked"
        end(process)
        put_all(store, 0, 3)
        assert store.max_offset("t", 0) == 1


@pytest.mark.parametrize("stays", [True, pytest.param(False, marks=linux_only)], ids=["still_there", "gone"])
def test_no_put_is_taken_once_another_process_opened_the_store(tmp_path: Path, stays: bool, caplog: Any) -> None:
    """Two writers would overwrite each other: the one that lost the lock stops and reports why."""
    store = open_quiet(tmp_path)
    put_all(store, 0, 3)
    store.flush()
    touch_lock(tmp_path)
    process = other(tmp_path, stays)
    assert answer(process) == "opened"
    if not stays:
        end(process)
    with caplog.at_level(logging.ERROR):
        store.engine._keep_lock()
        store.engine._keep_lock()
    assert len(caplog.records) == 1
    with pytest.raises(PutRejected, match="another process"):
        store.put(message(3))
    if stays:
        end(process)
    store.close()


def test_housekeeper_checks_the_lock(tmp_path: Path) -> None:
    """Checking the lock is one of its jobs."""
    with open_quiet(tmp_path) as store:
        assert store.engine._keep_lock in store.engine.housekeeper.jobs


def test_another_process_that_closes_the_file_frees_nothing(tmp_path: Path) -> None:
    """Record locks belong to a process: a backup that runs beside the writer is harmless."""
    with open_quiet(tmp_path):
        touch = "import sys; open(sys.argv[1], 'rb').close()"
        subprocess.run([sys.executable, "-c", touch, str(tmp_path / "lock")], check=True)
        process = other(tmp_path)
        assert answer(process) == "locked"
        end(process)
