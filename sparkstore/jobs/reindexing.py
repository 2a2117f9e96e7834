"""`reindex`: consume queues and key index of a store made anew from its log, on all the cores there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..options import check_tasks
from ..spark_errors import plain_errors

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

    Raises `JobError` for a damaged log, with file and offset, and while somebody writes; then nothing has changed.
    """
    from . import reindex_source

    check_tasks(tasks)
    spark.dataSource.register(reindex_source.ReindexSource)
    asked = {"what": ",".join(what), "tasks": str(tasks), **{name: str(value) for name, value in options.items()}}
    with plain_errors():
        rows = spark.read.format(reindex_source.FORMAT).options(**asked).load(path)
        dealt = rows.repartitionById(tasks + 1, rows["target"])
        ordered = dealt.sortWithinPartitions("topic", "queue_id", "order", "kind")
        ordered.write.format(reindex_source.FORMAT).options(**asked).mode("append").save(path)
    return Reindexed(path, tuple(what))
