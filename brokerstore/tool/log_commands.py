"""The commands on a RocketMQ folder that its commit log alone answers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import islice

from commitlog import StoredMessage, decode_message_id
from commitlog.findings import Finding
from commitlog.message_id import DecodedId
from commitlog.walk import Blank, LogFiles, Piece
from storageio import InvalidMessage, StoreCorrupt

from .absent import NoSuchMessage
from .codes import CLEAN, PROBLEM
from .escapes import quote
from .message_json import line_blocks, message_json
from .output import body_text, emit, emit_block, emit_json, fields, finding_text, say, time_text
from .target import Target
from .wanted import Wanted

BODY_SHOWN = 60
BODY_SHOWN_ALONE = 1024
PORT_MAX = 65535


def good_messages(
    files: LogFiles, told: list[Finding], advance: Callable[[int], None] = lambda _size_bytes: None
) -> Iterator[StoredMessage]:
    """Every message; what is wrong is said on stderr and kept in `told`.  `advance` is called with the bytes behind it."""
    for piece in good_pieces(files, told):
        yield from piece.messages()
        advance(piece.stop - piece.start)


def good_pieces(files: LogFiles, told: list[Finding]) -> Iterator[Piece]:
    """The same as stretches of records."""
    for finding in files.check():
        tell(finding, told)
    for step in files.walk():
        if isinstance(step, Finding):
            tell(step, told)
        elif isinstance(step, Piece):
            yield step


def json_blocks(files: LogFiles, told: list[Finding], wanted: Wanted, limit: int | None) -> Iterator[memoryview]:
    """Every wanted message as a line of JSON, at most `limit`; a block is good until the next is asked for."""
    left = limit
    for piece in good_pieces(files, told):
        positions = wanted.positions(piece)[:left]
        yield from (block for block, _ in line_blocks(piece, positions))
        if left is not None:
            left -= len(positions)
            if left == 0:
                return


def tell(finding: Finding, told: list[Finding]) -> None:
    """A problem is said and kept; a note is not."""
    if finding.is_problem:
        told.append(finding)
        say(f"brokerstore: {finding_text(finding)}")


def dump_messages(target: Target, as_json: bool, wanted: Wanted, limit: int | None) -> int:
    """One line a message."""
    told: list[Finding] = []
    files = target.files()
    if limit == 0:
        return CLEAN
    shown = 0
    show_header(as_json)
    if as_json:
        for block in json_blocks(files, told, wanted, limit):
            emit_block(block)
            shown += 1
    else:
        for message in islice(filter(wanted.takes, good_messages(files, told)), limit):
            show_row(message, as_json)
            shown += 1
    if not shown and wanted != Wanted():
        say_none_fits(target)
    return PROBLEM if told else CLEAN


def say_none_fits(target: Target) -> None:
    """An empty answer may be a name that was mistyped."""
    say(f"brokerstore: no message fits; run: brokerstore ls {quote(target.path)}  (what there is)")


def show_header(as_json: bool) -> None:
    """Above rows for people."""
    if not as_json:
        emit(_row_text("offset", "stored", "topic/queue", "number", "body"))


def show_row(message: StoredMessage, as_json: bool) -> None:
    """One message in one line."""
    if as_json:
        emit_json(message_json(message))
    else:
        emit(_message_row(message))


def _message_row(message: StoredMessage) -> str:
    words = [f"[{message.tags}]"] if message.tags else []
    words += [f"({' '.join(message.keys)})"] if message.keys else []
    body = " ".join([*words, body_text(message.body, BODY_SHOWN)])
    queue = f"{message.topic}/{message.queue_id}"
    return _row_text(message.physical_offset, time_text(message.store_timestamp_ms), queue, message.queue_offset, body)


def _row_text(offset: object, stored: object, queue: object, number: object, body: object) -> str:
    return f"{offset:>12}  {stored:<24}  {queue:<24}  {number:>8}  {body}"


def get_message(target: Target, as_json: bool, offset: int) -> int:
    """One message."""
    show_whole(message_at(target, offset), as_json)
    return CLEAN


def get_by_id(target: Target, as_json: bool, message_id: str) -> int:
    """The message whose store host and physical offset an id holds."""
    decoded = _decoded(message_id)
    found = message_at(target, decoded.physical_offset)
    if found.message_id != message_id.upper():
        raise StoreCorrupt(
            "another message lies there", file=target.path, offset=decoded.physical_offset,
            expected=message_id, found=found.message_id,
        )  # fmt: skip
    show_whole(found, as_json)
    return CLEAN


def _decoded(message_id: str) -> DecodedId:
    """`InvalidMessage` for a unique key, which looks like an offset id but holds no offset: a process where that has a port."""
    decoded = decode_message_id(message_id)
    if int(decoded.store_host.rpartition(":")[2]) <= PORT_MAX:
        return decoded
    error = InvalidMessage(f"{message_id}: a client's unique key (UNIQ_KEY); expected a store's own id, with an offset in it")
    error.add_note(f"run: brokerstore query DIR TOPIC {quote(message_id)}  (unique keys are in the index)")
    raise error


def message_at(target: Target, offset: int) -> StoredMessage:
    """One message; `NoSuchMessage` inside another one, `StoreCorrupt` for what lies there instead."""
    files = target.files()
    found = files.message_at(offset)
    if found is None:
        end = files.end().offset
        first = files.files[0].start_offset if files.files else 0
        raise NoSuchMessage(
            f"{target.path}: no file holds offset {offset}: expected {first} to {end}, found nothing",
            f"run: brokerstore info {quote(target.path)}  (where the log begins and ends)",
        )
    if isinstance(found, Finding):
        _refuse_inside(target, offset)
        raise StoreCorrupt(
            f"no message begins here ({found.kind})",
            file=found.file,
            offset=found.offset,
            expected=found.expected,
            found=found.found,
        )
    return found


def _refuse_inside(target: Target, offset: int) -> None:
    """`NoSuchMessage` for an offset within a good message, within the blank end of a file, or behind all of them."""
    files = target.files()
    end = files.end().offset
    files.files = [file for file in files.files if file.start_offset <= offset < file.start_offset + file.size_bytes]
    first = files.files[0].start_offset
    for step in files.walk():
        if isinstance(step, Piece) and step.base + step.start <= offset < step.base + step.stop:
            at = step.base + step.positions[bisect_right(step.positions, offset - step.base) - 1]
            _raise_inside(target, offset, f"the inside of the message at {at}", f"get {quote(target.path)} --at {at}")
        if isinstance(step, Blank) and first + step.offset <= offset:
            _raise_inside(
                target,
                offset,
                "the blank end of a file",
                f"get {quote(target.path)} --at {first + step.offset + step.size_bytes}",
            )
    if offset >= end:
        _raise_inside(target, offset, f"what was never written: the log ends at {end}", f"tail {quote(target.path)}")


def _raise_inside(target: Target, offset: int, found: str, command: str) -> None:
    text = f"{target.path}: no message begins at {offset}: expected the offset of one, found {found}"
    raise NoSuchMessage(text, f"run: brokerstore {command}")


def show_whole(found: StoredMessage, as_json: bool) -> None:
    """Every field of one message."""
    if as_json:
        emit_json(message_json(found))
        return
    shown = message_json(found)
    del shown["body_base64"]
    for name in ("born_timestamp_ms", "store_timestamp_ms"):
        shown[name] = f"{shown[name]} ({time_text(shown[name])})"
    shown["tags"] = found.tags or ""
    shown["keys"] = " ".join(found.keys)
    shown["body"] = f"{len(found.body)} bytes: {body_text(found.body, BODY_SHOWN_ALONE)}"
    fields(shown)


def show_id(message_id: str, as_json: bool) -> int:
    """No store is looked at."""
    decoded = _decoded(message_id)
    facts = {"message_id": message_id, "store_host": decoded.store_host, "physical_offset": decoded.physical_offset}
    if as_json:
        emit_json(facts)
    else:
        fields({"Broker": decoded.store_host, "Physical offset": decoded.physical_offset})
    return CLEAN
