"""The baseline: the smallest possible log in plain Python.

It has one preallocated map, `struct.pack_into`, two slice stores, `zlib.crc32` and a `threading.Lock`.  It gets what
`append_encoded` gets: topic, queue, body, encoded properties.  It reads no clock, checks no limit and protects only the
body, so ratios against it are conservative.  A ratio counts only if the baseline reaches BASELINE_MIN records of 100 bytes
per second.
"""

from __future__ import annotations

import struct
import threading
import zlib

BASELINE_MIN = 700_000
MAGIC = -626843481
HEADER = struct.Struct(">iiiiiqqiq8sq8siqi")
HOST = bytes.fromhex("7f0000010000007c")
NOW = 1_700_000_000_000
FIXED = struct.Struct(">iii")


class Baseline:
    """A log of one queue in one map."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.lock = threading.Lock()
        self.position = 0
        self.queue_offset = 0

    def append(self, topic: bytes, queue_id: int, body: bytes, properties: bytes) -> tuple[int, int]:
        """Append a record; return (physical offset, queue offset)."""
        crc = zlib.crc32(body) & 0x7FFFFFFF
        tail = b"%c%b%b%b" % (len(topic), topic, len(properties).to_bytes(2, "big"), properties)
        with self.lock:
            at = self.position
            offset = self.queue_offset
            middle = at + 88 + len(body)
            end = middle + len(tail)
            view = self.view
            HEADER.pack_into(
                view, at, end - at, MAGIC, crc, queue_id, 0, offset, at, 0, NOW, HOST, NOW, HOST, 0, 0, len(body)
            )  # fmt: skip
            view[at + 88 : middle] = body
            view[middle:end] = tail
            self.position = end
            self.queue_offset = offset + 1
        return at, offset


def scan(view: memoryview, stop: int) -> int:
    """Count the records up to `stop`, and check the CRC of each body."""
    at = count = 0
    unpack, crc32 = FIXED.unpack_from, zlib.crc32
    while at < stop:
        size, magic, crc = unpack(view, at)
        if magic != MAGIC:
            break
        body_size = int.from_bytes(view[at + 84 : at + 88], "big")
        if crc32(view[at + 88 : at + 88 + body_size]) & 0x7FFFFFFF != crc:
            break
        at += size
        count += 1
    return count
