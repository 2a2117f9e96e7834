"""`RabbitStore`: a virtual host's folder as an application or a tool uses it."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from storageio import (
    REAL_DISK,
    Disk,
    FolderLock,
    InvalidMessage,
    StoreClosed,
    StoreError,
    StoreReadOnly,
    UnknownStore,
    in_forked_child,
)
from storageio.settings import settings_or_default

from . import layout
from . import properties as blocks
from .clean_stop import write_clean_stop
from .collector import collect_one
from .consumer import Consumer
from .content import Content, encode_content, new_msg_id
from .credit import Credit
from .errors import PartlyPublished, UnknownQueue
from .folder import QueueInfo, VhostFolder, find_vhosts, is_vhost_folder
from .folder_lock import lock_folder
from .formats import refuse_unsupported
from .housekeeper import Housekeeper, balance_memory
from .live_queue import Delivery, LiveQueue, Outgoing
from .opening import LoadedPart, Opened, create_folder, make_index, open_for_writing
from .own_files import QueueOptions, write_options
from .problems import Problem
from .publisher import Publisher
from .queue_index_cy import QueueIndex
from .settings import RabbitSettings
from .stored_message import StoredMessage
from .tables import RecoveryRow
from .variable_queue_cy import DEFAULT, LAZY, VariableQueue, Waiting

TTL_MS_MAX = (1 << 32) - 1  # RabbitMQ's MAX_EXPIRY_TIMER

_open_stores: weakref.WeakSet[RabbitStore] = weakref.WeakSet()


def _close_at_exit() -> None:
    """A store that nobody closed is stopped cleanly all the same."""
    for store in list(_open_stores):
        with contextlib.suppress(StoreError):
            store.close()


def _forget_in_child() -> None:
    """The stores are the parent's: their calls raise `StoreClosed` here, and nothing of them is touched."""
    for store in list(_open_stores):
        store.forget()


atexit.register(_close_at_exit)
in_forked_child(_forget_in_child)


