"""Helpers of the engine's tests: small stores, a clock, the contents of a fixture."""

from __future__ import annotations

import shutil
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storageio.testing import WrappedDisk
from tests.stores import SMALL_SIZES

LOG_SIZE = SMALL_SIZES["mapped_file_size_commit_log"]
QUEUE_SIZE = SMALL_SIZES["mapped_file_size_consume_queue"]
SLOTS, ITEMS = 500, 2000
START_MS = 1_700_000_000_000
RECORD_HEAD = struct.Struct(">iIiiiqqiq8sq8siqi")  # docs/formats/commitlog.md#record
RECORD_BODY_AT = RECORD_HEAD.size


def small(world: Any, **changes: Any) -> Any:
    """Return the fixtures' sizes: 64 KiB log files, 100 units per queue file, 500 slots and 2,000 items per index file."""
    sizes = SMALL_SIZES | {"max_hash_slot_num": SLOTS, "max_index_num": ITEMS, "store_host": "10.1.2.3:10911"}
    return world.messagestore.StoreConfig(**(sizes | changes))


def sync_mode(world: Any) -> Any:
    return world.messagestore.FlushMode.SYNC


def open_small(world: Any, folder: Path, mode: str = "a", *, disk: Any = None, clock: Any = None, **changes: Any) -> Any:
    """Open a store with the small sizes."""
    given = {} if disk is None else {"disk": disk}
    return world.messagestore.MessageStore.open(folder, mode, small(world, **changes), clock=clock, **given)


def open_idle(world: Any, folder: Path, clock: Any = None, **changes: Any) -> Any:
    """Open a store whose housekeeper delivers nothing."""
    return open_small(world, folder, clock=clock, deliver_delayed=False, **changes)


def message(world: Any, number: int, topic: str = "T", queue_id: int = 0, size: int = 20, **fields: Any) -> Any:
    """Return a message whose body has its number."""
    return world.commitlog.Message(topic, f"{number:08d}".encode().ljust(size, b"."), queue_id=queue_id, **fields)


def number_of(stored: Any) -> int:
    """Return the number in the body of a message made by `message`."""
    return int(stored.body[:8])


def record_bytes(physical_offset: int, body: bytes, topic: bytes = b"T", at_ms: int = START_MS, queue_offset: int = 0) -> bytes:
    """Return a plain record as docs/formats/commitlog.md describes it."""
    size, host, crc = RECORD_HEAD.size + len(body) + 1 + len(topic) + 2, bytes(8), zlib.crc32(body) & 0x7FFFFFFF
    head = RECORD_HEAD.pack(
        size, 0xDAA320A7, crc, 0, 0, queue_offset, physical_offset, 0, at_ms, host, at_ms, host, 0, 0, len(body)
    )
    return head + body + bytes([len(topic)]) + topic + bytes(2)


def put_numbers(world: Any, store: Any, numbers: range, **fields: Any) -> list[Any]:
    """Put messages one by one and return the results."""
    return [store.put(message(world, number, **fields)) for number in numbers]


class Clock:
    """A clock in milliseconds that only the test advances."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class GateDisk(WrappedDisk):
    """A disk on which calls of one operation wait until a gate is opened, on all paths or on those that contain a word."""

    def __init__(self, operation: str, word: str = "") -> None:
        super().__init__()
        self.operation, self.word = operation, word
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def before(self, operation: str, path: str) -> None:
        if operation == self.operation and self.word in path and not self.gate.is_set():
            self.waiting.set()
            assert self.gate.wait(60), "the test never opened the gate"


class SwitchDisk(WrappedDisk):
    """A disk that fails chosen calls: `refuse(operation, path)` returns an error or None."""

    def __init__(self) -> None:
        super().__init__()
        self.refuse: Callable[[str, str], Exception | None] = lambda _operation, _path: None

    def before(self, operation: str, path: str) -> None:
        error = self.refuse(operation, path)
        if error is not None:
            raise error


def read_all(store: Any, topic: str, queue_id: int = 0, **limits: Any) -> list[Any]:
    """Return every message of a queue, read page by page."""
    messages, offset = [], store.min_offset(topic, queue_id)
    while True:
        page = store.get(topic, queue_id, offset, **limits)
        messages += page.messages
        if page.next_offset <= offset:
            return messages
        offset = page.next_offset


def delivered_numbers(store: Any, topic: str = "T") -> list[int]:
    """Return the numbers that are the bodies of a topic's messages, in all queues, once all are dispatched."""
    store.engine.settle()
    return sorted(int(message.body) for queue_id in store.queue_ids(topic) for message in store.read(topic, queue_id))


def hold_dispatch(store: Any, at: int | None = None) -> Callable[[], None]:
    """Let the dispatcher go no further than an offset, by default the end of the log; call the result to let it continue."""
    dispatcher = store.engine.dispatcher
    held = store.engine.log.written_offset if at is None else at
    dispatcher._limit = lambda: held

    def resume() -> None:
        dispatcher._limit = store.engine.dispatch_limit

    return resume


def crash_copy(store_folder: Path, target: Path) -> Path:
    """Copy a store as a killed process leaves it: the files as every other process sees them."""
    shutil.copytree(store_folder, target)
    return target
