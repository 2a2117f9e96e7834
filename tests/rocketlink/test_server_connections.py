"""Connections of a server: who may connect, clients that send or read what they should not, and the end of a server."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import socket
import ssl
import struct
import threading
import time
from pathlib import Path

import pytest

from commitlog import Message
from messagestore import MessageStore
from rocketlink import BrokerServer, RemoteError, Replica
from rocketlink.remoting.frames import Command, encode
from storageio import InvalidSetting
from tests.helpers import until

from .test_server import CONFIG, WAITING_PULL, Served, answer_of, records, served

__all__ = ["served"]  # the fixture


def test_requests_need_the_signature_of_the_secret(tmp_path: Path) -> None:
    """HMAC-SHA1 over the sorted fields and the body, as RocketMQ's ACL has it."""
    served = Served(tmp_path / "s", access_key="user", secret="secret key")
    try:
        fields = {"topic": "T", "queueId": "0", "AccessKey": "user"}
        signature = base64.b64encode(hmac.new(b"secret key", b"user0T", hashlib.sha1).digest()).decode()
        assert served.invoke_raw(30, fields).code == 16
        assert served.invoke_raw(30, fields | {"Signature": signature[:-2] + "AA"}).code == 16
        assert served.invoke_raw(30, fields | {"Signature": signature}).code == 0
    finally:
        served.close()


def test_only_a_host_with_signed_requests_can_replicate_the_log(tmp_path: Path) -> None:
    """The replication protocol has no signature: a host is admitted after a signed request."""
    served = Served(tmp_path / "s", access_key="user", secret="secret key")
    try:
        served.store.put(Message("T", b"0", queue_id=0))
        with socket.create_connection(("127.0.0.1", served.server._ha.port)) as stranger:
            stranger.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                stranger.sendall(struct.pack(">q", 1))
                assert stranger.recv(100) == b""
        with pytest.raises(RemoteError, match="signature"):
            Replica("127.0.0.1", served.server.port, tmp_path / "r", access_key="user", secret="wrong")
        with Replica(
            "127.0.0.1", served.server.port, tmp_path / "r", from_start=True, access_key="user", secret="secret key"
        ) as replica:
            assert replica.wait(served.store.log_end, 20)
    finally:
        served.close()


def test_a_non_loopback_address_requires_a_secret(tmp_path: Path) -> None:
    """Nothing listens without one."""
    with MessageStore.open(tmp_path / "s", "a", CONFIG) as store, pytest.raises(InvalidSetting, match="secret"):
        BrokerServer(store, "0.0.0.0")


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", struct.pack(">i", 1 << 30), struct.pack(">ii", 8, 4) + b"nope", bytes(64)]
)
def test_a_client_that_sends_no_frames_is_closed_and_others_are_served(served: Served, data: bytes) -> None:
    """Its connection ends without an answer."""
    with socket.create_connection(("127.0.0.1", served.server.port)) as link:
        link.settimeout(20)
        link.sendall(data)
        with contextlib.suppress(ConnectionResetError):
            assert link.recv(100) == b""
    assert served.send("T", b"0")["queueOffset"] == "0"


def test_a_client_that_does_not_read_is_throttled_without_affecting_others(served: Served) -> None:
    """The server keeps at most about a megabyte of answers and one read of requests for it."""
    for _ in range(40):
        served.store.put(Message("T", bytes(100_000), queue_id=0))
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "sysFlag": "4", "subscription": "*"}
    with socket.create_connection(("127.0.0.1", served.server.port)) as slow:
        slow.setblocking(False)
        request, sent = encode(Command(11, fields, b"", 1)), 0
        for _ in range(2000):
            try:
                sent += slow.send(request)
            except BlockingIOError:
                break
        until(lambda: any(one.is_paused for one in served.server._connections.all))
        began = time.monotonic()
        assert served.send("T", b"0", e=1)["queueOffset"] == "0"
        assert time.monotonic() - began < 15
        buffered = sum(one._transport.get_write_buffer_size() for one in served.server._connections.all)  # type: ignore[union-attr]
        assert buffered < 12 << 20


def test_a_closed_server_leaves_the_store_open(tmp_path: Path) -> None:
    """No connection, port or thread stays; it can be served again on the same port."""
    with MessageStore.open(tmp_path / "s", "a", CONFIG) as store:
        server = BrokerServer(store)
        with socket.create_connection(("127.0.0.1", server.port)) as link:
            until(lambda: server.connections == 1)
            server.close()
            server.close()
            link.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                assert link.recv(10) == b""
        store.put(Message("T", b"x"))
        with BrokerServer(store, port=server.port):
            pass
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("brokerstore-server")]


def tls_hello() -> bytes:
    """Return the first bytes of a TLS client."""
    given, taken = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(given, taken, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return taken.read()


@pytest.mark.parametrize(
    ("data", "name"),
    [(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "gRPC"), (b"GET / HTTP/1.1\r\nHost: b\r\n\r\n", "HTTP"), (tls_hello(), "TLS")],
)
def test_a_client_of_another_protocol_is_named_once(
    served: Served, caplog: pytest.LogCaptureFixture, data: bytes, name: str
) -> None:
    """It only sees that the connection ends, and comes again; the operator has to learn why."""
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", served.server.port)) as link:
            link.sendall(data)
            with contextlib.suppress(ConnectionResetError):
                assert link.recv(100) == b""
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"it speaks {name}" in line and line.startswith("client 127.0.0.1:")


def test_a_server_that_is_closed_has_no_thread(tmp_path: Path) -> None:
    """All of them end with it."""
    found = Served(tmp_path / "s")
    found.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("brokerstore-server")]


def test_puts_wake_the_dispatcher_only_while_a_request_waits(served: Served) -> None:
    """A server whose clients only send, or that is closed, costs no put a change of threads."""
    progress = served.store.engine.progress
    served.send("T", b"0")
    assert not progress.is_awaited
    with socket.create_connection(("127.0.0.1", served.server.port)) as link:
        link.sendall(encode(Command(11, WAITING_PULL, b"", 1)))
        until(lambda: progress.is_awaited)
        served.send("T", b"1")
        assert [message.body for message in records(answer_of(link).body)] == [b"1"]
        until(lambda: not progress.is_awaited)
        link.sendall(encode(Command(11, WAITING_PULL | {"queueOffset": "2"}, b"", 2)))
        until(lambda: progress.is_awaited)
        served.server.close()
    assert not progress.is_awaited
