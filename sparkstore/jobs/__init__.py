"""What is done to whole stores on Spark: functions over a SparkSession, and `python -m sparkstore`.

    audit(spark, path)          every checksum, every queue unit and index item against the log, gaps and duplicates
    reindex(spark, path)        queues and index anew from the log, put in the place of the old ones in one step
    export(spark, path, out)    Parquet, partitioned by topic and day
    stats(spark, path, by)      how many messages and bytes a topic, queue, hour, size or key has
    compact(spark, path, out)   the last message of each key into a new store

All of them use DataFrames alone, so that they run over Spark Connect too: what touches the store runs beside the server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .auditing import AuditReport, audit
    from .compacting import compact
    from .exporting import Exported, export
    from .reindexing import Reindexed, reindex
    from .statistics import stats

_WHERE = {
    "AuditReport": "auditing", "audit": "auditing", "compact": "compacting", "export": "exporting", "Exported": "exporting",
    "Reindexed": "reindexing", "reindex": "reindexing", "stats": "statistics",
}  # fmt: skip

__all__ = ["AuditReport", "Exported", "Reindexed", "audit", "compact", "export", "reindex", "stats"]


def __getattr__(name: str) -> Any:
    """Each on first use."""
    if name not in _WHERE:
        raise AttributeError(f"module 'sparkstore.jobs' has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
