"""Split the data of a chunk whose entries are all single messages (docs/formats/rabbitmq-streams.md#segment).

`chunk.read_records` reads every other chunk, and says what is wrong with it.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]

if not cython.compiled:
    from storebytes._bytes_cy import I64, Size, Source, get_i32, source_of, take_bytes

ENTRY_HEAD: Size = 4


class Record:
    """One message: `position` is that of its entry in the segment; messages of one sub-batch share it."""

    __slots__ = ("data", "offset", "position")

    def __init__(self, offset: I64, position: I64, data: bytes) -> None:
        """Describe a message of a sub-batch."""
        self.offset = offset
        self.position = position
        self.data = data


def single_records(view: memoryview, at: Size, stop: Size, entries: Size, offset: I64) -> list[Record] | None:
    """Return the messages in at..stop of a segment, `entries` of them; None if there is anything else."""
    source: Source = source_of(view)
    size: Size
    record: Record
    found: list[Record] = []
    if at < 0 or stop > len(view):
        return None
    while entries > 0:
        if stop - at < ENTRY_HEAD:
            return None
        size = get_i32(source, at)  # negative for a sub-batch
        if size < 0 or size > stop - at - ENTRY_HEAD:
            return None
        record = Record.__new__(Record)
        record.offset = offset
        record.position = at
        record.data = take_bytes(source, at + ENTRY_HEAD, size)
        found.append(record)
        at += ENTRY_HEAD + size
        offset += 1
        entries -= 1
    return found if at == stop else None
