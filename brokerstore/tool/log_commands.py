"""The commands on a RocketMQ folder that its commit log alone answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice

from commitlog import StoredMessage, decode_message_id
from commitlog.findings import Finding
from commitlog.walk import LogFiles
from storageio import StoreCorrupt

from .codes import CLEAN, PROBLEM
from .message_json import message_json, message_lines
from .output import body_text, emit, emit_json, fields, say, time_text
from .target import Target
from .wanted import Wanted

BODY_SHOWN = 60
BODY_SHOWN_ALONE = 1024


def good_messages(files: LogFiles, told: list[Finding]) -> Iterator[StoredMessage]:
    """Every message; what is wrong is said on stderr and kept in `told`."""
    for finding in files.check():
        tell(finding, told)
    for step in files.messages():
        if isinstance(step, Finding):
            tell(step, told)
        else:
            yield step


def tell(finding: Finding, told: list[Finding]) -> None:
    """A problem is said and kept; a note is not."""
    if finding.is_problem:
        told.append(finding)
        say(f"brokerstore: {finding_text(finding)}")


def dump_messages(target: Target, as_json: bool, wanted: Wanted, limit: int | None) -> int:
    """One line a message."""
    told: list[Finding] = []
    left = limit is None or limit > 0
    files = target.files()
    if left:
        show_header(as_json)
    found = filter(wanted.takes, good_messages(files, told)) if left else iter(())
    if as_json:
        for lines in message_lines(islice(found, limit)):
            sys.stdout.write(lines)
        return PROBLEM if told else CLEAN
    for message in islice(found, limit):
        show_row(message, as_json)
    return PROBLEM if told else CLEAN


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
    decoded = decode_message_id(message_id)
    found = message_at(target, decoded.physical_offset)
    if found.message_id != message_id.upper():
        raise StoreCorrupt(
            "another message lies there", file=target.path, offset=decoded.physical_offset,
            expected=message_id, found=found.message_id,
        )  # fmt: skip
    show_whole(found, as_json)
    return CLEAN


def message_at(target: Target, offset: int) -> StoredMessage:
    """One message; `StoreCorrupt` says what lies there instead."""
    files = target.files()
    found = files.message_at(offset)
    if found is None:
        end = files.end().offset
        first = files.files[0].start_offset if files.files else 0
        raise StoreCorrupt(
            "no file holds this offset", file=target.path, offset=offset, expected=f"{first} to {end}", found="nothing"
        )
    if isinstance(found, Finding):
        raise StoreCorrupt(
            f"no message begins here ({found.kind})",
            file=found.file,
            offset=found.offset,
            expected=found.expected,
            found=found.found,
        )
    return found


def show_whole(found: StoredMessage, as_json: bool) -> None:
    """Every field of one message."""
    if as_json:
        emit_json(message_json(found))
        return
    shown = message_json(found)
    del shown["body_base64"]
    for name in ("born_timestamp_ms", "store_timestamp_ms"):
        shown[name] = f"{shown[name]} ({time_text(shown[name])})"
    shown["keys"] = " ".join(found.keys)
    shown["body"] = f"{len(found.body)} bytes: {body_text(found.body, BODY_SHOWN_ALONE)}"
    fields(shown)


def finding_text(finding: Finding) -> str:
    """In a line."""
    what = finding.kind.replace("_", " ")
    return f"{finding.file} at byte {finding.offset}: {what}: expected {finding.expected}, found {finding.found}"


def show_id(message_id: str, as_json: bool) -> int:
    """No store is looked at."""
    decoded = decode_message_id(message_id)
    facts = {"message_id": message_id, "store_host": decoded.store_host, "physical_offset": decoded.physical_offset}
    if as_json:
        emit_json(facts)
    else:
        fields({"Broker": decoded.store_host, "Physical offset": decoded.physical_offset})
    return CLEAN
