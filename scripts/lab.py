"""The reliability lab for as long as wanted: crash images of random programs over both engines, from ever new seeds.

    python scripts/lab.py --seconds 60                      # make crash
    python scripts/lab.py --seconds 28800 --state lab.json --report docs/lab-report.md       # make lab-night

With `--state` it goes on where it stopped, whoever stopped it.  A broken promise ends it with the seed and the program that
show it; `--seed N --part NAME` runs that one again.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from brokerstore.testing import faults, rabbitmq_lab, rocketmq_lab  # noqa: E402
from brokerstore.testing.deep import crash_inside  # noqa: E402
from brokerstore.testing.report import Report  # noqa: E402
from brokerstore.testing.rocketmq_check import Broken  # noqa: E402
from messagestore import FlushMode  # noqa: E402
from storebytes.builds import build_name  # noqa: E402

SAVE_EVERY_S = 20


def rocketmq(seed: int, report: Report) -> None:
    """A random program, every crash of every step, some recoveries crashed too."""
    rocketmq_lab.random_run(seed, 25, report=report, deep=150)


def rabbitmq(seed: int, report: Report) -> None:
    """The same of the other engine."""
    rabbitmq_lab.random_run(seed, 40, report=report, deep=100)


def three_operations(seed: int, report: Report) -> None:
    """One of all programs of three operations, in an order of its own."""
    operations = rocketmq_lab.OPERATIONS
    random = Random(seed)
    rocketmq_lab.small_scope([[random.choice(operations) for _ in range(3)]], report=report)


def three_deep(seed: int, report: Report) -> None:
    """A crash inside the recovery of a recovery of a recovery."""
    random = Random(seed)
    run = rocketmq_lab.Run(seed, config=rocketmq_lab.any_config(random), tries=False)
    for _ in range(12):
        run.do(rocketmq_lab.any_operation(random))
    flushed = run.ledger.flushed
    run.ledger.learn(run.store)
    image = run.disk.any_image(random)
    tried = crash_inside(image, run.disk.time_ms, lambda disk: run.recover(disk, flushed), random, depth=3, chances=0)
    report.images += tried
    report.again += tried


def fault(seed: int, report: Report) -> None:
    """One fault of a base workload in one of the option sets."""
    random = Random(seed)
    changes: dict[str, Any] = {
        "flush_disk_type": random.choice((FlushMode.ASYNC, FlushMode.SYNC)),
        "message_index_enable": random.random() < 0.8,
        "mapped_file_size_consume_queue": random.choice((60, 100, 8000)),
    }
    kind, number = random.choice(list(faults.KINDS)), random.randrange(1, 200)
    try:
        if random.random() < 0.5:
            faults.suffer_rocketmq(faults.ROCKETMQ_PROGRAM, faults.Fault(kind, number, random.random() < 0.5), **changes)
        else:
            faults.suffer_rabbitmq(faults.RABBITMQ_PROGRAM, faults.Fault(kind, number, random.random() < 0.5))
    except Broken as error:
        if "the fault never came" not in str(error):
            raise
    report.images += 4


PARTS: dict[str, tuple[int, Callable[[int, Report], None]]] = {  # how many seeds in a round
    "rocketmq": (2, rocketmq), "rabbitmq": (6, rabbitmq), "three operations": (6, three_operations),
    "three deep": (1, three_deep), "faults": (20, fault),
}  # fmt: skip


class Night:
    """What was done so far."""

    def __init__(self, path: Path | None) -> None:
        """Goes on from the file, if there is one."""
        self.path = path
        self.seeds: Counter[str] = Counter()
        self.images: Counter[str] = Counter()
        self.seconds = 0.0
        if path is not None and path.exists():
            found = json.loads(path.read_text())
            self.seeds, self.images, self.seconds = Counter(found["seeds"]), Counter(found["images"]), found["seconds"]

    def save(self) -> None:
        """All new or all old."""
        if self.path is not None:
            text = json.dumps({"seeds": self.seeds, "images": self.images, "seconds": self.seconds}, indent=1)
            fresh = self.path.with_suffix(".new")
            fresh.write_text(text)
            fresh.replace(self.path)

    def lines(self) -> list[str]:
        """As a table."""
        lines = ["| part | seeds | crash images opened and checked |", "| --- | ---: | ---: |"]
        lines += [f"| {part} | {self.seeds[part]:,} | {self.images[part]:,} |" for part in PARTS]
        total = f"| all | {sum(self.seeds.values()):,} | {sum(self.images.values()):,} |"
        return [
            *lines,
            total,
            "",
            f"{self.seconds / 3600:.2f} hours on one core that other work shared, {build_name()} kernels.",
        ]


def run(night: Night, seconds: float, first_seed: int) -> None:
    """Round by round until the time is over."""
    end = time.monotonic() + seconds
    saved = last = time.monotonic()
    while time.monotonic() < end:
        for part, (count, do) in PARTS.items():
            for _ in range(count):
                report = Report()
                do(first_seed + night.seeds[part], report)
                night.seeds[part] += 1
                night.images[part] += report.images
                now = time.monotonic()
                night.seconds, last = night.seconds + now - last, now
                if now - saved > SAVE_EVERY_S:
                    night.save()
                    saved = now
                if now > end:
                    return


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--part", choices=PARTS, default="rocketmq")
    parser.add_argument("--first-seed", type=int, default=1000)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if given.seed is not None:
        report = Report()
        PARTS[given.part][1](given.seed, report)
        print(report.table())
        return 0
    night = Night(given.state)
    try:
        run(night, given.seconds, given.first_seed)
    except Broken as error:
        print(f"BROKEN\n{error}")
        return 1
    except KeyboardInterrupt:
        print("stopped")
    finally:
        night.save()
    print("\n".join(night.lines()))
    if given.report is not None:
        head = "# The lab's long runs\n\nWritten by `make lab-night`; every image was recovered and held what was promised.\n"
        given.report.write_text("\n".join([head, *night.lines(), ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
