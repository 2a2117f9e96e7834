"""A process with several writers killed at any moment, again and again: what it was told is safe is there.

What a put has acknowledged is counted in memory shared with the parent, so it outlives the child.  A kill takes nothing from
the page cache: this finds errors of order between threads and in recovery, never a missing sync (crash images do that).
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

WRITERS = 3
LIFE_MS_MAX = 10.0


def shared_counters(count: int) -> memoryview:
    """Return counters in memory that a forked child shares.

    Setting one is a single store of eight bytes.  `struct.pack_into` writes zeros first: a kill between the two made a
    counter 0.
    """
    return memoryview(mmap.mmap(-1, 8 * count)).cast("q")


def small(flush: FlushMode) -> StoreConfig:
    """Small files, so that a short life rolls over."""
    return StoreConfig(
        flush_disk_type=flush, mapped_file_size_commit_log=65536, mapped_file_size_consume_queue=2000,
        max_hash_slot_num=50, max_index_num=400, store_host="127.0.0.1:10911",
    )  # fmt: skip


def body_of(writer: int, number: int) -> bytes:
    """Says who wrote it, and its number."""
    return f"{writer}:{number}:".encode() + bytes(number % 97)


class KillLoop:
    """One store in `folder`, and what was acknowledged."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.shared = shared_counters(WRITERS)
        self.flush = FlushMode.SYNC
        self.cycles = 0
        self.killed = [0, 0]  # in recovery, at work

    def acknowledged(self, writer: int) -> int:
        """How many messages of a writer were acknowledged, in order."""
        return self.shared[writer]

    def cycle(self) -> None:
        """A child lives, is killed, and what it left is checked."""
        self.flush = self.chance.choice((FlushMode.SYNC, FlushMode.ASYNC))
        is_opened = self.chance.random() < 0.85  # the others are killed while they open and recover
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
        """In the child, which the kill ends."""
        try:
            self.work(ready, is_idle=not is_opened)
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
        finally:
            os._exit(3)

    def work(self, ready: int, *, is_idle: bool) -> None:
        """Writers until the kill, which most of those that are to be idle do not live to see begin."""
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
        return [[message.body for message in store.read(f"T{writer}", 0)] for writer in range(WRITERS)]

    def check(self) -> None:
        """Everything acknowledged is there, in order, each once; nothing else; queues and index agree after an opening."""
        with MessageStore.open(self.folder, "a", small(FlushMode.SYNC)) as store:
            for writer, bodies in enumerate(self._read(store)):
                wanted = [body_of(writer, number) for number in range(len(bodies))]
                assert bodies == wanted, f"cycle {self.cycles}: writer {writer} has other messages than it put"
                assert len(bodies) >= self.acknowledged(writer), f"cycle {self.cycles}: acknowledged and lost"
        if self.cycles % 10 == 0:
            assert verify_store(str(self.folder)).problems == []

    @property
    def messages(self) -> int:
        """Acknowledged in all."""
        return sum(self.acknowledged(writer) for writer in range(WRITERS))
