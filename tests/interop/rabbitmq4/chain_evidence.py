"""Write docs/evidence/rabbitmq-upgrades.md: folders that a release wrote, or several in turn, judged by the last one.

    BROKERSTORE_INTEROP=1 python -m tests.interop.rabbitmq4.chain_evidence [--lives 12] [--only NUMBER ...] [--state FILE]

Outcomes are kept in a file of JSON lines, so that an interrupted run continues, and the folders of broken rules beside it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from .chains import CHAINS, Outcome, name_of, run_chain
from .server import home_of, why_not
from .years import SUITES

ROOT = Path(__file__).parents[3]
KINDS = (*((suite,) for suite in SUITES), *CHAINS)
PAGE = ROOT / "docs/evidence/rabbitmq-upgrades.md"
HEAD = """# RabbitMQ folders of one release, and through upgrades

Written by `python -m tests.interop.rabbitmq4.chain_evidence`. A server of each release starts on the folder that the one before
left, adds queues of its own, and is stopped or killed while random programs work on all of them: dead letters, copies, times to
live, limits, priorities, names beyond ASCII, acknowledgements in any order. The last server judges the folder: after a restart
it delivers what `dump` listed, message by message, with properties, routes and flags, and again after `recover --apply`.
"Khepri" is the move of the metadata from Mnesia to Khepri, with messages in the queues. A node with another name was renamed by
`rabbitmqctl` (3.8.9, 3.10.8), or has the folder of the former name; it refuses exactly the queues that `verify` names. A folder
that a server refuses is judged by the one before.

{all} chains with {programs} programs and {messages} messages listed at their ends: {equal} as the server delivers them,
{after} after `recover`, {broken} broken.
"""
OTHER_QUEUES = 3  # of a chain: dead letters and copies


def read(state: Path) -> dict[tuple[tuple[str, ...], int], Outcome]:
    """Return the chains judged so far by servers and seed."""
    lines = state.read_text().splitlines() if state.exists() else []
    rows = [Outcome(**json.loads(line)) for line in lines]
    return {(tuple(row.chain), row.seed): row for row in rows}


def judge(chain: tuple[str, ...], life: int, seed: int, state: Path) -> None:
    """Run and judge one chain, and add its outcome to the file; keep the folder if a rule is broken."""
    with tempfile.TemporaryDirectory() as above:
        outcome = run_chain(chain, life, seed, Path(above))
        with state.open("a") as file:
            file.write(json.dumps(outcome._asdict()) + "\n")
        if outcome.wrong:
            target = state.with_suffix("") / f"{name_of(chain)} {outcome.seed}"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(above, target)
    print(name_of(chain), outcome.seed, outcome.ends, outcome.messages, outcome.server, outcome.wrong[:3], flush=True)


def page(rows: list[Outcome]) -> str:
    """Return the text of the page."""
    needed = [row for row in rows if not row.wrong and "recover" in row.server]
    broken = [row for row in rows if row.wrong]
    lines = [
        HEAD.format(
            all=len(rows),
            programs=sum(map(_programs, rows)),
            messages=sum(sum(row.messages.values()) for row in rows),
            equal=len(rows) - len(needed) - len(broken),
            after=len(needed),
            broken=len(broken),
        ),
        "| Servers | Chains | With a kill | Programs | Messages | The last server | `verify` finds | Broken |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for chain in KINDS:
        own = [row for row in rows if tuple(row.chain) == chain]
        if own:
            lines.append(f"| {name_of(chain)} | {' | '.join(_cells(own))} |")
    lines += ["", "## Broken", "", *(_open(row) for row in broken)] if broken else []
    return "\n".join(lines) + "\n"


def _programs(row: Outcome) -> int:
    return row.queues - OTHER_QUEUES


def _cells(rows: list[Outcome]) -> list[str]:
    servers = Counter(row.server for row in rows)
    findings = Counter(kind for row in rows for kind in row.findings)
    return [
        str(len(rows)),
        str(sum("SIGKILL" in row.ends for row in rows)),
        str(sum(map(_programs, rows))),
        str(sum(sum(row.messages.values()) for row in rows)),
        ", ".join(f"{number} {text}" for text, number in sorted(servers.items())),
        ", ".join(f"{number} `{kind}`" for kind, number in sorted(findings.items())) or "nothing",
        str(sum(bool(row.wrong) for row in rows)),
    ]


def _open(row: Outcome) -> str:
    text = row.wrong[0].replace("\n", " ")[:160].rpartition(" ")[0]
    more = f" (and {len(row.wrong) - 1} more)" if len(row.wrong) > 1 else ""
    return f"- {name_of(tuple(row.chain))}, {row.seed}, {' '.join(row.ends)}: {text}{more}"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lives", type=int, default=12, help="chains of each kind, with kills at other steps")
    parser.add_argument("--seed", type=int, default=1, help="of the first chain; another one makes other programs")
    parser.add_argument("--only", type=int, nargs="*", default=range(len(KINDS)), help="kinds of chains, by their number")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "rabbitmq-upgrades.jsonl")
    requested = parser.parse_args()
    for chain in (KINDS[number] for number in requested.only):
        why = next(filter(None, (why_not(home_of(suite)) for suite in chain if suite in SUITES)), "")
        for life in range(requested.lives if not why else 0):
            if (chain, requested.seed + life) not in read(requested.state):
                judge(chain, life, requested.seed + life, requested.state)
        if why:
            print(f"{name_of(chain)} is skipped: {why}")
    if rows := list(read(requested.state).values()):
        PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
