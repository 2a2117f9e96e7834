"""A virtual host's folder: its queues, messages and problems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import dropwhile, takewhile
from typing import TYPE_CHECKING, NamedTuple

from storageio import REAL_DISK, Closing, Disk, Kind, StoreCorrupt, UnknownStore, UnsupportedFormat, read_head
from storebytes.finding import Finding, finding_of

from ..files import SMALL_SIZE_MAX, numbers_in, read_if_there
from ..format import layout, tables
from ..format.content import decode_content
from ..format.dets_table import is_closed
from ..format.entry_cy import IndexEntry
from ..format.message import Content
from ..format.names import HASHED, read_queue_name, vhost_folder_name
from ..format.rdq import TERM_AT
from .declared_name import declared_names, part_of_names
from .index_restore import SharedMessage, arrival_ms
from .intact_segment_cy import IntactSegment
from .queue_folder import QueueFolder
from .queue_store import try_content
from .segment_entries import detect_segment_entries
from .store_folder import StoreFolder, store_names
from .stored_message import RabbitMessage

if TYPE_CHECKING:
    from .json_cy import LineWriter

_SIMILAR_MAX = 1000
SEQ_ID_MAX = (1 << 63) - 1


class QueueInfo(NamedTuple):
    """One queue as `ls` shows it; the parts of a priority queue are one queue.

    `messages` counts those that are not acknowledged and have a body, `unacked` those of them that a consumer held (None when
    the stop was not clean), `persistent` those that survive a restart.  `segments` counts index files; `version` is the
    index's.
    """

    queue: str
    vhost: str
    messages: int
    unacked: int | None
    persistent: int
    segments: int
    version: int


def is_vhost_folder(disk: Disk, path: str) -> bool:
    """Return whether `path` looks like a virtual host's folder."""
    names = (*layout.STORE_FOLDERS, layout.QUEUES_FOLDER)
    return any((found := disk.stat(f"{path}/{name}")) is not None and found.kind is Kind.FOLDER for name in names)


def find_vhosts(path: str, disk: Disk = REAL_DISK) -> list[str]:
    """Return the folders of the virtual hosts in a node's data folder, or `path` itself if it is one."""
    if is_vhost_folder(disk, path):
        return [path]
    above = f"{path}/msg_stores/vhosts"
    if disk.stat(above) is None:
        return []
    folders = [f"{above}/{entry.name}" for entry in disk.list(above) if entry.kind is Kind.FOLDER]
    return [folder for folder in folders if is_vhost_folder(disk, folder)]


def find_vhost(path: str, vhost: str | None, disk: Disk = REAL_DISK) -> str:
    """Return the folder of the only virtual host, or of the one called `vhost`; raise `UnknownStore` otherwise."""
    found = find_vhosts(path, disk)
    if vhost is not None:
        found = [folder for folder in found if VhostFolder(folder, disk).vhost == vhost]
    if not found:
        raise UnknownStore(f"{path}: no folder of a RabbitMQ virtual host" + (f" {vhost!r}" if vhost else ""))
    if len(found) > 1:
        names = ", ".join(VhostFolder(folder, disk).vhost for folder in found)
        raise UnknownStore(f"{path}: several virtual hosts, name one of: {names}")
    return found[0]


