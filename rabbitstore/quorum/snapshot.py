"""Decode a snapshot or checkpoint (docs/formats/rabbitmq-quorum.md#snapshot)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from storageio import StoreCorrupt, UnsupportedFormat

from ..format.terms import Atom, Term
from ..format.terms_cy import decode
from . import layout
from .state_lists import Part, split_state
from .versions import RULES

_VERSION, _COMPRESSED = b"\x83", b"\x83P"


@dataclass(frozen=True)
class Snapshot:
    """A state of a queue after the entry `index`."""

    index: int
    term: int
    machine_version: int
    members: int
    encoded: memoryview
    file: str
    at: int

    @property
    def state(self) -> Term:
        """The state, decoded anew: it may be large.  Raise `StoreCorrupt`."""
        return decode(bytes(self.encoded), file=self.file, base=self.at, improper=True)

    def split(self) -> tuple[Term, list[list[Part]]]:
        """Return the state of a quorum queue without its lists of messages, and those; raise `StoreCorrupt`.

        The lists of headers that older versions have stay in the state.
        """
        if self.machine_version in RULES and RULES[self.machine_version].keeps_headers:
            return self.state, []
        return split_state(self.encoded, self.file, self.at)


def read_snapshot(data: memoryview, file: str) -> Snapshot:
    """Check a whole file and decode what describes the state; raise `StoreCorrupt` or `UnsupportedFormat`."""
    head = layout.SNAPSHOT_HEAD.size
    if len(data) < head + layout.META_SIZE.size:
        raise StoreCorrupt("snapshot is cut", file=file, offset=0, expected=f"{head + 4} bytes", found=len(data))
    magic, version, crc = layout.SNAPSHOT_HEAD.unpack_from(data)
    if magic != layout.SNAPSHOT_MAGIC:
        raise StoreCorrupt("wrong magic", file=file, offset=0, expected=layout.SNAPSHOT_MAGIC, found=magic)
    if version != layout.SNAPSHOT_VERSION:
        raise UnsupportedFormat("snapshot version", file=file, offset=4, found=version, supported="1")
    found = zlib.crc32(data[head:])
    if found != crc:
        raise StoreCorrupt("wrong CRC of a snapshot", file=file, offset=5, expected=f"{crc:08x}", found=f"{found:08x}")
    start = head + layout.META_SIZE.size
    size = layout.META_SIZE.unpack_from(data, head)[0]
    if size > len(data) - start:
        raise StoreCorrupt("snapshot is cut", file=file, offset=head, expected=f"{size} bytes", found=len(data) - start)
    meta = decode(bytes(data[start : start + size]), file=file, base=start, improper=True)
    return _snapshot(meta, _plain(data[start + size :], file, start + size), file, start, start + size)


def _plain(state: memoryview, file: str, base: int) -> memoryview:
    """Return a state as ra 2.2 and later write it: before, it is compressed."""
    head = len(_COMPRESSED) + layout.META_SIZE.size
    if state[: len(_COMPRESSED)] != _COMPRESSED or len(state) < head:
        return state
    size = layout.META_SIZE.unpack_from(state, len(_COMPRESSED))[0]
    if size > layout.SNAPSHOT_SIZE_MAX:
        raise StoreCorrupt("state is too large", file=file, offset=base, expected=f"{layout.SNAPSHOT_SIZE_MAX}", found=size)
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(state[head:], size + 1)
    except zlib.error as error:
        raise StoreCorrupt("not a compressed term", file=file, offset=base, expected="zlib", found=str(error)) from error
    if len(found) != size or not stream.eof:
        raise StoreCorrupt("not a compressed term", file=file, offset=base, expected=f"{size} bytes", found=len(found))
    return memoryview(_VERSION + found)


def _snapshot(meta: Term, state: memoryview, file: str, base: int, state_at: int) -> Snapshot:
    values = [meta.get(Atom(name)) for name in ("index", "term", "machine_version")] if isinstance(meta, dict) else [None]
    numbers = [value for value in values if isinstance(value, int)]
    if not isinstance(meta, dict) or len(numbers) != len(values):
        raise StoreCorrupt("not a snapshot", file=file, offset=base, expected="index, term", found=repr(meta)[:60])
    members = meta.get(Atom("cluster"))
    index, term, machine_version = numbers
    return Snapshot(
        index, term, machine_version, len(members) if isinstance(members, dict | list) else 1, state, file, state_at
    )
