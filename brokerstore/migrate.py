"""Messages copied between a RabbitMQ folder and a RocketMQ store; the source is only read.

Each queue becomes a topic with the one queue 0, in the order of delivery.  The topic has the queue's name if a broker accepts
it as a topic; otherwise the name is escaped (`topic_of`).  The body is unchanged; everything else is kept in properties, as
JSON unless noted:

    AMQP_VHOST, AMQP_QUEUE, AMQP_EXCHANGE, AMQP_ROUTING_KEYS    the route
    AMQP_SEQ_ID, AMQP_MSG_ID (hex)                              identity of the message; it is copied once
    AMQP_PERSISTENT, AMQP_REDELIVERED, AMQP_EXPIRY_US           as in the folder; the expiry is absolute
    AMQP_PRIORITIES                                             highest priority of the queue, of a priority queue only
    AMQP_PROPERTIES                                             AMQP's properties, readable, if they are short enough
    AMQP_BLOCK (base64)                                         the same as the exact bytes, for the way back

The message id is the index key, so that a second run finds what the first one copied and continues after it.  In the other
direction, messages without these properties go to a queue named like their topic, through the default exchange.
"""

from __future__ import annotations

import hashlib
import json
import string
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from brokerstore.identify import FolderKind
from brokerstore.write_target import check_write_target
from commitlog import Message
from commitlog import StoredMessage as StoredRecord
from messagestore import MessageStore, StoreConfig
from messagestore.broker.config.topics import is_system_topic
from rabbitstore import Finding, RabbitMessage, RabbitStore
from rabbitstore.folder import RabbitmqFacts
from rabbitstore.format import properties as blocks
from rabbitstore.format.message import Content
from rabbitstore.node_folder import NodeFolder
from storageio import InvalidMessage, PutRejected, StoreCorrupt, StoreError
from storageio.settings import settings_or_default

PREFIX = "AMQP_"
BATCH = 256
BODY_SIZE_MAX = 512 << 20  # RabbitMQ's own limit
READABLE_SIZE_MAX = 8192  # of AMQP_PROPERTIES; a record holds at most 32767 bytes of properties
TOPIC_SIZE_MAX = 127
_PLAIN = frozenset((string.ascii_letters + string.digits + "_-").encode())
_HASH_SIZE = 16
Progress = Callable[[int], None]


@dataclass
class Moved:
    """Counts of a run: `skipped` messages were already there; `failed` lists those that could not be copied, and why.

    `unread` names quorum queues of an unsupported format.
    """

    queues: int = 0
    messages: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def topic_of(queue: str) -> str:
    """Return the topic for a queue's name: letters, digits, `_` and `-` are kept, every other byte becomes %XX.

    A long name ends in a hash of the whole; a name that the broker reserves gets its first letter escaped.
    """
    data = queue.encode("utf-8", "surrogateescape")
    topic = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in data)
    if is_system_topic(topic):
        topic = f"%{data[0]:02X}{topic[1:]}"
    if len(topic) > TOPIC_SIZE_MAX:
        topic = f"{topic[: TOPIC_SIZE_MAX - _HASH_SIZE - 1]}-{hashlib.sha256(data).hexdigest()[:_HASH_SIZE]}"
    return topic


# From RabbitMQ


def import_rabbit(
    source: str, target: str, *, vhost: str | None = None, config: StoreConfig | None = None, progress: Progress | None = None
) -> Moved:
    """Copy every message of a virtual host into a store, which is created if necessary.

    `progress` is called with the number of messages read.  A damaged message is skipped and listed in `failed`.
    """
    check_write_target(target, FolderKind.ROCKETMQ)
    moved = Moved()
    settings = settings_or_default(config, StoreConfig, "config").but(max_message_size=BODY_SIZE_MAX)
    with RabbitStore.open(source, "r", vhost=vhost) as rabbit, MessageStore.open(target, "a", settings) as store:
        with rabbit.folder() as folder:
            priorities: dict[str, int] = {}
            for part in folder.queue_folders():
                if part.priority is not None:
                    priorities[part.queue] = max(priorities.get(part.queue, 0), part.priority)
            for queue in folder.queues():
                moved.queues += 1
                store.engine.admission.create(topic_of(queue.queue), 1)
                _move_queue(folder.messages(queue.queue), queue.queue, priorities.get(queue.queue), store, moved, progress)
            problems = [*folder.problems, *_move_others(source, folder.vhost, store, moved, progress)]
            moved.failed += [f"{one.file} at byte {one.offset}: {one.kind}" for one in dict.fromkeys(problems)]
        store.close_cleanly()
    return moved


