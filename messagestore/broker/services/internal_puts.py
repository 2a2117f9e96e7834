"""Put messages for the services: without the checks for user puts, with the durability of the flush mode."""

from __future__ import annotations

from collections.abc import Callable

from commitlog import Message, PutResult, PutStatus
from commitlog.status import FINAL
from storageio import InvalidMessage, PutRejected

from ...parts import StoreParts
from ...write.admission import Admission
from ...write.putting import refused_by, rejection
from ...write.running_flags import Flag
from .routing import Routing


class InternalPuts:
    """Puts messages for the services of one open store."""

    def __init__(self, parts: StoreParts, routing: Routing) -> None:
        """Create it for a store opened for writing."""
        self._parts = parts
        self._routing = routing

    def put(self, message: Message, queue_id: int, *, waits: bool = True) -> PutResult:
        """Put a message to an admitted topic, ignoring its property DELAY.

        `waits=False` leaves the sync to a later call of `wait`. Raises `PutRejected`, and the error of a failed sync.
        """
        parts = self._parts
        parts.check_open()
        if not parts.flags.accepts_puts:
            raise rejection(refused_by(parts.flags, parts.paths.root))
        return self._finished(self._append(lambda: self._routing.append_undelayed(message, queue_id)), waits)

    def put_delayed(self, message: Message, raw: bytes, queue_id: int, level: int) -> PutResult:
        """Schedule a message for its topic.  `raw`: its properties as the log keeps them."""
        self._parts.check_open()
        return self._finished(self._append(lambda: self._routing.append_scheduled(message, raw, queue_id, level)), True)

    def _append(self, append: Callable[[], PutResult]) -> PutResult:
        """Append a record, beyond the maximum size of the log if necessary: programs wait until the store is below it again.

        Without this a log full of delayed messages could not deliver any of them, and would stay full.
        """
        parts, files = self._parts, self._parts.log.queue
        result = append()
        if result.status is not PutStatus.PUT_OK and files.is_at_limit:
            parts.flags.set(Flag.LOG_FULL, f"the log has more than {files.size_max} bytes")
            files.allow_one_more()
            result = append()
        return result

    def deliver(self, message: Message, admission: Admission) -> str:
        """Deliver a message whose delay is over; return why it can never be put, or an empty string.

        Raises `PutRejected` for a temporary failure such as a full disk.
        """
        try:
            if message.topic in self._parts.topics:  # a deleted topic is not created again
                admission.admit(message.topic)
            elif message.topic in self._parts.deleted.entries:
                return f"topic {message.topic} was deleted"
            self.put(message, message.queue_id, waits=False)
        except (InvalidMessage, PutRejected) as error:
            if isinstance(error, PutRejected) and error.status not in FINAL:
                raise
            return str(error)
        return ""

    def wait(self, result: PutResult) -> None:
        """Wait until a record, and all before it, is as durable as the flush mode promises."""
        if self._parts.config.is_sync_flush:
            self._parts.flusher.wait(result.physical_offset + result.size_bytes)

    def _finished(self, result: PutResult, waits: bool) -> PutResult:
        if result.status is not PutStatus.PUT_OK:
            raise rejection(result)
        self._parts.dispatcher.nudge()
        if waits:
            self.wait(result)
        return result
