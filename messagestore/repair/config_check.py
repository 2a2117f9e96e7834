"""Check the files of `config/` against each other and against the queues; nothing is changed.

A broker that cannot read a file reads its backup. If both are damaged, it does not start, or begins with an empty table. It
serves no topic that `topics.json` lacks, so the messages of such a topic reach no consumer.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from storageio import Disk, StoreCorrupt, StoreError
from storebytes.finding import Finding

from ..broker.config.config_files import Document
from ..broker.config.config_table import ConfigTable
from ..broker.config.consumer_offsets import OFFSETS_IN_FILES, ConsumerOffsets
from ..broker.config.delay_offsets import DelayOffsets
from ..broker.config.request_modes import RequestModes
from ..broker.config.subscription_groups import SubscriptionGroups
from ..broker.config.topics import Topics, needs_entry
from ..folder_contents import COMPACTION
from ..rocksdb.config import has_config

QueueKey = tuple[str, int]
BITS_MAX = 1 << 20  # of a bloom filter
OWN_TOPIC = "SELF_TEST_TOPIC"  # in the table of every broker since it first started


class _AnyTable(ConfigTable):
    """A file of a broker whose content is not used here: whether it is readable decides whether the broker starts."""

    table_name = ""

    def _take(self, table: Document) -> None:
        pass

    def _fill(self, document: Document) -> None:
        pass


class ConsumerFilters(_AnyTable):
    """The SQL92 filters of consumer groups (`docs/formats/config.md#consumer-filters`); a broker reads all of them or none."""

    file_name, table_name = "consumerFilter.json", "filterDataByTopic"

    def _take(self, table: Document) -> None:
        for topic, raw in table.items():
            groups = raw.get("groupFilterData") if isinstance(raw, dict) else None
            if not isinstance(groups, dict):
                raise self.corrupt(f"{self.table_name}.{topic}.groupFilterData", "a map", groups)
            for group, one in groups.items():
                if not isinstance(one, dict):
                    raise self.corrupt(f"{topic}.{group}", "a map", one)
                self._check(one, where=f"{topic}.{group}")

    def _check(self, raw: Document, where: str) -> None:
        bloom = raw.get("bloomFilterData") or {}
        bits = bloom.get("bitPos") or [] if isinstance(bloom, dict) else None
        if not isinstance(bits, list) or not all(isinstance(bit, int) and 0 <= bit < BITS_MAX for bit in bits):
            raise self.corrupt(f"{where}.bloomFilterData", "a map with bitNum and bitPos", bloom)
        self.count(bloom, "bitNum", 0, where=where, maximum=BITS_MAX)
        self.flag(raw, "dead", False, where=where)
        for name in ("bornTime", "deadTime", "clientVersion"):
            self.number(raw, name, 0, where=where)
        for name in ("expression", "expressionType"):
            self.text(raw, name, "", where=where)


class _Positions(_AnyTable):
    """Up to where compacted topics are compacted; without it a broker compacts them once more."""

    file_name, table_name = "position-checkpoint", "queueOffsetMap"


def _any_table(name: str) -> type[ConfigTable]:
    return type("_AnyTable", (_AnyTable,), {"file_name": name})


TABLES: tuple[type[ConfigTable], ...] = (
    Topics, *OFFSETS_IN_FILES, DelayOffsets, SubscriptionGroups, ConsumerFilters, RequestModes,
    *map(_any_table, ("consumerOrderInfo.json", "topicQueueMapping.json", "timermetrics", "transactionMetrics")),
)  # fmt: skip


class DamagedConfig(NamedTuple):
    """A config file that is damaged, and what is read in its place: the backup, or nothing."""

    path: str
    error: StoreCorrupt
    is_lost: bool
    kind: type[ConfigTable]


def damaged_config(disk: Disk, root: str) -> Iterator[DamagedConfig]:
    """Yield each damaged table of a broker; it is lost if its backup is not readable either."""
    for _, damaged in _tables(disk, root):
        if damaged is not None:
            yield damaged


def _tables(disk: Disk, root: str) -> Iterator[tuple[ConfigTable | None, DamagedConfig | None]]:
    """Yield each table that can be read, and the damage of its file."""
    kinds: tuple[type[ConfigTable], ...] = (*TABLES, _Positions)
    for kind in kinds:
        folder = os.path.join(root, COMPACTION if kind is _Positions else "config")
        path = os.path.join(folder, kind.file_name)
        try:
            table = kind(disk, folder)
        except StoreCorrupt as error:
            if kind.rocksdb_name is None or not has_config(disk, root):  # else `part_findings` reports it
                yield None, DamagedConfig(path, error, True, kind)
            continue
        except StoreError:
            if kind.rocksdb_name is None or not has_config(disk, root):
                raise
            continue
        damage = table.damage
        yield table, None if damage is None else DamagedConfig(path, damage, table.is_lost, kind)


def config_findings(
    disk: Disk, root: str, ends: Mapping[QueueKey, int] | None, filled: Iterable[QueueKey]
) -> Iterator[Finding]:  # fmt: skip
    """Yield damaged files, offsets beyond the end of their queue, and queues whose topic the table lacks.

    `ends` has the end offset of every queue; None if the queues could not be read. `filled` are the queues with records.
    """
    for table, damaged in _tables(disk, root):
        if damaged is not None:
            error = damaged.error
            read = "its backup is damaged too" if damaged.is_lost else "the backup is read instead"
            yield Finding(damaged.path, error.offset, "damaged_config", f"{error.expected}; {read}", str(error.found))
        if isinstance(table, ConsumerOffsets | DelayOffsets) and ends is not None:
            yield from _offsets_ahead(table, ends)
        elif isinstance(table, Topics):
            yield from _unknown_topics(disk, table, filled)


def _offsets_ahead(table: ConsumerOffsets | DelayOffsets, ends: Mapping[QueueKey, int]) -> Iterator[Finding]:
    """Yield offsets behind the end of a queue, with which the next messages would be skipped silently."""
    for change in table.clamp(lambda topic, queue_id: ends.get((topic, queue_id), 0)):  # changes the table in memory only
        where = f"{change.key} queue {change.queue_id}"
        kind, bound = ("offset_ahead", "at most") if change.before > change.after else ("offset_negative", "at least")
        yield Finding(table.path, 0, kind, f"{where}: {bound} {change.after}", str(change.before))


def _unknown_topics(disk: Disk, table: Topics, filled: Iterable[QueueKey]) -> Iterator[Finding]:
    """Yield topics with records that a broker would not know."""
    if is_broker_folder(disk, table):
        for topic, queues in missing_topics(table, filled).items():
            yield Finding(table.path, 0, "unknown_topic", f"an entry for {topic} with {queues} queues", "none")


def is_broker_folder(disk: Disk, table: Topics) -> bool:
    """Return whether a broker, whose table names every topic, uses the folder: it has the broker's own topics.

    If nothing of the table is left, other files of `config/` decide. A program without a broker may have messages and no table.
    """
    if table.rocksdb_error is not None:
        return False
    if not table.is_empty:
        return OWN_TOPIC in table
    folder = os.path.dirname(table.path)
    return any(disk.stat(os.path.join(folder, kind.file_name)) is not None for kind in TABLES)


def missing_topics(table: Container[str], queue_keys: Iterable[QueueKey]) -> dict[str, int]:
    """Return the topics of these queues that the table lacks, with the number of queues that each needs."""
    found: dict[str, int] = {}
    for topic, queue_id in queue_keys:
        if topic not in table and needs_entry(topic):
            found[topic] = max(found.get(topic, 0), queue_id + 1)
    return dict(sorted(found.items()))
