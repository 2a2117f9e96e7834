"""Fuzzed frames and messages, bombs, slow uploads and readers, a thousand connections, all on the gRPC port at the same time.

BROKERSTORE_FRAMES is the number of HTTP/2 frames that hostile clients send; `make live-night` has 1,000,000.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.rocketlink.grpc_client import SERVICE, d, grpc, message, named, s

from fuzz import grpc_requests as fuzzed  # isort: skip  # it needs the extra, too
from fuzz.mutate import mutated
from messagestore import MessageStore
from messagestore.repair.verification import verify_store
from tests.processes import running
from tests.serving import Server

pytestmark = [pytest.mark.deep, pytest.mark.timeout(3600)]
FRAMES = int(os.environ.get("BROKERSTORE_FRAMES", "20000"))
IDLE, SLOW, UPLOADING, STREAMS, HOSTILE = 1000, 20, 20, 50, 2
SIZE = 4 << 20
MEMORY = 1 << 30
TOGETHER = 20
WINDOW = 4  # of HTTP/2's settings
METADATA = [("x-mq-client-id", "polite")]


def harass(port: int, seed: int) -> None:
    """Send changed requests, and behind the headers of some of them changed frames; print how many frames were sent.

    The headers stay: with another byte in the name of a method, the grpc library closes the port for a moment (test_grpc.py).
    """
    chance = random.Random(seed)
    changed, sent = fuzzed.ChangedMessages(chance), 0
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as link:
            link.settimeout(0.002)
            link.sendall(fuzzed.opening())
            for number in range(TOGETHER):
                stream, data = 2 * number + 1, changed.next()[:SIZE]
                frames = fuzzed.request_frames(stream, data)
                if chance.random() < 0.2:
                    headers = fuzzed.head(stream, fuzzed.METHODS[data[0]])
                    others = [fuzzed.frame(kind, chance.randrange(256), stream, bytes(5)) for kind in (2, 3, 4, 5, 6, 7, 8, 9)]
                    frames = headers + mutated(chance, [frames[len(headers) :], *others])
                link.sendall(frames)
                sent += 2
                with contextlib.suppress(TimeoutError):
                    if not link.recv(1 << 16):
                        break
        print(sent, flush=True)


def memory_bytes(process_id: int) -> int:
    """Return a process's resident memory that is not of files."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def upload_slowly(link: socket.socket) -> None:
    """Begin uploads of 4 MiB, and never end them; take all the window that the server gives."""
    streams = range(1, 2 * STREAMS, 2)
    windows, window, waiting = dict.fromkeys(streams, 65_535), 65_535, b""
    sent = dict.fromkeys(streams, 0)
    with contextlib.suppress(OSError):
        for stream in streams:
            link.sendall(fuzzed.head(stream, "SendMessage"))
        while True:
            for stream in windows:
                while windows[stream] >= 16_384 <= window and sent[stream] < SIZE - 20_000:
                    start = b"\0" + struct.pack(">I", SIZE) if not sent[stream] else b""
                    link.sendall(fuzzed.frame(fuzzed.DATA, 0, stream, start + bytes(16_384 - len(start))))
                    windows[stream], window, sent[stream] = windows[stream] - 16_384, window - 16_384, sent[stream] + 16_384
            waiting += link.recv(1 << 16)
            while len(waiting) >= 9 and len(waiting) >= 9 + (size := int.from_bytes(waiting[:3], "big")):
                kind, stream, rest = waiting[3], int.from_bytes(waiting[5:9], "big"), waiting[9 : 9 + size]
                waiting = waiting[9 + size :]
                if kind == 8 and stream == 0:
                    window += int.from_bytes(rest, "big")
                elif kind == 8 and stream in windows:
                    windows[stream] += int.from_bytes(rest, "big")
                elif kind == 3:
                    windows.pop(stream, None)


