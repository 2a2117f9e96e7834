"""Jobs over whole stores: functions that take a SparkSession, and the commands of `python -m sparkstore`.

    audit(spark, path)          every checksum, every queue unit and index item against the log, gaps and duplicates
    reindex(spark, path)        rebuild queues and index from the log and swap them in
    export(spark, path, out)    Parquet, partitioned by topic and day
    stats(spark, path, by)      messages and bytes per topic, queue, hour, size or key
    compact(spark, path, out)   the last message of each key into a new store

All of them use only DataFrames, so they run over Spark Connect too; the server accesses the store.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from storageio import needs_extra

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
    """Import a job on first use."""
    if name not in _WHERE:
        raise AttributeError(f"module 'sparkstore.jobs' has no attribute {name!r}")
    with needs_extra("spark"):
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
