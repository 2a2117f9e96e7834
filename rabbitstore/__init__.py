"""The message stores of RabbitMQ 3.8 to 4.3, byte for byte, without a broker.

A virtual host's folder (docs/formats/rabbitmq-folder.md):

    .vhost .config                              its name; {segment_entry_count, 2048}.
    msg_store_persistent/0.rdq 1.rdq ..         messages of 4096 bytes and more, stored once for all queues
    msg_store_transient/0.rdq ..                the same for messages that a restart drops
    queues/<Q>/.queue_name 0.idx .. journal.jif one folder per queue: its index, which embeds small messages
    queues/<Q>/0.qi 0.qs ..                     version 2 of the index; of 3.10 to 3.12 read only
    recovery.dets, */clean.dot, */*.ets         written at a clean stop, deleted at the next start
    brokerstore/                                brokerstore's own files, which RabbitMQ ignores

Packages, each of which imports only from those before it:

    format    bytes of the files        repair    `verify` and `recover`
    read      a folder, read only       engine    queues and message stores of an open folder; `store` is its interface
    stream    streams                   quorum    quorum queues; both are read, verified and recovered, and `node_folder`
                                                  has them for one virtual host
    khepri    Khepri's tree             `definitions` has the declarations of a node, from it or from Mnesia

Mode "r" (`RabbitStore.open(path, "r")`), `verify`, `statistics` and `plan_recovery` change nothing; `apply_recovery`
repairs.  Opening for writing takes the lock, reads and deletes the clean-stop files, replays the journals, and continues from
those files; if they do not fit the folder, it counts references and scans the message files.

States of a message:

- *published*: in memory, and if persistent on its way to disk;
- *confirmed*: record and index entry are on disk, after `RabbitStore.sync` (in the background immediately when idle, else
  every 25 ms) or a publisher's `wait`.  It survives a crash;
- *delivered*: unacknowledged, with a tag; after a crash or a requeue it is in the queue again, flagged redelivered;
- *acknowledged*: gone.  A crash may lose an acknowledgement of the last 25 ms; the message is then delivered again.

After a clean stop of brokerstore a message is redelivered if it was delivered before; after any other end all are.  A crash at
any moment of a compaction (`engine.collector`) or of a journal flush (`engine.queue_index_cy`) loses no message.

RabbitMQ starts on a cleanly stopped folder without a rebuild and with the same flags.  After a kill it rebuilds its counts and
flags every message redelivered.  Its own database must have the queues, or it deletes their folders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storebytes.lazy_names import lazy_names  # first of all: `storebytes` selects the build of the kernels

if TYPE_CHECKING:
    from storebytes.finding import Finding

    from .definitions import Definitions, read_definitions
    from .engine.live_queue import Delivery
    from .errors import PartlyPublished, StoreBroken, UnknownDelivery, UnknownQueue
    from .metrics import RabbitMetrics, RabbitQueueMetrics
    from .read.statistics import Statistics, statistics
    from .read.stored_message import RabbitMessage
    from .read.vhost_folder import QueueInfo, VhostFolder, find_vhosts, is_vhost_folder
    from .repair.check import Checked, verify
    from .repair.recover import RecoveryPlan, apply_recovery, plan_recovery
    from .settings import IndexSettings, RabbitSettings, StoreSettings
    from .store import RabbitStore
else:
    __getattr__, __dir__ = lazy_names(
        globals(),
        {
            ".definitions": ["Definitions", "read_definitions"],
            ".engine.live_queue": ["Delivery"],
            ".errors": ["PartlyPublished", "StoreBroken", "UnknownDelivery", "UnknownQueue"],
            "storebytes.finding": ["Finding"],
            ".metrics": ["RabbitMetrics", "RabbitQueueMetrics"],
            ".read.statistics": ["Statistics", "statistics"],
            ".read.stored_message": ["RabbitMessage"],
            ".read.vhost_folder": ["QueueInfo", "VhostFolder", "find_vhosts", "is_vhost_folder"],
            ".repair.check": ["Checked", "verify"],
            ".repair.recover": ["RecoveryPlan", "apply_recovery", "plan_recovery"],
            ".settings": ["IndexSettings", "RabbitSettings", "StoreSettings"],
            ".store": ["RabbitStore"],
        },
    )

__all__ = [
    "Checked",
    "Definitions",
    "Delivery",
    "Finding",
    "IndexSettings",
    "PartlyPublished",
    "QueueInfo",
    "RabbitMessage",
    "RabbitMetrics",
    "RabbitQueueMetrics",
    "RabbitSettings",
    "RabbitStore",
    "RecoveryPlan",
    "Statistics",
    "StoreBroken",
    "StoreSettings",
    "UnknownDelivery",
    "UnknownQueue",
    "VhostFolder",
    "apply_recovery",
    "find_vhosts",
    "is_vhost_folder",
    "plan_recovery",
    "read_definitions",
    "statistics",
    "verify",
]
