"""Functions that return a DataFrame.  They take the columns, because Spark does not tell a Python source what `select` uses."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from storageio import MissingExtra

from ..options import option_texts
from ..schema import META_COLUMNS, RABBIT_COLUMNS, message_schema, named_schema, rabbit_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "brokerstore"
StorePath = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
NOT_FOUND = "DATA_SOURCE_NOT_FOUND"


def read_messages(spark: SparkSession, path: StorePath, columns: Iterable[str] | None = None, **options: object) -> DataFrame:
    """Return the messages of RocketMQ stores; only the named columns are built (`store` and `problem` may be among them).

    `options` are those of the source, by Spark's names: `read_messages(spark, path, ["topic"], checkCrc=True)`.
    A session with the jar of `sparkstore.jar_path()` decodes healthy records in Java.
    Raises `MissingExtra` if the Python that Spark starts does not have brokerstore installed.
    """
    schema = None if columns is None else named_schema(columns, message_schema)
    return _read(spark, path, schema, options)


def read_meta(spark: SparkSession, path: StorePath, **options: object) -> DataFrame:
    """Return positions and store times without body and properties: the fastest read."""
    return read_messages(spark, path, META_COLUMNS, **options)


def read_rabbit(spark: SparkSession, path: StorePath, columns: Iterable[str] | None = None, **options: object) -> DataFrame:
    """Return the messages of RabbitMQ folders."""
    return _read(spark, path, named_schema(RABBIT_COLUMNS if columns is None else columns, rabbit_schema), options)


def is_rabbit_folder(spark: SparkSession, path: StorePath, options: dict[str, object]) -> bool:
    """Return whether the paths are RabbitMQ folders, as Spark's side sees them."""
    names = ("vhost", "queue", "trace")
    return "queue" in _read(spark, path, None, {name: options[name] for name in names if name in options}).columns


def _read(spark: SparkSession, path: StorePath, schema: StructType | None, options: dict[str, object]) -> DataFrame:
    reader = spark.read.format(FORMAT)
    for name, value in option_texts(options).items():
        reader = reader.option(name, value)
    if schema is not None:
        reader = reader.schema(schema)
    try:
        return reader.load(os.fspath(path) if isinstance(path, str | os.PathLike) else [os.fspath(one) for one in path])
    except Exception as error:  # py4j's own, or Spark Connect's
        _name_absence(error)
        raise


def _name_absence(error: Exception) -> None:
    """Raise `MissingExtra` instead of Spark's hundred lines: it looks for sources with its workers' Python."""
    if NOT_FOUND in str(error):
        raise missing_in_python() from None


def missing_in_python() -> MissingExtra:
    """Return the error for workers whose Python does not find the format."""
    if not os.path.exists(__file__):  # in a zip file
        return MissingExtra(
            "Spark does not look for sources in --py-files: call spark.dataSource.register(BrokerStoreSource) before, with the "
            "class from sparkstore.source.data_source, or install brokerstore in the Python of Spark's workers"
        )
    python = os.environ.get("PYSPARK_PYTHON", "python3")
    return MissingExtra(
        f"the Python of Spark's workers ({python}) does not have brokerstore installed: before starting Spark, set "
        f"PYSPARK_PYTHON={sys.executable}, or let sparkstore.session() start it"
    )
