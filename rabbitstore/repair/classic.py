"""Plan the repair of a virtual host's classic queues.

The first step deletes the clean-stop files, so that the next opening rebuilds what they say.  Each other step replaces one
file atomically, keeps the old bytes in `brokerstore/cut/`, and can be repeated after an interruption.  Nothing readable is
dropped: a damaged record or entry costs only itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial

from storageio import REAL_DISK, Disk, Mode, UnsupportedFormat, misplaced, replace_file
from storebytes.finding import UNSUPPORTED, Finding, finding_of
from storebytes.plan import FREE, LATER_VERSION, Cost, Plan, Step

from ..files import numbers_in, read_all, read_if_there
from ..folder_lock import lock_folder
from ..format import layout
from ..format.entry_cy import IndexEntry
from ..format.names import CONFIG_TEXT, queue_name_text
from ..format.rdq import encode_record, scan_records
from ..format.segment_cy import write_segment
from ..read.declared_name import part_of_names
from ..read.index_v1 import IndexV1
from ..read.queue_folder import QueueFolder
from ..read.salvage import read_segment_past_damage, readable_journal
from ..read.unsupported import refuse_unsupported
from ..read.vhost_folder import VhostFolder
from .check import Checked, Progress, strange_sidecars, verify
from .compaction import recover_crashed_compaction
from .index_v2 import rewrite_segment_v2

_UNINDEXED = "unindexed_message"
_INDEX_DAMAGE = (
    _UNINDEXED, "bad_index_entry", "bad_index_head", "torn_index", "lost_index", "message_lost", "bad_message_head",
)  # fmt: skip
STEP_OF = {  # by kind of problem and, where it matters, the file's ending
    ("bad_config", ""): "write_config",
    ("bad_vhost_name", ""): "write_vhost",
    ("bad_queue_name", ""): "write_name",
    ("strange_sidecar", ""): "move_aside",
    ("unfinished_compaction", ""): "salvage",
    ("torn_journal", ""): "cut_journal",
    ("entries_differ", ""): "join_journal",
    ("published_twice", "jif"): "join_journal",
    ("mark_too_many", "jif"): "join_journal",
    ("mark_without_publish", "jif"): "join_journal",
    ("ack_without_delivery", ""): "join_journal",
    ("lost_index", "idx"): "rewrite_segment",
    ("lost_journal", ""): "join_journal",
    **{(kind, "rdq"): "rewrite_records" for kind in ("torn_record", "record_without_end_mark", "bad_term", "bad_record")},
    **{(kind, ""): "rewrite_segment"
       for kind in ("torn_segment", "published_twice", "mark_without_publish", "mark_too_many")},
    **{(kind, ending): "rewrite_index" for kind in _INDEX_DAMAGE for ending in ("qi", "qs")},
    **{(kind, ""): "delete"
       for kind in ("bad_table", "bad_clean_mark", "bad_recovery_terms", "bad_location", "bad_ref_count")},
}  # fmt: skip
_DROPPED_ENTRY = ("message_lost", "bad_term")  # kinds whose entries `drop_entries` acknowledges
_ADVICE = {  # kinds of damage that no step repairs, and what a person can do about them
    "bad_queue_name": "if you know the name of the queue, write it into the file; dump and export read the messages",
    "wrong_term_id": "consumers get the message that is there; export reads it, and the store can be used as it is",
}
_LOCK = f"{layout.SIDECAR_FOLDER}/{layout.LOCK_NAME}"
_CLEAN_STOP = "describes the folder as it was"


@dataclass
class ClassicPlan(Plan):
    """`valid_end` maps a file that is cut to the length of its valid part."""

    valid_end: dict[str, int] = field(default_factory=dict)


class ClassicRepair:
    """The repair of a virtual host's folder; `progress` is called by `verify`."""

    def __init__(
        self, path: str, disk: Disk = REAL_DISK, *, keep_backup: bool = True, progress: Progress | None = None,
        is_alone: bool = True,
    ) -> None:  # fmt: skip
        """Set the folder; nothing is read.

        If it is not `is_alone`, but beside other queues of a node, a format that cannot be repaired is only in the plan.
        """
        self._is_alone = is_alone
        self._path = path
        self._disk = disk
        self._keep_backup = keep_backup
        self._progress = progress

    def prepare(self, stack: ExitStack) -> list[Step]:
        """Run the first steps, and lock the folder until `stack` closes."""
        steps = self.first_steps()
        for step in steps:
            step.run()
        stack.callback(lock_folder(self._disk, self._path).release)
        return steps

    def first_steps(self) -> list[Step]:
        """Return what runs before the folder can be locked: what is no lock file, which nobody can hold, is moved aside."""
        return [
            Step("move_aside", one.file, one.kind, partial(_move_aside, self._disk, self._path, one.file))
            for one in strange_sidecars(self._disk, self._path)
            if one.file in (layout.SIDECAR_FOLDER, _LOCK)
        ]

    def plan(self) -> ClassicPlan:
        """Verify the folder and plan, without changing anything.

        Raise `UnsupportedFormat` for a folder with data of an unknown format.
        """
        try:
            refuse_unsupported(self._path, self._disk, for_repair=True)
        except UnsupportedFormat as error:
            if self._is_alone:
                raise
            found = ClassicPlan(self._path)
            found.leave([finding_of(error, "")], LATER_VERSION)
            return found
        checked = verify(self._path, self._disk, self._progress)
        found = ClassicPlan(self._path, findings=checked.problems, lost_by_queue=checked.lost_by_queue())
        found.messages_lost = sum(found.lost_by_queue.values())
        found.messages_kept = checked.messages - len(checked.lost)
        steps = _Steps(self._path, self._disk, checked, found, self._keep_backup)
        for problem in checked.problems:
            steps.add_for(problem)
        for queue in dict.fromkeys(queue.relative for queue, _entry in checked.lost):
            steps.add("drop_entries", queue, "message_lost")
        found.steps = steps.in_order()
        found.leave((note for note in checked.notes if note.kind == UNSUPPORTED), LATER_VERSION)
        return found


