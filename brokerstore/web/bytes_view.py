"""The bytes of a file around a place as hex, and the fields of the record, unit or item that begins there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from commitlog import layout as log
from consumequeue import layout as queue
from indexfile import layout as index
from storageio import InvalidMessage

BEFORE, SHOWN, LINE = 64, 512, 16


class FieldBytes(NamedTuple):
    """A field of a layout: its name, and where it is from the start of what it belongs to."""

    name: str
    at: int
    size: int


def _fields(*named: tuple[str, int], end: int) -> tuple[FieldBytes, ...]:
    """Return fields whose sizes follow from where the next one begins."""
    stops = [*(at for _, at in named[1:]), end]
    return tuple(FieldBytes(name, at, stop - at) for (name, at), stop in zip(named, stops, strict=True))


RECORD = _fields(
    ("size", log.SIZE_AT), ("magic", log.MAGIC_AT), ("body_crc", log.BODY_CRC_AT), ("queue_id", log.QUEUE_ID_AT),
    ("flag", log.FLAG_AT), ("queue_offset", log.QUEUE_OFFSET_AT), ("physical_offset", log.PHYSICAL_OFFSET_AT),
    ("sys_flag", log.SYS_FLAG_AT), ("born_timestamp_ms", log.BORN_TIME_AT), ("born_host (IPv4)", log.BORN_HOST_AT),
    ("store_timestamp_ms", log.STORE_TIME_AT), ("store_host (IPv4)", log.STORE_HOST_AT),
    ("reconsume_times", log.RECONSUME_AT), ("prepared_transaction_offset", log.PREPARED_AT),
    ("body_size", log.BODY_SIZE_AT), end=log.BODY_AT,
)  # fmt: skip
UNIT = _fields(
    ("physical_offset", queue.PHYSICAL_OFFSET_AT), ("size_bytes", queue.SIZE_AT), ("tags_code", queue.TAGS_CODE_AT),
    end=queue.UNIT_SIZE,
)  # fmt: skip
ITEM = _fields(
    ("key_hash", index.ITEM_KEY_HASH_AT), ("physical_offset", index.ITEM_PHYSICAL_OFFSET_AT),
    ("seconds", index.ITEM_SECONDS_AT), ("previous", index.ITEM_PREVIOUS_AT), end=index.ITEM_SIZE,
)  # fmt: skip
STORED = (FieldBytes("size", 0, 8), FieldBytes("message_id", 8, 16), FieldBytes("term", 24, 8))  # of an rdq file
_LAYOUTS = (
    ("/commitlog/", "record of the commit log", RECORD), ("/consumequeue/", "unit of a queue", UNIT),
    ("/index/", "item of the key index", ITEM), (".rdq", "record of a message store", STORED),
)  # fmt: skip


def inner_path(roots: list[str], file: str) -> str:
    """Return the path of what is in one of the folders, the first that has it; raise `InvalidMessage` for another.

    Names of a virtual host's files are relative to it, those of quorum queues and streams to the node.
    """
    paths = [os.path.join(root, file.replace("\0", "")) for root in roots]
    real = os.path.realpath(next(filter(os.path.lexists, paths), paths[0]))
    if "\0" in file or not any(real.startswith(os.path.join(os.path.realpath(root), "")) for root in roots):
        raise InvalidMessage(f"{file[:200]!r} is no file of this folder")
    return real


def file_at(roots: list[str], file: str, offset: int) -> tuple[str, int]:
    """Return the file and the offset in it: a finding may name the folder of a queue, and a byte of all its files."""
    try:
        names = [name for name in os.listdir(inner_path(roots, file)) if name.isascii() and name.isdigit()]
    except (OSError, InvalidMessage):
        return file, offset
    found = max((name for name in names if int(name) <= offset), key=int, default=None)
    return (file, offset) if found is None else (f"{file.rstrip('/')}/{found}", offset - int(found))


def read_bytes(roots: list[str], file: str, offset: int, size: int) -> tuple[bytes, int]:
    """Return bytes of a file of the folder, and the size of the file."""
    path = inner_path(roots, file)
    if not os.path.isfile(path):  # a pipe, a device, a folder
        raise InvalidMessage(f"{file[:200]!r} is no regular file of this folder")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, offset), os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def hex_view(roots: list[str], file: str, offset: int) -> dict[str, Any]:
    """Return the lines of hex around an offset, and the fields that begin at it."""
    file, offset = file_at(roots, file, offset)
    start = max(0, offset - BEFORE) // LINE * LINE
    data, size = read_bytes(roots, file, start, BEFORE + SHOWN)
    lines = list(hex_lines(data, start, offset))
    title, fields = next(((title, fields) for mark, title, fields in _LAYOUTS if mark in f"/{file}"), ("", ()))
    behind = data[offset - start :]
    rows = [_row(one, behind, offset) for one in fields if one.at + one.size <= len(behind)]
    return {"file": file, "offset": offset, "size_bytes": size, "start": start, "lines": lines, "layout": title, "fields": rows}


def hex_lines(data: bytes, start: int, marked: int) -> Iterator[tuple[int, str, str, str]]:
    """Yield of each line where it begins, its bytes before the marked one, those from it on, and its letters of ASCII."""
    for at in range(0, len(data), LINE):
        part, split = data[at : at + LINE], min(max(0, marked - start - at), LINE)
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        yield start + at, part[:split].hex(" "), part[split:].hex(" "), text


def _row(field: FieldBytes, data: bytes, offset: int) -> dict[str, Any]:
    found = data[field.at : field.at + field.size]
    value = str(int.from_bytes(found, "big", signed=True)) if field.size <= 8 else ""
    return {"field": field.name, "at": offset + field.at, "size": field.size, "bytes": found.hex(" "), "value": value}
