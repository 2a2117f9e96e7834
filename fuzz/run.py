"""Run the fuzzers.

    python -m fuzz.run decoders --runs 200000 [--target NAME] [--seed N]      deterministic, no coverage needed
    python -m fuzz.run small-folders --runs 5000
    python -m fuzz.run small-nodes --runs 2000
    python -m fuzz.run folders --runs 500 --golden FOLDER [--rabbit]
    python -m fuzz.run guided --seconds 60 [--target NAME] [--keep]           atheris: guided by coverage

A find is kept in `fuzz/corpus/` and ends the run.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fuzz import corpus
from fuzz.decoders import TARGETS, canary, run_one
from fuzz.mutate import mutated, neighbours

ALL = {**TARGETS, "canary": canary}
NEIGHBOURS = 8  # runs per mutation; each further run changes one byte


def decoder_runs(name: str, runs: int, seed: int) -> int:
    """Run one target on its seeds and on mutations; keep and raise a find.  Return the number of runs."""
    target, seeds = ALL[name], corpus.seeds(name)
    chance = random.Random(f"{seed} {name}")
    for data in seeds:
        _run(name, target, data)
    for _ in range(-(-runs // NEIGHBOURS)):
        for data in neighbours(chance, mutated(chance, seeds), NEIGHBOURS):
            _run(name, target, data)
    return -(-runs // NEIGHBOURS) * NEIGHBOURS + len(seeds)


def _run(name: str, target: Callable[[bytes], None], data: bytes) -> None:
    try:
        run_one(target, data)
    except Exception as error:
        if name != "canary":
            sys.stderr.write(f"kept {corpus.keep(name, data)}\n")
        error.add_note(f"{name}: {data[:200].hex()}")
        raise


def _repeated(run: Callable[[int], None], runs: int, seed: int, name: str) -> int:
    """Run with each seed from this one on; an error names the run."""
    for number in range(seed, seed + runs):
        try:
            run(number)
        except Exception as error:
            error.add_note(f"{name} run {number}")
            raise
    return runs


def folder_runs(golden: Path, runs: int, seed: int, *, is_rabbit: bool) -> int:
    """Damage one golden folder `runs` times, starting with this seed."""
    from fuzz.folders import Folder

    memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as work:
        folder = Folder(golden, Path(work) / "folder", is_rabbit=is_rabbit)
        return _repeated(folder.run, runs, seed, f"folder {golden}:")


def small_folder_runs(runs: int, seed: int) -> int:
    """Damage folders in memory `runs` times: both engines, closed cleanly and not, in turn."""
    from fuzz.folders import SmallStore

    kinds = [SmallStore(is_rabbit=kind > 1, is_closed=kind % 2 == 1) for kind in range(4)]
    return _repeated(lambda number: kinds[number // 10 % len(kinds)].run(number), runs, seed, "small folder")


def small_node_runs(runs: int, seed: int) -> int:
    """Damage a node of RabbitMQ 4 in memory `runs` times."""
    from fuzz.node_folders import SmallNode

    return _repeated(SmallNode().run, runs, seed, "small node")


FINDS = ("crash", "timeout", "oom")  # prefixes of libFuzzer's artifacts


def guided(name: str, seconds: int, *, keep: bool) -> int:
    """Run one target under atheris in a child process, which libFuzzer ends; return its exit code."""
    with tempfile.TemporaryDirectory() as fresh:
        folders = [str(corpus.FOLDER / name)] if keep else [fresh, str(corpus.FOLDER / name)]
        (corpus.FOLDER / name).mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "fuzz.guided", name, *folders, f"-max_total_time={seconds}", "-max_len=4096",
                   "-rss_limit_mb=4096", "-timeout=30", "-print_final_stats=1", f"-artifact_prefix={fresh}/"]  # fmt: skip
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in made.stderr.splitlines() if "number_of_executed_units" in line or "ERROR" in line]
        print(f"{name}: exit {made.returncode} {' '.join(lines)}", flush=True)
        if made.returncode:
            for find in (path for kind in FINDS for path in Path(fresh).glob(f"{kind}-*")):
                print(f"kept {corpus.keep(name, find.read_bytes())}")
            print(made.stderr[-3000:])
        return made.returncode


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("decoders", "folders", "small-folders", "small-nodes", "guided"))
    parser.add_argument("--runs", type=int, default=200_000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=sorted(ALL))
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--rabbit", action="store_true")
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    names = [arguments.target] if arguments.target else sorted(TARGETS)
    began = time.monotonic()
    if arguments.what == "guided":
        return max(guided(name, max(1, arguments.seconds // len(names)), keep=arguments.keep) for name in names)
    if arguments.what == "small-folders":
        done = small_folder_runs(arguments.runs, arguments.seed)
    elif arguments.what == "small-nodes":
        done = small_node_runs(arguments.runs, arguments.seed)
    elif arguments.what == "folders":
        done = folder_runs(arguments.golden, arguments.runs, arguments.seed, is_rabbit=arguments.rabbit)
    else:
        done = sum(decoder_runs(name, arguments.runs // len(names), arguments.seed) for name in names)
    print(f"{done} runs, nothing found, {time.monotonic() - began:.1f} s, seed {arguments.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
