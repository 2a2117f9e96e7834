"""The long runs: kills, reads beside a writer, every bit of golden logs, fuzzers, planted bugs.

    python -m tests.faults.night [--state FILE] [--kills 20000] [--shared 20000] [--live 2000] [--decoders 100000000]
                                 [--folders 1000000] [--nodes 20000] [--only PART]

The state file has the counts so far, so an interrupted run continues where it stopped.  Prints the counts as Markdown.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.decoders import SLOW, TARGETS
from fuzz.run import decoder_runs, small_folder_runs, small_node_runs
from messagestore import FlushMode
from tests.faults.golden import fast_folder
from tests.faults.kill_loop import KillLoop
from tests.faults.live_reads import live_runs
from tests.faults.log_flips import golden_log, sweep
from tests.faults.rabbit_entries import sweeps
from tests.faults.rabbit_kill_loop import RabbitKillLoop
from tests.shared.kill_run import KillRun
from tests.shared.processes import Child

ROOT = Path(__file__).resolve().parents[2]
GOLDEN_LOGS = ("propcrc", "lmq", "cqext")
RABBIT_STEP, RABBIT_RECOVERED = 2000, 10  # steps per folder; every n-th damaged folder is recovered too
LIVE_STEP = 200  # runs beside one writer
SHARED_KILLS, SHARED_PAUSE_S = 500, 0.05
KILLS_A_STORE, BITS_A_STEP, DECODER_STEP, FOLDER_STEP, NODE_STEP = 10, 20_000, 320_000, 4000, 500


class Night:
    """The counts so far, saved after every step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def add(self, name: str, count: int) -> None:
        """Add to a count and save all of them."""
        self.done[name] = self.done.get(name, 0) + count
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(self.done, indent=1))
        fresh.replace(self.path)

    def until(self, name: str, limit: int, step: Callable[[int], int]) -> None:
        """Run steps up to the limit; each gets the count so far."""
        while self.done.get(name, 0) < limit:
            self.add(name, step(self.done.get(name, 0)))

    def report(self) -> str:
        """Return the counts as a Markdown table."""
        return "\n".join(["| run | count |", "|---|---|", *(f"| {name} | {count:,} |" for name, count in self.done.items())])


def kills(kind: type[KillLoop]) -> Callable[[int], int]:
    """Return a step that kills one new store KILLS_A_STORE times."""

    def step(done: int) -> int:
        with fast_folder() as folder:
            loop = kind(folder / "store", seed=done)
            for _ in range(KILLS_A_STORE):
                loop.cycle()
            loop.check()
            return loop.cycles

    return step


def shared_kills(done: int) -> int:
    """Kill processes that share a new store; every second store has synchronous flush."""
    flush = FlushMode.SYNC if done // SHARED_KILLS % 2 else FlushMode.ASYNC
    with fast_folder() as folder:
        run = KillRun(folder / "store", done, flush)
        try:
            run.run(SHARED_KILLS, SHARED_PAUSE_S)
        finally:
            Child.kill_all()
        run.check()
        return SHARED_KILLS


def live(done: int) -> int:
    """Run the tool's reading commands beside one writer at full speed."""
    with fast_folder() as folder:
        return live_runs(folder / "store", LIVE_STEP, seed=1000 + done).total()


def bits(name: str) -> Callable[[int], int]:
    """Return a step that flips the next bits of a golden log, file after file."""

    def step(done: int) -> int:
        with fast_folder() as folder:
            for file in golden_log(name, folder):
                size = 8 * len(file.data)
                if done < size:
                    found: Counter[str] = sweep(file, range(done, min(done + BITS_A_STEP, size)))
                    return found.total()
                done -= size
        raise AssertionError("more bits asked for than there are")

    return step


def bits_in(name: str) -> int:
    """Return the number of bits in a golden log."""
    with fast_folder() as folder:
        return sum(8 * len(file.data) for file in golden_log(name, folder))


def rabbit_entries(number: int) -> Callable[[int], int]:
    """Return a step that damages a virtual host at the next places of one sweep."""

    def step(done: int) -> int:
        with fast_folder() as folder:
            sweep = sweeps(folder)[number]
            return sweep.run(done, done + RABBIT_STEP, 1, folder / "copy", RABBIT_RECOVERED).total()

    return step


def rabbit_locations() -> list[tuple[str, int]]:
    """Return the name and the number of places of each sweep."""
    with fast_folder() as folder:
        return [(sweep.name, len(sweep.paths)) for sweep in sweeps(folder)]


def decoders(done: int) -> int:
    """Fuzz every decoder with a new seed; slow ones get fewer runs."""
    share = DECODER_STEP // len(TARGETS)
    return sum(decoder_runs(name, share // SLOW.get(name, 1), 1000 + done) for name in TARGETS)


def folders(done: int) -> int:
    """Fuzz small folders of both engines in memory."""
    return small_folder_runs(FOLDER_STEP, 1000 + done)


def nodes(done: int) -> int:
    """Fuzz the folder of a RabbitMQ 4 node in memory."""
    return small_node_runs(NODE_STEP, 1000 + done)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "damage-night.json")
    parser.add_argument("--kills", type=int, default=20_000)
    parser.add_argument("--shared", type=int, default=20_000)
    parser.add_argument("--decoders", type=int, default=100_000_000)
    parser.add_argument("--folders", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--live", type=int, default=2000)
    parser.add_argument(
        "--only", choices=("kills", "shared", "live", "bits", "rabbit", "decoders", "folders", "nodes", "planted")
    )
    requested = parser.parse_args()
    requested.state.parent.mkdir(exist_ok=True)
    logging.getLogger("brokerstore").setLevel(logging.CRITICAL)  # openings log the damage
    night = Night(requested.state)
    if requested.only in (None, "kills"):
        night.until("SIGKILL cycles", requested.kills, kills(KillLoop))
        night.until("SIGKILL cycles of RabbitMQ's store", requested.kills, kills(RabbitKillLoop))
    if requested.only in (None, "shared"):
        night.until("SIGKILLs of processes that share a store", requested.shared, shared_kills)
    if requested.only in (None, "live"):
        night.until("reading commands beside a writer", requested.live, live)
    for name in GOLDEN_LOGS if requested.only in (None, "bits") else ():
        night.until(f"bits of the log of {name}", bits_in(name), bits(name))
    for number, (name, paths) in enumerate(rabbit_locations()) if requested.only in (None, "rabbit") else ():
        night.until(f"RabbitMQ folder, {name}", paths, rabbit_entries(number))
    if requested.only in (None, "planted") and not night.done.get("planted bugs, all caught"):
        subprocess.run([sys.executable, str(ROOT / "scripts" / "planted_bugs.py")], check=True)
        night.add("planted bugs, all caught", 1)
    if requested.only in (None, "decoders"):
        night.until("decoder fuzz runs", requested.decoders, decoders)
    if requested.only in (None, "folders"):
        night.until("folder fuzz runs", requested.folders, folders)
    if requested.only in (None, "nodes"):
        night.until("folder fuzz runs of RabbitMQ 4 nodes", requested.nodes, nodes)
    print(night.report())


if __name__ == "__main__":
    main()
