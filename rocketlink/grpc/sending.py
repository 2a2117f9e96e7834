"""Sends and transactions: each message is put as by a send of the remoting protocol."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from commitlog import PutResult
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from messagestore import MessageStore
from messagestore.broker.config.topics import TopicConfig
from storageio import StoreError

from ..remoting import codes
from ..remoting.frames import Command
from ..server.fields import Refused
from ..server.sending import Send, Sending, refusal
from ..server.tables import AUTO_CREATE_QUEUES
from .messages import (
    OK,
    Bodies,
    Declined,
    check_kind,
    common_status,
    duration_ms,
    properties_of,
    queue_of_group,
    status,
    topic_of,
)
from .protocol import definition as d
from .protocol import service as s
from .routes import Routes
from .sessions import GrpcClient, GrpcClients

MESSAGES_MAX = 1024  # of one request
RESOLUTIONS = {d.COMMIT: TRANSACTION_COMMIT, d.ROLLBACK: TRANSACTION_ROLLBACK}
CODES = {
    codes.FLUSH_DISK_TIMEOUT: d.MASTER_PERSISTENCE_TIMEOUT,
    codes.MESSAGE_ILLEGAL: d.MESSAGE_CORRUPTED,
    codes.INVALID_PARAMETER: d.ILLEGAL_TOPIC,
    codes.NO_PERMISSION: d.FORBIDDEN,
    codes.TOPIC_NOT_EXIST: d.TOPIC_NOT_FOUND,
    codes.SYSTEM_BUSY: d.TOO_MANY_REQUESTS,
    codes.SERVICE_NOT_AVAILABLE: d.INTERNAL_SERVER_ERROR,
}


class GrpcSending:
    """Answers sends and ends of transactions."""

    def __init__(self, store: MessageStore, sending: Sending, sessions: GrpcClients, routes: Routes) -> None:
        """Create it; `sending` puts the messages."""
        self._store = store
        self._sending = sending
        self._sessions = sessions
        self._routes = routes

    async def send(self, session: GrpcClient, request: Any) -> Any:
        """Put the messages of a request, each by itself, and answer for each."""
        messages = request.messages
        if not 0 < len(messages) <= MESSAGES_MAX:
            raise Declined(d.MESSAGE_CORRUPTED, f"{len(messages)} messages: 1 to {MESSAGES_MAX} in a request")
        topics = {topic_of(message.topic) for message in messages}
        if len(topics) > 1:
            raise Declined(d.MESSAGE_CORRUPTED, "the messages of a request have one topic")
        topic = topics.pop()
        known, bodies = self._routes.topic(topic), Bodies(self._store.config.max_message_size)
        begun = [self._begin(session, known, message, bodies) for message in messages]
        entries = [
            await _synced(message, one) if isinstance(one, Future) else one
            for message, one in zip(messages, begun, strict=True)
        ]
        return s.SendMessageResponse(status=common_status(entries), entries=entries)

    def _begin(self, session: GrpcClient, topic: TopicConfig, message: Any, bodies: Bodies) -> Future[PutResult] | Any:
        """Put one message; return its entry of the answer, or the result that a sync delays."""
        try:
            body, send = self._parsed(topic, message, bodies)
            if send.is_prepared:
                self._sessions.add_producer(session, topic.name)
            result = self._sending.put(session, body, send, AUTO_CREATE_QUEUES)
        except Declined as error:  # no error is kept: it would keep the body
            return s.SendResultEntry(status=status(error.code, str(error)))
        except (Refused, StoreError) as error:
            return _refused(error)
        except (ValueError, OverflowError) as error:
            return s.SendResultEntry(status=status(d.BAD_REQUEST, f"{error}"[:200]))
        return result if isinstance(result, Future) else _entry(message, result)

    def _parsed(self, topic: TopicConfig, message: Any, bodies: Bodies) -> tuple[bytes, Send]:
        """Return the body of a message, and its fields as those of a send of the remoting protocol."""
        system = message.system_properties
        kind, group = system.message_type or d.NORMAL, system.message_group
        check_kind(system)
        body = bodies.take(message)
        if kind not in self._routes.kinds(topic):
            kinds = ", ".join(d.MessageType.Name(one) for one in self._routes.kinds(topic))
            text = f"topic {topic.name} takes {kinds}; the message is of type {kind}"
            raise Declined(d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
        if not body:
            raise Declined(d.MESSAGE_BODY_EMPTY, "the body is empty")
        properties, flag = properties_of(message, topic.name)
        queue_id = queue_of_group(group, max(1, topic.write_queues)) if group else -1
        send = Send(topic.name, queue_id, flag, duration_ms(system.born_timestamp), 0, properties, 0, 0, False, topic.name)
        return body, send

    async def end_transaction(self, _session: GrpcClient, request: Any) -> Any:
        """Commit or roll back the half message that the transaction id names."""
        topic = topic_of(request.topic)
        physical, separator, offset = request.transaction_id.partition(":")
        is_named = separator and all(part.isascii() and part.isdecimal() and len(part) < 20 for part in (physical, offset))
        if not is_named:
            raise Declined(d.INVALID_TRANSACTION_ID, f"no transaction has the id {request.transaction_id[:80]!r}")
        resolution = RESOLUTIONS.get(request.resolution)
        if resolution is not None:
            fields = {
                "commitOrRollback": str(resolution), "tranStateTableOffset": offset, "commitLogOffset": physical,
                "producerGroup": topic,
            }  # fmt: skip
            found = self._sending.end_transaction(Command(codes.END_TRANSACTION, fields))
            if found.code != codes.SUCCESS:
                raise Declined(d.INVALID_TRANSACTION_ID, found.remark or "")
        return s.EndTransactionResponse(status=OK)


async def _synced(message: Any, future: Future[PutResult]) -> Any:
    """Return the entry of a message when it is synced."""
    try:
        return _entry(message, await future)  # type: ignore[misc]
    except StoreError as error:
        return _refused(error)


def _refused(error: Exception) -> Any:
    code, remark = refusal(error)
    return s.SendResultEntry(status=status(CODES.get(code, d.INTERNAL_SERVER_ERROR), remark))


def _entry(message: Any, result: PutResult) -> Any:
    """Return the entry of a message that was put."""
    system, offset = message.system_properties, result.queue_offset
    transaction_id = f"{result.physical_offset}:{offset}" if system.message_type == d.TRANSACTION else ""
    return s.SendResultEntry(status=OK, message_id=system.message_id, offset=offset, transaction_id=transaction_id)
