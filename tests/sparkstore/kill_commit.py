"""Kill a commit before each of its storage calls: `python -m tests.sparkstore.kill_commit FROM WORK`.

Read-only calls on files that are not staged parts are skipped, because a kill there leaves what a kill before the next call
leaves.  A child is forked for each call, since this process has no threads.  Prints the number of kills, and after how many of
them the next commit had every message in the log once and in order.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import warnings
from pathlib import Path

import numpy  # noqa: F401  imported once here instead of in every child
import pyarrow.compute  # noqa: F401

from sparkstore.sink.commit import commit_batch
from storageio.testing import CountingDisk
from tests.sparkstore.sink_tools import bodies, left_behind, one_queue, rows_of, stage_rows

EXPECTED = [row["body"] for row in rows_of(65)]
SINK = "query-1"
CALLS_MAX = 2000
COMPARISONS = frozenset({"open", "read", "size", "stat", "list", "next data", "space", "map"})


def matters(operation: str, path: str) -> bool:
    """Return whether a kill before this call may leave another state than a kill before the next one."""
    return operation not in COMPARISONS or "/brokerstore/sink/" in path


class KillingDisk(CountingDisk):
    """A disk that kills the process before call number `at`, counting calls that matter."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def before(self, operation: str, path: str) -> None:
        if matters(operation, path):
            super().before(operation, path)
        if len(self.calls) >= self._at:
            os.kill(os.getpid(), signal.SIGKILL)


def commit(root: Path, at: int) -> None:
    options = one_queue(root)
    commit_batch(options, SINK, 1, stage_rows(options, SINK, rows_of(45, start=20)), disk=KillingDisk(at))


def in_child(root: Path, at: int) -> int:
    """Run the commit in a child and return its wait status: 0, or what killed it."""
    child = os.fork()
    if child == 0:
        commit(root, at)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return status


def main(begun: Path, work: Path) -> None:
    killed = whole = 0
    for at in range(1, CALLS_MAX):
        root = work / str(at)
        shutil.copytree(begun, root)
        if in_child(root, at) == 0:
            break
        killed += 1
        assert in_child(root, CALLS_MAX * 10) == 0
        is_whole = bodies(root) == EXPECTED and left_behind(root) == []
        whole += is_whole
        if not is_whole:
            print(f"killed before call {at}: {len(bodies(root))} messages", file=sys.stderr)
        shutil.rmtree(root)
    print(killed, whole)


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
