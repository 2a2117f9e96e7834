"""RocketMQ and RabbitMQ stores in Spark, through PySpark (extra `spark`).  The specification of source, sinks and jobs.

    spark.read.format("brokerstore").load("/data/rocketmq/store")

Nothing here imports pyspark before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import BadOption, DataLost, UnknownColumn
    from .reading import read_messages, read_meta, read_rabbit
    from .schema import arrow_schema, check_schema, message_schema, meta_schema, rabbit_schema

_WHERE: dict[str, str] = {
    **dict.fromkeys(("BadOption", "DataLost", "UnknownColumn"), "errors"),
    **dict.fromkeys(("arrow_schema", "check_schema", "message_schema", "meta_schema", "rabbit_schema"), "schema"),
    **dict.fromkeys(("read_messages", "read_meta", "read_rabbit"), "reading"),
}

__all__ = [
    "BadOption",
    "DataLost",
    "UnknownColumn",
    "arrow_schema",
    "check_schema",
    "message_schema",
    "meta_schema",
    "rabbit_schema",
    "read_messages",
    "read_meta",
    "read_rabbit",
]


def __getattr__(name: str) -> Any:
    """The public names, each on first use."""
    if name not in _WHERE:
        raise AttributeError(f"module 'sparkstore' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    return found


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
