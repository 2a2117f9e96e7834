"""The message stores of RocketMQ and RabbitMQ as a library.

    from brokerstore import Message, MessageStore, RabbitStore
    with brokerstore.open("/data/rocketmq/store") as store: ...

`open(path)` identifies a folder (`brokerstore.identify`) and opens it with the engine for it, for reading by default.  Names
are imported on first use, so `import brokerstore` is fast.

Engines: `messagestore` (RocketMQ), `rabbitstore` (RabbitMQ).  Every error is a `StoreError`.  The tool is `brokerstore.tool`.
Further modules are imported by name: `kombu`, `metrics`, `migrate`, `testing`.  `rocketlink` has replication and a server,
`sparkstore` the data source of Spark.
"""

from __future__ import annotations

import importlib

from storebytes.lazy_names import lazy_names

TYPE_CHECKING = False  # importing `typing` would take ten times as long as the rest of this module
if TYPE_CHECKING:
    from typing import Any

    from commitlog import Message, PutStatus
    from consumequeue import Boundary
    from messagestore import FlushMode, MessageStore, RetentionPolicy, Role, SharedStore, StoreConfig
    from messagestore.shared.store import connect
    from rabbitstore import RabbitStore
    from storageio import (
        DiskError,
        DiskFull,
        FlushTimeout,
        InvalidMessage,
        InvalidSetting,
        MissingExtra,
        OutOfRange,
        PutRejected,
        RefusedMessage,
        StoreBusy,
        StoreClosed,
        StoreCorrupt,
        StoreError,
        StoreFull,
        StoreLocked,
        StoreReadOnly,
        StoreRewound,
        UnknownStore,
        UnsupportedFormat,
        UnsupportedPlatform,
    )

    from . import aio as aio
    from .opening import open

    __version__: str
else:
    _find, __dir__ = lazy_names(
        globals(),
        {
            "brokerstore.opening": ["open"],
            "commitlog": ["Message", "PutStatus"],
            "consumequeue": ["Boundary"],
            "messagestore": ["FlushMode", "MessageStore", "RetentionPolicy", "Role", "SharedStore", "StoreConfig"],
            "messagestore.shared.store": ["connect"],
            "rabbitstore": ["RabbitStore"],
            "storageio": [
                "DiskError",
                "DiskFull",
                "FlushTimeout",
                "InvalidMessage",
                "InvalidSetting",
                "MissingExtra",
                "OutOfRange",
                "PutRejected",
                "RefusedMessage",
                "StoreBusy",
                "StoreClosed",
                "StoreCorrupt",
                "StoreError",
                "StoreFull",
                "StoreLocked",
                "StoreReadOnly",
                "StoreRewound",
                "UnknownStore",
                "UnsupportedFormat",
                "UnsupportedPlatform",
            ],
        },
    )

    def __getattr__(name: str) -> Any:
        """Import a public name, or find the version, on first use."""
        if name == "__version__":
            return _version()
        if name == "aio":
            return importlib.import_module("brokerstore.aio")
        return _find(name)


__all__ = [
    "Boundary",
    "DiskError",
    "DiskFull",
    "FlushMode",
    "FlushTimeout",
    "InvalidMessage",
    "InvalidSetting",
    "Message",
    "MessageStore",
    "MissingExtra",
    "OutOfRange",
    "PutRejected",
    "PutStatus",
    "RabbitStore",
    "RefusedMessage",
    "RetentionPolicy",
    "Role",
    "SharedStore",
    "StoreBusy",
    "StoreClosed",
    "StoreConfig",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreReadOnly",
    "StoreRewound",
    "UnknownStore",
    "UnsupportedFormat",
    "UnsupportedPlatform",
    "__version__",
    "connect",
    "open",
]


def _version() -> str:
    """Return the version of the installed distribution; a source tree that is not installed has none."""
    from importlib.metadata import PackageNotFoundError, version  # 20 ms

    try:
        return version("brokerstore")
    except PackageNotFoundError:
        return "unknown"
