"""The abort file: created before the first append, removed after the last sync."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from messagestore.abort_file import AbortFile
from storageio import REAL_DISK
from storageio.testing import CountingDisk

from .support import failures


@pytest.mark.parametrize("name", ["crash-torn", "crash-lost-cq"])
def test_a_killed_real_store_has_one(fixture_store: Any, name: str) -> None:
    """It has the process id as text; the store that recovered it has none."""
    fixture = fixture_store(name)
    abort = AbortFile(REAL_DISK, str(fixture.store))
    assert abort.is_present
    assert abort.read_process_id() == 14515
    assert not AbortFile(REAL_DISK, str(fixture.folder / "store-after-java")).is_present


@pytest.mark.parametrize("name", ["plain", "broker-live", "lmq"])
def test_a_stopped_real_store_has_none(fixture_store: Any, name: str) -> None:
    """An `abort.bak` does not count."""
    store = fixture_store(name).store
    assert (store / "abort.bak").exists()
    assert not AbortFile(REAL_DISK, str(store)).is_present


@pytest.mark.parametrize(
    ("data", "process_id"),
    [(b"", None), (bytes(5), None), (b"14515", 14515), (b"14515\n", 14515), (b"x", None), (b"\xff\xfe", None), (b"-1", None)],
)
def test_abort_file_with_any_content_marks_an_unclean_stop(tmp_path: Path, data: bytes, process_id: int | None) -> None:
    """A power failure may leave it empty or zeroed; the stop was unclean nevertheless."""
    (tmp_path / "abort").write_bytes(data)
    abort = AbortFile(REAL_DISK, str(tmp_path))
    assert abort.is_present
    assert abort.read_process_id() == process_id


def test_create_and_remove(tmp_path: Path) -> None:
    """Only the file itself is changed: there is no backup, and files of a real broker stay."""
    (tmp_path / "abort.bak").write_bytes(b"")
    abort = AbortFile(REAL_DISK, str(tmp_path))
    assert abort.read_process_id() is None
    abort.create(1234)
    assert (tmp_path / "abort").read_bytes() == b"1234"
    abort.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["abort.bak"]
    abort.remove()


def test_create_replaces_a_longer_previous_content(tmp_path: Path) -> None:
    """After an unclean stop the same file is rewritten."""
    (tmp_path / "abort").write_bytes(b"123456789")
    abort = AbortFile(REAL_DISK, str(tmp_path))
    abort.create(42)
    assert abort.read_process_id() == 42


def test_create_returns_after_file_and_folder_are_synced(tmp_path: Path) -> None:
    """Otherwise a crash could lose the file and keep the records."""
    disk = CountingDisk()
    abort = AbortFile(disk, str(tmp_path))
    abort.create(1)
    assert [call.operation for call in disk.calls if call.operation not in ("stat", "size")] == [
        "create",
        "write",
        "truncate",
        "sync",
        "sync folder",
    ]
    disk.calls.clear()
    abort.remove()
    assert [call.operation for call in disk.calls][-2:] == ["delete", "sync folder"]


def test_failed_create_never_removes_an_existing_abort_file(tmp_path: Path) -> None:
    """Whichever call fails, the file exists."""
    (tmp_path / "abort").write_bytes(b"99999")
    for _ in failures(lambda disk: AbortFile(disk, str(tmp_path)).create(7)):
        assert AbortFile(REAL_DISK, str(tmp_path)).is_present


def test_failed_remove_raises_and_can_be_repeated(tmp_path: Path) -> None:
    """The call raises, and can be repeated."""
    AbortFile(REAL_DISK, str(tmp_path)).create(7)
    assert len(list(failures(lambda disk: AbortFile(disk, str(tmp_path)).remove(), only="delete"))) == 1
    assert not AbortFile(REAL_DISK, str(tmp_path)).is_present
