"""Clients and their groups: heartbeats, members, and locks of queues that are consumed in order."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ..errors import WrongFrame
from ..remoting.codes import NOTIFY_CONSUMER_IDS_CHANGED, SUCCESS, SYSTEM_ERROR
from ..remoting.frames import Command, json_body, json_object
from .connections import Connection, Peer
from .fields import is_group_name

LOCK_S = 60.0  # a lock that is not renewed for this time is free
GROUPS_MAX = 10_000
QUEUES_MAX = 100_000  # of one lock request, and of all groups' locks together
CLUSTERING = "CLUSTERING"
SETTINGS = {  # of a consumer group, with what applies if a heartbeat lacks it
    "consumeType": "CONSUME_PASSIVELY", "messageModel": CLUSTERING, "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
}  # fmt: skip
SUBSCRIPTION = ("topic", "subString", "tagsSet", "codeSet", "subVersion", "expressionType", "classFilterMode")


@dataclass(slots=True)
class ConsumerGroup:
    """One consumer group: its members, and the tags that each topic is subscribed with."""

    members: dict[str, Connection] = field(default_factory=dict)
    expressions: dict[str, tuple[str, str]] = field(default_factory=dict)  # topic -> (expression type, expression)
    is_clustering: bool = True
    settings: dict[str, str] = field(default_factory=dict)  # of the last heartbeat, in RocketMQ's words
    subscriptions: dict[str, dict[str, Any]] = field(default_factory=dict)  # topic -> subscription of the last heartbeat


class Clients:
    """The clients that are connected now."""

    def __init__(self) -> None:
        """Create it without clients."""
        self.groups: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[str, Peer]] = {}
        self._turn = 0  # of the producers of a group that are asked about transactions
        self._locks: dict[tuple[str, str, int], tuple[str, float]] = {}  # (group, topic, queue id) -> (client, locked at)

    def heartbeat(self, connection: Connection, request: Command) -> list[str]:
        """Register a client with its groups; return the consumer groups in clustering mode that it names."""
        document = json_object(request.body, "body")
        client = str(document.get("clientID"))
        connection.language, connection.version = request.language, request.version
        for entry in _objects(document, "producerDataSet"):
            self.add_producer(str(entry.get("groupName")), client, connection)
        clustering = []
        for entry in _objects(document, "consumerDataSet"):
            name = str(entry.get("groupName"))
            if not is_group_name(name):  # a broker ignores it as well
                continue
            self._check_limit(self.groups, name)
            group = self.groups.setdefault(name, ConsumerGroup())
            group.is_clustering = entry.get("messageModel", CLUSTERING) == CLUSTERING
            group.settings = {name: str(entry.get(name) or default) for name, default in SETTINGS.items()}
            group.subscriptions = {
                str(found.get("topic")): {name: found[name] for name in SUBSCRIPTION if name in found}
                for found in _objects(entry, "subscriptionDataSet")
            }
            expressions = {
                topic: (str(found.get("expressionType") or "TAG"), str(found.get("subString") or "*"))
                for topic, found in group.subscriptions.items()
            }
            is_changed = group.members.get(client) is not connection or group.expressions != expressions
            group.members[client] = connection
            group.expressions = expressions
            if group.is_clustering:
                clustering.append(name)
            if is_changed:
                self._notify(name)
        return clustering

    def add_producer(self, group: str, client: str, connection: Peer) -> None:
        """Note that a client sends messages as a member of a group."""
        self._check_limit(self.producers, group)
        self.producers.setdefault(group, {})[client] = connection

    @staticmethod
    def _check_limit(groups: Collection[str], name: str) -> None:
        if name not in groups and len(groups) >= GROUPS_MAX:
            raise WrongFrame(f"more than {GROUPS_MAX} groups")

    def unregister(self, request: Command) -> Command:
        """Remove a client from a group."""
        client = request.fields.get("clientID", "")
        self._stop_producing(request.fields.get("producerGroup", ""), client)
        self._leave(request.fields.get("consumerGroup", ""), client)
        return request.answer(SUCCESS)

    def closed(self, connection: Peer) -> None:
        """Remove the clients of a connection from all groups."""
        for name, producers in list(self.producers.items()):
            for client in [client for client, found in producers.items() if found is connection]:
                self._stop_producing(name, client)
        for name, group in list(self.groups.items()):
            for client in [client for client, found in group.members.items() if found is connection]:
                self._leave(name, client)

    def producer(self, client: str) -> Peer | None:
        """Return the connection of a client that sends messages; None if it is not connected."""
        return next((found[client] for found in self.producers.values() if client in found), None)

    def next_producer(self, group: str) -> Peer | None:
        """Return a member of a producer group that can be asked about a transaction, each in turn; None without any."""
        reachable = [found for found in self.producers.get(group, {}).values() if found.is_reachable]
        self._turn += 1
        return reachable[self._turn % len(reachable)] if reachable else None

    def member_ids(self, name: str) -> list[str]:
        """Return the sorted ids of a group's clients."""
        group = self.groups.get(name)
        return sorted(group.members) if group is not None else []

    def members(self, request: Command) -> Command:
        """Answer with the ids of a group's clients."""
        found = self.member_ids(request.fields.get("consumerGroup", ""))
        if not found:
            return request.answer(SYSTEM_ERROR, remark="no consumer for this group")
        return request.answer(SUCCESS, body=json_body({"consumerIdList": found}))

    def lock(self, request: Command) -> Command:
        """Lock queues for a client, and answer with those that it has now."""
        group, client, queues = self._lock_request(request)
        now_s = time.monotonic()
        self._fit_buffers({(group, *key) for _, key in queues}, now_s)
        granted = []
        for raw, key in queues:
            owner, locked_s = self._locks.get((group, *key), (client, 0.0))
            if owner == client or now_s - locked_s > LOCK_S:
                self._locks[group, *key] = client, now_s
                granted.append(raw)
        return request.answer(SUCCESS, body=json_body({"lockOKMQSet": granted}))

    def _fit_buffers(self, keys: set[tuple[str, str, int]], now_s: float) -> None:
        """Drop locks that nobody renewed if these would be too many; raise `WrongFrame` if they still are."""
        if len(self._locks) + len(keys) <= QUEUES_MAX:
            return
        self._locks = {key: lock for key, lock in self._locks.items() if now_s - lock[1] <= LOCK_S}
        if len(self._locks.keys() | keys) > QUEUES_MAX:
            raise WrongFrame(f"more than {QUEUES_MAX} locked queues")

    def unlock(self, request: Command) -> Command:
        """Give a client's locks back."""
        group, client, queues = self._lock_request(request)
        for _, key in queues:
            if self._locks.get((group, *key), (None, 0.0))[0] == client:
                del self._locks[group, *key]
        return request.answer(SUCCESS)

    @staticmethod
    def _lock_request(request: Command) -> tuple[str, str, list[tuple[dict[str, Any], tuple[str, int]]]]:
        document = json_object(request.body, "body")
        queues = _objects(document, "mqSet")
        if len(queues) > QUEUES_MAX:
            raise WrongFrame(f"a lock of {len(queues)} queues: {QUEUES_MAX} at most")
        ids = [queue.get("queueId", -1) for queue in queues]
        if not all(type(queue_id) is int for queue_id in ids):
            raise WrongFrame("queueId: a number")
        keyed = [(queue, (str(queue.get("topic")), queue_id)) for queue, queue_id in zip(queues, ids, strict=True)]
        return str(document.get("consumerGroup")), str(document.get("clientId")), keyed

    def _leave(self, name: str, client: str) -> None:
        group = self.groups.get(name)
        if group is not None and group.members.pop(client, None) is not None:
            for key in [key for key, lock in self._locks.items() if key[0] == name and lock[0] == client]:
                del self._locks[key]
            self._notify(name)
            if not group.members:
                del self.groups[name]

    def _stop_producing(self, name: str, client: str) -> None:
        producers = self.producers.get(name, {})
        producers.pop(client, None)
        if not producers:
            self.producers.pop(name, None)

    def _notify(self, name: str) -> None:
        """Let the members of a group divide its queues again."""
        for connection in set(self.groups[name].members.values()):
            connection.notify(NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name})


def _objects(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = document.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise WrongFrame(f"{name}: a list of objects")
    return found
