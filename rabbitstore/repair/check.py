"""`verify`: check every file of a virtual host's folder and report every problem, without changing anything.

docs/formats/rabbitmq-damage.md lists the kinds of problems.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from storageio import REAL_DISK, Disk, misplaced
from storebytes.finding import UNSUPPORTED, Finding, note

from ..files import numbers_in
from ..format import layout, tables
from ..format.entry_cy import IndexEntry
from ..format.rdq import StoreRecord
from ..read.intact_segment_cy import IntactSegment
from ..read.queue_folder import QueueFolder
from ..read.store_folder import StoreFolder, store_names
from ..read.table_check import (
    check_clients,
    check_locations,
    check_summary,
    crashed_clients,
    read_tables,
    referenced_ends,
    valid_bytes,
)
from ..read.unsupported import unknown_parts
from ..read.vhost_folder import VhostFolder

Progress = Callable[[int], None]
_RECORD_KINDS = {"bad_term", "wrong_term_id"}


@dataclass
class Checked:
    """The result of `verify`.

    `notes` are not damage: unsupported formats, which were not checked, and `VhostFolder.notes`.  `lost` are index entries
    whose message is in no file or damaged, `bad_records` damaged records that an entry refers to, `found_past_damage` whole
    records that a scan does not reach, `salvaged` the ids and terms of damaged records by their offset, `compaction_ids` the
    messages of unfinished compactions, which are not lost.  `queue_names` has the queue of each folder, `unindexed` the number
    of messages by queue that a witness counts and no index has.
    """

    problems: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    queues: int = 0
    messages: int = 0
    records: int = 0
    files: int = 0
    lost: list[tuple[QueueFolder, IndexEntry]] = field(default_factory=list)
    bad_records: dict[str, set[int]] = field(default_factory=dict)
    found_past_damage: dict[str, list[StoreRecord]] = field(default_factory=dict)
    salvaged: dict[str, dict[int, tuple[bytes, bytes]]] = field(default_factory=dict)
    compaction_ids: set[bytes] = field(default_factory=set)
    segment_entries: int = layout.SEGMENT_ENTRIES_NEW
    queue_names: dict[str, str] = field(default_factory=dict)
    unindexed: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether everything was checked and is intact."""
        return not self.problems and all(note.kind != UNSUPPORTED for note in self.notes)

    def lost_by_queue(self) -> dict[str, int]:
        """Return the number of lost messages by queue: entries without a message, and messages without an entry."""
        lost = {(entry.file, entry.offset): queue.queue for queue, entry in self.lost}
        for one in self.problems:  # entries of version 2 whose own file lacks the message are not read
            if one.kind == "message_lost":
                lost.setdefault((one.file, one.offset), self.queue_names.get(one.file.rpartition("/")[0], one.file))
        counts = dict(self.unindexed)
        for name in lost.values():
            counts[name] = counts.get(name, 0) + 1
        return counts

    def to_json(self) -> dict[str, Any]:
        """Return the object that the tool prints."""
        counts = {"queues": self.queues, "messages": self.messages, "records": self.records, "files": self.files}
        lists = {name: [one.as_dict() for one in found] for name, found in (("problems", self.problems), ("notes", self.notes))}
        return {"ok": self.ok, **lists, **counts}


