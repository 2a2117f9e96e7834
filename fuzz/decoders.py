"""One target per decoder: it takes bytes, and returns or raises a named error.  Anything else is a find."""

from __future__ import annotations

import importlib.util
import json
from array import array
from collections.abc import Callable
from itertools import pairwise

from commitlog._message_cy import decode_properties
from commitlog._record_cy import check, is_protected
from commitlog._scan_cy import Reader, find_record, scan
from commitlog.checks import CHECK_ALL
from commitlog.compression import decompress
from commitlog.hosts import decode_host
from consumequeue._units_cy import count_below, count_new, count_repeated, count_valid
from fuzz import link_frames, node_files, stores
from indexfile._index_cy import IndexBuffer, hash_of
from indexfile.layout import HEADER_SIZE, ITEM_SIZE, SLOT_SIZE
from messagestore.broker.config import fast_json
from messagestore.checkpoint import decode as decode_checkpoint
from messagestore.derive._dispatch_cy import Dispatcher
from rabbitstore.format import properties as blocks
from rabbitstore.format import tables, terms_cy
from rabbitstore.format.content import decode_content
from rabbitstore.format.index_v2 import read_index
from rabbitstore.format.journal import read_journal
from rabbitstore.format.names import read_queue_name, read_segment_entries
from rabbitstore.format.rdq import find_containers, scan_records
from rabbitstore.format.rdq import find_record as find_rabbit_record
from rabbitstore.format.segment_cy import read_segment, write_segment
from rabbitstore.read.index_restore import restored_end, restored_index, restored_start
from rabbitstore.read.intact_segment_cy import IntactSegment, read_intact, read_intact_v2
from rabbitstore.read.json_cy import LineWriter
from rabbitstore.read.queue_store import QueueStore
from storageio import StoreError

SLOTS, ITEMS = 4, 16
INDEX_SIZE = HEADER_SIZE + SLOT_SIZE * SLOTS + ITEM_SIZE * ITEMS
_DISPATCHER = Dispatcher([1000, 5000])


def log_records(data: bytes) -> None:
    """Walk, search and decoder must agree, and every decoded record must pass its check."""
    at, _why, records, _protected, _last = scan(data, 0, len(data))
    reader = Reader(data)
    messages, reached, _ = reader.decode_range(0, len(data), len(data) + 1)
    assert (reached, len(messages)) == (at, records)
    found = find_record(data, 0, len(data), 0)
    for message in messages:
        assert check(data, message.physical_offset, len(data), 0, CHECK_ALL) == message.size
        is_protected(data, message.physical_offset, message.size)
        repr((message.all_properties, message.keys, message.tags, message.born_host, message.message_id))
    assert found < 0 or check(data, found, len(data), 0, CHECK_ALL) > 0


def dispatch(data: bytes) -> None:
    """Dispatch a part of a log into units and index items."""
    index = IndexBuffer(bytearray(INDEX_SIZE), SLOTS, ITEMS)
    _DISPATCHER.dispatch(memoryview(data), 0, len(data), 0, 0, index, 0, lambda _topic: False)
    for _topic, _queue_id, _first, units in _DISPATCHER.runs():
        assert len(units) % 20 == 0


def log_properties(data: bytes) -> None:
    """Decode a properties string, and an address if the length fits."""
    decode_properties(data)
    if len(data) in (8, 20):
        decode_host(data)


