"""Whole files of a RabbitMQ node damaged: the kinds of files, and what the tool makes of each damaged folder.

The rule: `verify` is 0 only if the plain model finds nothing missing and the real server starts and delivers what `dump` lists;
nothing that a witness names goes uncounted; the commands that the tool prints end at `verify` 0, or at a person.
"""

from __future__ import annotations

import re
import shutil
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.brokerstore.printed_steps import printed_commands
from tests.brokerstore.tool import Ran, run
from tests.faults.file_damage import HOWS, Damage, Damager, copied
from tests.faults.rabbit_witnesses import Message, Witnesses, queue_names
from tests.interop.rabbitmq4.damages import FILES

STEPS_MAX = 9  # three rounds: the second may find what the first made readable
COUNTS = ("records_dropped", "lost_entries", "lost_offsets")
VHOST = "msg_stores/vhosts/*/"
KINDS = FILES | {
    "classic .idx": VHOST + "queues/*/*.idx",
    "classic journal.jif": VHOST + "queues/*/journal.jif",
    "transient store": VHOST + "msg_store_transient/*.rdq",
    "msg_store_index.ets": VHOST + "msg_store_*/msg_store_index.ets",
    "file_summary.ets": VHOST + "msg_store_*/file_summary.ets",
    "clean.dot": VHOST + "msg_store_*/clean.dot",
    ".vhost": VHOST + ".vhost",
    ".config": VHOST + ".config",
    "quorum writers.snapshot": "quorum/*/writers.snapshot",
    "coordinator's segment": "coordination/*/*/*.segment",
    "coordinator's snapshot": "coordination/*/*/snapshots/*/snapshot.dat",
    "Mnesia table": "*.DC[DL]",
    "Mnesia schema": "schema.DAT",
    "Khepri": "*/rabbitmq_metadata*/**/*",
    "node's file": "[!.]*[!DT]",
}
_NO_CHECKSUM = "no checksum covers a message of the shared store"
# What no file shows after a kill, and the last one never: damages, what they lead to, and why.
LIMITS = (
    (
        r"queues(/[^/]+(/(\d+\.(idx|qi)|journal\.jif|\.queue_name|\d+\.qs))?)?$",
        "not listed|are lost",
        "a lost entry looks acknowledged",
    ),
    (r"queues/[^/]+/\d+\.qs$", "entries of indexes name", "a kill between an entry and its message leaves the same"),
    (r"msg_store_\w+/\d+\.rdq$", "not listed", _NO_CHECKSUM),
)
Real = Callable[[Path, str], list[str]]  # what is wrong with a folder in the real server


class Base(NamedTuple):
    """An undamaged folder that copies are made of, an earlier snapshot of it, and the folder of another node."""

    name: str
    folder: Path
    older: Path | None
    other: Path | None


class Outcome(NamedTuple):
    """What became of a folder."""

    damages: list[Damage]
    verify: int
    end: str  # "intact", "repaired", "person", "endless"
    lost: int
    counted: int
    violations: list[str]
    limits: list[str]


def listed(node: Path) -> tuple[int, list[Message]]:
    """Return the exit code of `dump` and the persistent messages that it lists."""
    ran = run("dump", "--json", node)
    rows = [row for row in ran.lines if not row.get("acked") and row.get("persistent", True)]
    return ran.code, [
        Message(row["queue"], row["properties"].get("message_id", ""), b64decode(row["body_base64"])) for row in rows
    ]


def damaged(base: Base, above: Path, seed: int | str) -> Iterator[tuple[Path, list[Damage]]]:
    """Yield copies of a folder, each with one damage or two, every kind of file in turn."""
    random = Random(f"{base.name} {seed}")
    damager = Damager(base.older, base.other, random)
    kinds = {kind: [path for path in sorted(base.folder.glob(pattern)) if path.is_file()] for kind, pattern in KINDS.items()}
    pairs = [(kind, how) for kind, paths in kinds.items() if paths for how in HOWS]
    number = 0
    while True:
        random.shuffle(pairs)
        for kind, how in pairs:
            number += 1
            folder = copied(base.folder, above / f"{number}" / base.folder.name)
            flags = Path(f"{base.folder}-feature_flags")
            if flags.exists():
                shutil.copy(flags, f"{folder}-feature_flags")
            wished = [(kind, how)] + ([random.choice(pairs)] if random.random() < 0.25 else [])
            damages = [Damage(one, str(random.choice(kinds[one]).relative_to(base.folder)), change) for one, change in wished]
            if made := [damage for damage in damages if damager.apply(folder, damage)]:
                yield folder, made
            else:
                shutil.rmtree(folder.parent)


