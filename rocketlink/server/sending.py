"""Requests that put messages: sends, batches, messages sent back, transactions."""

from __future__ import annotations

import struct
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from commitlog import Message, PutResult, PutStatus, decode_properties, encode_message_ids
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from commitlog.topic_names import DEAD_PREFIX, RETRY_PREFIX
from messagestore import MessageStore
from messagestore.broker.config.topics import PERM_INHERIT, QUEUES_MAX
from messagestore.broker.services.delay_messages import deliver_ms
from messagestore.broker.services.half_messages import HalfMessage
from messagestore.property_names import DELAY
from messagestore.write.admission import client_problem, internal_problem
from storageio import FlushTimeout, InvalidMessage, PutRejected

from ..remoting.codes import (
    FLUSH_DISK_TIMEOUT,
    INVALID_PARAMETER,
    MESSAGE_ILLEGAL,
    NO_PERMISSION,
    PUSH_REPLY_MESSAGE_TO_CLIENT,
    SEND_BATCH_MESSAGE,
    SEND_MESSAGE,
    SEND_REPLY_MESSAGE,
    SEND_REPLY_MESSAGE_V2,
    SERVICE_NOT_AVAILABLE,
    SUBSCRIPTION_GROUP_NOT_EXIST,
    SUCCESS,
    SYSTEM_BUSY,
    SYSTEM_ERROR,
    TOPIC_NOT_EXIST,
)
from ..remoting.frames import Command
from .clients import Clients
from .connections import Peer
from .fields import Refused, is_group_name, number
from .tables import AUTO_CREATE_QUEUES, AUTO_CREATE_TOPIC, Identity

LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId", "f": "sysFlag",
    "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes",
    "m": "batch",
}  # fmt: skip
RETRIES_DEFAULT = 16
_RECORD_SIZE = struct.Struct(">I")  # at the begin of a record
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"  # the property with the id of the client that waits for a reply
REPLY_TO = REPLY_TO_CLIENT.encode() + b"\x01"
REPLIES = (SEND_REPLY_MESSAGE, SEND_REPLY_MESSAGE_V2)
CLUSTER = b"CLUSTER\x01"  # the property that names the topic of replies
TIMER_START = b"TIMER_DEL"  # of the names of properties with a delivery time
TIMER_DELAY_MS_MAX = 259_200_000  # timerMaxDelaySec of a broker without configuration
CODES = {
    PutStatus.PUT_OK: SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: FLUSH_DISK_TIMEOUT,
    PutStatus.MESSAGE_ILLEGAL: MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: MESSAGE_ILLEGAL,
    PutStatus.SERVICE_NOT_AVAILABLE: SERVICE_NOT_AVAILABLE,
    PutStatus.OS_PAGE_CACHE_BUSY: SYSTEM_BUSY,
}


class Send(NamedTuple):
    """The fields of a send."""

    topic: str
    queue_id: int
    sys_flag: int
    born_timestamp_ms: int
    flag: int
    properties: bytes
    reconsume_times: int
    retries: int
    is_batch: bool
    producer_group: str

    @property
    def is_prepared(self) -> bool:
        """Whether the message waits for the end of its transaction."""
        return self.sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED


