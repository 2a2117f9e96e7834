"""Find what consumers in POP mode have taken and not acknowledged yet (`docs/formats/rocketmq-pop.md`).

A broker keeps the state of POP in messages: a checkpoint names the messages that a group took, acknowledgements name those that
it processed. Both are timers until the checkpoint expires. They reach a revive topic then, whose reader puts every message
without an acknowledgement into the group's retry topic. Newer brokers may keep a row for each taken message in RocksDB instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from commitlog import StoredMessage
from commitlog.walk import LogFiles
from consumequeue import ConsumeQueues
from storageio import Disk

from ...rocksdb.pop_rows import stored_pop_rows
from ...timers.layout import REAL_TOPIC, TIMER_TOPIC
from ...timers.pending import pending_messages
from ...timers.records import TimerRecords
from ..config.consumer_offsets import ConsumerOffsets, offsets_table
from ..config.request_modes import RequestModes

REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
CHECKPOINT, ACK, ACKS = "ck", "ack", "bAck"  # tags
TAKEN_MAX = 1024  # messages of a checkpoint; a broker has 32
_INT64 = range(-(1 << 63), 1 << 63)
_Taken = dict[tuple[str, str], tuple[int, int | None]]  # topic and group -> messages, and when the first is revived


class PopLag(NamedTuple):
    """What a group in POP mode has before it in a topic.

    `ready` messages were not taken, `unacknowledged` ones are taken: without an acknowledgement the first of them is put into
    the retry topic at `next_revive_ms`, which is None without any.
    """

    topic: str
    group: str
    ready: int
    unacknowledged: int
    next_revive_ms: int | None


class PopState(NamedTuple):
    """The lags by topic and group, and the number of checkpoints and acknowledgements that could not be read."""

    lags: list[PopLag]
    unreadable: int


class _Key(NamedTuple):
    """What a checkpoint and its acknowledgements have in common."""

    topic: str
    group: str
    queue_id: int
    start: int
    taken_ms: int
    broker: str


class _Checkpoint(NamedTuple):
    offsets: frozenset[int]
    revive_ms: int


def read_pop_state(
    disk: Disk, root: str, files: LogFiles, queues: ConsumeQueues, *, with_rocksdb: bool = True
) -> PopState:  # fmt: skip
    """Return the lag of every group in POP mode; empty for a store whose consumers never used it.

    Without `with_rocksdb` only messages count as unacknowledged. Raises `MissingExtra` without the package that reads RocksDB.
    """
    config = os.path.join(root, "config")
    modes, rows = RequestModes(disk, config), stored_pop_rows(disk, root) if with_rocksdb else []
    if not rows and not modes.pop_groups() and not any(topic.startswith(REVIVE_PREFIX) for topic in queues.topics()):
        return PopState([], 0)  # no other file is read
    offsets = offsets_table(disk, config)
    state = _State()
    for message in _pending(disk, root, files, queues, offsets):
        state.take(message)
    taken = state.unacknowledged()
    for row in rows:
        _add(taken, row.topic, row.group, 1, row.revive_ms)
    lags = []
    for topic, group in sorted({*modes.pop_groups(), *taken}):
        ready = sum(
            _ready(queues, topic, queue_id, offsets.get(topic, group, queue_id)) for queue_id in queues.queue_ids(topic)
        )
        number, next_ms = taken.get((topic, group), (0, None))
        lags.append(PopLag(topic, group, ready, number, next_ms))
    return PopState(lags, state.unreadable)


def _ready(queues: ConsumeQueues, topic: str, queue_id: int, committed: int | None) -> int:
    queue = queues.get(topic, queue_id)
    return max(0, queue.max_offset - max(committed or 0, queue.min_offset)) if queue is not None else 0


def _pending(
    disk: Disk, root: str, files: LogFiles, queues: ConsumeQueues, offsets: ConsumerOffsets
) -> Iterator[StoredMessage]:  # fmt: skip
    """Yield checkpoints and acknowledgements that the revive service has not finished, some of them twice."""
    for topic in queues.topics():
        if topic.startswith(REVIVE_PREFIX):
            yield from _in_revive_topic(disk, files, queues, topic, offsets)
    for message in pending_messages(disk, root, files, queues.get(TIMER_TOPIC, 0)):
        if message.properties.get(REAL_TOPIC, "").startswith(REVIVE_PREFIX):
            yield message


def _in_revive_topic(
    disk: Disk, files: LogFiles, queues: ConsumeQueues, topic: str, offsets: ConsumerOffsets
) -> Iterator[StoredMessage]:  # fmt: skip
    """Yield the messages after the last finished checkpoint, whose own offset is the committed one."""
    records = TimerRecords(disk, files)
    for queue_id in queues.queue_ids(topic):
        queue = queues.get(topic, queue_id)
        committed = offsets.get(topic, REVIVE_GROUP, queue_id)
        for _, unit in queue.units(0 if committed is None else committed + 1) if queue is not None else ():
            message = records.record_at(unit.physical_offset, unit.size_bytes)
            if isinstance(message, StoredMessage) and message.topic == topic:
                yield message


class _State:
    """Checkpoints and acknowledgements, in any order."""

    def __init__(self) -> None:
        self.unreadable = 0
        self._checkpoints: dict[_Key, _Checkpoint] = {}
        self._acks: dict[_Key, set[int]] = {}

    def take(self, message: StoredMessage) -> None:
        """Add one message, or count it as unreadable."""
        try:
            self._take(message.properties.get("TAGS", ""), json.loads(message.body))
        except (ValueError, TypeError, KeyError, RecursionError):
            self.unreadable += 1

    def _take(self, tag: str, body: dict[str, Any]) -> None:
        key = _Key(
            str(body["t"]), str(body["c"]), _integer(body["q"]), _integer(body["so"]), _integer(body["pt"]), str(body["bn"])
        )
        if tag == CHECKPOINT:
            differences, bits = body["d"], _integer(body["bm"])
            if len(differences) > TAKEN_MAX:
                raise ValueError
            open_ones = (_integer(one) for number, one in enumerate(differences) if not bits >> number & 1)
            self._checkpoints[key] = _Checkpoint(frozenset(key.start + one for one in open_ones), _integer(body["reviveTime"]))
        elif tag in (ACK, ACKS):
            acks = body["aol"] if tag == ACKS else [body["ao"]]
            self._acks.setdefault(key, set()).update(_integer(one) for one in acks)
        else:
            raise ValueError

    def unacknowledged(self) -> _Taken:
        """Return number and next revive time of the messages without acknowledgement, by topic and group."""
        found: _Taken = {}
        for key, checkpoint in self._checkpoints.items():
            _add(found, key.topic, key.group, len(checkpoint.offsets - self._acks.get(key, set())), checkpoint.revive_ms)
        return found


def _add(taken: _Taken, topic: str, group: str, number: int, revive_ms: int) -> None:
    """Count messages that are revived at a time; a group without any has no such time."""
    before, next_ms = taken.get((topic, group), (0, None))
    if number:
        next_ms = revive_ms if next_ms is None else min(next_ms, revive_ms)
    taken[topic, group] = before + number, next_ms


def _integer(value: Any) -> int:
    """Return a number of the JSON body; raise `ValueError` for anything else."""
    if type(value) is not int or value not in _INT64:
        raise ValueError
    return value
