"""Open a virtual host's folder for writing (docs/formats/rabbitmq-clean-stop.md#how-brokerstore-uses-them).

The clean-stop files are read, then deleted; from there on the folder counts as not cleanly stopped.  If they fit the folder,
the store resumes from them: it reads no message file, and of each index only the ends and what the journal touches.  Otherwise
`VhostOpening.problems` names what does not fit and everything is read: reference counts come from the indexes, locations from a
scan.  An entry whose message is in no file is acknowledged and listed in `VhostOpening.lost`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Self

from storageio import Disk, Kind, StoreCorrupt, UnknownStore, replace_file
from storageio.invariants import check_invariants
from storebytes.finding import Finding
from storebytes.plan import Plan

from ..declarations import QueueOptions, read_options, write_options
from ..format import layout
from ..format.content import is_message
from ..format.entry_cy import IndexEntry
from ..format.index_versions import VERSIONS
from ..format.names import CONFIG_TEXT, part_name, queue_folder_name, queue_name_text
from ..format.tables import RecoveryRow, shares_a_row
from ..read.index_v2 import IndexV2
from ..read.queue_folder import QueueFolder
from ..read.vhost_folder import VhostFolder
from ..settings import IndexSettings, RabbitSettings
from .clean_stop import RabbitCleanStop, delete_clean_stop, read_clean_stop
from .msg_store_cy import MsgStore
from .msg_store_recovery import open_store, resume_store
from .queue_index_cy import QueueIndex
from .queue_index_v2 import QueueIndexV2

_LOG = logging.getLogger(f"brokerstore.{__name__}")
Index = QueueIndex | QueueIndexV2
ENGINES: dict[int, type[QueueIndex] | type[QueueIndexV2]] = {1: QueueIndex, 2: QueueIndexV2}
_ZERO_RUN = bytes(64)  # a sector that never reached the disk leaves at least so many zeros
_FOLDERS = (*layout.STORE_FOLDERS, layout.QUEUES_FOLDER, layout.SIDECAR_FOLDER)


@dataclass
class LoadedQueue:
    """One queue folder with its replayed index."""

    queue: str
    priority: int | None
    index: Index
    next_deliver_seq_id: int | None = None  # None: what was delivered is unknown
    stored: list[tuple[int, bytes, int]] = field(default_factory=list)  # (sequence number, id, size) of entries not embedded
    persistent_count: int = 0
    persistent_bytes: int = 0


def check_empty(disk: Disk, path: str) -> None:
    """Raise `UnknownStore` when the folder has other files than brokerstore's own."""
    names = [entry.name for entry in disk.list(path)] if disk.stat(path) is not None else []
    foreign = [name for name in names if name != layout.SIDECAR_FOLDER]
    if foreign:
        raise UnknownStore(f"{path}: not the folder of a RabbitMQ virtual host, and not empty ({foreign[0]})")


def create_folder(disk: Disk, path: str, vhost: str, settings: RabbitSettings) -> None:
    """Create an empty virtual host as RabbitMQ does."""
    disk.make_folder(path)
    for name in _FOLDERS:
        disk.make_folder(f"{path}/{name}")
    replace_file(disk, f"{path}/{layout.VHOST_NAME_FILE}", vhost.encode())
    replace_file(disk, f"{path}/{layout.CONFIG_NAME}", CONFIG_TEXT % settings.index.segment_entries)


