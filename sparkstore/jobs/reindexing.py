"""The job `reindex`: rebuild consume queues and key index of a store from its log on all cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from consumequeue.layout import UNIT_SIZE

from ..options import check_tasks, option_texts
from ..spark_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession

ALL = ("consumequeue", "index")
ITEM_SIZE = 20  # of an item on its way: `dispatching.item_kind`


class Reindexed(NamedTuple):
    """The result of a reindex: units of queues and items of index files."""

    path: str
    what: tuple[str, ...]
    units: int
    items: int


def reindex(spark: SparkSession, path: str, what: tuple[str, ...] = ALL, *, tasks: int = 2, **options: object) -> Reindexed:
    """Rebuild `what` of a store that nobody writes, byte-identical to what the engine makes of the same log.

    Each split of the log becomes one row of packed units per queue.  `tasks` tasks write the rows of their queues in order,
    and one more task writes the index files.  The old folders stay unchanged until everything is synced; then the commit
    swaps in the new ones under the store's lock.

    The option `delayLevels` gives the broker's messageDelayLevel; it is needed where delayed messages have no unit that says
    when they are due, and the store keeps no levels.

    Raises `JobError` for a damaged log, with file and offset, and while somebody writes; then nothing has changed.
    """
    from pyspark.sql import Observation

    from . import reindex_source

    check_tasks(tasks)
    spark.dataSource.register(reindex_source.ReindexSource)
    requested = {"what": ",".join(what), "tasks": str(tasks), **option_texts(options)}
    with plain_errors():
        made = Observation("reindex")
        rows = _observed(spark.read.format(reindex_source.FORMAT).options(**requested).load(path), made)
        dealt = rows.repartitionById(tasks + 1, rows["target"])
        ordered = dealt.sortWithinPartitions("topic", "queue_id", "order", "kind")
        ordered.write.format(reindex_source.FORMAT).options(**requested).mode("append").save(path)
    return Reindexed(path, tuple(what), made.get["units"] or 0, made.get["items"] or 0)


def _observed(rows: DataFrame, made: Observation) -> DataFrame:
    """Count units and items while the rows pass."""
    from pyspark.sql import functions as sql

    from .reindex_source import ITEMS, RUN

    counts = {"units": (RUN, UNIT_SIZE), "items": (ITEMS, ITEM_SIZE)}
    return rows.observe(made, *(
        sql.sum(sql.when(rows["kind"] == kind, sql.length("data") / size)).cast("bigint").alias(name)
        for name, (kind, size) in counts.items()
    ))  # fmt: skip
