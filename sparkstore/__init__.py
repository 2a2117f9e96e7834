"""Read and write RocketMQ and RabbitMQ stores with PySpark (extra `spark`).

    spark.read.format("brokerstore").load("/data/rocketmq/store")           # Spark finds the format by itself
    sparkstore.session()                                                    # a session that finds it whatever Python runs
    read_messages(spark, path, ["topic", "body"], topic="orders")           # builds only these columns
    sparkstore.jobs: audit, reindex, export, stats, compact                 # and `python -m sparkstore audit DIR`

*Rows* have the columns of `brokerstore dump` with Spark types (`schema.py`), in log order within a task.  `options.py` lists
the options of reading, `sink/options.py` those of writing; they use the names of Spark's Kafka source where it has one.  A path
names a store, a bare log folder, a RabbitMQ node's or virtual host's folder, or several of these as a list or pattern; then
the column `store` names each row's store.  fsspec reads `protocol://` paths.

*Snapshot.*  A batch read is planned once and ends where the log ended at that time, whatever a writer appends later.  A
record that is half written at that time is neither read nor reported.

*Splits.*  Several tasks read one file.  Each message and each damaged place is reported exactly once, whatever the split size.
A record is recognised by its magic and by the physical offset that it contains; checksums are verified where bodies are read
or `checkCrc` asks for it.  One case is beyond a single task: a body that is full of copies of records at their own offsets for
the length of the largest record.  `audit` detects it, because there the splits of a file must meet.

*Bad records.*  `badRecords` fail (default) raises `StoreCorrupt` with file, offset, expected and found.  skip logs the damage.
report returns a row that describes it in `problem`; its other columns are null except `store` and `physical_offset`.  A file
that retention deleted after planning raises `DataLost`, or is skipped if `failOnDataLoss` is false.  Spark wraps the errors
of tasks; `plain_errors()` raises them as `JobError` with the original message only, and in a session of `session()` an
uncaught one ends the program with one line.  The option `trace` shows the stacks.

*Memory.*  A task holds one batch (8192 rows, at most 16 MiB of records) and at most 64 MiB of a mapped file, so a worker stays
under 400 MB.

*Jobs* use only DataFrames and run over Spark Connect.  The Connect server accesses the store, so it must see the folder.

This package imports pyspark only when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storageio import needs_extra
from storebytes.lazy_names import lazy_names

if TYPE_CHECKING:
    from .errors import BadOption, DataLost, MissingColumn, UnknownColumn
    from .jar import jar_path
    from .schema import arrow_schema, check_schema, message_schema, meta_schema, rabbit_schema
    from .session import session
    from .source.reading import read_messages, read_meta, read_rabbit
    from .spark_errors import JobError, plain_errors
else:
    _find, __dir__ = lazy_names(
        globals(),
        {
            ".errors": ["BadOption", "DataLost", "MissingColumn", "UnknownColumn"],
            ".jar": ["jar_path"],
            ".schema": ["arrow_schema", "check_schema", "message_schema", "meta_schema", "rabbit_schema"],
            ".session": ["session"],
            ".source.reading": ["read_messages", "read_meta", "read_rabbit"],
            ".spark_errors": ["JobError", "plain_errors"],
        },
    )

    def __getattr__(name: str) -> Any:
        """Import a public name; without pyspark raise `MissingExtra`."""
        with needs_extra("spark"):
            return _find(name)


__all__ = [
    "BadOption",
    "DataLost",
    "JobError",
    "MissingColumn",
    "UnknownColumn",
    "arrow_schema",
    "check_schema",
    "jar_path",
    "message_schema",
    "meta_schema",
    "plain_errors",
    "rabbit_schema",
    "read_messages",
    "read_meta",
    "read_rabbit",
    "session",
]