class VhostFolder(Closing):
    """Queues, messages and tables of one folder.  `problems` collects damage; the rest stays readable.

    `notes` lists messages that are in no file: a killed server had their bodies in memory.  That is not damage: it never
    confirmed them, or they are transient.
    """

    def __init__(self, path: str, disk: Disk = REAL_DISK) -> None:
        """Raise `UnknownStore` when the folder is not that of a virtual host."""
        if not is_vhost_folder(disk, path):
            raise UnknownStore(f"{path}: not the folder of a RabbitMQ virtual host")
        self.disk = disk
        self.path = path
        self.problems: list[Finding] = []
        self.notes: list[Finding] = []
        self._compared = 0
        self.vhost = self._read_name()
        self.stores = {name: StoreFolder(disk, path, name) for name in layout.STORE_FOLDERS}
        self.recovery = self._read_recovery()
        config = read_head(disk, f"{path}/{layout.CONFIG_NAME}", SMALL_SIZE_MAX)
        self.segment_entries, is_right = detect_segment_entries(disk, path, config, self.recovery or {})
        if not is_right:
            expected = f"{{segment_entry_count, {self.segment_entries}}}."
            self.problems.append(Finding(layout.CONFIG_NAME, 0, "bad_config", expected, str(config)[:200]))

    def _read_name(self) -> str:
        """Return the name in `.vhost`, or the one that the names of this folder and of its queues show in its place."""
        text = read_head(self.disk, f"{self.path}/{layout.VHOST_NAME_FILE}", SMALL_SIZE_MAX)
        written = (text or b"").strip(b"\0").decode("utf-8", "replace")
        folder = self.path.rstrip("/").rsplit("/", 1)[-1]
        if written and (vhost_folder_name(written) == folder or not HASHED.fullmatch(folder)):
            return written
        names = ["", "/", *self._vhosts_of_queues()]
        found = next((name for name in names if vhost_folder_name(name) == folder), written or names[-1])
        if text is not None and found != written:
            self.problems.append(Finding(layout.VHOST_NAME_FILE, 0, "bad_vhost_name", found, written))
        return found

    def _vhosts_of_queues(self) -> Iterator[str]:
        for name in self._queue_folder_names():
            text = read_head(self.disk, f"{self.path}/{layout.QUEUES_FOLDER}/{name}/{layout.QUEUE_NAME_FILE}", SMALL_SIZE_MAX)
            if (found := read_queue_name(text or b"", name)) is not None:
                yield found[0]

    def _read_recovery(self) -> dict[str, tables.RecoveryRow] | None:
        """Return the terms of the last clean stop; None without one, so that every message counts as redelivered."""
        try:
            data = read_if_there(self.disk, f"{self.path}/{layout.RECOVERY_NAME}")
            if data is None:
                return None
            if not self._has_mark() and not is_closed(data):  # a server runs or was killed
                return None
            found = tables.read_recovery(data, layout.RECOVERY_NAME)
        except (StoreCorrupt, UnsupportedFormat) as error:
            self.problems.append(finding_of(error, "bad_recovery_terms"))
            return None
        return found if found or self._has_mark() else None  # a running server empties the table first

    @property
    def is_clean(self) -> bool:
        """Whether the clean-stop files of the last stop are there."""
        return self.recovery is not None and self._has_mark()

    def _has_mark(self) -> bool:
        return self.disk.stat(f"{self.path}/{layout.PERSISTENT_FOLDER}/{layout.CLEAN_NAME}") is not None

    def queue_folders(self) -> list[QueueFolder]:
        """Return every queue's folder, by name; the parts of a priority queue from the highest priority down."""
        settings = self.segment_entries, self.problems, self.has_message, self
        found = [QueueFolder(self.disk, self.path, name, *settings) for name in self._queue_folder_names()]
        return sorted(found, key=lambda folder: (folder.queue, -1 if folder.priority is None else -folder.priority))

    def _queue_folder_names(self) -> list[str]:
        above = f"{self.path}/{layout.QUEUES_FOLDER}"
        return [entry.name for entry in self.disk.list(above) if entry.kind is Kind.FOLDER] if self.disk.stat(above) else []

    def queues(self) -> list[QueueInfo]:
        """Return one row per queue."""
        found: dict[str, QueueInfo] = {}
        for folder in self.queue_folders():
            row = self.queue_info(folder)
            known = found.get(folder.queue)
            found[folder.queue] = row if known is None else _merged(known, row)
        return list(found.values())

    def queue_info(self, folder: QueueFolder) -> QueueInfo:
        """Return the row of one folder: for a priority queue, of a part."""
        terms = (self.recovery or {}).get(folder.folder)
        bound = terms.next_deliver_seq_id if terms else 0
        messages = unacked = persistent = 0
        for part in folder.counted(self.problems):
            if isinstance(part, IntactSegment) and bound is not None and not part.lowest < bound <= part.highest:
                messages += part.messages
                unacked += part.messages if part.highest < bound else 0
                persistent += part.persistent
                continue
            for entry in part.entries() if isinstance(part, IntactSegment) else part:
                if entry.acked:
                    continue
                if self.was_in_memory(entry):
                    self.notes.append(_memory_note(entry))
                else:
                    messages += 1
                    unacked += entry.delivered if bound is None else entry.seq_id < bound
                    persistent += entry.persistent
        held = unacked if terms else None
        count = len(folder.segment_numbers())
        return QueueInfo(folder.queue, folder.vhost or self.vhost, messages, held, persistent, count, folder.version)

    def messages(
        self, queue: str | None = None, *, include_acked: bool = False, start: int = 0, stop: int | None = None
    ) -> Iterator[RabbitMessage]:
        """Yield the messages of one queue or of all, in the order in which a broker would deliver them.

        `start` and `stop` select a range of sequence numbers in each queue.
        """
        for folder in self.queue_folders():
            if queue is None or folder.queue == queue:
                end = SEQ_ID_MAX if stop is None else stop
                yield from self.messages_in(folder, include_acked=include_acked, start=start, stop=end)

    def messages_in(
        self, folder: QueueFolder, *, include_acked: bool = False, start: int = 0, stop: int = SEQ_ID_MAX
    ) -> Iterator[RabbitMessage]:
        """Yield the messages of one queue folder by sequence number, from `start` to before `stop`; others are not read."""
        entries = folder.entries(self.problems, start)
        if start > 0:
            entries = dropwhile(lambda entry: entry.seq_id < start, entries)
        if stop < SEQ_ID_MAX:
            entries = takewhile(lambda entry: entry.seq_id < stop, entries)
        return self.messages_of(folder, entries, include_acked=include_acked)

    def messages_of(
        self, folder: QueueFolder, entries: Iterable[IndexEntry], *, include_acked: bool = False
    ) -> Iterator[RabbitMessage]:
        """Yield the messages of some entries of a queue folder."""
        for entry in entries:
            if entry.acked and not include_acked:
                continue
            message = self.message_of(folder, entry, self._is_redelivered(folder, entry))
            if message is not None:
                yield message

    def lines(self, lines: LineWriter, capacity: int, queue: str | None = None) -> Iterator[RabbitMessage | None]:
        """Write the JSON of most messages, and yield all others, in the order of `messages`.

        The caller adds those, and takes the lines whenever None is yielded: `capacity` bytes are full.
        """
        for folder in self.queue_folders():
            if queue is None or folder.queue == queue:
                yield from self._lines_in(folder, lines, capacity)

    def _lines_in(self, folder: QueueFolder, lines: LineWriter, capacity: int) -> Iterator[RabbitMessage | None]:
        bound = self.redelivered_before(folder)
        owner = folder.queue, folder.vhost or self.vhost
        for part in folder.segments(self.problems):
            if not isinstance(part, IntactSegment) or bound is None:
                for entry in part.entries() if isinstance(part, IntactSegment) else part:
                    yield from self._line(folder, entry, lines, capacity)
                continue
            row = 0
            while row < part.count:
                row = part.write_lines(lines, row, owner, bound, capacity)
                if lines.size >= capacity:
                    yield None
                elif row < part.count:
                    yield from self._line(folder, part.entry(row), lines, capacity)
                    row += 1

    def _line(self, folder: QueueFolder, entry: IndexEntry, lines: LineWriter, capacity: int) -> Iterator[RabbitMessage | None]:
        """Write the line of one entry, or yield its message; then None if `capacity` bytes are full."""
        if entry.acked:
            return
        redelivered = self._is_redelivered(folder, entry)
        found = self.content_of(folder, entry)
        if found is None:
            return
        if not lines.add_entry(entry, found[0], folder.queue, found[1], found[2], redelivered):
            yield _message(folder, entry, redelivered, *found)
        if lines.size >= capacity:
            yield None

    def redelivered_before(self, folder: QueueFolder) -> int | None:
        """Return the sequence number before which all messages are redelivered, and no others; None for any other set."""
        terms = self.recovery.get(folder.folder) if self.recovery else None
        if terms is None:
            return SEQ_ID_MAX
        return None if terms.delivered else terms.next_deliver_seq_id

    def _is_redelivered(self, folder: QueueFolder, entry: IndexEntry) -> bool:
        """Return the flag with which a broker started on this folder delivers a message."""
        terms = self.recovery.get(folder.folder) if self.recovery else None
        if terms is not None and terms.next_deliver_seq_id is None:
            return entry.delivered
        return terms is None or entry.seq_id < (terms.next_deliver_seq_id or 0) or entry.seq_id in terms.delivered

    def message_of(self, folder: QueueFolder, entry: IndexEntry, redelivered: bool) -> RabbitMessage | None:
        """Return the message of an entry; None, with a problem added, when it is in no file or damaged."""
        found = self.content_of(folder, entry)
        return None if found is None else _message(folder, entry, redelivered, *found)

    def content_of(self, folder: QueueFolder, entry: IndexEntry) -> tuple[Content, str, int] | None:
        """Return the content of an entry's message, with its file and offset; None, with a problem added, as `message_of`."""
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
            return decode_content(term, file=file, base=term_at, vhost=folder.vhost or self.vhost), file, offset
        except (StoreCorrupt, UnsupportedFormat) as error:
            self.problems.append(finding_of(error, "bad_term"))
            return None

    def was_in_memory(self, entry: IndexEntry) -> bool:
        """Return whether this is a transient message whose body is in no file."""
        if entry.persistent or entry.term is not None:
            return False
        return all(self.stores[name].locate(entry.msg_id) is None for name in store_names(entry.persistent))

    def _report_missing(self, entry: IndexEntry) -> None:
        if self.was_in_memory(entry):
            self.notes.append(_memory_note(entry))
        else:
            wrong = Finding(entry.file, entry.offset, "message_lost", f"message {entry.msg_id.hex()}", "in no store")
            self.problems.append(wrong)

    def _find_stored(self, entry: IndexEntry) -> tuple[bytes, str, int] | None:
        """Return (term, file, offset) from the store that has the message."""
        for name in store_names(entry.persistent):
            store = self.stores[name]
            for _attempt in range(2):  # a collector may move the record after the scan
                found = store.locate(entry.msg_id)
                if found is None:
                    break
                term = store.term(*found)
                if term is not None:
                    return term, f"{name}/{found[0]}.rdq", found[1].offset
                store.forget()
        return None

    def has_message(self, msg_id: bytes) -> bool:
        """Return whether a message store has this id, unfinished compactions included."""
        if any(store.locate(msg_id) is not None for store in self.stores.values()):
            return True
        left = ((store, number) for store in self.stores.values() for number in numbers_in(self.disk, store.path, "rdt"))
        return any(msg_id in store.compaction_ids(number) for store, number in left)

    def similar_id(self, msg_id: bytes) -> bytes | None:
        """Return the id of a stored message that differs in one byte; None when this id itself is stored, or none is.

        Ids are random, so that no two of them are similar by chance.  Only the first `_SIMILAR_MAX` missing ids are compared.
        """
        if self.has_message(msg_id) or self._compared >= _SIMILAR_MAX:
            return None
        self._compared += 1
        for at in range(len(msg_id)):
            for byte in range(256):
                other = msg_id[:at] + bytes((byte,)) + msg_id[at + 1 :]
                if other != msg_id and any(store.knows(other) for store in self.stores.values()):
                    return other
        return None

    def declared_part(self, folder: str) -> bytes | None:
        """Return the name in the node's metadata that a queue's folder is named after."""
        return part_of_names(self.vhost, folder, self._declared_names)

    @cached_property
    def _declared_names(self) -> list[bytes]:
        return declared_names(self.path, self.vhost, self.disk)

    def without_entry(self, queue: str) -> list[SharedMessage]:
        """Return the messages of the persistent store that were routed to the queue and that no index names."""
        store = self.stores[layout.PERSISTENT_FOLDER]
        named = {msg_id for folder in self.queue_folders() for msg_id in folder.index.named_ids()}
        found = []
        for msg_id, (number, record) in list(store.locations.items()):
            term = store.term(number, record) if msg_id not in named else None
            content = None if term is None else try_content(term)
            if term is not None and content is not None and queue in content.routing_keys and content.persistent:
                found.append(SharedMessage(msg_id, arrival_ms(term), len(content.body)))
        return found

    def is_in_persistent_store(self, msg_id: bytes) -> bool:
        """Return whether the persistent store, and not the transient one, has the message."""
        persistent, transient = (self.stores[name].locate(msg_id) is not None for name in layout.STORE_FOLDERS)
        return persistent and not transient

    def lacks_entries(self, folder: str, number: int, count: int) -> bool:
        """Return whether the last stop was clean, and left more than `count` entries in a segment of a queue's folder.

        A stop deletes a segment without entries.  So where its terms are lost, one that has none shows a loss.
        """
        terms = (self.recovery or {}).get(folder)
        return terms.segments.get(number, 0) > count if terms is not None else not count and self.was_stopped(folder)

    @property
    def has_terms(self) -> bool:
        """Whether the terms of the last clean stop can be read."""
        return self.recovery is not None

    def was_stopped(self, folder: str) -> bool:
        """Return whether the last stop was clean, and the queue of a folder had not crashed before it."""
        if self.recovery is None or tables.shares_a_row(self.recovery):
            return self._has_mark()
        return folder in self.recovery

    def close(self) -> None:
        """Close the message files."""
        for store in self.stores.values():
            store.close()


def _memory_note(entry: IndexEntry) -> Finding:
    found = "in no file: it was only in the server's memory, and the server drops it at its next start"
    return Finding(entry.file, entry.offset, "transient_in_memory", f"message {entry.msg_id.hex()}", found)


def _merged(left: QueueInfo, right: QueueInfo) -> QueueInfo:
    unacked = None if left.unacked is None and right.unacked is None else (left.unacked or 0) + (right.unacked or 0)
    return left._replace(
        messages=left.messages + right.messages,
        unacked=unacked,
        persistent=left.persistent + right.persistent,
        segments=left.segments + right.segments,
    )


def _message(
    folder: QueueFolder, entry: IndexEntry, redelivered: bool, content: Content, file: str, offset: int
) -> RabbitMessage:
    return RabbitMessage(  # in the order of the fields: a call by name takes three times as long
        folder.queue, folder.priority, entry.seq_id, entry.persistent, entry.acked, redelivered, entry.expiry_us, entry.size,
        entry.term is not None, file, offset, content,
    )  # fmt: skip
