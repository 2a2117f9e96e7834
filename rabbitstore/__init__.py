"""The message store of RabbitMQ 3.10, byte for byte, with no broker running.

A virtual host's folder (docs/formats/rabbitmq-folder.md):

    .vhost .config                              its name; {segment_entry_count, 2048}.
    msg_store_persistent/0.rdq 1.rdq ..         messages of 4096 bytes and more, each once however many queues have it
    msg_store_transient/0.rdq ..                the same for what does not survive a restart
    queues/<Q>/.queue_name 0.idx .. journal.jif one folder a queue: its index, with small messages inside
    queues/<Q>/0.qi 0.qs ..                     version 2 of the same, read only here
    recovery.dets, */clean.dot, */*.ets         written at a clean stop by RabbitMQ and by us, deleted at the next start
    brokerstore/                                ours; RabbitMQ ignores it

Opened with mode "r" (`RabbitStore.open(path, "r")`) nothing is changed: `queues`, `messages`; nor by `verify`,
`statistics` and `plan_recovery`.  `apply_recovery` does what a plan says.  Opened for writing, in this order: lock, read
the clean-stop files, delete them, replay the journals, go on where the files said; if they do not fit or there are none,
add up the references and scan the message files first (docs/formats/rabbitmq-clean-stop.md).

What the words mean:

- *published*: in memory, and for a persistent message on its way to the disk;
- *confirmed*: the message's record and its index entry are on the disk (`RabbitStore.sync`: at once
  when idle, else every 25 ms; or a publisher's `wait`).  It survives a crash;
- *delivered*: given out with a tag, unacknowledged; back in the queue, flagged redelivered, after a crash or a requeue;
- *acknowledged*: gone.  An acknowledgement of the last 25 ms may be lost in a crash: the message comes again.

After a clean stop of ours a message is redelivered if it had been delivered before; after any other end all are.
A message is never lost by a crash at any moment of a compaction (`collector`) or of a journal flush (`queue_index`).

RabbitMQ opens what we left by a clean stop without a rebuild, with the same flags; what a kill left, as after a crash of its
own: it rebuilds its counts, and flags every message redelivered.  The queues must be declared in its own database, or it
deletes their folders.
"""

import storebytes  # noqa: F401  (first of all: it decides which build of the kernels is found)

from .engine.live_queue import Delivery
from .errors import PartlyPublished, StoreBroken, UnknownDelivery, UnknownQueue
from .format.problems import Problem
from .read.statistics import Statistics, statistics
from .read.stored_message import StoredMessage
from .read.vhost_folder import QueueInfo, VhostFolder, find_vhosts, is_vhost_folder
from .repair.check import Checked, verify
from .repair.recover import Plan, apply_recovery, plan_recovery
from .settings import IndexSettings, RabbitSettings, StoreSettings
from .store import RabbitStore

__all__ = [
    "Checked",
    "Delivery",
    "IndexSettings",
    "PartlyPublished",
    "Plan",
    "Problem",
    "QueueInfo",
    "RabbitSettings",
    "RabbitStore",
    "Statistics",
    "StoreBroken",
    "StoreSettings",
    "StoredMessage",
    "UnknownDelivery",
    "UnknownQueue",
    "VhostFolder",
    "apply_recovery",
    "find_vhosts",
    "is_vhost_folder",
    "plan_recovery",
    "statistics",
    "verify",
]
