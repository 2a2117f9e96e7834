"""Parts of a put that its fast path skips: refusals, the choice of a queue, and the wait for the group commit."""

from __future__ import annotations

import itertools
import time

from commitlog import Message, PutResult, PutStatus
from storageio import DiskError, FlushTimeout, PutRejected, StoreReadOnly
from storageio.settings import check_type
from storebytes.java_hash import java_hash_code

from ..config import Role
from ..parts import StoreParts
from ..property_names import PRIORITY
from .admission import Admission
from .putting import has_property, refused, refused_by, rejection

BUSY_MS_MAX = 10_000_000


class PutRules:
    """The rules for puts into one store, in RocketMQ's order (`docs/formats/put-rules.md`)."""

    def __init__(self, parts: StoreParts, admission: Admission | None) -> None:
        """Create it; a store that was opened for reading has no `admission`."""
        self._parts = parts
        self._admission = admission
        self._appender = parts.log.appender
        self._is_sync = parts.config.is_sync_flush
        self._turn = itertools.count()
        self.admitted: dict[str, int] = admission.queues_of if admission is not None else {}

    def must_write(self) -> Admission:
        """Return the admission of topics; raise `StoreReadOnly` for a store that was opened for reading."""
        if self._admission is None:
            raise StoreReadOnly(f"{self._parts.paths.root}: opened for reading")
        return self._admission

    def refusal(self, topic: str, queue_id: int = -1, message: Message | None = None) -> PutResult | None:
        """Return the refusal of a put to a topic, or to one of its queues, or None; register an unknown topic.

        A `message` with a priority creates no topic: a new one would have no priorities.
        """
        parts = self._parts
        parts.check_open()
        admission = self.must_write()
        if parts.config.broker_role is Role.SLAVE:
            return refused(PutStatus.SERVICE_NOT_AVAILABLE, "the store is a slave")
        if parts.flags.refuses_programs:
            return refused_by(parts.flags, parts.paths.root)
        if topic not in self.admitted:
            check_type("topic", topic, str)
            reason = admission.problem(topic)
            if not reason and message is not None and has_property(message, PRIORITY):
                reason = admission.priority_problem(topic)
            if reason:
                return refused(PutStatus.MESSAGE_ILLEGAL, reason)
            admission.admit(topic)
        if queue_id > 0 and (reason := admission.queue_problem(topic, queue_id)):
            return refused(PutStatus.MESSAGE_ILLEGAL, reason)
        if self._appender.lock.locked() and self._is_page_cache_busy():
            return refused(PutStatus.OS_PAGE_CACHE_BUSY, "the append lock has been held for too long")
        if parts.dispatcher.is_idle:
            parts.dispatcher.wake()
        return None

    def _is_page_cache_busy(self) -> bool:
        """Return whether one append holds the lock for too long: nothing was appended between two checks."""
        limit_ms = self._parts.config.os_page_cache_busy_timeout_ms
        before = self._appender.last_store_timestamp_ms
        if not limit_ms < self._parts.disk.now_ms() - before < BUSY_MS_MAX:
            return False
        time.sleep(0.001)
        return self._appender.lock.locked() and self._appender.last_store_timestamp_ms == before

    def queue_of(self, message: Message) -> int:
        """Return the message's queue, or choose one by the first key, so that a key keeps its order, or in turn."""
        if message.queue_id >= 0:
            return message.queue_id
        number = self.queues_of(message.topic)
        keys = message.keys
        if keys:
            if not isinstance(keys[0], str):  # the caller changed the message's list
                raise TypeError(f"keys: expected a list of str, got {type(keys[0]).__name__} in it")
            return (java_hash_code(keys[0]) & 0x7FFFFFFF) % number
        return self.next_turn() % number

    def queues_of(self, topic: str) -> int:
        """Return the number of queues to which a registered topic's messages are put."""
        return self.admitted.get(topic) or self.must_write().queues(topic)

    def next_turn(self) -> int:
        """Return the next number of the puts whose queues are chosen in turn."""
        return next(self._turn)

    def answer(self, result: PutResult, check: bool) -> PutResult:
        """Raise a refusal, or with `check=False` return it."""
        if check:
            raise rejection(result)
        return result

    def finish(self, result: PutResult, check: bool) -> PutResult:
        """Wait for the group commit, then return the result or raise its refusal."""
        if result.status is PutStatus.PUT_OK and self._is_sync:
            self.wait_flushed(result, None, check)
        return result if result.status is PutStatus.PUT_OK else self.answer(result, check)

    def wait_flushed(self, result: PutResult, message: Message | None, check: bool) -> None:
        """Wait for the group commit; a message with the property WAIT=false does not wait."""
        if message is not None and message.properties and message.properties.get("WAIT") == "false":
            return
        end_offset = self._appender.end_offset if message is None else result.physical_offset + result.size_bytes
        try:
            self._parts.flusher.wait(end_offset)
        except FlushTimeout as error:
            result.status, result.reason = PutStatus.FLUSH_DISK_TIMEOUT, str(error)
            if check:
                raise
        except DiskError as error:
            result.status, result.reason = PutStatus.FLUSH_DISK_TIMEOUT, str(error)
            if check:
                raise PutRejected(PutStatus.FLUSH_DISK_TIMEOUT, str(error)) from error
