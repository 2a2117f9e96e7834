"""The answers of the owner: results of puts, values, and errors, which arrive with their types and fields.

An error of a type that is not listed arrives as `StoreError` with its text; the owner logs it.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable
from typing import Any

from commitlog import PutResult, PutStatus
from storageio import (
    DiskError,
    DiskFull,
    FlushTimeout,
    InvalidMessage,
    InvalidSetting,
    MissingExtra,
    OutOfRange,
    PutRejected,
    RefusedMessage,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreRewound,
    UnknownStore,
    UnsupportedFormat,
)

from ..write.putting import no_space
from ._packing_cy import BadFrame, unpack_results
from .protocol import HEADER, Frame, Operation, pack_frame

LOG = logging.getLogger(f"brokerstore.{__name__}")
_RESULT = struct.Struct(">BiqqqIIBI")
FULL = 0x80  # bit of the status of a put that found no space
_PLAIN: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        FlushTimeout,
        InvalidMessage,
        InvalidSetting,
        MissingExtra,
        OutOfRange,
        OverflowError,
        StoreBusy,
        StoreClosed,
        StoreError,
        StoreLocked,
        StoreReadOnly,
        StoreRewound,
        TypeError,
        UnknownStore,
        ValueError,
    )
}
_FIELDS: dict[str, tuple[str, ...]] = {
    "DiskError": ("operation", "file", "errno", "text"),
    "DiskFull": ("operation", "file", "errno", "text"),
    "PutRejected": ("status", "reason", "message_count"),
    "RefusedMessage": ("status", "reason", "message_count"),
    "StoreFull": ("status", "reason", "message_count"),
    "StoreCorrupt": ("reason", "file", "offset", "expected", "found"),
    "UnsupportedFormat": ("what", "file", "found", "supported", "offset"),
}
_MAKERS: dict[str, Callable[..., Exception]] = {
    "DiskError": DiskError,
    "DiskFull": DiskFull,
    "PutRejected": lambda status, *rest: PutRejected(PutStatus(status), *rest),
    "RefusedMessage": lambda status, *rest: RefusedMessage(PutStatus(status), *rest),
    "StoreFull": lambda status, *rest: StoreFull(PutStatus(status), *rest),
    "StoreCorrupt": lambda reason, file, offset, expected, found: StoreCorrupt(
        reason, file=file, offset=offset, expected=expected, found=found
    ),
    "UnsupportedFormat": lambda what, file, found, supported, offset: UnsupportedFormat(
        what, file=file, found=found, supported=supported, offset=offset
    ),
}


def pack_value(value: Any) -> bytes:
    """Return the answer to a call."""
    return pack_frame(Operation.VALUE, json.dumps(value).encode())


def pack_result(result: PutResult) -> bytes:
    """Return the answer to a put."""
    reason = (result.reason or "").encode("utf-8", "replace")
    full = FULL if isinstance(result.cause, DiskFull) else 0
    row = _RESULT.pack(
        result.status | full, result.queue_id, result.queue_offset, result.physical_offset, result.store_timestamp_ms,
        result.size_bytes, result.message_count, len(result.store_host), len(reason),
    )  # fmt: skip
    return pack_frame(Operation.RESULT, row + result.store_host + reason)


def unpack_result(payload: bytes) -> PutResult:
    """Return the result of a put."""
    row = _RESULT.unpack_from(payload)
    status, queue_id, queue_offset, physical_offset, time_ms, size_bytes, count, host_size, reason_size = row
    result: PutResult = PutResult.__new__(PutResult)
    result.status = PutStatus(status & ~FULL)
    result.queue_id, result.queue_offset, result.physical_offset = queue_id, queue_offset, physical_offset
    result.store_timestamp_ms, result.size_bytes, result.message_count = time_ms, size_bytes, count
    at = _RESULT.size + host_size
    result.store_host = payload[_RESULT.size : at]
    result.reason = payload[at : at + reason_size].decode() or None
    result.cause = no_space(result.reason or "") if status & FULL else None
    return result


def pack_error(error: Exception) -> bytes:
    """Return the answer to a request that raised; the disk's error goes with the error that it caused."""
    listed = _listed(error)
    if isinstance(error.__cause__, DiskError):
        listed.append({"cause": _listed(error.__cause__)})
    return pack_frame(Operation.ERROR, json.dumps(listed).encode())


def _listed(error: Exception) -> list[Any]:
    name = type(error).__name__
    if name in _FIELDS:
        return [name, *(_plain(_field(error, field)) for field in _FIELDS[name])]
    if _PLAIN.get(name) is type(error):
        return [name, str(error)]
    LOG.error("a request failed", exc_info=error)
    return ["StoreError", f"{name}: {error}"]


def _field(error: Exception, name: str) -> Any:
    """Return an argument of an error; a `DiskError` keeps its text in its message only."""
    if isinstance(error, DiskError) and name == "text":
        return str(error).partition(" failed: ")[2].rpartition(" (errno ")[0]
    return getattr(error, name)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | str) else str(value)


def unpack_error(payload: bytes) -> Exception:
    """Return the error of an answer."""
    listed = json.loads(payload)
    cause = listed.pop()["cause"] if isinstance(listed[-1], dict) else None
    error = _made(listed)
    if cause is not None:
        error.__cause__ = _made(cause)
    return error


def _made(listed: list[Any]) -> Exception:
    name, *arguments = listed
    maker = _MAKERS.get(name) or _PLAIN.get(name, StoreError)
    return maker(*arguments)


def unpack_packed_result(text: str) -> PutResult:
    """Return the result that an answer has as text."""
    return unpack_result(bytes.fromhex(text)[HEADER.size :])


def unpack_answer(frame: Frame) -> Any:
    """Return what a request returned; raise what it raised."""
    if frame.operation == Operation.RESULT:
        return unpack_result(frame.payload)
    if frame.operation == Operation.VALUE:
        return json.loads(frame.payload)
    if frame.operation == Operation.ERROR:
        raise unpack_error(frame.payload)
    if frame.operation == Operation.RESULTS:
        return unpack_results(frame.payload, lambda packed: unpack_error(packed[HEADER.size :]))
    raise BadFrame(f"operation {frame.operation} is no answer")