class _Steps:
    """The steps of one plan while they are collected, each with the reasons for it."""

    def __init__(self, path: str, disk: Disk, checked: Checked, plan: ClassicPlan, keep_backup: bool) -> None:
        self._path = path
        self._disk = disk
        self._checked = checked
        self._plan = plan
        self._keep_backup = keep_backup
        self._reasons: dict[tuple[str, str], dict[str, None]] = {}
        self._bytes_lost: dict[str, int] = {}
        self._names: dict[str, bytes | None] = {}

    def add(self, kind: str, file: str, reason: str) -> None:
        """Add a step, or to an equal one the reason: a second one would see other offsets than `verify` did."""
        self._reasons.setdefault((kind, file), {})[reason] = None

    def add_for(self, problem: Finding) -> None:
        """Add the step that repairs a problem, or leave it to a person."""
        kind, file = problem.kind, problem.file
        step = STEP_OF.get((kind, file.rpartition(".")[2])) or STEP_OF.get((kind, ""))
        if step == "write_name":
            self._names[file] = _found_name(self._disk, self._path, file)
        if (step is None and kind not in _DROPPED_ENTRY) or (step == "write_name" and self._names[file] is None):
            self._plan.leave([problem], _ADVICE.get(kind, "dump and export read the messages that are left"))
            return
        if step is None or file in (layout.SIDECAR_FOLDER, _LOCK):
            return
        if step == "rewrite_records":
            data = read_all(self._disk, f"{self._path}/{file}")
            self._plan.valid_end[file] = scan_records(data, file).valid_end
            self._bytes_lost[file] = len(data) - len(good_records(data, file, self._checked))
        elif step == "cut_journal":
            data = read_all(self._disk, f"{self._path}/{file}")
            self._plan.valid_end[file] = problem.offset
            self._bytes_lost[file] = len(data) - len(readable_journal(data).data)
        elif step == "rewrite_index":
            file = f"{file.rpartition('.')[0]}.qi"
        self.add(step, file, kind)
        journal = f"{file.rpartition('/')[0]}/{layout.JOURNAL_NAME}"
        if step == "rewrite_segment" and read_if_there(self._disk, f"{self._path}/{journal}"):
            self.add("join_journal", journal, kind)  # the server does not join it to a segment with more marks

    def in_order(self) -> list[Step]:
        """Return the steps: what lies in the place of a sidecar, the clean-stop files, then the others as they were found.

        Before the clean-stop files, the indexes are written that only these files show to lack entries.
        """
        asides = [row for row in self._reasons if row[0] == "move_aside"]
        others = [row for row in self._reasons if row[0] != "move_aside"]
        if others:
            gone = [name for name in layout.CLEAN_FILES if self._disk.stat(f"{self._path}/{name}") is not None]
            reasons = {("delete", name): {_CLEAN_STOP: None, **self._reasons.get(("delete", name), {})} for name in gone}
            self._reasons |= reasons
            first = [row for row in others if _UNINDEXED in self._reasons[row]]
            others = list(dict.fromkeys((*first, *reasons, *others)))
        costs = self._costs()
        return [self._step(kind, file, costs.get((kind, file), FREE)) for kind, file in (*asides, *others)]

    def _step(self, kind: str, file: str, cost: Cost) -> Step:
        return Step(kind, file, ", ".join(self._reasons[kind, file]), partial(self._run, kind, file), cost)

    def _run(self, kind: str, file: str) -> str:
        if self._keep_backup:
            _keep_cut(self._disk, self._path, kind, file)
        if kind == "write_name":
            replace_file(self._disk, f"{self._path}/{file}", self._names[file] or b"")
        else:
            STEPS[kind](self._disk, self._path, file, self._checked)
        return ""

    def _costs(self) -> dict[tuple[str, str], Cost]:
        """Return what each step loses: a lost message counts at the step that drops what is left of it."""
        checked = self._checked
        by_step: dict[tuple[str, str], Counter[str]] = {}
        for queue, _entry in checked.lost:
            by_step.setdefault(("drop_entries", queue.relative), Counter())[queue.queue] += 1
        counted = {(entry.file, entry.offset) for _queue, entry in checked.lost}
        for one in dict.fromkeys((one.file, one.offset) for one in checked.problems if one.kind == "message_lost"):
            if one not in counted:
                file = f"{one[0].rpartition('.')[0]}.qi"
                name = checked.queue_names.get(file.rpartition("/")[0], one[0])
                by_step.setdefault(("rewrite_index", file), Counter())[name] += 1
        if checked.unindexed:
            by_step["delete", layout.RECOVERY_NAME] = Counter(checked.unindexed)
        costs = {row: Cost(counts.total(), dict(counts)) for row, counts in by_step.items()}
        rewritten = (row for row in self._reasons if row[0] in ("rewrite_records", "cut_journal"))
        return costs | {row: Cost(bytes_lost=self._bytes_lost[row[1]]) for row in rewritten}


