"""Routes, topics and the tables that replicas and slaves ask for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from commitlog.topic_names import RETRY_PREFIX
from messagestore import MessageStore
from messagestore.broker.config.config_files import ConfigFile
from messagestore.broker.config.config_table import ConfigTable
from messagestore.broker.config.delay_offsets import DelayOffsets
from messagestore.broker.config.request_modes import POP, PULL, RequestMode, RequestModes
from messagestore.broker.config.topics import (
    CLEANUP_POLICY,
    COMPACTION,
    PERM_DEFAULT,
    QUEUES_MAX,
    TopicConfig,
    is_system_topic,
)
from messagestore.timers.layout import CHECK
from messagestore.write.admission import client_problem

from ..remoting.codes import INVALID_PARAMETER, NO_PERMISSION, SUCCESS, SYSTEM_ERROR, TOPIC_NOT_EXIST
from ..remoting.frames import Command, json_body, json_object
from .clients import CLUSTERING, Clients
from .fields import is_group_name, number
from .popping import ANY_QUEUE

PERM_AUTO_CREATE = 7
AUTO_CREATE_TOPIC = "TBW102"
AUTO_CREATE_QUEUES = 8
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
NO_VERSION = {"counter": 0, "stateVersion": 0, "timestamp": 0}


class Identity(NamedTuple):
    """What clients know this broker by."""

    cluster: str
    name: str
    address: str
    ha_port: int

    @property
    def own_topics(self) -> tuple[str, str]:
        """The topics of replies and of traces: a broker has them with one queue each, without anyone creating them."""
        return f"{self.cluster}_REPLY_TOPIC", TRACE_TOPIC


class BrokerTables:
    """Answers about the broker itself."""

    def __init__(self, store: MessageStore, identity: Identity, clients: Clients) -> None:
        """Create it for a store that is open for writing."""
        self._clients = clients
        self._store = store
        self._engine = store.engine
        self._identity = identity
        self._modes = RequestModes(self._engine.disk, self._engine.paths.config)

    def route(self, request: Command) -> Command:
        """Answer with the queues of a topic, all of which are here."""
        name = request.fields.get("topic", "")
        topic = self._engine.topics.get(name)
        if topic is None and name == AUTO_CREATE_TOPIC:
            topic = TopicConfig(
                name=name, read_queues=AUTO_CREATE_QUEUES, write_queues=AUTO_CREATE_QUEUES, perm=PERM_AUTO_CREATE
            )
        if topic is None and name in self._identity.own_topics:
            topic = TopicConfig(name=name, read_queues=1, write_queues=1)
        group = name.removeprefix(RETRY_PREFIX)
        if topic is None and group != name and self.knows_group(group):  # an operator's tools look for the group there
            topic = TopicConfig(name=name, read_queues=1, write_queues=1)
        if topic is None:
            return request.answer(TOPIC_NOT_EXIST, remark=f"no route info of topic {name}")
        queues = {
            "brokerName": self._identity.name, "readQueueNums": topic.read_queues, "writeQueueNums": topic.write_queues,
            "perm": topic.perm, "topicSysFlag": topic.sys_flag,
        }  # fmt: skip
        route: dict[str, Any] = {"brokerDatas": [self._broker()], "queueDatas": [queues], "filterServerTable": {}}
        return request.answer(SUCCESS, body=json_body(route))

    def knows_group(self, name: str) -> bool:
        """Return whether a group has settings or offsets."""
        return name in self._engine.retries.groups or bool(self._engine.consumer_offsets().topics(name))

    def assignment(self, request: Command) -> Command:
        """Answer with the queues of one consumer that leaves the division of a topic to the broker, and how it reads them."""
        document = json_object(request.body, "body")
        name, group, client = (str(document.get(key)) for key in ("topic", "consumerGroup", "clientId"))
        topic = self._engine.topics.get(name)
        queues: Collection[int] = range(topic.read_queues if topic is not None else 0)
        mode = RequestMode()
        if document.get("messageModel", CLUSTERING) == CLUSTERING:
            mode = self._modes.get(name, group)
            queues = shared(queues, self._clients.member_ids(group), client, mode)
        found = [{"topic": name, "brokerName": self._identity.name, "queueId": queue_id} for queue_id in queues]
        assigned = [{"messageQueue": queue, "mode": mode.mode} for queue in found]
        return request.answer(SUCCESS, body=json_body({"messageQueueAssignments": assigned}))

    def set_request_mode(self, request: Command) -> Command:
        """Let a group pull or pop a topic."""
        document = json_object(request.body, "body")
        topic, group, mode = (str(document.get(key)) for key in ("topic", "consumerGroup", "mode"))
        queues = document.get("popShareQueueNum", 0)
        if mode not in (PULL, POP) or type(queues) is not int or abs(queues) > QUEUES_MAX:
            return request.answer(SYSTEM_ERROR, remark=f"mode {mode[:40]} with popShareQueueNum {str(queues)[:40]}")
        if topic.startswith(RETRY_PREFIX):
            return request.answer(NO_PERMISSION, remark="consumers pull from retry topics")
        if self._engine.topics.get(topic) is None:
            return request.answer(TOPIC_NOT_EXIST, remark=f"topic {topic} does not exist")
        self._engine.retries.group(group)  # adds it to the table of groups, or refuses its name
        self._modes.put(topic, group, RequestMode(mode, queues))
        self._modes.persist()
        return request.answer(SUCCESS)

    def cluster(self, request: Command) -> Command:
        """Answer with the cluster, which is this broker alone."""
        identity = self._identity
        body = {
            "brokerAddrTable": {identity.name: self._broker()},
            "clusterAddrTable": {identity.cluster: [identity.name]},
        }
        return request.answer(SUCCESS, body=json_body(body))

    def topic_names(self, request: Command) -> Command:
        """Answer with the names of all topics."""
        return request.answer(SUCCESS, body=json_body({"topicList": self._engine.topics.names()}))

    def create_topic(self, request: Command) -> Command:
        """Create a topic, or change the number of its queues and its permissions."""
        fields = request.fields
        name = fields.get("topic", "")
        reason = client_problem(name) or ("a broker has this topic itself" if is_system_topic(name) else None)
        if reason:
            return request.answer(INVALID_PARAMETER, remark=f"topic {name[:200]!r}: {reason}")
        reads, writes = (number(fields, key, AUTO_CREATE_QUEUES) for key in ("readQueueNums", "writeQueueNums"))
        if not 0 < writes <= QUEUES_MAX or not 0 < reads <= QUEUES_MAX:
            return request.answer(SYSTEM_ERROR, remark=f"topic {name}: {reads} and {writes} queues")
        changes = attribute_changes(fields.get("attributes", ""))
        if changes is None or changes.get(CLEANUP_POLICY) == COMPACTION:
            return request.answer(INVALID_PARAMETER, remark=f"attributes {fields['attributes'][:200]!r}: +NAME=VALUE or -NAME")
        self._engine.admission.create(name, writes)
        known = self._engine.topics.get(name)
        assert known is not None, "the topic was created"
        changed = known.but(
            read_queues=reads, write_queues=writes, perm=number(fields, "perm", PERM_DEFAULT),
            is_ordered=fields.get("order") == "true", sys_flag=number(fields, "topicSysFlag"),
        )  # fmt: skip
        if changed != known:
            self._engine.topics.put(changed)
            self._engine.topics.persist()
            self._engine.admission.admit(name)
        if changes:
            merged = {key: value for key, value in {**known.attributes, **changes}.items() if value is not None}
            self._engine.admission.set_attributes(name, merged)
        return request.answer(SUCCESS)

    def delete_topic(self, request: Command) -> Command:
        """Delete a topic with its queues and the offsets of all groups in it; one that is not there is deleted already."""
        name = request.fields.get("topic", "")
        if self._engine.topics.get(name) is not None:
            self._store.delete_topic(name)
        return request.answer(SUCCESS)

    def set_group(self, request: Command) -> Command:
        """Create a consumer group, or replace its settings."""
        document: dict[str | int, Any] = dict(json_object(request.body, "body").items())
        name = document.get("groupName")
        if not isinstance(name, str) or not is_group_name(name):
            return request.answer(INVALID_PARAMETER, remark=f"no group can be named {str(name)[:200]!r}")
        groups = self._engine.retries.groups
        groups.put(groups.parse(name, document))
        groups.persist()
        return request.answer(SUCCESS)

    def delete_group(self, request: Command) -> Command:
        """Delete a consumer group with its offsets and retries; one that is not there is deleted already."""
        name = request.fields.get("groupName", "")
        if name in self._engine.retries.groups:
            self._store.delete_group(name)
        return request.answer(SUCCESS)

    def topics(self, request: Command) -> Command:
        """Answer with the table of topics."""
        return self._table(request, self._engine.topics)

    def offsets(self, request: Command) -> Command:
        """Answer with the offsets of all groups."""
        return self._table(request, self._engine.consumer_offsets())

    def groups(self, request: Command) -> Command:
        """Answer with the table of consumer groups."""
        return self._table(request, self._engine.retries.groups)

    def delays(self, request: Command) -> Command:
        """Answer with the progress of delayed messages."""
        self._engine.delays.persist()
        path = f"{self._engine.paths.config}/{DelayOffsets.file_name}"
        return request.answer(SUCCESS, body=json_body(ConfigFile(self._engine.disk, path).load().document))

    def timer_progress(self, request: Command) -> Command:
        """Answer with how far timers were delivered, in the form of the timer checkpoint."""
        return request.answer(SUCCESS, body=CHECK.pack(*self._engine.timers.progress()))

    def timer_counts(self, request: Command) -> Command:
        """Answer with an empty table of pending timers by topic: a slave shows it, and counts for itself as a master."""
        return request.answer(SUCCESS, body=json_body({"timingCount": {}, "dataVersion": NO_VERSION}))

    def request_modes(self, request: Command) -> Command:
        """Answer with how consumer groups read topics, as far as it was set."""
        return self._table(request, self._modes)

    def register(self, request: Command) -> Command:
        """Tell a slave of this broker where the log and the tables are; refuse any other broker."""
        identity, fields = self._identity, request.fields
        named = fields.get("clusterName"), fields.get("brokerName")
        if named != (identity.cluster, identity.name) or fields.get("brokerId", "0") == "0":
            remark = f"only slaves of {identity.name} in {identity.cluster} register here, not {fields.get('brokerName')}"
            return request.answer(SYSTEM_ERROR, remark=remark)
        host = identity.address.rpartition(":")[0]
        return request.answer(SUCCESS, {"masterAddr": identity.address, "haServerAddr": f"{host}:{identity.ha_port}"})

    def unregister(self, request: Command) -> Command:
        """Answer a slave that leaves, or that is still there: routes have only this broker."""
        return request.answer(SUCCESS)

    def settings(self, request: Command) -> Command:
        """Answer with the broker's properties."""
        config = self._engine.config
        found = {
            "brokerName": self._identity.name, "brokerClusterName": self._identity.cluster,
            "haListenPort": self._identity.ha_port,
            "mappedFileSizeCommitLog": self._engine.log.file_size_bytes,
            "mappedFileSizeConsumeQueue": config.mapped_file_size_consume_queue,
            "maxHashSlotNum": config.max_hash_slot_num, "maxIndexNum": config.max_index_num,
            "maxMessageSize": config.max_message_size,
        }  # fmt: skip
        return request.answer(SUCCESS, body="".join(f"{name}={value}\n" for name, value in found.items()).encode())

    def _broker(self) -> dict[str, Any]:
        identity = self._identity
        return {"cluster": identity.cluster, "brokerName": identity.name, "brokerAddrs": {"0": identity.address}}

    @staticmethod
    def _table(request: Command, table: ConfigTable) -> Command:
        return request.answer(SUCCESS, body=json_body(table.document()))


