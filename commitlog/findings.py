"""Descriptions of damage in a log: kind, location, expected and found values."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from storageio import UnsupportedFormat
from storebytes._crc_cy import checksum
from storebytes.finding import Finding, Value

from .checks import (
    BAD_BODY_CRC,
    BAD_BODY_SIZE,
    BAD_ENTRY,
    BAD_MAGIC,
    BAD_PROPERTIES_SIZE,
    BAD_RECORD_CRC,
    BAD_SIZE,
    BAD_TOPIC_SIZE,
    BLANK,
    EMPTY,
    MISPLACED,
    STOPS,
    TORN,
    TORN_PROPERTIES,
)
from .entry_layout import (
    ENTRY_BLANK_MAGIC,
    ENTRY_BODY_SIZE_AT,
    ENTRY_HEADER_SIZE,
    ENTRY_INDEX_AT,
    ENTRY_MAGIC,
    ENTRY_POSITION_AT,
    ENTRY_SIZE_AT,
    ENTRY_TERM_AT,
)
from .layout import (
    BODY_AT,
    BODY_CRC_AT,
    BODY_SIZE_AT,
    BORN_HOST_V6,
    CRC_DIGITS,
    CRC_MASK,
    CRC_SIZE,
    HOST_GROWTH,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    PROPERTIES_SIZE_SIZE,
    RECORD_SIZE_MIN,
    SIZE_AT,
    STORE_HOST_V6,
    SYS_FLAG_AT,
    TOPIC_SIZE_SIZE,
    TOPIC_SIZE_SIZE_V2,
)
from .offset_files import holds_entries
from .unknown_version import is_unknown_version

UNKNOWN_VERSION = "unknown_version"  # a kind of finding that is not damage: a record that a newer program wrote
SUPPORTED_MAGICS = "daa320a7, daa320ab"


class Location(NamedTuple):
    """A position in a file's bytes where a walk stopped; `base` is the file's first physical offset."""

    view: memoryview
    at: int
    base: int

    @property
    def left(self) -> int:
        """The number of bytes to the file's end."""
        return len(self.view) - self.at

    def integer(self, offset: int, size_bytes: int = 4) -> int:
        """Return a signed big-endian field, `offset` bytes after this position."""
        start = self.at + offset
        return int.from_bytes(self.view[start : start + size_bytes], "big", signed=True)

    @property
    def is_entry(self) -> bool:
        """Whether the header of a DLedger entry is here."""
        return self.integer(0) == ENTRY_MAGIC and self.integer(ENTRY_SIZE_AT) > 0

    @property
    def step_size(self) -> int:
        """The size field of the record or entry here, unchecked."""
        return self.integer(ENTRY_SIZE_AT if self.is_entry else SIZE_AT)

    @property
    def entry(self) -> tuple[int, int]:
        """Index and term of the entry here."""
        return self.integer(ENTRY_INDEX_AT, 8), self.integer(ENTRY_TERM_AT, 8)

    @property
    def record(self) -> Location:
        """The record of the entry here."""
        return self._replace(at=self.at + ENTRY_HEADER_SIZE)

    @property
    def grown(self) -> int:
        """The number of bytes by which IPv6 hosts shift the fields after both hosts."""
        sys_flag = self.integer(SYS_FLAG_AT)
        return sum(HOST_GROWTH for bit in (BORN_HOST_V6, STORE_HOST_V6) if sys_flag & bit)

    @property
    def topic_size_size(self) -> int:
        """The size of the topic's length: one byte in V1, two in V2."""
        return TOPIC_SIZE_SIZE_V2 if self.integer(MAGIC_AT) == MAGIC_V2 else TOPIC_SIZE_SIZE

    @property
    def space(self) -> int:
        """The bytes that the record's size leaves for body, topic and properties."""
        return self.integer(SIZE_AT) - RECORD_SIZE_MIN - self.grown - self.topic_size_size + TOPIC_SIZE_SIZE

    @property
    def body_size(self) -> int:
        """The size field of the body, unchecked."""
        return self.integer(BODY_SIZE_AT + self.grown)

    @property
    def topic_size(self) -> int:
        """The size field of the topic, unchecked; the body size must have been checked."""
        at = BODY_AT + self.grown + self.body_size
        size = self.topic_size_size
        return self.integer(at, size) if size > 1 else self.view[self.at + at]


def step_start(location: Location) -> int:
    """Return where a walk meets the record here: at the header of its entry in a DLedger log."""
    header = location._replace(at=location.at - ENTRY_HEADER_SIZE)
    is_there = header.at >= 0 and header.is_entry and header.integer(ENTRY_POSITION_AT, 8) == header.base + header.at
    return header.at if is_there else location.at


def _sizes(location: Location) -> tuple[Value, Value]:
    least = (
        RECORD_SIZE_MIN + location.grown + location.topic_size_size - TOPIC_SIZE_SIZE
        if location.left > BODY_AT
        else RECORD_SIZE_MIN
    )
    return f"at least {least} bytes", location.integer(SIZE_AT)


