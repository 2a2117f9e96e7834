"""`recover`: plan the repair of a damaged folder, and execute the plan.

The first step deletes the clean-stop files, so that the next opening rebuilds what they say.  Each other step replaces one
file atomically, keeps the old bytes in `brokerstore/cut/`, and can be repeated after an interruption.  Nothing readable is
dropped: a damaged record or entry costs only itself.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from storageio import REAL_DISK, Disk, Mode, misplaced, replace_file
from storebytes.finding import UNSUPPORTED, Finding

from ..files import numbers_in, read_all, read_if_there
from ..folder_lock import lock_folder
from ..format import layout
from ..format.entry_cy import IndexEntry
from ..format.names import CONFIG_TEXT, part_name, queue_folder_name, queue_name_text
from ..format.rdq import encode_record, scan_records
from ..format.segment_cy import write_segment
from ..quorum.declared import declared_names
from ..read.index_v1 import IndexV1
from ..read.queue_folder import QueueFolder
from ..read.salvage import read_segment_past_damage, readable_journal
from ..read.unsupported import refuse_unsupported
from ..read.vhost_folder import VhostFolder
from .check import Checked, Progress, verify
from .compaction import recover_crashed_compaction
from .index_v2 import rewrite_segment_v2

_INDEX_DAMAGE = ("bad_index_entry", "bad_index_head", "torn_index", "lost_index", "message_lost", "bad_message_head")
_STEP_OF = {  # by kind of problem and, where it matters, the file's ending
    ("bad_config", ""): "write_config",
    ("bad_vhost_name", ""): "write_vhost",
    ("bad_queue_name", ""): "write_name",
    ("strange_sidecar", ""): "move_aside",
    ("unfinished_compaction", ""): "salvage",
    ("torn_journal", ""): "cut_journal",
    ("entries_differ", ""): "join_journal",
    ("published_twice", "jif"): "join_journal",
    ("mark_too_many", "jif"): "join_journal",
    ("lost_index", "idx"): "rewrite_segment",
    ("lost_journal", ""): "join_journal",
    **{(kind, "rdq"): "rewrite_records" for kind in ("torn_record", "record_without_end_mark", "bad_term", "bad_record")},
    **{(kind, ""): "rewrite_segment"
       for kind in ("torn_segment", "published_twice", "mark_without_publish", "mark_too_many")},
    **{(kind, ending): "rewrite_index" for kind in _INDEX_DAMAGE for ending in ("qi", "qs")},
    **{(kind, ""): "delete"
       for kind in ("bad_table", "bad_clean_mark", "bad_recovery_terms", "bad_location", "bad_ref_count")},
}  # fmt: skip
_LOCK = f"{layout.SIDECAR_FOLDER}/{layout.LOCK_NAME}"


class Action(NamedTuple):
    """One step on one file (relative to the folder); `kind` names the step, `reason` the damage that it repairs."""

    kind: str
    file: str
    reason: str


@dataclass
class Plan:
    """The steps of `apply_recovery`.  `valid_end` maps a file that is cut to the length of its valid part."""

    path: str
    actions: list[Action] = field(default_factory=list)
    valid_end: dict[str, int] = field(default_factory=dict)
    records_kept: int = 0
    records_dropped: int = 0
    dropped_by_queue: dict[str, int] = field(default_factory=dict)
    problems: list[Finding] = field(default_factory=list)
    unsupported: list[Finding] = field(default_factory=list)  # left as it is
    unrepaired: list[Finding] = field(default_factory=list)  # damage without a step
    applied: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the object that the tool prints."""
        plan = {
            "valid_end": self.valid_end,
            "records_kept": self.records_kept,
            "records_dropped": self.records_dropped,
            **({"dropped_by_queue": self.dropped_by_queue} if self.dropped_by_queue else {}),
            "actions": [action._asdict() for action in self.actions],
        }
        return {"plan": plan, "applied": self.applied}


