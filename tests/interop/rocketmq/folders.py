"""Stores of ours that the real RocketMQ opens, and their sizes in both libraries' names."""

from __future__ import annotations

import os
from typing import Any

from commitlog import Message
from messagestore import MessageStore, StoreConfig
from tests.stores import SMALL_SIZES, small_config

LOG_SIZE, QUEUE_SIZE = SMALL_SIZES["mapped_file_size_commit_log"], SMALL_SIZES["mapped_file_size_consume_queue"]
SLOTS, ITEMS = 500, 2000
JAVA_NAMES = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
SIZES = dict(zip(JAVA_NAMES, (LOG_SIZE, QUEUE_SIZE, SLOTS, ITEMS), strict=True))
START_MS = 1_700_000_000_000
LONG_TOPIC = "%RETRY%" + "group" * 26  # more than 127 bytes, so the record has version 2


def ours(**changes: Any) -> StoreConfig:
    return small_config(**{"max_hash_slot_num": SLOTS, "max_index_num": ITEMS} | changes)


def mixed(number: int) -> Message:
    """Return message `number`; the numbers vary everything that a record can have."""
    hosts = ("127.0.0.1:10911", "[2001:db8::7]:40000", "[fe80::1]:1")
    topic = (f"topic-{number % 5}", LONG_TOPIC, "Тема-é")[0 if number % 3 else number // 3 % 3]
    return Message(
        topic, b"%06d" % number + os.urandom(number * 13 % 700), queue_id=number % 3, flag=number % 7,
        tags=(None, "A", "тег")[number % 3], keys=[f"k{number}", f"every-{number % 50}"] if number % 4 else None,
        properties={"n": str(number)} if number % 2 else None,
        born_host=hosts[number % 3], store_host=hosts[number // 3 % 3],
        reconsume_times=number % 5,
    )  # fmt: skip


def write_mixed(store: MessageStore, numbers: range) -> None:
    """Write with `put`, `put_many` and `put_batch`."""
    for start in range(numbers.start, numbers.stop, 50):
        messages = [mixed(number) for number in range(start, min(start + 50, numbers.stop))]
        for message in messages[:20]:
            store.put(message)
        store.put_many(messages[20:40])
        batch = [
            Message("batches", message.body[:100], tags="b", keys=[f"b{start}-{n}"]) for n, message in enumerate(messages[40:])
        ]
        if batch:
            store.put_batch("batches", start // 50 % 2, batch)
        write_hidden(store, start)


def write_hidden(store: MessageStore, number: int) -> None:
    """Write what no consumer of the topic sees yet: delayed messages and transactions of every outcome."""
    store.put(Message("later", b"later", queue_id=0, keys=[f"later-{number}"], tags="l", properties={"DELAY": "18"}))
    for outcome in ("commit", "rollback", "undecided"):
        half = Message("decided", b"%s %d" % (outcome.encode(), number), queue_id=1, keys=[f"{outcome}-{number}"], tags="d")
        transaction = store.begin_transaction(half)
        if outcome != "undecided":
            transaction.commit() if outcome == "commit" else transaction.rollback()


class Ticking:
    """A clock that advances by 40 ms at each call."""

    def __init__(self, start_ms: int) -> None:
        self.now = start_ms

    def __call__(self) -> int:
        self.now += 40
        return self.now
