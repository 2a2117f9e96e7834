"""Connections of clients: frames in, answers out, and limits that keep one client from harming others."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from typing import Protocol

from storageio import StoreError

from ..errors import OtherProtocol, WrongFrame
from ..remoting.codes import SYSTEM_ERROR
from ..remoting.frames import IS_ONE_WAY, Command, RemotingFrameReader, encode

LOG = logging.getLogger(f"brokerstore.{__name__}")
CONNECTIONS_MAX = 4096
WAITING_MAX = 256 << 20  # bytes of incomplete frames on all connections together
TOGETHER = 1 << 16  # bytes of answers to requests that arrived together, which go out with one call
UNSENT_HIGH = 1 << 20  # bytes of answers that wait for one client; no more of its requests are read until it reads
UNSENT_MAX = 256 << 20  # bytes of answers that wait for all clients together; beyond it those that waited longest are closed
IDLE_S = 120.0
HANDSHAKE_S = 10.0  # of TLS
ONE_FRAME_S = 30.0  # for a frame that began to arrive
INVOKED_MAX = 100  # that one client has not answered
TRACE_MAX = 200  # characters of an error in a remark
NAMED = (StoreError, ValueError, OverflowError)  # errors whose text a client is told
Handler = Callable[["Connection", Command], "Command | None"]


class Peer(Protocol):
    """A client, of this protocol or of gRPC."""

    host: str
    language: str
    version: int

    @property
    def is_reachable(self) -> bool:
        """Whether the server can send it requests now."""

    def send(self, command: Command) -> None:
        """Send an answer or a request; a client that is gone gets none."""

    def notify(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """Send a request that gets no answer."""


class Connections:
    """All connections of one server.  Everything runs in the loop's thread."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        """Create it without connections, which speak TLS alone with `tls`; `serve` comes before the first one."""
        self.tls = tls
        self.all: set[Connection] = set()
        self.waiting_bytes = 0
        self._warned: set[str] = set()
        self._unsent: dict[Connection, int] = {}  # bytes for clients that do not read, the longest waiting first
        self._unsent_bytes = 0

    def serve(self, handle: Handler, on_closed: Callable[[Connection], None]) -> None:
        """Let `handle` answer requests: with None if there is no answer, or it is sent later."""
        self.handle = handle
        self.on_closed = on_closed

    def warn(self, host: str, reason: str) -> None:
        """Log why a client cannot be served, once for each reason: such a client connects again and again."""
        if reason not in self._warned:
            self._warned.add(reason)
            LOG.warning("client %s: %s", host, reason)

    def note_unsent(self, connection: Connection, size_bytes: int) -> None:
        """Note what waits for a client that does not read, 0 once it does; close the slowest clients if it is too much."""
        self._unsent_bytes += size_bytes - self._unsent.get(connection, 0)
        if size_bytes:
            self._unsent[connection] = size_bytes
        else:
            self._unsent.pop(connection, None)
        while self._unsent_bytes > UNSENT_MAX:
            slowest = next(iter(self._unsent))
            self._unsent_bytes -= self._unsent.pop(slowest)
            slowest.close(f"more than {UNSENT_MAX} bytes wait for clients that do not read")

    def close_stale(self) -> None:
        """Close connections that were silent for too long, or did not complete a frame."""
        now_s = time.monotonic()
        for connection in list(self.all):
            limit_s = ONE_FRAME_S if connection.waiting_bytes else IDLE_S
            if not connection.is_paused and now_s - connection.heard_s > limit_s:
                connection.close(f"nothing was received for {limit_s:g} s")


