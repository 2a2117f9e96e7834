"""Build results of refused puts, and edit properties in the form that the log keeps."""

from __future__ import annotations

from commitlog import PutResult, PutStatus, delete_property
from storageio import InvalidMessage

NEVER = (
    PutStatus.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED,
    PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED,
)  # a retry cannot succeed


def refused(status: PutStatus, reason: str) -> PutResult:
    """Return the result of a put that wrote nothing."""
    result: PutResult = PutResult.__new__(PutResult)
    result.status, result.reason, result.message_count = status, reason, 0
    result.physical_offset = result.queue_offset = result.queue_id = -1
    result.store_timestamp_ms = result.size_bytes = 0
    result.store_host = b"\0" * 8
    return result


def encoded_pairs(pairs: dict[str, str]) -> bytes:
    """Return properties as the log keeps them (`docs/formats/commitlog.md#properties`). Raises `InvalidMessage`."""
    for name, value in pairs.items():
        if not name or not value or "\x01" in name + value or "\x02" in name + value:
            raise InvalidMessage(f"property {name!r} with value {value!r}: both need text without \\x01 and \\x02")
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()


def with_pairs(raw: bytes, pairs: dict[str, str]) -> bytes:
    """Return encoded properties with these set at the end; all others keep their order."""
    raw = without_pairs(raw, tuple(pairs))
    if raw and not raw.endswith(b"\x02"):
        raw += b"\x02"
    return raw + encoded_pairs(pairs)


def without_pairs(raw: bytes, names: tuple[str, ...]) -> bytes:
    """Return encoded properties without some of them."""
    for name in names:
        raw = delete_property(raw, name.encode())
    return raw