def _keep_cut(disk: Disk, path: str, kind: str, file: str) -> None:
    """Copy the files that a step changes to `brokerstore/cut/`."""
    for name in _changed_files(disk, path, kind, file):
        if disk.stat(f"{path}/{name}") is None:
            continue
        folder = f"{path}/{layout.SIDECAR_FOLDER}/{layout.CUT_FOLDER}"
        disk.make_folder(folder)
        data = read_all(disk, f"{path}/{name}")
        target = plain = f"{folder}/{name.replace('/', '__')}"
        number = 0
        while (kept := read_if_there(disk, target)) is not None and kept != data:  # of an earlier recovery
            number += 1
            target = f"{plain}.{number}"
        if kept is None:
            replace_file(disk, target, data)


def _changed_files(disk: Disk, path: str, kind: str, file: str) -> list[str]:
    """Return the files that a step rewrites or removes."""
    if kind == "move_aside":
        return []
    if kind == "salvage":  # appends to the file of the same number
        return [file, f"{file.removesuffix('.rdt')}.rdq"]
    if kind == "rewrite_index":
        return [file, f"{file.removesuffix('.qi')}.qs"]
    if kind == "join_journal":
        return [file, *_joined_segments(disk, path, file)]
    if kind != "drop_entries":
        return [file]
    indexes = [f"{file}/{number}.qi" for number in numbers_in(disk, f"{path}/{file}", "qi")]
    return indexes or [f"{file}/{layout.JOURNAL_NAME}"]


