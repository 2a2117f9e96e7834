"""How far topics and consumer groups are: what an operator's tools ask for."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from consumequeue import Boundary
from consumequeue.layout import UNIT
from messagestore import MessageStore

from ..ha.master import SlaveStatus
from ..remoting.codes import SUCCESS, SYSTEM_ERROR, TOPIC_NOT_EXIST
from ..remoting.frames import VERSION, Command, Pairs, json_body, keyed_body
from .clients import Clients
from .fields import number
from .tables import Identity

UNITS_MAX = 1024
GAP_MAX = 256 << 20  # bytes that a replica in sync may be behind, as in a broker
VERSION_NAME = "V5_3_3"  # of the protocol, whose number is VERSION
PUT_COUNTS = ("TOPIC_PUT_NUMS", "TOPIC_PUT_NUMS_FROM_SLAVE")
SPANS_S = {"statsMinute": 60, "statsHour": 3600, "statsDay": 86_400}
RATE_SPANS_S = (10, 60, 600)


class BrokerStatistics:
    """Answers from the queues and the table of offsets."""

    def __init__(self, store: MessageStore, identity: Identity, clients: Clients) -> None:
        """Create it for a store that is open for writing."""
        self._store = store
        self._engine = store.engine
        self._identity = identity
        self._clients = clients

    def topic(self, request: Command) -> Command:
        """Answer with the offsets of a topic's queues."""
        name = request.fields.get("topic", "")
        known = self._engine.topics.get(name)
        if known is None:
            return request.answer(TOPIC_NOT_EXIST, remark=f"topic {name} does not exist")
        count = max(known.read_queues, known.write_queues)
        queues = [(self._queue(name, one), self._bounds(name, one)) for one in range(count)]
        body = {"offsetTable": Pairs(queues), "topicPutTps": self._rate([name], SPANS_S["statsMinute"])}
        return request.answer(SUCCESS, body=keyed_body(body))

    def _queue(self, topic: str, queue_id: int) -> dict[str, Any]:
        return {"brokerName": self._identity.name, "queueId": queue_id, "topic": topic}

    def _bounds(self, topic: str, queue_id: int) -> dict[str, int]:
        low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        return {"lastUpdateTimestamp": self._time(topic, queue_id, high - 1), "maxOffset": high, "minOffset": low}

    def _time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of a message; 0 if it is not there."""
        return max(0, self._store.store_time(topic, queue_id, offset)) if offset >= 0 else 0

    def replication(self, request: Command, slaves: list[SlaveStatus]) -> Command:
        """Answer with how far replicas have followed; what is sent to them in a second is not counted."""
        end = self._store.log_end
        found = [
            {
                "addr": slave.host, "slaveAckOffset": slave.reported, "diff": end - slave.reported,
                "inSync": end - slave.reported <= GAP_MAX, "transferredByteInSecond": 0, "transferFromWhere": slave.sent,
            }
            for slave in slaves
        ]  # fmt: skip
        body = {"master": True, "masterCommitLogMaxOffset": end, "haConnectionInfo": found}
        body["inSyncSlaveNums"] = sum(bool(one["inSync"]) for one in found)
        return request.answer(SUCCESS, body=json_body(body))

    def group(self, request: Command) -> Command:
        """Answer with the offsets of a group, in one topic or in all that it has read."""
        fields = request.fields
        group = fields.get("consumerGroup", "")
        named = [one for one in fields.get("topicList", "").split(";") if one] or [fields.get("topic", "")]
        topics = named if named != [""] else self._topics_of(group)
        return request.answer(SUCCESS, body=keyed_body(self._group(group, topics)))

    def _topics_of(self, group: str) -> list[str]:
        known = self._clients.groups.get(group)
        subscribed = known.subscriptions if known is not None else ()
        return sorted({*self._engine.consumer_offsets().topics(group), *subscribed})

    def _group(self, group: str, topics: Iterable[str]) -> dict[str, Any]:
        """Return the offsets of a group in RocketMQ's form; what it reads in a second is not counted."""
        found = []
        for topic in topics:
            known = self._engine.topics.get(topic)
            committed = self._store.committed_offsets(topic, group)
            for queue_id in range(known.read_queues if known is not None else 0):
                offset = committed.get(queue_id, 0)
                numbers = {
                    "brokerOffset": self._store.max_offset(topic, queue_id), "consumerOffset": offset, "pullOffset": offset,
                    "lastTimestamp": self._time(topic, queue_id, offset - 1),
                }  # fmt: skip
                found.append((self._queue(topic, queue_id), numbers))
        return {"consumeTps": 0.0, "offsetTable": Pairs(found)}

    def groups(self, request: Command) -> Command:
        """Answer with the offsets of all groups, and how many messages they have to read."""
        is_ordered_only = request.fields.get("isOrder") == "true"
        found, behind = [], 0
        offsets = self._engine.consumer_offsets()
        for group in self._engine.retries.groups.names():
            each = []
            for topic in offsets.topics(group):
                known = self._engine.topics.get(topic)
                if known is not None and (known.is_ordered or not is_ordered_only):
                    each.append(self._group(group, [topic]))
            numbers = [one for stats in each for _, one in stats["offsetTable"].pairs]
            behind += sum(one["brokerOffset"] - one["consumerOffset"] for one in numbers)
            found.append({group: each})
        body = {
            "brokerAddr": self._identity.address, "consumeStatsList": found, "totalDiff": behind, "totalInflightDiff": 0,
        }  # fmt: skip
        return request.answer(SUCCESS, body=keyed_body(body))

    def times(self, request: Command) -> Command:
        """Answer with the store times of a topic's first and last messages, and of the last one that a group has read."""
        name, group = request.fields.get("topic", ""), request.fields.get("group", "")
        known = self._engine.topics.get(name)
        if known is None:
            return request.answer(TOPIC_NOT_EXIST, remark=f"topic {name} does not exist")
        committed, now_ms, found = self._store.committed_offsets(name, group), self._engine.now_ms(), []
        for queue_id in range(known.write_queues):
            low, high = self._store.min_offset(name, queue_id), self._store.max_offset(name, queue_id)
            offset, first_ms = committed.get(queue_id, 0), self._time(name, queue_id, low)
            span = {
                "messageQueue": self._queue(name, queue_id), "minTimeStamp": first_ms,
                "maxTimeStamp": self._time(name, queue_id, high - 1),
                "consumeTimeStamp": self._time(name, queue_id, offset - 1) if offset else first_ms,
                "delayTime": max(0, now_ms - self._time(name, queue_id, offset)) if offset < high else 0,
            }  # fmt: skip
            found.append(span)
        return request.answer(SUCCESS, body=json_body({"consumeTimeSpanSet": found}))

    def groups_of_topic(self, request: Command) -> Command:
        """Answer with the groups that have read a topic, or subscribe to it."""
        topic = request.fields.get("topic", "")
        online = {name for name, group in self._clients.groups.items() if topic in group.expressions}
        found = sorted({*self._engine.consumer_offsets().groups(topic), *online})
        return request.answer(SUCCESS, body=json_body({"groupList": found}))

    def topics_of_group(self, request: Command) -> Command:
        """Answer with the topics that a group has read."""
        found = self._engine.consumer_offsets().topics(request.fields.get("group", ""))
        return request.answer(SUCCESS, body=json_body({"topicList": found, "brokerAddr": self._identity.address}))

    def units(self, request: Command) -> Command:
        """Answer with the units of a queue from an offset on."""
        self._engine.settle()
        fields = request.fields
        topic, queue_id, offset = fields.get("topic", ""), number(fields, "queueId"), number(fields, "index")
        queue = self._engine.lookup.get(topic, queue_id)
        if queue is None:
            return request.answer(SYSTEM_ERROR, remark=f"topic {topic} has no queue {queue_id} with messages")
        count = min(max(0, number(fields, "count")), UNITS_MAX, max(0, queue.max_offset - offset))
        packed = queue.packed_units(queue.unit_range(offset, offset + count)[0], count) if offset >= queue.min_offset else None
        names = ("physicOffset", "physicSize", "tagsCode")
        units = [dict(zip(names, unit, strict=True)) for unit in UNIT.iter_unpack(packed or b"")]
        body: dict[str, Any] = {"maxQueueIndex": queue.max_offset, "minQueueIndex": queue.min_offset, "queueData": units}
        group = self._clients.groups.get(fields.get("consumerGroup", ""))
        if group is not None and topic in group.subscriptions:
            body["subscriptionData"] = group.subscriptions[topic]
        return request.answer(SUCCESS, body=json_body(body))

    def earliest_time(self, request: Command) -> Command:
        """Answer with the store time of the oldest message of a queue."""
        topic, queue_id = request.fields.get("topic", ""), number(request.fields, "queueId")
        found = self._store.store_time(topic, queue_id, self._store.min_offset(topic, queue_id))
        return request.answer(SUCCESS, {"timestamp": str(found)})

    # Rates

    def counts(self, request: Command) -> Command:
        """Answer with how many messages a topic got in the last minute, hour and day; other counts are not kept."""
        fields = request.fields
        name, topic = fields.get("statsName", ""), fields.get("statsKey", "")
        if name not in PUT_COUNTS or self._engine.topics.get(topic) is None:
            return request.answer(SYSTEM_ERROR, remark=f"{name} of {topic} is not counted")
        body = {}
        for span, seconds in SPANS_S.items():
            count = self._put_since([topic], self._engine.now_ms() - seconds * 1000)
            body[span] = {"sum": count, "tps": round(count / seconds, 2), "avgpt": 0.0}
        return request.answer(SUCCESS, body=json_body(body))

    def _rate(self, topics: Iterable[str], seconds: int) -> float:
        return round(self._put_since(topics, self._engine.now_ms() - seconds * 1000) / seconds, 2)

    def _put_since(self, topics: Iterable[str], time_ms: int) -> int:
        """Return how many messages that are still there were stored at a time or later."""
        return sum(
            max(0, self._store.max_offset(topic, one) - self._before(topic, one, time_ms))
            for topic in topics
            for one in self._store.queue_ids(topic)
        )

    def _before(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Return the offset of the first message that was stored at a time or later; the end of the queue without one."""
        high = self._store.max_offset(topic, queue_id)
        if self._time(topic, queue_id, high - 1) < time_ms:
            return high
        return self._store.offset_by_time(topic, queue_id, time_ms, Boundary.LOWER)

    def state(self, request: Command) -> Command:
        """Answer with the state of the broker; what this one has not, such as queues of thread pools, is 0."""
        store, engine = self._store, self._engine
        low, high = engine.low_offset, max(0, store.log_end)
        topics, space = store.topics(), engine.disk.space(engine.paths.root)
        total = sum(store.max_offset(topic, one) for topic in topics for one in store.queue_ids(topic))
        today = datetime.fromtimestamp(engine.now_ms() / 1000).replace(hour=0, minute=0, second=0, microsecond=0)
        since = {day: self._put_since(topics, int(day.timestamp() * 1000)) for day in (today, today - timedelta(days=1))}
        used = 1 - space.free_bytes / space.total_bytes if space.total_bytes else 0.0
        table: dict[str, Any] = {
            "commitLogMinOffset": low, "commitLogMaxOffset": high, "brokerActive": "true",
            "brokerVersion": VERSION, "brokerVersionDesc": VERSION_NAME,
            "putTps": " ".join(str(self._rate(topics, seconds)) for seconds in RATE_SPANS_S),
            "getTransferredTps": "0.0 0.0 0.0",
            "msgPutTotalTodayNow": total, "msgPutTotalTodayMorning": total - since[today],
            "msgPutTotalYesterdayMorning": total - since[today - timedelta(days=1)],
            "dispatchBehindBytes": max(0, high - engine.dispatcher.position),
            "earliestMessageTimeStamp": store.earliest_time(),
            "commitLogDiskRatio": round(used, 4), "consumeQueueDiskRatio": round(used, 4),
        }  # fmt: skip
        table |= dict.fromkeys(("msgGetTotalTodayNow", "msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning"), 0)
        table |= dict.fromkeys(("pageCacheLockTimeMills", *(f"{one}ThreadPoolQueueSize" for one in POOLS)), 0)
        table |= dict.fromkeys((f"{one}ThreadPoolQueueHeadWaitTimeMills" for one in POOLS), 0)
        return request.answer(SUCCESS, body=json_body({"table": {name: str(value) for name, value in table.items()}}))


POOLS = ("send", "pull", "ack")
