"""One damage for each file and byte class of a version-2 queue: `.qi`, `.qs` and the record of a message in the shared store.

A damage takes the virtual host's folder, the queue's folder and a random generator, and returns whether it changed something.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from rabbitstore.format.layout import RECORD_HEAD, V2_CHUNK, V2_ENTRY, V2_HEAD_SIZE, V2_LOCATION

Damage = Callable[[Path, Path, Random], bool]
SECTOR = 512
IN_SHARED, IN_QUEUE = 1, 2


def entries(queue: Path) -> list[tuple[int, tuple[int, ...]]]:
    """Return (offset, fields) of the entries that are present."""
    data = (queue / "0.qi").read_bytes()
    offsets = range(V2_HEAD_SIZE, len(data) - V2_ENTRY.size + 1, V2_ENTRY.size)
    return [(at, V2_ENTRY.unpack_from(data, at)) for at in offsets if data[at] == 1]


def _pick(queue: Path, kind: int, random: Random) -> tuple[int, Any]:
    return random.choice([row for row in entries(queue) if row[1][3] == kind])


def _change(path: Path, at: int, data: bytes) -> bool:
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(len(data))
        file.seek(at)
        file.write(data)
    return old != data


def _flip(path: Path, at: int, random: Random, bit: int | None = None) -> bool:
    byte = path.read_bytes()[at]
    return _change(path, at, bytes((byte ^ 1 << (random.randrange(8) if bit is None else bit),)))


def entry_bit(offset: int, kind: int = IN_QUEUE, bit: int | None = None, size: int = 1) -> Damage:
    """Flip one bit of a field at `offset` of an entry."""

    def damage(_vhost: Path, queue: Path, random: Random) -> bool:
        at, _fields = _pick(queue, kind, random)
        return _flip(queue / "0.qi", at + offset + random.randrange(size), random, bit)

    return damage


def entry_byte(offset: int, kind: int = IN_QUEUE, size: int = 1) -> Damage:
    """Set one byte of a field at `offset` of an entry to another value."""

    def damage(_vhost: Path, queue: Path, random: Random) -> bool:
        at, _fields = _pick(queue, kind, random)
        where = at + offset + random.randrange(size)
        old = (queue / "0.qi").read_bytes()[where]
        return _change(queue / "0.qi", where, bytes(((old + random.randrange(1, 256)) % 256,)))

    return damage


def acked_status(_vhost: Path, queue: Path, random: Random) -> bool:
    """Set a bit in the status of an entry that is all zeros."""
    data = (queue / "0.qi").read_bytes()
    free = [at for at in range(V2_HEAD_SIZE, len(data), V2_ENTRY.size) if not any(data[at : at + V2_ENTRY.size])]
    return _flip(queue / "0.qi", random.choice(free), random)


def head_bit(ending: str, offset: int, size: int, bit: int | None = None) -> Damage:
    """Flip one bit in the head of a file."""
    return lambda _vhost, queue, random: _flip(queue / f"0.{ending}", offset + random.randrange(size), random, bit)


def chunk_bit(offset: int, size: int = 1) -> Damage:
    """Flip one bit in the bytes before a message, or of the message, in `.qs`."""

    def damage(_vhost: Path, queue: Path, random: Random) -> bool:
        _at, fields = _pick(queue, IN_QUEUE, random)
        return _flip(queue / "0.qs", V2_LOCATION.unpack(fields[4])[0] + offset + random.randrange(size), random)

    return damage


def chunk_body(_vhost: Path, queue: Path, random: Random) -> bool:
    """Flip a bit in the last third of a message."""
    _at, fields = _pick(queue, IN_QUEUE, random)
    offset, length, _ = V2_LOCATION.unpack(fields[4])
    return _flip(queue / "0.qs", offset + V2_CHUNK.size + length - 1 - random.randrange(length // 3), random)


def zero_sector(ending: str, number: int | None = None) -> Damage:
    """Zero a whole sector."""

    def damage(_vhost: Path, queue: Path, random: Random) -> bool:
        path = queue / f"0.{ending}"
        size = path.stat().st_size
        at = SECTOR * (random.randrange(1, max(2, size // SECTOR)) if number is None else number)
        return at < size and _change(path, at, bytes(min(SECTOR, size - at)))

    return damage


def cut(ending: str, excess: int = 0) -> Damage:
    """Cut a file in the middle; of an index, `excess` bytes after a whole entry."""

    def damage(_vhost: Path, queue: Path, random: Random) -> bool:
        path = queue / f"0.{ending}"
        data = path.read_bytes()
        whole = V2_HEAD_SIZE + random.randrange(2, (len(data) - V2_HEAD_SIZE) // V2_ENTRY.size) * V2_ENTRY.size
        path.write_bytes(data[: whole + excess])
        return True

    return damage


def cut_head(_vhost: Path, queue: Path, random: Random) -> bool:
    """Cut an index within its head."""
    path = queue / "0.qi"
    path.write_bytes(path.read_bytes()[: random.randrange(1, V2_HEAD_SIZE)])
    return True


def append(ending: str, data: bytes) -> Damage:
    """Add bytes at the end of a file."""

    def damage(_vhost: Path, queue: Path, _random: Random) -> bool:
        path = queue / f"0.{ending}"
        path.write_bytes(path.read_bytes() + data)
        return True

    return damage


def lose(name: str) -> Damage:
    """Delete a file of the queue."""

    def damage(_vhost: Path, queue: Path, _random: Random) -> bool:
        (queue / name).unlink()
        return True

    return damage


def empty(name: str) -> Damage:
    """Cut a file of the queue to nothing."""

    def damage(_vhost: Path, queue: Path, _random: Random) -> bool:
        (queue / name).write_bytes(b"")
        return True

    return damage


def zero_file(ending: str) -> Damage:
    """Replace a file by zeros of the same length."""

    def damage(_vhost: Path, queue: Path, _random: Random) -> bool:
        path = queue / f"0.{ending}"
        path.write_bytes(bytes(path.stat().st_size))
        return True

    return damage


def _record(vhost: Path, queue: Path, random: Random) -> tuple[Path, int, int]:
    """Return the file, offset and size of the record of one of the queue's messages in the shared store."""
    _at, fields = _pick(queue, IN_SHARED, random)
    msg_id = fields[4]
    for path in sorted((vhost / "msg_store_persistent").glob("*.rdq")):
        data = path.read_bytes()
        at = data.find(msg_id) - 8
        if at >= 0:
            return path, at, RECORD_HEAD.unpack_from(data, at)[0] + 9
    raise AssertionError("the message is in no file")


