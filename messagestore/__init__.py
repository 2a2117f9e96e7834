"""The RocketMQ-style engine: the log, its queues and its index as one store.

Files below the store's folder: `commitlog/`, `consumequeue/`, `batchconsumequeue/` and `consumequeue_ext/` where they are used,
`index/`, timer files, `config/*.json`, `checkpoint`, `lock`, `abort` while a writer runs (and after it crashed), and
`brokerstore/` for what RocketMQ does not know (cut bytes, the record of a clean stop, a pool's ring); losing that folder loses
no message, except the last milliseconds of a pooled store that was killed.

    with MessageStore.open("orders-store") as store:
        store.put(Message("orders", b"...", tags="paid", keys=["order-17"]))
        page = store.get("orders", queue_id=0, offset=0)

Guarantees
- *written*: `put` returned under asynchronous flush.  Every process sees the record; it survives this process.
- *committed*: with a transient store pool, written to the log files.  Only then is a record visible to readers.  What a killed
  process had not committed is in `brokerstore/ring`, and the next writer of this library restores it to the log; a broker
  that opens the folder earlier does not know of it.  Without a pool, everything written is committed.
- *flushed*: `put` returned under synchronous flush, or `flush()` did.  The record survives the machine.
- *dispatched*: queue units and index items exist.  `get`, `read` and `query` wait for that, up to the end of the log at the
  time of the call.  Under synchronous flush only flushed records are dispatched, so no read returns what a crash could remove.
- *checkpoint*: covers only what is on the disk.  Order: record bytes, log sync, acknowledgement, queue sync, index sync,
  checkpoint, removal of `abort`.

A store opened with "r" beside a writer, this library's or a broker, sees what was added since (`read/reader_view.py`);
`follow` iterates over the log as it grows (`read/follower.py`), `consumer` over a topic for a group (`read/consumer.py`).
`write/retention.py` deletes files: old ones, or those whose messages are all acknowledged (`broker/services/pending.py`).

`broker/config/` reads and writes what a broker keeps as JSON; `broker/services/` does what a broker does on top of its store
(transactions, delays, retries, replication, copies); `timers/` has RocketMQ 5's timers; `rocksdb/` reads a broker's queues
and configuration in RocksDB; `repair/` checks and repairs a folder that no process has open.

One process writes (record lock on byte 0 of `lock`, as RocketMQ takes it); any number of processes read, and others put through
the writing one (`shared/`).  Three threads:
dispatcher, flusher and housekeeper, and with a pool a committer; all are daemons that `Engine` starts and joins.  In a forked
child the store is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storebytes.lazy_names import lazy_names  # first of all: `storebytes` selects the build of the kernels

if TYPE_CHECKING:
    from .config import FlushMode, RetentionPolicy, Role, StoreConfig
    from .metrics import Metrics
    from .read.consumer import Consumer
    from .read.follower import Follower
    from .read.queue_reader import GetStatus, Page
    from .read.topics_consumer import TopicsConsumer
    from .shared.consumer import SharedConsumer
    from .shared.store import SharedStore
    from .store import MessageStore
    from .write.put_future import PutFuture
else:
    __getattr__, __dir__ = lazy_names(
        globals(),
        {
            ".config": ["FlushMode", "RetentionPolicy", "Role", "StoreConfig"],
            ".metrics": ["Metrics"],
            ".read.consumer": ["Consumer"],
            ".read.follower": ["Follower"],
            ".read.queue_reader": ["GetStatus", "Page"],
            ".read.topics_consumer": ["TopicsConsumer"],
            ".shared.consumer": ["SharedConsumer"],
            ".shared.store": ["SharedStore"],
            ".store": ["MessageStore"],
            ".write.put_future": ["PutFuture"],
        },
    )

__all__ = [
    "Consumer",
    "FlushMode",
    "Follower",
    "GetStatus",
    "MessageStore",
    "Metrics",
    "Page",
    "PutFuture",
    "RetentionPolicy",
    "Role",
    "SharedConsumer",
    "SharedStore",
    "StoreConfig",
    "TopicsConsumer",
]