def _delete(disk: Disk, path: str, file: str, _checked: Checked | None = None) -> None:
    if disk.stat(f"{path}/{file}") is not None:
        disk.delete(f"{path}/{file}")
        disk.sync_folder(f"{path}/{file}".rpartition("/")[0])


def _move_aside(disk: Disk, path: str, file: str, _checked: Checked | None = None) -> str:
    if disk.stat(f"{path}/{file}") is not None:
        misplaced.move_aside(disk, f"{path}/{file}")
    return ""


def _write_config(disk: Disk, path: str, file: str, checked: Checked) -> None:
    replace_file(disk, f"{path}/{file}", CONFIG_TEXT % checked.segment_entries)


def _write_vhost(disk: Disk, path: str, file: str, _checked: Checked) -> None:
    with closing(VhostFolder(path, disk)) as folder:
        replace_file(disk, f"{path}/{file}", folder.vhost.encode())


def _found_name(disk: Disk, path: str, file: str) -> bytes | None:
    """Return the text of `.queue_name` for a folder, whose name is the hash of the queue's.

    The name is among the queues in the node's metadata, or among the routing keys of the folder's messages.
    """
    expected = file.split("/")[1]
    with closing(VhostFolder(path, disk)) as folder:
        for queue in (queue for queue in folder.queue_folders() if queue.folder == expected):
            keys = (key.encode() for message in folder.messages_in(queue) for key in message.routing_keys)
            name = folder.declared_part(expected) or part_of_names(folder.vhost, expected, keys)
            return None if name is None else queue_name_text(folder.vhost, name, queue.version)
    return None


def _salvage(disk: Disk, path: str, file: str, _checked: Checked) -> None:
    if disk.stat(f"{path}/{file}") is not None:
        above, _, name = f"{path}/{file}".rpartition("/")
        recover_crashed_compaction(disk, above, int(name.removesuffix(".rdt")))


def _rewrite_records(disk: Disk, path: str, file: str, checked: Checked) -> None:
    replace_file(disk, f"{path}/{file}", good_records(read_all(disk, f"{path}/{file}"), file, checked))


def good_records(data: bytes, file: str, checked: Checked) -> bytes:
    """Return all whole records, past damage too, and damaged ones of whole messages, but not those with a damaged message."""
    bad = checked.bad_records.get(file, set())
    salvaged = checked.salvaged.get(file, {})
    known = [*scan_records(data, file).records, *checked.found_past_damage.get(file, [])]
    parts = {one.offset: data[one.offset : one.offset + one.total_size] for one in known if one.offset not in bad}
    parts |= {offset: encode_record(*pair) for offset, pair in salvaged.items() if offset not in bad}
    return b"".join(parts[offset] for offset in sorted(parts))


def _rewrite_segment(disk: Disk, path: str, file: str, checked: Checked) -> None:
    """Keep every whole entry with its marks, those that `verify` read."""
    found, _end = read_segment_past_damage(read_all(disk, f"{path}/{file}"), 0, checked.segment_entries, file, [])
    _write_segment(disk, path, file, found)


def _write_segment(disk: Disk, path: str, file: str, entries: dict[int, IndexEntry]) -> None:
    """Write a segment again; a server has no file for one without entries."""
    if entries:
        replace_file(disk, f"{path}/{file}", write_segment(entries))
    else:
        _delete(disk, path, file)


