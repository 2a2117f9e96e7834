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
    TORN: lambda location: (f"at most {location.left} bytes", location.integer(SIZE_AT)),
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
    """Return the finding for a position where a walk stopped because of `why`, one of `checks.STOPS`."""
    if _CODES[why] == BAD_MAGIC and is_unknown_version(location.view, location.at, location.base):
        return unknown_version(file, location)
    expected, found = _WORDS[_CODES[why]](location)
    return Finding(file, location.at, "bad_blank_size" if why == STOPS[BLANK] else why, expected, found)


def unknown_version(file: str, location: Location) -> Finding:
    """Return the finding for a record of an unknown version."""
    return Finding(file, location.at, UNKNOWN_VERSION, SUPPORTED_MAGICS, f"{location.integer(MAGIC_AT) & 0xFFFFFFFF:08x}")


def unsupported_record(finding: Finding) -> UnsupportedFormat:
    """Return the error for a finding of the kind `UNKNOWN_VERSION`."""
    return UnsupportedFormat(
        "record magic", file=finding.file, offset=finding.offset, found=finding.found, supported=SUPPORTED_MAGICS
    )
