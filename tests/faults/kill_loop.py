"""A process with several writers, killed again and again at any moment: every acknowledged message survives.

The number of acknowledged messages is in memory shared with the parent, so it outlives the child.  A kill loses nothing of
the page cache: this finds errors of order between threads and in recovery, but no missing sync.  Crash images find those.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from commitlog import Message
from messagestore import FlushMode, MessageStore, StoreConfig
from messagestore.repair.verification import verify_store
from tests.stores import small_config

WRITERS = 3
LIFE_MS_MAX = 10.0


def shared_counters(count: int) -> memoryview:
    """Return counters in memory that a forked child shares.

    Setting one is a single store of eight bytes.  `struct.pack_into` writes zeros first: a kill between the two made a
    counter 0.
    """
    return memoryview(mmap.mmap(-1, 8 * count)).cast("q")


def small(flush: FlushMode) -> StoreConfig:
    """Return a configuration with small files, so that a short life fills several."""
    return small_config(flush_disk_type=flush, store_host="127.0.0.1:10911")


def body_of(writer: int, number: int) -> bytes:
    """Return a body that holds the writer's and the message's number."""
    return f"{writer}:{number}:".encode() + bytes(number % 97)


class KillLoop:
    """One store in `folder`, and the counters of acknowledged messages."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.shared = shared_counters(WRITERS)
        self.flush = FlushMode.SYNC
        self.cycles = 0
        self.killed = [0, 0]  # in recovery, at work

    def acknowledged(self, writer: int) -> int:
        """Return how many messages of a writer were acknowledged; they are numbered from 0."""
        return self.shared[writer]

    def cycle(self) -> None:
        """Start a child, kill it, and check what it left."""
        self.flush = self.chance.choice((FlushMode.SYNC, FlushMode.ASYNC))
        is_opened = self.chance.random() < 0.85  # the others are killed during opening and recovery
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            self._live(writing, is_opened)
        os.close(writing)
        if is_opened:
            os.read(reading, 1)
        time.sleep(self.chance.random() * LIFE_MS_MAX / 1000)
        os.kill(child, signal.SIGKILL)
        os.close(reading)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == -signal.SIGKILL, f"cycle {self.cycles}: the child ended by itself with {code}"
        self.cycles += 1
        self.killed[is_opened] += 1
        if is_opened:
            self.check()

    def _live(self, ready: int, is_opened: bool) -> None:
        """Run in the child, until the kill."""
        try:
            self.work(ready, is_idle=not is_opened)
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
        finally:
            os._exit(3)

    def work(self, ready: int, *, is_idle: bool) -> None:
        """Run the writers until the kill.  Children that are killed while they open rarely reach this point."""
        store = MessageStore.open(self.folder, "a", small(self.flush))
        starts = [store.max_offset(f"T{writer}", 0) for writer in range(WRITERS)]
        threads = [threading.Thread(target=self._write, args=(store, *pair)) for pair in enumerate(starts)]
        for thread in threads:
            thread.start()
        os.write(ready, b"x")
        for thread in threads:
            thread.join()

    def _write(self, store: MessageStore, writer: int, number: int) -> None:
        while True:
            result = store.put(Message(f"T{writer}", body_of(writer, number), keys=[f"k{number % 7}"], queue_id=0))
            assert result.status.name == "PUT_OK", result.reason
            number += 1
            self.shared[writer] = number

    def _read(self, store: MessageStore) -> list[list[bytes]]:
        known, names = store.topics(), [f"T{writer}" for writer in range(WRITERS)]
        return [[message.body for message in store.read(name, 0)] if name in known else [] for name in names]

    def check(self) -> None:
        """Assert that each queue has a prefix of what its writer put, with every acknowledged message.

        Every tenth cycle also verifies queues and index.
        """
        with MessageStore.open(self.folder, "a", small(FlushMode.SYNC)) as store:
            for writer, bodies in enumerate(self._read(store)):
                expected = [body_of(writer, number) for number in range(len(bodies))]
                assert bodies == expected, f"cycle {self.cycles}: writer {writer} has other messages than it put"
                assert len(bodies) >= self.acknowledged(writer), f"cycle {self.cycles}: acknowledged and lost"
        if self.cycles % 10 == 0:
            assert verify_store(str(self.folder)).problems == []

    @property
    def messages(self) -> int:
        """Return the number of acknowledged messages of all writers."""
        return sum(self.acknowledged(writer) for writer in range(WRITERS))
