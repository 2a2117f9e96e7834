"""A plain model of the key index (docs/formats/indexfile.md)."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from hypothesis import HealthCheck, settings

PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
HEADER = struct.Struct(">qqqqii")
ITEM = struct.Struct(">iqii")


def java_hash(text: str) -> int:
    """Return Java's String.hashCode, over UTF-16 units."""
    units = text.encode("utf-16-be")
    code = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + high * 256 + low) % (1 << 32)
    return code - (1 << 32) if code >= 1 << 31 else code


def key_hash(text: str) -> int:
    code = java_hash(text)
    return 0 if code == -(1 << 31) else abs(code)


class Item(NamedTuple):
    key_hash: int
    physical_offset: int
    seconds: int
    previous: int


class PlainIndex:
    """One file as a list of items, a dictionary of slots and header fields."""

    def __init__(self, slots: int, items: int, begin_ms: int = 0, begin_offset: int = 0) -> None:
        self.slots, self.capacity = slots, items
        self.begin_ms = self.end_ms = begin_ms
        self.begin_offset = self.end_offset = begin_offset
        self.heads: dict[int, int] = {}
        self.items: list[Item] = []

    def put(self, key: str, physical_offset: int, store_ms: int) -> bool:
        number = len(self.items) + 1
        if number >= self.capacity:
            return False
        slot = key_hash(key) % self.slots
        seconds = (store_ms - self.begin_ms) // 1000 if self.begin_ms > 0 else 0
        self.items.append(Item(key_hash(key), physical_offset, max(0, min(seconds, 2**31 - 1)), self.heads.get(slot, 0)))
        self.heads[slot] = number
        if number == 1:
            self.begin_ms, self.begin_offset = store_ms, physical_offset
        self.end_ms, self.end_offset = store_ms, physical_offset
        return True

    def select(self, key: str, begin_ms: int, end_ms: int) -> list[int]:
        """Follow the chain of the key's slot to an item before the range (docs/formats/indexfile.md#querying-a-key)."""
        found, number = [], self.heads.get(key_hash(key) % self.slots, 0)
        while number:
            item = self.items[number - 1]
            time_ms = self.begin_ms + item.seconds * 1000
            times = {time_ms} | ({self.begin_ms} if number == 1 else set())
            if item.key_hash == key_hash(key) and any(begin_ms <= time <= end_ms for time in times):
                found.append(item.physical_offset)
            number = item.previous if time_ms >= begin_ms else 0
        return found

    def as_bytes(self) -> bytes:
        count = len(self.items) + 1 if self.items else 0
        header = HEADER.pack(self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, len(self.heads), count)
        slots = b"".join(struct.pack(">i", self.heads.get(slot, 0)) for slot in range(self.slots))
        items = bytes(20) + b"".join(ITEM.pack(*item) for item in self.items)
        return header + slots + items + bytes(20 * (self.capacity - 1 - len(self.items)))


FILTER_HEAD = struct.Struct(">8siiii")


def mixed(code: int, factor: int) -> int:
    return (code * factor >> 31) ^ (code * factor % 2**31)


def filter_position(code: int, blocks: int) -> tuple[int, list[int]]:
    """Return the block and the six rows of a key hash."""
    rows = mixed(code, 0x1B873593) * 0x2545F491 >> 7
    return mixed(mixed(code, 0x5BD1E995), 0x1B873593) % blocks, [32 + (rows >> 9 * n) % 512 * 480 // 512 for n in range(6)]


def sealed_head(head: bytes) -> bytes:
    """Return the first page of a filter file with its checksum."""
    return head.ljust(4092, b"\0") + struct.pack(">I", zlib.crc32(head.ljust(4092, b"\0")))


def sealed_blocks(seed: int, bodies: list[bytes]) -> bytes:
    """Return blocks with their checksums; each body is a block without its checksum."""
    sums = [struct.pack(">I", zlib.crc32(body) % 2**31 ^ (seed + number) % 2**32) for number, body in enumerate(bodies)]
    return b"".join(one + body for one, body in zip(sums, bodies, strict=True))


def filter_file(slots: int, items: int, files: list[tuple[int, bytes, list[int]]]) -> bytes:
    """Return a filter file of index files that are given as (name, header, key hashes); see `#key-filters` of the page."""
    width, blocks = len(files), -(-items * 16 // 480)
    columns = b"".join(struct.pack(">q", name) + header for name, header, _ in files)
    head = sealed_head(FILTER_HEAD.pack(b"BSKEYS\0\1", width, slots, items, blocks) + columns)
    table = [[0] * 512 for _ in range(blocks)]
    for bit, (_, _, codes) in enumerate(files):
        for block, rows in (filter_position(code, blocks) for code in codes):
            for row in rows:
                table[block][row] |= 1 << bit
    return head + sealed_blocks(zlib.crc32(head[:4092]), [_block(rows, width)[4:] for rows in table])


def _block(rows: list[int], width: int) -> bytes:
    if width >= 8:
        return b"".join(row.to_bytes(width // 8, "big") for row in rows)
    return sum(row << width * position for position, row in enumerate(rows)).to_bytes(64 * width, "little")
