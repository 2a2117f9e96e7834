"""Judge folders of four releases in which whole files are damaged, with the server of the same release.

    BROKERSTORE_INTEROP=1 python -m tests.interop.rabbitmq4.file_evidence [--folders 400] [--only trixie] [--state FILE]

Outcomes are kept in a file of JSON lines, and the undamaged folders beside it, so that an interrupted run continues.
"""

from __future__ import annotations

import argparse
import json
import logging
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
SHARES = {"trixie": 0.7, "bookworm": 0.1, "bullseye": 0.1, "sid": 0.1}
OTHERS = dict.fromkeys(("trixie", "sid"), "rabbitmq4-clean.tar.xz")
OTHERS |= dict.fromkeys(("bookworm", "bullseye"), "cases/rabbit-dlx-3.10.8.tar.xz")
A_TURN = 20  # folders of one base before the next base
LIVES = ("SIGKILL", "SIGTERM")
Row = dict[str, Any]


class Run:
    """The folders judged so far, kept in a file."""

    def __init__(self, state: Path) -> None:
        self.state = state
        state.parent.mkdir(parents=True, exist_ok=True)
        self.rows: list[Row] = [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []

    def count(self, suite: str, life: str = "") -> int:
        """Return how many folders of a release were judged."""
        return sum(row["suite"] == suite and life in ("", row["life"]) for row in self.rows)

    def add(self, suite: str, life: str, outcome: Outcome) -> None:
        """Add the outcome of one folder."""
        self.rows.append({"suite": suite, "life": life} | outcome._asdict())
        with self.state.open("a") as file:
            file.write(json.dumps(self.rows[-1]) + "\n")

    def judge(self, suite: str, folders: int) -> None:
        """Judge copies of the clean and the killed folder of a release in turn until there are enough."""
        server = Server(f"files-{suite}", 0, is_patient=False, node_name="years", home=home_of(suite))
        try:
            bases = self._bases(server, suite)
            while self.count(suite) < folders:
                for life in LIVES:
                    self._some(server, suite, life, bases[life], min(A_TURN, folders - self.count(suite)))
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

    def _some(self, server: Server, suite: str, life: str, base: Base, limit: int) -> None:
        queues = queues_of(suite)

        def real(folder: Path, when: str) -> list[str]:
            """Return how the server's deliveries differ from what `dump` lists; a recovery may reset other fields."""
            return served(server, folder, queues, listed(folder, queues), exact=when == "verify is 0")

        judge = Judge(base, real)
        with fast_folder() as above:
            for folder, damages in islice(damaged(base, above, self.count(suite, life)), limit):
                outcome = judge.judge(folder, damages)
                self.add(suite, life, outcome)
                for wrong in outcome.violations:
                    print(f"{base.name}: {' + '.join(map(str, damages))}: {wrong}", flush=True)
                shutil.rmtree(folder.parent)


def table(rows: list[Row]) -> str:
    """Return the outcomes of single damages by kind of file and damage, as Markdown."""
    cells: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        if len(row["damages"]) == 1:
            kind, _, how = row["damages"][0]
            cells[kind, how]["**broken**" if row["violations"] else row["end"]] += 1
    lines = [f"| File | {' | '.join(HOWS)} |", f"|{' --- |' * (len(HOWS) + 1)}"]
    for kind in sorted({kind for kind, _ in cells}):
        found = (", ".join(f"{number} {name}" for name, number in sorted(cells[kind, how].items())) for how in HOWS)
        lines.append(f"| {kind} | {' | '.join(found)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", type=int, default=400)
    parser.add_argument("--only", choices=SUITES, nargs="*", default=list(SHARES))
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "rabbitmq-files.jsonl")
    asked = parser.parse_args()
    logging.getLogger("brokerstore").setLevel(logging.CRITICAL)  # openings log the damage
    run = Run(asked.state)
    for suite in asked.only:
        if reason := why_not(home_of(suite)):
            print(f"{SUITES[suite]} is skipped: {reason}")
        else:
            run.judge(suite, round(asked.folders * SHARES[suite]))
    print(table(run.rows))


if __name__ == "__main__":
    main()
