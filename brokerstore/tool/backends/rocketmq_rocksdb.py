"""Consume queues in RocksDB, for `ls`. They are read with the extra `rocksdb`."""

from __future__ import annotations

import os

from messagestore.folder_contents import queues_databases
from messagestore.rocksdb.database import EXTRA, can_read, open_database
from messagestore.rocksdb.queues import read_units
from storageio import REAL_DISK, StoreError
from storebytes.finding import Finding

from ..output import print_line
from .rocketmq_folder import RocketmqFolder

Row = tuple[str, int, int, int, int]


def queue_rows(folder: RocketmqFolder) -> list[Row] | None:
    """Return topic, queue id, first offset, next offset and number of messages; None if the queues cannot be read."""
    names = queues_databases(REAL_DISK, folder.target.path)
    if not names:
        return None
    path = os.path.join(folder.target.path, names[0])
    if not can_read():
        print_line(f"brokerstore: queues from the log: RocksDB is read with pip install 'brokerstore[{EXTRA}]'")
        return None
    files = folder.files().files
    low = files[0].start_offset if files else 0
    found: dict[tuple[str, int], list[int]] = {}
    try:
        with open_database(path) as database:
            for unit in read_units(database):
                if unit.physical_offset >= low:
                    row = found.setdefault((unit.topic, unit.queue_id), [unit.queue_offset, 0, 0])
                    row[1] = unit.queue_offset + 1
                    row[2] += 1
    except StoreError as error:
        unreadable(folder, path, error)
        return None
    return [(*queue, *row) for queue, row in sorted(found.items())]  # type: ignore[misc]


def unreadable(folder: RocketmqFolder, path: str, error: StoreError) -> None:
    """Report a database that cannot be read, and keep it as a problem."""
    folder.problems.append(Finding(path, 0, "unreadable", "RocksDB", str(error)))
    print_line(f"brokerstore: {error}")
