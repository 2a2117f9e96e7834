"""Small stores for tests of readers, and writers in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from commitlog import Message
from messagestore import MessageStore, StoreConfig
from tests.stores import SMALL_SIZES, small_config

ROOT = Path(__file__).resolve().parents[2]
LOG_SIZE = SMALL_SIZES["mapped_file_size_commit_log"]
QUEUE_SIZE = SMALL_SIZES["mapped_file_size_consume_queue"]
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
    """Return the small sizes without the whole-record checksum."""
    return small_config(**{"max_index_num": 500, "enabled_append_prop_crc": False} | changes)


def open_store(root: object, mode: str = "a", *, disk: Any = None, clock: Any = None, **changes: Any) -> MessageStore:
    """Open a small store."""
    more = {"disk": disk} if disk is not None else {}
    return MessageStore.open(str(root), mode, config(**changes), clock=clock, **more)


def message(number: int, topic: str = "t", queues: int = 3, size: int = 60, tags: str | None = None) -> Message:
    """Return a message with its number in body and key."""
    body = b"%d " % number
    return Message(topic, body.ljust(size, b"."), queue_id=number % queues, keys=[f"k{number}"], tags=tags, born_timestamp_ms=7)


def number_of(stored: Any) -> int:
    """Return the number that `message` put into the body."""
    return int(stored.body.split()[0])


def put_all(store: MessageStore, start: int, stop: int, **how: Any) -> None:
    """Put the messages from start to before stop."""
    for number in range(start, stop):
        store.put(message(number, **how))


def log_files(root: Path) -> list[Path]:
    """Return the files of the log, oldest first."""
    return sorted((root / "commitlog").iterdir())


class Writer:
    """A Python program in a process of its own, controlled line by line."""

    def __init__(self, root: object, program: str) -> None:
        """Start a program, which may use `root`, `said(...)`, `told()` and everything of this module."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROLOGUE + program, str(root), str(ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def __enter__(self) -> Writer:
        """Return the writer itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Kill the process if it still runs."""
        self.kill()

    def hear(self) -> str:
        """Return the next line of its output."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, line: str = "go") -> None:
        """Send one line to the process."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process.kill()
        self.wait()

    def wait(self) -> int:
        """Wait until the process ends."""
        code = self._process.wait(60)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return code
