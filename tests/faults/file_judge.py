"""Judge what the tool makes of a damaged folder, by the plain witness model and, where one is given, a real store.

The rule: `verify` is 0 only if no witness disagrees and the real store starts and delivers what `dump` lists; nothing that a
witness names goes uncounted; the commands that the tool prints end at `verify` 0, or at a person.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.brokerstore.printed_steps import printed_commands
from tests.brokerstore.tool import Ran, run
from tests.faults.damaged_stores import Template
from tests.faults.file_damage import Damage, copied
from tests.faults.witnesses import Witnesses, read_witnesses

STEPS_MAX, WRONG_USE = 6, 2
Real = Callable[[Path, dict[str, Any]], str]  # returns what is wrong with a folder in the real system, or ""


class Listed(NamedTuple):
    """The messages that `dump` lists, which leaves fillers out."""

    code: int
    messages: set[int]  # physical offsets


class Outcome(NamedTuple):
    """What became of a folder."""

    damages: list[Damage]
    verify: int
    end: str  # "intact", "repaired", "choice", "person"
    violations: list[str]


def listed(folder: Path) -> Listed:
    """Return what `dump` lists."""
    ran = run("dump", folder, "--json")
    return Listed(ran.code, {row["physical_offset"] for row in ran.lines})


def contents(folder: Path) -> dict[str, bytes]:
    """Return what every file holds, without the zeros behind it."""
    return {str(path.relative_to(folder)): path.read_bytes().rstrip(b"\0") for path in folder.rglob("*") if path.is_file()}


def _is_evidence(name: str) -> bool:
    """Return whether a file names messages or progress, and is neither the log, whose cut bytes are kept, nor a backup."""
    return name.split("/")[0] in ("consumequeue", "batchconsumequeue", "config") and name.endswith(("0", "Offset.json"))


class Chain:
    """The commands that the tool prints, one after the other, from `verify` on."""

    def __init__(self, folder: str, choice: str, slots: int) -> None:
        self.choice = choice
        self.seen = ["verify"]
        self.dropped = 0
        self._layout = layout(slots)
        self._options: list[str] = []
        self._last = ["verify", folder]
        self.ran = run(*self._last)

    def __str__(self) -> str:
        return " ".join([*self.seen, self.choice]).rstrip()

    @property
    def is_intact(self) -> bool:
        """Return whether the last command was a `verify` that found nothing."""
        return self.ran.code == 0 and self.seen[-1] == "verify"

    def step(self) -> bool:
        """Run the printed command, or the last one with the options that it asked for; return whether there was one."""
        command = next(reversed(printed_commands(self.ran)), None)
        if self.ran.code == WRONG_USE and "--index-slots" in self.ran.talk and not self._options:
            self._options, command = self._layout, self._last
        if command is None or command[0] == "info" or "--help" in command:
            return False
        self._last = [one for one in command if one not in ("--skip-bad", "--truncate")]
        if self.choice and command[0] == "recover":
            self._last.append(self.choice)
        is_recovery = command[0] == "recover" and "--apply" in command
        self.ran = run(*self._last, *self._options, *(["--json"] if is_recovery else []))
        self.seen.append(command[0])
        if is_recovery and self.ran.out:
            self.dropped += self.ran.json["plan"]["records_dropped"]
        return True


class Judge:
    """Judges folders made from one template."""

    def __init__(self, made: Template, scratch: Path, real: Real | None = None) -> None:
        self.made = made
        self.scratch = scratch
        self.real = real
        self.count = 0

    def judge(self, folder: Path, damages: list[Damage]) -> Outcome:
        """Verify, read and recover a folder."""
        witnesses = read_witnesses(folder, self.made.slots)
        wrong: list[str] = []
        before, verified = listed(folder), run("verify", folder)
        unread = witnesses.messages - before.messages
        if unread and before.code in (0, 1):
            wrong.append(f"dump does not read {len(unread)} whole records, the first at {min(unread)}")
        if verified.code == 0:
            wrong += [f"verify is 0, and {one}" for one in witnesses.disagreements()]
            wrong += self._real(folder, "verify is 0")
            return Outcome(damages, 0, "intact", wrong)
        if witnesses.was_clean and witnesses.lost(set(witnesses.records)):
            wrong += self._unchosen(folder)
        end = self._follow(folder, verified, before, witnesses, wrong)
        return Outcome(damages, verified.code, end, wrong)

    def forget(self, folder: Path) -> None:
        """Delete a judged folder and all its copies."""
        shutil.rmtree(folder.parent)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _real(self, folder: Path, when: str) -> list[str]:
        if self.real is None:
            return []
        self.count += 1
        copy = copied(folder, self.scratch / f"real-{self.count}" / "store")
        trouble = self.real(copy, self.made.settings)
        return [f"{when}, and the real store {trouble}"] if trouble else []

    def _unchosen(self, folder: Path) -> list[str]:
        """Return what commands without a choice change while a part of the folder names messages that are gone."""
        wrong = []
        for command in (("put", "any", "x"), ("rebuild", "all", "--apply")):
            self.count += 1
            copy = copied(folder, self.scratch / f"unchosen-{self.count}" / "store")
            ran = run(command[0], copy, *command[1:])
            kept = contents(copy)
            gone = [name for name, content in contents(folder).items() if _is_evidence(name) and kept.get(name) != content]
            if gone:
                wrong.append(f"{command[0]} ends with exit {ran.code} and changes {len(gone)} files: {gone[:1]}")
        return wrong

    def _follow(self, folder: Path, ran: Ran, before: Listed, witnesses: Witnesses, wrong: list[str]) -> str:
        """Run the commands that the tool prints, each way where it names several; return how that ends."""
        ends = []
        for choice in self._ways(folder, ran):
            self.count += 1
            copy = copied(folder, self.scratch / f"way-{self.count}" / "store")
            ends.append(self._way(copy, choice, before, witnesses, wrong))
        return "/".join(sorted(set(ends)))

    def _ways(self, folder: Path, ran: Ran) -> list[str]:
        """Return the options that `recover` wants a choice from, or one empty option."""
        planned = run("recover", folder, "--json")
        if planned.code == WRONG_USE:
            planned = run("recover", folder, "--json", *layout(self.made.slots))
        needs = bool(planned.out) and planned.json["plan"]["needs_choice"]
        return ["--skip-bad", "--truncate"] if needs else [""]

    def _way(self, folder: Path, choice: str, before: Listed, witnesses: Witnesses, wrong: list[str]) -> str:
        """Follow the printed commands to their end on one copy."""
        was, original = contents(folder), str(folder)
        chain = Chain(original, choice, self.made.slots)
        while not chain.is_intact:
            if len(chain.seen) > STEPS_MAX:
                wrong.append(f"the printed commands do not end: {chain}")
                return "endless"
            if not chain.step():
                return self._stuck(chain, wrong)
        after = listed(Path(original))
        if witnesses.lost(set(witnesses.records)):
            kept = set(contents(Path(original)).values())
            unkept = [name for name, data in was.items() if _is_evidence(name) and data and data not in kept]
            wrong += [f"no copy is kept of {len(unkept)} replaced files, of {unkept[0]} {choice}"] if unkept else []
        self._losses(before, after, witnesses, chain.dropped, choice, wrong)
        wrong += self._real(folder, f"after {chain}")
        return "repaired" if not choice else "choice"

    def _stuck(self, chain: Chain, wrong: list[str]) -> str:
        """Accept an end that leaves the next step to a person: a folder that is not understood, or a reason in words."""
        if chain.ran.code in (0, 2):
            wrong.append(f"dead end: exit {chain.ran.code} after {chain}")
        return "person"

    def _losses(
        self, before: Listed, after: Listed, witnesses: Witnesses, dropped: int, choice: str, wrong: list[str]
    ) -> None:  # fmt: skip
        """Compare what was named and read before with what is read now and what was counted."""
        gone = before.messages - after.messages
        named = {at for at in witnesses.lost(set(witnesses.records)) if witnesses.was_clean or at < witnesses.log_end()}
        total = len(gone | named)
        if gone and choice != "--truncate" and witnesses.was_clean:
            wrong.append(
                f"{len(gone)} messages that dump listed are gone after the recovery {choice}, the first at {min(gone)}"
            )
        if total > dropped:
            wrong.append(f"{total} messages are lost ({len(named)} named, {len(gone)} cut), {dropped} are counted {choice}")
        if named and not choice and witnesses.was_clean:
            wrong.append(f"{len(named)} named messages were given up without a choice")


def layout(slots: int) -> list[str]:
    """Return the options that tell the layout of an index whose files do not."""
    return ["--index-slots", str(slots), "--index-num", str(4 * slots)]


def with_damage(outcome: Outcome) -> list[str]:
    """Return the violations, each with its damage."""
    damage = " + ".join(map(str, outcome.damages))
    return [f"{damage}: {wrong}" for wrong in outcome.violations]
