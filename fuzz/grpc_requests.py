"""A target for what clients of the gRPC port send: the messages of each method, and whole connections with HTTP/2 frames."""

from __future__ import annotations

import asyncio
import functools
import random
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc

from fuzz.link_frames import REQUESTS_MAX, Unnamed, memory_store
from messagestore import MessageStore
from rocketlink.grpc.protocol import definition as d
from rocketlink.grpc.protocol import service as s
from rocketlink.grpc.service import NAME, MessagingService
from rocketlink.server.requests import AdmittedHosts, Requests
from rocketlink.server.tables import Identity

from .mutate import NUMBERS, mutated

CLIENT = (("x-mq-client-id", "c1"),)
METHODS = (
    "QueryRoute", "Heartbeat", "SendMessage", "QueryAssignment", "ReceiveMessage", "AckMessage",
    "ForwardMessageToDeadLetterQueue", "EndTransaction", "NotifyClientTermination", "ChangeInvisibleDuration", "PullMessage",
    "UpdateOffset", "GetOffset", "QueryOffset", "RecallMessage", "SyncLiteSubscription", "Telemetry",
)  # fmt: skip
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
_used = 0


def grpc_requests(data: bytes) -> None:
    """Send a message to the method of its first byte; each is answered with a status, and none with an unexpected error."""
    global _used
    _used += 1
    if _used % REQUESTS_MAX == 0:
        _served()[2].close()
        _served.cache_clear()
    loop, service, _ = _served()
    name = METHODS[data[0] % len(METHODS)] if data else METHODS[0]
    method = service.service(_Details(f"/{NAME}/{name}"))
    try:
        request = method.request_deserializer(data[1:])
    except Exception:  # the library answers it
        return
    context = _Context(request)
    if method.response_streaming:
        loop.run_until_complete(method.stream_stream(context.requests(), context))
    else:
        context.answers.append(loop.run_until_complete(method.stream_unary(context.requests(), context)))
    for answer in context.answers:
        assert method.response_serializer(answer)
        if answer.HasField("status"):
            assert answer.status.code, answer
            if answer.status.message == "internal error":
                raise Unnamed(answer)


@functools.cache
def _served() -> tuple[asyncio.AbstractEventLoop, Any, MessageStore]:
    """Return the methods for a store in memory, without a port."""
    store = memory_store()
    store.create_topic("F", 1, attributes={"message.type": "FIFO"})
    identity = Identity("c", "b", "127.0.0.1:10911", 10912)
    requests = Requests(store, identity, lambda function: function(), AdmittedHosts(None), lambda: None)
    service = MessagingService(store, requests, identity, ("127.0.0.1", 8081), None)
    return asyncio.new_event_loop(), service.handlers(), store


class _Details:
    """What names a method."""

    def __init__(self, method: str) -> None:
        self.method, self.invocation_metadata = method, CLIENT


class _Context:
    """A call whose client sends one request and does not wait."""

    def __init__(self, request: Any) -> None:
        self._requests = [request]
        self.answers: list[Any] = []

    async def read(self) -> Any:
        return self._requests.pop() if self._requests else grpc.aio.EOF

    async def requests(self) -> AsyncIterator[Any]:
        """Yield the request, and keep the stream open until its answer was written."""
        while (request := await self.read()) is not grpc.aio.EOF:
            yield request
        for _ in range(3):
            await asyncio.sleep(0)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return CLIENT

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5"

    def time_remaining(self) -> float:
        return 0.0

    async def write(self, answer: Any) -> None:
        self.answers.append(answer)

    async def abort(self, code: Any, text: str) -> None:
        raise Unnamed(code, text)


