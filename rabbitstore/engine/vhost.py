"""A virtual host that is open for writing: its queues over the two message stores."""

from __future__ import annotations

import threading

from storageio import Disk, StoreError
from storageio.background import Wakeup
from storageio.invariants import check_invariants
from storebytes.finding import Finding

from ..declarations import QueueOptions, write_options
from ..errors import PartlyPublished, UnknownQueue
from ..format.container_writer import encode_container
from ..format.content import encode_content, new_msg_id
from ..format.index_versions import VERSIONS
from ..format.message import Content
from ..format.tables import RecoveryRow
from ..settings import RabbitSettings
from .clean_stop import write_clean_stop
from .collector import collect
from .limits import check_declaration, check_ttl
from .live_queue import EncodedMessage, LiveQueue
from .memory_monitor import balance_memory
from .opening import LoadedQueue, VhostOpening, make_index
from .variable_queue_cy import VariableQueue


class Vhost:
    """The queues and message stores of an open folder.  Thread-safe.

    It sets `work` whenever there is something to sync or to collect.
    """

    def __init__(self, disk: Disk, path: str, settings: RabbitSettings, opened: VhostOpening, work: Wakeup) -> None:
        """Continue from an opening."""
        self.disk = disk
        self.path = path
        self.settings = settings
        self.name = opened.vhost
        self.index_version = opened.version
        self.index_settings = opened.index_settings
        self.persistent = opened.persistent
        self.transient = opened.transient
        self.lost = opened.lost
        self.is_resumed = opened.is_resumed
        self.sync_count = 0
        self._found_problems = opened.problems
        self._work = work
        self._guard = threading.RLock()
        self._sync_lock = threading.Lock()
        self._unbalanced_bytes = 0
        loaded: dict[str, dict[int, LoadedQueue]] = {}
        for queue in opened.queues:
            loaded.setdefault(queue.queue, {})[queue.priority or 0] = queue
        self._queues = {name: self._make_queue(name, options, loaded.get(name, {})) for name, options in opened.options.items()}

    def _make_queue(self, name: str, options: QueueOptions, loaded: dict[int, LoadedQueue]) -> LiveQueue:
        parts = []
        for priority in range(options.max_priority + 1):
            found = loaded.get(priority)
            if found is None:
                number = priority if options.max_priority else None
                index = make_index(self.disk, self.path, self.name, name, number, self.index_settings, self.index_version)
                found = LoadedQueue(name, priority, index)
            parts.append(self._make_part(found, options))
        return LiveQueue(name, options, parts, self.disk.now_ms)

    def _make_part(self, loaded: LoadedQueue, options: QueueOptions) -> VariableQueue:
        return VariableQueue(
            loaded.index,
            self.persistent.client(),
            self.transient.client(),
            self.settings,
            self.disk.now_ms,
            mode=options.mode,
            durable=options.durable,
            next_deliver_seq_id=loaded.next_deliver_seq_id,
            persistent=(loaded.persistent_count, loaded.persistent_bytes),
        )

    @property
    def problems(self) -> list[Finding]:
        """The problems of the folder as it was opened, and of segments read since."""
        indexes = (part.index for queue in self._all_queues() for part in queue.parts)
        return [*self._found_problems, *(problem for index in indexes for problem in index.problems)]

    def wake(self) -> None:
        """Wake the thread that syncs and collects."""
        self._work.set()

    # --- queues

    def _all_queues(self) -> list[LiveQueue]:
        return list(self._queues.values())

    def queue(self, name: str) -> LiveQueue:
        """Return a queue; raise `UnknownQueue` when there is none of this name."""
        found = self._queues.get(name)
        if found is None or found.is_deleted:
            raise UnknownQueue(f"{self.path}: no queue is called {name!r}")
        return found

    def queue_names(self) -> list[str]:
        """Return the names of all queues, sorted."""
        return sorted(queue.name for queue in self._all_queues() if not queue.is_deleted)

    def declare_queue(self, name: str, options: QueueOptions) -> LiveQueue:
        """Return the queue of this name and these options, creating it if necessary."""
        check_declaration(name, options)
        with self._guard:
            found = self._queues.get(name)
            if found is not None and found.is_deleted:  # a deletion failed half way: finish it
                self.delete_queue(name)
                found = None
            if found is None:
                found = self._queues[name] = self._make_queue(name, options, {})
                self._write_options()
            elif found.options != options:
                raise StoreError(f"queue {name!r} exists with {found.options}")
            return found

    def _write_options(self) -> None:
        kept = {name: queue.options for name, queue in self._queues.items() if not queue.is_deleted}
        write_options(self.disk, self.path, kept)

    def delete_queue(self, name: str) -> int:
        """Delete a queue with its files; return how many messages waited.

        After an error the queue still exists with fewer messages, or is half deleted; another call continues.
        """
        with self._guard:
            queue = self._queues.get(name)
            if queue is None:
                raise UnknownQueue(f"{self.path}: no queue is called {name!r}")
            count = queue.delete()
            self._write_options()
            del self._queues[name]
            self.wake()
            return count

    def set_mode(self, name: str, mode: str) -> None:
        """Make a queue lazy or default."""
        with self._guard:
            live = self.queue(name)
            with live.lock:
                for part in live.parts:
                    part.set_mode(mode)
                live.options = QueueOptions(live.options.durable, mode, live.options.max_priority, live.options.message_ttl_ms)
            self._write_options()

    # --- messages

    def publish(self, targets: list[LiveQueue], content: Content, priority: int, ttl_ms: int | None) -> None:
        """Publish a message to queues; see `RabbitStore.publish_content`."""
        check_ttl(ttl_ms)
        below = self.index_settings.embed_below
        size = len(content.body)
        embedded = size < below and size + len(content.properties_bin) < below
        term = self._encode(content, ttl_ms)
        message = EncodedMessage(content.msg_id, term, size, content.persistent, embedded, priority, ttl_ms)
        _publish_to_all(targets, message, content)
        self.wake()
        self._unbalanced_bytes += len(message.term)
        if self._unbalanced_bytes > self.settings.memory_limit_bytes // 16:
            self.balance_memory()

    def _encode(self, content: Content, ttl_ms: int | None) -> bytes:
        """Return the message's term: a container beside version-2 indexes."""
        if VERSIONS[self.index_version].is_later:
            return encode_container(content, ttl_ms=ttl_ms, now_ms=self.disk.now_ms())
        return encode_content(content)

    # --- background work

    @property
    def has_work(self) -> bool:
        """Whether a sync has anything to do."""
        parts = (part for queue in self._all_queues() for part in queue.parts)
        return any(part.index.needs_sync for part in parts) or self.persistent.has_work or self.transient.has_work

    def sync(self) -> None:
        """Make everything so far durable; a failing queue does not keep others from it, and the first error is raised last."""
        with self._sync_lock:
            queues = self._all_queues()
            positions = []
            for queue in queues:
                with queue.lock:
                    positions.append([part.index.position() for part in queue.parts])
            self.persistent.sync()
            self.transient.process()
            failures = [error for pair in zip(queues, positions, strict=True) for error in _end_sync(*pair)]
            if failures:
                raise failures[0]
            self.sync_count += 1

    def process(self) -> None:
        """Handle the mailboxes of the message stores, without a sync."""
        self.persistent.process()
        self.transient.process()

    def flush_journals(self) -> None:
        """Move the journals' entries to the segments, as an idle queue does."""
        self.sync()
        for queue in self._all_queues():
            with queue.lock:
                if not queue.is_deleted:
                    for part in queue.parts:
                        part.index.flush()

    def collect(self) -> int:
        """Free deleted files, and run the collector until the settings are met; return the number of merges."""
        self.disk.free_unlinked()
        self.process()
        return collect(self.persistent) + collect(self.transient)

    def balance_memory(self) -> None:
        """Set every queue's memory target, so that all together stay below the limit."""
        self._unbalanced_bytes = 0
        balance_memory(self._all_queues(), self.settings.memory_limit_bytes)

    # --- closing

    def stop_cleanly(self) -> None:
        """Write everything, then the files of a clean stop."""
        for name in [name for name, queue in self._queues.items() if queue.is_deleted]:
            self.delete_queue(name)
        self.sync()
        check_invariants(self.check)
        rows = []
        for queue in self._queues.values():
            with queue.lock:
                for part in queue.parts:
                    if queue.options.durable:
                        part.index.close()
                        rows.append(_recovery_row(part))
                    else:
                        part.index.delete()
        self.persistent.close()
        self.transient.abandon()
        write_clean_stop(self.disk, self.path, self.persistent, rows, self.index_version)
        self.disk.free_unlinked()

    def abandon(self) -> None:
        """Close all files without writing anything, as a dying process does."""
        for queue in self._queues.values():
            for part in queue.parts:
                part.index.abandon()
        self.persistent.abandon()
        self.transient.abandon()
        self.disk.free_unlinked()

    def check(self) -> None:
        """Assert the invariants of queues, indexes and message stores."""
        for store in (self.persistent, self.transient):
            store.process()
            store.check()
        for queue in self._all_queues():
            with queue.lock:
                for part in queue.parts:
                    part.check()
                    part.index.check()