class VhostOpening:
    """What opening a virtual host for writing does to its folder; the caller holds the folder's lock.

    `run` sets what the engine works with: the two message stores, the loaded `queues` and their `options`.  `problems` are
    those of the folder as it was found, `lost` the entries without a message; `is_resumed`: from the clean-stop files, without
    a scan.
    """

    persistent: MsgStore
    transient: MsgStore

    def __init__(self, disk: Disk, path: str, settings: RabbitSettings) -> None:
        """Read the folder, and change nothing.  Raises `StoreCorrupt` for a damaged `.config`."""
        self._disk = disk
        self._path = path
        self._folder = vhost = VhostFolder(path, disk)
        _refuse_wrong_config(vhost)
        self.vhost = vhost.vhost
        self._queues = vhost.queue_folders()
        self.version = max((queue.version for queue in self._queues), default=settings.index_version)
        entries = VERSIONS[self.version].segment_entries or vhost.segment_entries
        self.index_settings = replace(settings.index, segment_entries=entries)
        self._store_settings = settings.store
        self.problems: list[Finding] = []
        self._clean = read_clean_stop(vhost, self.problems)
        self.options = read_options(disk, path)
        _refuse_lost_entries([queue for queue in self._queues if not self._is_dropped(queue)])
        vhost.close()
        self.queues: list[LoadedQueue] = []
        self.lost: list[Finding] = []
        self.is_resumed = False

    def plan(self) -> Plan:
        """Return the steps, in the order in which they have to run."""
        plan = Plan(self._path)
        plan.add("make_folders", ", ".join(_FOLDERS), "the store writes there", self._make_folders)
        plan.add("delete_clean_stop", layout.RECOVERY_NAME, "the queues go on", self._delete_clean_stop)
        plan.add("delete_transient", layout.TRANSIENT_FOLDER, "its messages do not survive a stop", self._delete_transient)
        reason = "their last stop was clean" if self._clean is not None else "their last stop was not clean"
        plan.add("load_queues", layout.QUEUES_FOLDER, reason, self._load)
        plan.add("write_declarations", layout.SIDECAR_FOLDER, "only the folder shows some queues", self._write_declarations)
        return plan

    def run(self) -> Self:
        """Run the plan, and return this."""
        self.plan().apply()
        return self

    def _make_folders(self) -> str:
        for name in _FOLDERS:
            self._disk.make_folder(f"{self._path}/{name}")
        return ""

    def _delete_clean_stop(self) -> str:
        delete_clean_stop(self._disk, self._path)
        return ""

    def _delete_transient(self) -> str:
        folder = f"{self._path}/{layout.TRANSIENT_FOLDER}"
        for entry in self._disk.list(folder):
            if entry.kind is Kind.FILE:
                self._disk.delete(f"{folder}/{entry.name}")
        return ""

    def _load(self) -> str:
        """Continue from the clean stop, or read every index and message file; cut what a crash left of a record."""
        self.is_resumed = self._clean is not None and self._resume(self._clean)
        self.problems = [*self._folder.problems, *self.problems]
        for problem in self.problems:
            _LOG.warning("%s: %s at byte %d: %s: expected %s, found %s", self._path, *problem.as_dict().values())
        if not self.is_resumed:
            self.queues = self._load_queues()
            self._folder.close()
            self._scan_persistent()
        path = f"{self._path}/{layout.TRANSIENT_FOLDER}"
        self.transient, _ = open_store(self._disk, path, self._store_settings, {}, is_synced=False)
        return ""

    def _write_declarations(self) -> str:
        known = complete_options(self.options, self.queues)
        if known != self.options:
            write_options(self._disk, self._path, known)
            self.options = known
        return ""

    def _is_dropped(self, folder: QueueFolder) -> bool:
        """Return whether a queue is half made, or does not survive a restart."""
        return folder.is_half_made or not self.options.get(folder.queue, QueueOptions()).durable

    def _index_of(self, folder: QueueFolder) -> Index:
        return new_index(self._disk, folder.path, self.index_settings, self.version)

    def _load_queues(self) -> list[LoadedQueue]:
        """Read every index in full."""
        loaded = []
        for queue in self._queues:
            index = self._index_of(queue)
            if self._is_dropped(queue):
                index.delete()
                continue
            found = LoadedQueue(queue.queue, queue.priority, index)
            for entry in index.load(is_persistent, is_whole, self._folder.has_message):
                found.persistent_count += 1
                found.persistent_bytes += entry.size
                if entry.term is None:
                    found.stored.append((entry.seq_id, entry.msg_id, entry.size))
            _apply_terms(found, (self._folder.recovery or {}).get(queue.folder))
            loaded.append(found)
        return loaded

    def _resume(self, clean: RabbitCleanStop) -> bool:
        """Continue from the clean stop; return false, with a problem added, when a queue does not fit its terms."""
        loaded: list[LoadedQueue] = []
        try:
            misfit = self._resume_queues(clean, loaded)
            if misfit is None:
                for queue in self._queues:
                    if self._is_dropped(queue):
                        self._index_of(queue).delete()
                path = f"{self._path}/{layout.PERSISTENT_FOLDER}"
                self.persistent, self.queues = resume_store(self._disk, path, self._store_settings, clean), loaded
                return True
        except BaseException:
            _abandon(loaded)
            raise
        _abandon(loaded)
        expected = f"the entries of queue {misfit}"
        self.problems.append(Finding(layout.RECOVERY_NAME, 0, "bad_recovery_terms", expected, "something else"))
        return False

    def _resume_queues(self, clean: RabbitCleanStop, loaded: list[LoadedQueue]) -> str | None:
        """Collect the queues; return the folder of the first one that does not fit its terms."""
        known = {queue.folder for queue in self._queues if not self._is_dropped(queue)}
        for row in clean.terms.values():
            if row.folder and row.persistent_count and row.folder not in known:
                return row.folder
        for queue in self._queues:
            if queue.folder in known:
                found = self._resume_queue(queue, clean)
                if found is None:
                    return queue.folder
                loaded.append(found)
        return None

    def _resume_queue(self, queue: QueueFolder, clean: RabbitCleanStop) -> LoadedQueue | None:
        """Return a queue with the numbers of its terms; None when its index does not fit them."""
        row = clean.terms.get(queue.folder)
        if row is None or row.next_seq_id is None:
            return self._read_queue(queue, row, clean)
        has_message = self._folder.has_message
        index = self._index_of(queue)
        counts = row.persistent_count, row.persistent_bytes
        if row.persistent_count == sum(row.segments.values()):
            fits = index.resume(row.segments, row.next_seq_id, is_persistent, has_message)
        else:  # the index has transient messages, which do not survive: read all of it to find them
            fits = sum(1 for _ in index.load(is_persistent, is_whole, has_message)) == row.persistent_count
            fits = fits and index.next_seq_id <= row.next_seq_id
            index.next_seq_id = row.next_seq_id
        if not fits:
            index.abandon()
            return None
        return LoadedQueue(queue.queue, queue.priority, index, row.next_deliver_seq_id, [], *counts)

    def _read_queue(self, queue: QueueFolder, row: RecoveryRow | None, clean: RabbitCleanStop) -> LoadedQueue | None:
        """Return a queue whose row has no sequence numbers or no name, from its whole index; None when that does not fit."""
        if row is None and not shares_a_row(clean.terms):
            return None
        found = LoadedQueue(queue.queue, queue.priority, self._index_of(queue), None if row is None else 0)
        fits = True
        for entry in found.index.load(is_persistent, is_whole, self._folder.has_message):
            found.persistent_count += 1
            found.persistent_bytes += entry.size
            fits = fits and (entry.term is not None or entry.msg_id in clean.locations)
            if row is not None and entry.delivered:
                found.next_deliver_seq_id = entry.seq_id + 1
        if fits and (row is None or row.persistent_count == found.persistent_count):
            return found
        found.index.abandon()
        return None

    def _scan_persistent(self) -> None:
        """Scan the message files; acknowledge and list the entries whose messages no file has."""
        counts: dict[bytes, int] = {}
        for queue in self.queues:
            for _seq_id, msg_id, _size in queue.stored:
                counts[msg_id] = counts.get(msg_id, 0) + 1
        try:
            path = f"{self._path}/{layout.PERSISTENT_FOLDER}"
            self.persistent, missing = open_store(self._disk, path, self._store_settings, counts)
            self.lost = [problem for queue in self.queues for problem in _drop_lost(queue, missing)]
        except BaseException:
            _abandon(self.queues)
            raise
        check_invariants(_check_references, self.persistent, self.queues, missing)
        for queue in self.queues:
            queue.stored.clear()


