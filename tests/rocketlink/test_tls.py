"""TLS on the ports of the remoting protocol."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerstore.tool import main
from messagestore import MessageStore
from rocketlink import BrokerServer
from rocketlink.remoting.frames import Command, RemotingFrameReader, encode
from rocketlink.server import connections
from tests.helpers import until
from tests.serving import certificate
from tests.stores import small_config

CONFIG = small_config(mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000, max_index_num=20_000)
SEND, GET_ROUTE, PULL = 10, 105, 11
PATIENCE_S = 20.0


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Return a certificate and its key."""
    return certificate(tmp_path)


@pytest.fixture
def server(tmp_path: Path, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerServer]:
    """Serve a store with TLS, on two ports, with little patience for handshakes."""
    monkeypatch.setattr(connections, "HANDSHAKE_S", 2.0)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*files)
    with MessageStore.open(tmp_path / "s", "a", CONFIG) as store:
        store.create_topic("T", 1)
        with BrokerServer(store, names_port=0, tls=context) as found:
            yield found


class Client:
    """A client that checks the certificate."""

    def __init__(self, port: int, trusted: Path) -> None:
        context = ssl.create_default_context(cafile=str(trusted))
        connected = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.socket = context.wrap_socket(connected, server_hostname="localhost")
        self._frames = RemotingFrameReader()
        self._opaque = 0

    def invoke(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        self._opaque += 1
        self.socket.sendall(encode(Command(code, fields, body, self._opaque)))
        while received := self.socket.recv(1 << 16):
            for found in self._frames.feed(received):
                assert found.opaque == self._opaque
                return found
        raise ConnectionResetError


@pytest.fixture
def client(server: BrokerServer, files: tuple[Path, Path]) -> Iterator[Client]:
    """Connect to the broker's port."""
    found = Client(server.port, files[0])
    yield found
    found.socket.close()


def send_fields(**changes: str) -> dict[str, str]:
    return {
        "producerGroup": "p",
        "topic": "T",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1",
        "properties": "",
    } | changes


def test_requests_and_answers_are_encrypted(server: BrokerServer, client: Client, files: tuple[Path, Path]) -> None:
    """On both ports, also larger than a record of TLS; the address of the client is known."""
    body = b"x" * 300_000
    assert client.invoke(SEND, send_fields(), body).code == 0
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4"}
    found = client.invoke(
        PULL, fields | {"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
    )
    assert found.code == 0 and body in found.body
    (stored,) = server._store.read("T", 0)
    assert stored.born_host.split(":")[0] == "127.0.0.1"
    names = Client(server.names_port, files[0])
    assert names.invoke(GET_ROUTE, {"topic": "T"}).code == 0
    names.socket.close()


def test_client_without_tls_gets_no_answer(server: BrokerServer, client: Client) -> None:
    """Its connection ends; others are served."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as plain:
        plain.sendall(encode(Command(GET_ROUTE, {"topic": "T"}, b"", 1)))
        received = bytearray()
        while chunk := plain.recv(4096):
            received += chunk
    assert b"brokerDatas" not in received and b"{" not in received
    assert client.invoke(GET_ROUTE, {"topic": "T"}).code == 0


def test_silent_handshakes_end(server: BrokerServer, client: Client) -> None:
    """A client that connects and sends nothing is disconnected; closing the server does not wait for it."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as silent:
        assert silent.recv(1) == b"", "the server ends it after its time for handshakes"
    assert client.invoke(GET_ROUTE, {"topic": "T"}).code == 0


def test_handshakes_count_as_connections(server: BrokerServer, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client beyond the limit is refused before its handshake; one that ends makes space."""
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(connections, "HANDSHAKE_S", PATIENCE_S)
    silent = [socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) for _ in range(2)]
    until(lambda: server.connections == 3)
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as late, contextlib.suppress(ConnectionResetError):
        assert late.recv(1) == b""
    assert server.connections == 3, "the others still have time"
    for one in silent:
        one.close()
    until(lambda: server.connections == 1)
    assert client.invoke(GET_ROUTE, {"topic": "T"}).code == 0


def test_request_that_comes_with_the_end_of_the_handshake_is_answered(server: BrokerServer, files: tuple[Path, Path]) -> None:
    """In one piece: the server reads both before its own side of the handshake is over."""
    context = ssl.create_default_context(cafile=str(files[0]))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as link:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                link.sendall(outgoing.read())
                incoming.write(link.recv(1 << 16))
        tls.write(encode(Command(GET_ROUTE, {"topic": "T"}, b"", 7)))
        link.sendall(outgoing.read())
        frames, found = RemotingFrameReader(), []
        while not found:
            incoming.write(link.recv(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                found = list(frames.feed(tls.read(1 << 16)))
    assert [(one.opaque, one.code) for one in found] == [(7, 0)]


def test_closing_ends_clients(server: BrokerServer, client: Client) -> None:
    """A close comes back although a client is connected and another has not finished its handshake."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S):
        until(lambda: server.connections == 2)
        closing = threading.Thread(target=server.close)
        closing.start()
        closing.join(PATIENCE_S)
        assert not closing.is_alive()
    with pytest.raises(OSError):
        client.invoke(GET_ROUTE, {"topic": "T"})


def test_options_are_given_together(tmp_path: Path, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """And the key has to be that of the certificate."""
    cert, key = map(str, files)
    assert main(["serve", str(tmp_path / "s"), "--tls-cert", cert]) == 2
    assert "give both" in capsys.readouterr().err
    other = str(certificate(tmp_path / "other")[1])
    for wrong in (other, cert):
        assert main(["serve", str(tmp_path / "s"), "--tls-cert", cert, "--tls-key", wrong]) == 2
        assert f"--tls-key {wrong}" in capsys.readouterr().err
    assert key != other and not (tmp_path / "s").exists()


def test_closing_the_server_ends_a_handshake(server: BrokerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that says nothing does not hold it up."""
    monkeypatch.setattr(connections, "HANDSHAKE_S", 3600.0)
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as silent:
        until(lambda: server.connections == 1)
        server.close()
        assert server.connections == 0
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(1) == b""
