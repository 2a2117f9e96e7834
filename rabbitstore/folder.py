"""A virtual host's folder, read without changing a byte of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from storageio import REAL_DISK, Disk, DiskError, Kind, Mode, StoreCorrupt, UnknownStore, UnsupportedFormat

from . import layout, tables
from .content import decode_content
from .dets_table import is_closed
from .entry_cy import IndexEntry
from .names import numbered, read_segment_entries
from .paths import numbers_in, read_all, read_head, read_if_there
from .problems import Problem, of_corrupt, of_unsupported
from .queue_folder import QueueFolder
from .records import TERM_AT
from .segment_cy import read_segment
from .store_folder import StoreFolder, store_names
from .stored_message import StoredMessage

_STORES = (layout.PERSISTENT_FOLDER, layout.TRANSIENT_FOLDER)


class QueueInfo(NamedTuple):
    """One queue as `ls` shows it; a priority queue's parts are one.

    `messages` are those not acknowledged that have a body; `unacked`, those of them that a consumer held (None when the stop
    was not clean and nobody knows); `persistent`, those that survive a restart; `segments`, index files; `version`, of the
    index.
    """

    queue: str
    vhost: str
    messages: int
    unacked: int | None
    persistent: int
    segments: int
    version: int


def is_vhost_folder(disk: Disk, path: str) -> bool:
    """Whether `path` looks like a virtual host's folder."""
    names = (*_STORES, layout.QUEUES_FOLDER)
    return any((found := disk.stat(f"{path}/{name}")) is not None and found.kind is Kind.FOLDER for name in names)


def find_vhosts(path: str, disk: Disk = REAL_DISK) -> list[str]:
    """The virtual hosts' folders below a node's data folder, or `path` itself if it is one."""
    if is_vhost_folder(disk, path):
        return [path]
    above = f"{path}/msg_stores/vhosts"
    if disk.stat(above) is None:
        return []
    folders = [f"{above}/{entry.name}" for entry in disk.list(above) if entry.kind is Kind.FOLDER]
    return [folder for folder in folders if is_vhost_folder(disk, folder)]


