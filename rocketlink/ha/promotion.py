"""Turn the folder of a replica into a store of its own, which a real broker or `MessageStore.open` continues.

A replica's log is complete, but its tables are up to ten seconds older: topics may be missing, and its file of delayed messages
does not count what the master delivered last.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from messagestore import MessageStore, Role, StoreConfig
from messagestore.broker.config.topics import needs_entry


class Promotion(NamedTuple):
    """The end of the log, the topics to add to `config/topics.json` with their numbers of queues, and the broker's settings."""

    log_end: int
    missing_topics: dict[str, int]
    broker_settings: dict[str, str]


def plan_promotion(path: str | os.PathLike[str], config: StoreConfig | None = None) -> Promotion:
    """Return what `promote` would do, from a store that is opened for reading."""
    with MessageStore.open(path, "r", config) as store:
        return _promotion(store)


def promote(path: str | os.PathLike[str], config: StoreConfig | None = None) -> Promotion:
    """Recover the folder as a slave's, then as a master's: complete queues, topics and the progress of delayed messages.

    No message is delivered by it.  Raises `StoreLocked` while the replica runs, and what `MessageStore.open` raises.
    """
    given = config or StoreConfig()
    with MessageStore.open(path, "r+", given.but(broker_role=Role.SLAVE)) as store:
        # A slave dispatches records of topics that its table lacks; a master takes such a topic for a deleted one.
        found, table = _promotion(store), store.engine.topics
        for topic, queues in found.missing_topics.items():
            table.create(topic, queues)
        table.persist()
        store.close_cleanly()
    with MessageStore.open(path, "r+", given.but(deliver_delayed=False)) as store:
        store.close_cleanly()
    return found


def _promotion(store: MessageStore) -> Promotion:
    known = store.engine.topics
    missing = {topic: max(store.queue_ids(topic)) + 1 for topic in store.topics() if topic not in known and needs_entry(topic)}
    return Promotion(max(0, store.log_end), missing, _settings(store))


def _settings(store: MessageStore) -> dict[str, str]:
    """Return the lines of a `broker.conf` that depend on the folder."""
    config, root = store.config, os.path.abspath(store.path)
    found = {
        "brokerRole": "ASYNC_MASTER", "brokerId": 0,
        "storePathRootDir": root, "storePathCommitLog": config.store_path_commit_log or os.path.join(root, "commitlog"),
        "mappedFileSizeCommitLog": store.engine.log.file_size_bytes,
        "mappedFileSizeConsumeQueue": config.mapped_file_size_consume_queue,
        "maxHashSlotNum": config.max_hash_slot_num, "maxIndexNum": config.max_index_num,
    }  # fmt: skip
    return {name: str(value) for name, value in found.items()}
