"""Plain models that the tests compare the queues with."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings

PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
UNIT = struct.Struct(">qiq")


def packed(first: int, count: int) -> bytes:
    """Pack `count` units from number `first` on, of consecutive records of 100 bytes; the tags code is the unit's number."""
    return b"".join(UNIT.pack(100 * number, 100, number) for number in range(first, first + count))


def built(queues: Any, count: int = 35) -> Path:
    """Build and close a queue of 35 units in four files, and return its folder."""
    opened = queues()
    queue = opened.get_or_add("T", 0)
    queue.append_run(0, packed(0, count))
    opened.flush()
    opened.close()
    return Path(queue.folder)


class PlainQueue:
    """A plain model of docs/formats/consumequeue.md#how-a-unit-gets-its-place: one unit at a time, files as byte arrays."""

    def __init__(self, file_size: int) -> None:
        self.file_size = file_size
        self.files: dict[int, bytearray] = {}
        self.written = 0
        self.top = -1

    def append(self, physical: int, size: int, tags: int, queue_offset: int) -> None:
        if physical + size <= self.top:
            return
        expected = queue_offset * 20
        is_first = not self.files
        if is_first:
            self.written = expected - expected % self.file_size
            self.files[self.written] = bytearray(self.file_size)
        elif self.written == max(self.files) + self.file_size:
            self.files[self.written] = bytearray(self.file_size)
        if is_first and queue_offset != 0:
            while self.written < expected:
                self._write(UNIT.pack(0, 0x7FFFFFFF, 0))
        if queue_offset != 0 and expected < self.written:
            return
        self.top = physical + size
        self._write(UNIT.pack(physical, size, tags))

    def _write(self, unit: bytes) -> None:
        start = max(self.files)
        self.files[start][self.written - start : self.written - start + 20] = unit
        self.written += 20

    def as_files(self, folder: str) -> dict[str, bytes]:
        return {f"{folder}/{start:020d}": bytes(data) for start, data in self.files.items()}
