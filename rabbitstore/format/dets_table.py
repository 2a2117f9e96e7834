"""Read and write a closed DETS table, version 9, of type set (docs/formats/rabbitmq-clean-stop.md).

    0     free_lists:32  cookie:32  closed:32  type:32  version:32
    20    m:32  next:32  key_position:32  objects:32  keys:32  min_slots:32  max_slots:32  hash_method:32  n:32
    56    28 counters:32 of allocated blocks of 2^4 .. 2^31 bytes
    168   MD5:16 of bytes 12..168    base:32    zeros to 312
    312   256 pointers:32 to parts of the segment array; each part holds 512 pointers:32 to segments
          a segment: 256 slots, each the used size:32 and offset:32 of its block, 0 when empty
    base  blocks of the buddy system: used size:32  12345678  then (size:32, counting itself, and term) of each object
    free  for each block size: size:32, 03abcdef, log2 + 1:32, offsets:32 of free blocks; the last one with 12345 and no offset
    end   size of the file less base:32

An object's slot is phash2 of its key modulo the number of slots, here always 256; objects of one slot share a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

from storageio import StoreCorrupt, UnsupportedFormat

from .md5 import md5
from .terms import VERSION, Atom, CharList, Term, encode
from .terms_cy import decode

COOKIE = b"\x00\xab\xcd\xef"
FORMAT_VERSION = 9
CLOSED_AT, CLOSED = 8, 1
TYPE_SET = 1
HASH_PHASH2 = 1
SLOTS, SEGMENTS = 256, 512  # of a segment, and of a part
MAXSLOTS = 32 * 1024 * 1024
ACTIVE = b"\x12\x34\x56\x78"
FREE_MAGIC = 0x03ABCDEF
FREE_END = 12345
MD5_AT, BASE_AT, PARTS_AT = 168, 184, 312
PART_AT = PARTS_AT + 4 * 256
SEGMENT_AT = PART_AT + 4 * 512
OBJECTS_AT = SEGMENT_AT + 8 * SLOTS
BLOCK_LOG_MIN, BLOCK_LOG_MAX = 4, 31
_U32 = Struct(">I")
_HEAD = Struct(">I4s12I")
SLOT = Struct(">II")
_BLOCK_HEAD = 8  # used size, ACTIVE
_COUNT_AT = 32
_FREE = Struct(">4I")  # size, magic, log2 + 1 of the blocks, where the free one is
_FREE_LAST = Struct(">3I")
_HASH_BITS = 27
_TEXT_SALT, _END_SALT, _END_OF_LIST = 0x78DDE6E4, 0x3C6EF372, 2
_GOLDEN, _BINARY_SALT, _HASH_BLOCK = 0x9E3779B9, 0x08D12E65, 12
_WORD = 0xFFFFFFFF


def read_dets(data: bytes, file: str) -> list[Term]:
    """Return the objects in file order; raise `StoreCorrupt` when the table is damaged or was not closed."""
    if len(data) < OBJECTS_AT or data[4:8] != COOKIE:
        raise StoreCorrupt("not a dets file", file=file, offset=4, expected=COOKIE, found=data[4:20])
    version = _U32.unpack_from(data, 16)[0]
    if version != FORMAT_VERSION:
        raise UnsupportedFormat("dets version", file=file, offset=16, found=version, supported=str(FORMAT_VERSION))
    if not is_closed(data):
        raise StoreCorrupt("not a closed dets file", file=file, offset=CLOSED_AT, expected=CLOSED, found=data[8:12].hex())
    if md5(data[12:MD5_AT]) != data[MD5_AT:BASE_AT]:
        digest = data[MD5_AT:BASE_AT].hex()
        raise StoreCorrupt("dets head fails its MD5", file=file, offset=MD5_AT, expected=digest, found="another")
    _check_end(data, file)
    found: list[Term] = []
    at = data.find(ACTIVE, SEGMENT_AT)
    while at >= 0:
        stop = _read_block(data, at - 4, found, file)
        at = data.find(ACTIVE, stop)
    count = _U32.unpack_from(data, _COUNT_AT)[0]
    if len(found) != count:
        raise StoreCorrupt("dets file lost objects", file=file, offset=_COUNT_AT, expected=count, found=len(found))
    return found


def is_closed(data: bytes) -> bool:
    """Return whether the table was closed; it is open while a server runs, and after a kill."""
    return data[CLOSED_AT : CLOSED_AT + 4] == _U32.pack(CLOSED)


def _check_end(data: bytes, file: str) -> None:
    """Compare the file's size with the one in its last four bytes."""
    expected = _U32.unpack_from(data, len(data) - 4)[0] + _U32.unpack_from(data, BASE_AT)[0]
    if expected != len(data):
        raise StoreCorrupt("torn dets file", file=file, offset=len(data), expected=f"{expected} bytes", found=len(data))


def _read_block(data: bytes, start: int, found: list[Term], file: str) -> int:
    """Collect the objects of a block and return where it ends."""
    stop = start + int(_U32.unpack_from(data, start)[0])
    at = start + _BLOCK_HEAD
    if not at < stop <= len(data):
        found_size = f"{stop - start} bytes"
        raise StoreCorrupt(
            "torn block of a dets file", file=file, offset=start, expected="a size in the file", found=found_size
        )
    while at < stop:
        size = _U32.unpack_from(data, at)[0] if stop - at > 4 else 0
        if not 4 < size <= stop - at or data[at + 4] != VERSION:
            expected = f"at most {stop - at} bytes"
            raise StoreCorrupt("torn object of a dets file", file=file, offset=at, expected=expected, found=size)
        found.append(decode(data[at + 4 : at + size], file=file, base=at + 4))
        at += size
    return stop