def _refuse_wrong_config(vhost: VhostFolder) -> None:
    """Raise `StoreCorrupt` for a damaged `.config`: with a wrong number of entries an opening would mix up the queues."""
    for problem in vhost.problems:
        if problem.kind == "bad_config":
            file = f"{vhost.path}/{problem.file}"
            expected = f"{{segment_entry_count, N}}., likely N = {vhost.segment_entries}"
            raise StoreCorrupt("unusable .config", file=file, offset=0, expected=expected, found=problem.found)


def _refuse_lost_entries(queues: list[QueueFolder]) -> None:
    """Raise `StoreCorrupt` for an index that lost entries after a clean stop: an opening would delete their messages."""
    for queue in queues:
        if isinstance(queue.index, IndexV2):
            for number in filter(queue.index.is_cut, queue.segment_numbers()):
                file = f"{queue.path}/{number}.qi"
                expected = "the entries that the last clean stop left"
                raise StoreCorrupt("lost index entries", file=file, offset=0, expected=expected, found="fewer: run recover")


def _abandon(loaded: list[LoadedQueue]) -> None:
    for queue in loaded:
        queue.index.abandon()


def is_persistent(entry: IndexEntry) -> bool:
    """Return whether the entry survives a restart."""
    return entry.persistent


def _apply_terms(queue: LoadedQueue, row: RecoveryRow | None) -> None:
    """Take over the numbers of the last stop, unless the index has changed since."""
    if row is None or row.next_seq_id is None or row.persistent_count != queue.persistent_count:
        return
    if row.next_seq_id < queue.index.next_seq_id:
        return
    queue.index.next_seq_id = row.next_seq_id
    queue.next_deliver_seq_id = row.next_deliver_seq_id