def _messages() -> Iterator[Any]:
    """Yield requests of each kind, with all fields that the server reads."""
    topic, group, queue = d.Resource(name="T"), d.Resource(name="g"), d.MessageQueue(topic=d.Resource(name="T"), id=0)
    system = d.SystemProperties(
        tag="t", keys=["k"], message_id="01ID", body_encoding=d.IDENTITY, message_type=d.NORMAL, born_host="h",
        body_digest=d.Digest(type=d.CRC32, checksum="0"), trace_context="x",
    )  # fmt: skip
    plain = d.Message(topic=topic, body=b"1", system_properties=d.SystemProperties(message_id="1", message_type=d.NORMAL))
    full = d.Message(topic=topic, body=b"body", system_properties=system, user_properties={"a": "b"})
    later, half, ordered = d.Message(), d.Message(), d.Message()
    for one, kind in ((later, d.DELAY), (half, d.TRANSACTION), (ordered, d.FIFO)):
        one.CopyFrom(plain)
        one.system_properties.message_type = kind
    later.system_properties.delivery_timestamp.seconds = 4_000_000_000
    half.system_properties.orphaned_transaction_recovery_duration.seconds = 6
    ordered.topic.name, ordered.system_properties.message_group = "F", "a"
    packed = d.Message(topic=topic, body=b"\x1f\x8b\x08\0\0\0\0\0\0\x03K\x04\0C\xbe\xb7\xe8\x01\0\0\0")
    packed.system_properties.message_id, packed.system_properties.body_encoding = "2", d.GZIP
    endpoints = d.Endpoints(scheme=d.IPv4, addresses=[d.Address(host="127.0.0.1", port=8081)])
    yield s.QueryRouteRequest(topic=topic, endpoints=endpoints)
    yield s.HeartbeatRequest(group=group, client_type=d.PUSH_CONSUMER)
    yield from (s.SendMessageRequest(messages=some) for some in ([plain, full], [later], [half], [ordered], [packed, plain]))
    yield s.QueryAssignmentRequest(topic=topic, group=group, endpoints=endpoints)
    found = s.ReceiveMessageRequest(group=group, message_queue=queue, batch_size=32, auto_renew=False)
    found.filter_expression.type, found.filter_expression.expression = d.TAG, "*"
    found.invisible_duration.seconds, found.long_polling_timeout.seconds = 30, 5
    yield found
    in_order = s.ReceiveMessageRequest()
    in_order.CopyFrom(found)
    in_order.message_queue.topic.name, in_order.auto_renew = "F", True
    in_order.filter_expression.type, in_order.filter_expression.expression = d.SQL, "a = 'b' AND x > 1.5"
    yield in_order
    handle = "0 0 0 1700000000000"
    yield s.AckMessageRequest(group=group, topic=topic, entries=[s.AckMessageEntry(message_id="1", receipt_handle=handle)])
    yield s.ForwardMessageToDeadLetterQueueRequest(group=group, topic=topic, receipt_handle=handle, message_id="1")
    yield s.EndTransactionRequest(topic=topic, message_id="1", transaction_id="0:0", resolution=d.COMMIT)
    yield s.NotifyClientTerminationRequest(group=group)
    change = s.ChangeInvisibleDurationRequest(group=group, topic=topic, receipt_handle=handle, message_id="1")
    change.invisible_duration.seconds = 10
    yield change
    pull = s.PullMessageRequest(group=group, message_queue=queue, offset=0, batch_size=32)
    pull.long_polling_timeout.seconds = 1
    yield pull
    yield s.UpdateOffsetRequest(group=group, message_queue=queue, offset=1)
    yield s.GetOffsetRequest(group=group, message_queue=queue)
    yield s.QueryOffsetRequest(message_queue=queue, query_offset_policy=d.TIMESTAMP)
    yield s.RecallMessageRequest(topic=topic, recall_handle="x")
    yield s.SyncLiteSubscriptionRequest(topic=topic, group=group)
    entries = [d.SubscriptionEntry(topic=topic, expression=d.FilterExpression(type=d.TAG, expression="*"))]
    consumer = d.Settings(client_type=d.PUSH_CONSUMER, subscription=d.Subscription(group=group, subscriptions=entries))
    producer = d.Settings(client_type=d.PRODUCER, publishing=d.Publishing(topics=[topic]))
    yield from (s.TelemetryCommand(settings=one) for one in (consumer, producer))
    yield s.TelemetryCommand(thread_stack_trace=s.ThreadStackTrace(nonce="1"))


