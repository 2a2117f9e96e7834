"""Which queues exist, and to which exchanges they are bound, as all processes of a store see it.

Each declaration, binding and removal is a message of one topic, and every process applies them in their order. A process
repeats its own from time to time. What no process repeats is forgotten if it is transient.

So that retention can delete old messages, a process that uses the store puts the whole table now and then, with the offset
that it has read up to, and acknowledges what comes before that. A process that lacks earlier messages begins with the last
table and applies what followed the offset.

A full store refuses declarations, but a worker that could not declare its queues could not empty it. So the process applies
what is refused to itself, and puts it when there is space.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from commitlog import Message
from messagestore import SharedStore
from storageio import REAL_DISK, StoreFull

LOG = logging.getLogger("brokerstore.kombu")
TOPIC = "kombu_bindings"
REPEAT_MS = 30 * 60 * 1000
TABLE_MS = 60 * 1000
TABLE_BYTES = 16 << 20
MAX_SHARE = 8  # at most this part of a maximum size is put between two tables
GROUP = "kombu"
FETCH_COUNT = 256
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
        self._refused: list[str] = []  # those that a full store refused
        self._repeated_ms = self._tabled_ms = REAL_DISK.now_ms()
        self.put_bytes = 0  # what this process put since the last table
        self._table_bytes = min(TABLE_BYTES, (store.config.max_size_bytes or TABLE_BYTES * MAX_SHARE) // MAX_SHARE)
        store.create_topic(TOPIC, 1)
        self.refresh()

    def refresh(self) -> None:
        """Apply what other processes declared since."""
        with self._guard:
            low = self._store.min_offset(TOPIC, 0)
            start = max(self._position, low)
            events = [
                (one.queue_offset, one.store_timestamp_ms, json.loads(one.body)) for one in self._store.read(TOPIC, 0, start)
            ]
            tables = [(time_ms, event) for _, time_ms, event in events if event[0] == "table"]
            if tables:
                self._tabled_ms = max(self._tabled_ms, tables[-1][0])
            if tables and self._position < low:
                start = self._begin_with(*tables[-1][1][1:])
            for offset, time_ms, event in events:
                if offset >= start:
                    self._apply(event, time_ms)
                self._position = offset + 1
            for text in self._refused:  # a table of another process does not have them
                self._apply(json.loads(text), REAL_DISK.now_ms())

    def _begin_with(self, position: int, queues: dict[str, bool], rows: list[list[Any]]) -> int:
        """Replace what is known by a table; return the offset of the first message that it does not contain."""
        self._queues = dict(queues)
        self._tables = {}
        for exchange, time_ms, *binding in rows:
            self._tables.setdefault(exchange, {})[Binding(*binding)] = time_ms
        return position

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
        try:
            self._put(*event)
        except StoreFull as error:
            LOG.warning("other processes will know %s when there is space: %s", text, error)
            with self._guard:
                self._refused.append(text)
                self._apply(list(event), REAL_DISK.now_ms())

    def _put_refused(self) -> None:
        """Put the declarations that a full store refused, if there is space now."""
        with self._guard:
            try:
                while self._refused:
                    self._put(*json.loads(self._refused[0]))
                    del self._refused[0]
            except StoreFull:
                return

    def repeat(self) -> None:
        """Put the declarations and bindings of this process again, if the last time was REPEAT_MS ago."""
        self._put_refused()
        now_ms = REAL_DISK.now_ms()
        with self._guard:
            if now_ms - self._repeated_ms < REPEAT_MS:
                return
            self._repeated_ms = now_ms
            events = [json.loads(text) for text in sorted(self._own, reverse=True)]  # queues before their bindings
        for event in events:
            with suppress(StoreFull):  # the next repetition is early enough
                self._put(*event)

    def compact(self) -> None:
        """Put the table and acknowledge what it contains, after TABLE_MS or TABLE_BYTES, unless nothing was put."""
        self._put_refused()
        if not self._is_table_due():
            return
        with self._guard:
            self.refresh()
            if not self._is_table_due():  # another process did
                return
            position = self._position
            rows = [
                [exchange, time_ms, *one] for exchange, table in self._tables.items() for one, time_ms in table.items()
                if self._is_kept(one, time_ms)
            ]  # fmt: skip
            try:
                self._put("table", position, self._queues, rows)
            except StoreFull:
                return
            self._tabled_ms, self.put_bytes = REAL_DISK.now_ms(), 0
        with self._store.consumer(TOPIC, group=GROUP, queues=[0]) as consumer:
            while found := [one for one in consumer.poll(FETCH_COUNT, 0) if one.queue_offset < position]:
                for message in found:
                    consumer.ack(message)

    def _is_table_due(self) -> bool:
        return self.put_bytes > 0 and (self.put_bytes >= self._table_bytes or REAL_DISK.now_ms() - self._tabled_ms >= TABLE_MS)

    def _is_kept(self, binding: Binding, time_ms: int) -> bool:
        """Return whether a binding is not one of a transient queue whose process ended long ago."""
        return time_ms >= REAL_DISK.now_ms() - FORGET_MS or not self._queues.get(binding.queue, False)

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
            self._forget(lambda event: event == ["bind", exchange, *binding])
        self._put("unbind", exchange, *binding)

    def delete(self, queue: str) -> None:
        """Remove a queue and its bindings."""
        with self._guard:
            self._forget(lambda event: _is_about(event, queue))
        self._put("delete", queue)

    def _forget(self, is_meant: Callable[[list[Any]], bool]) -> None:
        """Forget declarations and bindings of this process."""
        self._own = {text for text in self._own if not is_meant(json.loads(text))}
        self._refused = [text for text in self._refused if not is_meant(json.loads(text))]

    def table(self, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange, without those of transient queues whose process ended long ago."""
        self.refresh()
        with self._guard:
            return [one for one, time_ms in self._tables.get(exchange, {}).items() if self._is_kept(one, time_ms)]


def _is_about(event: list[Any], queue: str) -> bool:
    """Return whether an event declares or binds a queue."""
    return bool((event[1] if event[0] == "queue" else event[-1]) == queue)
