"""Read and write `config/topics.json`: topics and their numbers of queues."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from commitlog.topic_names import SYSTEM_PREFIX, SYSTEM_TOPICS, is_virtual_topic
from consumequeue import check_topic
from storageio import Disk, InvalidMessage, StoreCorrupt

from ...folder_contents import has_rocksdb
from ...paths import StorePaths
from ...rocksdb.config import DATABASES, METADATA
from .config_files import Document
from .config_table import KeyedTable

PERM_INHERIT = 1  # topics created on the first put inherit from this one
PERM_WRITE = 2
PERM_READ = 4
PERM_DEFAULT = PERM_READ | PERM_WRITE
QUEUES_DEFAULT = 8  # queues of a topic created here
QUEUES_IMPLIED = 16  # queues of a topic in a file that omits the number
QUEUES_MAX = 1 << 20
INT32_MAX = (1 << 31) - 1

QUEUE_TYPE = "queue.type"
BATCH_QUEUES = "BatchCQ"  # a value of QUEUE_TYPE
MESSAGE_TYPE = "message.type"
PRIORITIES = "PRIORITY"  # a value of MESSAGE_TYPE
CLEANUP_POLICY = "cleanup.policy"
COMPACTION = "COMPACTION"  # a value of CLEANUP_POLICY
RETENTION = "brokerstore.retention"  # not one of RocketMQ's
KEEPS_NO_FILES = {RETENTION: "limits"}  # attributes of a topic whose messages nobody acknowledges


def is_system_topic(name: str) -> bool:
    """Return whether the broker, not a user, owns a topic of this name."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX)


