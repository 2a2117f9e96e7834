"""A message as JSON with fixed keys."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from commitlog import Reader, StoredMessage
from commitlog._json_cy import render
from commitlog.fields import BODY, FIELDS, HEX, PROPERTIES, Field
from commitlog.walk import Piece

from .output import json_line

if TYPE_CHECKING:
    from array import array

BLOCK_SIZE = 1 << 20  # of JSON lines


def message_json(message: StoredMessage) -> dict[str, Any]:
    """Return every field: hosts as `ip:port` with IPv6 in brackets, properties with RocketMQ's checksum property."""
    return {field.json_name: _json_value(message, field) for field in FIELDS}


def _json_value(message: StoredMessage, field: Field) -> Any:
    if field.kind == PROPERTIES:
        return message.all_properties
    value = getattr(message, field.name)
    return (
        f"{value & 0xFFFFFFFF:08x}" if field.kind == HEX else b64encode(value).decode("ascii") if field.kind == BODY else value
    )


def line_blocks(piece: Piece, positions: array[int]) -> Iterator[tuple[memoryview, int]]:
    """Yield blocks of JSON lines for the records at these positions, with the number of records done so far.

    A block is valid until the next one.  The kernel makes most lines from the log's bytes, `message_json` the others.
    """
    out, start = memoryview(bytearray(BLOCK_SIZE)), 0
    while start < len(positions):
        start, size, need = render(piece.view, positions, start, out)
        if size:
            yield out[:size], start
        if start < len(positions) and not need:
            start += 1
            yield message_line(message_of(piece, positions[start - 1])), start
        elif need > len(out):
            out = memoryview(bytearray(need))


def message_line(message: StoredMessage) -> memoryview:
    """Return one message as a JSON line."""
    return memoryview(json_line(message_json(message)).encode("ascii"))


def message_of(piece: Piece, position: int) -> StoredMessage:
    """Return the record at a position of a piece."""
    message = Reader(piece.view, piece.base).decode(position, 0)
    assert message is not None, "a record that was checked"
    return message