def verify(path: str, disk: Disk = REAL_DISK, progress: Progress | None = None) -> Checked:
    """Check a virtual host's folder; `progress` is called with the number of bytes checked since its last call."""
    advance = progress or (lambda _bytes: None)
    folder = VhostFolder(path, disk)
    found = Checked(segment_entries=folder.segment_entries)
    counts: dict[bytes, int] = {}
    try:
        for store in folder.stores.values():
            _check_store_files(store, found, advance)
        for queue in folder.queue_folders():
            found.queues += 1
            _check_queue(folder, queue, found, counts)
            advance(queue.size_bytes())
        _check_terms_alone(folder, found)
        for store in folder.stores.values():
            _check_tables(folder, store, found, counts)
            for number, records in store.found_past_damage.items():
                found.found_past_damage[f"{store.name}/{number}.rdq"] = records
            found.salvaged |= {f"{store.name}/{number}.rdq": terms for number, terms in store.salvaged.items()}
            found.problems += store.problems
    finally:
        folder.close()
    found.problems += strange_sidecars(disk, path)
    everything = dict.fromkeys((*folder.problems, *found.problems, *unknown_parts(folder)))
    found.problems = [problem for problem in everything if problem.kind != UNSUPPORTED]
    found.notes = [
        *dict.fromkeys((*folder.notes, *found.notes)),
        *(problem for problem in everything if problem.kind == UNSUPPORTED),
    ]
    return found


def strange_sidecars(disk: Disk, path: str) -> list[Finding]:
    """Report symlinks and folders in place of sidecar files."""
    strange = misplaced.find(disk, f"{path}/{layout.SIDECAR_FOLDER}", layout.SIDECAR_FILES)
    return [
        Finding(one.path.removeprefix(f"{path}/"), 0, "strange_sidecar", one.expected_text, one.found_text) for one in strange
    ]


def size_bytes(path: str, disk: Disk = REAL_DISK) -> int:
    """Return the size of all message and index files, the total of `verify`'s progress calls."""
    with closing(VhostFolder(path, disk)) as folder:
        stored = sum(store.size_of(number) for store in folder.stores.values() for number in store.file_numbers())
        return stored + sum(queue.size_bytes() for queue in folder.queue_folders())


def _check_store_files(store: StoreFolder, found: Checked, advance: Progress) -> None:
    for number in store.file_numbers():
        found.files += 1
        found.records += len(store.scan(number, found.problems).records)
        advance(store.size_of(number))
    for number in numbers_in(store.disk, store.path, "rdt"):
        file = f"{store.name}/{number}.rdt"
        found.problems.append(Finding(file, 0, "unfinished_compaction", "no such file", "a salvaged tail"))
        found.compaction_ids |= store.compaction_ids(number)


