"""Refuse folders that are not fully understood, before anything is written to them.

`refuse_foreign` is for every open: it refuses queues in RocksDB, a DLedger log, and RabbitMQ's messages. `refuse_unsupported`
is for writers: it also refuses unsupported parts of a store (`store_parts`), records of an unknown version at the beginning of
a log file, unknown queue types in `topics.json`, and timer files of an unknown layout. Everything else is checked where it is
read: opening and recovery check each record that they scan.
"""

from __future__ import annotations

import os
import re

from commitlog import LogPaths, MappedFile
from commitlog.findings import UNKNOWN_VERSION, Location, unknown_version, unsupported_record
from commitlog.layout import MAGIC_AT, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from commitlog.offset_files import OffsetFile
from commitlog.unknown_version import is_unknown_version
from commitlog.walk import LogFiles
from storageio import Disk, Kind, Mode, UnknownStore, UnsupportedFormat

from .folder_contents import Use, has_dledger_log, has_rocksdb_queues, is_folder, store_parts
from .timers.timer_log import refuse_unknown_layout

ROCKSDB_TEXT = "RocksDB queues"
DLEDGER_TEXT = "a DLedger (Raft) log"
SUPPORTED_STORES = "a commit log and queues in files"
ROCKSDB_PARTS = ("consumequeue", "config/topics", "config/subscriptionGroups", "config/consumerOffsets", "config/rdb")
_RABBITMQ_FOLDERS = ("msg_store_persistent", "msg_stores")
_HEADS = {magic.to_bytes(4, "big", signed=True) for magic in (0, MAGIC_V1, MAGIC_V2, MAGIC_BLANK)}
_QUEUE_TYPE = re.compile(rb'"queue\.type"\s*:\s*"((?:[^"\\]|\\.)*)"')
_QUEUE_TYPES = ("BatchCQ", "SimpleCQ")
TOPICS_SIZE_MAX = 1 << 30


def has_rabbitmq_messages(disk: Disk, root: str) -> bool:
    """Return whether RabbitMQ's messages are here: a virtual host's message folder, or a node's folder of virtual hosts."""
    return any(disk.stat(os.path.join(root, name)) is not None for name in _RABBITMQ_FOLDERS)


def unsupported_store(root: str, what: str) -> UnsupportedFormat:
    """Return the error for a store that keeps its queues or its log in another format."""
    return UnsupportedFormat("store with", file=root, found=what, supported=SUPPORTED_STORES)


def refuse_foreign(disk: Disk, root: str, *, has_rocksdb: bool = False) -> None:
    """Raise an error for a folder of another format: `UnsupportedFormat`, or `UnknownStore` for RabbitMQ's. Changes nothing.

    `has_rocksdb` allows queues in RocksDB.
    """
    if has_rabbitmq_messages(disk, root):
        raise UnknownStore(f"{root}: RabbitMQ's messages lie here; a RocketMQ store would hide them")
    if has_rocksdb_queues(disk, root) and not has_rocksdb:
        raise unsupported_store(root, ROCKSDB_TEXT)
    if has_dledger_log(disk, root):
        raise unsupported_store(root, DLEDGER_TEXT)


def refuse_unsupported(
    disk: Disk, root: str, commit_log: str | None = None, *, looks_at_log: bool = True, has_rocksdb: bool = False
) -> None:  # fmt: skip
    """Raise `UnsupportedFormat` for a store that must not be written to. Changes nothing.

    `commit_log` names the folders of a log outside the store, separated by commas. Callers that scan the whole log can turn off
    `looks_at_log`. `has_rocksdb` allows the databases that a broker with queues in RocksDB has.
    """
    refuse_foreign(disk, root, has_rocksdb=has_rocksdb)
    for part in store_parts(disk, root):
        if part.use is Use.UNSUPPORTED and not (has_rocksdb and part.name in ROCKSDB_PARTS):
            path = os.path.join(root, part.name)
            raise UnsupportedFormat("store part:", file=path, found=part.what, supported=SUPPORTED_STORES)
    _refuse_queue_types(disk, os.path.join(root, "config", "topics.json"))
    refuse_unknown_layout(disk, root)
    folders = LogPaths.parse(disk, commit_log or os.path.join(root, "commitlog")).folders if looks_at_log else []
    for file in LogFiles(disk, [folder for folder in folders if is_folder(disk, folder)]).files:
        _refuse_first_record(disk, file)


def refuse_unknown_end(files: LogFiles) -> None:
    """Raise `UnsupportedFormat` if the headers of the last file lead to a record of an unknown version.

    This is for writers beside a log that no open scans.
    """
    problem = files.end().problem
    if problem is not None and problem.kind == UNKNOWN_VERSION:
        raise unsupported_record(problem)


def _refuse_queue_types(disk: Disk, path: str) -> None:
    """Search the file's bytes for unknown queue types, without parsing it: a large table is parsed once, by its reader."""
    entry = disk.stat(path)
    if entry is None or entry.kind is not Kind.FILE or entry.size_bytes > TOPICS_SIZE_MAX:
        return
    with disk.open(path, Mode.READ) as file:
        data = file.read(0, entry.size_bytes)
    for found in _QUEUE_TYPE.finditer(data):
        queue_type = found[1].decode("utf-8", "replace")
        if queue_type not in _QUEUE_TYPES:
            raise UnsupportedFormat(
                "queue.type", file=path, offset=found.start(), found=repr(queue_type), supported=", ".join(_QUEUE_TYPES)
            )


def _refuse_first_record(disk: Disk, found: OffsetFile) -> None:
    """Check the first record's version; only an unknown magic number costs more than one read."""
    with disk.open(found.path, Mode.READ) as file:
        head = file.read(MAGIC_AT, 4)
    if len(head) < 4 or head in _HEADS:
        return
    with MappedFile.of(disk, found, writable=False) as mapped:
        if is_unknown_version(mapped.view, 0, found.start_offset):
            raise unsupported_record(unknown_version(found.path, Location(mapped.view, 0, found.start_offset)))
