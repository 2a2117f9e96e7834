"""The same questions to our store and to RocketMQ's, with answers in the same form."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Collection
from pathlib import Path
from typing import Any

from commitlog import Message, StoredMessage
from commitlog.walk import LogFiles
from consumequeue import Boundary
from messagestore import MessageStore
from storageio import REAL_DISK

FIELDS = (
    "physical_offset", "size", "topic", "queue_id", "queue_offset", "flag", "sys_flag", "body_crc", "born_timestamp_ms",
    "store_timestamp_ms", "reconsume_times", "prepared_transaction_offset", "message_id",
)  # fmt: skip
KEYS_MAX = 150
ADDED_BY_A_CLIENT = ("MIN_OFFSET", "MAX_OFFSET")


def our_messages(folder: Path, topics: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Return every record of the log in order, or those of some topics."""
    walk = LogFiles(REAL_DISK, [str(folder / "commitlog")]).messages()
    found = (one for one in walk if isinstance(one, StoredMessage))
    return [_reported(one) for one in found if topics is None or one.topic in topics]


def _reported(message: StoredMessage) -> dict[str, Any]:
    reported = {name: getattr(message, name) for name in FIELDS}
    return reported | {
        "properties": message.all_properties,
        "body": base64.b64encode(message.body).decode(),
        "born_host": _host(message.born_host, ":"),
        "store_host": _host(message.store_host, ":"),
    }


def _host(text: str, separator: str) -> str:
    """Return an address in one common spelling."""
    address, port = text.rsplit(separator, 1)
    return f"{ipaddress.ip_address(address.strip('[]').split('%')[0])} {port}"


def from_java(reported: dict[str, Any]) -> dict[str, Any]:
    """Convert a driver's message to our names; drop what only a client adds."""
    properties = {name: value for name, value in reported["properties"].items() if name not in ADDED_BY_A_CLIENT}
    return reported | {"properties": properties} | {name: _host(reported[name], "|") for name in ("born_host", "store_host")}


def our_queues(store: MessageStore) -> list[dict[str, Any]]:
    """Return offsets, units, and the messages that a consumer of the whole queue receives, for each queue on the disk."""
    queues = store.engine.queues  # `store.topics()` names those that only topics.json has, too
    return [_our_queue(store, topic, queue_id) for topic in sorted(queues.topics()) for queue_id in sorted(queues.queue_ids(topic))]


def _our_queue(store: MessageStore, topic: str, queue_id: int) -> dict[str, Any]:
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    queue = store.engine.queues.get(topic, queue_id)
    assert queue is not None
    units = {position: list(unit) for position, unit in queue.units()}
    return {
        "topic": topic,
        "queue_id": queue_id,
        "min_offset": low,
        "max_offset": high,
        "units": [units[position] for position in range(low, high)],
        "consumed": [message.physical_offset for message in store.read(topic, queue_id)],
    }


def is_filler(found: object) -> bool:
    """Return whether a step of a walk is a filler record of a recovery."""
    return isinstance(found, StoredMessage) and found.is_filler


def questions(messages: list[dict[str, Any]], queues: list[dict[str, Any]]) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return times to query in each queue and keys to query: a sample, and some that match nothing."""
    by_offset = {message["physical_offset"]: message["store_timestamp_ms"] for message in messages}
    times = []
    for queue in queues:
        stamps = [by_offset[offset] for offset, _, _ in queue["units"] if offset in by_offset]
        requested = {stamp + step for stamp in stamps[:: max(1, len(stamps) // 8)] + stamps[-1:] for step in (-1, 0, 1)}
        times += [
            [queue["topic"], queue["queue_id"], stamp] for stamp in sorted({0, *requested, max(requested, default=0) + 10**6})
        ]
    pairs = sorted({(one["topic"], key) for one in messages for key in one["properties"].get("KEYS", "").split()})
    keys = [list(pair) for pair in pairs[:: len(pairs) // KEYS_MAX + 1]] + [["nowhere", "nothing"]]
    return times, keys


def assert_agree(folder: Path, ours: MessageStore, real: Any) -> None:
    """Assert that both stores, open on equal files, give the same messages, queues, times and key queries."""
    messages, queues = our_messages(folder), our_queues(ours)
    reported = real.invoke("messages")
    assert [from_java(message) for message in reported["messages"]] == messages
    fillers = {one.physical_offset for one in LogFiles(REAL_DISK, [str(folder / "commitlog")]).messages() if is_filler(one)}
    theirs = [queue for queue in real.invoke("queues") if queue["max_offset"]]
    for queue in theirs:  # the real store leaves it to its clients to drop them
        queue["consumed"] = [offset for offset in queue["consumed"] if offset not in fillers]
    assert theirs == [queue for queue in queues if queue["max_offset"]]
    times, keys = questions(messages, queues)
    answers = [
        [ours.offset_by_time(*one, boundary) for boundary in (Boundary.LOWER, Boundary.UPPER)]  # type: ignore[misc]
        for one in times
    ]
    assert list(zip(times, real.invoke("times", requested=times), strict=True)) == list(zip(times, answers, strict=True))
    hits = [[message.physical_offset for message in ours.query(*one, max_count=64)] for one in keys]
    assert list(zip(keys, real.invoke("queries", requested=keys), strict=True)) == list(zip(keys, hits, strict=True))


def for_java(message: Message, properties: bytes, clock_ms: int) -> dict[str, Any]:
    """Convert a message to the driver's form."""
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "body": base64.b64encode(message.body).decode(),
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_timestamp_ms": message.born_timestamp_ms,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "properties": properties.decode(),
        "clock": clock_ms,
    }