class Sending:
    """Puts what clients send into the store."""

    def __init__(
        self, store: MessageStore, identity: Identity, clients: Clients, call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        """Create it.

        The address of `identity` becomes the store host; `call_soon` runs a function in the loop's thread.
        """
        self._store = store
        self._engine = store.engine
        self._address = identity.address
        self._own_topics = identity.own_topics
        self._cluster = CLUSTER + identity.cluster.encode() + b"\x02"
        self._clients = clients
        self._call_soon = call_soon
        self._is_sync = store.config.is_sync_flush

    def send(self, connection: Peer, request: Command) -> Command | None:
        """Answer a send of one message or of a batch."""
        try:
            send = self._parse(request)
            if send.is_batch:
                return self._answer(request, self._put_batch(connection, request.body, send))
            message = self._message(connection, request.body, send)
            if REPLY_TO in send.properties and request.code not in REPLIES:  # Go's client sends it before its first heartbeat
                self._clients.add_producer(send.producer_group, self._waiting_client(send), connection)
            if send.is_prepared:
                return self._prepare(request, message, send.producer_group)
            result = self._put(message)
        except (Refused, InvalidMessage) as error:
            return _refused(request, error)
        if isinstance(result, Future):
            self._answer_later(connection, request, result)
            return None
        return self._answer(request, result)

    def put(self, peer: Peer, body: bytes, send: Send, queues: int) -> PutResult | Future[PutResult]:
        """Put the message of a send whose topic has a valid name; a topic that does not exist is created with `queues`.

        With a synchronous flush the result comes later, so that the puts of all clients share a sync.  `refusal` returns what
        an error is answered with.
        """
        self._check_writable(send.topic, AUTO_CREATE_TOPIC, queues)
        message = self._message(peer, body, send._replace(properties=self._with_cluster(send.properties)))
        if send.is_prepared:
            return self._store.begin_transaction(message, producer_group=send.producer_group).half
        result = self._put(message)
        if isinstance(result, PutResult) and result.status is not PutStatus.PUT_OK:
            raise Refused(CODES.get(result.status, SYSTEM_ERROR), _reason(result))
        return result

    def _put(self, message: Message) -> PutResult | Future[PutResult]:
        return self._store.put_async(message) if self._is_sync else self._store.put(message, check=False)

    def reply(self, connection: Peer, request: Command) -> Command | None:
        """Pass the answer to a request on to the client that waits for it; store it as any message.

        The client's own answer is not awaited, as that of a client which is asked about a transaction.
        """
        try:
            send = self._parse(request)
        except Refused as error:
            return _refused(request, error)
        client = self._waiting_client(send)
        waiting = self._clients.producer(client)
        if waiting is None:
            self._store.put_async(self._message(connection, request.body, send))
            return request.answer(SYSTEM_ERROR, remark=f"the client {client[:200]!r}, which the reply is for, is not connected")
        now_ms = self._engine.now_ms()
        waiting.notify(PUSH_REPLY_MESSAGE_TO_CLIENT, _reply_fields(send, connection.host, self._address, now_ms), request.body)
        return self.send(connection, request)

    @staticmethod
    def _waiting_client(send: Send) -> str:
        return decode_properties(send.properties).get(REPLY_TO_CLIENT, "")

    def _parse(self, request: Command) -> Send:
        fields = request.fields
        if request.code not in (SEND_MESSAGE, SEND_REPLY_MESSAGE):
            fields = {LONG_NAMES.get(name, name): value for name, value in fields.items()}
        send = Send(
            fields.get("topic", ""), number(fields, "queueId", -1), number(fields, "sysFlag"), number(fields, "bornTimestamp"),
            number(fields, "flag"), self._with_cluster(fields.get("properties", "").encode()), number(fields, "reconsumeTimes"),
            number(fields, "maxReconsumeTimes", RETRIES_DEFAULT),
            request.code == SEND_BATCH_MESSAGE or fields.get("batch") == "true", fields.get("producerGroup", ""),
        )  # fmt: skip
        _check_topic(send.topic)
        if send.topic.startswith(RETRY_PREFIX):
            if send.is_batch:
                raise Refused(MESSAGE_ILLEGAL, "retry topics take no batches")
            send = self._retried(send)
        self._check_writable(send.topic, fields.get("defaultTopic", ""), number(fields, "defaultTopicQueueNums", 4))
        if reason := self._engine.admission.queue_problem(send.topic, send.queue_id):
            raise Refused(INVALID_PARAMETER, reason)
        return send._replace(queue_id=max(-1, send.queue_id))

    def _retried(self, send: Send) -> Send:
        """Return where a message goes that a consumer sends to its own group's retry topic."""
        group = send.topic.removeprefix(RETRY_PREFIX)
        if send.reconsume_times < send.retries:
            self._engine.admission.create(send.topic, max(1, self._engine.retries.group(group).retry_queues))
            return send._replace(queue_id=0)
        self._engine.admission.create(DEAD_PREFIX + group, 1)
        return send._replace(topic=DEAD_PREFIX + group, queue_id=0)

    def _check_writable(self, topic: str, default_topic: str, queues: int) -> None:
        """Create the topic if the client may; raise `Refused` for one that takes no messages."""
        known = self._engine.topics.get(topic)
        if known is None:
            base = self._engine.topics.get(default_topic)
            is_allowed = default_topic == AUTO_CREATE_TOPIC and (base is None or bool(base.perm & PERM_INHERIT))
            if not is_allowed:
                raise Refused(TOPIC_NOT_EXIST, f"topic {topic} does not exist")
            requested = 1 if topic in self._own_topics else queues
            self._engine.admission.create(topic, max(1, min(requested, AUTO_CREATE_QUEUES, QUEUES_MAX)))
            known = self._engine.topics.get(topic)
            assert known is not None, "the topic was created"
        if not known.is_writable:
            raise Refused(NO_PERMISSION, f"topic {topic} does not accept messages")

    def _with_cluster(self, properties: bytes) -> bytes:
        """Return the properties with the name of the cluster, as a broker stores them: a consumer replies by it."""
        if CLUSTER in properties:
            return properties
        return properties + (b"\x02" if properties and not properties.endswith(b"\x02") else b"") + self._cluster

    def _message(self, connection: Peer, body: bytes, send: Send) -> Message:
        if TIMER_START in send.properties:
            now_ms = self._engine.now_ms()
            pairs = decode_properties(send.properties)
            if DELAY not in pairs and (deliver_ms(pairs, now_ms) or 0) - now_ms > TIMER_DELAY_MS_MAX:
                raise Refused(MESSAGE_ILLEGAL, "a delivery time after more than three days")
        return Message(
            send.topic, body, queue_id=send.queue_id, flag=send.flag, sys_flag=send.sys_flag,
            born_timestamp_ms=send.born_timestamp_ms, born_host=connection.host, store_host=self._address,
            reconsume_times=send.reconsume_times, properties_raw=send.properties,
        )  # fmt: skip

    def _put_batch(self, connection: Peer, body: bytes, send: Send) -> PutResult:
        return self._store.put_wire_batch(
            send.topic, max(0, send.queue_id), body, properties=send.properties, check=False, sys_flag=send.sys_flag,
            born_timestamp_ms=send.born_timestamp_ms, born_host=connection.host, store_host=self._address,
        )  # fmt: skip

    def _answer_later(self, connection: Peer, request: Command, future: Future[PutResult]) -> None:
        """Answer when the message is synced."""

        def answer(future: Future[PutResult]) -> None:
            error = future.exception()
            found = self._answer(request, future.result()) if error is None else _refused(request, error)
            if not request.is_one_way:
                self._call_soon(lambda: connection.send(found))

        future.add_done_callback(answer)

    def _answer(self, request: Command, result: PutResult) -> Command:
        """Answer with where the message is, and with the ids that clients show for it."""
        code = CODES.get(result.status, SYSTEM_ERROR)
        if result.status not in (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT):
            return request.answer(code, remark=_reason(result))
        fields = {
            "msgId": self._ids(result),
            "queueId": str(result.queue_id),
            "queueOffset": str(result.queue_offset),
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        return request.answer(code, fields)

    def _ids(self, result: PutResult) -> str:
        """Return the offset ids of the result's messages, separated by commas."""
        if result.message_count <= 1:
            return result.message_id
        records, ids, at = self._engine.log.select(result.physical_offset, result.size_bytes), [], 0
        if records is None:
            return result.message_id
        while at < result.size_bytes:
            ids.append(result.physical_offset + at)
            at += _RECORD_SIZE.unpack_from(records, at)[0] or 1
        return encode_message_ids(result.store_host, ids)

    # Messages sent back, and transactions

    def send_back(self, request: Command) -> Command:
        """Put a message that a consumer could not handle again, after a delay or as a dead letter."""
        fields = request.fields
        message = self._store.message_at(number(fields, "offset"))
        if message is None:
            return request.answer(SYSTEM_ERROR, remark=f"no message at offset {fields.get('offset')}")
        group, level = fields.get("group", ""), number(fields, "delayLevel")
        if not is_group_name(group):
            return request.answer(SUBSCRIPTION_GROUP_NOT_EXIST, remark=f"no group can be named {group[:200]!r}")
        deliveries = number(fields, "maxReconsumeTimes") + 1 if "maxReconsumeTimes" in fields else None
        self._engine.retries.send_back(message, group, level, deliveries)
        return request.answer(SUCCESS)

    def _prepare(self, request: Command, message: Message, producer_group: str) -> Command:
        transaction = self._store.begin_transaction(message, producer_group=producer_group)
        answer = self._answer(request, transaction.half)
        answer.fields["transactionId"] = transaction.transaction_id
        return answer

    def end_transaction(self, request: Command) -> Command:
        """Commit or roll back a half message; leave it for the next check if the producer does not know."""
        fields = request.fields
        decision = number(fields, "commitOrRollback")
        if decision not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            return request.answer(SUCCESS)
        message = self._store.message_at(number(fields, "commitLogOffset"))
        half = HalfMessage(message.queue_offset, message) if message is not None else None
        named = number(fields, "tranStateTableOffset"), fields.get("producerGroup")
        if half is None or (half.queue_offset, half.producer_group) != named:
            return request.answer(SYSTEM_ERROR, remark="the request does not name a half message of its producer group")
        transactions = self._engine.transactions
        decide = transactions.commit if decision == TRANSACTION_COMMIT else transactions.rollback
        try:
            decide(transactions.newest(half))
        except InvalidMessage as error:
            return request.answer(SYSTEM_ERROR, remark=str(error))
        return request.answer(SUCCESS)


def _reason(result: PutResult) -> str:
    return f"{result.status.name}: {result.reason}"


def refusal(error: BaseException) -> tuple[int, str]:
    """Return the code and the remark of the answer to a send that raised an error."""
    code = SYSTEM_ERROR
    if isinstance(error, Refused):
        code = error.code
    elif isinstance(error, InvalidMessage):
        code = MESSAGE_ILLEGAL
    elif isinstance(error, PutRejected):
        code = CODES.get(PutStatus(error.status), SYSTEM_ERROR)
    elif isinstance(error, FlushTimeout):
        code = FLUSH_DISK_TIMEOUT
    return code, str(error)


def _refused(request: Command, error: BaseException) -> Command:
    code, remark = refusal(error)
    return request.answer(code, remark=remark)


def _reply_fields(send: Send, born_host: str, store_host: str, now_ms: int) -> dict[str, str]:
    """Return the fields of the request that carries a reply to its client."""
    return {
        "bornHost": f"/{born_host}", "storeHost": f"/{store_host}", "storeTimestamp": str(now_ms), "topic": send.topic,
        "producerGroup": send.producer_group, "defaultTopic": AUTO_CREATE_TOPIC, "queueId": str(max(0, send.queue_id)),
        "defaultTopicQueueNums": str(AUTO_CREATE_QUEUES), "sysFlag": str(send.sys_flag), "flag": str(send.flag),
        "bornTimestamp": str(send.born_timestamp_ms), "properties": send.properties.decode("utf-8", "replace"),
        "reconsumeTimes": str(send.reconsume_times), "unitMode": "false",
    }  # fmt: skip


def _check_topic(topic: str) -> None:
    """Raise `Refused` for a topic to which a broker's clients cannot send."""
    if reason := client_problem(topic):
        raise Refused(INVALID_PARAMETER, f"topic {topic[:200]!r}: {reason}")
    if reason := internal_problem(topic):
        raise Refused(NO_PERMISSION, reason)
