"""Bounds of the write rows: parts of a put that cannot be avoided, each measured alone on this machine.

The parts are the caller's loop around a call that does nothing, copying the bytes in large blocks, the disk's work, and waiting
threads.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from brokerstore import Message

from .bounds import Bound
from .own_store import TAGS, body_of

BLOCK = 4096
COPIED = 1 << 20
RING = 64 << 20
RECORD_MORE = 128  # bytes of a record besides its body, with the rows' key and tag
BATCH = 1000
Tags = Sequence[str | None]


def _nothing(_: object) -> None:
    """Do nothing: a put that costs only its call."""


def build_one(count: int, body: int, tags: Tags = TAGS) -> None:
    """Run the caller's loop around `put`."""
    data, put = body_of(body), _nothing
    for i in range(count):
        put(Message("T", data, tags[i & 3], f"key-0-{i}", None, i & 3))


def build_many(count: int, body: int, tags: Tags = TAGS) -> None:
    """Run the caller's loop around `put_many`."""
    data, put_many = body_of(body), _nothing
    for i in range(count // BATCH):
        put_many([Message("T", data, tags[k & 3], f"key-{i}-{k}", None, k & 3) for k in range(BATCH)])


def build_keys(count: int, body: int, _tags: Tags = TAGS) -> None:
    """Run the caller's loop around `put_many` of bodies."""
    data, put_many = body_of(body), _nothing
    for i in range(count // BATCH):
        put_many(([data] * BATCH, [f"key-{i}-{k}" for k in range(BATCH)]))


def built_and_committed(folder: Path, count: int, body: int, tags: Tags = TAGS) -> Bound:
    """Return the bound of `put` through the pool: copies into memory already written to, and writes to disk meanwhile."""

    def rate() -> float:
        size = count * (body + RECORD_MORE)
        with mmap.mmap(-1, RING) as mapped, memoryview(mapped) as ring:
            _copy_blocks(ring, RING)
            put_s = _seconds(lambda: _copy_blocks(ring, size)) + _seconds(lambda: build_one(count, body, tags))
            return count / max(put_s, _committed_s(folder, ring, size))

    name = "builds the same messages, copies as many bytes into 64 MiB written before, and beside that has them written out"
    return Bound(name, rate)


def _committed_s(folder: Path, ring: memoryview, size: int) -> float:
    """Return the seconds to write past the page cache into an allocated file, half the ring at a time."""
    path, piece = folder / "committed", len(ring) // 2
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    try:
        os.posix_fallocate(file, 0, -(-size // piece) * piece)
        return _seconds(lambda: [os.pwrite(file, ring[:piece], at) for at in range(0, size, piece)])
    finally:
        os.close(file)
        path.unlink()


def built_and_stored(
    folder: Path, count: int, body: int, tags: Tags = TAGS, build: Callable[[int, int, Tags], None] = build_one
) -> Bound:
    """Return the bound of `put` and `put_many` through the map: build messages and copy their bytes into a mapped file."""

    def rate() -> float:
        return count / (_stored_s(folder, count, body) + _seconds(lambda: build(count, body, tags)))

    return Bound("builds the same messages and copies as many bytes into a fresh mapped file", rate)


def stored(folder: Path, count: int, body: int) -> Bound:
    """Return the bound of columns through the map, for which no message is built."""
    return Bound("copies as many bytes into a fresh mapped file", lambda: count / _stored_s(folder, count, body))


def longest_store(folder: Path, count: int, body: int) -> Bound:
    """Return the bound of the longest put, in us: copy a record's bytes."""

    def longest_us() -> float:
        record, clock, longest = bytes(body + RECORD_MORE), time.perf_counter_ns, 0
        with _Fresh(folder, count * len(record)) as target:
            for at in range(0, count * len(record), len(record)):
                began = clock()
                target[at : at + len(record)] = record
                longest = max(longest, clock() - began)
        return longest / 1e3

    return Bound("copies each record into a fresh mapped file", longest_us)


class _Fresh:
    """A new, allocated and mapped file."""

    def __init__(self, folder: Path, size: int) -> None:
        self._path = folder / "fresh"
        with open(self._path, "w+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            self._map = mmap.mmap(file.fileno(), size)
        self._view = memoryview(self._map)

    def __enter__(self) -> memoryview:
        return self._view

    def __exit__(self, *_error: object) -> None:
        self._view.release()
        self._map.close()
        self._path.unlink()


def _stored_s(folder: Path, count: int, body: int) -> float:
    size = count * (body + RECORD_MORE)
    with _Fresh(folder, size) as target:
        return _seconds(lambda: _copy_blocks(target, size))


def _copy_blocks(target: memoryview, size: int) -> None:
    """Copy `size` bytes into the target, starting again at its beginning when it is full."""
    block = bytes(COPIED)
    for done in range(0, size, COPIED):
        at = done % len(target)
        part = target[at : at + min(COPIED, size - done)]
        part[:] = block[: len(part)]


def handed_over(folder: Path, count: int, body: int, threads: int) -> Bound:
    """Return the bound of synchronous puts of many threads: one thread writes and syncs the bytes of all waiting ones."""
    name = f"has {threads} threads hand their bytes to one that writes and syncs what is there"
    return Bound(name, lambda: count / _HandOver(folder, count // threads, body + RECORD_MORE).seconds(threads))


class _HandOver:
    """A group commit and nothing else."""

    def __init__(self, folder: Path, each: int, size: int) -> None:
        self._path, self._each, self._record = folder / "handed", each, bytes(size)
        self._waiting: deque[threading.Lock] = deque()
        self._come = threading.Event()
        self._left = 0

    def seconds(self, threads: int) -> float:
        """Return the seconds from the first byte to the last answer."""
        self._left = threads * self._each
        everyone = [threading.Thread(target=self._put) for _ in range(threads)]
        file = os.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            _write_zeros(file, (self._left + 1) * len(self._record))
            return _seconds(lambda: self._run(file, everyone))
        finally:
            os.close(file)
            self._path.unlink()

    def _run(self, file: int, everyone: list[threading.Thread]) -> None:
        for thread in everyone:
            thread.start()
        at = 0
        while self._left:
            self._come.wait()
            self._come.clear()
            group = [self._waiting.popleft() for _ in range(len(self._waiting))]
            os.pwrite(file, self._record * len(group), at)
            os.fdatasync(file)
            at += len(group) * len(self._record)
            self._left -= len(group)
            for one in group:
                one.release()
        for thread in everyone:
            thread.join()

    def _put(self) -> None:
        mine = threading.Lock()
        mine.acquire()
        for _ in range(self._each):
            self._waiting.append(mine)
            self._come.set()
            mine.acquire()


def direct_sync(folder: Path, count: int, body: int) -> Bound:
    """Return the bound of a durable `put`: write whole blocks past the page cache into a file written before, and sync."""
    size = body + RECORD_MORE

    def rate() -> float:
        file = os.open(folder / "direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        try:
            _write_zeros(file, count * size)
            with mmap.mmap(-1, 4 * BLOCK) as blocks, memoryview(blocks) as view:
                return count / _seconds(lambda: _write_records(file, view, count, size))
        finally:
            os.close(file)
            (folder / "direct").unlink()

    return Bound("writes the same blocks past the page cache into a file written before, and syncs each", rate)


def built_and_synced(folder: Path, count: int, body: int) -> Bound:
    """Return the bound of a synchronous `put_many`: write each batch past the page cache into allocated blocks, and sync."""
    size = -(-BATCH * (body + RECORD_MORE) // BLOCK) * BLOCK

    def rate() -> float:
        file = os.open(folder / "direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        try:
            os.posix_fallocate(file, 0, count // BATCH * size)
            os.fsync(file)
            with mmap.mmap(-1, size) as blocks, memoryview(blocks) as view:
                _copy_blocks(view, size)
                return count / _seconds(lambda: _write_batches(file, view, count // BATCH, body))
        finally:
            os.close(file)
            (folder / "direct").unlink()

    return Bound("builds the same messages, copies as many bytes, writes them past the page cache and syncs them", rate)


def _write_batches(file: int, view: memoryview, batches: int, body: int) -> None:
    for i in range(batches):
        build_many(BATCH, body)
        _copy_blocks(view, len(view))
        os.pwritev(file, [view], i * len(view))
        os.fdatasync(file)


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


def _seconds(call: Callable[[], object]) -> float:
    """Return the duration of one call in seconds."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
