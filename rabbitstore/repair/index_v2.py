"""Repair one segment of a version-2 queue.

`N.qi` is written again; in `N.qs` the head and the bytes before damaged messages are corrected.
"""

from __future__ import annotations

from storageio import Disk, replace_file

from ..files import read_if_there
from ..format import layout
from ..format.index_v2 import V2Entry, encode_chunk, encode_entry, encode_head
from ..read.index_v2 import IndexV2
from ..read.queue_folder import QueueFolder
from ..read.queue_store import StoredChunk


def rewrite_segment_v2(disk: Disk, queue: QueueFolder, number: int, lost: set[int]) -> None:
    """Write the entries that a reader finds, without those whose sequence numbers are `lost`.

    The server's recovery crashes on an entry, or on a head of `N.qs`, that it does not expect, and loses the whole queue.
    """
    found = [(row, chunk) for row, chunk in IndexV2(queue).segment(number, []) if row.seq_id not in lost]
    store = f"{queue.path}/{number}.qs"
    data = read_if_there(disk, store)
    if data is not None:
        repaired = _repaired_store(data, number, [chunk for _row, chunk in found if chunk is not None])
        if repaired != data:
            replace_file(disk, store, repaired)
    replace_file(disk, f"{queue.path}/{number}.qi", _index(number, found))


def _repaired_store(data: bytes, number: int, chunks: list[StoredChunk]) -> bytes:
    repaired = bytearray(data.ljust(layout.V2_HEAD_SIZE, b"\0"))
    repaired[: layout.V2_HEAD_SIZE] = encode_head(layout.V2_STORE_MAGIC, number)
    for chunk in chunks:
        whole = encode_chunk(chunk.term)
        repaired[chunk.offset : chunk.offset + len(whole)] = whole
    return bytes(repaired)


def _index(number: int, found: list[tuple[V2Entry, StoredChunk | None]]) -> bytes:
    out = bytearray(encode_head(layout.V2_INDEX_MAGIC, number))
    for row, chunk in found:
        at = layout.V2_HEAD_SIZE + row.seq_id % layout.V2_SEGMENT_ENTRIES * layout.V2_ENTRY.size
        out = out.ljust(at + layout.V2_ENTRY.size, b"\0")
        location = None if chunk is None else (chunk.offset, chunk.length)
        entry = encode_entry(row.persistent, row.msg_id or b"", location, row.size, row.expiry_us)
        out[at : at + layout.V2_ENTRY.size] = entry
    return bytes(out)
