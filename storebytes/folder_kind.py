"""The kinds of folders that both engines and the tool distinguish."""

from __future__ import annotations

from enum import Enum


class FolderKind(Enum):
    """The kinds that are distinguished; not all of them can be opened."""

    ROCKETMQ = "rocketmq"
    LOG = "rocketmq-commitlog"  # the log's own folder, without the store around it
    RABBITMQ = "rabbitmq"  # a virtual host's folder, or a node's data folder
    ROCKSDB = "rocketmq-rocksdb"
    DLEDGER = "rocketmq-dledger"
