"""What bounds the write rows: loops that do a part of a put alone, in Python, on this machine.

The caller's own part with a call that does nothing, with the record's bytes copied besides, or the disk's part alone.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

from brokerstore import Message

from .bounds import Bound
from .own_store import TAGS, body_of

BLOCK = 4096
RING = 64 << 20
RECORD_MORE = 128  # of a record besides its body, with the rows' key and tag
BATCH = 1000
Loop = Callable[[int, int], None]  # (messages, body size)


def _nothing(_: object) -> None:
    """A put that costs nothing but its call."""


def build_one(count: int, body: int) -> None:
    """The caller's loop of `put`."""
    data, put = body_of(body), _nothing
    for i in range(count):
        put(Message("T", data, TAGS[i & 3], [f"key-0-{i}"], None, i & 3))


def build_many(count: int, body: int) -> None:
    """The caller's loop of `put_many`."""
    data, put_many = body_of(body), _nothing
    for i in range(count // BATCH):
        put_many([Message("T", data, TAGS[k & 3], [f"key-{i}-{k}"], None, k & 3) for k in range(BATCH)])


def _copying(target: memoryview) -> Loop:
    """The loop of `put`, and every record's bytes copied to the next place of a map that is gone round."""

    def loop(count: int, body: int) -> None:
        data, record, at = body_of(body), bytes(body + RECORD_MORE), 0
        size = len(record)
        for i in range(count):
            Message("T", data, TAGS[i & 3], [f"key-0-{i}"], None, i & 3)
            if at + size > len(target):
                at = 0
            target[at : at + size] = record
            at += size

    return loop


def built_one(count: int, body: int) -> Bound:
    """For `put`."""
    name = "builds the same messages, one a call to a function that does nothing"
    return Bound(name, lambda: _rate(build_one, count, body))


def built_many(count: int, body: int) -> Bound:
    """For `put_many`."""
    name = "builds the same messages, a thousand a call to a function that does nothing"
    return Bound(name, lambda: _rate(build_many, count, body))


def fresh_file(folder: Path, count: int, body: int) -> Bound:
    """For `put` through the map: a mapped file that is as long as all records."""
    name = "builds the same messages and copies as many bytes into a fresh mapped file"
    return Bound(name, lambda: _into_fresh(folder, _copying, count, body))


def fresh_blocks(folder: Path, count: int, body: int) -> Bound:
    """For columns through the map: no message is built."""
    name = "copies as many bytes into a fresh mapped file"
    return Bound(name, lambda: _into_fresh(folder, _copying_blocks, count, body))


def _copying_blocks(target: memoryview) -> Loop:
    def loop(_count: int, _body: int) -> None:
        block = bytes(1 << 20)
        for at in range(0, len(target), len(block)):
            part = target[at : at + len(block)]
            part[:] = block[: len(part)]

    return loop


def _into_fresh(folder: Path, copying: Callable[[memoryview], Loop], count: int, body: int) -> float:
    size = count * (body + RECORD_MORE)
    with open(folder / "fresh", "w+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)
        with mmap.mmap(file.fileno(), size) as mapped, memoryview(mapped) as target:
            found = _rate(copying(target), count, body)
    (folder / "fresh").unlink()
    return found


def touched_memory(count: int, body: int) -> Bound:
    """For `put` through the pool: memory that was written to before, as a pool's is."""

    def rate() -> float:
        with mmap.mmap(-1, RING) as mapped, memoryview(mapped) as target:
            target[:] = bytes(RING)
            return _rate(_copying(target), count, body)

    return Bound("builds the same messages and copies as many bytes into 64 MiB of memory written before", rate)


def direct_sync(folder: Path, count: int, body: int) -> Bound:
    """For a durable `put`: each record in whole blocks past the page cache into a file written before, and synced."""
    size = body + RECORD_MORE

    def rate() -> float:
        file = os.open(folder / "direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        try:
            _write_zeros(file, count * size)
            with mmap.mmap(-1, 4 * BLOCK) as blocks, memoryview(blocks) as view:
                return _rate(lambda number, _: _write_records(file, view, number, size), count, body)
        finally:
            os.close(file)
            (folder / "direct").unlink()

    return Bound("writes the same blocks past the page cache into a file written before, and syncs each", rate)


def _write_zeros(file: int, size: int) -> None:
    with mmap.mmap(-1, 1 << 20) as zeros:
        for at in range(0, size + len(zeros), len(zeros)):
            os.pwrite(file, zeros, at)
    os.fsync(file)


def _write_records(file: int, view: memoryview, count: int, size: int) -> None:
    for i in range(count):
        first = i * size // BLOCK * BLOCK
        stop = -(-(i + 1) * size // BLOCK) * BLOCK
        os.pwritev(file, [view[: stop - first]], first)
        os.fdatasync(file)


def _rate(loop: Loop, count: int, body: int) -> float:
    """Messages a second, once."""
    began = time.perf_counter()
    loop(count, body)
    return count / (time.perf_counter() - began)