def plan_recovery(path: str, disk: Disk = REAL_DISK, progress: Progress | None = None) -> Plan:
    """Verify the folder and plan its repair, without changing anything; `verify` calls `progress`.

    Raise `UnsupportedFormat` for a folder with data of an unknown format.
    """
    refuse_unsupported(path, disk, for_repair=True)
    checked = verify(path, disk, progress)
    unsupported = [note for note in checked.notes if note.kind == UNSUPPORTED]
    found = Plan(path, problems=checked.problems, unsupported=unsupported)
    found.dropped_by_queue = checked.lost_by_queue()
    found.records_dropped = sum(found.dropped_by_queue.values())
    found.records_kept = checked.messages - len(checked.lost)
    steps = [action for problem in checked.problems if (action := _action_for(disk, path, problem, found)) is not None]
    steps += [Action("drop_entries", queue.relative, "message_lost") for queue, _entry in checked.lost]
    asides = [step for step in steps if step.kind == "move_aside"]
    steps = [step for step in steps if step.kind != "move_aside"]
    if steps:
        gone = [name for name in layout.CLEAN_FILES if disk.stat(f"{path}/{name}") is not None]
        steps = [*(Action("delete", name, "describes the folder as it was") for name in gone), *steps]
    found.actions = _each_once([*asides, *steps])
    return found


def _each_once(steps: list[Action]) -> list[Action]:
    """Merge equal steps on one file: a second one would see other offsets than `verify` did."""
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for step in steps:
        reasons.setdefault((step.kind, step.file), {})[step.reason] = None
    return [Action(kind, file, ", ".join(found)) for (kind, file), found in reasons.items()]


def _action_for(disk: Disk, path: str, problem: Finding, found: Plan) -> Action | None:
    """Return the step that repairs a problem; None when another step does."""
    kind, file = problem.kind, problem.file
    step = _STEP_OF.get((kind, file.rpartition(".")[2])) or _STEP_OF.get((kind, ""))
    if step is None:
        return None
    if step == "rewrite_records":
        found.valid_end[file] = scan_records(read_all(disk, f"{path}/{file}"), file).valid_end
    elif step == "cut_journal":
        found.valid_end[file] = problem.offset
    elif step == "rewrite_index":
        file = f"{file.rpartition('.')[0]}.qi"
    elif step == "write_name" and _found_name(disk, path, file) is None:
        found.unrepaired.append(problem)
        return None
    return Action(step, file, kind)


def apply_recovery(found: Plan, disk: Disk = REAL_DISK, *, keep_backup: bool = True, progress: Progress | None = None) -> None:
    """Verify the folder again and execute the plan, holding the folder's lock; `verify` calls `progress`."""
    path = found.path
    refuse_unsupported(path, disk, for_repair=True)
    _free_lock(disk, path)
    lock = lock_folder(disk, path, lambda: refuse_unsupported(path, disk, for_repair=True))
    try:
        checked = verify(path, disk, progress)
        for action in found.actions:
            if keep_backup:
                _keep_cut(disk, path, action)
            _STEPS[action.kind](disk, path, action.file, checked)
        found.applied = True
    finally:
        lock.release()


def _free_lock(disk: Disk, path: str) -> None:
    """Move aside anything else than a lock file in a folder: nobody can hold a lock there."""
    own = f"{path}/{layout.SIDECAR_FOLDER}"
    for one in list(misplaced.find(disk, own, layout.SIDECAR_FILES)):
        if one.path in (own, f"{own}/{layout.LOCK_NAME}"):
            misplaced.move_aside(disk, one.path)


def _keep_cut(disk: Disk, path: str, action: Action) -> None:
    """Copy the files that a step changes to `brokerstore/cut/`."""
    for name in _changed_files(disk, path, action):
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


def _changed_files(disk: Disk, path: str, action: Action) -> list[str]:
    """Return the files that a step rewrites or removes."""
    if action.kind == "move_aside":
        return []
    if action.kind == "salvage":  # appends to the file of the same number
        return [action.file, f"{action.file.removesuffix('.rdt')}.rdq"]
    if action.kind == "rewrite_index":
        return [action.file, f"{action.file.removesuffix('.qi')}.qs"]
    if action.kind == "join_journal":
        return [action.file, *_joined_segments(disk, path, action.file)]
    if action.kind != "drop_entries":
        return [action.file]
    indexes = [f"{action.file}/{number}.qi" for number in numbers_in(disk, f"{path}/{action.file}", "qi")]
    return indexes or [f"{action.file}/{layout.JOURNAL_NAME}"]


def _delete(disk: Disk, path: str, file: str, _checked: Checked) -> None:
    if disk.stat(f"{path}/{file}") is not None:
        disk.delete(f"{path}/{file}")
        disk.sync_folder(f"{path}/{file}".rpartition("/")[0])


