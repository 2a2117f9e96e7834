"""What answers each request of a client, without connections and threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from commitlog import StoredMessage
from commitlog.layout import MAGIC_V2, PROPERTIES_SIZE_SIZE, QUEUE_ID_AT, TOPIC_SIZE_SIZE, TOPIC_SIZE_SIZE_V2
from messagestore import MessageStore
from messagestore.broker.services.half_messages import HalfMessage

from ..ha.master import SlaveStatus
from ..remoting import codes
from ..remoting.codes import NO_PERMISSION, SUCCESS
from ..remoting.frames import Command
from ..remoting.signature import Access
from .administration import Administration, refused
from .clients import Clients
from .connections import Connection, Handler
from .leases import Leases
from .lookups import Lookups
from .popping import Popping
from .pulling import Pulling, check_subscription
from .sending import REPLIES, Sending
from .statistics import BrokerStatistics
from .tables import BrokerTables, Identity

ADMITTED_S = 30.0
CHECK_BEFORE_REPLICATION = (codes.GET_BROKER_CONFIG, codes.REGISTER_BROKER)  # a replica of ours, a real slave


class AdmittedHosts:
    """The hosts that may read the log: replication has no signature of its own.  Any thread may call it."""

    def __init__(self, access: Access | None) -> None:
        """Admit every host if requests need no signature."""
        self.access = access
        self._admitted_s: dict[str, float] = {}  # host -> when a signed request for the settings came from it

    def add(self, host: str) -> None:
        """Admit a host for a while: its request was signed."""
        self._admitted_s = {**self._admitted_s, host: time.monotonic()}

    def may_replicate(self, host: str) -> bool:
        """Return whether a host may read the log."""
        return self.access is None or time.monotonic() - self._admitted_s.get(host, -ADMITTED_S) < ADMITTED_S


class Requests:
    """The requests to one store.  Every call is made by one thread."""

    def __init__(
        self, store: MessageStore, identity: Identity, call_soon: Callable[[Callable[[], None]], object],
        hosts: AdmittedHosts, on_wait: Callable[[], None],
    ) -> None:  # fmt: skip
        """Create it for a store.

        `call_soon` runs a function in that thread; `hosts` has what requests have to be signed with; `on_wait` is called when a
        request begins to wait for a message.
        """
        self._store = store
        self._engine = store.engine
        self._access = hosts.access
        self._hosts = hosts
        self.clients = Clients()
        self._pulling = Pulling(store, self.clients, on_wait)
        self.leases = Leases(store)
        self._popping = Popping(store, self.clients, self.leases, on_wait)
        self.sending = Sending(store, identity, self.clients, call_soon)
        self.on_wait = on_wait
        self.grpc_groups: Callable[[], Collection[str]] = tuple
        self.slaves: Callable[[], list[SlaveStatus]] = list
        tables = BrokerTables(store, identity, self.clients)
        self._handlers = self._table(Lookups(store), tables)
        administration = Administration(store, identity, self.clients, tables, self.leases)
        statistics = BrokerStatistics(store, identity, self.clients)
        self._handlers |= _operators_table(administration, statistics)
        self._handlers[codes.GET_BROKER_HA_STATUS] = _alone(lambda request: statistics.replication(request, self.slaves()))

    def handle(self, connection: Connection, request: Command) -> Command | None:
        """Return the answer; None if there is none, or it is sent later."""
        if self._access is not None:
            if not self._access.accepts(request.fields, request.body):
                return request.answer(NO_PERMISSION, remark="the request has no valid signature")
            if request.code in CHECK_BEFORE_REPLICATION:
                self._hosts.add(host_of(connection.host))
        handler = self._handlers.get(request.code)
        if handler is None:
            return refused(request)
        return handler(connection, request)

    def closed(self, connection: Connection) -> None:
        """Forget a client that is gone."""
        self.clients.closed(connection)
        self._pulling.closed(connection)
        self._popping.closed(connection)
        self.leases.drop_idle({*self.clients.groups, *self.grpc_groups()})

    @property
    def is_awaited(self) -> bool:
        """Whether a request waits for a message."""
        return self._pulling.is_awaited or self._popping.is_awaited

    def wake(self) -> None:
        """Answer what waited for a message or long enough, and end the time of messages that were taken."""
        self.leases.expire(time.monotonic())
        self._pulling.wake()
        self._popping.wake()

    def check_transactions(self) -> None:
        """Ask producers about half messages that they left undecided."""
        self._store.check_transactions(self.check_producer)

    def check_producer(self, half: HalfMessage) -> None:
        """Send the half message to one producer of its group, which answers with the end of its transaction."""
        producer = self.clients.next_producer(half.producer_group)
        if producer is None:
            return
        record = self._engine.log.select(half.message.physical_offset, half.message.size)
        if record is None:
            return
        fields = {
            "tranStateTableOffset": str(half.queue_offset), "commitLogOffset": str(half.message.physical_offset),
            "msgId": half.transaction_id, "transactionId": half.transaction_id, "offsetMsgId": half.message.message_id,
        }  # fmt: skip
        body = renamed(bytes(record), half.message, half.topic, half.queue_id)
        producer.notify(codes.CHECK_TRANSACTION_STATE, fields, body)

    def _heartbeat(self, connection: Connection, request: Command) -> Command:
        """Register a client; each group in clustering mode gets its retry topic."""
        for group in self.clients.heartbeat(connection, request):
            topic = f"%RETRY%{group}"
            if self._engine.topics.get(topic) is None:
                self._engine.admission.create(topic, max(1, self._engine.retries.group(group).retry_queues))
        return request.answer(SUCCESS)

    def _table(self, lookups: Lookups, tables: BrokerTables) -> dict[int, Handler]:
        """Return what answers each request."""
        plain = {
            codes.QUERY_CONSUMER_OFFSET: lookups.committed_offset, codes.UPDATE_CONSUMER_OFFSET: lookups.commit_offset,
            codes.GET_MAX_OFFSET: lookups.max_offset, codes.GET_MIN_OFFSET: lookups.min_offset,
            codes.SEARCH_OFFSET_BY_TIMESTAMP: lookups.offset_by_time, codes.QUERY_MESSAGE: lookups.query,
            codes.VIEW_MESSAGE_BY_ID: lookups.view,
            codes.GET_ROUTE_INFO_BY_TOPIC: tables.route, codes.GET_BROKER_CLUSTER_INFO: tables.cluster,
            codes.GET_ALL_TOPIC_LIST_FROM_NAME_SERVER: tables.topic_names, codes.UPDATE_AND_CREATE_TOPIC: tables.create_topic,
            codes.GET_ALL_TOPIC_CONFIG: tables.topics, codes.GET_ALL_CONSUMER_OFFSET: tables.offsets,
            codes.GET_ALL_SUBSCRIPTION_GROUP_CONFIG: tables.groups, codes.GET_ALL_DELAY_OFFSET: tables.delays,
            codes.GET_BROKER_CONFIG: tables.settings,
            codes.QUERY_ASSIGNMENT: tables.assignment,
            codes.GET_TIMER_CHECK_POINT: tables.timer_progress, codes.GET_TIMER_METRICS: tables.timer_counts,
            codes.SET_MESSAGE_REQUEST_MODE: tables.set_request_mode,
            codes.ACK_MESSAGE: self._popping.acknowledge, codes.CHANGE_MESSAGE_INVISIBLETIME: self._popping.change_time,
            codes.GET_ALL_MESSAGE_REQUEST_MODE: tables.request_modes, codes.REGISTER_BROKER: tables.register,
            codes.UNREGISTER_BROKER: tables.unregister, codes.BROKER_HEARTBEAT: tables.unregister,
            codes.UNREGISTER_CLIENT: self.clients.unregister, codes.GET_CONSUMER_LIST_BY_GROUP: self.clients.members,
            codes.LOCK_BATCH_MQ: self.clients.lock, codes.UNLOCK_BATCH_MQ: self.clients.unlock,
            codes.DELETE_TOPIC_IN_BROKER: tables.delete_topic, codes.DELETE_TOPIC_IN_NAME_SERVER: tables.unregister,
            codes.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP: tables.set_group, codes.DELETE_SUBSCRIPTION_GROUP: tables.delete_group,
            codes.CONSUMER_SEND_MSG_BACK: self.sending.send_back, codes.END_TRANSACTION: self.sending.end_transaction,
        }  # fmt: skip
        found = {code: _alone(do) for code, do in plain.items()}
        found |= dict.fromkeys((codes.SEND_MESSAGE, codes.SEND_MESSAGE_V2, codes.SEND_BATCH_MESSAGE), self.sending.send)
        found |= dict.fromkeys(REPLIES, self.sending.reply)
        found |= dict.fromkeys((codes.PULL_MESSAGE, codes.LITE_PULL_MESSAGE), self._pulling.pull)
        found[codes.POP_MESSAGE] = self._popping.pop
        found[codes.HEART_BEAT] = self._heartbeat
        found[codes.CHECK_CLIENT_CONFIG] = _alone(check_subscription)
        return found


def _alone(answer: Callable[[Command], Command]) -> Handler:
    """Return a handler that needs no connection."""
    return lambda _connection, request: answer(request)


def _operators_table(administration: Administration, statistics: BrokerStatistics) -> dict[int, Handler]:
    """Return what answers the requests of an operator's tools."""
    plain = {
        codes.GET_BROKER_RUNTIME_INFO: statistics.state, codes.GET_TOPIC_STATS_INFO: statistics.topic,
        codes.GET_CONSUME_STATS: statistics.group, codes.GET_BROKER_CONSUME_STATS: statistics.groups,
        codes.QUERY_CONSUME_TIME_SPAN: statistics.times, codes.QUERY_GROUPS_OF_TOPIC: statistics.groups_of_topic,
        codes.QUERY_TOPICS_BY_CONSUMER: statistics.topics_of_group, codes.QUERY_CONSUME_QUEUE: statistics.units,
        codes.GET_EARLIEST_MSG_STORETIME: statistics.earliest_time, codes.VIEW_BROKER_STATS_DATA: statistics.counts,
        codes.GET_CONSUMER_CONNECTION_LIST: administration.consumers,
        codes.GET_PRODUCER_CONNECTION_LIST: administration.producers,
        codes.GET_ALL_PRODUCER_INFO: administration.all_producers,
        codes.QUERY_SUBSCRIPTION_BY_CONSUMER: administration.subscription,
        codes.INVOKE_BROKER_TO_RESET_OFFSET: administration.reset_offsets,
        codes.CLONE_GROUP_OFFSET: administration.clone_offsets, codes.GET_TOPIC_CONFIG: administration.topic,
        codes.GET_SUBSCRIPTIONGROUP_CONFIG: administration.group,
        codes.GET_TOPICS_BY_CLUSTER: administration.topics_of_cluster,
        codes.GET_SYSTEM_TOPIC_LIST_FROM_NS: administration.system_topics,
        codes.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: administration.system_topics,
        codes.UPDATE_AND_CREATE_TOPIC_LIST: administration.create_topics,
        codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: administration.set_groups,
        codes.DELETE_EXPIRED_COMMITLOG: administration.delete_expired,
        codes.CLEAN_EXPIRED_CONSUMEQUEUE: administration.delete_expired,
        codes.PUT_KV_CONFIG: administration.put_setting, codes.DELETE_KV_CONFIG: administration.delete_setting,
        codes.GET_KV_CONFIG: administration.setting,
    }  # fmt: skip
    forwarded = dict.fromkeys((codes.GET_CONSUMER_RUNNING_INFO, codes.CONSUME_MESSAGE_DIRECTLY), administration.invoke_consumer)
    return {code: _alone(do) for code, do in plain.items()} | forwarded


def host_of(address: str) -> str:
    """Return the host of an address, without the brackets of IPv6.

    >>> host_of("127.0.0.1:5"), host_of("[::1]:5")
    ('127.0.0.1', '::1')
    """
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")


def renamed(record: bytes, message: StoredMessage, topic: str, queue_id: int) -> bytes:
    """Return a record with another topic and queue id, for a producer that is asked about its half message.

    The whole-record checksum no longer fits; clients check that of the body.
    """
    name = topic.encode()
    end = len(record) - PROPERTIES_SIZE_SIZE - len(message.properties_raw)
    size_size = TOPIC_SIZE_SIZE_V2 if message.magic == MAGIC_V2 else TOPIC_SIZE_SIZE
    begin = end - len(message.topic.encode()) - size_size
    changed = bytearray(record[:begin] + len(name).to_bytes(size_size, "big") + name + record[end:])
    changed[:4] = len(changed).to_bytes(4, "big")
    changed[QUEUE_ID_AT : QUEUE_ID_AT + 4] = queue_id.to_bytes(4, "big")
    return bytes(changed)