def _move_others(
    source: str, vhost: str, store: MessageStore, moved: Moved, progress: Progress | None
) -> list[Finding]:  # fmt: skip
    """Copy the quorum queues and streams of a node's folder; return the damage that was met."""
    if RabbitmqFacts(source).node is None:
        return []
    with closing(NodeFolder(source, vhost)) as node:
        for queue in node.names():
            moved.queues += 1
            store.engine.admission.create(topic_of(queue), 1)
            _move_queue(node.messages(queue), queue, None, store, moved, progress)
        moved.unread += node.unread
        return [problem for problem in node.problems if problem not in node.unread.values()]


def _move_queue(
    messages: Iterator[RabbitMessage], queue: str, priorities: int | None, store: MessageStore, moved: Moved,
    progress: Progress | None,
) -> None:  # fmt: skip
    """Copy in batches; skip what an earlier run copied."""
    topic = topic_of(queue)
    may_be_there = store.max_offset(topic, 0) > 0
    batch: list[Message] = []
    for message in messages:
        if progress is not None:
            progress(1)
        if may_be_there and _is_there(store, topic, message):
            moved.skipped += 1
            continue
        try:
            batch.append(_message_of(message, topic, priorities))
        except StoreCorrupt as error:
            moved.failed.append(f"{message.queue} {message.seq_id}: {error}")
        if len(batch) == BATCH:
            _put(batch, store, moved)
            batch = []
    _put(batch, store, moved)


def _is_there(store: MessageStore, topic: str, message: RabbitMessage) -> bool:
    seq_id = str(message.seq_id)
    found = store.query(topic, _id_of(message).hex())
    return any((one.properties or {}).get("AMQP_SEQ_ID") == seq_id for one in found)


def _put(batch: list[Message], store: MessageStore, moved: Moved) -> None:
    """Put a batch; if one message is refused, put them one by one."""
    if not batch:
        return
    try:
        moved.messages += store.put_many(batch, check=True).message_count
        return
    except (PutRejected, InvalidMessage):
        pass
    for message in batch:
        properties = message.properties or {}
        known = store.query(message.topic, properties["AMQP_MSG_ID"])
        if any((one.properties or {}).get("AMQP_SEQ_ID") == properties["AMQP_SEQ_ID"] for one in known):
            moved.messages += 1
            continue
        try:
            store.put(message)
            moved.messages += 1
        except (PutRejected, InvalidMessage) as error:
            moved.failed.append(f"{properties['AMQP_QUEUE']} {properties['AMQP_SEQ_ID']}: {error}")


def _id_of(message: RabbitMessage) -> bytes:
    """Return the message's id in a message store; one of a quorum queue or stream has none and gets it from its number."""
    if message.msg_id:
        return message.msg_id
    name = json.dumps([message.vhost, message.queue, message.seq_id])
    return hashlib.sha256(name.encode()).digest()[:_HASH_SIZE]


def _message_of(message: RabbitMessage, topic: str, priorities: int | None) -> Message:
    """Return a message whose properties hold everything that the way back needs."""
    readable = json.dumps(blocks.to_json(message.properties))
    properties = {
        "AMQP_VHOST": json.dumps(message.vhost),
        "AMQP_QUEUE": json.dumps(message.queue),
        "AMQP_EXCHANGE": json.dumps(message.exchange),
        "AMQP_ROUTING_KEYS": json.dumps(list(message.routing_keys)),
        "AMQP_SEQ_ID": str(message.seq_id),
        "AMQP_MSG_ID": _id_of(message).hex(),
        "AMQP_PERSISTENT": json.dumps(message.persistent),
        "AMQP_REDELIVERED": json.dumps(message.redelivered),
        "AMQP_BLOCK": b64encode(message.content.properties_bin).decode("ascii"),
    }
    if message.expiry_us:
        properties["AMQP_EXPIRY_US"] = str(message.expiry_us)
    if priorities is not None:
        properties["AMQP_PRIORITIES"] = str(priorities)
    if len(readable) <= READABLE_SIZE_MAX:
        properties["AMQP_PROPERTIES"] = readable
    return Message(topic, message.body, keys=[_id_of(message).hex()], properties=properties, queue_id=0)


