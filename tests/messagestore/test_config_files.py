"""A config file and its backup: after any crash the old or the new content is read."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from messagestore.broker.config.config_files import ConfigFile, Source
from storageio import REAL_DISK, StoreCorrupt
from storageio.testing import CountingDisk

from .support import failures, folder_with

GOOD = b'{"a":1}'
OLD = b'{"a":0}'
BAD = b'{"a":'


def file_in(folder: Path, data: bytes | None, backup: bytes | None) -> ConfigFile:
    """Write `topics.json` and its backup; None leaves a file out."""
    files = {name: text for name, text in (("topics_json", data), ("topics_json_bak", backup)) if text is not None}
    return ConfigFile(REAL_DISK, folder_with(folder, **files) + "/topics.json")


@pytest.mark.parametrize(
    ("data", "backup", "expected", "source", "is_damaged"),
    [
        (GOOD, OLD, {"a": 1}, Source.FILE, False),
        (GOOD, None, {"a": 1}, Source.FILE, False),
        (GOOD, BAD, {"a": 1}, Source.FILE, False),
        (None, OLD, {"a": 0}, Source.BACKUP, False),
        (b"", OLD, {"a": 0}, Source.BACKUP, True),
        (bytes(500), OLD, {"a": 0}, Source.BACKUP, True),
        (BAD, OLD, {"a": 0}, Source.BACKUP, True),
        (b"[1]", OLD, {"a": 0}, Source.BACKUP, True),
        (GOOD + bytes(20), OLD, {"a": 0}, Source.BACKUP, True),
        (None, None, {}, Source.DEFAULTS, False),
        (b"", None, {}, Source.DEFAULTS, True),
        (b"", b"", {}, Source.DEFAULTS, True),
        (None, bytes(9), {}, Source.DEFAULTS, True),
        (BAD, None, {}, Source.DEFAULTS, True),
        (BAD, b"", {}, Source.DEFAULTS, True),
    ],
)
def test_document_is_loaded_from_the_file_or_its_backup(
    tmp_path: Path, data: bytes | None, backup: bytes | None, expected: Any, source: Source, is_damaged: bool
) -> None:
    """Missing, blank, zeroed and unparsable files follow the table of the format page; reading changes nothing."""
    loaded = file_in(tmp_path, data, backup).load()
    assert (loaded.document, loaded.source, loaded.damage is not None) == (expected, source, is_damaged)
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert left == {k: v for k, v in (("topics.json", data), ("topics.json.bak", backup)) if v is not None}


@pytest.mark.parametrize(("data", "named"), [(BAD, "topics.json"), (None, "topics.json.bak"), (b"", "topics.json")])
def test_unreadable_file_with_an_unreadable_backup_raises(tmp_path: Path, data: bytes | None, named: str) -> None:
    """An unparsable backup is an error, not an empty table."""
    with pytest.raises(StoreCorrupt) as caught:
        file_in(tmp_path, data, BAD).load()
    assert caught.value.file == str(tmp_path / named)


def test_a_save_keeps_the_content_before(tmp_path: Path) -> None:
    """The previous content becomes the backup, as in RocketMQ."""
    file = file_in(tmp_path, OLD, None)
    file.save({"a": 1})
    assert (tmp_path / "topics.json.bak").read_bytes() == OLD
    assert ConfigFile(REAL_DISK, file.path).load().document == {"a": 1}


@pytest.mark.parametrize("is_loaded", [True, False])
@pytest.mark.parametrize("data", [BAD, b"", bytes(100)])
def test_a_damaged_file_never_becomes_the_backup(tmp_path: Path, data: bytes, is_loaded: bool) -> None:
    """Otherwise a crash before the second rename would leave only damaged content."""
    file = file_in(tmp_path, data, OLD)
    if is_loaded:
        file.load()
    file.save({"a": 1})
    assert (tmp_path / "topics.json.bak").read_bytes() == OLD
    assert ConfigFile(REAL_DISK, file.path).load().document == {"a": 1}


@pytest.mark.parametrize("how", [{}, {"for_ever": True}, {"errno": errno.ENOSPC}])
@pytest.mark.parametrize(("data", "backup"), [(GOOD, OLD), (GOOD, None), (BAD, GOOD), (None, GOOD), (GOOD, BAD)])
def test_a_save_that_fails_at_any_call_leaves_old_or_new(
    tmp_path: Path, data: bytes | None, backup: bytes | None, how: dict[str, Any]
) -> None:
    """The disk fails at every call, once or from then on; the next save succeeds."""
    runs = iter(range(1000))
    positions: list[Path] = []

    def save(disk: Any) -> None:
        positions.append(tmp_path / str(next(runs)))
        file_in(positions[-1], data, backup)
        ConfigFile(disk, str(positions[-1] / "topics.json")).save({"a": 2})

    seen = set()
    for _ in failures(save, **how):
        again = ConfigFile(REAL_DISK, str(positions[-1] / "topics.json"))
        seen.add(again.load().document["a"])
        again.save({"a": 3})
        assert again.load().document == {"a": 3}
    assert seen == {1, 2}, "no failure before the change, or none after it"


def test_a_save_is_synced_before_it_is_renamed_and_the_folder_last(tmp_path: Path) -> None:
    """This order makes it durable."""
    file = file_in(tmp_path, GOOD, None)
    disk = CountingDisk()
    ConfigFile(disk, file.path).save({"a": 2})
    order = [call.operation for call in disk.calls if call.operation in ("write", "sync", "rename", "sync folder")]
    assert order == ["write", "sync", "rename", "rename", "sync folder"]


def test_folder_with_the_name_of_the_config_file_raises(tmp_path: Path) -> None:
    """It is not mistaken for a missing file."""
    from storageio import DiskError

    (tmp_path / "topics.json").mkdir()
    with pytest.raises(DiskError):
        ConfigFile(REAL_DISK, str(tmp_path / "topics.json")).load()