def record_bit(offset: int, size: int = 1) -> Damage:
    """Flip one bit in a record, `offset` bytes after its start or, if negative, before its end."""

    def damage(vhost: Path, queue: Path, random: Random) -> bool:
        path, at, total = _record(vhost, queue, random)
        return _flip(path, at + (offset if offset >= 0 else total + offset) + random.randrange(size), random)

    return damage


def record_zeros(vhost: Path, queue: Path, random: Random) -> bool:
    """Zero the first sector of a record."""
    path, at, _total = _record(vhost, queue, random)
    return _change(path, at, bytes(SECTOR))


DAMAGES: dict[str, Damage] = {
    "status, bit 0": entry_bit(0, bit=0),
    "status, bit 1": entry_bit(0, bit=1),
    "status, bit 7, shared": entry_bit(0, IN_SHARED, bit=7),
    "status, byte": entry_byte(0),
    "status of an acknowledged entry": acked_status,
    "flags, bit 0": entry_bit(1, bit=0),
    "flags, bit 0, shared": entry_bit(1, IN_SHARED, bit=0),
    "flags, bit 3": entry_bit(1, bit=3),
    "flags, byte, shared": entry_byte(1, IN_SHARED),
    "reserved byte": entry_bit(2),
    "kind, to 0": entry_bit(3, bit=1),
    "kind, to 3": entry_bit(3, bit=0),
    "kind, to 3, shared": entry_bit(3, IN_SHARED, bit=1),
    "kind, to 0, shared": entry_bit(3, IN_SHARED, bit=0),
    "kind, byte": entry_byte(3),
    "offset, low bit": entry_bit(10, size=2),
    "offset, high bit": entry_bit(4, size=4),
    "offset, byte": entry_byte(8, size=4),
    "length, low bit": entry_bit(14, size=2),
    "length, high bit": entry_bit(12, size=2),
    "zeros of the location": entry_bit(16, size=4),
    "id, bit": entry_bit(4, IN_SHARED, size=16),
    "id, byte": entry_byte(4, IN_SHARED, size=16),
    "size, bit": entry_bit(20, size=4),
    "expiry, bit": entry_bit(24, size=8),
    "expiry, bit, shared": entry_bit(24, IN_SHARED, size=8),
    "index head, magic": head_bit("qi", 0, 4),
    "index head, version": head_bit("qi", 4, 1, bit=5),
    "index head, range": head_bit("qi", 5, 16),
    "index head, reserved": head_bit("qi", 21, 43),
    "index, cut in an entry": cut("qi", excess=13),
    "index, cut after an entry": cut("qi"),
    "index, cut in its head": cut_head,
    "index, bytes behind": append("qi", b"\1\1\0\2abc"),
    "index, first sector of zeros": zero_sector("qi", 0),
    "index, second sector of zeros": zero_sector("qi", 1),
    "index, all zeros": zero_file("qi"),
    "index, empty": empty("0.qi"),
    "index, lost": lose("0.qi"),
    "store head, magic": head_bit("qs", 0, 4),
    "store head, version": head_bit("qs", 4, 1, bit=6),
    "store head, range": head_bit("qs", 5, 16),
    "store head, reserved": head_bit("qs", 21, 43),
    "message head, length": chunk_bit(0, 4),
    "message head, flags": chunk_bit(4),
    "message head, checksum": chunk_bit(5, 2),
    "message head, reserved": chunk_bit(7),
    "message, first bytes": chunk_bit(8, 12),
    "message, body": chunk_body,
    "store, first sector of zeros": zero_sector("qs", 0),
    "store, a sector of zeros": zero_sector("qs"),
    "store, cut": cut("qs", excess=5),
    "store, bytes behind": append("qs", b"\0\0\1\0\1torn"),
    "store, all zeros": zero_file("qs"),
    "store, empty": empty("0.qs"),
    "store, lost": lose("0.qs"),
    "record, size": record_bit(0, 8),
    "record, id": record_bit(8, 16),
    "record, first byte of the term": record_bit(24),
    "record, start of the term": record_bit(25, 20),
    "record, body": record_bit(-300, 100),
    "record, annotations": record_bit(-40, 39),
    "record, end mark": record_bit(-1),
    "record, a sector of zeros": record_zeros,
    "queue name, lost": lose(".queue_name"),
    "queue name, empty": empty(".queue_name"),
}
