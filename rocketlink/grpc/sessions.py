"""The clients of the gRPC port: settings, and what the server sends them by itself."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from messagestore import MessageStore
from messagestore.broker.config.subscription_groups import RETRY_MAX_TIMES

from ..remoting.codes import CHECK_TRANSACTION_STATE
from ..remoting.frames import Command
from ..server.clients import Clients
from ..server.fields import number
from .messages import OK, Declined, delivered, group_of, topic_of
from .protocol import definition as d
from .protocol import service as s

if TYPE_CHECKING:
    from .routes import Routes

CLIENTS_MAX = 4096
UNSENT_MAX = 1 << 14  # commands that wait for one client; then the oldest are dropped, and transactions asked about again
SILENT_S = 40.0  # a client without a telemetry stream that sent nothing for this time is gone; heartbeats come every 10 s
TOPICS_MAX = 10_000  # of one client
BATCH = 32
POLL_S = 20
ATTEMPTS, FIRST_WAIT_NS, LAST_WAIT_S, FACTOR = 3, 10_000_000, 1, 2.0  # of a producer
RETRY_WAITS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


class Outbox:
    """What waits to be sent on one telemetry stream.  Only one task may write to a stream."""

    def __init__(self) -> None:
        """Create it without commands."""
        self._unsent: deque[Callable[[], Any]] = deque(maxlen=UNSENT_MAX)
        self._is_filled = asyncio.Event()

    def push(self, command: Callable[[], Any]) -> None:
        """Make a command and send it as soon as the stream takes it: those that wait have no bodies in memory."""
        self._unsent.append(command)
        self._is_filled.set()

    async def commands(self) -> AsyncIterator[Any]:
        """Yield the commands to send, without an end."""
        while True:
            await self._is_filled.wait()
            self._is_filled.clear()
            while self._unsent:
                command = self._unsent.popleft()()
                if command is not None:
                    yield command


class GrpcClient:
    """One client; the remoting requests notify it as one of theirs."""

    def __init__(self, client: str, host: str, store: MessageStore) -> None:
        """Create it for a client's id."""
        self.client = client
        self.host = host
        self.language, self.version = "OTHER", 0  # of the remoting protocol
        self.streams: list[Outbox] = []
        self.heard_s = time.monotonic()
        self.settings: Any = None
        self.is_producer = False  # according to its heartbeats
        self.group = ""
        self._store = store

    @property
    def is_present(self) -> bool:
        """Whether the client still works with what it has in hand."""
        return self.is_reachable or time.monotonic() - self.heard_s < SILENT_S

    @property
    def is_reachable(self) -> bool:
        """Whether it has a telemetry stream."""
        return bool(self.streams)

    def send(self, command: Command) -> None:
        """Drop an answer: those of requests are awaited where they are made."""

    def notify(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """Ask about a transaction; other news of the remoting protocol have no place in this one."""
        if code == CHECK_TRANSACTION_STATE and self.streams:
            physical_offset, half_offset = number(fields, "commitLogOffset"), number(fields, "tranStateTableOffset")
            self.streams[-1].push(lambda: self._check(physical_offset, half_offset))

    def _check(self, physical_offset: int, half_offset: int) -> Any:
        """Return the command that asks about a half message; None if it is gone."""
        half = self._store.message_at(physical_offset)
        if half is None:
            return None
        message = delivered(half, self._store.config.max_message_size, half.properties.get("REAL_TOPIC", ""), 1)
        command = s.TelemetryCommand(status=OK)
        command.recover_orphaned_transaction_command.message.CopyFrom(message)
        command.recover_orphaned_transaction_command.transaction_id = f"{physical_offset}:{half_offset}"
        return command


class GrpcClients:
    """All clients of the gRPC port.  Every call is made by the loop's thread."""

    def __init__(self, store: MessageStore, clients: Clients, routes: Routes) -> None:
        """Create it without clients; `clients` has the producers of both protocols."""
        self._store = store
        self._clients = clients
        self._routes = routes
        self.all: dict[str, GrpcClient] = {}

    @property
    def groups(self) -> Collection[str]:
        """The consumer groups with a client."""
        return {session.group for session in self.all.values() if session.group}

    def of(self, metadata: dict[str, str], peer: Callable[[], str]) -> GrpcClient:
        """Return the session of a request's client; `peer` returns its address."""
        client = metadata.get("x-mq-client-id", "")
        session = self.all.get(client)
        if session is None:
            if not client or len(client) > 255:
                raise Declined(d.CLIENT_ID_REQUIRED, "the metadata have no x-mq-client-id, or one of more than 255 bytes")
            if len(self.all) >= CLIENTS_MAX:
                self.close_silent()
            if len(self.all) >= CLIENTS_MAX:
                raise Declined(d.TOO_MANY_REQUESTS, f"{CLIENTS_MAX} clients are connected")
            session = self.all[client] = GrpcClient(client, _host(peer()), self._store)
        session.heard_s = time.monotonic()
        return session

    def is_present(self, client: str) -> bool:
        """Return whether a client is connected."""
        session = self.all.get(client)
        return session is not None and session.is_present

    def close_silent(self) -> None:
        """Forget clients that are gone."""
        for session in [session for session in self.all.values() if not session.is_present]:
            self.leave(session)

    def leave(self, session: GrpcClient) -> None:
        """Forget a client.  What it has in hand keeps its time."""
        if self.all.get(session.client) is session:
            del self.all[session.client]
        self._clients.closed(session)

    def configure(self, session: GrpcClient, settings: Any) -> Any:
        """Take a client's settings and return them with the server's part, or raise `Declined`."""
        found = d.Settings()
        found.CopyFrom(settings)
        if settings.HasField("publishing"):
            if len(settings.publishing.topics) > TOPICS_MAX:
                raise Declined(d.BAD_REQUEST, f"more than {TOPICS_MAX} topics")
            for topic in settings.publishing.topics:
                self.add_producer(session, topic_of(topic))
            found.publishing.max_body_size = self._store.config.max_message_size
            found.publishing.validate_message_type = True
            backoff = found.backoff_policy.exponential_backoff
            found.backoff_policy.max_attempts = ATTEMPTS
            backoff.initial.nanos, backoff.max.seconds, backoff.multiplier = FIRST_WAIT_NS, LAST_WAIT_S, FACTOR
        elif settings.HasField("subscription"):
            if len(settings.subscription.subscriptions) > TOPICS_MAX:
                raise Declined(d.BAD_REQUEST, f"more than {TOPICS_MAX} topics")
            session.group = group_of(settings.subscription.group)
            topics = [topic_of(entry.topic) for entry in settings.subscription.subscriptions]
            found.subscription.fifo = any(self._routes.is_in_order(topic, session.group) for topic in topics)
            found.subscription.receive_batch_size = BATCH
            found.subscription.long_polling_timeout.seconds = POLL_S
            known = self._store.engine.retries.groups.get(session.group)
            retries = known.retry_max_times if known is not None else RETRY_MAX_TIMES
            found.backoff_policy.max_attempts = retries + 1
            for wait_s in RETRY_WAITS_S:
                found.backoff_policy.customized_backoff.next.add().seconds = wait_s
        else:
            raise Declined(d.UNRECOGNIZED_CLIENT_TYPE, "settings of neither a producer nor a consumer")
        found.metric.on = False
        session.settings = found
        return found

    def add_producer(self, session: GrpcClient, topic: str) -> None:
        """Let a client be asked about transactions of a topic, whose name stands for the producer group."""
        self._clients.add_producer(topic, session.client, session)


def _host(peer: str) -> str:
    """Return the address of a peer in the form of the log.

    >>> _host("ipv4:127.0.0.1:5"), _host("ipv6:%5B::1%5D:5"), _host("unix:")
    ('127.0.0.1:5', '[::1]:5', '127.0.0.1:0')
    """
    kind, _, address = peer.partition(":")
    return unquote(address) if kind in ("ipv4", "ipv6") else "127.0.0.1:0"
