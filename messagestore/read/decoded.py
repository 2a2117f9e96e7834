"""Decode messages as a client does: bodies decompressed, and a batch as the messages that its producer put."""

from __future__ import annotations

from commitlog import StoredMessage
from commitlog._scan_cy import with_content
from commitlog.layout import COMPRESSED, COMPRESSION_MASK, INNER_BATCH, NEED_UNWRAP
from storageio import InvalidMessage, StoreCorrupt

from ..broker.services.wire_batch import decode_wire_batch
from ..property_names import INNER_BASE

DECODED = COMPRESSED | COMPRESSION_MASK | INNER_BATCH | NEED_UNWRAP  # bits of the system flag
_MEMBER = "message of a batch"


def is_encoded(sys_flag: int) -> bool:
    """Return whether a record's body is compressed or a batch."""
    return bool(sys_flag & (COMPRESSED | INNER_BATCH))


def decoded(message: StoredMessage) -> list[StoredMessage]:
    """Return the messages in a record, without the bits of the system flag that its encoding had; else the record itself.

    Messages of a batch have their own flag, properties and queue offset; the other fields are the record's. Raises
    `StoreCorrupt` for a body that cannot be decoded or exceeds 64 MiB, and `MissingExtra` without its compression's package.
    """
    if not is_encoded(message.sys_flag) or message.is_filler:
        return [message]
    body, sys_flag = message.decoded_body(), message.sys_flag & ~DECODED
    if not message.sys_flag & INNER_BATCH:
        return [with_content(message, body, sys_flag, message.flag, message.properties_raw, message.queue_offset)]
    try:
        members = decode_wire_batch(message.topic, message.queue_id, body, b"")
    except InvalidMessage as error:
        raise StoreCorrupt(
            "batch cannot be unpacked", file="message body", offset=message.physical_offset, expected=_MEMBER, found=str(error)
        ) from error
    base = message.all_properties.get(INNER_BASE, "")
    first = int(base) if base.isascii() and base.isdecimal() and len(base) < 19 else message.queue_offset
    return [
        with_content(message, member.body, sys_flag, member.flag, member.properties_raw or b"", first + number)
        for number, member in enumerate(members)
    ]
