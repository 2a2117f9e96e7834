"""Folders of a broker that keeps its queues or its log otherwise: refused, since nothing here could keep them in step.

Beside RocksDB queues (`storeType=defaultRocksDB`, `rocksdbCQDoubleWriteEnable`) queue files are missing or a second copy; a
DLedger log (`enableDLegerCommitLog`) stands in the place of the commit log (format page, section 12).
"""

from __future__ import annotations

import os

from storageio import Disk, Kind, UnknownStore

ROCKSDB_TEXT = "its queues lie in RocksDB"
DLEDGER_TEXT = "its log is a DLedger (Raft) log"
_ROCKSDB_FOLDERS = ("consumequeue_rocksdb", "consumequeue")  # the second where the broker keeps both kinds in one place
_DLEDGER_PREFIX = "dledger-"
_RABBITMQ_FOLDERS = ("msg_store_persistent", "msg_stores")


def has_rocksdb_queues(disk: Disk, root: str) -> bool:
    """By the file that every RocksDB folder has; a folder of that name is a topic's."""
    found = [disk.stat(os.path.join(root, name, "CURRENT")) for name in _ROCKSDB_FOLDERS]
    return any(entry is not None and entry.kind is not Kind.FOLDER for entry in found)


def has_dledger_log(disk: Disk, root: str) -> bool:
    """By the folder that is named after the peer."""
    if disk.stat(root) is None:
        return False
    names = [entry.name for entry in disk.list(root) if entry.name.startswith(_DLEDGER_PREFIX)]
    found = [disk.stat(os.path.join(root, name, ".")) for name in names]
    return any(entry is not None and entry.kind is Kind.FOLDER for entry in found)


def has_rabbitmq_messages(disk: Disk, root: str) -> bool:
    """By the folder of messages that every virtual host has, and a node's folder of virtual hosts."""
    return any(disk.stat(os.path.join(root, name)) is not None for name in _RABBITMQ_FOLDERS)


def refuse_foreign(disk: Disk, root: str) -> None:
    """Raise `UnknownStore`, with nothing changed, for such a folder, and for RabbitMQ's."""
    if has_rabbitmq_messages(disk, root):
        raise UnknownStore(f"{root}: RabbitMQ's messages lie here; a RocketMQ store would hide them")
    for is_so, what in ((has_rocksdb_queues, ROCKSDB_TEXT), (has_dledger_log, DLEDGER_TEXT)):
        if is_so(disk, root):
            raise UnknownStore(f"{root}: a RocketMQ store, but {what}, which is not read here")
