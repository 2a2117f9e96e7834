"""Read the rows of `names.dets` and `meta.dets`, which a killed server leaves open (docs/formats/rabbitmq-quorum.md#tables)."""

from __future__ import annotations

from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from storageio import StoreCorrupt

from ..format.dets_table import (
    ACTIVE,
    BLOCK_LOG_MAX,
    BLOCK_LOG_MIN,
    COOKIE,
    FREE_END,
    FREE_MAGIC,
    OBJECTS_AT,
    PARTS_AT,
    SEGMENTS,
    SLOT,
    SLOTS,
    is_closed,
)
from ..format.terms import Term
from ..format.terms_cy import decode

TABLE_SIZE_MAX = 64 << 20
_WORD = 4
_HEAD_SIZE = 8
_FREE_HEAD = Struct(">3I")  # size, magic, log2 + 1 of the blocks


class MetaRow(NamedTuple):
    """A row of `meta.dets`: what a server remembers of a queue's elections."""

    uid: str
    term: int
    last_applied: int | None


def read_rows(data: bytes, file: str) -> list[Term]:
    """Return every object in a block that is in use; raise `StoreCorrupt` for another file.

    The slots are not used to find objects.  In a closed table they have to lead to exactly these blocks: the server uses them,
    while it repairs one that was not closed.
    """
    if data[_WORD : 2 * _WORD] != COOKIE:
        raise StoreCorrupt("not a dets file", file=file, offset=_WORD, expected=COOKIE, found=data[_WORD : 2 * _WORD])
    if len(data) < PARTS_AT:  # a server repairs any longer one that was not closed, and does not start with a shorter one
        raise StoreCorrupt("dets file without its head", file=file, offset=0, expected=f"{PARTS_AT} bytes", found=len(data))
    if is_closed(data):
        _check_free_blocks(data, file)  # of an open table they are of an earlier time, and partly overwritten
    found: list[Term] = []
    blocks: set[tuple[int, int]] = set()
    at = data.find(ACTIVE)
    while at >= 0:
        start = at + len(ACTIVE)
        used = int.from_bytes(data[at - _WORD : at], "big")
        stop = _read_objects(data, start, min(at - _WORD + used, len(data)), file, found)
        if stop != at - _WORD + used:  # a server does not start with it
            raise StoreCorrupt("wrong size of a block", file=file, offset=at - _WORD, expected=stop - at + _WORD, found=used)
        blocks.add((used, at - _WORD))
        at = data.find(ACTIVE, stop)
    if is_closed(data):
        _check_slots(data, blocks, file)
    return found


def _check_slots(data: bytes, blocks: set[tuple[int, int]], file: str) -> None:
    """Raise `StoreCorrupt` unless the slots lead to these blocks, each a size and a position."""
    parts = _pointers(data, PARTS_AT, SLOTS)
    segments = {segment for part in parts for segment in _pointers(data, part, SEGMENTS)}
    if len(segments) * SLOT.size * SLOTS > len(data):  # some overlap; a search of each would take long
        raise StoreCorrupt("segments overlap", file=file, offset=PARTS_AT, expected=f"{len(data)} bytes", found=len(segments))
    slots = {slot for segment in segments for slot in SLOT.iter_unpack(_region(data, segment, SLOT.size * SLOTS)) if any(slot)}
    wrong = sorted(slots ^ blocks)
    if wrong:
        size, position = wrong[0]
        what = f"a slot for the block of {size} bytes" if wrong[0] in blocks else f"a block of {size} bytes"
        raise StoreCorrupt("slots and blocks differ", file=file, offset=position, expected=what, found="none")


def _pointers(data: bytes, at: int, count: int) -> list[int]:
    """Return the pointers at a position that are not zero, each once: a damaged one may repeat another."""
    words = Struct(f">{count}I").iter_unpack(_region(data, at, _WORD * count))
    return sorted({pointer for row in words for pointer in row if pointer})


def _region(data: bytes, at: int, size: int) -> bytes:
    """Return the bytes at a position; none if they are not all there."""
    return data[at : at + size] if at + size <= len(data) else b""


def _check_free_blocks(data: bytes, file: str) -> None:
    """Raise `StoreCorrupt` if the free blocks of the buddy system overlap or lie elsewhere: a server does not start.

    The head has the position of their lists.  Lists of an earlier time lie in blocks that were allocated since.
    """
    free: list[tuple[int, int]] = []
    at = int.from_bytes(data[:_WORD], "big")
    while at + _HEAD_SIZE + _WORD <= len(data):
        size, magic, log = _FREE_HEAD.unpack_from(data, at)
        if magic != FREE_MAGIC or size < _FREE_HEAD.size:
            break
        if log == FREE_END:
            _check_order(free, file)
            return
        positions = range(at + _FREE_HEAD.size, min(at + size, len(data) - _WORD + 1), _WORD)
        blocks = [int.from_bytes(data[position : position + _WORD], "big") - OBJECTS_AT for position in positions]
        if not BLOCK_LOG_MIN < log <= BLOCK_LOG_MAX + 1 or any(block % (1 << (log - 1)) for block in blocks):
            raise StoreCorrupt("wrong free blocks", file=file, offset=at, expected="blocks of a power of two", found=blocks[:3])
        free += ((block, block + (1 << (log - 1))) for block in blocks)
        at += size
    raise StoreCorrupt("wrong free blocks", file=file, offset=at, expected="lists of free blocks", found=data[at : at + 12])


def _check_order(free: list[tuple[int, int]], file: str) -> None:
    """Raise `StoreCorrupt` if blocks overlap or leave the space that the buddy system has."""
    free.sort()
    if any(left[1] > right[0] for left, right in pairwise([(0, 0), *free, (1 << BLOCK_LOG_MAX, 0)])):
        raise StoreCorrupt("wrong free blocks", file=file, offset=0, expected="blocks that do not overlap", found=free[-1:])


def _read_objects(data: bytes, at: int, stop: int, file: str, found: list[Term]) -> int:
    """Add the objects of one block, each with its size before the term; return where they end."""
    while at + _WORD < stop:
        size = int.from_bytes(data[at : at + _WORD], "big")
        if not _WORD < size <= stop - at:
            break
        try:
            found.append(decode(data[at + _WORD : at + size], file=file, base=at + _WORD))
        except StoreCorrupt:
            break
        at += size
    return at


def registered(rows: list[Term]) -> dict[str, str]:
    """Return the folder of each queue that `names.dets` has: a server finds it there by the queue's registered name."""
    pairs = [row for row in rows if isinstance(row, tuple) and len(row) == 2]
    return {str(name): uid.decode("utf-8", "replace") for name, uid in pairs if isinstance(uid, bytes)}


def meta_rows(rows: list[Term]) -> list[MetaRow]:
    """Return the rows of `meta.dets`."""
    found = []
    for row in rows:
        if isinstance(row, tuple) and len(row) == 4 and isinstance(row[0], bytes) and isinstance(row[1], int):
            applied = row[-1] if isinstance(row[-1], int) else None
            found.append(MetaRow(row[0].decode("utf-8", "replace"), row[1], applied))
    return found