def attribute_changes(text: str) -> dict[str, str | None] | None:
    """Return the attributes of a topic that a request sets, None for one that it removes; None if the text is wrong.

    >>> attribute_changes("+message.type=FIFO,-queue.type"), attribute_changes("a=b")
    ({'message.type': 'FIFO', 'queue.type': None}, None)
    """
    found: dict[str, str | None] = {}
    for part in filter(None, text.split(",")):
        name, has_value, value = part[1:].partition("=")
        if part[0] not in "+-" or not name or bool(has_value) != (part[0] == "+"):
            return None
        found[name] = value if has_value else None
    return found


def shared(queues: Collection[int], members: list[str], client: str, mode: RequestMode) -> Collection[int]:
    """Return the queues that one member reads, each by itself if it pulls.

    In POP mode -1 stands for any queue; with fewer shared queues than other members, each takes from its own and from those of
    the members that follow it.

    >>> pop, names = RequestMode("POP", 1), ["a", "b", "c"]
    >>> shared(range(6), names, "b", RequestMode()), shared(range(6), names, "b", RequestMode("POP"))
    (range(2, 4), [-1])
    >>> sorted(shared(range(6), names, "c", pop)), list(shared(range(2), names, "c", pop))
    ([0, 1, 4, 5], [0])
    """
    if client not in members or not queues:
        return ()
    if mode.mode != POP:
        return share(range(len(queues)), members, client)
    if mode.share_queues <= 0 or mode.share_queues >= len(members) - 1:
        return [ANY_QUEUE]
    index = members.index(client)
    if len(members) > len(queues):
        return [index % len(queues)]
    names = [members[(index + step) % len(members)] for step in range(mode.share_queues + 1)]
    return [queue_id for name in names for queue_id in share(range(len(queues)), members, name)]


def share(queues: range, members: list[str], client: str) -> range:
    """Return the queues of one member, as RocketMQ's `AllocateMessageQueueAveragely` does.

    >>> share(range(5), ["a", "b"], "a"), share(range(5), ["a", "b"], "b"), share(range(1), ["a", "b"], "b")
    (range(0, 3), range(3, 5), range(1, 1))
    """
    if client not in members:
        return queues[:0]
    index = members.index(client)
    size, rest = divmod(len(queues), len(members))
    begin = index * size + min(index, rest)
    return queues[begin : begin + size + (index < rest)]
