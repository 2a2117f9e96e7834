"""Read the lists of messages in a queue's state without making their terms (docs/formats/rabbitmq-quorum.md#state).

A state of millions of messages is one term, of which the lists are all but a few hundred bytes.  They become columns of eight
bytes for a message, and the rest is decoded as a term.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from struct import Struct
from typing import Any, TypeAlias

from storageio import StoreCorrupt

from ..format.terms import Improper, Term
from ..format.terms_cy import decode
from .command_cy import INDEX_BITS, SIZE_MAX

_VERSION = b"\x83"
_LIST, _NIL, _MAP = 108, 106, 116
_TUPLES = {104: 1, 105: 4}  # tags, with the bytes of the number of elements
_SIZES = {97: 1, 98: 4, 70: 8}  # tags whose values have a fixed size
_LENGTHS = {100: (2, 0), 107: (2, 0), 109: (4, 0), 110: (1, 1), 111: (4, 1), 115: (1, 0), 118: (2, 0), 119: (1, 0)}
_PROCESSES = {88: 12, 103: 9}  # tags, with the bytes behind the node's name
_REFERENCES = {90: 4, 114: 1}
_MESSAGES = 2  # the field of the state that has the lists
_NUMBERS_MAX = 4096  # in one column
_DEPTH_MAX = 8
_I64_MAX = (1 << 63) - 1
Part: TypeAlias = "array[int] | Term"  # numbers as `MessageList` keeps them, or the term of one other message


class _StateWalk:
    """The bytes of one term."""

    def __init__(self, view: memoryview, file: str, base: int) -> None:
        self.view = view
        self.file = file
        self.base = base

    def bad(self, at: int, expected: str) -> StoreCorrupt:
        found = self.view[at] if at < len(self.view) else "the end"
        return StoreCorrupt("wrong term", file=self.file, offset=self.base + at, expected=expected, found=found)

    def number(self, at: int, size: int) -> int:
        if at + size > len(self.view):
            raise self.bad(len(self.view), f"{size} bytes")
        return int.from_bytes(self.view[at : at + size], "big")

    def skip(self, at: int) -> int:
        """Return where the term at `at` ends; terms in it are counted, not nested."""
        left = 1
        while left:
            tag = self.number(at, 1)
            left -= 1
            if tag in _TUPLES:
                left += self.number(at + 1, _TUPLES[tag])
                at += 1 + _TUPLES[tag]
            elif tag in (_LIST, _MAP):
                left += self.number(at + 1, 4) * (1 if tag == _LIST else 2) + (tag == _LIST)
                at += 5
            elif tag in _LENGTHS:
                width, more = _LENGTHS[tag]
                at += 1 + width + more + self.number(at + 1, width)
            elif tag in _PROCESSES:
                at = self.skip(at + 1) + _PROCESSES[tag]
            elif tag in _REFERENCES:
                at = self.skip(at + 3) + _REFERENCES[tag] + 4 * self.number(at + 1, 2)
            elif tag == _NIL or tag in _SIZES:
                at += 1 + _SIZES.get(tag, 0)
            else:
                raise self.bad(at, "a tag of a term")
        if at > len(self.view):
            raise self.bad(len(self.view), "the rest of a term")
        return at

    def lists(self, at: int, out: bytearray, found: list[list[Part]], depth: int = 0) -> int:
        """Copy the term at `at` with a binary in place of each list, which is added to `found`; return where it ends.

        The binary has the number of the list.
        """
        tag = self.number(at, 1)
        if depth > _DEPTH_MAX:
            raise self.bad(at, f"at most {_DEPTH_MAX} levels")
        if tag == _LIST:
            out += b"m\0\0\0\4" + len(found).to_bytes(4, "big")
            parts: list[Part] = []
            found.append(parts)
            return self.list_at(at, parts)
        if tag not in _TUPLES and tag != _MAP:
            stop = self.skip(at)
            out += self.view[at:stop]
            return stop
        width = _TUPLES.get(tag, 4)
        count = self.number(at + 1, width)
        out += self.view[at : at + 1 + width]
        at += 1 + width
        for _ in range(2 * count if tag == _MAP else count):
            at = self.lists(at, out, found, depth + 1)
        return at

    def list_at(self, at: int, parts: list[Part]) -> int:
        left = self.number(at + 1, 4)
        at += 5
        while left:
            size = 0
            for pattern, width, read in _FORMS:
                match = pattern.match(self.view, at, at + width * min(left, _NUMBERS_MAX))
                if match is not None:
                    size = match.end() - at
                    for part in read(self.view[at : at + size]):
                        _add(parts, part)
                    left -= size // width
                    break
            if not size:
                size = self.skip(at) - at
                _add(parts, self.term(at, at + size))
                left -= 1
            at += size
        if self.number(at, 1) != _NIL:
            raise self.bad(at, "the end of a list")
        return at + 1

    def term(self, start: int, stop: int) -> Term:
        data = _VERSION + bytes(self.view[start:stop])
        return decode(data, file=self.file, base=self.base + start - 1, improper=True)


def _add(parts: list[Part], part: Part) -> None:
    """Add a column to the one before, and one number as a column."""
    if isinstance(part, int) and 0 <= part <= _I64_MAX:
        part = array("q", [part])
    if isinstance(part, array) and parts and isinstance(parts[-1], array) and len(parts[-1]) + len(part) <= _NUMBERS_MAX:
        parts[-1].extend(part)
    else:
        parts.append(part)


def _pairs(layout: Struct) -> Callable[[memoryview], list[Part]]:
    """Return a function that reads pairs of index and size."""

    def read(view: memoryview) -> list[Part]:
        rows = list(layout.iter_unpack(view))
        if all(index >= 0 and 0 <= size < SIZE_MAX for index, size in rows):
            return [array("q", [size << INDEX_BITS | index for index, size in rows])]
        return [Improper((index,), size) for index, size in rows]

    return read


def _numbers(view: memoryview) -> list[Part]:
    """Read numbers that have index and size."""
    width = 3 + view[1]
    rows = [int.from_bytes(view[at + 3 : at + width], "little") for at in range(0, len(view), width)]
    return [array("q", rows)] if max(rows) <= _I64_MAX else list(rows)


def _form(element: bytes, width: int, read: Callable[[memoryview], list[Part]]) -> Any:
    return re.compile(b"(?:%s){1,%d}+" % (element, _NUMBERS_MAX), re.DOTALL), width, read


_FORMS = [
    _form(rb"l\0\0\0\x01b.{4}a.", 12, _pairs(Struct(">6xixB"))),
    _form(rb"l\0\0\0\x01b.{4}b.{4}", 15, _pairs(Struct(">6xixi"))),
    _form(rb"l\0\0\0\x01a.a.", 9, _pairs(Struct(">6xBxB"))),
    _form(rb"l\0\0\0\x01a.b.{4}", 12, _pairs(Struct(">6xBxi"))),
    *(_form(rb"n\x%02x\0.{%d}" % (size, size), 3 + size, _numbers) for size in (6, 7, 8)),
]


def split_state(view: memoryview, file: str, base: int) -> tuple[Term, list[list[Part]]]:
    """Return the state with the numbers of lists in place of those in its messages, and the lists; raise `StoreCorrupt`."""
    walk = _StateWalk(view, file, base)
    found: list[list[Part]] = []
    if walk.number(0, 2) != 0x8368 or walk.number(2, 1) <= _MESSAGES:
        return decode(bytes(view), file=file, base=base, improper=True), found
    start = 3
    for _ in range(_MESSAGES):
        start = walk.skip(start)
    out = bytearray(view[:start])
    stop = walk.lists(start, out, found)
    out += view[stop:]
    return decode(bytes(out), file=file, base=base, improper=True), found
