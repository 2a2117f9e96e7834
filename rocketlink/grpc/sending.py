"""Sends and transactions: each message becomes a send of the remoting protocol, and gets the same answers."""

from __future__ import annotations

import asyncio
from typing import Any

from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from messagestore import MessageStore

from ..remoting import codes
from ..remoting.frames import Command
from ..server.sending import Sending
from ..server.tables import AUTO_CREATE_QUEUES, AUTO_CREATE_TOPIC
from .messages import Bodies, Declined, check_kind, duration_ms, properties_of, queue_of_group, status, topic_of
from .protocol import definition as d
from .protocol import service as s
from .routes import Routes
from .sessions import GrpcClient, GrpcClients

MESSAGES_MAX = 1024  # of one request
RESOLUTIONS = {d.COMMIT: TRANSACTION_COMMIT, d.ROLLBACK: TRANSACTION_ROLLBACK}
CODES = {
    codes.SUCCESS: d.OK,
    codes.FLUSH_DISK_TIMEOUT: d.MASTER_PERSISTENCE_TIMEOUT,
    codes.MESSAGE_ILLEGAL: d.MESSAGE_CORRUPTED,
    codes.INVALID_PARAMETER: d.ILLEGAL_TOPIC,
    codes.NO_PERMISSION: d.FORBIDDEN,
    codes.TOPIC_NOT_EXIST: d.TOPIC_NOT_FOUND,
    codes.SYSTEM_BUSY: d.TOO_MANY_REQUESTS,
    codes.SERVICE_NOT_AVAILABLE: d.INTERNAL_SERVER_ERROR,
}


class Answers:
    """What a request of the remoting protocol is answered to: once, now or later."""

    is_reachable = False

    def __init__(self, session: GrpcClient) -> None:
        """Create it for a request of a client."""
        self.host, self.language, self.version = session.host, session.language, session.version
        self.answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()

    def send(self, command: Command) -> None:
        """Take the answer, unless the client has given up."""
        if not self.answer.done():
            self.answer.set_result(command)

    def notify(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """Drop it: this is no client."""


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
        if not 0 < len(request.messages) <= MESSAGES_MAX:
            raise Declined(d.MESSAGE_CORRUPTED, f"{len(request.messages)} messages: 1 to {MESSAGES_MAX} in a request")
        topics = {topic_of(message.topic) for message in request.messages}
        if len(topics) > 1:
            raise Declined(d.MESSAGE_CORRUPTED, "the messages of a request have one topic")
        topic = topics.pop()
        bodies = Bodies(self._store.config.max_message_size)
        answers = [self._begin(session, topic, message, bodies) for message in request.messages]
        answer = s.SendMessageResponse()
        for message, begun in zip(request.messages, answers, strict=True):
            answer.entries.append(self._entry(message, await begun) if isinstance(begun, asyncio.Future) else begun)
        found_codes = {entry.status.code for entry in answer.entries}
        first = answer.entries[0].status
        answer.status.CopyFrom(first if len(found_codes) == 1 else status(d.MULTIPLE_RESULTS, "see the entries"))
        return answer

    def _begin(self, session: GrpcClient, topic: str, message: Any, bodies: Bodies) -> asyncio.Future[Command] | Any:
        """Put one message; return its answer, which a sync may delay, or the entry that tells why there is none."""
        try:
            command = self._command(topic, message, bodies)
            if message.system_properties.message_type == d.TRANSACTION:
                self._sessions.add_producer(session, topic)
        except Declined as error:  # no error is kept: it would keep the body
            return self._entry(message, error)
        answers = Answers(session)
        try:
            answer = self._sending.send(answers, command)
        except (ValueError, OverflowError) as error:
            return self._entry(message, Declined(d.BAD_REQUEST, f"{error}"[:200]))
        if answer is not None:
            answers.send(answer)
        return answers.answer

    def _command(self, topic: str, message: Any, bodies: Bodies) -> Command:
        check_kind(message)
        body, system, known = bodies.take(message), message.system_properties, self._routes.topic(topic)
        kind = system.message_type or d.NORMAL
        if kind not in self._routes.kinds(known):
            kinds = ", ".join(d.MessageType.Name(one) for one in self._routes.kinds(known))
            text = f"topic {topic} takes {kinds}; the message is of type {kind}"
            raise Declined(d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
        if not body:
            raise Declined(d.MESSAGE_BODY_EMPTY, "the body is empty")
        properties, flag = properties_of(message, topic)
        queue_id = queue_of_group(system.message_group, max(1, known.write_queues)) if system.message_group else -1
        fields = {
            "topic": topic, "queueId": str(queue_id), "sysFlag": str(flag), "properties": properties.decode(),
            "bornTimestamp": str(duration_ms(system.born_timestamp)), "producerGroup": topic, "defaultTopic": AUTO_CREATE_TOPIC,
            "defaultTopicQueueNums": str(AUTO_CREATE_QUEUES),
        }  # fmt: skip
        return Command(codes.SEND_MESSAGE, fields, body)

    @staticmethod
    def _entry(message: Any, found: Command | Declined) -> Any:
        entry = s.SendResultEntry()
        if isinstance(found, Declined):
            entry.status.CopyFrom(status(found.code, str(found)))
            return entry
        code = CODES.get(found.code, d.INTERNAL_SERVER_ERROR)
        entry.status.CopyFrom(status(code, found.remark or d.Code.Name(code)))
        if found.code == codes.SUCCESS:
            entry.message_id = message.system_properties.message_id
            entry.offset = int(found.fields["queueOffset"])
            if "transactionId" in found.fields:
                physical_offset = int(found.fields["msgId"][-16:], 16)
                entry.transaction_id = f"{physical_offset}:{entry.offset}"
        return entry

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
        return s.EndTransactionResponse(status=status())
