"""The reliability lab without an end: crash images, faults and state machines over both engines, from ever new seeds.

    python -m lab.run --seconds 60                      # make crash
    python -m lab.run --seconds 28800 --state lab.json --report docs/evidence/lab-report.md       # make lab-night

With `--state` it continues an earlier run.  A broken promise is recorded with its seed and program, the run goes on, and the
command ends with 1; `--seed N --part NAME` runs that seed again.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import platform
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from messagestore import FlushMode
from storebytes.builds import build_name

from . import faults, machines, rabbitmq_lab, rocketmq_lab
from .deep import crash_inside
from .report import Report

ROOT = Path(__file__).resolve().parent.parent

SAVE_EVERY_S = 20
MACHINE_LIVES, MACHINE_STEPS = 20, 50


def rocketmq(seed: int, report: Report) -> None:
    """Run a random program with every crash of every step; crash some of the recoveries too."""
    rocketmq_lab.random_run(seed, 25, report=report, deep=150)


def rabbitmq(seed: int, report: Report) -> None:
    """Run a random program of the other engine in the same way."""
    rabbitmq_lab.random_run(seed, 40, report=report, deep=100)


def three_operations(seed: int, report: Report) -> None:
    """Run a random program of three operations with every crash."""
    operations = rocketmq_lab.OPERATIONS
    random = Random(seed)
    rocketmq_lab.small_scope([[random.choice(operations) for _ in range(3)]], report=report)


def three_deep(seed: int, report: Report) -> None:
    """Crash a recovery, the recovery of that crash, and the recovery of that one."""
    random = Random(seed)
    run = rocketmq_lab.RocketmqRun(seed, config=rocketmq_lab.any_config(random), tries=False)
    for _ in range(12):
        run.do(rocketmq_lab.any_operation(random))
    flushed = run.ledger.flushed
    run.ledger.learn(run.store)
    for image in (run.disk.any_image(random), run.disk.after_kill(), run.disk.least()):
        tried = crash_inside(image, run.disk.time_ms, lambda disk: run.recover(disk, flushed), random, depth=3, chances=0)
        report.images += tried
        report.again += tried


OPTION_SETS: list[dict[str, Any]] = [
    {"flush_disk_type": flush, "message_index_enable": is_indexed, "mapped_file_size_consume_queue": size}
    for flush in (FlushMode.ASYNC, FlushMode.SYNC) for is_indexed in (True, False) for size in (60, 100, 8000)
]  # fmt: skip


@functools.cache
def every_fault(option_set: int) -> list[faults.Fault]:
    """Return the faults of the base workload with these options; the last set stands for the other engine."""
    counted = faults.Counted()
    if option_set == len(OPTION_SETS):
        faults.run_rabbitmq(faults.RABBITMQ_PROGRAM, counted)
    else:
        faults.run_rocketmq(faults.ROCKETMQ_PROGRAM, counted, **OPTION_SETS[option_set])
    return list(faults.faults_of(counted.calls))


@functools.cache
def all_faults() -> list[tuple[int, faults.Fault]]:
    """Return the faults of all option sets, shuffled so that an early stop has covered each set."""
    every = [(number, fault) for number in range(len(OPTION_SETS) + 1) for fault in every_fault(number)]
    Random(1).shuffle(every)
    return every


def fault(seed: int, report: Report) -> None:
    """Run the base workload with fault number `seed`."""
    option_set, one = all_faults()[seed % len(all_faults())]
    if option_set == len(OPTION_SETS):
        faults.suffer_rabbitmq(faults.RABBITMQ_PROGRAM, one)
    else:
        faults.suffer_rocketmq(faults.ROCKETMQ_PROGRAM, one, **OPTION_SETS[option_set])
    report.images += 4


def machine(name: str) -> Callable[[int, Report], None]:
    """Return a function that runs lives of a Hypothesis machine; it counts steps, not crash images."""

    def live(seed: int, _report: Report) -> None:
        import hypothesis
        from hypothesis.stateful import run_state_machine_as_test

        profile = hypothesis.settings(
            max_examples=MACHINE_LIVES, stateful_step_count=MACHINE_STEPS, deadline=None, database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )  # fmt: skip
        seeded = hypothesis.seed(seed)(type(name, (getattr(machines, name),), {}))
        run_state_machine_as_test(seeded, settings=profile)

    return live


class Part(NamedTuple):
    """One kind of run: seeds per round, the function that runs a seed, and the number of seeds."""

    share: int
    do: Callable[[int, Report], None]
    steps: int = 0  # per seed
    limit: Callable[[], float] = lambda: float("inf")


PARTS = {
    "rocketmq": Part(2, rocketmq), "rabbitmq": Part(6, rabbitmq), "three operations": Part(6, three_operations),
    "three deep": Part(1, three_deep), "faults": Part(40, fault, limit=lambda: len(all_faults())),
    "rocketmq machine": Part(1, machine("RocketMachine"), MACHINE_LIVES * MACHINE_STEPS),
    "rabbitmq machine": Part(1, machine("RabbitMachine"), MACHINE_LIVES * MACHINE_STEPS),
}  # fmt: skip


class Night:
    """Counts and finds of all runs so far."""

    def __init__(self, path: Path | None) -> None:
        """Load the state file if it exists."""
        self.path = path
        found = json.loads(path.read_text()) if path is not None and path.exists() else {}
        self.seeds: Counter[str] = Counter(found.get("seeds"))
        self.images: Counter[str] = Counter(found.get("images"))
        self.again: Counter[str] = Counter(found.get("again"))
        self.kinds: dict[str, Counter[str]] = {part: Counter(counts) for part, counts in found.get("kinds", {}).items()}
        self.found: list[dict[str, Any]] = found.get("found", [])
        self.cpu_seconds: float = found.get("cpu_seconds", 0.0)

    def add(self, part: str, report: Report) -> None:
        """Add the counts of one seed."""
        self.seeds[part] += 1
        self.images[part] += report.images
        self.again[part] += report.again
        kinds = self.kinds.setdefault(part, Counter())
        for (operation, kind), count in report.by_kind.items():
            kinds[f"{operation}|{kind}"] += count

    def save(self) -> None:
        """Write the state file and replace the old one in one step."""
        if self.path is not None:
            names = ("seeds", "images", "again", "kinds", "found", "cpu_seconds")
            fresh = self.path.with_suffix(".new")
            fresh.write_text(json.dumps({name: getattr(self, name) for name in names}, indent=1))
            fresh.replace(self.path)

    def lines(self) -> list[str]:
        """Return the report as Markdown lines."""
        lines = ["| part | seeds | crash images opened and checked | of recoveries | steps |"]
        lines.append("| --- | ---: | ---: | ---: | ---: |")
        for name, part in PARTS.items():
            steps = f"{self.seeds[name] * part.steps:,}" if part.steps else ""
            lines.append(f"| {name} | {self.seeds[name]:,} | {self.images[name]:,} | {self.again[name]:,} | {steps} |")
        lines.append(f"| all | {self.seeds.total():,} | {self.images.total():,} | {self.again.total():,} | |")
        lines += ["", f"{self.cpu_seconds / 3600:.2f} hours of one core that other work shared, {build_name()} kernels."]
        for name in ("rocketmq", "rabbitmq", "three operations"):
            lines += ["", *self._table(name)]
        open_finds = [one for one in self.found if not one.get("is_mended")]
        lines += [
            "",
            f"Broken promises: {len(self.found)} found, {len(open_finds)} of them not mended (their seeds break today).",
        ]
        for one in self.found:
            repaired = "; mended since: the seed holds" if one.get("is_mended") else ""
            lines.append(f"- {one['part']}, seed {one['seed']}: {one['error'].splitlines()[0]}{repaired}")
        return lines

    def retry(self) -> None:
        """Run the seeds of earlier finds again, to learn which are fixed."""
        for one in self.found:
            try:
                PARTS[one["part"]].do(one["seed"], Report())
                one["is_mended"] = True
            except Exception as error:
                one["is_mended"] = False
                print(f"still broken: {one['part']}, seed {one['seed']}: {str(error).splitlines()[0]}")
        self.save()

    def _table(self, part: str) -> list[str]:
        """Return a table of images in which a crash left several possible states, by operation and kind of file."""
        counts = self.kinds.get(part, Counter())
        operations = sorted({key.split("|")[0] for key in counts})
        kinds = sorted({key.split("|")[1] for key in counts})
        lines = [f"| {part}: during | {' | '.join(kinds)} |", "| --- |" + " ---: |" * len(kinds)]
        for operation in operations:
            row = (f"{counts[f'{operation}|{kind}']:,}" for kind in kinds)
            lines.append(f"| {operation} | {' | '.join(row)} |")
        return lines


def run(night: Night, names: list[str], first_seed: int, is_over: Callable[[], bool]) -> None:
    """Run the parts in rounds until `is_over` returns true or no seeds are left."""
    saved, cpu = time.monotonic(), time.process_time()
    is_at_work = True
    while is_at_work:
        is_at_work = False
        for name in names:
            for _ in range(PARTS[name].share):
                if night.seeds[name] >= PARTS[name].limit():
                    break
                is_at_work = True
                one_seed(night, name, first_seed)
                night.cpu_seconds, cpu = night.cpu_seconds + time.process_time() - cpu, time.process_time()
                if time.monotonic() - saved > SAVE_EVERY_S:
                    night.save()
                    saved = time.monotonic()
                if is_over():
                    return


def one_seed(night: Night, name: str, first_seed: int) -> None:
    """Run one seed; record a find.  Images checked before the find count."""
    report = Report()
    seed = first_seed + night.seeds[name]
    try:
        PARTS[name].do(seed, report)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        night.found.append({"part": name, "seed": seed, "error": text})
        print(f"BROKEN {name}, seed {seed}\n{text}", flush=True)
        night.save()
    night.add(name, report)


def stop_politely(_number: int, _frame: Any) -> None:
    """Raise KeyboardInterrupt on SIGTERM."""
    raise KeyboardInterrupt


HEAD = """# The lab's long runs

Written by `make lab-night`.  Every image was recovered and checked against what was promised; where a promise was broken, the
seed is at the end.
"""


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--images", type=int, default=0, help="end when so many images were checked")
    parser.add_argument("--state", type=Path)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--retry", action="store_true", help="first run the seeds again that broke a promise")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if given.seed is not None:
        report = Report()
        PARTS[(given.part or ["rocketmq"])[0]].do(given.seed, report)
        print(report.table())
        return 0
    night = Night(given.state)
    end = time.monotonic() + given.seconds
    signal.signal(signal.SIGTERM, stop_politely)
    try:
        if given.retry:
            night.retry()
        run(night, given.part or list(PARTS), given.first_seed,
            lambda: time.monotonic() > end or 0 < given.images <= night.images.total())  # fmt: skip
    except KeyboardInterrupt:
        print("stopped")
    finally:
        night.save()
    print("\n".join(night.lines()))
    if given.report is not None:
        where = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
        given.report.write_text("\n".join([HEAD, f"Machine: {where}.", "", *night.lines(), ""]))
    return 1 if any(not one.get("is_mended") for one in night.found) else 0


if __name__ == "__main__":
    sys.exit(main())
