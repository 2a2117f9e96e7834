"""Processes that share a store with the test."""

from __future__ import annotations

import mmap
import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from messagestore import SharedStore
from messagestore.shared.store import connect
from tests.stores import small_config

CONFIG = small_config(mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000, max_index_num=2000)


class Counters:
    """Numbers that forked processes share. One store each, which a kill cannot tear."""

    def __init__(self, count: int) -> None:
        self._map = mmap.mmap(-1, 8 * count)
        self._numbers = memoryview(self._map).cast("q")

    def __getitem__(self, position: int) -> int:
        return self._numbers[position]

    def __setitem__(self, position: int, value: int) -> None:
        self._numbers[position] = value

    def wait_for(self, position: int, value: int, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while self._numbers[position] < value:
            assert time.monotonic() < deadline, f"counter {position} is {self._numbers[position]}, not {value}"
            time.sleep(0.001)


class Child:
    """A forked process that runs a function. A fixture kills those that a test leaves."""

    living: ClassVar[set[int]] = set()

    def __init__(self, call: Callable[[], Any]) -> None:
        self.process_id = os.fork()
        self.living.add(self.process_id)
        if self.process_id == 0:
            self.living.clear()
            code = 1
            try:
                call()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def kill(self) -> None:
        """Kill it and wait for its end."""
        os.kill(self.process_id, signal.SIGKILL)
        self.exit_code()

    def stop(self) -> None:
        """Stop it as a debugger would, and wait until all its threads stand still."""
        os.kill(self.process_id, signal.SIGSTOP)
        os.waitpid(self.process_id, os.WUNTRACED)

    def exit_code(self) -> int:
        """Wait for its end."""
        status = os.waitpid(self.process_id, 0)[1]
        self.living.discard(self.process_id)
        return os.waitstatus_to_exitcode(status)

    @classmethod
    def kill_all(cls) -> None:
        """Kill what is left."""
        for process_id in list(cls.living):
            os.kill(process_id, signal.SIGKILL)
            os.waitpid(process_id, 0)
        cls.living.clear()


def open_shared(folder: Path, **options: Any) -> SharedStore:
    return connect(folder, options.pop("config", CONFIG), **options)


def owning_child(folder: Path, prepare: Callable[[SharedStore], Any] = lambda store: None) -> Child:
    """Fork a process that owns the store and serves it until it is killed."""
    ready = Counters(1)

    def own() -> None:
        store = open_shared(folder)
        prepare(store)
        ready[0] = 1
        while True:
            time.sleep(10)

    child = Child(own)
    ready.wait_for(0, 1)
    return child


def die() -> None:
    """End this process as a kill does."""
    os.kill(os.getpid(), signal.SIGKILL)