class VhostFolder:
    """Queues, messages and tables of one folder.  What is wrong goes to `problems`; the rest stays readable.

    `notes` name transient messages that are in no file: a server that was killed had their bodies in memory.  They are no
    damage, since a server drops every transient message when it starts.
    """

    def __init__(self, path: str, disk: Disk = REAL_DISK) -> None:
        """`UnknownStore` when the folder is no virtual host's."""
        if not is_vhost_folder(disk, path):
            raise UnknownStore(f"{path}: not the folder of a RabbitMQ virtual host")
        self.disk = disk
        self.path = path
        self.problems: list[Problem] = []
        self.notes: list[Problem] = []
        name = read_head(disk, f"{path}/{layout.VHOST_NAME_FILE}")
        self.vhost = "/" if name is None else name.decode("utf-8", "replace")
        self.stores = {name: StoreFolder(disk, path, name) for name in _STORES}
        self.recovery = self._read_recovery()
        self.segment_entries = self._read_config()

    def _read_config(self) -> int:
        """What `.config` says, or the files where it is unusable or cannot be true."""
        text = read_head(self.disk, f"{self.path}/{layout.CONFIG_NAME}")
        entries = read_segment_entries(text)
        shown = entries
        if entries is None:
            shown = guess_segment_entries(self.disk, self.path)
        elif shows_larger_segments(self.disk, self.path, entries):
            shown = layout.SEGMENT_ENTRIES_OLD
        elif self._has_segment_beyond(entries) and not self._has_segment_beyond(layout.SEGMENT_ENTRIES_NEW):
            shown = layout.SEGMENT_ENTRIES_NEW
        assert shown is not None
        if shown != entries:
            expected = f"{{segment_entry_count, {shown}}}."
            self.problems.append(Problem(layout.CONFIG_NAME, 0, "bad_config", expected, str(text)[:200]))
        return shown

    def _has_segment_beyond(self, entries: int) -> bool:
        """Whether there is a segment that no sequence number reaches which the last stop noted for its queue."""
        above = f"{self.path}/{layout.QUEUES_FOLDER}"
        highest = {row: max(numbers_in(self.disk, f"{above}/{row}", "idx"), default=0) for row in self.recovery or {}}
        return any(number * entries > (self.recovery or {})[row].next_seq_id for row, number in highest.items())

    def _read_recovery(self) -> dict[str, tables.RecoveryRow] | None:
        """The clean stop's terms; None when there was none, so that every message counts as redelivered."""
        try:
            data = read_if_there(self.disk, f"{self.path}/{layout.RECOVERY_NAME}")
            if data is None:
                return None
            if not self._has_mark() and not is_closed(data):  # a server runs or was killed
                return None
            found = tables.read_recovery(data, layout.RECOVERY_NAME)
        except StoreCorrupt as error:
            self.problems.append(of_corrupt("bad_recovery_terms", error))
            return None
        except UnsupportedFormat as error:
            self.problems.append(of_unsupported(error))
            return None
        return found if found or self._has_mark() else None  # a server that runs empties the table first

    @property
    def is_clean(self) -> bool:
        """Whether the last stop was clean, as far as the marks say."""
        return self.recovery is not None and self._has_mark()

    def _has_mark(self) -> bool:
        return self.disk.stat(f"{self.path}/{layout.PERSISTENT_FOLDER}/{layout.CLEAN_NAME}") is not None

    def queue_folders(self) -> list[QueueFolder]:
        """Every queue's folder, by name; parts of a priority queue from the highest priority down."""
        above = f"{self.path}/{layout.QUEUES_FOLDER}"
        names = [entry.name for entry in self.disk.list(above) if entry.kind is Kind.FOLDER] if self.disk.stat(above) else []
        settings = self.segment_entries, self.problems, self.has_message
        found = [QueueFolder(self.disk, self.path, name, *settings) for name in names]
        return sorted(found, key=lambda folder: (folder.queue, -1 if folder.priority is None else -folder.priority))

    def queues(self) -> list[QueueInfo]:
        """One row a queue."""
        found: dict[str, QueueInfo] = {}
        for folder in self.queue_folders():
            row = self._queue_info(folder)
            known = found.get(folder.queue)
            found[folder.queue] = row if known is None else _joined(known, row)
        return list(found.values())

    def _queue_info(self, folder: QueueFolder) -> QueueInfo:
        terms = (self.recovery or {}).get(folder.folder)
        bound = terms.next_deliver_seq_id if terms else 0
        messages = unacked = persistent = 0
        for entry in folder.entries(self.problems):
            if entry.acked:
                continue
            if self.was_in_memory(entry):
                self.notes.append(_memory_note(entry))
            else:
                messages += 1
                unacked += entry.seq_id < bound
                persistent += entry.persistent
        held = unacked if terms else None
        count = len(folder.segment_numbers())
        return QueueInfo(folder.queue, folder.vhost or self.vhost, messages, held, persistent, count, folder.version)

    def messages(self, queue: str | None = None, *, include_acked: bool = False) -> Iterator[StoredMessage]:
        """The messages of one queue or of all, in the order a broker would deliver them."""
        for folder in self.queue_folders():
            if queue is None or folder.queue == queue:
                yield from self.messages_in(folder, include_acked=include_acked)

    def messages_in(self, folder: QueueFolder, *, include_acked: bool = False) -> Iterator[StoredMessage]:
        """The messages of one folder by sequence number."""
        terms = (self.recovery or {}).get(folder.folder)
        for entry in folder.entries(self.problems):
            if entry.acked and not include_acked:
                continue
            redelivered = terms is None or entry.seq_id < terms.next_deliver_seq_id or entry.seq_id in terms.delivered
            message = self.message_of(folder, entry, redelivered)
            if message is not None:
                yield message

    def message_of(self, folder: QueueFolder, entry: IndexEntry, redelivered: bool) -> StoredMessage | None:
        """The message of an entry; None, with a problem noted, when it is in no file or damaged."""
        term, file, offset, term_at = entry.term, entry.file, entry.offset, entry.offset
        if term is None:
            found = self._find_stored(entry)
            if found is None:
                if not entry.acked:
                    self._report_missing(entry)
                return None
            term, file, offset = found
            term_at = offset + TERM_AT
        try:
            content = decode_content(term, file=file, base=term_at)
        except StoreCorrupt as error:
            self.problems.append(of_corrupt("bad_term", error))
            return None
        except UnsupportedFormat as error:
            self.problems.append(of_unsupported(error))
            return None
        if not content.vhost:  # a container does not have it
            content = content._replace(vhost=folder.vhost or self.vhost)
        return StoredMessage(
            folder.queue,
            folder.priority,
            entry.seq_id,
            entry.persistent,
            entry.acked,
            redelivered,
            entry.expiry_us,
            entry.size,
            entry.term is not None,
            file,
            offset,
            content,
        )

    def was_in_memory(self, entry: IndexEntry) -> bool:
        """Return whether this is a transient message whose body no file has."""
        if entry.persistent or entry.term is not None:
            return False
        return all(self.stores[name].place(entry.msg_id) is None for name in store_names(entry.persistent))

    def _report_missing(self, entry: IndexEntry) -> None:
        if self.was_in_memory(entry):
            self.notes.append(_memory_note(entry))
        else:
            wrong = Problem(entry.file, entry.offset, "message_lost", f"message {entry.msg_id.hex()}", "in no store")
            self.problems.append(wrong)

    def _find_stored(self, entry: IndexEntry) -> tuple[bytes, str, int] | None:
        """(term, file, offset) from the store that has it."""
        for name in store_names(entry.persistent):
            store = self.stores[name]
            place = store.place(entry.msg_id)
            term = store.term(*place) if place is not None else None
            if place is not None and term is None:  # moved by a collector since the scan
                store.forget()
                place = store.place(entry.msg_id)
                term = store.term(*place) if place is not None else None
            if place is not None and term is not None:
                return term, f"{name}/{place[0]}.rdq", place[1].offset
        return None

    def has_message(self, msg_id: bytes) -> bool:
        """Return whether a message store has this id, in what an interrupted compaction left too."""
        if any(store.place(msg_id) is not None for store in self.stores.values()):
            return True
        left = ((store, number) for store in self.stores.values() for number in numbers_in(self.disk, store.path, "rdt"))
        return any(msg_id in store.salvageable(number) for store, number in left)

    def close(self) -> None:
        """Give the descriptors back."""
        for store in self.stores.values():
            store.close()


