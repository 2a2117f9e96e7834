"""Transport, channel and acknowledgements of the kombu transport.

kombu's virtual transport does exchanges, consumers and prefetching. A message that this process took is known by its delivery
tag until it is acknowledged, or put again for another delivery. It is always put again before it is acknowledged, so a process
that is killed in between delivers it twice and never loses it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress
from queue import Empty
from typing import Any, ClassVar, NamedTuple
from uuid import uuid4

from commitlog import StoredMessage
from messagestore import SharedStore, StoreConfig
from messagestore.broker.config.topics import KEEPS_NO_FILES
from messagestore.shared.store import connect
from storageio import REAL_DISK, StoreError, process_id

from .base import SCHEME, ChannelBase, QoSBase, TransportBase, packed, unpacked
from .bindings import Binding, Bindings
from .loop_reader import LoopReader
from .queues import PRIORITY_MAX, TRANSIENT_TOPIC, KombuQueue, TaskQueue, TransientQueue

PARTS = 16  # queues of a task queue's topic, and so the processes that can consume from it
STEPS = (0, 3, 6, 9)  # the lowest priority of each topic of a queue
MAX_PRIORITY = "x-max-priority"
AMQP_PRIORITY_MAX = 255
POLL_S = 0.05


class _OpenStore(NamedTuple):
    """A store that this process has open, with the transports that use it."""

    store: SharedStore
    bindings: Bindings
    users: weakref.WeakSet[Any]


_open_stores: dict[tuple[int, str], _OpenStore] = {}
_open_guard = threading.Lock()


def _open(path: str, config: StoreConfig, user: object) -> _OpenStore:
    """Return the store of this process, which is opened by its first user."""
    with _open_guard:
        location = process_id(), os.path.abspath(path)
        found = _open_stores.get(location)
        if found is None:
            store = connect(path, config)
            store.create_topic(TRANSIENT_TOPIC, 1, attributes=KEEPS_NO_FILES)
            found = _open_stores[location] = _OpenStore(store, Bindings(store), weakref.WeakSet())
        found.users.add(user)
        return found


def _close(opened: _OpenStore, user: object) -> None:
    """Close the store with its last user."""
    with _open_guard:
        opened.users.discard(user)
        if not opened.users:
            for location in [location for location, one in _open_stores.items() if one is opened]:
                del _open_stores[location]
            opened.store.close()


class _Held(NamedTuple):
    """A message that this process took and did not acknowledge."""

    queue: KombuQueue
    name: str
    message: StoredMessage


class QoS(QoSBase):  # type: ignore[misc]
    """Acknowledges in the store what kombu acknowledges."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message in the store too."""
        was_full, transport = not self.can_consume(), self.channel.connection
        transport.settle(delivery_tag)
        super().ack(delivery_tag)
        if was_full:
            transport.wake()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Drop a message, or put it again first."""
        was_full, transport = not self.can_consume(), self.channel.connection
        super().reject(delivery_tag, requeue=requeue)
        transport.settle(delivery_tag)
        if was_full:
            transport.wake()

    def restore_unacked(self) -> list[Any]:
        """Put again what is not acknowledged; in a forked child it belongs to the parent."""
        if self.channel.connection is None or self.channel.connection.is_in_child:
            self._delivered.clear()
            return []
        found: list[Any] = super().restore_unacked()
        return found


class Channel(ChannelBase):  # type: ignore[misc]
    """A channel, whose bindings all processes of the store share."""

    QoS = QoS
    supports_fanout = True

    def prepare_queue_arguments(self, arguments: dict[str, Any] | None, **options: Any) -> dict[str, Any]:
        """Return the arguments of a queue with `max_priority` as `x-max-priority`, as for RabbitMQ."""
        highest = options.get("max_priority")
        return {**(arguments or {}), **({} if highest is None else {MAX_PRIORITY: highest})}

    def _new_queue(self, queue: str, **options: Any) -> None:
        is_transient = bool(options.get("auto_delete") or options.get("exclusive"))
        self.connection.opened.bindings.declare(queue, is_transient)
        self.connection.declare_priorities(queue, (options.get("arguments") or {}).get(MAX_PRIORITY))
        self.connection.queue(queue)

    def _has_queue(self, queue: str, **_options: Any) -> bool:
        return bool(self.connection.opened.bindings.is_declared(queue))

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        payload: dict[str, Any] | None = self.connection.take(queue)
        if payload is None:
            raise Empty()
        return payload

    def _put(self, queue: str, message: dict[str, Any], **_options: Any) -> None:
        bindings, body = self.connection.opened.bindings, packed(message)
        highest = self.connection.max_priorities.get(queue, PRIORITY_MAX)
        self.connection.queue(queue).put(body, min(self._get_message_priority(message), highest))
        bindings.put_bytes += len(body)
        bindings.compact()

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **options: Any) -> None:
        for queue in {binding.queue for binding in self.get_table(exchange)}:
            self._put(queue, message, **options)

    def _restore(self, message: Any) -> None:
        """Put a message into the queue that it came from, and acknowledge the earlier one."""
        held = self.connection.held.get(message.delivery_tag)
        if held is None:  # acknowledged meanwhile
            return
        payload = message.serializable()
        payload["redelivered"] = payload["properties"].setdefault("delivery_info", {})["redelivered"] = True
        self._put(held.name, payload)
        self.connection.settle(message.delivery_tag)

    def _size(self, queue: str) -> int:
        return int(self.connection.queue(queue).size())

    def _purge(self, queue: str) -> int:
        count = int(self.connection.queue(queue).purge())
        self.connection.release(queue)
        return count

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_options: Any) -> None:
        """Remove the messages, the declaration and the bindings of a queue."""
        if if_empty and self._size(queue):
            return
        self._purge(queue)
        self.connection.drop(queue)
        self.connection.opened.bindings.delete(queue)
        self.state.queue_bindings_delete(queue)

    def get_table(self, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange, of all processes."""
        found: list[Binding] = self.connection.opened.bindings.table(exchange)
        return found

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        self.connection.opened.bindings.bind(exchange, Binding(routing_key or "", pattern or "", queue))

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **_options: Any
    ) -> None:
        """Remove a binding, for all processes."""
        exchange = exchange or "amq.direct"
        self.state.binding_delete(queue, exchange, routing_key)
        key, pattern, name = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments)
        self.connection.opened.bindings.unbind(exchange, Binding(key or "", pattern or "", name))

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any) -> None:
        """Consume from a queue; without acknowledgements each message is acknowledged when it is delivered."""

        def settled(message: Any) -> Any:
            self.connection.settle(message.delivery_tag)
            return callback(message)

        super().basic_consume(queue, no_ack, settled if no_ack else callback, consumer_tag, **options)
        self.connection.wake()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set how many messages may be unacknowledged."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.connection.wake()

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        """Return the next message, or None."""
        message = super().basic_get(queue, no_ack=no_ack, **options)
        if message is None:
            self.connection.release(queue)
        elif no_ack:
            self.connection.settle(message.delivery_tag)
        return message

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer, and leave its queue to other processes."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None:
            self.connection.release(queue)

    @property
    def consumed(self) -> list[str]:
        """The queues that its consumers read."""
        found: list[str] = self._active_queues
        return found

    @property
    def is_blocked(self) -> bool:
        """Whether its consumers have as many unacknowledged messages as they may."""
        return bool(self._consumers) and not self.qos.can_consume()

    @property
    def expected(self) -> list[str]:
        """The queues from which it can consume now."""
        return list(self._active_queues) if self._consumers and self.qos.can_consume() else []


