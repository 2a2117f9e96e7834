"""Four producers and four consumers of one shared store, killed at random, whoever owns it.

    python -m tests.shared.kill_run [--kills 2000] [--pause-ms 50] [--seed 0] [--folder FOLDER]

Nothing acknowledged may be lost, the order of each producer is kept, and no message is in the hands of two living consumers.
Prints how long the processes paused after each kill of an owner.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import struct
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

from commitlog import Message
from messagestore import MessageStore, PutFuture, SharedStore, StoreConfig
from tests.shared.processes import Child, Counters, open_shared

CONFIG = StoreConfig.small()
PRODUCERS = CONSUMERS = 4
PIPELINED = 2  # of the producers
IN_FLIGHT = 32
OFFSETS = 1 << 20  # messages of a queue
LIVES = 1 << 16
OWNER_KILLS = 1 << 14
REST_S = 0.0005  # of a producer between two puts
POLL_S = 0.02
LOCK_QUERY = struct.Struct("@hhlli")


class KillRun:
    """The processes, and in shared memory what they saw and were promised."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.kills: Counter[str] = Counter()
        self._chance = random.Random(seed)
        with MessageStore.open(folder, config=CONFIG) as store:
            store.create_topic("T", PRODUCERS)
        self._acknowledged = Counters(PRODUCERS)  # to the present life of a producer
        self._promised: dict[tuple[int, int], int] = {}  # to a producer and its life
        self._holder = Counters(PRODUCERS * OFFSETS)  # the life of a consumer that has the message of a queue offset
        self._done = Counters(PRODUCERS * OFFSETS)  # how often it was acknowledged by a consumer
        self._is_alive = Counters(LIVES)
        self._two_hands, self._repeats = Counters(LIVES), Counters(LIVES)
        self._owner_kills = Counters(1)
        self._killed_at = Counters(OWNER_KILLS)
        self._pause_us = Counters((PRODUCERS + CONSUMERS) * OWNER_KILLS)
        self._lives: list[list[int]] = [[] for _ in range(PRODUCERS + CONSUMERS)]
        self._next_life = 1
        self._children = [self._start(position) for position in range(PRODUCERS + CONSUMERS)]

    # Processes

    def _start(self, position: int) -> Child:
        life, self._next_life = self._next_life, self._next_life + 1
        self._lives[position].append(life)
        self._is_alive[life] = 1
        if position < PRODUCERS:
            self._acknowledged[position] = 0
            return Child(lambda: self._produce(position, life))
        return Child(lambda: self._consume(position, life))

    def _record_pause(self, position: int, began: float, waited_s: float = 0.0) -> None:
        """Note how long a call took since it began, or since the last kill of an owner if that was later."""
        kill = self._owner_kills[0]
        if kill:
            at = self._pause_us_at(position, kill)
            now = time.monotonic()
            since = max(began, self._killed_at[kill] / 1e6)
            self._pause_us[at] = max(self._pause_us[at], int(1e6 * (now - since - waited_s)))

    def _pause_us_at(self, position: int, kill: int) -> int:
        return position * OWNER_KILLS + kill

    def _produce(self, position: int, life: int) -> None:
        with open_shared(self.folder, config=CONFIG) as store:
            futures: deque[PutFuture] = deque()
            number = 0
            while True:
                began = time.monotonic()
                message = Message("T", b"%d.%d" % (life, number), queue_id=position)
                number += 1
                if position < PRODUCERS - PIPELINED:
                    store.put(message)
                else:
                    futures.append(store.put_async(message))
                    if len(futures) == IN_FLIGHT:
                        futures.popleft().result()
                self._acknowledged[position] = number - len(futures)
                self._record_pause(position, began)
                time.sleep(REST_S)

    def _consume(self, position: int, life: int) -> None:
        with open_shared(self.folder, config=CONFIG) as store, store.consumer("T", group="G") as consumer:
            last = [-1] * PRODUCERS
            while True:
                began = time.monotonic()
                messages = consumer.poll(8, POLL_S)
                self._record_pause(position, began, POLL_S if not messages else 0.0)
                for message in messages:
                    self._take(life, message, last)
                for message in messages:
                    began = time.monotonic()
                    self._acknowledge(consumer, message, last)
                    self._record_pause(position, began)

    def _take(self, life: int, message: Any, last: list[int]) -> None:
        at = message.queue_id * OFFSETS + message.queue_offset
        before = self._holder[at]
        if before and before != life and self._is_alive[before]:
            self._two_hands[life] += 1
        if message.queue_offset <= last[message.queue_id]:
            self._repeats[life] += 1
        self._holder[at] = life

    def _acknowledge(self, consumer: Any, message: Any, last: list[int]) -> None:
        at = message.queue_id * OFFSETS + message.queue_offset
        if consumer.ack(message):
            self._done[at] += 1
            last[message.queue_id] = message.queue_offset
        self._holder[at] = 0

    # Kills

    def run(self, kills: int, pause_s: float) -> None:
        """Kill one of the processes after each pause, and start its successor."""
        for _ in range(kills):
            time.sleep(self._chance.uniform(0.5 * pause_s, 1.5 * pause_s))
            self._check_alive()
            self._kill(self._chance.randrange(PRODUCERS + CONSUMERS))
        time.sleep(0.5)
        self._check_alive()
        for position in range(PRODUCERS + CONSUMERS):
            self._kill(position, again=False)

    def _check_alive(self) -> None:
        for child in self._children:
            assert os.waitpid(child.process_id, os.WNOHANG) == (0, 0), f"process {child.process_id} ended by itself"

    def _kill(self, position: int, *, again: bool = True) -> None:
        child, life = self._children[position], self._lives[position][-1]
        is_owner = self._owner() == child.process_id
        self.kills["owner" if is_owner else "producer" if position < PRODUCERS else "consumer"] += 1
        self._is_alive[life] = 0
        if is_owner:
            self._killed_at[self._owner_kills[0] + 1] = int(1e6 * time.monotonic())
            self._owner_kills[0] += 1
        child.kill()
        if position < PRODUCERS:
            self._promised[position, life] = self._acknowledged[position]
        if again:
            self._children[position] = self._start(position)

    def _owner(self) -> int:
        """Return the process that has the store's lock, -1 without one."""
        with open(self.folder / "lock", "r+b") as file:
            found = fcntl.fcntl(file, fcntl.F_GETLK, LOCK_QUERY.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        kind, _, _, _, process_id = LOCK_QUERY.unpack(found)
        return process_id if kind != fcntl.F_UNLCK else -1

    # What must hold

    def check(self) -> None:
        """Assert that nothing was lost, and that order and hands were right."""
        with open_shared(self.folder, config=CONFIG) as store:
            self._check_producers(store)
            self._check_consumers(store)
        assert sum(self._two_hands[life] for life in range(self._next_life)) == 0, "a message in two living hands"
        assert sum(self._repeats[life] for life in range(self._next_life)) == 0, "an acknowledged message came again"

    def _check_producers(self, store: SharedStore) -> None:
        for position in range(PRODUCERS):
            found: dict[int, list[int]] = {life: [] for life in self._lives[position]}
            for message in store.read("T", position):
                life, number = map(int, message.body.split(b"."))
                found[life].append(number)
            in_flight = 1 if position < PRODUCERS - PIPELINED else IN_FLIGHT
            for life, numbers in found.items():
                promised = self._promised[position, life]
                assert numbers == list(range(len(numbers))), f"order of producer {position}, life {life}"
                assert promised <= len(numbers) <= promised + in_flight, f"{promised} promised, {len(numbers)} stored"

    def _check_consumers(self, store: SharedStore) -> None:
        """Consume the rest: each message was acknowledged by a consumer, or comes now."""
        with store.consumer("T", group="G") as consumer:
            while messages := consumer.poll(256, 0.3):
                for message in messages:
                    self._done[message.queue_id * OFFSETS + message.queue_offset] += 1
                    consumer.ack(message)
        missing = 0
        for position in range(PRODUCERS):
            missing += sum(not self._done[position * OFFSETS + offset] for offset in range(store.max_offset("T", position)))
        # A kill may come between the acknowledgement of a message and its note here.
        assert missing <= self.kills["consumer"] + self.kills["owner"] + CONSUMERS, f"{missing} messages were not consumed"

    def pauses_ms(self) -> list[float]:
        """Return, sorted, the longest pause of each process after each kill of an owner."""
        kills = self._owner_kills[0]
        positions = range(PRODUCERS + CONSUMERS)
        found = [self._pause_us[self._pause_us_at(position, kill)] for position in positions for kill in range(1, kills)]
        return sorted(pause_us / 1000 for pause_us in found if pause_us)

    def stored(self) -> int:
        """Return the number of messages in the store."""
        with MessageStore.open(self.folder, "r", config=CONFIG) as store:
            return sum(store.max_offset("T", position) for position in range(PRODUCERS))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=2000)
    parser.add_argument("--pause-ms", type=float, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the store is made")
    requested = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=requested.folder) as folder:
        run = KillRun(Path(folder) / "s", requested.seed)
        try:
            run.run(requested.kills, requested.pause_ms / 1000)
        finally:
            Child.kill_all()
        pauses = run.pauses_ms()
        print(f"kills: {dict(run.kills)}; messages: {run.stored():,}; load: {os.getloadavg()[0]:.1f}")
        if pauses:
            shares = {share: pauses[int(share * (len(pauses) - 1))] for share in (0.5, 0.9, 0.99, 1)}
            print("pauses:", ", ".join(f"{100 * share:g} % {pause:.0f} ms" for share, pause in shares.items()))
            print(f"over 300 ms: {sum(pause > 300 for pause in pauses)} of {len(pauses)}")
        run.check()
        print("nothing lost, order kept, no message in two hands")


if __name__ == "__main__":
    sys.exit(main())