def needs_entry(name: str) -> bool:
    """Return whether a table of topics has to name a topic: a broker makes its own, and virtual topics are in none."""
    return not is_system_topic(name) and not is_virtual_topic(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """One topic. The defaults apply to fields that the file omits."""

    name: str
    read_queues: int = QUEUES_IMPLIED
    write_queues: int = QUEUES_IMPLIED
    perm: int = PERM_DEFAULT
    is_ordered: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def keeps_no_files(self) -> bool:
        """Whether the policy "consumed" deletes its messages although no group has acknowledged them."""
        return self.attributes.get(RETENTION) == KEEPS_NO_FILES[RETENTION]

    @property
    def is_readable(self) -> bool:
        """Return whether consumers may read."""
        return bool(self.perm & PERM_READ)

    @property
    def is_writable(self) -> bool:
        """Return whether producers may put."""
        return bool(self.perm & PERM_WRITE)

    @property
    def is_batch(self) -> bool:
        """Return whether its queues are batch queues (`docs/formats/put-rules.md#batch-topics`)."""
        return self.attributes.get(QUEUE_TYPE) == BATCH_QUEUES

    @property
    def has_priorities(self) -> bool:
        """Return whether the priority of a message chooses its queue, and consumers take the highest queue first."""
        return self.attributes.get(MESSAGE_TYPE) == PRIORITIES

    @property
    def is_compacted(self) -> bool:
        """Return whether consumers read copies of its messages (`docs/formats/rocketmq-compaction.md`)."""
        return self.attributes.get(CLEANUP_POLICY) == COMPACTION

    def but(self, **changes: Any) -> TopicConfig:
        """Return a copy with other values."""
        return replace(self, **changes)


class Topics(KeyedTable[TopicConfig]):
    """All topics of a store."""

    file_name = "topics.json"
    table_name = "topicConfigTable"
    rocksdb_name = "topics"
    needs_rocksdb = False  # messages are read without it

    def __init__(self, disk: Disk, folder: str, *, default_queues: int = QUEUES_DEFAULT) -> None:
        """Read the file. `folder` is the store's `config/`; `default_queues` is for topics created without a number."""
        self.default_queues = default_queues
        super().__init__(disk, folder)

    def parse(self, name: str, raw: Document) -> TopicConfig:
        """Return the topic of a document in RocketMQ's form."""
        attributes = raw.get("attributes") or {}
        if not isinstance(attributes, dict):
            raise self.corrupt(f"{name}.attributes", "a map", attributes)
        return TopicConfig(
            name=name,
            read_queues=self.count(raw, "readQueueNums", QUEUES_IMPLIED, where=name, maximum=QUEUES_MAX),
            write_queues=self.count(raw, "writeQueueNums", QUEUES_IMPLIED, where=name, maximum=QUEUES_MAX),
            perm=self.number(raw, "perm", PERM_DEFAULT, where=name, maximum=INT32_MAX),
            is_ordered=self.flag(raw, "order", False, where=name),
            filter_type=self.text(raw, "topicFilterType", "SINGLE_TAG", where=name),
            sys_flag=self.number(raw, "topicSysFlag", 0, where=name, maximum=INT32_MAX),
            attributes={str(key): self.text(attributes, str(key), "", where=f"{name}.attributes") for key in attributes},
        )

    def create(
        self,
        name: str,
        queues: int | None = None,
        *,
        perm: int | None = None,
        is_ordered: bool | None = None,
        attributes: dict[str, str] | None = None,
    ) -> TopicConfig:
        """Create a topic, or change an existing one. Raises `InvalidMessage` for what no store can hold."""
        requested = {
            "read_queues": queues,
            "write_queues": queues,
            "perm": perm,
            "is_ordered": is_ordered,
            "attributes": attributes,
        }
        with self._lock:
            before = self._entries.get(name)
            base = before or TopicConfig(name=name, read_queues=self.default_queues, write_queues=self.default_queues)
            config = base.but(**{key: value for key, value in requested.items() if value is not None})
            if config != before:
                self.put(config)
            return config

    def put(self, config: TopicConfig) -> None:
        """Set all known fields of a topic; unknown fields of the file stay."""
        check_config(config)
        known: Document = {
            "attributes": dict(config.attributes),
            "order": config.is_ordered,
            "perm": config.perm,
            "readQueueNums": config.read_queues,
            "topicFilterType": config.filter_type,
            "topicName": config.name,
            "topicSysFlag": config.sys_flag,
            "writeQueueNums": config.write_queues,
        }
        self._put(config.name, config, known)


def read_topics(disk: Disk, folder: str) -> Topics | None:
    """Return the topics of a store, None if neither `topics.json` nor its backup can be read."""
    try:
        return Topics(disk, folder)
    except StoreCorrupt:
        return None


def is_deleted(topics: Topics, name: str) -> bool:
    """Return whether a topic that has records was deleted (`docs/formats/config.md#deleted-topics`).

    A deleted topic is missing from a table that is not empty. A rebuild from the log must not restore its queues.
    """
    return not topics.is_empty and name not in topics and needs_entry(name)


def check_config(config: TopicConfig) -> None:
    """Raise `InvalidMessage` for a name or number that no store can hold."""
    check_topic(config.name)
    for queues in (config.read_queues, config.write_queues):
        if not 0 <= queues <= QUEUES_MAX:
            raise InvalidMessage(f"topic {config.name}: {queues} queues, 0 to {QUEUES_MAX} wanted")
    if not 0 <= config.perm <= PERM_READ | PERM_WRITE | PERM_INHERIT:
        raise InvalidMessage(f"topic {config.name}: permission {config.perm}, a sum of 4, 2 and 1 wanted")
    if abs(config.sys_flag) > INT32_MAX:
        raise InvalidMessage(f"topic {config.name}: system flag {config.sys_flag}, 32 bits wanted")
    for key, value in config.attributes.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidMessage(f"topic {config.name}: attribute {key!r} and its value must be text")


def deleted_topics(disk: Disk, paths: StorePaths) -> Callable[[str], bool]:
    """Return a predicate for deleted topics of a store with queues in RocksDB.

    Version 2 of the configuration lacks topics that clients created by sending.
    """
    if not any(has_rocksdb(disk, os.path.join(paths.root, name)) for name in (METADATA, *DATABASES)):
        return lambda _topic: False
    topics = Topics(disk, paths.config)
    return lambda topic: is_deleted(topics, topic)
