"""The methods of `apache.rocketmq.v2.MessagingService`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from messagestore import MessageStore
from storageio import PutRejected, StoreClosed, StoreError

from ..remoting.signature import Access
from ..server.leases import Leases
from ..server.requests import Requests
from ..server.tables import Identity
from .limits import Uploads
from .messages import OK, Declined, status, topic_of
from .protocol import definition as d
from .protocol import grpc
from .protocol import service as s
from .receiving import Receiving
from .routes import Routes
from .sending import GrpcSending
from .sessions import CLIENTS_MAX, GrpcClient, GrpcClients, Outbox

LOG = logging.getLogger(f"brokerstore.{__name__}")
NAME = "apache.rocketmq.v2.MessagingService"
TEXT_MAX = 200  # characters of an error in a status
Unary = Callable[[GrpcClient, Any], Awaitable[Any]]
Stream = Callable[[GrpcClient, Any, Any], Awaitable[None]]


class MessagingService:
    """Answers the methods for one store.  Every call is made by the loop's thread."""

    def __init__(
        self, store: MessageStore, requests: Requests, identity: Identity, address: tuple[str, int], access: Access | None
    ):
        """Create it beside the remoting requests, with which it shares producers and what groups have in hand."""
        self._access = access
        self.uploads = Uploads()
        self._leases: Leases = requests.leases
        self._clients = requests.clients
        self._routes = Routes(store, identity, address)
        self.sessions = GrpcClients(store, requests.clients, self._routes)
        self._leases.is_present = self.sessions.is_present
        requests.grpc_groups = lambda: self.sessions.groups
        self.receiving = Receiving(store, requests.leases, self._routes, requests.on_wait)
        self._sending = GrpcSending(store, requests.sending, self.sessions, self._routes)

    def handlers(self) -> Any:
        """Return the table of methods for a gRPC server.

        To the library each request is a stream, with one message: it is awaited here, where a slow one can be ended.
        """
        sending, receiving = self._sending, self.receiving
        unary: dict[str, tuple[Unary, Any, Any]] = {
            "QueryRoute": (self._route, s.QueryRouteRequest, s.QueryRouteResponse),
            "QueryAssignment": (self._assignment, s.QueryAssignmentRequest, s.QueryAssignmentResponse),
            "Heartbeat": (self._heartbeat, s.HeartbeatRequest, s.HeartbeatResponse),
            "NotifyClientTermination": (self._leave, s.NotifyClientTerminationRequest, s.NotifyClientTerminationResponse),
            "SendMessage": (sending.send, s.SendMessageRequest, s.SendMessageResponse),
            "EndTransaction": (sending.end_transaction, s.EndTransactionRequest, s.EndTransactionResponse),
            "AckMessage": (receiving.acknowledge, s.AckMessageRequest, s.AckMessageResponse),
            "ChangeInvisibleDuration": (
                receiving.change_time, s.ChangeInvisibleDurationRequest, s.ChangeInvisibleDurationResponse,
            ),
            "ForwardMessageToDeadLetterQueue": (
                receiving.bury, s.ForwardMessageToDeadLetterQueueRequest, s.ForwardMessageToDeadLetterQueueResponse,
            ),
            "UpdateOffset": (receiving.set_offset, s.UpdateOffsetRequest, s.UpdateOffsetResponse),
            "GetOffset": (receiving.get_offset, s.GetOffsetRequest, s.GetOffsetResponse),
            "QueryOffset": (receiving.query_offset, s.QueryOffsetRequest, s.QueryOffsetResponse),
            "RecallMessage": (_unsupported, s.RecallMessageRequest, s.RecallMessageResponse),
            "SyncLiteSubscription": (_unsupported, s.SyncLiteSubscriptionRequest, s.SyncLiteSubscriptionResponse),
        }  # fmt: skip
        streams: dict[str, tuple[Stream, Any, Any]] = {
            "ReceiveMessage": (receiving.receive, s.ReceiveMessageRequest, s.ReceiveMessageResponse),
            "PullMessage": (receiving.pull, s.PullMessageRequest, s.PullMessageResponse),
        }
        table = {
            name: grpc.stream_unary_rpc_method_handler(self._unary(handle, answer), kind.FromString, answer.SerializeToString)
            for name, (handle, kind, answer) in unary.items()
        }
        table |= {
            name: grpc.stream_stream_rpc_method_handler(self._stream(handle, answer), kind.FromString, answer.SerializeToString)
            for name, (handle, kind, answer) in streams.items()
        }
        table["Telemetry"] = grpc.stream_stream_rpc_method_handler(
            self._telemetry, s.TelemetryCommand.FromString, s.TelemetryCommand.SerializeToString
        )
        return grpc.method_handlers_generic_handler(NAME, table)

    def wake(self) -> None:
        """Answer what waited for a message, and forget clients that are gone."""
        self.receiving.wake()
        self.sessions.close_silent()

    # One request

    def _session(self, context: Any) -> GrpcClient:
        """Return the client of a request; raise `Declined` without a valid signature."""
        metadata = dict(context.invocation_metadata() or ())
        if self._access is not None and not self._access.accepts_metadata(metadata):
            raise Declined(d.UNAUTHORIZED, "the request has no valid signature")
        return self.sessions.of(metadata, context.peer)

    def _unary(self, handle: Unary, answer: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        async def call(_requests: Any, context: Any) -> Any:
            request = await self._complete(context)
            try:
                return await handle(self._session(context), request)
            except Exception as error:
                return answer(status=_status_of(error))

        return call

    def _stream(self, handle: Stream, answer: Any) -> Callable[[Any, Any], Awaitable[None]]:
        async def call(_requests: Any, context: Any) -> None:
            request = await self._complete(context)
            try:
                await handle(self._session(context), request, context)
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the client does not read its messages")
            except Exception as error:
                await context.write(answer(status=_status_of(error)))

        return call

    async def _complete(self, context: Any) -> Any:
        try:
            request = await self.uploads.complete(context.read, context.peer())
        except TimeoutError:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the request arrives too slowly")
        if request is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request has no message")
        return request

    async def _route(self, session: GrpcClient, request: Any) -> Any:
        """Answer with the route; a client that sends heartbeats as a producer is one of the topic.

        After a restart of the server, Python's client sends its settings only after minutes.
        """
        answer = self._routes.route(request)
        if session.is_producer:
            self.sessions.add_producer(session, topic_of(request.topic))
        return answer

    async def _assignment(self, _session: GrpcClient, request: Any) -> Any:
        return self._routes.assignment(request)

    async def _heartbeat(self, session: GrpcClient, request: Any) -> Any:
        """Note that a client is there; it may come before the settings."""
        if request.client_type == d.CLIENT_TYPE_UNSPECIFIED:
            raise Declined(d.UNRECOGNIZED_CLIENT_TYPE, "the heartbeat names no type of client")
        session.is_producer = request.client_type == d.PRODUCER
        return s.HeartbeatResponse(status=OK)

    async def _leave(self, session: GrpcClient, _request: Any) -> Any:
        self.sessions.leave(session)
        self._leases.drop_idle({*self._clients.groups, *self.sessions.groups})
        return s.NotifyClientTerminationResponse(status=OK)

    # The stream of settings and of commands to the client

    async def _telemetry(self, requests: Any, context: Any) -> None:
        try:
            session = self._session(context)
        except Declined as error:
            await context.write(s.TelemetryCommand(status=status(error.code, str(error))))
            return
        if sum(len(one.streams) for one in self.sessions.all.values()) >= CLIENTS_MAX:
            await context.write(s.TelemetryCommand(status=status(d.TOO_MANY_REQUESTS, f"{CLIENTS_MAX} clients are connected")))
            return
        outbox = Outbox()
        session.streams.append(outbox)
        commands = asyncio.ensure_future(self._push(outbox, context))
        try:
            async for command in requests:
                session.heard_s = time.monotonic()
                if command.HasField("settings"):
                    answer = self._settings(session, command.settings)
                    outbox.push(lambda answer=answer: answer)  # type: ignore[misc]
        finally:
            commands.cancel()
            session.streams.remove(outbox)
            if not session.streams:
                self._clients.closed(session)

    def _settings(self, session: GrpcClient, settings: Any) -> Any:
        try:
            return s.TelemetryCommand(status=OK, settings=self.sessions.configure(session, settings))
        except Exception as error:
            return s.TelemetryCommand(status=_status_of(error))

    @staticmethod
    async def _push(outbox: Outbox, context: Any) -> None:
        async for command in outbox.commands():
            await context.write(command)


async def _unsupported(_session: GrpcClient, _request: Any) -> Any:
    raise Declined(d.NOT_IMPLEMENTED, "recalls and lite topics are not supported")


def _status_of(error: Exception) -> Any:
    """Return the status of a failed request; an unexpected error is logged."""
    if isinstance(error, Declined):
        return status(error.code, str(error))
    if isinstance(error, StoreClosed):
        return status(d.INTERNAL_SERVER_ERROR, "the server stops")
    if isinstance(error, (PutRejected, StoreError, ValueError, OverflowError)):
        return status(d.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}"[:TEXT_MAX])
    LOG.error("a request failed", exc_info=error)
    return status(d.INTERNAL_SERVER_ERROR, "internal error")
