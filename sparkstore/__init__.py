"""RocketMQ and RabbitMQ stores in Spark, through PySpark (extra `spark`).  The specification of source, sinks and jobs.

    spark.read.format("brokerstore").load("/data/rocketmq/store")           # found without registration
    read_messages(spark, path, ["topic", "body"], topic="orders")           # only those columns are built
    sparkstore.jobs: audit, reindex, export, stats, compact                 # and `python -m sparkstore audit DIR`

*Rows* are those of `brokerstore dump`, by the tool's names with Spark types (`schema.py`), in log order within a task.  The
options are listed in `options.py` (reading) and `sink/options.py` (writing); those that Spark's Kafka source has are named as
there.  Paths: a store, the folder of a log alone, a virtual host's folder or a RabbitMQ node's; several of them, or a pattern,
and then a row says in `store` which it is from; `protocol://` is read through fsspec.

*One moment.*  A batch read is planned once: it ends where the log ended then, whatever a writer adds.  A record that is being
written at that moment is not read and no error.

*Splits.*  A file is read by several tasks.  Each message comes exactly once, and damage is said exactly once, whatever the
split size.  Every record is found by its magic and by the offset that it says it lies at; checksums are verified where bodies
are read or `checkCrc` asks for it.  What one task cannot see, that a body of another split holds a copy of a record at its own
place all across a greatest record, `audit` finds: there the stretches of a file must join.

*Bad records.*  `badRecords`: fail (default) ends the read with `StoreCorrupt`: file, offset, expected, found.  skip logs it.
report gives a row whose `problem` says it and whose other columns are null, but for `store` and `physical_offset`.  A file that
retention took after the plan is `DataLost`; with `failOnDataLoss` false it is passed over.  Spark wraps errors of tasks;
`plain_errors()` gives them back as `JobError` with our words alone.

*Memory.*  A task holds one batch (8192 rows, at most 16 MiB of records) and what it has walked of a file's map, at most 64 MiB:
a worker stays under 400 MB.

*Jobs* are DataFrames alone and run over Spark Connect; what touches a store runs beside the server, which must see the folder.

Nothing here imports pyspark before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import BadOption, DataLost, MissingColumn, UnknownColumn
    from .schema import arrow_schema, check_schema, message_schema, meta_schema, rabbit_schema
    from .source.reading import read_messages, read_meta, read_rabbit
    from .spark_errors import JobError, plain_errors

_WHERE: dict[str, str] = {
    **dict.fromkeys(("BadOption", "DataLost", "MissingColumn", "UnknownColumn"), "errors"),
    **dict.fromkeys(("arrow_schema", "check_schema", "message_schema", "meta_schema", "rabbit_schema"), "schema"),
    **dict.fromkeys(("JobError", "plain_errors"), "spark_errors"),
    **dict.fromkeys(("read_messages", "read_meta", "read_rabbit"), "source.reading"),
}

__all__ = [
    "BadOption",
    "DataLost",
    "JobError",
    "MissingColumn",
    "UnknownColumn",
    "arrow_schema",
    "check_schema",
    "message_schema",
    "meta_schema",
    "plain_errors",
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
