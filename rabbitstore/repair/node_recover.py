"""Plan the repair of a node's quorum queues and streams.

A step stages the new content of one file in `brokerstore/staged/`, and the last step puts all files in place together
(`rabbitstore.staging`).  The old files stay in `brokerstore/cut/` of the node's folder.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from storageio import REAL_DISK, Closing, Disk, Kind
from storebytes.plan import LATER_VERSION, Plan, Step

from ..declared import declaration_problems, unreported
from ..folder_lock import lock_folder
from ..quorum.coordinator import stream_names, unregistered_streams
from ..quorum.folder import QuorumNode
from ..quorum.repair import plan_node
from ..read.metadata import metadata_problems
from ..staging import STAGED, Staging, has_leftovers, is_staged
from ..stream.folder import stream_folders
from ..stream.repair import plan_stream

_LOGS = ("coordination", "quorum")
_ADVICE = {  # kinds of damage to what a node's metadata declares, and what a person can do about them
    "bad_metadata": "put a copy of the file in its place, or start a new node and import what export reads here",
    "missing_vhost": "put a copy of the table in its place, or declare the virtual host again",
    "missing_user": "put a copy of the table in its place, or add the user again",
    "missing_permission": "put a copy of the table in its place, or set the permissions again",
    "missing_queue": "put a copy of the folder in its place; a server starts the queue empty",
    "undeclared_queue": "put a copy of the table in its place, or publish what export reads to a new queue",
    "unregistered_stream": "put a copy of the coordinator's folder in its place, or publish what export reads to a new stream",
}


@dataclass
class NodePlan(Plan):
    """`lost_entries` counts entries of quorum queues' logs, `lost_offsets` those of streams, of which some have no step."""

    lost_entries: int = 0
    lost_offsets: int = 0


class NodeRepair(Closing):
    """The repair of the quorum queues and streams of a node's folder; its steps can run until `close`."""

    def __init__(self, path: str, disk: Disk = REAL_DISK, *, keep_backup: bool = True) -> None:
        """Set the folder; nothing is read."""
        self._path = path
        self._disk = disk
        self._keep_backup = keep_backup
        self._open = ExitStack()

    def close(self) -> None:
        """Unmap the files that the plan reads."""
        self._open.close()

    def prepare(self, stack: ExitStack) -> list[Step]:
        """Lock the folder until `stack` closes, and run the first steps."""
        stack.callback(lock_folder(self._disk, self._path).release)
        steps = self.first_steps()
        for step in steps:
            step.run()
        return steps

    def first_steps(self) -> list[Step]:
        """Return what runs before anything can be planned: an interrupted `commit`, or staged files without one."""
        staging = Staging(self._disk, self._path, keep_backup=self._keep_backup)
        if is_staged(self._disk, self._path):
            return [Step("finish_staged", STAGED, "an earlier recovery was interrupted", staging.finish)]
        if has_leftovers(self._disk, self._path):
            return [Step("discard_staged", STAGED, "an earlier recovery was interrupted", staging.discard)]
        return []

    def plan(self) -> NodePlan:
        """Read every quorum queue and stream and plan, without changing anything."""
        path, disk = self._path, self._disk
        staging, found = Staging(disk, path, keep_backup=self._keep_backup), NodePlan(path)
        for name in self._logs():
            plan, lost = plan_node(self._open.enter_context(QuorumNode(f"{path}/{name}", disk)), staging)
            found.include(plan)
            found.lost_entries += lost
        for folder in stream_folders(path, disk):
            plan, lost = plan_stream(folder, staging)
            found.include(plan)
            found.lost_offsets += lost
        left = unregistered_streams(path, stream_names(path, disk), disk)
        declared = unreported(declaration_problems(path, disk), found.findings)
        for finding in left + metadata_problems(path, disk) + declared:
            found.leave([finding], _ADVICE.get(finding.kind, LATER_VERSION))
        if is_staged(disk, path):
            found.steps.clear()  # the files are those of two states: what is left is planned when the change is complete
        elif found.steps:
            found.add("commit_staged", STAGED, "the files of a node belong together", staging.commit)
        return found

    def _logs(self) -> list[str]:
        """Return the folders that have a write-ahead log: of the quorum queues, and of the coordinator of the streams."""
        above = [name for name in _LOGS if self._disk.stat(f"{self._path}/{name}") is not None]
        folders = [(name, entry) for name in above for entry in self._disk.list(f"{self._path}/{name}")]
        return [f"{name}/{entry.name}" for name, entry in folders if entry.kind is Kind.FOLDER]
