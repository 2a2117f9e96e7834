"""Messages of the protocol and of the store, and the names of topics and groups."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import Any

from commitlog import Message, StoredMessage, encode_properties
from commitlog.compression import decompress
from commitlog.layout import TRANSACTION_PREPARED
from messagestore import property_names as names
from messagestore.write.admission import client_problem, internal_problem
from storageio import InvalidMessage, StoreError

from ..server.fields import is_group_name
from .protocol import definition as d

DECOMPRESSED_MAX = 16 << 20  # bytes of the bodies of one request, after which no more of it is decompressed
KEYS, TAGS = "KEYS", "TAGS"
MESSAGE_GROUP = "__SHARDINGKEY"
BORN_HOST, BORN_TIME = "__BORNHOST", "BORN_TIMESTAMP"
TRACE = "TRACE_CONTEXT"
DEAD_TOPIC, DEAD_ID = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"
RESERVED = {  # properties that are no user's
    KEYS, TAGS, MESSAGE_GROUP, BORN_HOST, BORN_TIME, TRACE, names.IMMUNITY_S, DEAD_TOPIC, DEAD_ID, names.DELAY, *names.TIMERS,
    names.REAL_TOPIC, names.REAL_QUEUE, names.WAIT, names.UNIQUE_KEY, names.IS_TRANSACTION, names.PRODUCER_GROUP,
    names.TRANSACTION_ID, names.CHECK_TIMES, names.FIRST_TOPIC, names.FIRST_ID, names.INNER_COUNT, names.INNER_BASE,
    names.MULTI_DISPATCH, names.MULTI_QUEUE_OFFSET, names.PRIORITY, names.DEDUP_ID, names.TTL_MS, names.EXPIRED_MS,
    "__CRC32#", "CLUSTER", "MSG_REGION", "TRACE_ON", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME",
    "POP_CK", "1ST_POP_TIME", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "INSTANCE_ID",
    "UNIQ_CLIENT_MESSAGE_ID_KEYIDX", "BUYER_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "TRAN_PREPARED_QUEUE_OFFSET",
    "EXTEND_UNIQ_INFO", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY",
}  # fmt: skip
MILLIS, NANOS = 1000, 1_000_000
TIME_S_MAX = 253_402_300_799  # of the protocol's timestamps: the end of the year 9999
GENERATOR, TWO_TO_31, WORD = 2862933555777941757, 1 << 31, (1 << 64) - 1


class Declined(Exception):
    """A request that is answered with a status."""

    def __init__(self, code: int, text: str) -> None:
        """Create it with a code of the protocol."""
        super().__init__(text)
        self.code = code


def status(code: int = d.OK, text: str = "OK") -> Any:
    """Return a status of the protocol."""
    return d.Status(code=code, message=text)


OK = status()


def common_status(entries: Sequence[Any]) -> Any:
    """Return the status of an answer: that of all its entries, if they have the same code."""
    first = entries[0].status
    is_common = all(entry.status.code == first.code for entry in entries)
    return first if is_common else status(d.MULTIPLE_RESULTS, "see the entries")


def topic_of(resource: Any) -> str:
    """Return the topic that a resource names; raise `Declined` for a broker's own or an impossible one."""
    name = _with_namespace(resource)
    reason = client_problem(name) or internal_problem(name)
    if reason is not None or name.startswith("%RETRY%"):
        raise Declined(d.ILLEGAL_TOPIC, f"topic {name[:200]!r}: {reason or 'clients do not name retry topics'}")
    return name


def group_of(resource: Any) -> str:
    """Return the consumer group that a resource names."""
    name = _with_namespace(resource)
    if not is_group_name(name):
        raise Declined(d.ILLEGAL_CONSUMER_GROUP, f"no group can be named {name[:200]!r}")
    return name


def _with_namespace(resource: Any) -> str:
    space = resource.resource_namespace
    return f"{space}%{resource.name}" if space else str(resource.name)


def resource_of(name: str) -> Any:
    """Return the resource of a topic's name in the store: the part before the first % is a namespace."""
    space, separator, rest = name.partition("%")
    return d.Resource(resource_namespace=space, name=rest) if separator and space else d.Resource(name=name)


