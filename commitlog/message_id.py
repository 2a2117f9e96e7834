"""The offset id of a record: upper-case hex of store host and physical offset (docs/formats/put-rules.md#message-ids)."""

from __future__ import annotations

import struct
from typing import NamedTuple

from storageio import InvalidMessage

from .hosts import decode_host
from .layout import HOST_SIZE, HOST_SIZE_V6

_OFFSET = struct.Struct(">q")


class DecodedId(NamedTuple):
    """The parts of an offset id."""

    store_host: str
    physical_offset: int


def encode_message_id(store_host: bytes, physical_offset: int) -> str:
    """Return the id: 32 characters for an IPv4 host, 56 for IPv6.

    >>> encode_message_id(bytes.fromhex("7f0000010000007c"), 4096)
    '7F0000010000007C0000000000001000'
    """
    return (store_host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()


def encode_message_ids(store_host: bytes, physical_offsets: list[int]) -> str:
    """Return the ids of several messages, separated by commas.

    >>> encode_message_ids(bytes.fromhex("7f0000010000007c"), [4096, 4352])
    '7F0000010000007C0000000000001000,7F0000010000007C0000000000001100'
    """
    parts = b"".join([store_host + _OFFSET.pack(offset) for offset in physical_offsets])
    return parts.hex(",", len(store_host) + _OFFSET.size).upper()


def decode_message_id(text: str) -> DecodedId:
    """Split an offset id; raise `InvalidMessage` if the text is not one."""
    sizes = {2 * (size + 8): size for size in (HOST_SIZE, HOST_SIZE_V6)}
    if len(text) not in sizes:
        raise InvalidMessage(f"message id {text!r}: {len(text)} characters, expected 32 or 56")
    try:
        data = bytes.fromhex(text)
    except ValueError as error:
        raise InvalidMessage(f"message id {text!r}: {error}") from error
    if 2 * len(data) != len(text):
        raise InvalidMessage(f"message id {text!r}: not all of it is hex")
    size = sizes[len(text)]
    return DecodedId(decode_host(data[:size]), int.from_bytes(data[size:], "big", signed=True))
