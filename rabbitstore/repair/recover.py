"""`recover`: plan the repair of a damaged folder, and run the plan.

The folder is a virtual host's, with classic queues, or a node's, which also has quorum queues and streams.  A folder without
damage is not locked, and nothing is written.  Otherwise the plan is made again under the folder's lock and run as it is.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from storageio import REAL_DISK, Closing, Disk
from storebytes.plan import Plan, Step

from ..folder import RabbitmqFacts
from ..read.vhost_folder import find_vhost
from ..staging import STAGED
from .check import Progress
from .classic import ClassicPlan, ClassicRepair
from .node_recover import NodePlan, NodeRepair

_NODE_PARTS = ("quorum", "stream", "coordination")


@dataclass
class RecoveryPlan(Plan):
    """The repair of a folder, and the plans of its parts."""

    classic: ClassicPlan | None = None
    node: NodePlan | None = None  # None if there is neither a queue that is not classic, nor damage


class RabbitRecovery(Closing):
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
        self._parts: list[ClassicRepair | NodeRepair] = []
        node = RabbitmqFacts(path, disk).node
        is_node = node is not None or any(disk.stat(f"{path}/{name}") is not None for name in _NODE_PARTS)
        self._has_others = node is not None and bool(node.not_read())
        if node is not None or not is_node:
            found = find_vhost(path, vhost, disk)
            self._parts.append(
                ClassicRepair(found, disk, keep_backup=keep_backup, progress=progress, is_alone=not self._has_others)
            )
        if is_node:
            self._parts.append(self._open.enter_context(NodeRepair(path, disk, keep_backup=keep_backup)))

    def close(self) -> None:
        """Release the locks, and unmap the files that the steps read."""
        self._open.close()

    def plan(self) -> RecoveryPlan:
        """Return the plan without a lock, and without changing anything."""
        plans = [part.plan() for part in self._parts]
        return self._joined(plans, [step for part in self._parts for step in part.first_steps()])

    def locked_plan(self) -> RecoveryPlan:
        """Lock each part that needs a repair, and return the plan that may be applied.

        What runs before a part can be planned has run then, and is the beginning of the plan.
        """
        plans: list[ClassicPlan | NodePlan] = []
        done: list[Step] = []
        for part in self._parts:
            plan = part.plan()
            if plan.steps or part.first_steps():
                done += part.prepare(self._open)
                plan = part.plan()
            plans.append(plan)
        found = self._joined(plans, done)
        found.outcomes = [""] * len(done)
        return found

    def _joined(self, plans: list[ClassicPlan | NodePlan], first: list[Step]) -> RecoveryPlan:
        found = RecoveryPlan(self._path, list(first))
        is_interrupted = any(step.file == STAGED for step in first)
        for plan in plans:
            found.include(plan)
            if isinstance(plan, ClassicPlan):
                found.classic = plan
            elif self._has_others or plan.steps or plan.unrepaired or is_interrupted:
                found.node = plan
        return found


def plan_recovery(
    path: str, disk: Disk = REAL_DISK, *, vhost: str | None = None, progress: Progress | None = None
) -> RecoveryPlan:  # fmt: skip
    """Verify the folder and return the plan of its repair, without changing anything.

    The steps are for display; `apply_recovery` makes its own under the lock.  Raise `UnsupportedFormat` for a folder with data
    of an unknown format.
    """
    with RabbitRecovery(path, disk, vhost=vhost, progress=progress) as recovery:
        return recovery.plan()


def apply_recovery(
    path: str, disk: Disk = REAL_DISK, *, vhost: str | None = None, keep_backup: bool = True,
    progress: Progress | None = None,
) -> RecoveryPlan:  # fmt: skip
    """Lock the folder, plan, and run the plan; return it with the outcome of each step.

    Without damage nothing is locked or written.  With `keep_backup`, copies of what is replaced stay in `brokerstore/cut/`.
    """
    with RabbitRecovery(path, disk, vhost=vhost, keep_backup=keep_backup, progress=progress) as recovery:
        plan = recovery.locked_plan()
        plan.apply()
        return plan
