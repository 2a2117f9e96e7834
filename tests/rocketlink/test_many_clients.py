"""A thousand clients, half-open and slow ones: bounded memory, and others are served."""

from __future__ import annotations

import contextlib
import gc
import resource
import socket
import struct
from pathlib import Path

import pytest

from messagestore import MessageStore
from rocketlink import BrokerServer
from rocketlink.remoting.client import RemotingClient
from rocketlink.remoting.frames import Command, encode
from rocketlink.server import connections as limits
from tests.helpers import until
from tests.rocketlink.test_server import CONFIG, answer_of

pytestmark = pytest.mark.deep
CLIENTS = 1000


def memory_bytes() -> int:
    """Return the resident memory that this process does not share with files."""
    return next(
        int(line.split()[1]) * 1024 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")
    )


def test_a_thousand_clients_are_served_beside_half_open_ones(tmp_path: Path) -> None:
    """Half of them send a part of a frame and no more; the others get every answer."""
    low, high = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(high, 4096), high))
    before = memory_bytes()
    with (
        contextlib.ExitStack() as stack,
        MessageStore.open(tmp_path / "s", "a", CONFIG) as store,
        BrokerServer(store) as server,
    ):
        store.create_topic("T", 1)
        links = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(CLIENTS)]
        until(lambda: server.connections == CLIENTS)
        for link in links[::2]:
            link.sendall(struct.pack(">i", 16_000_000) + bytes(1000))
        for number, link in enumerate(links[1::2]):
            link.sendall(encode(Command(310, {"a": "p", "b": "T", "e": "0"}, b"%d" % number, number)))
        assert {answer_of(link).code for link in links[1::2]} == {0}
        assert store.max_offset("T", 0) == CLIENTS // 2
        assert memory_bytes() - before < 64 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, high))


def test_frames_that_are_never_finished_take_no_more_memory_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above it the clients that go on sending are disconnected."""
    monkeypatch.setattr(limits, "WAITING_MAX", 4 << 20)
    with (
        contextlib.ExitStack() as stack,
        MessageStore.open(tmp_path / "s", "a", CONFIG) as store,
        BrokerServer(store) as server,
    ):
        links = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(12)]
        for link in links:
            with contextlib.suppress(OSError):
                link.sendall(struct.pack(">i", 16_000_000) + bytes(1 << 20))
        until(lambda: server.connections < len(links))
        until(lambda: server._connections.waiting_bytes <= 4 << 20)
        with RemotingClient("127.0.0.1", server.port) as client:
            assert client.invoke(206).code == 0


def test_clients_beyond_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When one leaves, another is served."""
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 3)
    with (
        contextlib.ExitStack() as stack,
        MessageStore.open(tmp_path / "s", "a", CONFIG) as store,
        BrokerServer(store) as server,
    ):
        links = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(3)]
        until(lambda: server.connections == 3)
        with socket.create_connection(("127.0.0.1", server.port)) as late:
            late.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                assert late.recv(10) == b""
        links[0].close()
        until(lambda: server.connections == 2)
        with RemotingClient("127.0.0.1", server.port) as client:
            assert client.invoke(206).code == 0


@pytest.mark.parametrize("turns", range(8))
def test_a_client_that_comes_while_the_server_closes_is_disconnected(tmp_path: Path, turns: int) -> None:
    """It comes so many turns of the loop after the order to close."""
    with contextlib.ExitStack() as stack, MessageStore.open(tmp_path / "s", "a", CONFIG) as store:
        server = stack.enter_context(BrokerServer(store))
        links: list[socket.socket] = []

        def come(left: int) -> None:
            if left:
                server._loop.call_soon(come, left - 1)
            else:
                with contextlib.suppress(ConnectionRefusedError):
                    links.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port))))

        def close() -> None:
            server._is_closing.set()
            come(turns)

        server._loop.call_soon_threadsafe(close)
        until(lambda: not server.is_serving)
        gc.collect()  # an open connection would show itself
        for link in links:
            link.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                assert link.recv(1) == b""


def test_silent_clients_are_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits in a frame sooner than one that says nothing."""
    monkeypatch.setattr(limits, "ONE_FRAME_S", 1.0)
    with (
        MessageStore.open(tmp_path / "s", "a", CONFIG) as store,
        BrokerServer(store) as server,
        socket.create_connection(("127.0.0.1", server.port)) as half,
        socket.create_connection(("127.0.0.1", server.port)) as silent,
    ):
        half.sendall(b"\0\0")
        silent.settimeout(0.1)
        until(lambda: server.connections == 2)
        until(lambda: server.connections == 1)
        with pytest.raises(TimeoutError):
            silent.recv(1)