def write_dets(rows: Sequence[tuple[Term, ...]]) -> bytes:
    """Return the file of a closed table with these rows, whose first field is the key; keys are unique and not empty.

    A key is a `CharList`, an atom or a binary; all rows have the same kind.
    """
    chains: dict[int, list[tuple[Any, bytes]]] = {}
    for row in rows:
        chains.setdefault(phash2(row[0]) % SLOTS, []).append((row[0], encode(row)))
    slots, body, used, counters = _allocate({slot: _block(chain) for slot, chain in chains.items()})
    tail = body + _free_lists(used)
    count = len(rows)
    numbers = TYPE_SET, FORMAT_VERSION, SLOTS, SLOTS, 1, count, count, SLOTS, MAXSLOTS, HASH_PHASH2, 0
    head = _HEAD.pack(OBJECTS_AT + len(body), COOKIE, CLOSED, *numbers) + b"".join(map(_U32.pack, counters))
    head += md5(head[12:]) + _U32.pack(OBJECTS_AT)
    parts = _U32.pack(PART_AT).ljust(PART_AT - PARTS_AT, b"\0") + _U32.pack(SEGMENT_AT).ljust(SEGMENT_AT - PART_AT, b"\0")
    return head.ljust(PARTS_AT, b"\0") + parts + slots + tail + _U32.pack(len(tail) + 4)


def _block(chain: list[tuple[Any, bytes]]) -> bytes:
    """Return the block of one slot: its objects by key."""
    objects = b"".join(_U32.pack(len(term) + 4) + term for _key, term in sorted(chain))
    return _U32.pack(len(objects) + _BLOCK_HEAD) + ACTIVE + objects


def _block_log(block: bytes) -> int:
    """Return the binary logarithm of the buddy system's block: the least power of two above the number of bytes."""
    return max(BLOCK_LOG_MIN, len(block).bit_length())


def _allocate(blocks: dict[int, bytes]) -> tuple[bytes, bytes, int, list[int]]:
    """Return the slots, the blocks without the last one's padding, the bytes allocated, and the number of blocks by size.

    Large blocks come first, so that each lies at a multiple of its own size.
    """
    slots, body = bytearray(SLOT.size * SLOTS), bytearray()
    counters = [0] * (BLOCK_LOG_MAX - BLOCK_LOG_MIN + 1)
    used = 0
    for slot, block in sorted(blocks.items(), key=lambda item: -_block_log(item[1])):
        log = _block_log(block)
        counters[log - BLOCK_LOG_MIN] += 1
        SLOT.pack_into(slots, SLOT.size * slot, len(block), OBJECTS_AT + used)
        body = body.ljust(used, b"\0") + block
        used += 1 << log
    return bytes(slots), bytes(body), used, counters


def _free_lists(used: int) -> bytes:
    """Return the buddy system's free blocks after `used` bytes, the smallest first."""
    parts = []
    while used < 1 << BLOCK_LOG_MAX:
        log = (used & -used).bit_length() - 1 if used else BLOCK_LOG_MAX
        parts.append(_FREE.pack(_FREE.size, FREE_MAGIC, log + 1, OBJECTS_AT + used))
        used += 1 << log
    return b"".join(parts) + _FREE_LAST.pack(_FREE_LAST.size, FREE_MAGIC, FREE_END)


def phash2(key: Term) -> int:
    """Return Erlang's `phash2` of an atom, of a binary, or of a list of bytes that is not empty."""
    if isinstance(key, Atom):
        return _hash_of_atom(key)
    if isinstance(key, bytes) and not isinstance(key, CharList):
        return _hash_of_binary(key)
    if not isinstance(key, bytes):
        raise TypeError(f"a key of {type(key).__name__}")
    return _hash_of_list(key)


def _hash_of_atom(name: str) -> int:
    """Hash the characters as P. J. Weinberger's function does; those from 256 on count as their UTF-8 bytes."""
    found = 0
    for character in name:
        for value in (ord(character),) if ord(character) < 256 else character.encode():
            found = (found << 4) + value & _WORD
            top = found & 0xF0000000
            found ^= top >> 24 ^ top
    return found % (1 << _HASH_BITS)


def _hash_of_binary(data: bytes) -> int:
    """Hash twelve bytes at a time; the last step has the rest and the length."""
    a = b = _GOLDEN
    c = _BINARY_SALT
    for at in range(0, len(data) if data else -1, _HASH_BLOCK):
        words = [int.from_bytes(data[at + skip : at + skip + 4], "little") for skip in (0, 4, 8)]
        if at + _HASH_BLOCK > len(data):
            words[2] = (words[2] << 8) + len(data)
        a, b, c = _mixed_words(a + words[0] & _WORD, b + words[1] & _WORD, c + words[2] & _WORD)
    if data and len(data) % _HASH_BLOCK == 0:
        c = _mixed_words(a, b, c + len(data) & _WORD)[2]
    return c % (1 << _HASH_BITS)


def _hash_of_list(text: bytes) -> int:
    found = 0
    for start in range(0, len(text), 4):
        found = _mixed(_TEXT_SALT, int.from_bytes(text[start : start + 4], "big"), found)
    return _mixed(_END_SALT, _END_OF_LIST, found) % (1 << _HASH_BITS)


def _mixed(salt: int, number: int, before: int) -> int:
    """Mix three words with Bob Jenkins' hash, as Erlang's runtime does."""
    return _mixed_words(salt + number & _WORD, salt, before)[2]


def _mixed_words(a: int, b: int, c: int) -> tuple[int, int, int]:
    for right, left, last in ((13, 8, 13), (12, 16, 5), (3, 10, 15)):
        a = (a - b - c & _WORD) ^ c >> right
        b = (b - c - a & _WORD) ^ a << left & _WORD
        c = (c - a - b & _WORD) ^ b >> last
    return a, b, c
