"""The columns of the source: the keys of the tool's JSON, with Spark types.

Two differences from the JSON: `body` holds the bytes themselves, not their base64 text, and `properties` leaves out the
whole-record checksum (`__CRC32#`), as everything in this library but `dump` does.  Two columns are not the message's own:
`store` and, where bad records are reported as rows, `problem`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from .errors import UnknownColumn

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

# Of a RocketMQ store, in the tool's order.
MESSAGE_COLUMNS: dict[str, str] = {
    "topic": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "physical_offset": "bigint",
    "size": "int",
    "magic": "string",
    "body_crc": "int",
    "flag": "int",
    "sys_flag": "int",
    "born_timestamp_ms": "bigint",
    "born_host": "string",
    "store_timestamp_ms": "bigint",
    "store_host": "string",
    "reconsume_times": "int",
    "prepared_transaction_offset": "bigint",
    "message_id": "string",
    "tags": "string",
    "keys": "array<string>",
    "properties": "map<string,string>",
    "body": "binary",
}

# Of a RabbitMQ folder.  Properties are JSON text: AMQP's have many types and nest.
RABBIT_COLUMNS: dict[str, str] = {
    "queue": "string",
    "vhost": "string",
    "seq_id": "bigint",
    "msg_id": "string",
    "persistent": "boolean",
    "acked": "boolean",
    "redelivered": "boolean",
    "expiry_us": "bigint",
    "size": "int",
    "embedded": "boolean",
    "file": "string",
    "offset": "bigint",
    "exchange": "string",
    "routing_keys": "array<string>",
    "properties": "string",
    "body": "binary",
}

# The same for both: the folder that a row is from, and what is wrong where a row is no message.
STORE_COLUMN = "store"
PROBLEM_COLUMN = "problem"
PROBLEM_FIELDS: dict[str, str] = {
    "file": "string",
    "offset": "bigint",
    "kind": "string",
    "expected": "string",
    "found": "string",
}

# What needs neither a copy of bodies nor a look into properties: the cheap columns.
META_COLUMNS: tuple[str, ...] = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "store_timestamp_ms")

TEXT_BODY = "string"  # `body` may be asked for as text


def message_schema(columns: Iterable[str] | None = None, *, store: bool = False, problem: bool = False) -> StructType:
    """The schema of a RocketMQ store: all columns of a message or the named ones; `store` and `problem` behind them."""
    return _made(MESSAGE_COLUMNS, columns, store, problem)


def rabbit_schema(columns: Iterable[str] | None = None, *, store: bool = False, problem: bool = False) -> StructType:
    """The schema of a RabbitMQ folder."""
    return _made(RABBIT_COLUMNS, columns, store, problem)


def meta_schema(*, store: bool = False) -> StructType:
    """Where each message is, and when it was stored: no body, no properties."""
    return message_schema(META_COLUMNS, store=store)


def ddl(columns: Sequence[str], table: dict[str, str] | None = None) -> str:
    """A schema as text, for `spark.read.schema(...)`.

    >>> ddl(["topic", "queue_id"])
    'topic string, queue_id int'
    """
    kinds = (table or MESSAGE_COLUMNS) | {STORE_COLUMN: "string"}
    return ", ".join(f"{name} {kinds[name]}" for name in columns)


def check_schema(schema: StructType, table: dict[str, str] | None = None) -> None:
    """Raise `UnknownColumn` for a column, or a column's type, that a store of this kind does not have."""
    known = table or MESSAGE_COLUMNS
    kinds = _kinds()
    wanted = {name: kinds[kind] for name, kind in known.items()} | {
        STORE_COLUMN: kinds["string"],
        PROBLEM_COLUMN: problem_type(),
    }
    for field in schema.fields:
        if field.name not in wanted:
            raise UnknownColumn(f"no column {field.name!r}; there are {', '.join(wanted)}")
        is_text_body = field.name == "body" and field.dataType == kinds[TEXT_BODY]
        if field.dataType != wanted[field.name] and not is_text_body:
            expected, found = wanted[field.name].simpleString(), field.dataType.simpleString()
            raise UnknownColumn(f"column {field.name!r}: expected {expected}, found {found}")


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow types that Spark wants for it, exactly: it refuses a batch of any others."""
    from pyspark.sql.pandas.types import to_arrow_schema

    made: Any = to_arrow_schema(schema, timezone="UTC")
    return made


def problem_type() -> DataType:
    """Of the column `problem`: the tool's keys of a finding."""
    from pyspark.sql.types import StructField, StructType

    kinds = _kinds()
    return StructType([StructField(name, kinds[kind]) for name, kind in PROBLEM_FIELDS.items()])


def _made(table: dict[str, str], columns: Iterable[str] | None, store: bool, problem: bool) -> StructType:
    from pyspark.sql.types import StructField, StructType

    kinds = _kinds()
    names = list(table) if columns is None else list(columns)
    unknown = [name for name in names if name not in table]
    if unknown:
        raise UnknownColumn(f"no column {unknown[0]!r}; there are {', '.join(table)}")
    fields = [StructField(name, kinds[table[name]]) for name in names]
    if store:
        fields.append(StructField(STORE_COLUMN, kinds["string"]))
    if problem:
        fields.append(StructField(PROBLEM_COLUMN, problem_type()))
    return StructType(fields)


@cache
def _kinds() -> dict[str, DataType]:
    """Spark's types by the words above; everything may be null, which Spark asks of a Python source."""
    from pyspark.sql.types import ArrayType, BinaryType, BooleanType, IntegerType, LongType, MapType, StringType

    text = StringType()
    return {
        "string": text,
        "int": IntegerType(),
        "bigint": LongType(),
        "boolean": BooleanType(),
        "binary": BinaryType(),
        "array<string>": ArrayType(text),
        "map<string,string>": MapType(text, text),
    }