class Judge:
    """Judges folders made from one base."""

    def __init__(self, base: Base, real: Real | None = None) -> None:
        self.base = base
        self.real = real
        self.served = 0
        self.is_killed = not any(base.folder.glob(VHOST + "msg_store_persistent/clean.dot"))
        self.names = queue_names(base.folder)
        _, self.whole = listed(base.folder)
        self.counts = Counter(message.queue for message in self.whole)

    def judge(self, folder: Path, damages: list[Damage]) -> Outcome:
        """Verify, read and recover a folder."""
        witnesses = Witnesses(folder)
        code, before = listed(folder)
        verified = run("verify", folder)
        if verified.code == 0:
            wrong = [f"verify is 0, and {text}" for text in self.missing(witnesses, before)]
            wrong += [f"verify is 0, and {text}" for text in witnesses.disagreements()]
            wrong += self._real(folder, "verify is 0")
            return self._outcome(damages, verified, "intact", (len(self._lost(witnesses, before)), 0), wrong)
        return self._recovered(folder, damages, witnesses, before if code in (0, 1) else [], verified)

    def _recovered(
        self, folder: Path, damages: list[Damage], witnesses: Witnesses, before: list[Message], verified: Ran
    ) -> Outcome:
        """Follow the printed commands."""
        ran, seen, counted, wrong = verified, ["verify"], 0, []
        for _ in range(STEPS_MAX):
            if ran.code == 0 and seen[-1] == "verify":
                break
            command = next(reversed(printed_commands(ran)), None)
            if command is None or command[0] == "info" or "--help" in command:
                if ran.code in (0, 2):
                    wrong.append(f"dead end: exit {ran.code} after {' '.join(seen)}")
                return self._outcome(damages, verified, "person", (0, counted), wrong)
            is_recovery = command[0] == "recover" and "--apply" in command
            ran = run(*command, *(["--json"] if is_recovery else []))
            seen.append(command[0])
            if is_recovery and ran.out:
                counted += _counted(ran.json)
        else:
            wrong.append(f"the printed commands do not end: {' '.join(seen)}")
            return self._outcome(damages, verified, "endless", (0, counted), wrong)
        _, after = listed(folder)
        kept = {message[1:] for message in after}
        gone = {message[1:] for message in before} - kept
        lost = self._lost(witnesses, after)
        total = max(len(gone | {message[1:] for message in lost}), self._unlisted_entries(witnesses, after))
        if total > counted:
            wrong.append(f"{total} messages are lost ({len(gone)} were listed before), {counted} are counted")
        wrong += self._real(folder, f"after {' '.join(seen[1:])}")
        return self._outcome(damages, verified, "repaired", (total, counted), wrong)

    def _outcome(self, damages: list[Damage], verified: Ran, end: str, counts: tuple[int, int], wrong: list[str]) -> Outcome:
        """Separate what no reader could know from what breaks the rule."""
        limits = {text: why for text in wrong if (why := self._limit(damages, text))}
        broken = [text for text in wrong if text not in limits]
        return Outcome(damages, verified.code, end, *counts, broken, sorted(set(limits.values())))

    def _limit(self, damages: list[Damage], text: str) -> str:
        """Return why no file shows a loss; an empty text if one does."""
        if "the server" in text:
            return ""
        positions = [one.path for one in damages]
        found = (
            why
            for position, words, why in LIMITS
            if re.search(words, text) and any(re.search(position, one) for one in positions)
        )
        return next((why for why in found if self.is_killed or _are_uncounted(damages) or why == _NO_CHECKSUM), "")

    def _lost(self, witnesses: Witnesses, rows: list[Message]) -> list[Message]:
        """Return the messages whose body lies in the folder and that are not listed."""
        there = {message[1:] for message in rows}
        return [message for message in self.whole if message[1:] not in there and witnesses.has(message)]

    def missing(self, witnesses: Witnesses, rows: list[Message]) -> list[str]:
        """Return what the folder has and a list lacks."""
        lost = self._lost(witnesses, rows)
        found = [f"{len(lost)} messages whose bodies are there are not listed, of {lost[0].queue}"] if lost else []
        count = self._unlisted_entries(witnesses, rows)
        return found + ([f"{count} entries of indexes name messages that are not listed"] if count else [])

    def _unlisted_entries(self, witnesses: Witnesses, rows: list[Message]) -> int:
        """Return how many more messages the indexes of known queues name than are listed."""
        named: Counter[str] = Counter()
        for folder, count in witnesses.entries.items():
            if folder in self.names:
                named[self.names[folder]] += count
        there = Counter(message.queue for message in rows)
        for queue in there.keys() - self.counts.keys():  # a queue that lost its name is listed by its folder
            name = self.names.get(queue.split("/")[-1], "")
            there[name] += there[queue]
        return sum(max(0, min(count, self.counts[name]) - there[name]) for name, count in named.items())

    def _real(self, folder: Path, when: str) -> list[str]:
        if self.real is None:
            return []
        self.served += 1
        return [f"{when}, and the server: {text}" for text in self.real(folder, when)]


def _are_uncounted(damages: list[Damage]) -> bool:
    """Return whether zeros replace some entries, which look acknowledged, and the terms that count them are lost, too."""
    is_zeroed = any(one.path.endswith(".qi") and one.how == "zero pages" for one in damages)
    return is_zeroed and any(one.path.endswith("recovery.dets") for one in damages)


def _counted(found: Any) -> int:
    """Return how many messages, log entries and stream offsets the result of a recovery counts as lost."""
    return sum(part.get(name, 0) for part in (found["plan"], found.get("node") or {}) for name in COUNTS)
