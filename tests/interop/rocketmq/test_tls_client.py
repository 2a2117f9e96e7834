"""The official Java client with TLS, which checks the server's certificate, on a store of ours."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path

from messagestore import MessageStore
from rocketlink import BrokerServer
from tests.serving import certificate

from .jvm import SMALL_JVM, Refused, prepare_or_skip
from .live import CLIENT_VERSION, CONFIG, MARKS, deliveries, missing
from .real_broker import NAME, client, until

pytestmark = MARKS
TLS = ["-Dtls.enable=true", "-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true"]
COUNT = 500


def test_java_client_speaks_tls(tmp_path: Path) -> None:
    """It sends and consumes; one that trusts another certificate, or has no TLS, gets nothing."""
    prepare_or_skip(CLIENT_VERSION)
    cert, key = certificate(tmp_path / "own")
    other, _ = certificate(tmp_path / "other")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    with MessageStore.open(tmp_path / "s", "a", CONFIG) as store:
        store.create_topic("T", 2)
        with BrokerServer(store, name=NAME, tls=context) as server:
            trusting = [*SMALL_JVM, *TLS, f"-Dtls.client.trustCertPath={cert}"]
            jvm = client(server.address, server.address, tmp_path, version=CLIENT_VERSION, options=trusting)
            try:
                jvm.answer()
                file = tmp_path / "file"
                jvm.invoke("start_consumer", name="a", group="G", topic="T", file=str(file))
                jvm.invoke("flood", topic="T", count=COUNT, queues=2, ahead=20, size=2000)
                until(lambda: not missing(file, COUNT), "every message is processed")
                assert len({one.body for one in deliveries(file)}) == COUNT
            finally:
                jvm.end()
            for wrong in ([*TLS, f"-Dtls.client.trustCertPath={other}"], []):
                assert is_refused(server, tmp_path, [*SMALL_JVM, *wrong])
            assert sum(store.max_offset("T", queue_id) for queue_id in (0, 1)) == COUNT


def is_refused(server: BrokerServer, scratch: Path, options: list[str]) -> bool:
    """Return whether a client with other options cannot send."""
    jvm = client(server.address, server.address, scratch, version=CLIENT_VERSION, options=options)
    try:
        jvm.answer()
        body = base64.b64encode(b"1").decode()
        jvm.invoke("send", messages=[{"topic": "T", "body": body, "queue_id": 0}])
    except Refused:
        return True
    finally:
        jvm.end()
    return False