def queue_units(data: bytes) -> None:
    """Count units; no count exceeds the number of units."""
    units = data[: len(data) // 20 * 20]
    assert 0 <= count_valid(units) <= len(units) // 20
    for limit in (-1, 0, 1 << 40):
        count_below(units, limit)
        count_new(units, limit)
        count_repeated(units, limit)


def index_file(data: bytes) -> None:
    """Chains of any content must end, before and after `keep_items` rebuilds them."""
    buffer = bytearray(data[:INDEX_SIZE].ljust(INDEX_SIZE, b"\0"))
    index = IndexBuffer(buffer, SLOTS, ITEMS)
    found = array("q", [0] * 8)
    start, turns = 0, 0
    while True:
        _rows, start = index.select(hash_of(b"T", b"k"), start, 0, 1 << 60, found)
        turns += 1
        assert turns <= ITEMS + 1, "a chain goes round"
        if start == 0:
            break
    index.check(ITEMS)
    assert 0 < index.keep_items(ITEMS, 1 << 40) <= ITEMS
    index.check(ITEMS)


def config_json(data: bytes) -> None:
    """A document that was read can be written and read again."""
    document = fast_json.loads(data, file="fuzz")
    again = fast_json.loads(fast_json.dumps(document), file="fuzz")
    assert again == document or document != document


def checkpoint(data: bytes) -> None:
    """Decoding never raises, and its values are plausible."""
    assert decode_checkpoint(data).values.is_plausible


def compressed_body(data: bytes) -> None:
    """Decompression of each kind never exceeds the limit."""
    if data:
        assert len(decompress(data[1:], 1 | (data[0] & 7) << 8, limit=1 << 16)) <= 1 << 16


def erlang_term(data: bytes) -> None:
    """Decode an external term."""
    terms_cy.decode(data)


def rabbit_content(data: bytes) -> None:
    """Decode a message term."""
    decode_content(data)


def rabbit_properties(data: bytes) -> None:
    """Decode a property block and convert it to JSON."""
    blocks.to_json(blocks.decode(data))


def rabbit_records(data: bytes) -> None:
    """Records found by a scan lie within the file."""
    scan = scan_records(data, "fuzz")
    assert all(record.offset >= 0 and record.offset + record.total_size <= len(data) for record in scan.records)
    find_rabbit_record(data, data[:16].ljust(16, b"\0"), 0)


def rabbit_segment(data: bytes) -> None:
    """Entries of a segment can be written and read again."""
    found, end = read_segment(data, 0, 2048, "fuzz", [])
    assert 0 <= end <= len(data)
    problems: list[object] = []
    again, _ = read_segment(write_segment(found), 0, 2048, "fuzz", problems)  # type: ignore[arg-type]
    assert again.keys() == found.keys() and not problems
    intact = read_intact(data, 0, 2048, "fuzz")
    if intact is not None:
        assert [entry.seq_id for entry in intact.entries()] == sorted(found)
        _same_messages(intact)


def rabbit_intact_version_2(data: bytes) -> None:
    """Read both files of an intact segment of version 2; the first two bytes are the size of the index."""
    stop = 2 + int.from_bytes(data[:2], "big")
    intact = read_intact_v2(data[2:stop], data[stop:], 0, "fuzz")
    if intact is not None:
        rows = read_index(data[2:stop], 0, "fuzz", [])
        store = QueueStore(data[stop:], rows, "fuzz")
        assert [entry.term for entry in intact.entries()] == [store.find(row).term for row in rows]
        _same_messages(intact)


def _same_messages(part: IntactSegment) -> None:
    """Counts, lines and columns are those of messages that the careful decoder reads too."""
    alive = [entry.term or b"" for entry in part.entries() if not entry.acked]
    assert not part.count_messages() or part.messages == len(alive)
    columns = part.columns()
    if columns is not None:
        found = [bytes(columns.bodies[start:stop]) for start, stop in pairwise(columns.begins)]
        assert found == [decode_content(term).body for term in alive]
    lines, row = LineWriter(), 0
    while row < part.count:
        row = 1 + part.write_lines(lines, row, ("queue", "vhost"), 5, 1 << 30)
    for line in bytes(lines.take()).splitlines():
        json.loads(line)


def rabbit_journal(data: bytes) -> None:
    """Read a journal's entries."""
    _found, end = read_journal(data, "fuzz", [])
    assert 0 <= end <= len(data)


def rabbit_tables(data: bytes) -> None:
    """Read the clean-stop files."""
    for reader in (tables.read_clean_mark, tables.read_summary, tables.read_locations, tables.read_recovery):
        try:
            reader(data, "fuzz")
        except StoreError:
            continue


def rabbit_version_2(data: bytes) -> None:
    """Read index and store files of version 2, and the small text files."""
    read_queue_name(data)
    read_segment_entries(data)
    rows = read_index(data, 0, "fuzz", [])
    store = QueueStore(data, rows, "fuzz")
    for entry in rows:
        if entry.location is not None:
            try:
                store.find(entry)
            except StoreError:
                continue
    restored_index(0, store, [])
    restored_start(0, rows, store)
    restored_end(0, len(rows), rows, store)
    for _found in find_containers(data):
        pass


def canary(data: bytes) -> None:
    """Fail for certain data: a planted bug that the fuzzers must find (`tests/fuzz`)."""
    if len(data) > 3 and data[0] ^ 0x5A == data[1] and data[2] > 0xF0:
        raise RuntimeError("the canary sings")


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        log_records, dispatch, log_properties, queue_units, index_file, config_json, checkpoint, compressed_body, erlang_term,
        rabbit_content, rabbit_properties, rabbit_records, rabbit_segment, rabbit_journal, rabbit_tables, rabbit_version_2,
        rabbit_intact_version_2,
        stores.extended_units, stores.batch_units, stores.wire_batch, stores.pool_ring, stores.broker_properties,
        stores.config_tables, stores.json_lines, stores.parquet_rows, node_files.stream_segment, node_files.stream_index,
        node_files.stream_batch, node_files.amqp_1_0, node_files.quorum_log, node_files.quorum_segment, node_files.quorum_state,
        node_files.quorum_command, node_files.quorum_config, node_files.quorum_tables, link_frames.remoting_frames,
        link_frames.replication_frames, link_frames.served_requests,
    )
}  # fmt: skip
SLOW = {  # the number of runs is divided by this: each run opens files or a store
    "rabbit_tables": 8, "extended_units": 4, "batch_units": 4, "config_tables": 16, "json_lines": 4, "parquet_rows": 16,
    "pool_ring": 100, "served_requests": 8,
}  # fmt: skip

if importlib.util.find_spec("grpc") is not None and importlib.util.find_spec("rocketmq") is not None:  # the extra grpc
    from fuzz.grpc_requests import grpc_requests

    TARGETS["grpc_requests"] = grpc_requests
    SLOW["grpc_requests"] = 8


def run_one(target: Callable[[bytes], None], data: bytes) -> None:
    """Run a target; a named error is a valid answer."""
    try:
        target(data)
    except StoreError:
        return