def _end_sync(queue: LiveQueue, positions: list[tuple[int, int]]) -> list[StoreError]:
    """Sync the indexes of a queue as they were at these positions; return the errors."""
    failures: list[StoreError] = []
    with queue.lock:
        for part, position in zip([] if queue.is_deleted else queue.parts, positions, strict=False):
            try:
                part.index.sync(position)
            except StoreError as error:
                failures.append(error)
    return failures


def _publish_to_all(targets: list[LiveQueue], message: EncodedMessage, content: Content) -> None:
    if len(targets) == 1:
        targets[0].publish(message)
        return
    published: list[str] = []
    failed: dict[str, StoreError] = {}
    for queue in targets:
        try:
            queue.publish(message)
            published.append(queue.name)
        except StoreError as error:
            failed[queue.name] = error
    if failed:
        raise PartlyPublished(content, published, failed)


def _recovery_row(part: VariableQueue) -> RecoveryRow:
    """Return the terms of a queue.  Its client reference only has to be the same in all files of one stop."""
    index = part.index
    folder = index.folder.rpartition("/")[2]
    numbers = part.next_seq_id, part.next_deliver_seq_id
    return RecoveryRow(folder, index.unacked_by_segment(), *numbers, new_msg_id(), part.persistent_count, part.persistent_bytes)
