"""How a virtual host's folder is opened for writing: what is read, deleted and replayed, in which order.

The folder counts as not cleanly stopped from the moment the clean-stop files are deleted, before anything else changes.
The server's own (`clean.dot`, the tables, `recovery.dets`) are read and deleted as the server does.  Reference counts come
from the queues' indexes; an entry whose message is in no file is acknowledged and named in `Opened.lost`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from storageio import Disk, Kind, StoreCorrupt, UnknownStore, replace_file

from . import layout
from .clean_stop import delete_clean_stop
from .content import is_message
from .entry_cy import IndexEntry
from .folder import VhostFolder, guess_segment_entries, is_vhost_folder
from .names import CONFIG_TEXT, part_name, queue_folder_name, queue_name_text, read_segment_entries
from .own_files import QueueOptions, read_options, write_options
from .paths import read_head
from .problems import Problem
from .queue_folder import QueueFolder
from .queue_index_cy import QueueIndex
from .settings import IndexSettings, RabbitSettings
from .shared_store_cy import SharedStore
from .store_recovery import open_store
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


def create_folder(disk: Disk, path: str, vhost: str, settings: RabbitSettings) -> None:
    """An empty virtual host, as RabbitMQ makes one."""
    disk.make_folder(path)
    for name in (layout.PERSISTENT_FOLDER, layout.TRANSIENT_FOLDER, layout.QUEUES_FOLDER, layout.OWN_FOLDER):
        disk.make_folder(f"{path}/{name}")
    if disk.stat(f"{path}/{layout.VHOST_NAME_FILE}") is None:
        replace_file(disk, f"{path}/{layout.VHOST_NAME_FILE}", vhost.encode())
    if disk.stat(f"{path}/{layout.CONFIG_NAME}") is None:
        replace_file(disk, f"{path}/{layout.CONFIG_NAME}", CONFIG_TEXT % settings.index.segment_entries)


def open_for_writing(disk: Disk, path: str, settings: RabbitSettings) -> Opened:
    """Recover the folder; the caller holds its lock."""
    if not is_vhost_folder(disk, path):
        raise UnknownStore(f"{path}: not the folder of a RabbitMQ virtual host")
    index_settings = replace(settings.index, segment_entries=_segment_entries(disk, path))
    folder = VhostFolder(path, disk)
    queue_folders = folder.queue_folders()
    refuse_version_2(path, queue_folders)
    terms = folder.recovery or {}
    for problem in folder.problems:
        _LOG.warning("%s: %s at byte %d: %s: expected %s, found %s", path, *problem)
    options = read_options(disk, path)
    folder.close()
    for name in (layout.PERSISTENT_FOLDER, layout.TRANSIENT_FOLDER, layout.QUEUES_FOLDER, layout.OWN_FOLDER):
        disk.make_folder(f"{path}/{name}")
    delete_clean_stop(disk, path)
    _delete_transient_store(disk, path)
    parts = _load_parts(disk, queue_folders, options, terms, index_settings)
    try:
        persistent, lost = _open_persistent(disk, path, settings, parts)
    except BaseException:
        for part in parts:
            part.index.abandon()
        raise
    transient, _ = open_store(disk, f"{path}/{layout.TRANSIENT_FOLDER}", settings.store, {}, is_synced=False)
    known = complete_options(options, parts)
    if known != options:
        write_options(disk, path, known)
    return Opened(folder.vhost, index_settings, persistent, transient, parts, known, lost)


def _segment_entries(disk: Disk, path: str) -> int:
    """From `.config`; when it is unusable nothing is guessed here: opening with the wrong number would scramble queues."""
    text = read_head(disk, f"{path}/{layout.CONFIG_NAME}")
    entries = read_segment_entries(text)
    if entries is None:
        likely = guess_segment_entries(disk, path)
        wanted = f"{{segment_entry_count, N}}., likely N = {likely}"
        raise StoreCorrupt("unusable .config", file=f"{path}/{layout.CONFIG_NAME}", offset=0, expected=wanted, found=text)
    return entries


def refuse_version_2(path: str, folders: list[QueueFolder]) -> None:
    """Version-2 queues are read, not written."""
    for folder in folders:
        if folder.version == 2:
            raise UnknownStore(f"{path}: queue {folder.queue} has a version-2 index, which is only read here")


def _delete_transient_store(disk: Disk, path: str) -> None:
    folder = f"{path}/{layout.TRANSIENT_FOLDER}"
    for entry in disk.list(folder):
        if entry.kind is Kind.FILE:
            disk.delete(f"{folder}/{entry.name}")


def _load_parts(
    disk: Disk,
    folders: list[QueueFolder],
    options: dict[str, QueueOptions],
    terms: dict[str, RecoveryRow],
    settings: IndexSettings,
) -> list[LoadedPart]:
    parts = []
    for folder in folders:
        index = QueueIndex(disk, folder.path, settings)
        if folder.is_half_made or not options.get(folder.queue, QueueOptions()).durable:
            index.delete()
            continue
        part = LoadedPart(folder.queue, folder.priority, index)
        for entry in index.load(lambda entry: entry.persistent, is_whole):
            part.persistent_count += 1
            part.persistent_bytes += entry.size
            if entry.term is None:
                part.stored.append((entry.seq_id, entry.msg_id, entry.size))
        _apply_terms(part, terms.get(folder.folder))
        parts.append(part)
    return parts


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
    return entry.term is None or LOST not in entry.term or is_message(entry.term, entry.msg_id)


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
