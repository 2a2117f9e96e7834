"""Write docs/evidence/rabbitmq-damage.md: whole files of four releases damaged, judged by the server of the same release.

    BROKERSTORE_INTEROP=1 python -m tests.interop.rabbitmq4.file_evidence [--folders 400] [--served 100] [--seed 0]

The plain model judges every folder, and the server the first ones of each release.  Outcomes are kept in a file of JSON lines,
and the undamaged folders beside it, so that an interrupted run continues.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import shutil
from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path
from typing import Any

from tests.archives import unpack
from tests.faults.file_damage import HOWS
from tests.faults.golden import DATA, fast_folder
from tests.faults.rabbit_files import Base, Judge, Outcome, damaged

from .judge import Judge as Server
from .server import home_of, why_not
from .years import SUITES, listed, make_folders, queues_of, served

ROOT = Path(__file__).parents[3]
SHARES = {"trixie": 0.5, "bookworm": 0.15, "bullseye": 0.15, "sid": 0.2}
OTHERS = dict.fromkeys(("trixie", "sid"), "rabbitmq4-clean.tar.xz")
OTHERS |= dict.fromkeys(("bookworm", "bullseye"), "cases/rabbit-dlx-3.10.8.tar.xz")
A_TURN = 20  # folders of one base before the next base
LIVES = ("SIGKILL", "SIGTERM")
PAGE = ROOT / "docs/evidence/rabbitmq-damage.md"
WITHOUT_PATHS = re.compile(r"(/[^ ]+|'[^']*'|b\"[^\"]*\")")
Row = dict[str, Any]
HEAD = """# Damage to whole files of a RabbitMQ node

Written by `python -m tests.interop.rabbitmq4.file_evidence`. Each folder is a copy of the folder of a real server (RabbitMQ
3.8.9, 3.10.8, 4.0.5, 4.3.6), stopped or killed, with one damage or two. Its queues have dead letters, BCC copies, times to
live, length limits, priorities, and names beyond ASCII. `verify` judges it, and then the printed commands are run. A plain
model of the files says which messages each part names. A server of the same release is started on folders that `verify`
calls intact, before or after, and delivers what `dump` lists.

{all} folders ({releases}): {served} judged by a real server too; {pairs} have two damages.
Folders in which a rule is broken: {wrong}. Folders with a loss that no file shows: {limited}.

- *intact*: `verify` is 0 and nothing contradicts it
- *repaired*: the printed commands end at `verify` 0, and every loss is counted
- *person*: the tool says why it does nothing, or that the folder is not understood
- *limit*: no file tells what is lost (below)
- **broken**: an uncounted loss, a dead end, or another answer of the real server
"""
LIMITED = """
## Losses that no file shows

