"""kombu's classes. Without kombu the modules still import, and using one raises `MissingExtra`."""

from __future__ import annotations

import importlib
from typing import Any

from storageio import needs_extra

SCHEME = "brokerstore"

try:
    from kombu.transport import TRANSPORT_ALIASES, virtual
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


def register() -> None:
    """Make the scheme `brokerstore` known to kombu."""
    TRANSPORT_ALIASES.setdefault(SCHEME, "brokerstore.kombu:Transport")