class Connection(asyncio.Protocol):
    """The connection of one client."""

    def __init__(self, connections: Connections) -> None:
        """Create it before the client is connected."""
        self._connections = connections
        self._frames = RemotingFrameReader()
        self._transport: asyncio.Transport | None = None
        self._requested = 0
        self._invoked: dict[int, Callable[[Command], None]] = {}
        self._is_ended = False
        self._is_encrypting = False
        self._is_pumping = False
        self._answers: list[bytes] = []
        self._answers_size = 0
        self.is_paused = False
        self.heard_s = time.monotonic()
        self.waiting_bytes = 0
        self.host = "127.0.0.1:0"
        self.language, self.version = "OTHER", 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new client in, or refuse it if there are too many."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        host, port = (transport.get_extra_info("peername") or ("127.0.0.1", 0))[:2]
        self.host = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if len(self._connections.all) >= CONNECTIONS_MAX:
            self.close(f"{CONNECTIONS_MAX} clients are connected")
            return
        self._connections.all.add(self)
        if self._connections.tls is None:
            transport.set_write_buffer_limits(high=UNSENT_HIGH)
            return
        transport.pause_reading()
        self._is_encrypting = True
        self._handshake = asyncio.ensure_future(self._encrypt(transport, self._connections.tls))

    async def _encrypt(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Go on with TLS.  A server that asyncio lets speak it reports a client only after the handshake."""
        try:
            encrypted = await asyncio.get_running_loop().start_tls(
                transport, self, tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )
        except (OSError, asyncio.CancelledError) as error:  # nobody else learns it
            LOG.info("client %s: the TLS handshake failed: %s", self.host, error or "the connection was closed")
            self.connection_lost(None)
            return
        assert encrypted is not None
        encrypted.set_write_buffer_limits(high=UNSENT_HIGH)
        self._transport, self._is_encrypting = encrypted, False
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client that is gone."""
        self._is_ended = True
        self._connections.waiting_bytes -= self.waiting_bytes
        self.waiting_bytes = 0
        self._connections.note_unsent(self, 0)
        if self in self._connections.all:
            self._connections.all.discard(self)
            self._connections.on_closed(self)

    def data_received(self, data: bytes) -> None:
        """Answer the requests that are complete."""
        self.heard_s = time.monotonic()
        self._frames.add(data)
        if not self._is_encrypting:  # with TLS the first request can be here before its transport is
            self._pump()

    def pause_writing(self) -> None:
        """Read no more requests while answers wait."""
        self.is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()
            self._connections.note_unsent(self, self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Go on with the requests that waited."""
        self.is_paused = False
        self.heard_s = time.monotonic()
        self._connections.note_unsent(self, 0)
        self._pump()
        if self._transport is not None and not self.is_paused and not self._is_ended:
            self._transport.resume_reading()

    @property
    def is_reachable(self) -> bool:
        """Whether it is connected and reads what it gets."""
        return not self._is_ended and not self.is_paused

    def send(self, command: Command) -> None:
        """Send an answer or a request; a client that is gone gets none."""
        data = encode(command)
        self._answers.append(data)
        self._answers_size += len(data)
        if not self._is_pumping or self._answers_size > TOGETHER:
            self._flush()

    def _flush(self) -> None:
        data, self._answers, self._answers_size = b"".join(self._answers), [], 0
        if data and self._transport is not None and not self._is_ended and not self._transport.is_closing():
            self._transport.write(data)
            if self.is_paused:
                self._connections.note_unsent(self, self._transport.get_write_buffer_size())

    def notify(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """Send a request that gets no answer."""
        self._requested += 1
        self.send(Command(code, fields, body, self._requested, IS_ONE_WAY))

    def invoke(self, code: int, fields: dict[str, str], body: bytes, then: Callable[[Command], None]) -> None:
        """Send a request, and call `then` with the answer; never, if the client does not answer it."""
        self._requested += 1
        if len(self._invoked) >= INVOKED_MAX:
            del self._invoked[next(iter(self._invoked))]
        self._invoked[self._requested] = then
        self.send(Command(code, fields, body, self._requested))

    def close(self, reason: str) -> None:
        """End the connection without sending what still waits."""
        if not self._is_ended:
            LOG.info("client %s: %s", self.host, reason)
            self._is_ended = True
            if self._is_encrypting:
                self._handshake.cancel()
            elif self._transport is not None:
                self._transport.abort()

    def _pump(self) -> None:
        """Answer requests until none is complete, or the client does not read."""
        self._is_pumping, wrong = True, ""
        try:
            while not self.is_paused and not self._is_ended and (request := self._frames.next()) is not None:
                self._answer(request)
        except OtherProtocol as error:
            wrong = str(error)
            self._connections.warn(self.host, wrong)
        except WrongFrame as error:
            wrong = str(error)
        finally:
            self._is_pumping = False
            self._flush()
        if wrong:
            self.close(wrong)
            return
        self._connections.waiting_bytes += self._frames.waiting_bytes - self.waiting_bytes
        self.waiting_bytes = self._frames.waiting_bytes
        if self._connections.waiting_bytes > WAITING_MAX:
            self.close(f"more than {WAITING_MAX} bytes of incomplete frames wait")

    def _answer(self, request: Command) -> None:
        if request.is_answer:
            then = self._invoked.pop(request.opaque, None)
            if then is not None:
                then(request)
            return
        try:
            answer = self._connections.handle(self, request)
        except NAMED as error:
            answer = request.answer(SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}"[:TRACE_MAX])
        except Exception:
            LOG.exception("request %d of client %s", request.code, self.host)
            answer = request.answer(SYSTEM_ERROR, remark="internal error")
        if answer is not None and not request.is_one_way:
            self.send(answer)
