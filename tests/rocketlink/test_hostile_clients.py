"""Fuzzed frames, slow readers, half-open connections and a thousand clients at the same time: others are served.

BROKERSTORE_FRAMES is the number of fuzzed requests that the server decodes; `make live-night` has 1,000,000.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commitlog import Message
from fuzz.link_frames import ChangedRequests, seeds_of_requests
from fuzz.mutate import mutated, neighbours
from messagestore import MessageStore
from messagestore.repair.verification import verify_store
from rocketlink import BrokerServer
from rocketlink.remoting.client import RemotingClient
from rocketlink.remoting.frames import Command, encode
from rocketlink.server.connections import Connection
from tests.helpers import until
from tests.rocketlink.test_many_clients import memory_bytes
from tests.rocketlink.test_server import CONFIG, Served, served

__all__ = ["served"]

pytestmark = [pytest.mark.deep, pytest.mark.timeout(3600)]
FRAMES = int(os.environ.get("BROKERSTORE_FRAMES", "5000"))
CLIENTS, SLOW, HOSTILE = 1000, 20, 2
TOGETHER = 8
MEMORY = 192 << 20
PULL = {"consumerGroup": "g", "topic": "R", "queueId": "0", "queueOffset": "0", "sysFlag": "4", "subscription": "*"}


def harass(port: int, seed: int) -> None:
    """Send changed requests, eight at a time, and read what comes; connect again when thrown out.

    After some of them a frame with changed bytes follows, which mostly ends the connection.
    """
    chance, seeds = random.Random(seed), seeds_of_requests()
    changed = ChangedRequests(chance)
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as link:
            link.settimeout(0.001)
            while True:
                some = [changed.next() for _ in range(TOGETHER)]
                if chance.random() < 0.25:
                    some += neighbours(chance, mutated(chance, seeds), 2)
                link.sendall(b"".join(len(data).to_bytes(4, "big") + data for data in some))
                with contextlib.suppress(TimeoutError):
                    if not link.recv(1 << 20):
                        break


def test_hostile_clients_do_not_affect_the_store_or_other_clients(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Memory is bounded, no request ends in an unexpected error, polite clients are answered, and the store is sound."""
    low, high = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(high, 8192), high))
    caplog.set_level(logging.ERROR)
    waits: list[float] = []
    with (
        contextlib.ExitStack() as stack,
        MessageStore.open(tmp_path / "s", "a", CONFIG) as store,
        BrokerServer(store) as server,
    ):
        for _ in range(40):
            store.put(Message("R", bytes(3000), queue_id=0))
        handle, counted = server._connections.handle, itertools.count()

        def counting(connection: Connection, request: Command) -> Command | None:
            next(counted)
            return handle(connection, request)

        server._connections.handle = counting
        before = memory_bytes()
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(CLIENTS)]
        for link in idle[::2]:
            link.sendall(struct.pack(">i", 16_000_000) + bytes(1000))
        for number in range(SLOW):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            slow.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                for _ in range(500):
                    slow.send(encode(Command(11, PULL, b"", number)))
        for seed in range(HOSTILE):
            command = [sys.executable, "-m", "tests.rocketlink.test_hostile_clients", str(server.port), str(seed)]
            child = subprocess.Popen(command)
            stack.callback(child.wait)
            stack.callback(child.kill)
        polite = stack.enter_context(RemotingClient("127.0.0.1", server.port, 60))
        most = seen = 0
        while seen < FRAMES:
            began = time.monotonic()
            number = len(waits)
            polite.invoke(310, {"a": "p", "b": "P", "c": "TBW102", "d": "1", "e": "0"}, b"%d" % number)
            waits.append(time.monotonic() - began)
            most = max(most, memory_bytes() - before)
            time.sleep(0.02)
            seen = next(counted)
        until(lambda: store.max_offset("P", 0) >= len(waits))
        found = {bytes(message.body) for message in store.read("P", 0)}
        print(
            f"{seen} requests decoded, {most >> 20} MiB more at most, {len(waits)} polite sends: "
            f"median {1000 * sorted(waits)[len(waits) // 2]:.1f} ms, most {1000 * max(waits):.0f} ms"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, high))
    assert most < MEMORY
    assert {b"%d" % number for number in range(len(waits))} <= found
    assert not [record.getMessage() for record in caplog.records if record.exc_info or "internal error" in record.getMessage()]
    problems = verify_store(str(tmp_path / "s"), CONFIG).problems
    assert {problem.kind for problem in problems} <= {"offset_ahead"}  # a client may commit any offset, as to a real broker


if __name__ == "__main__":
    harass(*map(int, sys.argv[1:]))


def test_waiting_pulls_of_a_client_that_does_not_read_take_no_memory(served: Served) -> None:
    """A thousand of them wait for the same message of a megabyte."""
    served.store.put(Message("T", b"0", queue_id=0))
    fields = {
        "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "1", "sysFlag": "6", "subscription": "*",
        "suspendTimeoutMillis": "20000",
    }  # fmt: skip
    waiting = served.server._requests._pulling._waiting
    with socket.create_connection(("127.0.0.1", served.server.port)) as slow:
        slow.sendall(encode(Command(11, fields, bytes(100), 1)) * 1000)
        until(lambda: len(waiting.get(("T", 0), [])) == 1000)
        served.store.put(Message("T", bytes(1 << 19), queue_id=0))
        until(lambda: not waiting)
        buffered = sum(one._transport.get_write_buffer_size() for one in served.server._connections.all)  # type: ignore[union-attr]
        assert buffered < 12 << 20
