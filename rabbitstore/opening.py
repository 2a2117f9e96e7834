"""How a virtual host's folder is opened for writing: what is read, deleted and replayed, in which order.

The clean-stop files (ours or the server's: `clean.dot`, the tables, `recovery.dets`) are read, then deleted; from there on the
folder counts as not cleanly stopped, before anything else changes.  If they fit the files, the store goes on where they say:
no message file is read, and of each index only its ends and what the journal touches.  Otherwise what does not fit is named in
`Opened.problems` and everything is read: reference counts come from the queues' indexes, places from a scan, and an entry
whose message is in no file is acknowledged and named in `Opened.lost`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from storageio import Disk, Kind, StoreCorrupt, replace_file

from . import layout
from .clean_stop import CleanStop, delete_clean_stop, read_clean_stop
from .content import is_message
from .entry_cy import IndexEntry
from .folder import VhostFolder
from .names import CONFIG_TEXT, part_name, queue_folder_name, queue_name_text
from .own_files import QueueOptions, read_options, write_options
from .problems import Problem
from .queue_folder import QueueFolder
from .queue_index_cy import QueueIndex
from .settings import IndexSettings, RabbitSettings
from .shared_store_cy import SharedStore
from .store_recovery import open_store, resume_store
from .tables import RecoveryRow

_LOG = logging.getLogger("brokerstore")


LOST = bytes(64)  # a sector that never reached the disk leaves more


@dataclass
class LoadedPart:
    """One queue folder with its replayed index."""

    queue: str
    priority: int | None
    index: QueueIndex
    next_deliver_seq_id: int | None = None  # None: nobody knows what was delivered
    stored: list[tuple[int, bytes, int]] = field(default_factory=list)  # (sequence number, id, size) of entries not embedded
    persistent_count: int = 0
    persistent_bytes: int = 0


@dataclass
class Opened:
    """All that `RabbitStore` goes on with."""

    vhost: str
    index_settings: IndexSettings
    persistent: SharedStore
    transient: SharedStore
    parts: list[LoadedPart]
    options: dict[str, QueueOptions]
    lost: list[Problem]
    problems: list[Problem]  # of the folder as it was found
    is_resumed: bool  # where the clean-stop files said, without a scan


def create_folder(disk: Disk, path: str, vhost: str, settings: RabbitSettings) -> None:
    """An empty virtual host, as RabbitMQ makes one."""
    disk.make_folder(path)
    for name in (layout.PERSISTENT_FOLDER, layout.TRANSIENT_FOLDER, layout.QUEUES_FOLDER, layout.OWN_FOLDER):
        disk.make_folder(f"{path}/{name}")
    replace_file(disk, f"{path}/{layout.VHOST_NAME_FILE}", vhost.encode())
    replace_file(disk, f"{path}/{layout.CONFIG_NAME}", CONFIG_TEXT % settings.index.segment_entries)


def open_for_writing(disk: Disk, path: str, settings: RabbitSettings) -> Opened:
    """Recover the folder; the caller holds its lock."""
    folder = VhostFolder(path, disk)
    _refuse_wrong_config(folder)
    index_settings = replace(settings.index, segment_entries=folder.segment_entries)
    queue_folders = folder.queue_folders()
    problems: list[Problem] = []
    clean = read_clean_stop(folder, problems)
    options = read_options(disk, path)
    folder.close()
    for name in (layout.PERSISTENT_FOLDER, layout.TRANSIENT_FOLDER, layout.QUEUES_FOLDER, layout.OWN_FOLDER):
        disk.make_folder(f"{path}/{name}")
    delete_clean_stop(disk, path)
    _delete_transient_store(disk, path)
    found = None
    if clean is not None:
        found = _resume(disk, folder, queue_folders, options, clean, replace(settings, index=index_settings), problems)
    problems = [*folder.problems, *problems]
    for problem in problems:
        _LOG.warning("%s: %s at byte %d: %s: expected %s, found %s", path, *problem)
    lost: list[Problem] = []
    if found is not None:
        persistent, parts = found
    else:
        parts = _load_parts(disk, folder, queue_folders, options, index_settings)
        folder.close()
        persistent, lost = _scan_persistent(disk, path, settings, parts)
    transient, _ = open_store(disk, f"{path}/{layout.TRANSIENT_FOLDER}", settings.store, {}, is_synced=False)
    known = complete_options(options, parts)
    if known != options:
        write_options(disk, path, known)
    return Opened(folder.vhost, index_settings, persistent, transient, parts, known, lost, problems, found is not None)


def _refuse_wrong_config(folder: VhostFolder) -> None:
    """When `.config` is unusable or cannot be true, nothing is guessed: opening with the wrong number would scramble queues."""
    for problem in folder.problems:
        if problem.kind == "bad_config":
            file = f"{folder.path}/{problem.file}"
            wanted = f"{{segment_entry_count, N}}., likely N = {folder.segment_entries}"
            raise StoreCorrupt("unusable .config", file=file, offset=0, expected=wanted, found=problem.found)


def _delete_transient_store(disk: Disk, path: str) -> None:
    folder = f"{path}/{layout.TRANSIENT_FOLDER}"
    for entry in disk.list(folder):
        if entry.kind is Kind.FILE:
            disk.delete(f"{folder}/{entry.name}")


def _load_parts(
    disk: Disk, vhost: VhostFolder, folders: list[QueueFolder], options: dict[str, QueueOptions], settings: IndexSettings
) -> list[LoadedPart]:
    parts = []
    for folder in folders:
        index = QueueIndex(disk, folder.path, settings)
        if _is_dropped(folder, options):
            index.delete()
            continue
        part = LoadedPart(folder.queue, folder.priority, index)
        for entry in index.load(is_persistent, is_whole, vhost.has_message):
            part.persistent_count += 1
            part.persistent_bytes += entry.size
            if entry.term is None:
                part.stored.append((entry.seq_id, entry.msg_id, entry.size))
        _apply_terms(part, (vhost.recovery or {}).get(folder.folder))
        parts.append(part)
    return parts


def _resume(
    disk: Disk,
    vhost: VhostFolder,
    folders: list[QueueFolder],
    options: dict[str, QueueOptions],
    clean: CleanStop,
    settings: RabbitSettings,
    problems: list[Problem],
) -> tuple[SharedStore, list[LoadedPart]] | None:
    """Everything as the clean stop left it; None when a queue is not, and then `problems` says which."""
    kept = [folder for folder in folders if not _is_dropped(folder, options)]
    parts: list[LoadedPart] = []
    try:
        strange = _resume_parts(disk, vhost, kept, clean.terms, settings.index, parts)
        if strange is None:
            for folder in folders:
                if _is_dropped(folder, options):
                    QueueIndex(disk, folder.path, settings.index).delete()
            return resume_store(disk, f"{vhost.path}/{layout.PERSISTENT_FOLDER}", settings.store, clean), parts
    except BaseException:
        _abandon(parts)
        raise
    _abandon(parts)
    problems.append(Problem(layout.RECOVERY_NAME, 0, "bad_recovery_terms", f"what queue {strange} holds", "something else"))
    return None


def _resume_parts(
    disk: Disk,
    vhost: VhostFolder,
    folders: list[QueueFolder],
    terms: dict[str, RecoveryRow],
    settings: IndexSettings,
    parts: list[LoadedPart],
) -> str | None:
    """Collect the queues; the folder of the first whose index and terms do not fit each other."""
    named = {folder.folder for folder in folders}
    gone = next((row.folder for row in terms.values() if row.persistent_count and row.folder not in named), None)
    if gone is not None:
        return gone
    for folder in folders:
        part = _resume_part(disk, vhost, folder, terms.get(folder.folder), settings)
        if part is None:
            return folder.folder
        parts.append(part)
    return None


def _abandon(parts: list[LoadedPart]) -> None:
    for part in parts:
        part.index.abandon()


def _is_dropped(folder: QueueFolder, options: dict[str, QueueOptions]) -> bool:
    """Half made, or of a queue that does not survive a restart."""
    return folder.is_half_made or not options.get(folder.queue, QueueOptions()).durable


def _resume_part(
    disk: Disk, vhost: VhostFolder, folder: QueueFolder, row: RecoveryRow | None, settings: IndexSettings
) -> LoadedPart | None:
    """One queue with the numbers that its terms have; None when its index does not fit them."""
    if row is None:
        return None
    index = QueueIndex(disk, folder.path, settings)
    part = LoadedPart(folder.queue, folder.priority, index, row.next_deliver_seq_id)
    part.persistent_count, part.persistent_bytes = row.persistent_count, row.persistent_bytes
    if row.persistent_count == sum(row.segments.values()):
        fits = index.resume(row.segments, row.next_seq_id, is_persistent, vhost.has_message)
    else:  # transient messages are in it, which do not survive: all is read to find them
        fits = sum(1 for _ in index.load(is_persistent, is_whole, vhost.has_message)) == row.persistent_count
        fits = fits and index.next_seq_id <= row.next_seq_id
        index.next_seq_id = row.next_seq_id
    if not fits:
        index.abandon()
        return None
    return part


def is_persistent(entry: IndexEntry) -> bool:
    """Whether it survives a restart."""
    return entry.persistent


def _apply_terms(part: LoadedPart, row: RecoveryRow | None) -> None:
    """What the last stop noted, unless somebody has changed the index since."""
    if row is None or (row.persistent_count, row.next_seq_id) != (
        part.persistent_count,
        max(row.next_seq_id, part.index.next_seq_id),
    ):
        return
    part.index.next_seq_id = row.next_seq_id
    part.next_deliver_seq_id = row.next_deliver_seq_id


def is_whole(entry: IndexEntry) -> bool:
    """Whether an embedded message was written to its end, as far as that can be told: one with zeros in it must be a message.

    A message that was damaged otherwise is no torn write: whoever fetches it is told.
    """
    term = entry.term
    if term is None or not (LOST in term or term.startswith(b"\0") or term.endswith(b"\0")):
        return True
    return is_message(term, entry.msg_id)


def _scan_persistent(
    disk: Disk, path: str, settings: RabbitSettings, parts: list[LoadedPart]
) -> tuple[SharedStore, list[Problem]]:
    """The message store by a scan of its files; the indexes are given back when that fails."""
    try:
        return _open_persistent(disk, path, settings, parts)
    except BaseException:
        _abandon(parts)
        raise


def _open_persistent(
    disk: Disk, path: str, settings: RabbitSettings, parts: list[LoadedPart]
) -> tuple[SharedStore, list[Problem]]:
    counts: dict[bytes, int] = {}
    for part in parts:
        for _seq_id, msg_id, _size in part.stored:
            counts[msg_id] = counts.get(msg_id, 0) + 1
    store, missing = open_store(disk, f"{path}/{layout.PERSISTENT_FOLDER}", settings.store, counts)
    lost = []
    for part in parts:
        gone = [entry for entry in part.stored if entry[1] in missing] if missing else []
        part.index.acknowledge(seq_id for seq_id, _, _ in gone)
        if gone:  # for good: or the next reader of the folder calls it damage that these are in no file
            part.index.flush()
        part.persistent_count -= len(gone)
        part.persistent_bytes -= sum(size for _, _, size in gone)
        lost += [Problem(part.index.folder, seq_id, "message_lost", msg_id.hex(), "in no file") for seq_id, msg_id, _ in gone]
        part.stored.clear()
    return store, lost


def complete_options(options: dict[str, QueueOptions], parts: list[LoadedPart]) -> dict[str, QueueOptions]:
    """The declared options, and what the folders themselves say of queues that somebody else made."""
    known = {name: declared for name, declared in options.items() if declared.durable}
    for part in parts:
        declared = known.get(part.queue, QueueOptions())
        known[part.queue] = replace(declared, max_priority=max(declared.max_priority, part.priority or 0))
    return known


def make_index(disk: Disk, path: str, vhost: str, queue: str, priority: int | None, settings: IndexSettings) -> QueueIndex:
    """The index of a new queue; its folder and name file are there afterwards."""
    name = part_name(queue, priority)
    folder = f"{path}/{layout.QUEUES_FOLDER}/{queue_folder_name(vhost, name)}"
    disk.make_folder(folder)
    replace_file(disk, f"{folder}/{layout.QUEUE_NAME_FILE}", queue_name_text(vhost, name))
    return QueueIndex(disk, folder, settings)