# To RabbitMQ


def export_to_rabbit(
    source: str, target: str, *, vhost: str = "/", config: StoreConfig | None = None, progress: Progress | None = None
) -> Moved:
    """Copy every message of every queue of a store into a virtual host's folder, which is created if necessary.

    The broker's own topics are skipped, and so are messages that the folder's queue already has.  Transient messages become
    persistent, except for their `delivery_mode`, because the next start of a broker would drop them.
    """
    check_write_target(target, FolderKind.RABBITMQ)
    moved = Moved()
    with MessageStore.open(source, "r", config) as store, RabbitStore.open(target, "a", vhost=vhost) as rabbit:
        present: dict[str, set[bytes]] = {}
        for topic in store.topics():
            if is_system_topic(topic):
                continue
            for queue_id in store.queue_ids(topic):
                for record in store.read(topic, queue_id):
                    if progress is not None:
                        progress(1)
                    _publish(record, rabbit, present, moved)
        moved.queues = len(present)
        rabbit.sync()
    return moved


def _publish(record: StoredRecord, rabbit: RabbitStore, present: dict[str, set[bytes]], moved: Moved) -> None:
    """Publish one message, unless its queue has it."""
    try:
        queue, content, priorities = _content_of(record, rabbit.vhost)
        if queue not in present:
            if queue not in rabbit.queue_names():
                rabbit.declare_queue(queue, max_priority=priorities)
            with closing(rabbit.folder()) as folder:  # a damaged message is not there, so it is published again
                present[queue] = {message.msg_id for message in folder.messages(queue)}
        if content.msg_id in present[queue]:
            moved.skipped += 1
            return
        fields = blocks.decode(content.properties_bin)
        ttl_ms = _ttl_ms(record, rabbit.disk.now_ms())
        rabbit.publish_content([rabbit.queue(queue)], content, priority=fields.get("priority") or 0, ttl_ms=ttl_ms)
    except (ValueError, StoreError) as error:
        moved.failed.append(f"{record.topic} {record.queue_id} {record.queue_offset}: {error}")
        return
    present[queue].add(content.msg_id)
    moved.messages += 1


def _content_of(record: StoredRecord, vhost: str) -> tuple[str, Content, int]:
    """Return queue, message and highest priority; raise `ValueError` if the properties are not those of an import."""
    properties: dict[str, Any] = record.properties or {}
    if "AMQP_BLOCK" not in properties:
        msg_id = hashlib.sha256(record.message_id.encode()).digest()[:16]
        headers = dict(properties)
        fields: dict[str, Any] = {"delivery_mode": 2, "timestamp": record.born_timestamp_ms // 1000}
        block = blocks.encode(fields | ({"headers": headers} if headers else {}))
        return record.topic, Content(vhost, "", (record.topic,), block, record.body, msg_id, True), 0
    try:
        queue, exchange = json.loads(properties["AMQP_QUEUE"]), json.loads(properties["AMQP_EXCHANGE"])
        keys = tuple(json.loads(properties["AMQP_ROUTING_KEYS"]))
        msg_id, block = bytes.fromhex(properties["AMQP_MSG_ID"]), b64decode(properties["AMQP_BLOCK"], validate=True)
        if not all(isinstance(name, str) for name in (queue, exchange, *keys)):
            raise TypeError("a name that is not text")
        content = Content(vhost, exchange, keys, block, record.body, msg_id, True)
        return queue, content, int(properties.get("AMQP_PRIORITIES", 0))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"properties that no import wrote: {error!r}") from error


def _ttl_ms(record: StoredRecord, now_ms: int) -> int | None:
    """Return the time left until an absolute expiry."""
    expiry_us = (record.properties or {}).get("AMQP_EXPIRY_US")
    return None if expiry_us is None else max(0, int(expiry_us) // 1000 - now_ms)
