"""Try mutants of the code that writes and recovers, and list those that no test notices.

    python -m tests.mutants [--count 600] [--seed 1] [--only GROUP] [--state FILE] [--budget SECONDS]
                            [--again OUTCOME] [--wide] [--tests MODULE]

It runs the plain build in a copy of the source, two mutants at a time.  The state file has the outcomes so far, so an
interrupted run continues where it stopped.  `--report` prints all outcomes as Markdown.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from tests.mutants.generate import Mutant, compiles, mutants
from tests.mutants.table import GROUPS

ROOT = Path(__file__).resolve().parents[2]
COPIED_NOT = shutil.ignore_patterns(
    ".git", ".venv*", "build", "*.so", "*.c", "__pycache__", ".hypothesis", ".*_cache", "interop"
)
REASONS = Path(__file__).with_name("reasons.json")
OPEN = "open: neither a test nor a reason yet"
HEAD = """# Mutants

`make mutants` changes one expression or statement of the code that writes and recovers, and runs the tests that reach the
changed line, on the plain build, until one fails. `tests/mutants/table.py` names the files and the tests that are asked; they
are the quick ones, so a mutant that survives here may still be noticed by the long runs of the lab.

- *Killed*: a test failed. *Timed out*: the change made a test wait or loop, which counts as noticed.
- *Survived*: each of the tests passed. *No test reaches it*: none of the tests that were asked runs the line.

"""


def sources_of(group: str, root: Path) -> dict[str, str]:
    """Return the source of each file of a group."""
    return {file: (root / file).read_text() for file in GROUPS[group].files}


def sampled(group: str, count: int, seed: int, root: Path) -> list[Mutant]:
    """Return a group's share of `count` mutants, a random sample that depends on the seed and the source."""
    found = {name: [each for file, text in sources_of(name, root).items() for each in mutants(file, text)] for name in GROUPS}
    share = min(1.0, count / sum(map(len, found.values())))
    sources = sources_of(group, root)
    shuffled = sorted(found[group], key=lambda mutant: mutant.key)
    Random(f"{seed} {group}").shuffle(shuffled)  # a larger sample starts with the smaller one
    usable = (mutant for mutant in shuffled if compiles(mutant, sources[mutant.file]))
    return list(islice(usable, round(share * len(shuffled))))


def tried(state: Path) -> dict[str, dict[str, Any]]:
    """Return the last outcome of each mutant."""
    lines = state.read_text().splitlines() if state.exists() else []
    return {row["key"]: row for row in map(json.loads, lines)}


def run_group(group: str, requested: argparse.Namespace) -> None:
    """Run a group in a pytest process of its own, inside the copy."""
    import pytest

    from tests.mutants.run import MutantRun

    done = tried(requested.state)
    sources = sources_of(group, ROOT)
    expected = [mutant for mutant in sampled(group, requested.count, requested.seed, ROOT) if mutant.key not in done]
    every = [mutant for file, text in sources.items() for mutant in mutants(file, text)]
    expected += [mutant for mutant in every if mutant.key in done and done[mutant.key]["outcome"] in requested.again]
    if not expected:
        return
    tests = requested.tests or GROUPS[group].tests + (GROUPS[group].more if requested.wide else ())
    name = hashlib.sha256(" ".join(tests).encode()).hexdigest()[:8]
    profile = requested.state.with_name(f"{requested.state.stem}-{group}-{name}-profile.json")
    plugin = MutantRun(ROOT, sources, expected, requested.state, profile, budget_s=requested.budget, jobs=requested.jobs)
    ended = pytest.main(["-q", "--benchmark-disable", *tests], plugins=[plugin])
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"{group}: pytest ended with {ended}")


def run_all(requested: argparse.Namespace) -> None:
    """Copy the source and run each group in the copy."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as above:
        copy = Path(above) / "source"
        shutil.copytree(ROOT, copy, ignore=COPIED_NOT)
        path = os.pathsep.join(filter(None, (str(copy), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {
            "BROKERSTORE_PURE": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": path,
            "TMPDIR": above,
        }  # fmt: skip
        for group in requested.only or GROUPS:
            options = [
                "--inside",
                group,
                "--count",
                str(requested.count),
                "--seed",
                str(requested.seed),
                "--state",
                str(requested.state),
            ]
            options += ["--budget", str(requested.budget), "--jobs", str(requested.jobs)]
            options += ["--wide"] * requested.wide
            options += [word for outcome in requested.again for word in ("--again", outcome)]
            options += [word for test in requested.tests for word in ("--tests", test)]
            subprocess.run([sys.executable, "-m", "tests.mutants", *options], cwd=copy, env=environment, check=False)


def reasons() -> dict[str, str]:
    """Return why no test notices a survivor, by its key."""
    found: dict[str, str] = json.loads(REASONS.read_text()) if REASONS.exists() else {}
    return found


def report(state: Path) -> str:
    """Return the outcomes and the survivors as Markdown."""
    rows, why = list(tried(state).values()), reasons()
    outcomes = Counter((row["file"], row["outcome"]) for row in rows)
    lines = [HEAD + "| file | tried | killed | timed out | survived | no test reaches it |", "|---|---|---|---|---|---|"]
    names = ("killed", "timed out", "survived", "unreached")
    for file in sorted({row["file"] for row in rows}):
        counts = [outcomes[file, name] for name in names]
        lines.append(f"| `{file}` | {sum(counts)} | " + " | ".join(map(str, counts)) + " |")
    counts = [sum(outcomes[file, name] for file in {row["file"] for row in rows}) for name in names]
    lines += [f"| all | {sum(counts)} | " + " | ".join(map(str, counts)) + " |", ""]
    lines += [*_tiers(rows), ""]
    lines += ["| place | change | reason |", "|---|---|---|"]
    for row in sorted(rows, key=lambda row: (row["file"], row["line"])):
        if row["outcome"] in ("survived", "unreached"):
            change = f"`{_cell(row['before'])}` becomes `{_cell(row['after'])}`"
            lines.append(f"| `{row['file']}` {row['function']} | {change} | {why.get(row['key'], OPEN)} |")
    return "\n".join(lines)


def _tiers(rows: list[dict[str, Any]]) -> list[str]:
    """Return a table of the tier whose tests noticed the mutants of each group; those of the default tier run first."""
    noticed = [row for row in rows if row["outcome"] in ("killed", "timed out") and row.get("tier")]
    lines = ["| group | noticed | by the default tier | by the deep tier alone |", "|---|---|---|---|"]
    groups = [*((name, set(group.files)) for name, group in GROUPS.items()), ("all", {row["file"] for row in noticed})]
    for name, files in groups:
        tiers = Counter(row["tier"] for row in noticed if row["file"] in files)
        lines.append(f"| {name} | {tiers.total()} | {tiers['default']} | {tiers['deep']} |")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=list(GROUPS))
    parser.add_argument("--state", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--again", action="append", default=[], help="outcomes that are tried once more")
    parser.add_argument("--budget", type=float, default=4.0, help="seconds of tests for one mutant")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--wide", action="store_true", help="ask the slower tests of the table as well")
    parser.add_argument("--tests", action="append", default=[], help="ask these test modules in place of the table's")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    requested = parser.parse_args()
    requested.state = requested.state.resolve()
    if requested.report:
        print(report(requested.state))
    elif requested.inside:
        run_group(requested.inside, requested)
    else:
        run_all(requested)
    return 0


if __name__ == "__main__":
    sys.exit(main())
