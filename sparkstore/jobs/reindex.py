"""`reindex`: consume queues and key index of a store made anew from its log, on all the cores there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = ("consumequeue", "index")


class Reindexed(NamedTuple):
    """What was made."""

    path: str
    what: tuple[str, ...]


def reindex(spark: SparkSession, path: str, what: tuple[str, ...] = ALL, *, tasks: int = 2, **options: object) -> Reindexed:
    """Rebuild `what` of a store that nobody writes, byte-identical to what the engine makes of the same log.

    Each split of the log becomes one row for every queue: its units, packed.  They are dealt out to `tasks` tasks, which
    write them one behind the other, and one more that makes the index files.  The old folders stay as they are until all is
    on the disk; then the new ones take their places, under the store's lock.

    Raises `StoreCorrupt` for a damaged log, `StoreLocked` while somebody writes; then nothing has changed.
    """
    from .reindex_source import FORMAT, ReindexSource

    spark.dataSource.register(ReindexSource)
    asked = {"what": ",".join(what), "tasks": str(tasks), **{name: str(value) for name, value in options.items()}}
    rows = spark.read.format(FORMAT).options(**asked).load(path)
    dealt = rows.repartitionById(tasks + 1, rows["target"])
    ordered = dealt.sortWithinPartitions("topic", "queue_id", "order", "kind")
    ordered.write.format(FORMAT).options(**asked).mode("append").save(path)
    return Reindexed(path, tuple(what))