class RabbitStore:
    """Queues of one virtual host.

    Opened for reading it changes nothing and offers `queues`, `messages`, `problems`.  Opened for writing it offers the rest
    too; a message is safe when `sync` (or a publisher's `wait`) returned after its publish.
    """

    def __init__(self, path: str, disk: Disk, settings: RabbitSettings) -> None:
        """Use `open`."""
        self.path = path
        self.disk = disk
        self.settings = settings
        self._opened: Opened | None = None
        self._lock: FolderLock | None = None
        self._queues: dict[str, LiveQueue] = {}
        self._guard = threading.RLock()
        self._sync_lock = threading.Lock()
        self._housekeeper: Housekeeper | None = None
        self._is_closed = False
        self._unbalanced_bytes = 0
        self.sync_count = 0

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: str = "a",
        *,
        vhost: str | None = None,
        settings: RabbitSettings | None = None,
        disk: Disk = REAL_DISK,
    ) -> RabbitStore:
        """`path` is a virtual host's folder, or for reading a node's data folder with one virtual host (or `vhost` in it).

        Modes: "r" reads only; "r+" writes, must exist; "a" makes it if need be; "x" must not exist.
        """
        if mode not in ("r", "r+", "a", "x"):
            raise ValueError(f"mode {mode!r} is not one of r, r+, a, x")
        path = os.fspath(path)
        store = cls(path, disk, settings_or_default(settings, RabbitSettings, "settings"))
        if mode == "r":
            store.path = _find(path, vhost, disk)
            return store
        exists = is_vhost_folder(disk, path)
        if mode == "x" and exists:
            raise UnknownStore(f"{path}: there is a store already")
        if mode == "r+" and not exists:
            raise UnknownStore(f"{path}: not the folder of a RabbitMQ virtual host")
        if not exists:
            _check_empty(path, disk)
        store._start(vhost or "/", make=not exists)
        return store

    def _start(self, vhost: str, *, make: bool) -> None:
        check = (lambda: None) if make else (lambda: refuse_unsupported(self.path, self.disk))
        self._lock = lock_folder(self.disk, self.path, check)
        try:
            if make:
                create_folder(self.disk, self.path, vhost, self.settings)
            self._opened = open_for_writing(self.disk, self.path, self.settings)
            self._revive_queues(self._opened)
        except BaseException:
            self._lock.release()
            raise
        if self.settings.background:
            self._housekeeper = Housekeeper(self).start()
        _open_stores.add(self)

    def _revive_queues(self, opened: Opened) -> None:
        by_queue: dict[str, dict[int, LoadedPart]] = {}
        for part in opened.parts:
            by_queue.setdefault(part.queue, {})[part.priority or 0] = part
        for name, options in opened.options.items():
            parts = by_queue.get(name, {})
            self._queues[name] = self._live(name, options, parts)

    def _live(self, name: str, options: QueueOptions, loaded: dict[int, LoadedPart]) -> LiveQueue:
        parts = []
        for priority in range(options.max_priority + 1):
            part = loaded.get(priority)
            if part is None:
                part = LoadedPart(name, priority, self._new_index(name, options, priority))
            parts.append(self._variable(part, options))
        return LiveQueue(name, options, parts, self.disk.now_ms)

    def _new_index(self, name: str, options: QueueOptions, priority: int) -> QueueIndex:
        opened = self._writable()
        number = priority if options.max_priority else None
        return make_index(self.disk, self.path, opened.vhost, name, number, opened.index_settings)

    def _variable(self, part: LoadedPart, options: QueueOptions) -> VariableQueue:
        opened = self._writable()
        return VariableQueue(
            part.index,
            opened.persistent.client(),
            opened.transient.client(),
            self.settings,
            self.disk.now_ms,
            mode=options.mode,
            durable=options.durable,
            next_deliver_seq_id=part.next_deliver_seq_id,
            persistent=(part.persistent_count, part.persistent_bytes),
            wants_confirms=False,
        )

    # --- reading, in every mode

    @property
    def vhost(self) -> str:
        """The virtual host's name."""
        return self._opened.vhost if self._opened is not None else self.folder().vhost

    @property
    def is_writable(self) -> bool:
        """Whether it was opened for writing."""
        return self._opened is not None

    @property
    def parts(self) -> Opened:
        """Of a store open for writing, for tools and tests."""
        return self._writable()

    @property
    def lost(self) -> list[Problem]:
        """Index entries that opening for writing dropped because no file has their message."""
        return [] if self._opened is None else self._opened.lost

    @property
    def problems(self) -> list[Problem]:
        """What was wrong with the folder when it was opened for writing, and with segments read since."""
        found = [] if self._opened is None else self._opened.problems
        indexes = [part.index for queue in list(self._queues.values()) for part in queue.parts]
        return [*found, *(problem for index in indexes for problem in index.problems)]

    def folder(self) -> VhostFolder:
        """The files as they are on the disk now, for reading; what this store has not yet written is written first."""
        if self._opened is not None:
            self.sync()
        return VhostFolder(self.path, self.disk)

    def queues(self) -> list[QueueInfo]:
        """One row a queue, from the files."""
        folder = self.folder()
        try:
            return folder.queues()
        finally:
            folder.close()

    def messages(self, queue: str | None = None, *, include_acked: bool = False) -> Iterator[StoredMessage]:
        """Every message in the files, of one queue or all, in the order a broker would deliver them.

        In a store open for writing: those that are persistent or paged out.
        """
        folder = self.folder()
        try:
            yield from folder.messages(queue, include_acked=include_acked)
        finally:
            folder.close()

    # --- queues

    def _writable(self) -> Opened:
        if self._is_closed:
            raise StoreClosed(f"{self.path}: the store is closed")
        if self._opened is None:
            raise StoreReadOnly(f"{self.path}: opened for reading")
        return self._opened

    def queue(self, name: str) -> LiveQueue:
        """An existing queue; `UnknownQueue` otherwise."""
        self._writable()
        found = self._queues.get(name)
        if found is None or found.is_deleted:
            raise UnknownQueue(f"{self.path}: no queue is called {name!r}")
        return found

    def queue_names(self) -> list[str]:
        """Of a store open for writing."""
        self._writable()
        return sorted(name for name, queue in list(self._queues.items()) if not queue.is_deleted)

    def declare_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        mode: str = DEFAULT,
        max_priority: int = 0,
        message_ttl_ms: int | None = None,
    ) -> LiveQueue:
        """Make the queue unless it is there; an existing one must have been declared alike."""
        options = QueueOptions(durable, mode, max_priority, message_ttl_ms)
        _check_declaration(name, options)
        with self._guard:
            self._writable()
            found = self._queues.get(name)
            if found is not None and found.is_deleted:  # half way: its old messages are none of the new queue's
                self.delete_queue(name)
                found = None
            if found is not None:
                if found.options != options:
                    raise StoreError(f"queue {name!r} is there with {found.options}")
                return found
            made = self._queues[name] = self._live(name, options, {})
            self._write_options()
            return made

    def _write_options(self) -> None:
        kept = {name: queue.options for name, queue in self._queues.items() if not queue.is_deleted}
        write_options(self.disk, self.path, kept)

    def delete_queue(self, name: str) -> int:
        """The queue, its messages and files; how many messages waited.

        After an error the queue is there, with fewer messages, or is deleted half way: called again, this goes on.
        """
        with self._guard:
            self._writable()
            queue = self._queues.get(name)
            if queue is None:
                raise UnknownQueue(f"{self.path}: no queue is called {name!r}")
            count = queue.delete()
            self._write_options()
            del self._queues[name]
            self._wake()
            return count

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
        """Put one message into one queue or several (stored once); its id.

        `properties` are AMQP's by name (`rabbitstore.properties`); `persistent` decides `delivery_mode` unless that is given,
        and is true by default.  Without `routing_keys` the queues' names are used.  Safe once `sync` returned.
        """
        targets = [self.queue(name) for name in dict.fromkeys([queues] if isinstance(queues, str) else queues)]
        keys = tuple(routing_keys) if routing_keys is not None else tuple(queue.name for queue in targets)
        fields = dict(properties or {})
        if persistent is None:
            persistent = fields.get("delivery_mode", 2) == 2
        fields.setdefault("delivery_mode", 2 if persistent else 1)
        content = Content(self._writable().vhost, exchange, keys, blocks.encode(fields), bytes(body), new_msg_id(), persistent)
        self.publish_content(targets, content, priority=fields.get("priority") or 0, ttl_ms=_ttl_ms(fields))
        return content.msg_id

    def publish_content(
        self, targets: Iterable[LiveQueue], content: Content, *, priority: int = 0, ttl_ms: int | None = None
    ) -> None:
        """Put a ready message into queues; its id must be new to each of them.

        A queue that cannot take it does not keep it from the others: `PartlyPublished` then says which have it.  With one
        target the error is that queue's own.
        """
        below = self._writable().index_settings.embed_below
        _check_ttl(ttl_ms)
        size = len(content.body)
        embedded = size < below and size + len(content.properties_bin) < below
        message = Outgoing(content.msg_id, encode_content(content), size, content.persistent, embedded, priority, ttl_ms)
        _publish_to_all(list(targets), message, content)
        self._wake()
        self._unbalanced_bytes += len(message.term)
        if self._unbalanced_bytes > self.settings.memory_limit_bytes // 16:
            self.balance_memory()

    def publisher(self, credit: tuple[int, int] | None = None) -> Publisher:
        """A publisher with confirms and flow control; `credit` is (initial, more_after), by default that of the settings."""
        self._writable()
        return Publisher(self, Credit(*(credit or self.settings.publisher_credit)))

    def get(self, queue: str, *, auto_ack: bool = False) -> Delivery | None:
        """The next message, None when the queue is empty; unacknowledged until `ack` unless `auto_ack`."""
        found = self.queue(queue).get(auto_ack=auto_ack)
        self._wake()
        return found

    def ack(self, delivery: Delivery, *, multiple: bool = False) -> int:
        """Acknowledge a delivery; with `multiple`, all of its queue up to it.  Return how many were acknowledged.

        A second acknowledgement raises `UnknownDelivery`, as the server closes the channel; with `multiple` it returns 0.
        """
        count = self.queue(delivery.queue).acknowledge(delivery.tag, multiple=multiple)
        self._wake()
        return count

    def requeue(self, delivery: Delivery, *, multiple: bool = False) -> int:
        """Back to its old place in its queue, redelivered later; how many."""
        return self.queue(delivery.queue).requeue(delivery.tag, multiple=multiple)

    def consumer(self, queue: str, *, prefetch: int = 0) -> Consumer:
        """A consumer with at most `prefetch` unacknowledged messages, 0 for no limit."""
        return Consumer(self.queue(queue), prefetch)

    def purge(self, queue: str) -> int:
        """Drop all that waits in the queue; how many."""
        count = self.queue(queue).purge()
        self._wake()
        return count

    def set_mode(self, queue: str, mode: str) -> None:
        """Make a queue lazy or default."""
        with self._guard:
            live = self.queue(queue)
            with live.lock:
                for part in live.parts:
                    part.set_mode(mode)
                live.options = QueueOptions(live.options.durable, mode, live.options.max_priority, live.options.message_ttl_ms)
            self._write_options()

    # --- safety

    def _wake(self) -> None:
        if self._housekeeper is not None:
            self._housekeeper.wake()

    def sync(self) -> None:
        """All that was published, acknowledged or deleted before the call survives a crash afterwards.

        When a queue's index fails, the others are synced all the same; the first failure is raised in the end.
        """
        opened = self._writable()
        with self._sync_lock:
            queues = list(self._queues.values())
            waiting = []
            for queue in queues:
                with queue.lock:
                    waiting.append([part.begin_sync() for part in queue.parts])
            opened.persistent.sync()
            opened.transient.process()
            failures = [error for pair in zip(queues, waiting, strict=True) for error in _end_sync(*pair)]
            if failures:
                raise failures[0]
            self.sync_count += 1

    def process(self) -> None:
        """Work off what waits for the message stores, without a sync."""
        opened = self._writable()
        opened.persistent.process()
        opened.transient.process()

    @property
    def has_work(self) -> bool:
        """Whether a sync would do anything."""
        opened = self._writable()
        parts = [part for queue in list(self._queues.values()) for part in queue.parts]
        dirty = any(part.index.needs_sync for part in parts)
        return dirty or opened.persistent.has_work or opened.transient.has_work

    def flush_journals(self) -> None:
        """Move what the journals hold to the segments, as an idle queue does."""
        self._writable()
        self.sync()
        for queue in list(self._queues.values()):
            with queue.lock:
                if not queue.is_deleted:
                    for part in queue.parts:
                        part.index.flush()

    def collect(self) -> int:
        """Run the collector until its settings are met; the number of merges."""
        opened = self._writable()
        self.process()
        count = 0
        for store in (opened.persistent, opened.transient):
            while collect_one(store):
                count += 1
        return count

    def balance_memory(self) -> None:
        """Set every queue's target so that all together keep below the memory limit."""
        self._unbalanced_bytes = 0
        balance_memory(list(self._queues.values()), self.settings.memory_limit_bytes)

    def close(self) -> None:
        """A clean stop: everything on the disk, journals flushed, the clean mark written last."""
        if self._is_closed:
            return
        if self._opened is None:
            self._is_closed = True
            return
        if self._housekeeper is not None:
            self._housekeeper.stop()
        try:
            self._stop_cleanly(self._opened)
        finally:
            self.abandon()

    def _stop_cleanly(self, opened: Opened) -> None:
        for name in [name for name, queue in self._queues.items() if queue.is_deleted]:
            self.delete_queue(name)
        self.sync()
        rows = []
        for queue in self._queues.values():
            with queue.lock:
                for part in queue.parts:
                    if queue.options.durable:
                        part.index.close()
                        rows.append(_recovery_row(part))
                    else:
                        part.index.delete()
        opened.persistent.close()
        opened.transient.abandon()
        write_clean_stop(self.disk, self.path, opened.persistent, rows)

    def abandon(self) -> None:
        """Give everything back as a dying process does: nothing is written."""
        if self._housekeeper is not None:
            self._housekeeper.stop()
        if self._opened is not None and not self._is_closed:
            for queue in self._queues.values():
                for part in queue.parts:
                    part.index.abandon()
            self._opened.persistent.abandon()
            self._opened.transient.abandon()
            assert self._lock is not None
            self._lock.release()
        self._is_closed = True

    def forget(self) -> None:
        """In a forked child: closed without a trace, the files and the lock are the parent's."""
        self._housekeeper = None
        self._is_closed = True

    def __enter__(self) -> RabbitStore:
        """For `with`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def _end_sync(queue: LiveQueue, waiting: list[Waiting]) -> list[StoreError]:
    """Sync the indexes of a queue; what failed."""
    failures: list[StoreError] = []
    with queue.lock:
        for part, ready in zip([] if queue.is_deleted else queue.parts, waiting, strict=False):
            try:
                part.end_sync(ready)
            except StoreError as error:
                failures.append(error)
    return failures


def _publish_to_all(targets: list[LiveQueue], message: Outgoing, content: Content) -> None:
    published: list[str] = []
    failed: dict[str, StoreError] = {}
    for queue in targets:
        try:
            queue.publish(message)
            published.append(queue.name)
        except StoreError as error:
            if len(targets) == 1:
                raise
            failed[queue.name] = error
    if failed:
        raise PartlyPublished(content, published, failed)


def _recovery_row(part: VariableQueue) -> RecoveryRow:
    """What the server notes of a queue at a clean stop.  The reference only has to be the same in all files of one stop."""
    index = part.index
    folder = index.folder.rpartition("/")[2]
    numbers = part.next_seq_id, part.next_deliver_seq_id
    return RecoveryRow(folder, index.unacked_by_segment(), *numbers, new_msg_id(), part.persistent_count, part.persistent_bytes)


def _find(path: str, vhost: str | None, disk: Disk) -> str:
    found = find_vhosts(path, disk)
    if vhost is not None:
        found = [folder for folder in found if VhostFolder(folder, disk).vhost == vhost]
    if not found:
        raise UnknownStore(f"{path}: no folder of a RabbitMQ virtual host" + (f" {vhost!r}" if vhost else ""))
    if len(found) > 1:
        names = ", ".join(VhostFolder(folder, disk).vhost for folder in found)
        raise UnknownStore(f"{path}: several virtual hosts, name one of: {names}")
    return found[0]


def _check_empty(path: str, disk: Disk) -> None:
    """A new store is made in a new or an empty folder only."""
    found = disk.stat(path)
    names = [entry.name for entry in disk.list(path)] if found is not None else []
    foreign = [name for name in names if name != layout.OWN_FOLDER]
    if foreign:
        raise UnknownStore(f"{path}: not the folder of a RabbitMQ virtual host, and not empty ({foreign[0]})")


def _check_declaration(name: str, options: QueueOptions) -> None:
    if not name or len(name.encode("utf-8", "surrogatepass")) > 255 or "\0" in name:
        raise InvalidMessage(f"a queue's name has 1 to 255 bytes and no NUL, not {name!r}")
    if options.mode not in (DEFAULT, LAZY):
        raise InvalidMessage(f"a queue's mode is default or lazy, not {options.mode!r}")
    if not 0 <= options.max_priority <= 255:
        raise InvalidMessage(f"a queue's highest priority is 0 to 255, not {options.max_priority}")
    _check_ttl(options.message_ttl_ms)


def _ttl_ms(fields: dict[str, Any]) -> int | None:
    text = fields.get("expiration")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise InvalidMessage(f"expiration is milliseconds as decimal text, not {text!r}")
    return int(text)


def _check_ttl(ttl_ms: int | None) -> None:
    """`InvalidMessage` for a time to live that RabbitMQ refuses."""
    if ttl_ms is not None and not 0 <= ttl_ms <= TTL_MS_MAX:
        raise InvalidMessage(f"a time to live is 0 to {TTL_MS_MAX} ms, as in RabbitMQ, not {ttl_ms}")
