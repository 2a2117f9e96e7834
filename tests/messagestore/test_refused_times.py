"""Puts that write nothing do not change the checkpoint's times."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from messagestore.checkpoint import read_checkpoint
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK, DiskFull, InvalidMessage, StoreClosed
from tests.helpers import until
from tests.messagestore.kit import START_MS, Clock, SwitchDisk, message, open_small, put_numbers, sync_mode

SIZE = 20_000
HOUR_MS = 3_600_000


def no_space(operation: str, path: str) -> Exception | None:
    is_log = operation == "allocate" and "commitlog" in path
    return DiskFull(operation, path, errno.ENOSPC, "full") if is_log else None


def columns(store: Any, size: int, rows: int = 2, queue_id: int = 0) -> Any:
    return store.append_columns("T", queue_id, [bytes(size)] * rows, check=False)


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "put": lambda world, store: store.put(message(world, 9, size=SIZE), check=False),
    "put_of_an_odd_message": lambda world, store: store.put(message(world, 9, size=SIZE, properties={"a": "b"}), check=False),
    "put_many": lambda world, store: store.put_many([message(world, 9, size=SIZE)] * 2, check=False),
    "put_batch": lambda world, store: store.put_batch("T", 0, [message(world, 9, size=SIZE)], check=False),
    "append_columns": lambda _, store: columns(store, SIZE),
    "put_async": lambda world, store: store.put_async(message(world, 9, size=SIZE)).exception(),
    "too_long": lambda world, store: store.put(message(world, 9, size=5 << 20), check=False),
    "columns_too_long": lambda _, store: columns(store, 70_000),
}


def check_times(folder: Path, last_ms: int) -> None:
    """Check that a clean stop's checkpoint has the last record's time, and that verify finds nothing."""
    assert not (folder / "abort").exists()
    assert read_checkpoint(REAL_DISK, str(folder / "checkpoint")).values.physic_msg_timestamp_ms == last_ms
    assert verify_store(str(folder)).problems == []


@pytest.mark.parametrize("is_sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("way", REFUSED)
def test_rejected_put_does_not_advance_the_checkpoint(world: Any, tmp_path: Path, way: str, is_sync: bool) -> None:
    """There is no space for the next log file, or the message is too long; then follows a clean stop."""
    disk, clock = SwitchDisk(), Clock()
    changes = {"flush_disk_type": sync_mode(world)} if is_sync else {}
    with open_small(world, tmp_path, disk=disk, clock=clock, **changes) as store:
        put_numbers(world, store, range(3), size=SIZE)
        disk.refuse = no_space
        for _ in range(2):
            clock.now_ms += HOUR_MS
            REFUSED[way](world, store)
        store.flush()
    check_times(tmp_path, START_MS)


def test_put_to_an_invalid_queue_does_not_advance_the_checkpoint(world: Any, tmp_path: Path) -> None:
    """The put raises and wrote nothing."""
    clock = Clock()
    with open_small(world, tmp_path, clock=clock) as store:
        put_numbers(world, store, range(3))
        clock.now_ms += HOUR_MS
        for put in (
            lambda: store.put(message(world, 9, queue_id=1 << 30)),
            lambda: columns(store, 1, queue_id=1 << 30),
            lambda: store.put(message(world, 9, born_host="nowhere")),
        ):
            with pytest.raises(InvalidMessage):
                put()
    check_times(tmp_path, START_MS)


def test_put_during_close_does_not_advance_the_checkpoint(world: Any, tmp_path: Path) -> None:
    """The put was accepted before the close, and appends after it."""
    clock = Clock()
    store = open_small(world, tmp_path, clock=clock)
    put_numbers(world, store, range(3))
    clock.now_ms += HOUR_MS
    close = store.engine.log.appender.close

    def close_then_put() -> None:
        close()
        with pytest.raises(StoreClosed):
            store.engine.log.appender.append(message(world, 9))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store.engine), "persist_offsets", lambda _: None)
        thread = store.engine.housekeeper.thread
        patch.setattr(thread, "stop", _after(thread.stop, close_then_put))
        store.close()
    check_times(tmp_path, START_MS)


def _after(first: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        first()
        then()

    return both


def test_messages_written_before_a_rejection_advance_the_checkpoint(world: Any, tmp_path: Path) -> None:
    """Two of four messages are written: the checkpoint has their time."""
    disk, clock = SwitchDisk(), Clock()
    with open_small(world, tmp_path, disk=disk, clock=clock) as store:
        put_numbers(world, store, range(1), size=SIZE)
        disk.refuse = no_space
        clock.now_ms += HOUR_MS
        result = store.put_many([message(world, number, size=SIZE) for number in range(1, 5)], check=False)
        assert (result.status.name, result.message_count) == ("CREATE_MAPPED_FILE_FAILED", 2)
        clock.now_ms += HOUR_MS
        assert columns(store, SIZE).message_count == 0
    check_times(tmp_path, START_MS + HOUR_MS)


def test_columns_written_before_a_rejection_advance_the_checkpoint(world: Any, tmp_path: Path) -> None:
    """Two of four rows are written: the checkpoint has their time."""
    disk, clock = SwitchDisk(), Clock()
    with open_small(world, tmp_path, disk=disk, clock=clock) as store:
        put_numbers(world, store, range(1), size=SIZE)
        disk.refuse = no_space
        clock.now_ms += HOUR_MS
        assert columns(store, SIZE, rows=4).message_count == 2
    check_times(tmp_path, START_MS + HOUR_MS)


def test_flush_during_a_failed_file_creation_does_not_advance_the_checkpoint(world: Any, tmp_path: Path) -> None:
    """The put that waits for the file holds the append lock; no record has its time yet."""
    disk, clock = SwitchDisk(), Clock()
    store = open_small(world, tmp_path, disk=disk, clock=clock)
    put_numbers(world, store, range(3), size=SIZE)
    flush = threading.Thread(target=store.flush)

    def refuse(operation: str, path: str) -> Exception | None:
        if no_space(operation, path) is not None and not flush.is_alive():
            flush.start()
            until(store.engine.flusher._leader.locked)
            threading.Event().wait(0.05)
        return no_space(operation, path)

    disk.refuse = refuse
    clock.now_ms += HOUR_MS
    assert store.put(message(world, 9, size=SIZE), check=False).status.name == "CREATE_MAPPED_FILE_FAILED"
    flush.join()
    store.close()
    check_times(tmp_path, START_MS)
