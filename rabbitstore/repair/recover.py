"""`recover`: plan the repair of a damaged folder, and run the plan.

The folder is a virtual host's, with classic queues, or a node's, which also has quorum queues and streams.  A folder without
damage is not locked, and nothing is written.  Otherwise the plan is made again under the folder's lock and run as it is.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from storageio import REAL_DISK, Disk, UnsupportedFormat
from storageio.closing import Closing
from storebytes.finding import finding_of
from storebytes.plan import LATER_VERSION, Plan, Step

from ..read.node import survey
from ..read.vhost_folder import find_vhost
from .check import Progress
from .classic import ClassicPlan, ClassicRepair
from .node_recover import FINISH, NodePlan, NodeRepair

_NODE_PARTS = ("quorum", "stream", "coordination")


@dataclass
class RecoveryPlan(Plan):
    """The repair of a folder, and the plans of its parts."""

    classic: ClassicPlan | None = None
    node: NodePlan | None = None  # None if there is neither a queue that is not classic, nor damage


class Recovery(Closing):
    """One recovery of a folder: the steps of its plan can run until `close`, which releases the locks."""

    def __init__(
        self, path: str, disk: Disk = REAL_DISK, *, vhost: str | None = None, keep_backup: bool = True,
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        """Find the parts of the folder.

        `vhost` names the virtual host of a node whose classic queues are meant.  `progress` is called with the number of bytes
        that were verified.
        """
        self._path = path
        self._open = ExitStack()
        node = survey(path, disk)
        self._has_others = node is not None and bool(node.not_read())
        is_node = node is not None or any(disk.stat(f"{path}/{name}") is not None for name in _NODE_PARTS)
        self._node = self._open.enter_context(NodeRepair(path, disk, keep_backup=keep_backup)) if is_node else None
        self._classic: ClassicRepair | None = None
        if node is not None or not is_node:
            self._classic = ClassicRepair(find_vhost(path, vhost, disk), disk, keep_backup=keep_backup, progress=progress)

    def close(self) -> None:
        """Release the locks, and unmap the files that the steps read."""
        self._open.close()

    def plan(self) -> RecoveryPlan:
        """Return the plan without a lock, and without changing anything."""
        classic, node = self._plan_classic(), self._plan_node()
        first = []
        if self._classic is not None and classic is not None:
            first += self._classic.first_steps()
        if self._node is not None and node is not None:
            first += (found := self._node.first_steps())
            if any(step.kind == FINISH for step in found):
                node.steps.clear()  # the files are those of two states
        return self._joined(classic, node, first)

    def locked_plan(self) -> RecoveryPlan:
        """Lock each part that needs a repair, and return the plan that may be applied.

        What runs before a part can be planned has run then, and is the beginning of the plan.
        """
        shown, done = self.plan(), []
        if self._classic is not None and shown.classic is not None and (shown.classic.steps or self._classic.first_steps()):
            done += self._classic.prepare(self._open)
            shown.classic = self._plan_classic()
        if self._node is not None and shown.node is not None and (shown.node.steps or self._node.first_steps()):
            done += self._node.prepare(self._open)
            shown.node = self._plan_node()
        found = self._joined(shown.classic, shown.node, done)
        found.outcomes = [""] * len(done)
        return found

    def _plan_classic(self) -> ClassicPlan | None:
        """Plan; beside other queues in the node, a format that cannot be repaired is only reported."""
        if self._classic is None:
            return None
        try:
            return self._classic.plan()
        except UnsupportedFormat as error:
            if not self._has_others:
                raise
            found = ClassicPlan(self._path)
            found.leave([finding_of(error, "")], LATER_VERSION)
            return found

    def _plan_node(self) -> NodePlan | None:
        return None if self._node is None else self._node.plan()

    def _joined(self, classic: ClassicPlan | None, node: NodePlan | None, first: list[Step]) -> RecoveryPlan:
        is_shown = node is not None and (self._has_others or node.steps or node.unrepaired or first)
        found = RecoveryPlan(self._path, list(first), classic=classic, node=node if is_shown else None)
        for part in (classic, node):
            if part is not None:
                found.include(part)
        return found


def plan_recovery(
    path: str, disk: Disk = REAL_DISK, *, vhost: str | None = None, progress: Progress | None = None
) -> RecoveryPlan:  # fmt: skip
    """Verify the folder and return the plan of its repair, without changing anything.

    The steps are for display; `apply_recovery` makes its own under the lock.  Raise `UnsupportedFormat` for a folder with data
    of an unknown format.
    """
    with Recovery(path, disk, vhost=vhost, progress=progress) as recovery:
        return recovery.plan()


def apply_recovery(
    path: str, disk: Disk = REAL_DISK, *, vhost: str | None = None, keep_backup: bool = True,
    progress: Progress | None = None,
) -> RecoveryPlan:  # fmt: skip
    """Lock the folder, plan, and run the plan; return it with the outcome of each step.

    Without damage nothing is locked or written.  With `keep_backup`, copies of what is replaced stay in `brokerstore/cut/`.
    """
    with Recovery(path, disk, vhost=vhost, keep_backup=keep_backup, progress=progress) as recovery:
        plan = recovery.locked_plan()
        plan.apply()
        return plan