def _check_queue(folder: VhostFolder, queue: QueueFolder, found: Checked, counts: dict[bytes, int]) -> None:
    terms = (folder.recovery or {}).get(queue.folder)
    unacked: dict[int, int] = {}
    highest = -1
    found.files += len(queue.segment_numbers())
    found.queue_names[queue.relative] = queue.queue
    entries = queue.segment_entries
    unread = _count_unsupported(found)
    for part in queue.counted(found.problems):
        if isinstance(part, IntactSegment):
            highest = max(highest, part.highest)
            found.messages += part.messages
            if part.messages:
                unacked[part.highest // entries] = part.messages
            continue
        for entry in part:
            highest = entry.seq_id
            if entry.acked:
                continue
            unacked[entry.seq_id // entries] = unacked.get(entry.seq_id // entries, 0) + 1
            if entry.term is None and entry.persistent:
                counts[entry.msg_id] = counts.get(entry.msg_id, 0) + 1
            _check_message(folder, queue, entry, found)
    if terms is not None and _count_unsupported(found) == unread:
        _check_terms(queue, terms, highest, unacked, found)


def _count_unsupported(found: Checked) -> int:
    return sum(problem.kind == UNSUPPORTED for problem in found.problems)


def _check_message(folder: VhostFolder, queue: QueueFolder, entry: IndexEntry, found: Checked) -> None:
    message = folder.content_of(queue, entry)
    if message is None and folder.was_in_memory(entry):
        return
    found.messages += 1
    if message is None:
        last = folder.problems[-1]
        if last.kind == UNSUPPORTED:
            return
        if entry.msg_id not in found.compaction_ids:
            found.lost.append((queue, entry))
        elif last.kind == "message_lost":
            folder.problems.pop()  # the unfinished compaction is reported instead
        if last.kind in _RECORD_KINDS and last.file.endswith(".rdq"):
            found.bad_records.setdefault(last.file, set()).update(_offset(folder, entry))
        return
    content, file, offset = message
    if entry.msg_id and content.msg_id != entry.msg_id:
        found.problems.append(Finding(file, offset, "wrong_term_id", entry.msg_id.hex(), content.msg_id.hex()))


def _offset(folder: VhostFolder, entry: IndexEntry) -> list[int]:
    """Return the offset of its record in the first store that has it."""
    stores = (folder.stores[name].locations for name in store_names(entry.persistent))
    return [known[entry.msg_id][1].offset for known in stores if entry.msg_id in known][:1]


def _check_terms(queue: QueueFolder, terms: tables.RecoveryRow, highest: int, unacked: dict[int, int], found: Checked) -> None:
    """Compare the terms of the clean stop with the index."""
    if terms.next_seq_id is not None and terms.next_seq_id <= highest:
        bad = Finding(layout.RECOVERY_NAME, 0, "bad_recovery_terms", f"next_seq_id above {highest}", str(terms.next_seq_id))
        found.problems.append(bad)
    known = {number: count for number, count in terms.segments.items() if count}
    missing = sum(max(0, count - unacked.get(number, 0)) for number, count in known.items())
    missing -= sum(one.kind == "message_lost" and one.file.startswith(f"{queue.relative}/") for one in found.problems)
    if missing > 0:
        found.unindexed[queue.queue] = found.unindexed.get(queue.queue, 0) + missing
    if terms.segments and known != unacked:
        bad = Finding(layout.RECOVERY_NAME, 0, "bad_recovery_terms", f"{queue.folder}: {unacked}", str(known))
        found.problems.append(bad)


def _check_terms_alone(folder: VhostFolder, found: Checked) -> None:
    """Report terms of a clean stop that count messages of a queue whose folder is gone."""
    for name, terms in (folder.recovery or {}).items():
        count = sum(terms.segments.values())
        if name and count and f"{layout.QUEUES_FOLDER}/{name}" not in found.queue_names:
            found.unindexed[name] = found.unindexed.get(name, 0) + count
            expected = f"{layout.QUEUES_FOLDER}/{name}, with {count} messages"
            found.problems.append(Finding(layout.RECOVERY_NAME, 0, "bad_recovery_terms", expected, "no such folder"))


def _check_tables(folder: VhostFolder, store: StoreFolder, found: Checked, counts: dict[bytes, int]) -> None:
    """Check the clean-stop files, each on its own and against the files that it describes."""
    is_persistent = store.name == layout.PERSISTENT_FOLDER
    read = read_tables(store, found.problems)
    if read.mark is not None and is_persistent and folder.recovery is not None:
        crashed = crashed_clients(read.mark, folder.recovery)
        nameless = sum(queue.folder not in folder.recovery for queue in folder.queue_folders())
        if crashed and nameless <= crashed:  # a queue that failed to start again has no terms
            file = f"{store.name}/{layout.CLEAN_NAME}"
            more = f"{crashed} more, of queues that crashed; the server makes the tables again"
            found.notes.append(note(file, 0, "crashed_queue", "the references of all queues", more))
            return
        check_clients(store, read.mark, folder.recovery, found.problems)
    locations = None if read.locations is None else sorted(map(tables.LocationRow._make, read.locations))
    is_later = read.mark is not None and not read.mark.index_module
    if read.summary is not None:
        valid, ends = (None, None) if locations is None else (valid_bytes(locations), referenced_ends(locations))
        check_summary(store, read.summary, valid, found.problems, ends=ends if is_later else None)
    if locations is not None:
        known = counts if is_persistent and not _count_unsupported(found) else None  # unless a queue was not read in full
        check_locations(store, locations, known, found.problems, may_be_more=is_later)