class Attack:
    """All that is hostile, until it is closed."""

    def __init__(self, port: int, stack: contextlib.ExitStack) -> None:
        """Begin with everything but bombs."""
        self._port, self._stack = port, stack
        self.frames = [0] * HOSTILE
        for number in range(IDLE):
            half = fuzzed.head(1, "SendMessage") + fuzzed.frame(
                fuzzed.DATA, 0, 1, b"\0" + struct.pack(">I", SIZE) + bytes(1000)
            )
            self._connect(half if number % 2 else b"")
        for _ in range(SLOW):
            self._read_nothing()
        for _ in range(UPLOADING):
            threading.Thread(target=upload_slowly, args=(self._connect(),), daemon=True).start()
        for number in range(HOSTILE):
            threading.Thread(target=self._harass, args=(number,), daemon=True).start()

    def _connect(self, data: bytes = b"", *settings: tuple[int, int]) -> socket.socket:
        link = self._stack.enter_context(socket.create_connection(("127.0.0.1", self._port)))
        link.sendall(fuzzed.opening(*settings) + data)
        return link

    def _read_nothing(self) -> None:
        """Ask for 4 MiB a hundred times, with a window for all of it."""
        pull = s.PullMessageRequest(group=named("g"), message_queue=d.MessageQueue(topic=named("R"), id=0), batch_size=32)
        data = bytes([fuzzed.METHODS.index("PullMessage")]) + pull.SerializeToString()
        link = self._connect(fuzzed.frame(8, 0, 0, struct.pack(">I", (1 << 31) - 65_536)), (WINDOW, (1 << 31) - 1))
        link.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for number in range(100):
                link.send(fuzzed.request_frames(2 * number + 1, data))

    def _harass(self, number: int) -> None:
        command = [sys.executable, "-m", "tests.rocketlink.test_hostile_grpc", str(self._port), str(number)]
        with running(command, stdout=subprocess.PIPE) as child:
            self._stack.callback(child.kill)
            assert child.stdout is not None
            for line in child.stdout:
                self.frames[number] = int(line)

    def explode(self, send: Any) -> None:
        """Send bombs: a body of 64 MiB in each of 40 messages, and a request of 64 MiB that gRPC compresses."""
        packed = zlib.compress(bytes(64 << 20), 9)
        bodies = [message("B", packed, body_encoding=d.GZIP) for _ in range(40)]
        answer = send(s.SendMessageRequest(messages=bodies).SerializeToString(), metadata=METADATA, timeout=60)
        assert {entry.status.code for entry in answer.entries} == {d.MESSAGE_BODY_TOO_LARGE}
        large = s.SendMessageRequest(messages=[message("B", bytes(64 << 20))]).SerializeToString()
        options = [("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(f"127.0.0.1:{self._port}", options=options, compression=grpc.Compression.Gzip) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                _sender(channel)(large, metadata=METADATA, timeout=60)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def _sender(channel: Any) -> Any:
    return channel.unary_unary(SERVICE + "SendMessage", lambda data: data, s.SendMessageResponse.FromString)


def test_hostile_grpc_clients_do_not_affect_the_store_or_other_clients(tmp_path: Path) -> None:
    """Memory is bounded, no request ends in an unexpected error, polite clients are answered, and the store is sound."""
    server = Server(tmp_path / "s")
    process_id, port = server.process.pid, server.ports[1]
    low, high = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(high, 8192), high))
    waits: list[float] = []
    most, before = 0, memory_bytes(process_id)
    with contextlib.ExitStack() as stack, grpc.insecure_channel(server.address) as channel:
        stack.callback(server.stop)
        send = _sender(channel)
        for _ in range(40):
            assert send(s.SendMessageRequest(messages=[message("R", random.randbytes(100_000))]).SerializeToString(),
                        metadata=METADATA, timeout=60).status.code == d.OK  # fmt: skip
        attack = Attack(port, stack)
        attack.explode(send)
        while sum(attack.frames) < FRAMES or len(waits) < 100:
            began = time.monotonic()
            polite = s.SendMessageRequest(messages=[message("P", b"%d" % len(waits))])
            assert send(polite.SerializeToString(), metadata=METADATA, timeout=120).status.code == d.OK
            waits.append(time.monotonic() - began)
            most = max(most, memory_bytes(process_id) - before)
            time.sleep(0.02)
        print(
            f"{sum(attack.frames)} frames, {most >> 20} MiB more at most, {len(waits)} polite sends: "
            f"median {1000 * sorted(waits)[len(waits) // 2]:.1f} ms, most {1000 * max(waits):.0f} ms"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, high))
    assert most < MEMORY
    errors = server.errors.read_text(errors="replace").splitlines()  # the grpc library reports broken connections there
    assert not [line for line in errors if "/rocketlink/" in line or "a request failed" in line]
    with MessageStore.open(tmp_path / "s", "r") as store:
        found = {bytes(one.body) for queue_id in store.queue_ids("P") for one in store.read("P", queue_id)}
    assert {b"%d" % number for number in range(len(waits))} <= found
    problems = verify_store(str(tmp_path / "s")).problems
    assert {problem.kind for problem in problems} <= {"offset_ahead"}  # a client may commit any offset, as to a real proxy


if __name__ == "__main__":
    harass(*map(int, sys.argv[1:]))
