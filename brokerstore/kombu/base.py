"""kombu's classes. Without kombu the modules still import, and using one raises `MissingExtra`."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from enum import Enum
from typing import Any

from messagestore import StoreConfig
from storageio import needs_extra

SCHEME = "brokerstore"


def _named(config: StoreConfig) -> dict[str, Any]:
    """Return settings as JSON has them."""
    return {name: value.name if isinstance(value, Enum) else value for name, value in asdict(config).items()}


try:
    from kombu.transport import TRANSPORT_ALIASES, virtual
    from kombu.utils import json as kombu_json
except ModuleNotFoundError:

    class _Missing:
        implements = None

        def __init__(self, *_arguments: object, **_options: object) -> None:
            with needs_extra("kombu"):
                importlib.import_module("kombu")

    TRANSPORT_ALIASES: dict[str, str] = {}  # type: ignore[no-redef]
    TransportBase: Any = _Missing
    ChannelBase: Any = _Missing
    QoSBase: Any = _Missing
else:
    TransportBase, ChannelBase, QoSBase = virtual.Transport, virtual.Channel, virtual.QoS
    _dumps: Any = kombu_json.dumps
    _loads: Any = kombu_json.loads
    kombu_json.register_type(StoreConfig, None, _named)  # for the answer to Celery's `inspect stats`


def packed(message: dict[str, Any]) -> bytes:
    """Return a message as JSON; values for which JSON has no type, such as times in headers, as kombu writes them."""
    try:
        return json.dumps(message).encode()
    except TypeError:
        text: str = _dumps(message)
        return text.encode()


def unpacked(body: bytes) -> dict[str, Any]:
    """Return the message of `packed`."""
    found: dict[str, Any] = _loads(body) if b'"__type__"' in body else json.loads(body)
    return found


def register() -> None:
    """Make the scheme `brokerstore` known to kombu."""
    TRANSPORT_ALIASES.setdefault(SCHEME, "brokerstore.kombu:Transport")
