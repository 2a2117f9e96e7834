"""The message stores of RocketMQ and RabbitMQ as a library: the front door, and the one public import.

    from brokerstore import Message, MessageStore, RabbitStore
    with brokerstore.open("/data/rocketmq/store") as store: ...

`open(path)` finds out what a folder holds (`brokerstore.identify`) and gives the engine for it, for reading
unless asked otherwise.  Everything here is imported on first use, so `import brokerstore` costs next to nothing.

Engines: `messagestore` (RocketMQ), `rabbitstore` (RabbitMQ).  Every error is a `StoreError`.  The tool is `brokerstore.tool`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commitlog import Message, PutStatus
    from consumequeue import Boundary
    from messagestore import FlushMode, MessageStore, Role, StoreConfig
    from storageio import (
        DiskError,
        DiskFull,
        FlushTimeout,
        InvalidMessage,
        PutRejected,
        StoreClosed,
        StoreCorrupt,
        StoreError,
        StoreLocked,
        StoreReadOnly,
        StoreRewound,
        UnknownStore,
        UnsupportedFormat,
        UnsupportedPlatform,
    )

    from .opening import open

_ERRORS = (
    "DiskError",
    "DiskFull",
    "FlushTimeout",
    "InvalidMessage",
    "PutRejected",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreLocked",
    "StoreReadOnly",
    "StoreRewound",
    "UnknownStore",
    "UnsupportedFormat",
    "UnsupportedPlatform",
)
_ROOMS: dict[str, str] = {
    **dict.fromkeys(_ERRORS, "storageio"),
    **dict.fromkeys(("Message", "PutStatus"), "commitlog"),
    **dict.fromkeys(("FlushMode", "MessageStore", "Role", "StoreConfig"), "messagestore"),
    "Boundary": "consumequeue",
    "RabbitStore": "rabbitstore",
    "open": "brokerstore.opening",
}

__all__ = [
    "Boundary",
    "DiskError",
    "DiskFull",
    "FlushMode",
    "FlushTimeout",
    "InvalidMessage",
    "Message",
    "MessageStore",
    "PutRejected",
    "PutStatus",
    "RabbitStore",
    "Role",
    "StoreClosed",
    "StoreConfig",
    "StoreCorrupt",
    "StoreError",
    "StoreLocked",
    "StoreReadOnly",
    "StoreRewound",
    "UnknownStore",
    "UnsupportedFormat",
    "UnsupportedPlatform",
    "__version__",
    "open",
]


def _version() -> str:
    """Of the installed distribution; a bare source tree has none."""
    from importlib.metadata import PackageNotFoundError, version  # 20 ms

    try:
        return version("brokerstore")
    except PackageNotFoundError:
        return "unknown"


def __getattr__(name: str) -> Any:
    """The public names, each from its room on first use."""
    if name == "__version__":
        return _version()
    if name not in _ROOMS:
        raise AttributeError(f"module 'brokerstore' has no attribute {name!r}")
    room = importlib.import_module(_ROOMS[name])
    if not hasattr(room, name):
        raise AttributeError(f"brokerstore.{name} is not there yet: {_ROOMS[name]} does not have it in this version")
    found = globals()[name] = getattr(room, name)
    return found


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
