"""The tool's reading commands beside a fast writer whose files roll and are deleted all the time.

The writer is a process of its own (`python -m tests.faults.live_reads FOLDER SHARED SEED`).  It reports the number of
acknowledged messages through shared memory, and keeps the messages from KEPT before `PIN` on, which the command needs.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commitlog import Message
from messagestore import FlushMode, MessageStore, StoreConfig
from tests.brokerstore.tool import Ran, run
from tests.stores import small_config

ROOT = Path(__file__).resolve().parents[2]
VALUES_SIZE = 32
ACKNOWLEDGED, END_OFFSET, PIN, STOP = range(4)  # messages put, physical offset after them, first one needed, stop flag
KEPT = 600  # messages before the pin
TOPICS, QUEUES = 2, 2
BATCH = 16
VERBS = ("verify", "dump", "query", "tail")
TAIL_LINES = 40
PROCESS_EVERY = 25  # every n-th run starts a process


class Shared:
    """Four numbers in a file that two processes map."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(VALUES_SIZE))
        with path.open("r+b") as file:
            self._values = memoryview(mmap.mmap(file.fileno(), VALUES_SIZE)).cast("q")  # each value is stored atomically

    def __getitem__(self, which: int) -> int:
        return self._values[which]

    def __setitem__(self, which: int, value: int) -> None:
        self._values[which] = value


def small(flush: FlushMode) -> StoreConfig:
    """Return a configuration with small files: each second of writing fills dozens of every kind."""
    return small_config(
        flush_disk_type=flush,
        mapped_file_size_commit_log=131072,
        mapped_file_size_consume_queue=4000,
        max_index_num=1000,
        store_host="127.0.0.1:10911",
    )


def message(number: int) -> Message:
    """Return message `number`, which has the number in its key and its body."""
    body = b"%d:" % number + bytes(number % 97)
    return Message(f"T{number % TOPICS}", body, keys=[f"k{number}"], queue_id=number // TOPICS % QUEUES)


def write(folder: Path, shared: Shared, seed: int) -> None:
    """Put messages until `STOP` is set, and delete log files meanwhile."""
    chance = random.Random(seed)
    flush = FlushMode.SYNC if seed % 4 == 3 else FlushMode.ASYNC
    offsets: list[int] = []  # of each message
    with MessageStore.open(folder, "a", small(flush)) as store:
        while not shared[STOP]:
            for _ in range(BATCH):
                put = store.put(message(len(offsets)))
                offsets.append(put.physical_offset)
                shared[END_OFFSET] = put.physical_offset + put.size_bytes
                shared[ACKNOWLEDGED] = len(offsets)
            oldest = shared[PIN] - KEPT
            if chance.random() < 0.05 and oldest > 0:
                store.delete_before(offsets[oldest])


@contextmanager
def writer(folder: Path, seed: int) -> Iterator[Shared]:
    """Run a writer in a process of its own."""
    shared = Shared(folder.with_name(f"{folder.name}-shared"))
    command = [sys.executable, "-m", "tests.faults.live_reads", str(folder), str(folder.with_name(f"{folder.name}-shared"))]
    process = subprocess.Popen([*command, str(seed)], cwd=ROOT)
    try:
        while shared[ACKNOWLEDGED] < KEPT:
            assert process.poll() is None, "the writer ended by itself"
            time.sleep(0.01)
        yield shared
    finally:
        shared[STOP] = 1
        code = process.wait(timeout=120)
    assert code == 0, f"the writer ended with {code}"


def run_process(*words: str) -> Ran:
    """Run the tool in a process of its own."""
    ran = subprocess.run([sys.executable, "-m", "brokerstore", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return Ran(ran.returncode, ran.stdout, ran.stderr)


class LiveReads:
    """Runs of the four commands in one folder, counted by command."""

    def __init__(self, folder: Path, shared: Shared, seed: int) -> None:
        self.folder, self.shared = folder, shared
        self.chance = random.Random(seed)
        self.runs: Counter[str] = Counter()

    def step(self) -> None:
        """Run one command, and check that it reports everything that was acknowledged when it began."""
        number = self.runs.total()
        verb = VERBS[number % len(VERBS)]
        acknowledged, end = self.shared[ACKNOWLEDGED], self.shared[END_OFFSET]
        self.shared[PIN] = first = max(self.shared[PIN], acknowledged - KEPT)
        expected = self.chance.randrange(first, acknowledged)
        words = {
            "verify": ["verify", str(self.folder), "--json"],
            "dump": ["dump", str(self.folder), "--json"],
            "query": ["query", str(self.folder), f"T{expected % TOPICS}", f"k{expected}", "--json"],
            "tail": ["tail", str(self.folder), "--json", "-n", str(TAIL_LINES)],
        }[verb]
        start = run_process if number % PROCESS_EVERY == 0 else run
        ran = start(*words)
        where = f"run {number}, {' '.join(words)}: "
        assert ran.code == 0 and not ran.talk, f"{where}exit {ran.code}, {ran.talk[:2000]}{ran.out[:2000]}"
        rows = [json.loads(line) for line in ran.out.splitlines()]
        problem = self.judge(verb, rows, range(first, acknowledged), expected, end)
        assert not problem, where + problem
        self.runs[verb] += 1

    def judge(self, verb: str, rows: list[dict[str, Any]], known: range, expected: int, end: int) -> str:
        """Return what is wrong with an answer, or ""."""
        if verb == "verify":
            (report,) = rows
            is_right = report["ok"] and not report["problems"] and report["in_use"] and report["checked_to_offset"] >= end
            return "" if is_right else f"{report}, put up to {end}"
        numbers = [int(row["keys"][0][1:]) for row in rows]
        if verb == "query":
            return "" if numbers == [expected] else f"{expected} wanted, {numbers} found"
        if verb == "dump":
            lost = sorted(set(known).difference(numbers))
            return f"{len(lost)} lost, the first {lost[:3]}" if lost else ""
        is_row = numbers == list(range(numbers[0], numbers[0] + TAIL_LINES))
        return "" if is_row and numbers[-1] >= known.stop - 1 else f"{numbers}, {known.stop} were put"


def live_runs(folder: Path, count: int, seed: int) -> Counter[str]:
    """Run `count` commands beside one writer; return how often each command ran."""
    with writer(folder, seed) as shared:
        reads = LiveReads(folder, shared, seed)
        for _ in range(count):
            reads.step()
    return reads.runs


if __name__ == "__main__":
    os.nice(1)
    write(Path(sys.argv[1]), Shared(Path(sys.argv[2])), int(sys.argv[3]))