All are of classic queues, and all but one kind after a kill or without the terms of a clean stop. An acknowledgement removes
an entry and leaves the message, so an entry that is gone looks like an acknowledged one
([docs](../formats/rabbitmq-damage.md#notes)). The server writes an entry of version 2 before its message, so a message that
is gone from the end of `N.qs` looks like one that was never written; `dump` and `verify` note it. After a clean stop the
terms and reference counts show both. No checksum covers a body in `N.rdq`: with zeros inside it the server delivers the
message as `dump` lists it, changed.
"""


class Run:
    """The folders judged so far, kept in a file."""

    def __init__(self, state: Path, seed: int = 0) -> None:
        self.state = state
        self.seed = seed
        state.parent.mkdir(parents=True, exist_ok=True)
        self.rows: list[Row] = [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []

    def count(self, suite: str, life: str = "") -> int:
        """Return how many folders of a release were judged."""
        return sum(row["suite"] == suite and life in ("", row["life"]) for row in self.rows)

    def served(self, suite: str) -> int:
        """Return how many folders of a release its server judged."""
        return sum(row["served"] for row in self.rows if row["suite"] == suite)

    def add(self, suite: str, life: str, outcome: Outcome, *, is_served: bool) -> None:
        """Add the outcome of one folder."""
        self.rows.append({"suite": suite, "life": life, "served": is_served} | outcome._asdict())
        with self.state.open("a") as file:
            file.write(json.dumps(self.rows[-1]) + "\n")

    def judge(self, suite: str, folders: int, served_max: int) -> None:
        """Judge copies of the clean and the killed folder of a release in turn until there are enough."""
        server = Server(f"files-{suite}", 0, is_patient=False, node_name="years", home=home_of(suite))
        try:
            bases = self._bases(server, suite)
            while self.count(suite) < folders:
                for life in LIVES:
                    self._some(server, suite, life, bases[life], min(A_TURN, folders - self.count(suite)), served_max)
        finally:
            server.server.close()

    def _bases(self, server: Server, suite: str) -> dict[str, Base]:
        """Make the undamaged folders of a release, if they are not there."""
        above = self.state.with_suffix("") / suite
        if not (above / f"{LIVES[0]}-feature_flags").exists():
            shutil.rmtree(above, ignore_errors=True)
            make_folders(server, suite, above)
        other = above / "other"
        if not other.exists():
            unpack(DATA / OTHERS[suite], other)
        return {
            life: Base(f"{suite}-{life}", above / life, above / "SIGTERM" if life == "SIGKILL" else None, other / "node")
            for life in LIVES
        }

    def _some(self, server: Server, suite: str, life: str, base: Base, limit: int, served_max: int) -> None:
        queues = queues_of(suite)

        def real(folder: Path, when: str) -> list[str]:
            """Return how the server's deliveries differ from what `dump` lists; a recovery may reset other fields.

            Messages with a time to live may expire in between; then the server starts again.
            """
            expected = listed(folder, queues)
            found = served(server, folder, queues, expected, exact=when == "verify is 0")
            has_expired = bool(found) and listed(folder, queues) != expected
            return real(folder, when) if has_expired else found

        judge = Judge(base)
        with fast_folder() as above:
            for folder, damages in islice(damaged(base, above, f"{self.seed} {self.count(suite, life)}"), limit):
                judge.real = real if self.served(suite) < served_max else None
                judge.served = 0
                outcome = judge.judge(folder, damages)
                self.add(suite, life, outcome, is_served=judge.served > 0)
                for wrong in outcome.violations:
                    print(f"{base.name}: {' + '.join(map(str, damages))}: {wrong}", flush=True)
                shutil.rmtree(folder.parent)


def page(rows: list[Row]) -> str:
    """Return the table of all rows as Markdown, and what is wrong."""
    single = [row for row in rows if len(row["damages"]) == 1]
    cells: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in single:
        kind, _, how = row["damages"][0]
        cells[kind, how][_outcome(row)] += 1
    counts = Counter(SUITES[row["suite"]] for row in rows)
    head = HEAD.format(
        all=len(rows),
        releases=", ".join(f"{number} of {release}" for release, number in sorted(counts.items())),
        served=sum(row["served"] for row in rows),
        pairs=len(rows) - len(single),
        wrong=sum(bool(row["violations"]) for row in rows),
        limited=sum(_outcome(row) == "limit" for row in rows),
    )
    lines = [head, f"| File | {' | '.join(HOWS)} |", f"|{' --- |' * (len(HOWS) + 1)}"]
    for kind in sorted({kind for kind, _ in cells}):
        lines.append(f"| {kind} | {' | '.join(_text(cells[kind, how]) for how in HOWS)} |")
    pairs = Counter(_outcome(row) for row in rows if len(row["damages"]) > 1)
    lines += ["", "Two damages at once: " + (_text(pairs) or "none") + ".", "", "## Open", "", *_open(rows), LIMITED]
    return "\n".join(lines)


def _open(rows: list[Row]) -> list[str]:
    """Return a line for each folder in which a rule is broken."""
    found = []
    for row in rows:
        if row["violations"]:
            damages = " and ".join(f"{kind} {how}" for kind, _, how in row["damages"])
            text = WITHOUT_PATHS.sub("", row["violations"][0]).replace("\n", " ")[:160].rpartition(" ")[0]
            more = f" (and {len(row['violations']) - 1} more)" if len(row["violations"]) > 1 else ""
            found.append(f"- {SUITES[row['suite']]}, {row['life']}: {damages}: {text}{more}")
    return found or ["None."]


def _outcome(row: Row) -> str:
    return "**broken**" if row["violations"] else "limit" if row["limits"] else str(row["end"])


def _text(found: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(found.items()))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", type=int, default=400)
    parser.add_argument("--served", type=int, default=100, help="folders that a server judges too")
    parser.add_argument("--seed", type=int, default=0, help="another one makes other damages")
    parser.add_argument("--only", choices=SUITES, nargs="*", default=list(SHARES))
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "rabbitmq-damage.jsonl")
    requested = parser.parse_args()
    logging.getLogger("brokerstore").setLevel(logging.CRITICAL)  # openings log the damage
    run = Run(requested.state, requested.seed)
    for suite in requested.only:
        if reason := why_not(home_of(suite)):
            print(f"{SUITES[suite]} is skipped: {reason}")
        else:
            run.judge(suite, round(requested.folders * SHARES[suite]), round(requested.served * SHARES[suite]))
    if run.rows:
        PAGE.write_text(page(run.rows))


if __name__ == "__main__":
    main()
