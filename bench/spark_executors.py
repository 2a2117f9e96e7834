"""Two executors against one, in turn, on the store of `bench.spark_against_arrow`.

    python -m bench.spark_executors [--bytes 1g] [--rounds 5] [--minutes 20] [--unbound] [--folder /tmp/bench-spark]

Each executor is a process of its own with one task at a time, started by a master and workers (`local-cluster`).  An executor's
Java and Python processes share one processor, as they would on a machine with one; otherwise one executor alone uses two, for
Java and for Python, and nothing is left for the second.  `--unbound` lets them run anywhere.  Both sessions exist all the
time; each round runs a job in one and then in the other.  The driver has no processor of its own on a machine with two.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.spark_against_arrow import make_store, rounds_within
from bench.spark_live import ROOT, processes_of
from sparkstore.options import size_of

JOBS = ("audit", "read")
SETTINGS = {
    "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "800m", "spark.executor.memory": "800m", "spark.driver.host": "127.0.0.1",
}  # fmt: skip


def drive(path: Path, folder: Path, executors: int, is_bound: bool) -> None:
    """Start a session, then run each job that stdin names and print its seconds."""
    import sparkstore
    from sparkstore.jobs import audit

    settings = SETTINGS | {"spark.local.dir": str(folder / f"local-{executors}")}
    spark = sparkstore.session(f"local-cluster[{executors},1,1024]", settings=settings)
    java: Any = spark.sparkContext._jsc
    while java.sc().getExecutorMemoryStatus().size() - 1 < executors:
        time.sleep(0.1)
    if is_bound:
        bind()
    print("ready", flush=True)
    for job in map(str.strip, sys.stdin):
        began = time.perf_counter()
        if job == "audit":
            report = audit(spark, str(path))
            assert report.is_ok, report.problems[:3]
        else:
            sparkstore.read_messages(spark, str(path)).write.format("noop").mode("overwrite").save()
        print(time.perf_counter() - began, flush=True)
    spark.stop()


def bind() -> None:
    """Bind each executor with its threads to one processor, which the Python workers inherit."""
    for number, process in enumerate(sorted(processes_of(os.getpid())["executor"])):
        mine = {sorted(os.sched_getaffinity(0))[number % len(os.sched_getaffinity(0))]}
        for thread in os.listdir(f"/proc/{process}/task"):
            os.sched_setaffinity(int(thread), mine)


class Cluster:
    """A driver with its executors, in processes of their own."""

    def __init__(self, executors: int, path: Path, options: argparse.Namespace) -> None:
        words = ["--drive", str(executors), "--folder", options.folder, "--store", str(path)]
        words += ["--unbound"] if options.unbound else []
        self.driver = subprocess.Popen(
            [sys.executable, "-m", "bench.spark_executors", *words], cwd=ROOT, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(Path(options.folder) / f"errors-{executors}.txt").open("w"),
            env=os.environ | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
        )  # fmt: skip
        self.read()

    def run(self, job: str) -> float:
        """Return the seconds of one job."""
        assert self.driver.stdin is not None
        print(job, file=self.driver.stdin, flush=True)
        return float(self.read())

    def read(self) -> str:
        """Return the driver's next line."""
        assert self.driver.stdout is not None
        line = self.driver.stdout.readline()
        if not line:
            raise SystemExit(f"a driver ended with {self.driver.wait()}")
        return line

    def end(self) -> None:
        """Let the driver end, and wait for it."""
        self.driver.communicate(timeout=120)


def main() -> None:
    """Run the drivers, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", default="1g")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=3, help="rounds before those")
    parser.add_argument("--minutes", type=float, default=20, help="after that no round begins")
    parser.add_argument("--unbound", action="store_true", help="executors may use every processor")
    parser.add_argument("--folder", default="/tmp/bench-spark")
    parser.add_argument("--drive", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = Path(options.folder)
    if options.drive:
        drive(Path(options.store), folder, options.drive, not options.unbound)
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = make_store(folder, size_of(options.bytes))
    clusters = {executors: Cluster(executors, path, options) for executors in (1, 2)}
    seconds: dict[tuple[str, int], list[float]] = {(job, executors): [] for job in JOBS for executors in clusters}
    for number in rounds_within(options.minutes, options.warm, options.rounds):
        for job, executors in seconds:
            took = clusters[executors].run(job)
            print(f"round {number} {job} with {executors}: {took:.2f} s", file=sys.stderr, flush=True)
            if number > 0:
                seconds[job, executors].append(took)
    for cluster in clusters.values():
        cluster.end()
    print(f"rounds counted: {len(seconds[JOBS[0], 1])}; target: two executors at least 1.8 times as fast as one")
    for job in JOBS:
        one, two = seconds[job, 1], seconds[job, 2]
        each = [a / b for a, b in zip(one, two, strict=True)]
        middle = statistics.median(one) / statistics.median(two)
        print(f"{job:<6} {middle:.2f} ({min(each):.2f} to {max(each):.2f}), with one {statistics.median(one):.2f} s")


if __name__ == "__main__":
    main()