def duration_ms(duration: Any) -> int:
    """Return a duration in milliseconds."""
    return int(duration.seconds) * MILLIS + int(duration.nanos) // NANOS


def set_time(timestamp: Any, time_ms: int) -> None:
    """Set a timestamp of the protocol; times outside of its range are the nearest in it."""
    seconds, rest = divmod(time_ms, MILLIS)
    timestamp.seconds = min(max(seconds, 0), TIME_S_MAX)
    timestamp.nanos = rest * NANOS


def queue_of_group(message_group: str, count: int) -> int:
    """Return the queue of a message group, as a proxy chooses it: a consistent hash of Java's hash of the text.

    >>> [queue_of_group(name, 8) for name in ("a", "b", "order-17")]
    [4, 3, 4]
    """
    code = 0
    units = message_group.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    state = (code - (1 << 32) if code >= TWO_TO_31 else code) & WORD
    candidate = 0
    while True:
        state = (GENERATOR * state + 1) & WORD
        following = int((candidate + 1) / (((state >> 33) + 1) / TWO_TO_31))
        if following >= count:
            return candidate
        candidate = following


class Bodies:
    """The bodies of one request, of which a bounded part is decompressed."""

    def __init__(self, limit: int) -> None:
        """Create it with the most bytes of a body."""
        self._limit = limit
        self._left = max(limit, DECOMPRESSED_MAX)

    def take(self, message: Any) -> bytes:
        """Return a body without compression; raise `Declined` for one that is too long or does not fit its digest."""
        body, system = bytes(message.body), message.system_properties
        if system.HasField("body_digest") and system.body_digest.checksum:
            _check_digest(body, system.body_digest.type, system.body_digest.checksum.upper())
        if system.body_encoding == d.GZIP:
            body = self._decompressed(body)
        if len(body) > self._limit:
            raise Declined(d.MESSAGE_BODY_TOO_LARGE, f"a body of {len(body)} bytes or more; at most {self._limit}")
        return body

    def _decompressed(self, body: bytes) -> bytes:
        """Return the bytes of a gzip or zlib stream: what the protocol calls GZIP is either, by the client."""
        if self._left <= 0:
            raise Declined(d.MESSAGE_BODY_TOO_LARGE, f"bodies of one request with more than {DECOMPRESSED_MAX} bytes")
        reader = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        try:
            found = reader.decompress(body, self._limit + 1)
        except zlib.error as error:
            raise Declined(d.MESSAGE_CORRUPTED, f"the body is not compressed as it says: {error}") from error
        self._left -= len(found)
        if not reader.eof and len(found) <= self._limit:
            raise Declined(d.MESSAGE_CORRUPTED, "the compressed body is cut")
        return found


def _check_digest(body: bytes, kind: int, checksum: str) -> None:
    crc = zlib.crc32(body)
    if kind == d.CRC32 and checksum.lstrip("0") not in (f"{crc:X}", f"{crc}"):  # clients write it in one base or the other
        raise Declined(d.MESSAGE_CORRUPTED, "the body does not fit its CRC32")
    if kind in (d.MD5, d.SHA1):
        digest = hashlib.new("md5" if kind == d.MD5 else "sha1", body, usedforsecurity=False)
        if digest.hexdigest().upper() != checksum:
            raise Declined(d.MESSAGE_CORRUPTED, "the body does not fit its digest")


