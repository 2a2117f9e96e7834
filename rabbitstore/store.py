"""`RabbitStore`: a virtual host's folder as an application or a tool uses it."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from storageio import (
    REAL_DISK,
    Closing,
    Disk,
    FolderLock,
    StoreClosed,
    StoreError,
    StoreReadOnly,
    UnknownStore,
    in_forked_child,
)
from storageio.background import Wakeup
from storageio.settings import check_mode, check_type, settings_or_default
from storebytes.finding import Finding

from .declarations import DEFAULT, LAZY, QueueOptions
from .engine.consumer import RabbitConsumer
from .engine.credit import Credit
from .engine.housekeeper import RabbitHousekeeper
from .engine.limits import ttl_ms_of
from .engine.live_queue import Delivery, LiveQueue
from .engine.opening import VhostOpening, check_empty, create_folder
from .engine.publisher import Publisher
from .engine.vhost import Vhost
from .folder_lock import lock_folder
from .format import properties as property_block
from .format.content import new_msg_id
from .format.message import Content
from .metrics import RabbitMetrics, collect
from .read.stored_message import RabbitMessage
from .read.undamaged import every_message, undamaged_messages
from .read.unsupported import refuse_unsupported
from .read.vhost_folder import QueueInfo, VhostFolder, find_vhost, is_vhost_folder
from .settings import RabbitSettings

if TYPE_CHECKING:
    from storebytes.arrow_table import Offsets

    from .read.scan import QueueScan

_PERSISTENT, _TRANSIENT = (property_block.encode({"delivery_mode": mode}) for mode in (2, 1))
_open_stores: weakref.WeakSet[RabbitStore] = weakref.WeakSet()


def _close_at_exit() -> None:
    """Close every open store cleanly."""
    for store in list(_open_stores):
        with contextlib.suppress(StoreError):
            store.close()


def _forget_in_child() -> None:
    """Mark the stores closed without touching them: they belong to the parent process."""
    for store in list(_open_stores):
        store.forget()


atexit.register(_close_at_exit)
in_forked_child(_forget_in_child)


class RabbitStore(Closing):
    """The queues of one virtual host.

    Opened for reading it changes nothing and offers `queues`, `messages` and `problems`.  Opened for writing it offers all
    methods; a message is durable once `sync` (or a publisher's `wait`), called after its publish, has returned.
    """

    def __init__(self, path: str, disk: Disk, settings: RabbitSettings) -> None:
        """Create it with `open`."""
        self.path = path
        self.disk = disk
        self.settings = settings
        self._vhost: Vhost | None = None
        self._lock: FolderLock | None = None
        self._housekeeper: RabbitHousekeeper | None = None
        self._is_closed = False

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: str = "a",
        *,
        vhost: str | None = None,
        settings: RabbitSettings | None = None,
        disk: Disk = REAL_DISK,
    ) -> Self:
        """Open a virtual host's folder, or for reading a node's data folder with one virtual host (or `vhost` in it).

        Modes: "r" reads only; "r+" writes and requires the folder; "a" creates it if necessary; "x" requires a new one.
        """
        check_mode(mode, ("a", "r", "r+", "x"), "open(path, settings=settings)")
        path = os.fspath(path)
        store = cls(path, disk, settings_or_default(settings, RabbitSettings, "settings"))
        if mode == "r":
            store.path = find_vhost(path, vhost, disk)
            return store
        exists = is_vhost_folder(disk, path)
        if mode == "x" and exists:
            raise UnknownStore(f"{path}: a store exists already")
        if mode == "r+" and not exists:
            raise UnknownStore(f"{path}: not the folder of a RabbitMQ virtual host")
        store._start(vhost or "/", create=not exists)
        return store

    def _start(self, vhost: str, *, create: bool) -> None:
        check = (lambda: check_empty(self.disk, self.path)) if create else (lambda: refuse_unsupported(self.path, self.disk))
        self._lock = lock_folder(self.disk, self.path, check)
        work = Wakeup()
        try:
            if create:
                create_folder(self.disk, self.path, vhost, self.settings)
            opened = VhostOpening(self.disk, self.path, self.settings).run()
            self._vhost = Vhost(self.disk, self.path, self.settings, opened, work)
        except BaseException:
            self._lock.release()
            raise
        if self.settings.background:
            self._housekeeper = RabbitHousekeeper(self._vhost, work)
            self._housekeeper.thread.start()
        _open_stores.add(self)

    # --- reading, in every mode

    @property
    def vhost(self) -> str:
        """The name of the virtual host."""
        return self._vhost.name if self._vhost is not None else self.folder().vhost

    @property
    def is_writable(self) -> bool:
        """Whether the store was opened for writing."""
        return self._vhost is not None

    @property
    def parts(self) -> Vhost:
        """The engine of a store that is open for writing, for tools and tests."""
        return self._writable()

    @property
    def lost(self) -> list[Finding]:
        """Index entries that opening for writing dropped because no file has their message."""
        return [] if self._vhost is None else self._vhost.lost

    @property
    def problems(self) -> list[Finding]:
        """The problems of the folder when it was opened for writing, and of segments read since."""
        return [] if self._vhost is None else self._vhost.problems

    def folder(self) -> VhostFolder:
        """Return a reader of the files as they are on disk, after a sync of what this store has not written yet."""
        if self._vhost is not None:
            self.sync()
        return VhostFolder(self.path, self.disk)

    def queues(self) -> list[QueueInfo]:
        """Return one row per queue, from the files."""
        with contextlib.closing(self.folder()) as folder:
            return folder.queues()

    def messages(self, queue: str | None = None, *, include_acked: bool = False) -> Iterator[RabbitMessage]:
        """Yield the messages in the files, of one queue or all, in the order in which a broker would deliver them.

        For a store that is open for writing these are the messages that are persistent or paged out.

        Raises `StoreCorrupt` or `UnsupportedFormat` at damage, after the messages before it. To read on past damage, use
        `folder().messages()`, which skips damaged messages and lists each in the folder's `problems`.
        """
        range_of = every_message if queue is None else {queue: every_message(queue)}.get
        return undamaged_messages(self.folder, range_of, include_acked=include_acked)

    def scan(
        self, queues: str | Iterable[str] | None = None, *, columns: Sequence[str] | None = None,
        start: Offsets | None = None, stop: Offsets | None = None, routing_keys: str | Iterable[str] | None = None,
        include_acked: bool = False,
    ) -> QueueScan:  # fmt: skip
        """Return the messages in the files as a table for polars, DuckDB and pandas: see `QueueScan`.

        `queues`: one name or several; all by default. A message must pass every filter that is given: a sequence number from
        `start` to before `stop` (one number, or one for each queue), and one of the `routing_keys`. `columns`: names of
        `rabbitstore.read.columns.COLUMNS`; all by default. Damage raises an error, as in `messages`.
        """
        from .read.scan import QueueScan

        return QueueScan(self.folder, queues, columns, start, stop, routing_keys, include_acked)

    def metrics(self) -> RabbitMetrics:
        """Return depths of queues, sizes of files and free space; `brokerstore.metrics` exports them."""
        if self._is_closed:
            raise StoreClosed(f"{self.path}: the store is closed")
        with contextlib.closing(self.folder()) as folder:
            return collect(self.disk, folder, self._vhost)

    # --- queues

    def _writable(self) -> Vhost:
        if self._is_closed:
            raise StoreClosed(f"{self.path}: the store is closed")
        if self._vhost is None:
            raise StoreReadOnly(f"{self.path}: opened for reading")
        return self._vhost

    def queue(self, name: str) -> LiveQueue:
        """Return an existing queue; raise `UnknownQueue` when there is none."""
        return self._writable().queue(name)

    def queue_names(self) -> list[str]:
        """Return the names of the queues of a store that is open for writing."""
        return self._writable().queue_names()

    def declare_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        mode: str = DEFAULT,
        max_priority: int = 0,
        message_ttl_ms: int | None = None,
    ) -> LiveQueue:
        """Create the queue unless it exists; raise `StoreError` for one that was declared with other options."""
        check_type("name", name, str)
        return self._writable().declare_queue(name, QueueOptions(durable, mode, max_priority, message_ttl_ms))

    def delete_queue(self, name: str) -> int:
        """Delete a queue with its messages and files; return how many messages waited.

        After an error the queue still exists with fewer messages, or is half deleted; another call continues.
        """
        return self._writable().delete_queue(name)

    def set_mode(self, queue: str, mode: str) -> None:
        """Make a queue lazy or default."""
        check_type("queue", queue, str)
        if mode not in (DEFAULT, LAZY):
            raise ValueError(f"mode {mode!r}: {DEFAULT} or {LAZY}")
        self._writable().set_mode(queue, mode)

    # --- messages

    def publish(
        self,
        queues: str | Iterable[str],
        body: bytes,
        *,
        exchange: str = "",
        routing_keys: Iterable[str] | None = None,
        properties: dict[str, Any] | None = None,
        persistent: bool | None = None,
    ) -> bytes:
        """Publish one message to one queue or several, which share one stored copy; return its id.

        `properties` are AMQP properties by name (`rabbitstore.format.properties`).  `persistent`, by default true, sets
        `delivery_mode` unless that is given.  `routing_keys` are by default the queues' names.  Durable after a `sync`.
        """
        vhost = self._writable()
        targets = [vhost.queue(queues)] if isinstance(queues, str) else [vhost.queue(name) for name in dict.fromkeys(queues)]
        keys = tuple(routing_keys) if routing_keys is not None else tuple([queue.name for queue in targets])
        if properties:
            fields = dict(properties)
            if persistent is None:
                persistent = fields.get("delivery_mode", 2) == 2
            fields.setdefault("delivery_mode", 2 if persistent else 1)
            block, priority, ttl_ms = property_block.encode(fields), fields.get("priority") or 0, ttl_ms_of(fields)
        else:  # most messages: the block is always the same
            persistent = persistent is None or persistent
            block, priority, ttl_ms = _PERSISTENT if persistent else _TRANSIENT, 0, None
        content = Content(vhost.name, exchange, keys, block, bytes(body), new_msg_id(), persistent)
        vhost.publish(targets, content, priority, ttl_ms)
        return content.msg_id

    def publish_content(
        self, targets: Iterable[LiveQueue], content: Content, *, priority: int = 0, ttl_ms: int | None = None
    ) -> None:
        """Publish an encoded message to queues that do not have its id yet.

        If some of several queues fail, the others get it and `PartlyPublished` names both.  A single queue raises its own
        error.
        """
        check_type("content", content, Content)
        self._writable().publish(list(targets), content, priority, ttl_ms)

    def publisher(self, credit: tuple[int, int] | None = None) -> Publisher:
        """Return a publisher with confirms; `credit` is (initial, more_after), by default that of the settings."""
        self._writable()
        return Publisher(self, Credit(*(credit or self.settings.publisher_credit)))

    def get(self, queue: str, *, auto_ack: bool = False) -> Delivery | None:
        """Return the next message, None when the queue is empty; it stays unacknowledged until `ack` unless `auto_ack`."""
        vhost = self._writable()
        found = vhost.queue(queue).get(auto_ack=auto_ack)
        vhost.wake()
        return found

    def get_many(self, queue: str, count: int, *, auto_ack: bool = False) -> list[Delivery]:
        """Return up to `count` next messages, as `get` would; one that cannot be read after others raises at the next call."""
        vhost = self._writable()
        found = vhost.queue(queue).get_many(count, auto_ack=auto_ack)
        vhost.wake()
        return found

    def ack_many(self, deliveries: Iterable[Delivery]) -> int:
        """Acknowledge deliveries of one queue or several, in one call for each queue; return how many.

        One that is unknown, or that is named twice, raises `UnknownDelivery`, and none of its queue is acknowledged.
        """
        vhost = self._writable()
        tags: dict[str, list[int]] = {}
        for delivery in deliveries:
            check_type("delivery", delivery, Delivery)
            tags.setdefault(delivery.queue, []).append(delivery.tag)
        count = sum(vhost.queue(name).acknowledge_many(found) for name, found in tags.items())
        vhost.wake()
        return count

    def ack(self, delivery: Delivery, *, multiple: bool = False) -> int:
        """Acknowledge a delivery, with `multiple` all of its queue up to it; return how many.

        A second acknowledgement raises `UnknownDelivery`, where RabbitMQ closes the channel; with `multiple` it returns 0.
        """
        check_type("delivery", delivery, Delivery)
        vhost = self._writable()
        count = vhost.queue(delivery.queue).acknowledge(delivery.tag, multiple=multiple)
        vhost.wake()
        return count

    def requeue(self, delivery: Delivery, *, multiple: bool = False) -> int:
        """Return a delivery, with `multiple` all up to it, to their old positions, flagged redelivered; return how many."""
        check_type("delivery", delivery, Delivery)
        return self.queue(delivery.queue).requeue(delivery.tag, multiple=multiple)

    def consumer(self, queue: str, *, prefetch: int = 0) -> RabbitConsumer:
        """Return a consumer with at most `prefetch` unacknowledged messages, 0 for no limit."""
        return RabbitConsumer(self.queue(queue), prefetch)

    def purge(self, queue: str) -> int:
        """Drop all waiting messages of a queue; return how many."""
        vhost = self._writable()
        count = vhost.queue(queue).purge()
        vhost.wake()
        return count

    # --- durability

    @property
    def sync_count(self) -> int:
        """The number of syncs since the store was opened."""
        return self._writable().sync_count

    @property
    def has_work(self) -> bool:
        """Whether a sync would write anything."""
        return self._writable().has_work

    def sync(self) -> None:
        """Make everything published, acknowledged or deleted before the call durable.

        When a queue's index fails, the others are synced before its error is raised.
        """
        self._writable().sync()

    def process(self) -> None:
        """Handle the mailboxes of the message stores, without a sync."""
        self._writable().process()

    def flush_journals(self) -> None:
        """Move the journals' entries to the segments, as an idle queue does."""
        self._writable().flush_journals()

    def collect(self) -> int:
        """Run the collector until its settings are met; return the number of merges."""
        return self._writable().collect()

    def balance_memory(self) -> None:
        """Set every queue's memory target, so that all together stay below the limit."""
        self._writable().balance_memory()

    def close(self) -> None:
        """Stop cleanly: write everything, flush the journals, and write the clean mark last."""
        if self._is_closed:
            return
        self._stop_thread()
        try:
            if self._vhost is not None:
                self._vhost.stop_cleanly()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close all files and release the lock without writing anything, as a dying process does."""
        self._stop_thread()
        if self._vhost is not None and not self._is_closed:
            self._vhost.abandon()
            assert self._lock is not None
            self._lock.release()
        self._is_closed = True

    def _stop_thread(self) -> None:
        if self._housekeeper is not None:
            self._housekeeper.thread.stop()

    def forget(self) -> None:
        """Mark the store closed in a forked child: files and lock belong to the parent."""
        self._housekeeper = None
        self._is_closed = True