def _move_aside(disk: Disk, path: str, file: str, _checked: Checked) -> None:
    if file not in (layout.SIDECAR_FOLDER, _LOCK) and disk.stat(f"{path}/{file}") is not None:  # `_free_lock` moves those
        misplaced.move_aside(disk, f"{path}/{file}")


def _write_config(disk: Disk, path: str, file: str, checked: Checked) -> None:
    replace_file(disk, f"{path}/{file}", CONFIG_TEXT % checked.segment_entries)


def _write_vhost(disk: Disk, path: str, file: str, _checked: Checked) -> None:
    with closing(VhostFolder(path, disk)) as folder:
        replace_file(disk, f"{path}/{file}", folder.vhost.encode())


def _write_name(disk: Disk, path: str, file: str, _checked: Checked) -> None:
    text = _found_name(disk, path, file)
    if text is not None:
        replace_file(disk, f"{path}/{file}", text)


def _found_name(disk: Disk, path: str, file: str) -> bytes | None:
    """Return the text of `.queue_name` for a folder, whose name is the hash of the queue's.

    The name is among the routing keys of its messages, or among the queues that the node's metadata declares.
    """
    expected = file.split("/")[1]
    with closing(VhostFolder(path, disk)) as folder:
        for queue in (queue for queue in folder.queue_folders() if queue.folder == expected):
            keys = {key: None for message in folder.messages_in(queue) for key in message.routing_keys}
            keys |= dict.fromkeys(declared_names(os.path.dirname(path).removesuffix("/msg_stores/vhosts"), folder.vhost, disk))
            names = (part_name(key, level) for key in keys for level in (None, *range(256)))
            name = next((name for name in names if queue_folder_name(folder.vhost, name) == expected), None)
            return None if name is None else queue_name_text(folder.vhost, name, queue.version)
    return None


def _salvage(disk: Disk, path: str, file: str, _checked: Checked) -> None:
    if disk.stat(f"{path}/{file}") is not None:
        above, _, name = f"{path}/{file}".rpartition("/")
        recover_crashed_compaction(disk, above, int(name.removesuffix(".rdt")))


def _rewrite_records(disk: Disk, path: str, file: str, checked: Checked) -> None:
    """Keep all whole records, past damage too, and damaged ones of whole messages; drop those with a damaged message."""
    data = read_all(disk, f"{path}/{file}")
    bad = checked.bad_records.get(file, set())
    salvaged = checked.salvaged.get(file, {})
    known = [*scan_records(data, file).records, *checked.found_past_damage.get(file, [])]
    parts = {one.offset: data[one.offset : one.offset + one.total_size] for one in known if one.offset not in bad}
    parts |= {offset: encode_record(*pair) for offset, pair in salvaged.items() if offset not in bad}
    replace_file(disk, f"{path}/{file}", b"".join(parts[offset] for offset in sorted(parts)))


def _rewrite_segment(disk: Disk, path: str, file: str, checked: Checked) -> None:
    """Keep every whole entry with its marks, those that `verify` read; a server has no file for a segment without entries."""
    found, _end = read_segment_past_damage(read_all(disk, f"{path}/{file}"), 0, checked.segment_entries, file, [])
    if not found:
        _delete(disk, path, file, checked)
        return
    replace_file(disk, f"{path}/{file}", write_segment(found))


def _cut_journal(disk: Disk, path: str, file: str, _checked: Checked) -> None:
    data = read_all(disk, f"{path}/{file}")
    replace_file(disk, f"{path}/{file}", readable_journal(data).data)


def _join_journal(disk: Disk, path: str, file: str, _checked: Checked) -> None:
    """Write the journal's entries, or the better of two differing copies, into the segments; then empty the journal."""
    for name, entries in _joined_segments(disk, path, file).items():
        replace_file(disk, f"{path}/{name}", write_segment(entries))
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


_STEPS = {
    "move_aside": _move_aside,
    "delete": _delete,
    "write_config": _write_config,
    "write_vhost": _write_vhost,
    "write_name": _write_name,
    "salvage": _salvage,
    "rewrite_records": _rewrite_records,
    "rewrite_segment": _rewrite_segment,
    "cut_journal": _cut_journal,
    "join_journal": _join_journal,
    "drop_entries": _drop_entries,
    "rewrite_index": _rewrite_index,
}
