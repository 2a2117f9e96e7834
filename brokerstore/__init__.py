"""The message stores of RocketMQ and RabbitMQ as a library: the only public import.

    from brokerstore import Message, MessageStore, RabbitStore
    with brokerstore.open("/data/rocketmq/store") as store: ...

`open(path)` identifies a folder (`brokerstore.identify`) and opens it with the engine for it, for reading by default.  Names
are imported on first use, so `import brokerstore` is fast.

Engines: `messagestore` (RocketMQ), `rabbitstore` (RabbitMQ).  Every error is a `StoreError`.  The tool is `brokerstore.tool`.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # importing `typing` would take ten times as long as the rest of this module
if TYPE_CHECKING:
    from typing import Any

    from commitlog import Message, PutStatus
    from consumequeue import Boundary
    from messagestore import FlushMode, MessageStore, Role, SharedStore, StoreConfig
    from messagestore.shared.store import connect
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
        StoreLocked,
        StoreReadOnly,
        StoreRewound,
        UnknownStore,
        UnsupportedFormat,
        UnsupportedPlatform,
    )

    from . import aio as aio
    from .opening import open

_ERRORS = (
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
    "StoreLocked",
    "StoreReadOnly",
    "StoreRewound",
    "UnknownStore",
    "UnsupportedFormat",
    "UnsupportedPlatform",
)
_PACKAGES: dict[str, str] = {
    **dict.fromkeys(_ERRORS, "storageio"),
    **dict.fromkeys(("Message", "PutStatus"), "commitlog"),
    **dict.fromkeys(("FlushMode", "MessageStore", "Role", "SharedStore", "StoreConfig"), "messagestore"),
    "Boundary": "consumequeue",
    "RabbitStore": "rabbitstore",
    "connect": "messagestore.shared.store",
    "open": "brokerstore.opening",
}

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
    "Role",
    "SharedStore",
    "StoreBusy",
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


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name == "__version__":
        return _version()
    if name == "aio":
        return importlib.import_module("brokerstore.aio")
    if name not in _PACKAGES:
        raise AttributeError(f"module 'brokerstore' has no attribute {name!r}")
    package = importlib.import_module(_PACKAGES[name])
    if not hasattr(package, name):
        raise AttributeError(f"brokerstore.{name} is not available: this version of {_PACKAGES[name]} does not have it")
    found = globals()[name] = getattr(package, name)
    return found


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
