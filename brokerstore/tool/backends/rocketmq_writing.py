"""A RocketMQ store opened for a command that writes: by itself, or through the process that serves it to others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TypeAlias

from messagestore import FlushMode, MessageStore, SharedStore
from messagestore.shared.store import connect
from storageio import REAL_DISK, StoreLocked

from .rocketmq_folder import RocketmqFolder

SHARED_WAIT_S = 5.0
Store: TypeAlias = "MessageStore | SharedStore"


@contextlib.contextmanager
def changing(folder: RocketmqFolder) -> Iterator[Store]:
    """Open the store for writing, or connect to the process that serves it; what was done is on the disk at the end.

    Raises `StoreLocked` with the process that has the store for itself.
    """
    path = folder.target.path
    config = folder.config().but(flush_disk_type=FlushMode.SYNC, deliver_delayed=False)
    store: Store
    try:
        store = MessageStore.open(path, "r+", config)
    except StoreLocked as locked:
        if REAL_DISK.stat(os.path.join(folder.facts.paths.own, "owner.socket")) is None:
            raise
        try:
            store = connect(path, config, wait_s=SHARED_WAIT_S)
        except StoreLocked:
            raise locked from None
    with store:
        yield store
        store.flush()