def properties_of(message: Any, topic: str) -> tuple[bytes, int]:
    """Return a message's properties in the form of the log, and its system flag."""
    system = message.system_properties
    if not system.message_id:
        raise Declined(d.ILLEGAL_MESSAGE_ID, "the message has no id")
    for name in message.user_properties:
        if name in RESERVED:
            raise Declined(d.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name} belongs to the system")
    if system.tag and ("|" in system.tag or not system.tag.strip()):
        raise Declined(d.ILLEGAL_MESSAGE_TAG, f"tag {system.tag[:80]!r}")
    if any(not key.strip() or " " in key for key in system.keys):
        raise Declined(d.ILLEGAL_MESSAGE_KEY, "a key has a space or nothing")
    pairs = dict(message.user_properties)
    texts = {
        TAGS: system.tag, KEYS: " ".join(system.keys), names.UNIQUE_KEY: system.message_id, names.PRODUCER_GROUP: topic,
        MESSAGE_GROUP: system.message_group, TRACE: system.trace_context, BORN_HOST: system.born_host,
    }  # fmt: skip
    pairs |= {name: text for name, text in texts.items() if text}
    flag = 0
    if system.message_type == d.TRANSACTION:
        flag = TRANSACTION_PREPARED
        pairs[names.IS_TRANSACTION] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            pairs[names.IMMUNITY_S] = str(system.orphaned_transaction_recovery_duration.seconds)
    if system.HasField("delivery_timestamp"):
        pairs["TIMER_DELIVER_MS"] = str(duration_ms(system.delivery_timestamp))
    if system.HasField("priority") and (system.priority or system.message_type == d.PRIORITY):
        pairs[names.PRIORITY] = str(system.priority)
    try:
        return encode_properties(Message(topic, b"", properties=pairs)), flag
    except InvalidMessage as error:
        raise Declined(d.ILLEGAL_MESSAGE_PROPERTY_KEY, str(error)) from error


def check_kind(system: Any) -> None:
    """Raise `Declined` for a type that the other properties of a message contradict."""
    kind = system.message_type
    marks = bool(system.message_group), system.HasField("delivery_timestamp"), kind == d.TRANSACTION
    if sum(marks) > 1 or system.lite_topic or kind == d.LITE:
        text = "one of message group, delivery time and transaction; lite topics are not supported"
        raise Declined(d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)


def delivered(stored: StoredMessage, limit: int, topic: str, attempt: int, handle: str = "") -> Any:
    """Return a stored message as a consumer gets it, with its body decompressed.

    A body that no client can decompress, or that is above the limit then, is delivered as it is stored: an error would hold
    up the messages beside it.
    """
    pairs = stored.properties
    try:
        body = decompress(stored.body, stored.sys_flag, limit=limit)
    except StoreError:
        body = stored.body
    message = d.Message(topic=resource_of(topic), body=body)
    message.user_properties.update({name: text for name, text in pairs.items() if name not in RESERVED})
    system = message.system_properties
    system.tag, system.message_group, system.trace_context = (pairs.get(name, "") for name in (TAGS, MESSAGE_GROUP, TRACE))
    system.keys.extend(stored.keys)
    system.message_id = pairs.get(names.UNIQUE_KEY) or stored.message_id
    digest = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_digest.type, system.body_digest.checksum = d.MD5, digest
    system.body_encoding = d.IDENTITY
    system.message_type = _kind(pairs)
    set_time(system.born_timestamp, stored.born_timestamp_ms)
    set_time(system.store_timestamp, stored.store_timestamp_ms)
    system.born_host = pairs.get(BORN_HOST) or stored.born_host
    system.store_host = stored.store_host
    due = pairs.get("TIMER_DELIVER_MS", "")
    if due.isascii() and due.isdecimal() and len(due) < 16:
        set_time(system.delivery_timestamp, int(due))
    system.receipt_handle, system.delivery_attempt = handle, attempt
    system.queue_id, system.queue_offset = stored.queue_id, stored.queue_offset
    if (priority := pairs.get(names.PRIORITY, "")).isdecimal() and len(priority) < 10:
        system.priority = int(priority)
    if DEAD_TOPIC in pairs and DEAD_ID in pairs:
        system.dead_letter_queue.topic, system.dead_letter_queue.message_id = pairs[DEAD_TOPIC], pairs[DEAD_ID]
    return message


def _kind(pairs: dict[str, str]) -> int:
    if pairs.get(names.IS_TRANSACTION) == "true":
        kind = d.TRANSACTION
    elif any(name in pairs for name in (names.DELAY, *names.TIMERS)):
        kind = d.DELAY
    elif MESSAGE_GROUP in pairs:
        kind = d.FIFO
    else:
        kind = d.PRIORITY if names.PRIORITY in pairs else d.NORMAL
    return int(kind)
