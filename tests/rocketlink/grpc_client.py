"""A client of the gRPC port that has only the generated stubs."""

from __future__ import annotations

import contextlib
import importlib.util
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="the extra grpc is not installed")
if importlib.util.find_spec("rocketmq") is None:
    pytest.skip("the extra grpc is not installed", allow_module_level=True)

from messagestore import MessageStore, StoreConfig  # noqa: E402
from rocketlink import BrokerServer  # noqa: E402
from rocketlink.grpc import limits, port, receiving, sessions  # noqa: E402, F401
from rocketlink.grpc import messages as contents  # noqa: E402, F401
from rocketlink.grpc.protocol import definition as d  # noqa: E402
from rocketlink.grpc.protocol import service as s  # noqa: E402
from tests.stores import small_config  # noqa: E402

SERVICE = "/apache.rocketmq.v2.MessagingService/"
CONFIG = small_config(mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000, max_index_num=20_000)
PATIENCE_S = 30.0
STREAMED = ("ReceiveMessage", "PullMessage")


class GrpcServed:
    """A store, its server with a gRPC port, and one client."""

    def __init__(self, folder: Path, config: StoreConfig = CONFIG, **options: Any) -> None:
        self.store = MessageStore.open(folder, "a", config)
        self.server = BrokerServer(self.store, grpc_port=0, **options)
        self.channel = grpc.insecure_channel(self.server.grpc_address)
        self.metadata = [("x-mq-client-id", "c1")]

    def close(self) -> None:
        self.channel.close()
        self.server.close()
        self.store.close()

    def method(self, name: str) -> Any:
        """Return a method of the service."""
        answer = getattr(s, f"{name}Response")
        kind = self.channel.unary_stream if name in STREAMED else self.channel.unary_unary
        return kind(SERVICE + name, getattr(s, f"{name}Request").SerializeToString, answer.FromString)

    def call(self, name: str, request: Any, metadata: Any = None) -> Any:
        """Return the answer to a request."""
        return self.method(name)(request, metadata=metadata or self.metadata, timeout=PATIENCE_S)

    def send(self, *messages: Any) -> Any:
        return self.call("SendMessage", s.SendMessageRequest(messages=messages))

    def receive(
        self, topic: str = "T", group: str = "g", *, wait_s: float = 0, metadata: Any = None, **changes: Any
    ) -> list[Any]:
        """Return the messages of one answer."""
        request = receive_request(topic, group, wait_s=wait_s, **changes)
        answers = list(self.call("ReceiveMessage", request, metadata))
        assert answers[0].WhichOneof("content") == "status"
        assert answers[0].status.code in (d.OK, d.MESSAGE_NOT_FOUND), answers[0].status
        found = [one.message for one in answers if one.WhichOneof("content") == "message"]
        assert bool(found) == (answers[0].status.code == d.OK)
        return found

    def refused(self, **changes: Any) -> int:
        """Return the code with which a request for messages is refused."""
        (answer,) = self.call("ReceiveMessage", receive_request(**changes))
        return int(answer.status.code)

    def acknowledge(self, *messages: Any, group: str = "g", topic: str = "T") -> Any:
        entries = [
            s.AckMessageEntry(message_id=one.system_properties.message_id, receipt_handle=one.system_properties.receipt_handle)
            for one in messages
        ]
        return self.call("AckMessage", s.AckMessageRequest(group=named(group), topic=named(topic), entries=entries))

    @contextlib.contextmanager
    def telemetry(self, settings: Any, metadata: Any = None) -> Iterator[Any]:
        """Open a telemetry stream, and yield a function that returns the next command of the server."""
        outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        outgoing.put(s.TelemetryCommand(settings=settings))
        incoming: queue.SimpleQueue[Any] = queue.SimpleQueue()
        stream = self.channel.stream_stream(
            SERVICE + "Telemetry", s.TelemetryCommand.SerializeToString, s.TelemetryCommand.FromString
        )(iter(outgoing.get, None), metadata=metadata or self.metadata)

        def read() -> None:
            with contextlib.suppress(grpc.RpcError):
                for command in stream:
                    incoming.put(command)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield lambda: incoming.get(timeout=PATIENCE_S)
        finally:
            outgoing.put(None)
            stream.cancel()
            reader.join()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[GrpcServed]:
    """Serve an empty store."""
    found = GrpcServed(tmp_path / "s")
    yield found
    found.close()


def named(name: str, space: str = "") -> Any:
    return d.Resource(name=name, resource_namespace=space)


def message(topic: str = "T", body: bytes = b"1", **system: Any) -> Any:
    """Return a message as a client sends it."""
    given = {"message_id": "01ID", "message_type": d.NORMAL, "body_encoding": d.IDENTITY, **system}
    return d.Message(topic=named(topic), body=body, system_properties=d.SystemProperties(**given))


def receive_request(
    topic: str = "T", group: str = "g", *, wait_s: float = 0, invisible_s: float = 60, count: int = 32, tags: str = "*",
    kind: int = d.TAG, auto_renew: bool = False,
) -> Any:  # fmt: skip
    request = s.ReceiveMessageRequest(
        group=named(group), message_queue=d.MessageQueue(topic=named(topic)), batch_size=count, auto_renew=auto_renew,
        filter_expression=d.FilterExpression(type=kind, expression=tags),
    )  # fmt: skip
    request.invisible_duration.FromNanoseconds(int(invisible_s * 1e9))
    request.long_polling_timeout.FromNanoseconds(int(wait_s * 1e9))
    return request


def consumer_settings(*topics: str, group: str = "g") -> Any:
    entries = [d.SubscriptionEntry(topic=named(topic)) for topic in topics]
    subscription = d.Subscription(group=named(group), subscriptions=entries)
    return d.Settings(client_type=d.PUSH_CONSUMER, subscription=subscription)


def producer_settings(*topics: str) -> Any:
    return d.Settings(client_type=d.PRODUCER, publishing=d.Publishing(topics=[named(topic) for topic in topics]))


def bodies(messages: list[Any]) -> list[bytes]:
    return [bytes(one.body) for one in messages]
