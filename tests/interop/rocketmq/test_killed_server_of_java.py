"""Java clients of the remoting protocol, whose server is killed again and again: nothing acknowledged is lost.

Each scenario sends BROKERSTORE_LIVE / 5 messages, at most 10,000, in as many parts as there are kills and one; a kill comes
while a part is sent or consumed. `make live-night` has 10,000 and 20 kills.
"""

from __future__ import annotations

import importlib.util
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from messagestore import MessageStore
from messagestore.repair.verification import verify_store
from tests.serving import Server

from .jvm import Jvm, prepare_or_skip
from .live import CLIENT_VERSION, KILLS, LIVE, MARKS, deliveries, missing, processed, repeated
from .real_broker import client, until

pytestmark = [
    pytest.mark.timeout(3600),  # of two, the first counts
    *MARKS,
    pytest.mark.skipif(importlib.util.find_spec("rocketmq") is None, reason="the extra grpc is not installed"),
]
QUEUES = 4
PART = -(-min(LIVE // 5, 10_000) // (KILLS + 1))
COUNT = PART * (KILLS + 1)
PATIENCE_S = 600  # on a busy machine; each wait ends as soon as it can
LONGEST_WAIT_S = 0.2  # from the begin of a part to the kill; in every other part from its first delivery
SEED = random.SystemRandom().randrange(1 << 32)


class Killed:
    """A server, a JVM of producers and one of consumers."""

    def __init__(self, folder: Path) -> None:
        prepare_or_skip(CLIENT_VERSION)
        with MessageStore.open(folder / "s") as store:
            store.create_topic("T", QUEUES)
        self.server = Server(folder / "s")
        address = f"127.0.0.1:{self.server.ports[0]}"
        self._jvms: list[Jvm] = []
        for name in ("producers", "consumers"):
            (folder / name).mkdir()
            self._jvms.append(client(address, address, folder / name, version=CLIENT_VERSION, broker_name="brokerstore"))
            self._jvms[-1].answer()
        self.producers, self.consumers = self._jvms
        self.file = folder / "file"
        self._random = random.Random(SEED)
        print(f"seed {SEED}")

    def consume(self, *names: str, **settings: Any) -> None:
        """Start push consumers of group G, which all write one file."""
        for name in names:
            self.consumers.invoke("start_consumer", name=name, group="G", topic="T", file=str(self.file), **settings)

    def send(self, do: str = "flood", **how: Any) -> None:
        """Send all messages; kill the server in each part but the last."""
        failures, last = 0, ""
        for part in range(KILLS + 1):
            before = processed(self.file)
            self.producers.tell(do, topic="T", first=part * PART, count=PART, queues=QUEUES, persistent=True, **how)
            if part < KILLS:
                if part % 2:
                    until(lambda before=before: processed(self.file) > before, "it is consumed", PATIENCE_S)  # type: ignore[misc]
                time.sleep(self._random.random() * LONGEST_WAIT_S)
                self.server.kill()
                self.server.start()
            answer = self.producers.answer(PATIENCE_S)
            failures += answer["failures"]
            last = answer.get("last") or last
        print(f"{COUNT} acknowledged, {failures} failures, {KILLS} kills {last}")

    def end(self) -> None:
        """End the clients, and stop the server."""
        for jvm in self._jvms:
            jvm.end()
        if self.server.process.returncode is None:
            self.server.stop()


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Killed]:
    """Start a server and its clients; the folder is intact in the end."""
    found = Killed(tmp_path)
    yield found
    found.end()
    report = verify_store(tmp_path / "s")
    assert report.problems == [], report.problems


def all_are_processed(killed: Killed) -> None:
    until(lambda: not missing(killed.file, COUNT), "every message is processed", PATIENCE_S)
    print(f"{repeated(deliveries(killed.file))} processed again")


def test_batches_are_delivered_at_least_once(killed: Killed) -> None:
    """A batch is one send: it is there with all its messages, in their order, or not at all."""
    killed.consume("a")
    killed.send(batch=50, ahead=4)
    all_are_processed(killed)
    killed.end()
    with MessageStore.open(killed.server.folder, "r") as store:
        for queue_id in range(QUEUES):
            numbers = [int(one.body) for one in store.read("T", queue_id)]
            starts = [at for at, number in enumerate(numbers) if number % PART % 50 == 0]
            assert starts[:1] == [0] or not numbers
            for begin, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
                first = numbers[begin]
                size = min(50, PART - first % PART)
                assert numbers[begin:end] == list(range(first, first + size))


def test_consumers_in_pop_mode_get_everything(killed: Killed) -> None:
    """Two of them; what they had in hand comes again."""
    killed.producers.invoke("request_mode", topic="T", group="G", mode="POP", share=QUEUES)
    killed.consume("a", "b", server_rebalance=True, invisible_ms=5000)
    killed.send(ahead=20)
    all_are_processed(killed)


def test_consumer_gets_what_its_sql_filter_matches(killed: Killed) -> None:
    """All of it, and nothing else."""
    killed.consume("a", sql="KEYS ENDSWITH '3' OR KEYS ENDSWITH '8'")
    killed.send(ahead=20)
    expected = set(range(3, COUNT, 5))
    until(lambda: {one.body for one in deliveries(killed.file)} >= expected, "what matches is processed", PATIENCE_S)
    assert {one.body for one in deliveries(killed.file)} == expected


def test_orderly_consumers_keep_the_order_of_each_queue(killed: Killed) -> None:
    """No message is processed before an earlier one of its queue; repetitions may follow."""
    killed.consume("a", "b", orderly=True)
    killed.send(ahead=1)
    all_are_processed(killed)
    for queue_id in range(QUEUES):
        firsts: dict[int, int] = {}
        for one in deliveries(killed.file):
            if one.queue_id == queue_id:
                firsts.setdefault(one.queue_offset, one.body)
        assert list(firsts) == sorted(firsts), "in the order of the queue"
        assert list(firsts.values()) == sorted(firsts.values()), "which is that of the producer"


def test_each_request_gets_its_reply(killed: Killed) -> None:
    """Those whose reply was lost are sent again by their program; no request gets the reply of another."""
    killed.consume("a", answers=True)
    killed.send("ask")
    all_are_processed(killed)
