"""`recover` of a node's quorum queues and streams: plan the repair of every file, and execute the plan.

New files are staged beside the old ones and take their place together (`rabbitstore.staging`).  The old files stay in
`brokerstore/cut/` of the node's folder.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from storageio import REAL_DISK, Disk, Kind
from storebytes.finding import Finding

from ..folder_lock import lock_folder
from ..quorum.coordinator import stream_names, unregistered_streams
from ..quorum.declared import declaration_problems
from ..quorum.folder import QuorumNode
from ..quorum.repair import plan_node
from ..read.metadata import metadata_problems
from ..staging import Change, commit, discard, is_staged, stage
from ..stream.folder import stream_folders
from ..stream.repair import plan_stream
from .recover import Action

_LOGS = ("coordination", "quorum")


@dataclass
class NodePlan:
    """The steps of `apply_node_recovery`.

    `lost_entries` counts entries of quorum queues' logs, `lost_offsets` those of streams, whose bytes are gone; not each was a
    message.  `unrepaired` is damage that stays, with the reason in `found`.
    """

    path: str
    actions: list[Action] = field(default_factory=list)
    messages_kept: int = 0
    lost_entries: int = 0
    lost_offsets: int = 0
    problems: list[Finding] = field(default_factory=list)
    unrepaired: list[Finding] = field(default_factory=list)
    applied: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the object that the tool prints."""
        return {
            "messages_kept": self.messages_kept,
            "lost_entries": self.lost_entries,
            "lost_offsets": self.lost_offsets,
            "actions": [action._asdict() for action in self.actions],
            "unrepaired": [problem.as_dict() for problem in self.unrepaired],
        }


def plan_node_recovery(path: str, disk: Disk = REAL_DISK) -> NodePlan:
    """Read every quorum queue and stream of a node's folder and plan the repair, without changing anything."""
    with ExitStack() as stack:
        found, _changes = _plan(path, disk, stack)
    if is_staged(disk, path):
        found.actions.insert(0, Action("finish", "brokerstore/staged", "an earlier recovery was interrupted"))
    return found


def apply_node_recovery(found: NodePlan, disk: Disk = REAL_DISK, *, keep_backup: bool = True) -> None:
    """Finish an interrupted recovery, plan again, and execute the plan, holding the folder's lock."""
    path = found.path
    lock = lock_folder(disk, path)
    try:
        if is_staged(disk, path):
            commit(disk, path, keep_backup=keep_backup)
        discard(disk, path)
        with ExitStack() as stack:
            again, changes = _plan(path, disk, stack)
            if changes:
                stage(disk, path, changes)
        if changes:
            commit(disk, path, keep_backup=keep_backup)
        found.messages_kept, found.unrepaired = again.messages_kept, again.unrepaired
        found.applied = True
    finally:
        lock.release()


def _plan(path: str, disk: Disk, stack: ExitStack) -> tuple[NodePlan, list[Change]]:
    """Plan with every log open: the changes read from them."""
    found, changes = NodePlan(path), list[Change]()
    plans = [plan_node(stack.enter_context(QuorumNode(f"{path}/{name}", disk))) for name in _logs(path, disk)]
    found.lost_entries = sum(plan.lost for plan in plans)
    streams = [plan_stream(folder) for folder in stream_folders(path, disk)]
    found.lost_offsets = sum(plan.lost for plan in streams)
    for plan in (*plans, *streams):
        changes += plan.changes
        found.messages_kept += plan.kept
        found.problems += plan.problems
        found.unrepaired += plan.unrepaired
    found.unrepaired += unregistered_streams(path, stream_names(path, disk), disk)
    found.unrepaired += metadata_problems(path, disk) + declaration_problems(path, disk)
    found.actions = [Action(change.kind, change.file, change.reason) for change in changes]
    return found, changes


def _logs(path: str, disk: Disk) -> list[str]:
    """Return the folders that have a write-ahead log: of the quorum queues, and of the coordinator of the streams."""
    above = [name for name in _LOGS if disk.stat(f"{path}/{name}") is not None]
    return [f"{name}/{entry.name}" for name in above for entry in disk.list(f"{path}/{name}") if entry.kind is Kind.FOLDER]
