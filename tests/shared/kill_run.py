"""Four producers and four consumers of one shared store, killed at random, whoever owns it.

    python -m tests.shared.kill_run [--kills 2000] [--pause-ms 50] [--seed 0] [--folder FOLDER] [--sync]

Consumers acknowledge out of order and send some messages back. Nothing may be lost, the order of each producer is kept, no
message is in the hands of two living consumers, and after a kill only what was in the killed consumer's hand comes again.
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
from messagestore import FlushMode, MessageStore, PutFuture, SharedStore, StoreConfig
from tests.shared.processes import Child, Counters, open_shared

PRODUCERS = CONSUMERS = 4
PIPELINED = 2  # of the producers
IN_FLIGHT = 32
OFFSETS = 1 << 20  # messages of a queue
LIVES = 1 << 16
OWNER_KILLS = 1 << 14
REST_S = 0.0005  # of a producer between two puts
POLL_S = 0.02
PREFETCH = 8  # most messages in a consumer's hand
NACKS = 0.05  # share of the messages that are sent back
RETRY_S = 1.5  # longer than the delay of a message that was sent back
REST_MAX_S = 30.0  # for what is left in the end, on a busy machine
LOCK_QUERY = struct.Struct("@hhlli")


class KillRun:
    """The processes, and in shared memory what they saw and were promised."""

    def __init__(self, folder: Path, seed: int, flush: FlushMode = FlushMode.ASYNC) -> None:
        self.folder = folder
        self.config = StoreConfig.small(flush_disk_type=flush)
        self.kills: Counter[str] = Counter()
        self._chance = random.Random(seed)
        with MessageStore.open(folder, config=self.config) as store:
            store.create_topic("T", PRODUCERS)
        self._acknowledged = Counters(PRODUCERS)  # to the present life of a producer
        self._promised: dict[tuple[int, int], int] = {}  # to a producer and its life
        self._numbers = Counters(PRODUCERS)  # of the messages of a producer, in all its lives
        # Of each message by its number:
        self._holder = Counters(PRODUCERS * OFFSETS)  # the life of a consumer that has it
        self._taken = Counters(PRODUCERS * OFFSETS)  # whether a consumer got it, and did not send it back since
        self._begun = Counters(PRODUCERS * OFFSETS)  # whether an acknowledgement began
        self._done = Counters(PRODUCERS * OFFSETS)  # whether an acknowledgement was confirmed
        self._doubled = Counters(PRODUCERS * OFFSETS)  # whether a kill may have come between its retry and its acknowledgement
        self._delivered = Counters(PRODUCERS * OFFSETS)  # whether the message of a queue offset was
        self._is_alive = Counters(LIVES)
        self._two_hands, self._repeats, self._again, self._skips = (Counters(LIVES) for _ in range(4))
        self._consumer_kills = 0
        self._owner_kills, self._owner_deaths = Counters(1), Counters(1)  # begun and ended
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
        with open_shared(self.folder, config=self.config) as store:
            futures: deque[PutFuture] = deque()
            number = 0
            while True:
                began = time.monotonic()
                mark = position * OFFSETS + self._numbers[position]
                self._numbers[position] += 1
                message = Message("T", b"%d.%d.%d" % (life, number, mark), queue_id=position)
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
        chance, hand = random.Random(life), []
        with open_shared(self.folder, config=self.config) as store, store.consumer("T", group="G") as consumer:
            while True:
                began, timeout_s = time.monotonic(), 0.0 if hand else POLL_S
                messages = consumer.poll(PREFETCH - len(hand), timeout_s)
                self._record_pause(position, began, 0.0 if messages else timeout_s)
                for message in messages:
                    self._take(life, message)
                hand.extend(messages)
                if hand:
                    began = time.monotonic()
                    settle = self._send_back if chance.random() < NACKS else self._acknowledge
                    settle(consumer, hand.pop(chance.randrange(len(hand))))
                    self._record_pause(position, began)

    def _take(self, life: int, message: Any) -> None:
        mark, before = _mark(message), self._holder[_mark(message)]
        if not self._doubled[mark]:
            self._two_hands[life] += bool(before and before != life and self._is_alive[before])
            self._again[life] += self._done[mark]
            self._repeats[life] += self._taken[mark]
        if message.topic == "T":
            at = message.queue_id * OFFSETS + message.queue_offset
            self._skips[life] += bool(message.queue_offset and not self._delivered[at - 1])
            self._delivered[at] = 1
        self._taken[mark], self._holder[mark] = 1, life

    def _acknowledge(self, consumer: Any, message: Any) -> None:
        mark = _mark(message)
        deaths = self._owner_deaths[0]
        self._holder[mark], self._begun[mark] = 0, 1
        if consumer.ack(message):
            self._done[mark] = 1
        elif self._owner_kills[0] == deaths:  # otherwise an owner may have done it before its end
            self._begun[mark] = 0

    def _send_back(self, consumer: Any, message: Any) -> None:
        """Send a message back; if a process is killed meanwhile, it may come twice."""
        mark, deaths = _mark(message), self._owner_deaths[0]
        was_doubled = self._doubled[mark]
        self._holder[mark], self._doubled[mark] = 0, 1
        if consumer.nack(message, delay_level=1) is not None:
            self._taken[mark] = 0
        self._doubled[mark] = was_doubled or self._owner_kills[0] != deaths

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
        self._consumer_kills += position >= PRODUCERS
        self.kills["owner" if is_owner else "producer" if position < PRODUCERS else "consumer"] += 1
        self._is_alive[life] = 0
        if is_owner:
            self._killed_at[self._owner_kills[0] + 1] = int(1e6 * time.monotonic())
            self._owner_kills[0] += 1
        child.kill()
        self._owner_deaths[0] = self._owner_kills[0]
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
        with open_shared(self.folder, config=self.config) as store:
            self._check_producers(store)
            self._check_consumers(store)
        assert self._total(self._two_hands) == 0, "a message in two living hands"
        assert self._total(self._again) == 0, "an acknowledged message came again"
        assert self._total(self._skips) == 0, "a message came before an earlier one"
        assert self.repeats <= PREFETCH * self._consumer_kills, f"{self.repeats} messages came again"

    def _total(self, counters: Counters) -> int:
        return sum(counters[life] for life in range(self._next_life))

    @property
    def repeats(self) -> int:
        """How many messages came again that nobody had sent back."""
        return self._total(self._repeats)

    def _check_producers(self, store: SharedStore) -> None:
        for position in range(PRODUCERS):
            found: dict[int, list[int]] = {life: [] for life in self._lives[position]}
            for message in store.read("T", position):
                life, number, _ = map(int, message.body.split(b"."))
                found[life].append(number)
            in_flight = 1 if position < PRODUCERS - PIPELINED else IN_FLIGHT
            for life, numbers in found.items():
                promised = self._promised[position, life]
                assert numbers == list(range(len(numbers))), f"order of producer {position}, life {life}"
                assert promised <= len(numbers) <= promised + in_flight, f"{promised} promised, {len(numbers)} stored"

    def _check_consumers(self, store: SharedStore) -> None:
        """Consume the rest: each message was acknowledged by a consumer, or comes now."""
        stored = {_mark(message) for position in range(PRODUCERS) for message in store.read("T", position)}
        end = time.monotonic() + REST_MAX_S
        with store.consumer("T", group="G") as consumer:
            while (messages := consumer.poll(256, RETRY_S)) or (self._missing(stored) and time.monotonic() < end):
                for message in messages:
                    self._take(0, message)
                    self._acknowledge(consumer, message)
        assert not self._missing(stored), f"{len(self._missing(stored))} messages were not consumed"

    def _missing(self, stored: set[int]) -> set[int]:
        """Return the messages that were not acknowledged; a kill may come between an acknowledgement and its note here."""
        return {mark for mark in stored if not self._done[mark] and not self._begun[mark]}

    def pauses_ms(self) -> list[float]:
        """Return, sorted, the longest pause of each process after each kill of an owner."""
        kills = self._owner_kills[0]
        positions = range(PRODUCERS + CONSUMERS)
        found = [self._pause_us[self._pause_us_at(position, kill)] for position in positions for kill in range(1, kills)]
        return sorted(pause_us / 1000 for pause_us in found if pause_us)

    def stored(self) -> int:
        """Return the number of messages in the store."""
        with MessageStore.open(self.folder, "r", config=self.config) as store:
            return sum(store.max_offset("T", position) for position in range(PRODUCERS))


def _mark(message: Any) -> int:
    """Return the number of a message, which its copy in a retry topic has too."""
    return int(message.body.rpartition(b".")[2])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=2000)
    parser.add_argument("--pause-ms", type=float, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the store is made")
    parser.add_argument("--sync", action="store_true", help="with synchronous flush")
    requested = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=requested.folder) as folder:
        run = KillRun(Path(folder) / "s", requested.seed, FlushMode.SYNC if requested.sync else FlushMode.ASYNC)
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
        print(f"nothing lost, order kept, no message in two hands; {run.repeats} messages came again")


if __name__ == "__main__":
    sys.exit(main())
