"""Targets for the files of streams and quorum queues."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from array import array
from itertools import pairwise

from rabbitstore.format.amqp10_cy import Converter
from rabbitstore.format.amqp10_message import read_sections, to_content
from rabbitstore.format.config_text import parse_config
from rabbitstore.format.terms import Atom
from rabbitstore.format.terms_cy import decode
from rabbitstore.quorum.command_cy import CommandReader
from rabbitstore.quorum.entries_cy import EntryRun, take_records
from rabbitstore.quorum.machine import Machine
from rabbitstore.quorum.message import info_of, info_of_command, message_term, read_content
from rabbitstore.quorum.segment import read_segment
from rabbitstore.quorum.snapshot import read_snapshot
from rabbitstore.quorum.state import read_state
from rabbitstore.quorum.tables import meta_rows, read_rows, registered
from rabbitstore.quorum.wal import WalScan
from rabbitstore.read.json_cy import LineWriter
from rabbitstore.stream.chunk import Chunk, read_records
from rabbitstore.stream.compression import unpack
from rabbitstore.stream.index import read_index
from rabbitstore.stream.records_cy import SingleMessages, single_records
from rabbitstore.stream.scan import StreamScan
from rabbitstore.stream.tracking import Tracking, apply_chunk
from storageio import StoreError
from storebytes.finding import Finding

STREAM_KEYS = (("timestamp_ms", "epoch", "filter_value"), (1, 1, None))


def stream_segment(data: bytes) -> None:
    """Chunks that pass every check lie within the file, and their entries decode or name what is wrong."""
    problems: list[Finding] = []
    scan = StreamScan(data, "fuzz", problems)
    stop = 0
    for chunk in scan.chunks():
        assert stop <= chunk.position and chunk.stop <= len(data)
        stop = chunk.stop
        for part in (lambda found=chunk: read_records(data, found, "fuzz"), lambda found=chunk: track(data, found)):
            try:
                part()
            except StoreError:
                continue
        write_lines(data, chunk)
    assert scan.budget > -2 * len(data) - 48


def write_lines(data: bytes, chunk: Chunk) -> None:
    """The kernel that writes lines has as many messages as the one that returns records."""
    walk = SingleMessages(memoryview(data), chunk.data_at, chunk.trailer_at, chunk.entries, chunk.chunk_id)
    single = single_records(memoryview(data), chunk.data_at, chunk.trailer_at, chunk.entries, chunk.chunk_id)
    assert walk.left == len(single or ())
    lines, converter, found = LineWriter(), Converter(), 0
    lines.set_shared(("s", "/"), "fuzz", STREAM_KEYS, is_embedded=False)
    while walk.left:
        walk.write_lines(lines, converter, "s", STREAM_KEYS, 1 << 30)
        if walk.left:
            walk.take()
            found += 1
    assert bytes(lines.take()).count(b"\n") + found == len(single or ())


def track(data: bytes, chunk: object) -> None:
    """Apply the tracking entries of a chunk."""
    apply_chunk(Tracking(), data, chunk, "fuzz")  # type: ignore[arg-type]


def stream_index(data: bytes) -> None:
    """Every whole record is read."""
    assert len(read_index(data, "fuzz", [])) == (len(data) - 8) // 29


def stream_batch(data: bytes) -> None:
    """Unpacking never exceeds the size that the head claims."""
    if len(data) > 3:
        size = int.from_bytes(data[1:3], "big")
        assert len(unpack(data[0] & 7, data[3:], size, file="fuzz", base=0)) == size


def amqp_1_0(data: bytes) -> None:
    """The quick conversion gives what decoding every value gives, or nothing."""
    quick = Converter().convert(data)
    content = to_content(read_sections(data), "/")
    assert quick is None or quick[:5] == (
        content.exchange, content.routing_keys, content.properties_bin, content.body, content.persistent,
    )  # fmt: skip


def quorum_log(data: bytes) -> None:
    """Records lie within the file, and the work is in proportion to it."""
    scan = WalScan(data, "fuzz", [], [])
    stop = 0
    slow = []  # as the kernel has to read them too
    for record in scan.records():
        assert stop <= record.position and record.stop <= len(data)
        stop = record.stop
        slow.append((scan.word_of(record), record.index, record.term, record.at, record.size))
    assert scan.budget > -2 * len(data) - 48
    assert sorted(row for word, run in _quick_runs(data) for row in _rows(run, word)) == sorted(slow)


def _quick_runs(data: bytes) -> list[tuple[int, EntryRun]]:
    """Read a log as a folder does: one record by the scan, and those that continue its run by the kernel."""
    scan = WalScan(memoryview(data), "fuzz", [], [])
    runs: dict[int, EntryRun] = {}
    every: list[tuple[int, EntryRun]] = []
    for record in scan.records():
        word = scan.word_of(record)
        runs[word] = EntryRun(record.index, record.term, scan.view, "fuzz")
        runs[word].append(record.at, record.size)
        every.append((word, runs[word]))
        at = take_records(scan.view, scan.position, runs)
        assert scan.position <= at <= len(data)
        scan.position = at
    return every


def _rows(run: EntryRun, word: int) -> list[tuple[int, int, int, int, int]]:
    return [(word, index, run.term, run.position(index), run.size(index)) for index in range(run.first, run.stop)]


def quorum_segment(data: bytes) -> None:
    """Entries have ascending indexes and lie within the file."""
    runs = read_segment(memoryview(data), "fuzz", [])
    assert all(run.stop <= behind.first for run, behind in pairwise(runs))
    assert all(run.position(at) + run.size(at) <= len(data) for run in runs for at in range(run.first, run.stop))


def quorum_state(data: bytes) -> None:
    """A snapshot whose CRC is right decodes to a state, or is refused."""
    if len(data) > 9:
        data = data[:5] + struct.pack(">I", zlib.crc32(data[9:])) + data[9:]
    found = read_snapshot(memoryview(data), "fuzz")
    machine = read_state(*found.split(), found.machine_version, "fuzz")
    assert len(list(machine.ready())) == machine.count_ready()
    list(machine.held())


def quorum_command(data: bytes) -> None:
    """The quick reader agrees with the term, and a command that the machine cannot apply raises one of the expected errors."""
    reader = CommandReader()
    is_plain = reader.read(memoryview(data), 0, len(data))
    quick = reader.content("/") if is_plain else None
    term = decode(data, improper=True)
    if not isinstance(term, tuple) or len(term) != 4:
        return
    command, machine = term[2], Machine()
    if quick is not None:
        assert written(reader, data, quick) in (None, quick[4])
        assert quick == read_content(message_term(command), "/", "fuzz", 0) and info_of_command(reader) == info_of(command)
    try:
        machine.apply(1, 1, command, term[3], info_of(command))
        machine.apply(2, 1, (Atom("purge"),), term[3], info_of(command))
    except (TypeError, ValueError, KeyError, IndexError, AttributeError):
        return
    read_content(message_term(command), "/", "fuzz", 0)


def written(reader: CommandReader, data: bytes, content: tuple[object, ...]) -> bytes | None:
    """Return the body in the line that the kernel writes; None if it leaves the message."""
    lines, run = LineWriter(), EntryRun(1, 1, memoryview(data), "fuzz")
    run.append(0, len(data))
    lines.set_shared(("q", "/"), "fuzz", (("state",), ("ready",)), is_embedded=True)
    if not reader.write_lines(lines, run, array("q", [1]), 0, 1 << 30):
        return None
    found = json.loads(bytes(lines.take()))
    assert found["exchange"] == content[1]
    return base64.b64decode(found["body_base64"])


def quorum_config(data: bytes) -> None:
    """The text is a map, or is refused."""
    assert isinstance(parse_config(data, "fuzz"), dict)


def quorum_tables(data: bytes) -> None:
    """Rows are read without the table's directory."""
    rows = read_rows(data, "fuzz")
    assert len(registered(rows)) <= len(rows) and len(meta_rows(rows)) <= len(rows)
