"""Which queues exist, and to which exchanges they are bound, as all processes of a store see it.

Each declaration, binding and removal is a message of one topic, and every process applies them in their order. Retention
deletes old ones, so a process repeats its own from time to time. What no process repeats is forgotten if it is transient.
"""

from __future__ import annotations

import json
import threading
from typing import Any, NamedTuple

from commitlog import Message
from messagestore import SharedStore
from storageio import REAL_DISK

TOPIC = "kombu_bindings"
REPEAT_MS = 30 * 60 * 1000
FORGET_MS = 4 * REPEAT_MS  # a transient queue whose process ended


class Binding(NamedTuple):
    """A row of an exchange's table, as kombu has it."""

    routing_key: str
    pattern: str
    queue: str


class Bindings:
    """The shared table, and what this process declared."""

    def __init__(self, store: SharedStore) -> None:
        """Read what other processes declared."""
        self._store = store
        self._guard = threading.RLock()
        self._position = 0
        self._queues: dict[str, bool] = {}  # whether it is transient
        self._tables: dict[str, dict[Binding, int]] = {}
        self._own: set[str] = set()  # declarations and bindings of this process, as JSON
        self._repeated_ms = REAL_DISK.now_ms()
        store.create_topic(TOPIC, 1)
        self.refresh()

    def refresh(self) -> None:
        """Apply what other processes declared since."""
        with self._guard:
            self._position = max(self._position, self._store.min_offset(TOPIC, 0))
            for message in self._store.read(TOPIC, 0, self._position):
                self._apply(json.loads(message.body), message.store_timestamp_ms)
                self._position = message.queue_offset + 1

    def _apply(self, event: list[Any], time_ms: int) -> None:
        """Apply one event; a later version's kinds of events are skipped."""
        kind, *fields = event
        if kind == "queue":
            self._queues[fields[0]] = fields[1]
        elif kind == "bind":
            self._tables.setdefault(fields[0], {})[Binding(*fields[1:])] = time_ms
        elif kind == "unbind":
            self._tables.get(fields[0], {}).pop(Binding(*fields[1:]), None)
        elif kind == "delete":
            self._queues.pop(fields[0], None)
            for table in self._tables.values():
                for binding in [one for one in table if one.queue == fields[0]]:
                    del table[binding]

    def _put(self, *event: object) -> None:
        self._store.put(Message(TOPIC, json.dumps(event).encode(), queue_id=0))

    def _put_own(self, *event: object) -> None:
        """Put an event that is repeated, unless this process did."""
        text = json.dumps(event)
        with self._guard:
            if text in self._own:
                return
            self._own.add(text)
        self._put(*event)

    def repeat(self) -> None:
        """Put the declarations and bindings of this process again, if the last time was REPEAT_MS ago."""
        now_ms = REAL_DISK.now_ms()
        with self._guard:
            if now_ms - self._repeated_ms < REPEAT_MS:
                return
            self._repeated_ms = now_ms
            events = [json.loads(text) for text in sorted(self._own, reverse=True)]  # queues before their bindings
        for event in events:
            self._put(*event)

    def declare(self, queue: str, is_transient: bool) -> None:
        """Declare a queue; the first declaration says what it is."""
        self.refresh()
        self._put_own("queue", queue, self._queues.get(queue, is_transient))

    def is_transient(self, queue: str) -> bool:
        """Return whether a queue lives only as long as its process; one that nobody declared does not."""
        with self._guard:
            if queue not in self._queues:
                self.refresh()
            return self._queues.get(queue, False)

    def is_declared(self, queue: str) -> bool:
        """Return whether a process declared a queue."""
        self.refresh()
        return queue in self._queues

    def bind(self, exchange: str, binding: Binding) -> None:
        """Bind a queue for all processes."""
        self._put_own("bind", exchange, *binding)

    def unbind(self, exchange: str, binding: Binding) -> None:
        """Remove a binding for all processes."""
        with self._guard:
            self._own.discard(json.dumps(("bind", exchange, *binding)))
        self._put("unbind", exchange, *binding)

    def delete(self, queue: str) -> None:
        """Remove a queue and its bindings."""
        with self._guard:
            self._own = {text for text in self._own if not _is_about(json.loads(text), queue)}
        self._put("delete", queue)

    def table(self, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange, without those of transient queues whose process ended long ago."""
        self.refresh()
        oldest_ms = REAL_DISK.now_ms() - FORGET_MS
        with self._guard:
            table = self._tables.get(exchange, {})
            return [one for one, time_ms in table.items() if time_ms >= oldest_ms or not self._queues.get(one.queue, False)]


def _is_about(event: list[Any], queue: str) -> bool:
    """Return whether an event declares or binds a queue."""
    return bool((event[1] if event[0] == "queue" else event[-1]) == queue)
