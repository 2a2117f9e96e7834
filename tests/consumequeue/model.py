"""Section 2.3 as plainly as it can be said: one unit at a time, files as byte arrays."""

from __future__ import annotations

import struct

UNIT = struct.Struct(">qiq")


class PlainQueue:
    """What RocketMQ's queue would hold."""

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
