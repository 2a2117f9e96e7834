"""Small stores for tests of readers, and writers in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from commitlog import Message
from messagestore import MessageStore, StoreConfig

ROOT = Path(__file__).resolve().parents[2]
LOG_SIZE = 1 << 16
QUEUE_SIZE = 20 * 100
PROLOGUE = """
import sys, time
sys.path.insert(0, sys.argv[2])
from tests.messagestore.writers import *
root = sys.argv[1]
def said(*words):
    print(*words, flush=True)
def told():
    return sys.stdin.readline().strip()
"""


def config(**changes: Any) -> StoreConfig:
    """Files of 64 KiB, queue files of 100 units, small index files, no whole-record checksum."""
    sizes: dict[str, Any] = {
        "mapped_file_size_commit_log": LOG_SIZE,
        "mapped_file_size_consume_queue": QUEUE_SIZE,
        "max_hash_slot_num": 100,
        "max_index_num": 500,
        "enabled_append_prop_crc": False,
    }
    return StoreConfig(**(sizes | changes))


def open_store(root: object, mode: str = "a", *, disk: Any = None, clock: Any = None, **changes: Any) -> MessageStore:
    """A small store."""
    more = {"disk": disk} if disk is not None else {}
    return MessageStore.open(str(root), mode, config(**changes), clock=clock, **more)


def message(number: int, topic: str = "t", queues: int = 3, size: int = 60, tags: str | None = None) -> Message:
    """Number `number`, in its body and its key."""
    body = b"%d " % number
    return Message(topic, body.ljust(size, b"."), queue_id=number % queues, keys=[f"k{number}"], tags=tags, born_timestamp_ms=7)


def number_of(stored: Any) -> int:
    """What `message` put in."""
    return int(stored.body.split()[0])


def put_all(store: MessageStore, start: int, stop: int, **how: Any) -> None:
    """Messages start to before stop."""
    for number in range(start, stop):
        store.put(message(number, **how))


def log_files(root: Path) -> list[Path]:
    """Of the log, oldest first."""
    return sorted((root / "commitlog").iterdir())


class Writer:
    """A Python program in a process of its own, told what to do line by line."""

    def __init__(self, root: object, program: str) -> None:
        """`program` may use `root`, `said(...)`, `told()` and everything of this module."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROLOGUE + program, str(root), str(ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def __enter__(self) -> Writer:
        """Itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Killed, if it still runs."""
        self.kill()

    def hear(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, line: str = "go") -> None:
        """One line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """At once, as by the power switch of one process."""
        self._process.kill()
        self.wait()

    def wait(self) -> int:
        """Until it ended."""
        code = self._process.wait(60)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return code


def until(condition: Any, seconds: float = 20.0) -> Any:
    """The first true answer."""
    stop = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < stop, "waited in vain"
        time.sleep(0.005)
    return found
