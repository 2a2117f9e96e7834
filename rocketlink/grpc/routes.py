"""Routes and assignments: all queues are here."""

from __future__ import annotations

from typing import Any

from messagestore import MessageStore
from messagestore.broker.config.topics import MESSAGE_TYPE, TopicConfig

from ..server.tables import AUTO_CREATE_QUEUES, Identity
from .messages import OK, Declined, group_of, topic_of
from .protocol import definition as d
from .protocol import service as s

MIXED = (d.NORMAL, d.FIFO, d.DELAY, d.TRANSACTION)
KINDS = {
    "NORMAL": (d.NORMAL,),
    "FIFO": (d.FIFO,),
    "DELAY": (d.DELAY,),
    "TRANSACTION": (d.TRANSACTION,),
    "PRIORITY": (d.PRIORITY,),
}
ANY_QUEUE = -1


class Routes:
    """Answers which queues a topic has, and how it is consumed."""

    def __init__(self, store: MessageStore, identity: Identity, address: tuple[str, int]) -> None:
        """`address` is that of the gRPC port, for clients that do not name the one they use."""
        self._engine = store.engine
        self._identity = identity
        self._address = address

    def topic(self, name: str) -> TopicConfig:
        """Return a topic; one that does not exist as the first send would create it."""
        known = self._engine.topics.get(name)
        return known or TopicConfig(name=name, read_queues=AUTO_CREATE_QUEUES, write_queues=AUTO_CREATE_QUEUES)

    def is_in_order(self, topic: str, group: str) -> bool:
        """Return whether a group gets a topic's messages in order: the topic is of type FIFO, or the group is in order."""
        known = self._engine.retries.groups.get(group)
        return (known is not None and known.is_ordered) or self.topic(topic).attributes.get(MESSAGE_TYPE) == "FIFO"

    def kinds(self, topic: TopicConfig) -> tuple[int, ...]:
        """Return the message types that a topic takes: without an attribute all that need no other topic."""
        return KINDS.get(topic.attributes.get(MESSAGE_TYPE, ""), MIXED)

    def route(self, request: Any) -> Any:
        """Answer with the queues of a topic."""
        topic = self.topic(topic_of(request.topic))
        answer = s.QueryRouteResponse(status=OK)
        for queue_id in range(max(topic.read_queues, topic.write_queues)):
            reads, writes = (
                topic.is_readable and queue_id < topic.read_queues,
                topic.is_writable and queue_id < topic.write_queues,
            )
            queue = self._queue(request.topic, queue_id, request.endpoints, reads, writes)
            queue.accept_message_types.extend(self.kinds(topic))
            answer.message_queues.append(queue)
        return answer

    def assignment(self, request: Any) -> Any:
        """Answer with what a push consumer receives from: any queue, or each of them for messages in order."""
        name, group = topic_of(request.topic), group_of(request.group)
        topic = self.topic(name)
        if not topic.is_readable or topic.read_queues <= 0:
            raise Declined(d.FORBIDDEN, f"topic {name} cannot be read")
        queue_ids = range(topic.read_queues) if self.is_in_order(name, group) else (ANY_QUEUE,)
        answer = s.QueryAssignmentResponse(status=OK)
        for queue_id in queue_ids:
            queue = self._queue(request.topic, queue_id, request.endpoints, True, topic.is_writable)
            answer.assignments.add().message_queue.CopyFrom(queue)
        return answer

    def _queue(self, topic: Any, queue_id: int, endpoints: Any, reads: bool, writes: bool) -> Any:
        permission = {(True, True): d.READ_WRITE, (True, False): d.READ, (False, True): d.WRITE, (False, False): d.NONE}
        queue = d.MessageQueue(topic=topic, id=queue_id, permission=permission[reads, writes])
        queue.broker.name = self._identity.name
        if endpoints.addresses:
            queue.broker.endpoints.CopyFrom(endpoints)
        else:
            queue.broker.endpoints.scheme = d.IPv6 if ":" in self._address[0] else d.IPv4
            queue.broker.endpoints.addresses.add(host=self._address[0], port=self._address[1])
        return queue
