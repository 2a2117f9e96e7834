"""Build filler records, which close a hole in the log.

A blank record in the middle of a file would make a real broker skip to the next file. So a hole becomes records that add up to
its size. One record per lost message keeps the queue offsets of all later messages: a batch of no messages, so that clients of
RocketMQ 5, which unpack it, deliver nothing (docs/formats/commitlog.md#filler-records). In a batch topic the filler has as many
queue offsets as the lost record, because RocketMQ's consumers repeat the batch below a gap and never pass it. The rest is
padding that enters no queue because its transaction bits mean "rolled back". A hole that extends to the end of a file is closed
by a blank record.
"""

from __future__ import annotations

from typing import NamedTuple

from commitlog import Appender, Message, QueueOffsets, encode_host
from commitlog.layout import (
    BLANK_SIZE,
    COMPRESSED,
    CRC_SIZE,
    FILLER_BODY,
    FILLER_BODY_SIZE,
    FILLER_FLAGS,
    MAGIC_BLANK,
    NAME_END,
    PAIR_END,
    PAIR_SIZE_MIN,
    RECORD_SIZE_MIN,
    TOPIC_SIZE_MAX_V1,
    TRANSACTION_ROLLBACK,
)  # fmt: skip
from commitlog.topic_names import FILLER_TOPIC

from ..property_names import INNER_BASE, INNER_COUNT, MULTI_DISPATCH, MULTI_QUEUE_OFFSET
from ..write.putting import encoded_pairs

SHORT_TOPIC = "F"
MARK = b"BROKERSTORE\x01filler\x02"
FILLER_SIZE_MAX = 1 << 20
HOST = "127.0.0.1:10911"


class Lost(NamedTuple):
    """A lost record for which a queue has a position."""

    topic: str
    queue_id: int
    queue_offset: int
    listed: tuple[tuple[str, int], ...] = ()  # queues of other topics that contain it too, with its offset in each
    messages: int = 1  # queue offsets that it had; more than one only in a batch queue

    @property
    def least_bytes(self) -> int:
        """Return the minimum size of its filler record in bytes."""
        return least_size(self.topic) + len(self.pairs)

    @property
    def pairs(self) -> bytes:
        """Return the encoded properties that put a record into other queues, and that number its messages in a batch queue."""
        pairs: dict[str, str] = {}
        if self.listed:
            pairs[MULTI_DISPATCH], pairs[MULTI_QUEUE_OFFSET] = (
                ",".join(map(str, column)) for column in zip(*self.listed, strict=True)
            )
        if self.messages > 1:
            pairs |= {INNER_BASE: str(self.queue_offset), INNER_COUNT: str(self.messages)}
        return encoded_pairs(pairs) if pairs else b""


def least_size(topic: str) -> int:
    """Return the minimum size in bytes of a record of this topic."""
    size = len(topic.encode("utf-8", "replace"))
    return RECORD_SIZE_MIN + size + (1 if size > TOPIC_SIZE_MAX_V1 or len(topic) > TOPIC_SIZE_MAX_V1 else 0)


def fill(
    offset: int, size_bytes: int, lost: list[Lost], store_timestamp_ms: int, *, to_file_end: bool
) -> tuple[bytes, list[Lost]]:
    """Return the bytes that fill a hole, and the lost messages that did not fit, or whose queue has a name that is no topic.

    The hole has `size_bytes` bytes at physical offset `offset`.
    """
    data = bytearray(size_bytes)
    at, stop = 0, size_bytes - (BLANK_SIZE if to_file_end else 0)
    left_out: list[Lost] = []
    dress = _dress(stop, lost)
    behind = _least_behind(lost)
    for index, message in enumerate(lost):
        least, space = message.least_bytes + dress, stop - at
        is_tight = not to_file_end and 0 < space - least < behind[index]
        if space < least or (is_tight and index + 1 < len(lost)) or not _is_text(message.topic):
            left_out.append(message)
            continue
        taken = space if is_tight else least
        _write(data, at, taken, offset, message, store_timestamp_ms, 0)
        at += taken
    if to_file_end:
        data[at : at + BLANK_SIZE] = (size_bytes - at).to_bytes(4, "big") + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
    else:
        _pad(data, at, offset, store_timestamp_ms)
    return bytes(data), left_out