class Transport(TransportBase):  # type: ignore[misc]
    """The transport `brokerstore:///path`; the path of the store is the part after `brokerstore://`.

    Transport options: `config` (a `StoreConfig`, the same in every process), `parts` (queues of a topic, 16: so many processes
    can consume from one queue), `priority_steps` (0, 3, 6, 9), and `polling_interval` (0.05 s).
    """

    Channel = Channel
    driver_type = SCHEME
    driver_name = SCHEME
    polling_interval = POLL_S
    default_connection_params: ClassVar[dict[str, Any]] = {}
    connection_errors = (*getattr(TransportBase, "connection_errors", ()), StoreError)
    implements = TransportBase.implements and TransportBase.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **options: Any) -> None:
        """Create it; the store is opened with the connection."""
        super().__init__(client, **options)
        self.held: dict[str, _Held] = {}
        self.max_priorities: dict[str, int] = {}  # of the queues that this process declared with one
        self._queues: dict[str, KombuQueue] = {}
        self._process_id = process_id()
        self._opened: _OpenStore | None = None
        self._reader: LoopReader | None = None
        self._guard = threading.RLock()

    def establish_connection(self) -> Any:
        """Open the store; raise its error here, so that kombu can try again, or another store."""
        self.opened  # noqa: B018
        return super().establish_connection()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver messages in a loop of kombu, so that Celery's workers answer while their pool is busy."""
        if self._reader is not None and self._reader.loop is loop:
            return
        self._close_reader()
        self._reader = LoopReader(loop, self.opened.store, self.deliver_one, self.opened.bindings.repeat)

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def wake(self) -> None:
        """Let the event loop look for messages, because a consumer may take one again."""
        reader = self._reader
        if reader is not None:
            reader.wake()

    def driver_version(self) -> str:
        """Return the version of this library."""
        import brokerstore

        return str(brokerstore.__version__)

    @property
    def is_in_child(self) -> bool:
        """Whether this is a forked child, where the transport belongs to the parent."""
        return process_id() != self._process_id

    @property
    def opened(self) -> _OpenStore:
        """The store of this process."""
        with self._guard:
            if self._opened is None:
                client = self.client
                path = "/" + (client.virtual_host or "").lstrip("/")
                self._opened = _open(path, client.transport_options.get("config") or StoreConfig.small(), self)
            return self._opened

    def queue(self, name: str) -> KombuQueue:
        """Return a queue by its name."""
        with self._guard:
            found = self._queues.get(name)
            if found is None:
                found = self._queues[name] = self._make_queue(name)
            return found

    def _make_queue(self, name: str) -> KombuQueue:
        opened, options = self.opened, self.client.transport_options
        if opened.bindings.is_transient(name):
            return TransientQueue(opened.store, name)
        return TaskQueue(opened.store, name, self._steps_of(name), int(options.get("parts") or PARTS))

    def _steps_of(self, name: str) -> list[int]:
        """Return the steps of a queue: each priority up to its highest one, if it was declared with that."""
        highest = self.max_priorities.get(name)
        given = self.client.transport_options.get("priority_steps") or STEPS
        return sorted(given) if highest is None else list(range(highest + 1))

    def declare_priorities(self, name: str, highest: object) -> None:
        """Give a queue a step for each priority up to the argument `x-max-priority`; higher ones count as that one."""
        if highest is None:
            return
        if type(highest) is not int or not 0 < highest <= AMQP_PRIORITY_MAX:
            raise ValueError(f"queue {name!r}: {MAX_PRIORITY} is {highest!r}, a number from 1 to {AMQP_PRIORITY_MAX} wanted")
        with self._guard:
            self.max_priorities[name] = min(highest, PRIORITY_MAX)
            found = self._queues.get(name)
            if isinstance(found, TaskQueue):
                found.steps = self._steps_of(name)

    def drop(self, name: str) -> None:
        """Forget a queue of this transport, with the messages that it took."""
        for tag in [tag for tag, held in list(self.held.items()) if held.name == name]:
            self.settle(tag)
        with self._guard:
            found = self._queues.pop(name, None)
        if found is not None:
            found.close()

    def take(self, name: str) -> dict[str, Any] | None:
        """Return the next message of a queue for kombu, with a tag of this delivery; None without one."""
        queue = self.queue(name)
        while (message := queue.get()) is not None:
            payload = unpacked(message.body)
            if not _is_expired(payload, message):
                tag = payload["properties"]["delivery_tag"] = uuid4().hex
                self.held[tag] = _Held(queue, name, message)
                return payload
            queue.ack(message)
        return None

    def settle(self, delivery_tag: str) -> None:
        """Acknowledge a message in the store; a second call does nothing."""
        held = self.held.pop(delivery_tag, None)
        if held is not None:
            held.queue.ack(held.message)
            self.release(held.name)

    def release(self, name: str) -> None:
        """Leave a queue to other processes, if nothing here consumes from it and everything is acknowledged."""
        if any(name in channel.consumed for channel in self.channels) or any(one.name == name for one in self.held.values()):
            return
        queue = self._queues.get(name)
        if queue is not None:
            queue.close()

    def deliver_one(self) -> None:
        """Deliver one message; raise `Empty` if no consumer can have one now.

        What was sent to every process comes before tasks: a revocation is sent ahead of the task that it names.
        """
        for channel in self.channels:
            for name in channel.expected:
                if isinstance(self.queue(name), TransientQueue):
                    with suppress(Empty):
                        channel._get_and_deliver(name, self._deliver)
                        return
        self.cycle.get(self._deliver)

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message; wait for it at most for the time-out.

        Raises `TimeoutError`: after the time-out, or earlier if every consumer has as many unacknowledged messages as it may,
        so that a caller which defers its acknowledgements can go on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self.opened.bindings.compact()
        while True:
            try:
                self.deliver_one()
                return
            except Empty:
                self.opened.bindings.repeat()
            left_s = POLL_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("no message came")
            self._pause(min(left_s, self.polling_interval or POLL_S))

    def _pause(self, pause_s: float) -> None:
        """Wait for a message of a task queue."""
        names = [name for channel in self.channels for name in channel.expected]
        queue = next((found for name in names if isinstance(found := self.queue(name), TaskQueue)), None)
        if queue is not None:
            queue.wait(pause_s)
            return
        time.sleep(pause_s)
        if any(channel.is_blocked for channel in self.channels):
            raise TimeoutError("no consumer takes a message before it acknowledges one")

    def close_connection(self, connection: Any) -> None:
        """Close the channels, leave the queues, and close the store with its last connection."""
        if not self.is_in_child:  # the loop's descriptors are the parent's
            self._close_reader()
        super().close_connection(connection)
        with self._guard:
            queues, self._queues = self._queues, {}
            opened, self._opened = self._opened, None
        if opened is None or self.is_in_child:
            return
        for queue in queues.values():
            queue.close()
        _close(opened, self)


def _is_expired(payload: dict[str, Any], message: StoredMessage) -> bool:
    """Return whether a message was stored longer ago than it may wait.

    A task of Celery never is: its header has the same limit, and the worker that gets it late marks it as revoked.
    """
    if payload["headers"].get("expires") is not None:
        return False
    expiration = payload["properties"].get("expiration")
    return expiration is not None and REAL_DISK.now_ms() - message.store_timestamp_ms > int(expiration)
