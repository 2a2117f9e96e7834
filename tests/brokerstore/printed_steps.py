"""Follow the commands that the tool prints, from `verify` on, until `verify` finds nothing or no command is printed.

Where an answer names several commands, a person has to choose: each is followed on a copy of the folder of its own.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

from tests.brokerstore.tool import Ran, run

STEPS_MAX = 8
PRINTED = re.compile(r"run: brokerstore (.+?)(?:  \(|$)", re.M)


class Ending(NamedTuple):
    """Where one way through the printed commands ended."""

    folder: Path
    steps: list[str]  # the commands, without the folder
    last: Ran

    @property
    def is_intact(self) -> bool:
        """Return whether the last command was a `verify` that found nothing."""
        return self.last.code == 0 and self.steps[-1].startswith("verify")

    def __str__(self) -> str:
        return f"{' → '.join(self.steps)}: exit {self.last.code}\n{self.last.talk}"


def printed_commands(ran: Ran) -> list[list[str]]:
    """Return the commands that an answer names, as arguments of `brokerstore`."""
    return [shlex.split(line) for line in PRINTED.findall(ran.talk)]


def endings(folder: Path, *options: str) -> list[Ending]:
    """Run `verify` with options and follow every command that is printed from then on; return where each way ends."""
    return _follow(folder, ["verify", str(folder), *options], [])


def _follow(folder: Path, command: list[str], seen: list[str]) -> list[Ending]:
    seen = [*seen, " ".join(word for word in command if word != str(folder))]
    ran = run(*command)
    following = [step for step in printed_commands(ran) if step != command]
    has_ended = ran.code == 0 and command[0] == "verify"
    if has_ended or not following or len(seen) == STEPS_MAX:
        return [Ending(folder, seen, ran)]
    found: list[Ending] = []
    for number, step in enumerate(following):
        position = folder
        if len(following) > 1:
            position = folder.with_name(f"{folder.name}-{number}")
            shutil.copytree(folder, position, symlinks=True)
            step = [word.replace(str(folder), str(position)) for word in step]
        found += _follow(position, step, seen)
    return found