def _cut_journal(disk: Disk, path: str, file: str, _checked: Checked) -> None:
    data = read_all(disk, f"{path}/{file}")
    replace_file(disk, f"{path}/{file}", readable_journal(data).data)


def _join_journal(disk: Disk, path: str, file: str, _checked: Checked) -> None:
    """Write the journal's entries, or the better of two differing copies, into the segments; then empty the journal."""
    for name, entries in _joined_segments(disk, path, file).items():
        _write_segment(disk, path, name, entries)
    replace_file(disk, f"{path}/{file}", b"")


def _joined_segments(disk: Disk, path: str, file: str) -> dict[str, dict[int, IndexEntry]]:
    """Return the segments with entries in the queue's journal, joined with them, by file."""
    with closing(VhostFolder(path, disk)) as folder:
        queue = next(queue for queue in folder.queue_folders() if f"{queue.relative}/{layout.JOURNAL_NAME}" == file)
        index = IndexV1(queue)
        return {
            f"{queue.relative}/{number}.idx": index.joined(number, logged, []) for number, logged in index.journal([]).items()
        }


def _drop_entries(disk: Disk, path: str, file: str, checked: Checked) -> None:
    """Acknowledge entries without a message, so that no reader reports them again."""
    lost = [(queue, entry) for queue, entry in checked.lost if queue.relative == file]
    if lost and lost[0][0].version == 2:
        for queue, entry in lost:
            _clear(disk, f"{queue.path}/{entry.seq_id // layout.V2_SEGMENT_ENTRIES}.qi", [_v2_offset(entry)])
        return
    _acknowledge(disk, lost)


def _acknowledge(disk: Disk, lost: list[tuple[QueueFolder, IndexEntry]]) -> None:
    marks = bytearray()
    for _queue, entry in lost:
        if not entry.delivered:
            marks += layout.JOURNAL_HEAD.pack(layout.JOURNAL_DELIVERED << 62 | entry.seq_id)
        marks += layout.JOURNAL_HEAD.pack(layout.JOURNAL_ACKNOWLEDGED << 62 | entry.seq_id)
    if lost:
        journal = f"{lost[0][0].path}/{layout.JOURNAL_NAME}"
        data = read_all(disk, journal) if disk.stat(journal) is not None else b""
        replace_file(disk, journal, readable_journal(data).data + marks)


def _v2_offset(entry: IndexEntry) -> int:
    return layout.V2_HEAD_SIZE + entry.seq_id % layout.V2_SEGMENT_ENTRIES * layout.V2_ENTRY.size


def _rewrite_index(disk: Disk, path: str, file: str, checked: Checked) -> None:
    """Write an index of version 2 again with every entry that `verify` read and whose message exists."""
    folder = file.split("/")[1]
    lost = {entry.seq_id for queue, entry in checked.lost if queue.folder == folder}
    with closing(VhostFolder(path, disk)) as vhost:
        for queue in (queue for queue in vhost.queue_folders() if queue.folder == folder):
            rewrite_segment_v2(disk, queue, int(file.rpartition("/")[2].removesuffix(".qi")), lost)


def _clear(disk: Disk, path: str, offsets: list[int]) -> None:
    """Overwrite version-2 entries with zeros, as an acknowledgement does."""
    with closing(disk.open(path, Mode.WRITE)) as file:
        for offset in offsets:
            file.write(offset, bytes(layout.V2_ENTRY.size))
        file.sync()


STEPS: dict[str, Callable[[Disk, str, str, Checked], object]] = {
    "move_aside": _move_aside,
    "delete": _delete,
    "write_config": _write_config,
    "write_vhost": _write_vhost,
    "salvage": _salvage,
    "rewrite_records": _rewrite_records,
    "rewrite_segment": _rewrite_segment,
    "cut_journal": _cut_journal,
    "join_journal": _join_journal,
    "drop_entries": _drop_entries,
    "rewrite_index": _rewrite_index,
}