def seeds() -> list[bytes]:
    """Return the requests, each behind the number of its method."""
    kinds = {f"{name}Request": number for number, name in enumerate(METHODS)} | {"TelemetryCommand": METHODS.index("Telemetry")}
    return [bytes([kinds[type(one).__name__]]) + one.SerializeToString() for one in _messages()]


class ChangedMessages:
    """Requests with changed fields: of messages with changed bytes the library decodes one in ten."""

    def __init__(self, chance: random.Random) -> None:
        """Make the texts, so that a server is told a bounded number of names."""
        self._chance = chance
        self._texts = [mutated(chance, [b"T", b"g", b"01ID", b"0 0 0 1"]).decode("latin-1")[:300] for _ in range(300)]
        self._seeds = seeds()

    def next(self) -> bytes:
        """Return the next request, behind the number of its method."""
        chance, data = self._chance, self._chance.choice(self._seeds)
        if chance.random() < 0.3:
            return data[:1] + mutated(chance, [data[1:]])
        name = METHODS[data[0]]
        request = getattr(s, "TelemetryCommand" if name == "Telemetry" else f"{name}Request").FromString(data[1:])
        for _ in range(chance.randint(0, 3)):
            self._change(request)
        return data[:1] + request.SerializeToString()

    def _change(self, message: Any) -> None:
        """Change a field of a message or of one below it."""
        chance, fields = self._chance, message.ListFields()
        if not fields:
            return
        field, value = chance.choice(fields)
        if chance.random() < 0.1:
            message.ClearField(field.name)
        elif field.message_type is not None:
            some = [value] if not field.is_repeated else [] if hasattr(value, "items") else list(value)
            if field.is_repeated and some and chance.random() < 0.3:
                value.add().CopyFrom(some[0])
            elif some:
                self._change(chance.choice(some))
        elif not field.is_repeated:
            setattr(message, field.name, self._another(field))

    def _another(self, field: Any) -> Any:
        chance = self._chance
        if field.type == field.TYPE_BYTES:
            return chance.choice(self._texts).encode()
        if field.type == field.TYPE_STRING:
            return chance.choice(self._texts)
        if field.type == field.TYPE_BOOL:
            return chance.random() < 0.5
        if field.type == field.TYPE_ENUM:
            return chance.choice((0, 1, 2, 3, 4, 5, 6, 7, 1000, -1))
        bits = 31 if field.type in (field.TYPE_INT32, field.TYPE_SINT32) else 63
        return chance.choice(NUMBERS) % (1 << bits) * chance.choice((1, 1, -1))


# HTTP/2, as far as a client needs it


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def opening(*settings: tuple[int, int]) -> bytes:
    """Return what a client sends first."""
    return PREFACE + frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *one) for one in settings))


def head(stream: int, method: str, *more: tuple[str, str]) -> bytes:
    """Return the headers of a request; none is compressed."""
    pairs = (
        (":method", "POST"), (":scheme", "http"), (":path", f"/{NAME}/{method}"), (":authority", "a"), ("te", "trailers"),
        ("content-type", "application/grpc"), *CLIENT, *more,
    )  # fmt: skip
    packed = b"".join(b"\0" + bytes([len(name)]) + name.encode() + bytes([len(text)]) + text.encode() for name, text in pairs)
    return frame(HEADERS, END_HEADERS, stream, packed)


def request_frames(stream: int, data: bytes, *, flag: int = 0, more: tuple[tuple[str, str], ...] = ()) -> bytes:
    """Return the frames of a request behind the number of its method."""
    message = bytes([flag]) + struct.pack(">I", len(data) - 1) + data[1:]
    return head(stream, METHODS[data[0] % len(METHODS)], *more) + frame(DATA, END_STREAM, stream, message)