def _properties_sizes(location: Location) -> tuple[Value, Value]:
    at = BODY_AT + location.grown + location.body_size + location.topic_size_size + location.topic_size
    return location.space - location.body_size - location.topic_size, location.integer(at, PROPERTIES_SIZE_SIZE)


def _body_crcs(location: Location) -> tuple[Value, Value]:
    start = location.at + BODY_AT + location.grown
    return location.integer(BODY_CRC_AT), checksum(bytes(location.view[start : start + location.body_size])) & CRC_MASK


def _record_crcs(location: Location) -> tuple[Value, Value]:
    end = location.at + location.integer(SIZE_AT)
    digits = bytes(location.view[end - 1 - CRC_DIGITS : end - 1])
    if not digits.isdigit():
        return "a checksum over the record", "one that never reached the disk"
    return int(digits[::-1]), checksum(bytes(location.view[location.at : end - CRC_SIZE])) & CRC_MASK


_WORDS: dict[int, Callable[[Location], tuple[Value, Value]]] = {
    BLANK: lambda location: (location.left, location.integer(SIZE_AT)),
    TORN: lambda location: (f"at most {location.left} bytes", location.step_size),
    EMPTY: lambda location: ("a record or a blank record", "zeros"),
    BAD_MAGIC: lambda location: ("daa320a7, daa320ab or cbd43194", f"{location.integer(MAGIC_AT) & 0xFFFFFFFF:08x}"),
    BAD_SIZE: _sizes,
    BAD_BODY_SIZE: lambda location: (f"0 to {location.space}", location.body_size),
    BAD_TOPIC_SIZE: lambda location: (f"0 to {location.space - location.body_size}", location.topic_size),
    BAD_PROPERTIES_SIZE: _properties_sizes,
    MISPLACED: lambda location: (location.base + location.at, location.integer(PHYSICAL_OFFSET_AT, 8)),
    BAD_BODY_CRC: _body_crcs,
    BAD_RECORD_CRC: _record_crcs,
    TORN_PROPERTIES: lambda location: ("properties up to the record's end", "zeros at their end"),
}
_CODES = {word: code for code, word in STOPS.items()}


def describe(file: str, location: Location, why: str) -> Finding:
    """Return the finding for a position where a walk stopped because of `why`, one of `checks.STOPS`.

    What is wrong with the record of an entry is found at the entry.
    """
    here = location.record if location.is_entry else location
    if _CODES[why] == BAD_MAGIC and is_unknown_version(here.view, here.at, here.base):
        return unknown_version(file, here)
    code, at = _CODES[why], location.at
    if location.is_entry and code not in (BAD_ENTRY, TORN):
        location = location.record
    elif code == BAD_ENTRY and not holds_entries(file) and location.integer(MAGIC_AT) in (MAGIC_V1, MAGIC_V2):
        code = BAD_SIZE  # a record whose size became the magic of an entry
    elif code == BAD_ENTRY or (holds_entries(file) and code in (BLANK, BAD_MAGIC, BAD_SIZE)):
        return Finding(file, location.at, STOPS[BAD_ENTRY], *_entry(location))
    expected, found = _WORDS[code](location)
    return Finding(file, at, "bad_blank_size" if code == BLANK else STOPS[code], expected, found)


def _entry(location: Location) -> tuple[Value, Value]:
    """Return what is wrong with the header of a DLedger entry (`docs/formats/dledger.md#where-the-log-ends`)."""
    size, body_size = location.integer(ENTRY_SIZE_AT), location.integer(ENTRY_BODY_SIZE_AT)
    position = location.base + location.at
    if location.integer(0) == ENTRY_BLANK_MAGIC:
        return f"a blank of {location.left} bytes", f"one of {size} bytes"
    if location.integer(0) != ENTRY_MAGIC:
        return "an entry (magic 00000001)", f"magic {location.integer(0) & 0xFFFFFFFF:08x}"
    if size != ENTRY_HEADER_SIZE + body_size:
        return f"an entry of {ENTRY_HEADER_SIZE + body_size} bytes", f"one of {size} bytes"
    if location.integer(ENTRY_POSITION_AT, 8) != position:
        return f"an entry of position {position}", location.integer(ENTRY_POSITION_AT, 8)
    if location.integer(ENTRY_HEADER_SIZE) != body_size:
        return f"a record of {body_size} bytes", f"one of {location.integer(ENTRY_HEADER_SIZE)} bytes"
    index, term = location.integer(ENTRY_INDEX_AT, 8), location.integer(ENTRY_TERM_AT, 8)
    return "the next index, and no earlier term", f"index {index} of term {term}"


def unknown_version(file: str, location: Location) -> Finding:
    """Return the finding for a record of an unknown version."""
    return Finding(file, location.at, UNKNOWN_VERSION, SUPPORTED_MAGICS, f"{location.integer(MAGIC_AT) & 0xFFFFFFFF:08x}")


def unsupported_record(finding: Finding) -> UnsupportedFormat:
    """Return the error for a finding of the kind `UNKNOWN_VERSION`."""
    return UnsupportedFormat(
        "record magic", file=finding.file, offset=finding.offset, found=finding.found, supported=SUPPORTED_MAGICS
    )
