"""A disk that fails for a moment during an open: the open raises, and nothing is given up."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from storageio import DiskError, StoreError
from storageio.testing import FailingDisk
from tests.messagestore.writers import open_store, put_all


class FullFor(FailingDisk):
    """A disk without space for files whose name contains `word`."""

    def __init__(self, word: str) -> None:
        super().__init__(1 << 30)
        self.word = word

    def before(self, operation: str, path: str) -> None:
        super().before(operation, path)
        if operation in ("create", "write") and self.word in path.rpartition("/")[2]:
            raise DiskError(operation, path, 28, "No space left on device")


def crashed(tmp_path: Path) -> Path:
    """Return a crashed store with forty messages and a consumer's offset beyond them."""
    folder = tmp_path / "store"
    with open_store(folder) as store:
        put_all(store, 0, 40)
    (folder / "config").mkdir(exist_ok=True)
    (folder / "config" / "consumerOffset.json").write_text('{"offsetTable":{"t@g":{0:5,1:900}}}')
    (folder / "abort").write_bytes(b"4711")
    return folder


def test_open_fails_if_consumer_offsets_cannot_be_clamped(tmp_path: Path) -> None:
    """Otherwise the store would open, and its consumer would silently skip the next 886 messages."""
    folder = crashed(tmp_path)
    with pytest.raises(DiskError):
        open_store(folder, "r+", disk=FullFor("consumerOffset"))
    with open_store(folder, "r+") as store:
        expected = store.max_offset("t", 1)
        assert store.engine.consumer_offsets().get("t", "g", 1) == expected < 900
        assert store.engine.consumer_offsets().get("t", "g", 0) == 5


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.deep)])
@pytest.mark.parametrize("operation", ["open", "read", "map", "size", "stat", "list"])
def test_disk_call_that_fails_once_during_open_loses_no_message(tmp_path: Path, operation: str, step: int) -> None:
    """The open raises the error or did not need the call; the next one has every message, queue and key."""
    folder = crashed(tmp_path)
    counting = FailingDisk(1 << 30, only=operation)
    copy = Path(shutil.copytree(folder, tmp_path / "counted"))
    open_store(copy, "r+", disk=counting).close()
    for number in range(1, len(counting.calls) + 1, step):
        copy = Path(shutil.copytree(folder, tmp_path / f"failed-{number}"))
        try:
            open_store(copy, "r+", disk=FailingDisk(number, only=operation)).close()
        except StoreError as error:
            assert isinstance(error, DiskError), f"{operation} {number}: {error!r}"
        check(copy)
        shutil.rmtree(copy)


def check(folder: Path) -> None:
    with MessageStore.open(folder, "r+") as store:
        bodies = {message.body for queue_id in range(3) for message in store.read("t", queue_id)}
        assert len(bodies) == 40
        for number in (0, 17, 39):
            found: list[Any] = list(store.query("t", f"k{number}"))
            assert [message.keys for message in found] == [[f"k{number}"]]
        assert store.put(Message("t", b"goes on")).physical_offset > 0
