"""The housekeeper's thread when the disk fails: other data still becomes durable, and the failure is logged."""

from __future__ import annotations

import contextlib
import errno
import logging
from pathlib import Path
from typing import Any

import pytest

from rabbitstore import RabbitSettings, RabbitStore, StoreSettings
from rabbitstore.engine import housekeeper
from storageio import DiskError, StoreError
from storageio.testing import WrappedDisk
from tests.helpers import until

SETTINGS = RabbitSettings(flush_interval_ms=1, index_version=1, store=StoreSettings(file_size_limit=20_000))


class Failing(WrappedDisk):
    """A disk on which the calls for which `fails` is true fail."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = lambda _operation, _path: False
        self.failed = 0

    def before(self, operation: str, path: str) -> None:
        if self.fails(operation, path):
            self.failed += 1
            raise DiskError(operation, path, errno.EIO, "input/output error")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_RETRY_S", "_IDLE_S"):
        monkeypatch.setattr(housekeeper, name, 0.01)


def is_durable(path: str, name: str, body: bytes) -> bool:
    """Return whether the files, as a kill would leave them now, have the message."""
    with RabbitStore.open(path, "r") as seen:
        return body in [message.body for message in seen.messages(name)]


def test_a_failed_journal_does_not_stop_background_syncs_of_other_queues(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The first queue's error used to end the thread, so that messages of other queues stayed in memory."""
    disk, path = Failing(), str(tmp_path / "vhost")
    store = RabbitStore.open(path, disk=disk, settings=SETTINGS)
    bad, _good = (store.declare_queue(name) for name in ("bad", "good"))
    folder = bad.parts[0].index.folder
    disk.fails = lambda operation, called: operation == "write" and called.startswith(folder)
    with caplog.at_level(logging.ERROR, "brokerstore"):
        store.publish("bad", b"lost")
        until(lambda: disk.failed)
        for number in range(3):
            store.publish("good", b"%d" % number)
            until(lambda body=b"%d" % number: is_durable(path, "good", body))
    printed = [record.getMessage() for record in caplog.records]
    assert printed and all("background work failed" in text for text in printed) and len(printed) == len(set(printed))
    with contextlib.suppress(StoreError):
        store.close()


def test_a_file_that_cannot_be_deleted_does_not_stop_background_syncs(tmp_path: Path, quick: None) -> None:
    """The file has only garbage, but its error used to end all syncs."""
    disk, path = Failing(), str(tmp_path / "vhost")
    with RabbitStore.open(path, disk=disk, settings=SETTINGS) as store:
        store.declare_queue("q")
        for number in range(12):
            store.publish("q", b"%02d" % number + bytes(5000))
        store.sync()
        disk.fails = lambda operation, called: operation == "delete" and called.endswith(".rdq")
        for _ in range(6):
            store.ack(store.get("q"))
        until(lambda: disk.failed)
        disk.fails = lambda _operation, _path: False
        store.publish("q", b"later")
        until(lambda: is_durable(path, "q", b"later"))
        assert [store.get("q").body[:2] for _ in range(7)] == [b"06", b"07", b"08", b"09", b"10", b"11", b"la"]
    with RabbitStore.open(path, settings=RabbitSettings(background=False)) as again:
        assert len(again.queue("q")) == 7 and again.lost == []


def test_a_collection_without_disk_space_blocks_no_sync_and_is_retried_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two attempts the thread does all other work."""
    monkeypatch.setattr(housekeeper, "_RETRY_S", 3600.0)
    disk, path = Failing(), str(tmp_path / "vhost")
    disk.fails = lambda operation, called: operation == "create" and called.endswith(".rdt")
    store_settings = StoreSettings(file_size_limit=20_000, file_garbage_fraction=0.2)
    with RabbitStore.open(path, disk=disk, settings=RabbitSettings(flush_interval_ms=1, store=store_settings)) as store:
        store.declare_queue("q")
        for number in range(12):
            store.publish("q", b"%02d" % number + bytes(5000))
        store.sync()
        for number in range(6):
            delivery = store.get("q")
            if number % 2:
                store.ack(delivery)
        until(lambda: disk.failed)
        for number in range(3):
            store.publish("q", b"later %d" % number)
            until(lambda body=b"later %d" % number: is_durable(path, "q", body))
        assert disk.failed == 1


def test_an_idle_store_flushes_its_journals_to_the_segments(tmp_path: Path, quick: None) -> None:
    """An opening after a kill then has little to replay; later messages are as durable as before."""
    path = str(tmp_path / "vhost")
    with RabbitStore.open(path, settings=SETTINGS) as store:
        folder = Path(store.declare_queue("q").parts[0].index.folder)
        segment, size = folder / "0.idx", 0
        for number in range(3):
            store.publish("q", b"%d" % number)
            until(lambda size=size: segment.exists() and segment.stat().st_size > size)
            size = segment.stat().st_size
            assert is_durable(path, "q", b"%d" % number)
        until(lambda: not (folder / "journal.jif").stat().st_size)


class Stopping(logging.Handler):
    """An application that closes the store when an error is logged, on the thread that logs it."""

    def __init__(self, store: RabbitStore) -> None:
        super().__init__(logging.ERROR)
        self.store = store
        self.closed = []

    def emit(self, record: Any) -> None:
        try:
            self.store.close()
        except StoreError as error:
            self.closed.append(error)
        else:
            self.closed.append(None)


def test_closing_the_store_from_its_background_thread_does_not_deadlock(tmp_path: Path, quick: None) -> None:
    """`close` on the store's own thread used to wait for that thread."""
    disk, path = Failing(), str(tmp_path / "vhost")
    store = RabbitStore.open(path, disk=disk, settings=SETTINGS)
    folder = store.declare_queue("bad").parts[0].index.folder
    store.declare_queue("good")
    store.publish("good", b"kept")
    store.sync()
    handler = Stopping(store)
    logging.getLogger("brokerstore").addHandler(handler)
    try:
        disk.fails = lambda operation, called: operation == "write" and called.startswith(folder)
        store.publish("bad", b"lost")
        until(lambda: handler.closed)
    finally:
        logging.getLogger("brokerstore").removeHandler(handler)
    assert isinstance(handler.closed[0], StoreError)
    with RabbitStore.open(path, settings=RabbitSettings(background=False)) as again:  # the lock was given back
        assert again.get("good").body == b"kept"
