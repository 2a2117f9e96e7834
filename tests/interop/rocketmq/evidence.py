"""Write docs/evidence/rocketmq-damage.md: what becomes of each kind of file and damage, judged by the real store and broker.

    BROKERSTORE_INTEROP=1 python -m tests.interop.rocketmq.evidence [--folders 400] [--brokers 36] [--state FILE] [--again]

Results are kept in a file of JSON lines, so that an interrupted run continues.  Without Java and Maven the plain model judges
alone, and no page is written.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from tests.faults.damaged_stores import OURS, REAL, Template, damaged_copies, template
from tests.faults.file_damage import HOWS, Damage
from tests.faults.file_judge import Judge, Outcome, Real
from tests.faults.golden import fast_folder

from .judged import JAVA, BrokerJudge, RealStoreJudge, java_template
from .jvm import prepare, why_not

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/evidence/rocketmq-damage.md"
WITH_CONFIG = ("broker-live", "broker-ext", "broker-timer", "broker-pop", "broker-rocksdb", *OURS)
OF_A_BROKER = ("config/", "timer", "checkpoint", "abort", "RocksDB")
A_ROUND = 60  # folders of one template and seed
Row = dict[str, Any]
Takes = Callable[[Damage], bool]
HEAD = """# Damage to whole files of a RocketMQ store

Written by `python -m tests.interop.rocketmq.evidence`. Each folder is a copy of a store of a real broker, or of one that
brokerstore wrote, clean or killed, with one damage or two. `verify` judges it, and then the printed commands are run.
A plain model of the files says which messages each part names. The store and the broker of RocketMQ 5.3.3 are started on
every folder that `verify` calls intact, before or after, and deliver what `dump` lists.

{all} folders: {store} judged by the real store, {broker} by a real broker; {pairs} have two damages.
Folders in which a rule is broken: {wrong}.

- *intact*: `verify` is 0 and nothing contradicts it
- *repaired*: the printed commands end at `verify` 0, and nothing is lost
- *choice*: `recover` asks for `--skip-bad` or `--truncate`, and both end at `verify` 0 with every loss counted
- *person*: the tool says why it does nothing, or that the folder is not understood
- **broken**: an uncounted loss, a dead end, or another answer of the real system
"""


class Run:
    """The folders judged so far, kept in a file."""

    def __init__(self, state: Path, *, again: bool = False) -> None:
        """Read the file; `again` forgets the folders in which a rule is broken, so that they are judged again."""
        self.state = state
        state.parent.mkdir(parents=True, exist_ok=True)
        lines = state.read_text().splitlines() if state.exists() else []
        self.rows: list[Row] = [json.loads(line) for line in lines]
        if again:
            self.rows = [row for row in self.rows if not row["violations"]]
            state.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        self.done = {(row["judge"], row["store"], row["seed"], row["number"]) for row in self.rows}

    def count(self, judge: str) -> int:
        """Return how many folders one judge has judged."""
        return sum(row["judge"] == judge for row in self.rows)

    def add(self, key: tuple[str, str, int, int], outcome: Outcome) -> None:
        """Add the outcome of one folder."""
        names = dict(zip(("judge", "store", "seed", "number"), key, strict=True))
        self.rows.append(names | outcome._asdict())
        self.done.add(key)
        with self.state.open("a") as file:
            file.write(json.dumps(self.rows[-1]) + "\n")

    def judge(self, kind: str, names: tuple[str, ...], folders: int, real: Real | None, takes: Takes = lambda _: True) -> None:
        """Judge copies of each store in turn until there are enough."""
        share = -(-folders // len(names))
        for seed in count():
            for name in names:
                if self.count(kind) >= folders:
                    return
                self._some(kind, name, seed, min(share, A_ROUND), real, takes)

    def _some(self, kind: str, name: str, seed: int, limit: int, real: Real | None, takes: Takes) -> None:
        """Judge the first copies of one store and seed that are not judged yet."""
        with fast_folder() as above:
            made = _made(name, real, above / "template")
            judge = Judge(made, above / "scratch", real)
            for number, (folder, damages) in enumerate(_taken(made, above, seed, takes)):
                if number == limit:
                    break
                if (key := (kind, name, seed, number)) not in self.done:
                    self.add(key, judge.judge(folder, damages))
            if isinstance(real, RealStoreJudge):
                real.close()


def _made(name: str, real: Real | None, above: Path) -> Template:
    """Make a template; those of the real store need its JVM."""
    return java_template(name, real, above) if isinstance(real, RealStoreJudge) and name in JAVA else template(name, above)


def _taken(made: Template, above: Path, seed: int, takes: Takes) -> Iterator[tuple[Path, list[Damage]]]:
    return ((folder, found) for folder, found in damaged_copies(made, above / "damaged", seed) if all(map(takes, found)))


# The page


def page(rows: list[Row]) -> str:
    """Return the table of all rows as Markdown."""
    single = [row for row in rows if len(row["damages"]) == 1]
    cells: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in single:
        kind, _, how = row["damages"][0]
        cells[_kind(kind), how][_outcome(row)] += 1
    pairs = Counter(_outcome(row) for row in rows if len(row["damages"]) > 1)
    wrong = sum(bool(row["violations"]) for row in rows)
    by = {name: sum(row["judge"] == name for row in rows) for name in ("store", "broker")}
    head = HEAD.format(all=len(rows), pairs=len(rows) - len(single), wrong=wrong, **by)
    lines = [head, f"| File | {' | '.join(HOWS)} |", f"|{' --- |' * (len(HOWS) + 1)}"]
    for kind in sorted({kind for kind, _ in cells}):
        lines.append(f"| {kind} | {' | '.join(_text(cells[kind, how]) for how in HOWS)} |")
    lines += ["", "Two damages at once: " + (_text(pairs) or "none") + ".", ""]
    return "\n".join(lines)


def _kind(kind: str) -> str:
    return kind.removesuffix(".bak") + " (backup)" if kind.endswith(".bak") else kind


def _outcome(row: Row) -> str:
    return "**broken**" if row["violations"] else str(row["end"]).replace("/", " or ")


def _text(found: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(found.items()))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", type=int, default=400)
    parser.add_argument("--brokers", type=int, default=36)
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "rocketmq-damage.jsonl")
    parser.add_argument("--again", action="store_true", help="judge the folders again in which a rule was broken")
    requested = parser.parse_args()
    logging.getLogger("brokerstore").setLevel(logging.CRITICAL)  # openings log the damage
    run = Run(requested.state, again=requested.again)
    if reason := why_not():
        print(f"judged by the plain model alone: {reason}")
        run.judge("model", (*REAL, *OURS), requested.folders, None)
        return
    prepare()
    with fast_folder() as scratch:
        store = RealStoreJudge(scratch / "stderr")
        run.judge("store", (*REAL, *OURS, *JAVA), requested.folders, store)
        store.end()
        run.judge(
            "broker",
            WITH_CONFIG,
            requested.brokers,
            BrokerJudge(scratch / "brokers"),
            lambda one: one.kind.startswith(OF_A_BROKER),
        )
    PAGE.write_text(page(run.rows))
    for row in run.rows:
        for wrong in row["violations"]:
            print(f"{row['store']}: {' + '.join(f'{how} {path}' for _, path, how in row['damages'])}: {wrong}")


if __name__ == "__main__":
    main()
