"""Jobs over whole stores: functions that take a SparkSession, and the commands of `python -m sparkstore`.

    audit(spark, path)          every checksum, every queue unit and index item against the log, gaps and duplicates
    reindex(spark, path)        rebuild queues and index from the log and swap them in
    export(spark, path, out)    Parquet, partitioned by topic and day
    stats(spark, path, by)      messages and bytes per topic, queue, hour, size or key
    compact(spark, path, out)   the last message of each key into a new store

All of them use only DataFrames, so they run over Spark Connect too; the server accesses the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storageio import needs_extra
from storebytes.lazy_names import lazy_names

if TYPE_CHECKING:
    from .auditing import AuditReport, audit
    from .compacting import compact
    from .exporting import Exported, export
    from .reindexing import Reindexed, reindex
    from .statistics import stats
else:
    _find, __dir__ = lazy_names(
        globals(),
        {
            ".auditing": ["AuditReport", "audit"],
            ".compacting": ["compact"],
            ".exporting": ["Exported", "export"],
            ".reindexing": ["Reindexed", "reindex"],
            ".statistics": ["stats"],
        },
    )

    def __getattr__(name: str) -> Any:
        """Import a public name; without pyspark raise `MissingExtra`."""
        with needs_extra("spark"):
            return _find(name)


__all__ = ["AuditReport", "Exported", "Reindexed", "audit", "compact", "export", "reindex", "stats"]