def _memory_note(entry: IndexEntry) -> Problem:
    found = "in no file: it was only in the server's memory, and the server drops it at its next start"
    return Problem(entry.file, entry.offset, "transient_in_memory", f"message {entry.msg_id.hex()}", found)


def _joined(left: QueueInfo, right: QueueInfo) -> QueueInfo:
    unacked = None if left.unacked is None and right.unacked is None else (left.unacked or 0) + (right.unacked or 0)
    return left._replace(
        messages=left.messages + right.messages,
        unacked=unacked,
        persistent=left.persistent + right.persistent,
        segments=left.segments + right.segments,
    )


def shows_larger_segments(disk: Disk, path: str, entries: int) -> bool:
    """Whether the index files are of a virtual host with larger segments than `entries`, beyond doubt.

    A segment must read to its end as the largest one, and have several whole entries with higher relative numbers.  Only
    those files are read whose first or last entry is so high: the server writes the highest number first, we write it last.
    """
    above = f"{path}/{layout.QUEUES_FOLDER}"
    if entries >= layout.SEGMENT_ENTRIES_MAX or disk.stat(above) is None:
        return False
    for folder in disk.list(above):
        with contextlib.suppress(DiskError):  # a queue that is deleted meanwhile; other errors are met by who reads it
            names = disk.list(f"{above}/{folder.name}") if folder.kind is Kind.FOLDER else []
            files = [f"{above}/{folder.name}/{entry.name}" for entry in names if numbered(entry.name, "idx") is not None]
            if any(_ends_beyond(disk, file, entries) and _is_larger_segment(read_all(disk, file), entries) for file in files):
                return True
    return False


def _ends_beyond(disk: Disk, path: str, entries: int) -> bool:
    file = disk.open(path, Mode.READ)
    try:
        size = file.size()
        heads = [file.read(at, layout.SEGMENT_HEAD.size) for at in (0, max(0, size - layout.SEGMENT_HEAD.size))]
    finally:
        file.close()
    numbers = [layout.SEGMENT_HEAD.unpack(head)[0] for head in heads if len(head) == layout.SEGMENT_HEAD.size]
    return any(number & layout.SEGMENT_RELATIVE >= entries for number in numbers)


def _is_larger_segment(data: bytes, entries: int) -> bool:
    problems: list[Problem] = []
    found, end = read_segment(data, 0, layout.SEGMENT_ENTRIES_MAX, "", problems)
    beyond = sum(relative >= entries and entry.delivered for relative, entry in found.items())
    return end == len(data) and not problems and beyond > 1


def guess_segment_entries(disk: Disk, path: str) -> int:
    """The segment size that the files speak for, where `.config` is unusable: a high relative number proves the old one."""
    above = f"{path}/{layout.QUEUES_FOLDER}"
    for entry in disk.list(above) if disk.stat(above) else []:
        if entry.kind is not Kind.FOLDER:
            continue
        folder = QueueFolder(disk, path, entry.name, layout.SEGMENT_ENTRIES_OLD, [])
        for number in folder.segment_numbers() if folder.version == 1 else []:
            if any(relative >= layout.SEGMENT_ENTRIES_NEW for relative in folder.segment(number, [])):
                return layout.SEGMENT_ENTRIES_OLD
    return layout.SEGMENT_ENTRIES_NEW
