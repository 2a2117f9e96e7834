"""What an operator's tools ask about clients, change of topics and groups, and cannot do here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commitlog import decode_message_id
from consumequeue import Boundary
from messagestore import MessageStore
from messagestore.broker.config.topics import TopicConfig, is_system_topic

from ..remoting import codes
from ..remoting.codes import (
    CONSUMER_NOT_ONLINE,
    NOT_SUPPORTED,
    QUERY_NOT_FOUND,
    SUBSCRIPTION_GROUP_NOT_EXIST,
    SUCCESS,
    SYSTEM_ERROR,
    TOPIC_NOT_EXIST,
)
from ..remoting.frames import Command, Pairs, json_body, json_object, keyed_body
from .clients import Clients
from .connections import Connection, Peer
from .fields import Refused, number
from .leases import Leases
from .tables import BrokerTables, Identity

_AUTH = "access is by one key and secret, which the server is started with"
_COLD = "the store does not limit the reading of old messages"
_CONTROLLER = "this is one broker, without a controller"
_ROCKSDB = "the store is no RocksDB"
_KV = "this name server keeps no settings"
_ROUTES = "this name server has one broker; change the permissions of its topics"
REASONS = {  # code of a request -> why it is refused
    codes.UPDATE_BROKER_CONFIG: "settings are given when the store is opened",
    codes.PUT_KV_CONFIG: _KV, codes.POP_ROLLBACK: "messages in POP mode are not kept in the store",
    codes.UPDATE_NAMESRV_CONFIG: _KV, codes.GET_NAMESRV_CONFIG: _KV,
    codes.WIPE_WRITE_PERM_OF_BROKER: _ROUTES, codes.ADD_WRITE_PERM_OF_BROKER: _ROUTES,
    codes.CLEAN_UNUSED_TOPIC: "queues are deleted with their topic",
    codes.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _ROCKSDB, codes.EXPORT_ROCKSDB_CONFIG_TO_JSON: _ROCKSDB,
    codes.UPDATE_AND_CREATE_STATIC_TOPIC: "static topics need several brokers",
    codes.ADD_BROKER: _CONTROLLER, codes.REMOVE_BROKER: _CONTROLLER,
    codes.RESET_MASTER_FLUSH_OFFSET: "this broker is a master",
    codes.GET_BROKER_EPOCH_CACHE: _CONTROLLER,
    **dict.fromkeys(range(codes.CONTROLLER_ALTER_SYNC_STATE_SET, codes.GET_BROKER_EPOCH_CACHE), _CONTROLLER),
    **dict.fromkeys(range(codes.UPDATE_CONTROLLER_CONFIG, codes.CLEAN_BROKER_DATA + 1), _CONTROLLER),
    **dict.fromkeys(range(codes.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, codes.SET_COMMITLOG_READ_MODE), _COLD),
    codes.SET_COMMITLOG_READ_MODE: "the store decides how it reads its files",
    **dict.fromkeys(range(codes.AUTH_CREATE_USER, codes.AUTH_LIST_ACL + 1), _AUTH),
}  # fmt: skip


ORDERS = "ORDER_TOPIC_CONFIG"  # the namespace with the queues of topics in order, as "BROKER:QUEUES;..."


class Administration:
    """Answers what the tables and the progress of groups do not have."""

    def __init__(
        self, store: MessageStore, identity: Identity, clients: Clients, tables: BrokerTables, leases: Leases
    ) -> None:  # fmt: skip
        """Create it for a store that is open for writing."""
        self._store = store
        self._engine = store.engine
        self._identity = identity
        self._clients = clients
        self._tables = tables
        self._leases = leases

    # Clients

    def consumers(self, request: Command) -> Command:
        """Answer with the members of a consumer group and what they subscribe to."""
        name = request.fields.get("consumerGroup", "")
        group = self._clients.groups.get(name)
        if group is None:
            return request.answer(CONSUMER_NOT_ONLINE, remark=f"no client of consumer group {name} is connected")
        found = {"connectionSet": _connections(group.members), "subscriptionTable": group.subscriptions, **group.settings}
        return request.answer(SUCCESS, body=json_body(found))

    def producers(self, request: Command) -> Command:
        """Answer with the members of a producer group."""
        name = request.fields.get("producerGroup", "")
        group = self._clients.producers.get(name)
        if not group:
            return request.answer(SYSTEM_ERROR, remark=f"no client of producer group {name} is connected")
        return request.answer(SUCCESS, body=json_body({"connectionSet": _connections(group)}))

    def all_producers(self, request: Command) -> Command:
        """Answer with the members of all producer groups."""
        now_ms = self._engine.now_ms()
        found = {
            name: [
                {
                    "clientId": one["clientId"], "remoteIP": one["clientAddr"], "language": one["language"],
                    "version": one["version"], "lastUpdateTimestamp": now_ms,
                }
                for one in _connections(group)
            ]
            for name, group in self._clients.producers.items()
        }  # fmt: skip
        return request.answer(SUCCESS, body=json_body({"data": found}))

    def subscription(self, request: Command) -> Command:
        """Answer with what a connected group subscribes to in a topic."""
        name, topic = request.fields.get("group", ""), request.fields.get("topic", "")
        group = self._clients.groups.get(name)
        found = group.subscriptions.get(topic) if group is not None else None
        return request.answer(SUCCESS, body=json_body({"group": name, "topic": topic, "subscriptionData": found}))

    def invoke_consumer(self, connection: Connection, request: Command) -> Command | None:
        """Pass a request on to a consumer, and its answer back: for its state, or to process a message once more."""
        fields = dict(request.fields)
        group, client = fields.get("consumerGroup", ""), fields.get("clientId", "")
        known = self._clients.groups.get(group)
        member = known.members.get(client) if known is not None else None
        if member is None:
            return request.answer(SYSTEM_ERROR, remark=f"client {client[:200]} of group {group[:200]} is not connected")
        body = request.body
        if request.code == codes.CONSUME_MESSAGE_DIRECTLY:
            message = self._store.message_at(decode_message_id(fields.get("msgId", ""))[1])
            view = self._engine.log.select(message.physical_offset, message.size) if message is not None else None
            if view is None:
                return request.answer(SYSTEM_ERROR, remark=f"no message {fields.get('msgId', '')[:80]}")
            body, fields["brokerName"] = bytes(view), self._identity.name

        def pass_on(found: Command) -> None:
            connection.send(request.answer(found.code, found.fields, found.body, found.remark))

        member.invoke(request.code, fields, body, pass_on)
        return None

    # Offsets

    def reset_offsets(self, request: Command) -> Command:
        """Set the offsets of a group by time, or of one queue, and let its members begin there."""
        fields = request.fields
        topic, group = fields.get("topic", ""), fields.get("group", "")
        try:
            known = self._known_topic(topic)
            if group not in self._clients.groups and not self._tables.knows_group(group):
                raise Refused(SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {group[:200]} does not exist")
            queue_id = number(fields, "queueId", -1)
            if queue_id >= known.read_queues:
                raise Refused(SYSTEM_ERROR, f"topic {topic} has {known.read_queues} queues")
        except Refused as error:
            return request.answer(error.code, remark=str(error))
        found = {}
        for one in range(known.read_queues) if queue_id < 0 else [queue_id]:
            found[one] = self._target(request, topic, group, one)
        existing = set(self._engine.lookup.queue_ids(topic))  # the offsets of a queue without messages stay
        for one, offset in found.items():
            if one in existing:
                self._store.reset_offsets(topic, group, offset, queues=[one])
        self._leases.forget(topic, group)
        name = self._identity.name
        queues = [({"brokerName": name, "queueId": one, "topic": topic}, offset) for one, offset in found.items()]
        body = keyed_body({"offsetTable": Pairs(queues)})
        members = self._clients.groups[group].members.values() if group in self._clients.groups else ()
        notice = {name: fields.get(name, "") for name in ("topic", "group", "timestamp")} | {"isForce": "true"}
        for member in set(members):
            member.notify(codes.RESET_CONSUMER_CLIENT_OFFSET, notice, body)
        return request.answer(SUCCESS, body=body)

    def _target(self, request: Command, topic: str, group: str, queue_id: int) -> int:
        """Return the offset for a queue: the requested one or that of a time; without force, none that skips messages."""
        fields = request.fields
        low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        offset, time_ms = number(fields, "offset", -1), number(fields, "timestamp", -1)
        if offset < 0:
            is_later = time_ms < 0 or self._store.store_time(topic, queue_id, high - 1) < time_ms
            offset = high if is_later else self._store.offset_by_time(topic, queue_id, time_ms, Boundary.LOWER)
        if fields.get("isForce", fields.get("force")) == "false":
            offset = min(offset, self._store.committed_offsets(topic, group).get(queue_id, offset))
        return min(max(offset, low), high)

    def clone_offsets(self, request: Command) -> Command:
        """Give a group the offsets of another one."""
        fields = request.fields
        source, target = fields.get("srcGroup", ""), fields.get("destGroup", "")
        offsets = self._engine.consumer_offsets()
        existing = {*self._store.topics()}
        for topic in [fields["topic"]] if fields.get("topic") else offsets.topics(source):
            for queue_id, offset in offsets.offsets_of(topic, source).items() if topic in existing else ():
                offsets.reset(topic, target, queue_id, offset)
            self._leases.forget(topic, target)
        return request.answer(SUCCESS)

    # Topics and groups

    def _known_topic(self, name: str) -> TopicConfig:
        known = self._engine.topics.get(name)
        if known is None:
            raise Refused(TOPIC_NOT_EXIST, f"topic {name[:200]} does not exist")
        return known

    def topic(self, request: Command) -> Command:
        """Answer with the settings of a topic."""
        try:
            found = self._known_topic(request.fields.get("topic", ""))
        except Refused as error:
            return request.answer(error.code, remark=str(error))
        document = {
            "topicName": found.name, "readQueueNums": found.read_queues, "writeQueueNums": found.write_queues,
            "perm": found.perm, "order": found.is_ordered, "topicFilterType": found.filter_type,
            "topicSysFlag": found.sys_flag, "attributes": found.attributes,
        }  # fmt: skip
        return request.answer(SUCCESS, body=json_body(document))

    def group(self, request: Command) -> Command:
        """Answer with the settings of a consumer group."""
        name = request.fields.get("group", "")
        groups = self._engine.retries.groups
        if name not in groups:
            return request.answer(SUBSCRIPTION_GROUP_NOT_EXIST, remark=f"consumer group {name[:200]} does not exist")
        return request.answer(SUCCESS, body=json_body(groups.document()[groups.table_name][name]))

    def topics_of_cluster(self, request: Command) -> Command:
        """Answer with all topics, if the cluster is this one."""
        is_here = request.fields.get("cluster", "") == self._identity.cluster
        return request.answer(SUCCESS, body=json_body({"topicList": self._engine.topics.names() if is_here else []}))

    def system_topics(self, request: Command) -> Command:
        """Answer with the broker's own topics."""
        found = [name for name in self._engine.topics.names() if is_system_topic(name)]
        body = {"topicList": sorted({*found, *self._identity.own_topics}), "brokerAddr": self._identity.address}
        return request.answer(SUCCESS, body=json_body(body))

    def create_topics(self, request: Command) -> Command:
        """Create topics, or change them, up to the first that is refused."""
        for document in _objects(request, "topicConfigList"):
            names = {"topicName": "topic", "readQueueNums": "", "writeQueueNums": "", "perm": "", "topicSysFlag": ""}
            fields = {names[key] or key: str(document[key]) for key in names if document.get(key) is not None}
            fields["order"] = "true" if document.get("order") is True else "false"
            answer = self._tables.create_topic(Command(request.code, fields, opaque=request.opaque, encoding=request.encoding))
            if answer.code != SUCCESS:
                return answer
        return request.answer(SUCCESS)

    def set_groups(self, request: Command) -> Command:
        """Create consumer groups, or replace their settings, up to the first that is refused."""
        for document in _objects(request, "groupConfigList"):
            one = Command(request.code, body=json_body(document), opaque=request.opaque, encoding=request.encoding)
            answer = self._tables.set_group(one)
            if answer.code != SUCCESS:
                return answer
        return request.answer(SUCCESS)

    def put_setting(self, request: Command) -> Command:
        """Accept that a topic is in order in its queues here: that needs no setting.  Refuse any other setting."""
        fields = request.fields
        known = self._engine.topics.get(fields.get("key", ""))
        is_order = fields.get("namespace") == ORDERS and known is not None
        if is_order and known is not None and fields.get("value") == f"{self._identity.name}:{known.write_queues}":
            return request.answer(SUCCESS)
        return refused(request)

    def setting(self, request: Command) -> Command:
        """Answer with the queues of a topic in order; there is no other setting."""
        fields = request.fields
        known = self._engine.topics.get(fields.get("key", "")) if fields.get("namespace") == ORDERS else None
        if known is None:
            return request.answer(QUERY_NOT_FOUND, remark=_KV)
        return request.answer(SUCCESS, {"value": f"{self._identity.name}:{known.write_queues}" if known.is_ordered else ""})

    def delete_setting(self, request: Command) -> Command:
        """Answer a name server's client that deletes a setting: there is none."""
        return request.answer(SUCCESS)

    def delete_expired(self, request: Command) -> Command:
        """Delete files of the log whose time is over, and what the queues have of them."""
        self._store.delete_expired()
        return request.answer(SUCCESS)


def refused(request: Command) -> Command:
    """Answer a request that is not supported, with the reason if it is known."""
    reason = REASONS.get(request.code)
    return request.answer(NOT_SUPPORTED, remark=reason or f"request code {request.code} is not supported")


def _connections(members: Mapping[str, Peer]) -> list[dict[str, Any]]:
    return [
        {"clientId": client, "clientAddr": one.host, "language": one.language, "version": one.version}
        for client, one in sorted(members.items())
    ]


def _objects(request: Command, name: str) -> list[dict[str, Any]]:
    found = json_object(request.body, "body").get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
