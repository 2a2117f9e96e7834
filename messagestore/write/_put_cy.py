"""Put messages: methods of `MessageStore` that are compiled to the appender, with as few attribute lookups as possible."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from commitlog._append_cy import Appender
from commitlog._message_cy import Message, PutResult
from commitlog.status import PutStatus
from storageio import InvalidMessage, RefusedMessage
from storebytes._lock_cy import Lock

from ..property_names import IS_BATCH, SPECIAL
from ._gate_cy import Gate
from .putting import is_special_raw, message_of, put_when_free, refused

if TYPE_CHECKING:
    from .put_rules import PutRules
if not cython.compiled:
    from storebytes._bytes_cy import I32, Bool
    from storebytes._lock_cy import is_taken

OK = PutStatus.PUT_OK
SPECIAL_NAMES = frozenset(SPECIAL)  # a message has fewer properties than there are special ones
ZERO: Any = 0
NO_QUEUE: Any = -1


class PutMethods:
    """Base of `MessageStore` with the methods that put messages; `rules` decide the unusual cases.

    Compiled methods of a base class cost no frame, and a subclass or a mock can replace them.
    """

    __slots__ = ("_admitted", "_appender", "_dispatcher", "_gate", "_is_sync", "_lock", "_routing", "_rules")

    def __init__(self, parts: Any, rules: PutRules) -> None:
        """Create it for the parts of an open store; the gate of one that was opened for reading accepts no puts."""
        self._rules = rules
        self._appender: Appender = parts.log.appender
        self._gate: Gate = parts.flags.gate
        self._is_sync: Bool = parts.config.is_sync_flush
        self._lock: Lock = self._appender.lock
        self._admitted: dict[str, int] = rules.admitted  # topic -> number of queues to put to
        self._dispatcher: Any = parts.dispatcher if parts.writable else None
        self._routing: Any = parts.routing if parts.writable else None

    @cython.annotation_typing(False)  # `message_of` names what has a wrong type
    def put(
        self, message: Message | str, body: bytes | None = None, *, tags: str | None = None,
        keys: str | list[str] | None = None, properties: dict[str, str] | None = None, queue_id: int = -1,
        delay: timedelta | None = None, delay_level: int = 0, deliver_at: datetime | None = None, priority: int | None = None,
        dedup_id: str | None = None, ttl: timedelta | None = None, check: bool = True, block_s: float = 0,
    ) -> PutResult:  # fmt: skip
        """Put one message: a `Message`, or a topic with a body and other fields of a `Message`.

            store.put("orders", b"...", keys="order-17")

        Raises `PutRejected` for every outcome but PUT_OK, and `FlushTimeout` if it is unknown.  With `check=False` the status
        of the result has the outcome instead.  Raises `InvalidMessage` for fields that no record can hold, and `TypeError`,
        with the name of the field, for values of a wrong type.

        Without space the error is a `StoreFull`, with a `DiskFull` as its cause: the disk is too full, or the log has its
        maximum size.  `block_s`: seconds to wait for space before that.

        `priority`, `dedup_id` and `ttl` are those of `Message`.  A put that repeats a `dedup_id` of its topic within
        `dedup_window_ms` writes nothing, and `is_duplicate` of its result is true.
        """
        if priority is not None or dedup_id is not None or ttl is not None:
            marks = (priority, dedup_id, ttl)
            message = message_of(message, body, tags, keys, properties, queue_id, delay, delay_level, deliver_at, marks)
        elif (
            type(message) is not Message or body is not None or tags is not None or keys is not None
            or properties is not None or queue_id is not NO_QUEUE or delay is not None or delay_level is not ZERO
            or deliver_at is not None
        ):  # fmt: skip
            message = message_of(message, body, tags, keys, properties, queue_id, delay, delay_level, deliver_at)
        if block_s:
            return put_when_free(partial(PutMethods.put, self, message, check=check), block_s)
        return self._put(message, check)

    def _put(self, message: Message, check: bool) -> PutResult:
        try:
            topic: str = message.topic
            is_special: Bool = False
            queue_id: I32 = message.queue_id
            queues: I32 = self._admitted.get(topic, 0)
            if not self._gate.accepts_puts or not queues or queue_id >= queues or is_taken(self._lock):
                refusal = self._rules.refusal(topic, queue_id, message)
                if refusal is not None:
                    return self._rules.answer(refusal, check)
                is_special = self._routing.is_special(message)
            if queue_id < 0:
                queue_id = self._rules.queue_of(message)
            result: PutResult
            if is_special or has_special(message):
                result = self._routing.append(message, queue_id)
            else:
                result = self._appender.append(message, queue_id)
        except UnicodeEncodeError as error:  # pragma: no cover - encoders raise InvalidMessage first
            raise InvalidMessage(str(error)) from error
        if result.status is not OK:
            return self._rules.answer(result, check)
        if self._gate.is_idle:
            self._dispatcher.wake()
        if self._is_sync:
            self._rules.wait_flushed(result, message, check)
        return result

    def _put_messages(self, messages: list[Message], check: bool) -> PutResult:
        """Put messages under one lock, for `put_many`."""
        try:
            queue_ids: list[int] | None = None
            needs_queues: Bool = False
            topic: str | None = None
            seen: set[str] = set()
            is_special: Bool = False
            queues: I32 = 0
            for item in messages:
                if type(item) is not Message:
                    raise TypeError(f"a Message is wanted, not {type(item).__name__}")
                message: Message = item
                if message.topic is not topic:
                    topic = message.topic
                    if topic not in seen:
                        seen.add(topic)
                        refusal = self._rules.refusal(topic, -1, message)
                        if refusal is not None:
                            return self._rules.answer(refusal, check)
                        is_special |= topic not in self._admitted
                    queues = self._admitted.get(topic, 0)
                if message.queue_id > 0 and message.queue_id >= queues:
                    refusal = self._rules.refusal(message.topic, message.queue_id)
                    if refusal is not None:
                        return self._rules.answer(refusal, check)
                is_special |= has_special(message)
                needs_queues |= message.queue_id < 0
            if needs_queues or is_special:
                queue_ids = [self._rules.queue_of(item) for item in messages]
            result: PutResult
            if is_special:
                result = self._routing.append_each(messages, queue_ids)
            else:
                result = self._appender.append_many(messages, queue_ids)
        except RefusedMessage as error:
            if check:
                raise
            return refused(PutStatus(error.status), error.reason)
        except UnicodeEncodeError as error:  # pragma: no cover - encoders raise InvalidMessage first
            raise InvalidMessage(str(error)) from error
        return self._rules.finish(result, check)


def has_special(message: Message) -> Bool:
    """Return whether `Routing` must handle a message, whatever its topic: it has a SPECIAL property or the flag IS_BATCH."""
    if message.sys_flag & IS_BATCH:
        return True
    if message.properties_raw is not None:
        return is_special_raw(message.properties_raw)
    properties = message.properties
    if properties is not None:
        for name in properties:
            if name in SPECIAL_NAMES:
                return True
    return False
