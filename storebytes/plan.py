"""What a repair, or an opening, does to a folder: a list of steps that is shown and then run, in the same order.

An engine makes a `Plan` from what its checks found.  A step holds the function that does it, so nothing is decided again
between showing a plan and applying it.  A step can be killed anywhere: the next plan of the folder then has what is left to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .finding import Finding


class Cost(NamedTuple):
    """What a step, or a choice between repairs, loses."""

    messages_lost: int = 0
    lost_by_queue: dict[str, int] = {}  # noqa: RUF012 - never changed; by `topic/queue` or queue name, a message counts in each
    bytes_lost: int = 0  # bytes of the log that are cut, or replaced by filler records
    offsets_set_back: int = 0  # consumer offsets beyond the new end of their queue
    log_entries_lost: int = 0  # of quorum queues' logs; not each was a message
    stream_offsets_lost: int = 0

    def plus(self, other: Cost) -> Cost:
        """Return what both lose."""
        by_queue = dict(self.lost_by_queue)
        for queue, count in other.lost_by_queue.items():
            by_queue[queue] = by_queue.get(queue, 0) + count
        sums = {name: getattr(self, name) + getattr(other, name) for name in self._fields if name != "lost_by_queue"}
        return Cost(lost_by_queue=by_queue, **sums)

    def as_dict(self) -> dict[str, Any]:
        """Return what is lost, without the zeros."""
        return {name: value for name, value in self._asdict().items() if value}


FREE = Cost()
LATER_VERSION = "a later version of brokerstore may know this format"  # the advice for an unsupported format


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun in the right number.

    >>> count_text(1, "file"), count_text(0, "file")
    ('1 file', '0 files')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


Run = Callable[[], str | None]


class Step(NamedTuple):
    """One change of a folder.

    `file` is relative to the folder, `reason` names what the step repairs.  `run` makes the change and returns what is known
    only then, such as the number of rebuilt timers, if there is anything.
    """

    kind: str
    file: str
    reason: str
    run: Run
    cost: Cost = FREE

    @property
    def text(self) -> str:
        """Return the step as one line."""
        return f"{self.kind.replace('_', ' ')} {self.file}: {self.reason}"

    def as_dict(self) -> dict[str, Any]:
        """Return what the tool prints."""
        loses = self.cost.as_dict()
        return {"kind": self.kind, "file": self.file, "reason": self.reason, **({"cost": loses} if loses else {})}


class Unrepaired(NamedTuple):
    """Damage that no step repairs, and what a person can do about it."""

    finding: Finding
    advice: str


@dataclass
class Plan:
    """The steps of one repair, the findings that they repair, and what stays."""

    path: str
    steps: list[Step] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unrepaired: list[Unrepaired] = field(default_factory=list)
    choices: dict[str, Cost] = field(default_factory=dict)  # what each loses, if `apply` needs one of them
    messages_kept: int = 0
    messages_lost: int = 0
    lost_by_queue: dict[str, int] = field(default_factory=dict)
    outcomes: list[str] = field(default_factory=list)  # of the steps that ran

    @property
    def cost(self) -> Cost:
        """Return what the steps lose together; the messages are those of the plan."""
        total = FREE
        for step in self.steps:
            total = total.plus(step.cost)
        return total._replace(messages_lost=self.messages_lost, lost_by_queue=self.lost_by_queue)

    @property
    def is_applied(self) -> bool:
        """Return whether every step ran."""
        return bool(self.steps) and len(self.outcomes) == len(self.steps)

    def add(self, kind: str, file: str, reason: str, run: Run, cost: Cost = FREE) -> None:
        """Add a step behind the others."""
        self.steps.append(Step(kind, file, reason, run, cost))

    def leave(self, findings: Iterable[Finding], advice: str) -> None:
        """Add damage that no step repairs."""
        self.unrepaired += [Unrepaired(finding, advice) for finding in findings]

    def include(self, other: Plan) -> None:
        """Add the steps and results of another part of the folder behind the others."""
        for name in ("steps", "findings", "unrepaired", "outcomes"):
            getattr(self, name).extend(getattr(other, name))
        self.messages_kept += other.messages_kept
        self.messages_lost += other.messages_lost
        self.lost_by_queue = Cost(lost_by_queue=self.lost_by_queue).plus(other.cost).lost_by_queue

    def apply(self) -> None:
        """Run the steps that did not run yet; the caller holds the lock under which the plan was made."""
        for step in self.steps[len(self.outcomes) :]:
            self.outcomes.append(step.run() or "")

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as the tool prints it for every kind of folder."""
        steps = [step.as_dict() for step in self.steps]
        for step, outcome in zip(steps, self.outcomes, strict=False):
            if outcome:
                step["result"] = outcome
        return {
            "messages_kept": self.messages_kept,
            "messages_lost": self.messages_lost,
            "lost_by_queue": self.lost_by_queue,
            "steps": steps,
            "findings": [finding.as_dict() for finding in self.findings],
            "unrepaired": [one.finding.as_dict() | {"advice": one.advice} for one in self.unrepaired],
            "choices": {name: cost._asdict() for name, cost in self.choices.items()},
        }