def is_whole(entry: IndexEntry) -> bool:
    """Return whether an embedded message was written to its end: a term with a run of zeros must decode as the message.

    Other damage is not a torn write; the consumer that fetches the message gets the error.
    """
    term = entry.term
    if term is None or not (_ZERO_RUN in term or term.startswith(b"\0") or term.endswith(b"\0")):
        return True
    return is_message(term, entry.msg_id)


def _drop_lost(queue: LoadedQueue, missing: set[bytes]) -> list[Finding]:
    gone = [entry for entry in queue.stored if entry[1] in missing] if missing else []
    if gone:
        queue.index.acknowledge(seq_id for seq_id, _, _ in gone)
        queue.index.flush()  # else the next reader of the folder reports these messages again
    queue.persistent_count -= len(gone)
    queue.persistent_bytes -= sum(size for _, _, size in gone)
    return [Finding(queue.index.folder, seq_id, "message_lost", msg_id.hex(), "in no file") for seq_id, msg_id, _ in gone]


def _check_references(store: MsgStore, loaded: list[LoadedQueue], missing: set[bytes]) -> None:
    """Assert that the store counts each index entry once."""
    entries = sum(msg_id not in missing for queue in loaded for _, msg_id, _ in queue.stored)
    assert entries == sum(location.ref_count for location in store.locations.values())


def complete_options(options: dict[str, QueueOptions], loaded: list[LoadedQueue]) -> dict[str, QueueOptions]:
    """Return the declarations of durable queues, completed for queues that only the folder shows."""
    known = {name: declared for name, declared in options.items() if declared.durable}
    for queue in loaded:
        declared = known.get(queue.queue, QueueOptions())
        known[queue.queue] = replace(declared, max_priority=max(declared.max_priority, queue.priority or 0))
    return known


def new_index(disk: Disk, folder: str, settings: IndexSettings, version: int) -> Index:
    """Return an index of this version, not yet loaded."""
    return ENGINES[version](disk, folder, settings)


def make_index(
    disk: Disk, path: str, vhost: str, queue: str, priority: int | None, settings: IndexSettings, version: int
) -> Index:
    """Create the folder and the name file of a new queue; return its index."""
    name = part_name(queue.encode(), priority)
    folder = f"{path}/{layout.QUEUES_FOLDER}/{queue_folder_name(vhost, name)}"
    disk.make_folder(folder)
    replace_file(disk, f"{folder}/{layout.QUEUE_NAME_FILE}", queue_name_text(vhost, name, version))
    return new_index(disk, folder, settings, version)