def _is_text(topic: str) -> bool:
    """Return whether a record can have the topic: the name of a folder may be no UTF-8."""
    try:
        topic.encode()
    except UnicodeEncodeError:
        return False
    return True


def _dress(size_bytes: int, lost: list[Lost]) -> int:
    """Return the bytes for body, checksum and mark in each filler, or for a part of these, if all fillers have space for them.

    Padding needs no such reserve: the rest belongs to the last filler, or is larger than any record needs.
    """
    least = sum(message.least_bytes for message in lost)
    for dress in (FILLER_BODY_SIZE + CRC_SIZE + len(MARK), FILLER_BODY_SIZE + CRC_SIZE, FILLER_BODY_SIZE):
        if least + dress * len(lost) <= size_bytes:
            return dress
    return 0


def _least_behind(lost: list[Lost]) -> list[int]:
    """Return how many bytes must remain behind each filler, if any remain: the minimum of later fillers and of padding."""
    least = least_size(SHORT_TOPIC)
    behind = []
    for message in reversed(lost):
        behind.append(least)
        least = min(least, message.least_bytes)
    return behind[::-1]


def _pad(data: bytearray, at: int, offset: int, store_timestamp_ms: int) -> None:
    """Fill the rest with records that enter no queue."""
    while at < len(data):
        left = len(data) - at
        size = left if left <= FILLER_SIZE_MAX else min(FILLER_SIZE_MAX, left - least_size(FILLER_TOPIC))
        topic = FILLER_TOPIC if size >= least_size(FILLER_TOPIC) + CRC_SIZE else SHORT_TOPIC
        _write(data, at, size, offset, Lost(topic, 0, 0), store_timestamp_ms, TRANSACTION_ROLLBACK)
        at += size


def _write(data: bytearray, at: int, size: int, offset: int, lost: Lost, store_timestamp_ms: int, sys_flag: int) -> None:
    """Write one record of exactly `size` bytes, with body, checksum and mark as far as they fit."""
    space = size - lost.least_bytes
    assert space >= 0, "the walk ends no hole before there is room for a filler"
    is_padding = sys_flag == TRANSACTION_ROLLBACK
    body = FILLER_BODY if space >= FILLER_BODY_SIZE and not is_padding else b""
    space -= len(body)
    with_crc = space >= CRC_SIZE
    space -= CRC_SIZE if with_crc else 0
    mark = MARK if space >= len(MARK) else b""
    rest = space - len(mark)
    if is_padding or (body and rest < PAIR_SIZE_MIN):
        body, rest = body + bytes(rest), 0
    offsets = QueueOffsets()
    offsets.set_next_offset(lost.topic, lost.queue_id, lost.queue_offset)
    view = memoryview(bytearray(size + BLANK_SIZE))
    appender = Appender(
        lambda: (view, offset + at),
        len(view),
        offsets,
        encode_host(HOST),
        with_crc,
        lambda: store_timestamp_ms,
        max(len(body), 1),
    )
    appender.attach(view, offset + at, 0)
    raw = mark + lost.pairs + _pair_of(rest)
    flags = sys_flag | FILLER_FLAGS | (COMPRESSED if body.startswith(FILLER_BODY) else 0)
    message = Message(lost.topic, body, queue_id=lost.queue_id, sys_flag=flags, properties_raw=raw or None)
    result = appender.append(message)
    assert result.size_bytes == size, f"a filler of {result.size_bytes} bytes, wanted {size}: {result.reason}"
    data[at : at + size] = view[:size]


def _pair_of(size: int) -> bytes:
    """Return a property of this size, or ends of none if that is too short for one."""
    if size < PAIR_SIZE_MIN:
        return bytes([PAIR_END]) * size
    return b"_" + bytes([NAME_END]) + b" " * (size - PAIR_SIZE_MIN) + bytes([PAIR_END])
