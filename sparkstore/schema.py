"""The columns of the source: the keys of the tool's JSON with Spark types.

Three differences from the JSON: `body` holds raw bytes instead of base64 text, `properties` omits the whole-record checksum
(`__CRC32#`), as everything in this library except `dump` does, and `born_time` and `store_time` are the same times as
timestamps.  `body_text` is built only on request.  Two columns do not belong to the message: `store`, and `problem` where bad
records are reported as rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from commitlog import fields
from storageio import needs_extra

from .errors import BadOption, UnknownColumn
from .options import REPORT, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

# A RocketMQ store's columns, in the tool's order.
_FIELD_KINDS = {
    fields.INT: "int", fields.LONG: "bigint", fields.KEYS: "array<string>", fields.PROPERTIES: "map<string,string>",
    fields.BODY: "binary",
}  # fmt: skip
MESSAGE_COLUMNS: dict[str, str] = {
    **{field.name: _FIELD_KINDS.get(field.kind, "string") for field in fields.FIELDS},
    "born_time": "timestamp",
    "store_time": "timestamp",
}
TIMES = {"born_time": "born_timestamp_ms", "store_time": "store_timestamp_ms"}
BODY_TEXT = "body_text"
STORED_AS = {**TIMES, BODY_TEXT: "body"}  # columns that are another form of a stored one

# A RabbitMQ folder's columns.  Properties are JSON text because AMQP's are typed and nested.  The columns after `type` are
# those of quorum queues and of streams, and null for other queues.
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
    "type": "string",
    "state": "string",
    "consumer": "string",
    "acquired_count": "bigint",
    "delivery_count": "bigint",
    "reason": "string",
    "timestamp_ms": "bigint",
    "epoch": "bigint",
    "filter_value": "string",
}

# Both kinds: the store that a row comes from, and the damage that a row reports instead of a message.
STORE_COLUMN = "store"
PROBLEM_COLUMN = "problem"
PROBLEM_FIELDS: dict[str, str] = {
    "file": "string",
    "offset": "bigint",
    "kind": "string",
    "expected": "string",
    "found": "string",
}

# The cheap columns: they need neither a copy of the body nor parsed properties.
META_COLUMNS: tuple[str, ...] = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "store_timestamp_ms")

# Other types that a user's schema may name.
OTHER_TYPES = {"body": "string", **dict.fromkeys(TIMES.values(), "timestamp")}


def message_schema(columns: Iterable[str] | None = None, *, store: bool = False, problem: bool = False) -> StructType:
    """Return the schema of a RocketMQ store: all or the named columns, then `store` and `problem` if requested."""
    return _made(MESSAGE_COLUMNS, columns, store, problem)


def rabbit_schema(columns: Iterable[str] | None = None, *, store: bool = False, problem: bool = False) -> StructType:
    """Return the schema of a RabbitMQ folder."""
    return _made(RABBIT_COLUMNS, columns, store, problem)


def named_schema(columns: Iterable[str], make: Callable[..., StructType]) -> StructType:
    """Return the schema of the named columns, `store` and `problem` among them; `make` is one of the two functions above."""
    names = list(columns)
    stored = [name for name in names if name not in (STORE_COLUMN, PROBLEM_COLUMN)]
    return make(stored, store=STORE_COLUMN in names, problem=PROBLEM_COLUMN in names)


def meta_schema(*, store: bool = False) -> StructType:
    """Return the schema of the cheap columns: positions and store times, without body and properties."""
    return message_schema(META_COLUMNS, store=store)


def check_schema(schema: StructType, table: dict[str, str] | None = None, options: ReadOptions | None = None) -> None:
    """Raise `UnknownColumn` for a column or type that a store of this kind does not have, `BadOption` if the options differ."""
    known = table or MESSAGE_COLUMNS
    kinds = _kinds()
    requested = {name: kinds[kind] for name, kind in known.items()} | {
        BODY_TEXT: kinds["string"],
        STORE_COLUMN: kinds["string"],
        PROBLEM_COLUMN: problem_type(),
    }
    for field in schema.fields:
        if field.name not in requested:
            kind = "RabbitMQ folder" if known is RABBIT_COLUMNS else "RocketMQ store"
            raise UnknownColumn(f"unknown column {field.name!r} of a {kind}; the columns are {', '.join(requested)}")
        other = kinds.get(OTHER_TYPES.get(field.name, ""))
        if field.dataType not in (requested[field.name], other):
            expected, found = requested[field.name].simpleString(), field.dataType.simpleString()
            raise UnknownColumn(f"column {field.name!r}: expected {expected}, found {found}")
    if options is None:
        return
    if options.columns is not None and set(options.columns) != set(schema.names):
        raise BadOption(f"option columns: the schema has the columns {', '.join(schema.names)}; give only one of the two")
    if options.bad_records == REPORT and PROBLEM_COLUMN not in schema.names:
        raise BadOption(f"option badRecords: {REPORT} needs the column {PROBLEM_COLUMN!r} in the schema")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return exactly the Arrow types that Spark expects; it rejects a batch of any others."""
    with needs_extra("spark"):
        from pyspark.sql.pandas.types import to_arrow_schema

    made: Any = to_arrow_schema(schema, timezone="UTC")
    return made


def problem_type() -> DataType:
    """Return the type of the column `problem`: the tool's keys of a finding."""
    from pyspark.sql.types import StructField, StructType

    kinds = _kinds()
    return StructType([StructField(name, kinds[kind]) for name, kind in PROBLEM_FIELDS.items()])


def _made(table: dict[str, str], columns: Iterable[str] | None, store: bool, problem: bool) -> StructType:
    with needs_extra("spark"):
        from pyspark.sql.types import StructField, StructType

    kinds = _kinds()
    names = list(table) if columns is None else list(columns)
    known = {**table, BODY_TEXT: "string"}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UnknownColumn(f"unknown column {unknown[0]!r}; the columns are {', '.join(known)}")
    fields = [StructField(name, kinds[known[name]]) for name in names]
    if store:
        fields.append(StructField(STORE_COLUMN, kinds["string"]))
    if problem:
        fields.append(StructField(PROBLEM_COLUMN, problem_type()))
    return StructType(fields)


@cache
def _kinds() -> dict[str, DataType]:
    """Return Spark's types by name; all are nullable, as Spark requires of a Python source."""
    with needs_extra("spark"):
        from pyspark.sql import types

    text = types.StringType()
    return {
        "string": text,
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "boolean": types.BooleanType(),
        "binary": types.BinaryType(),
        "timestamp": types.TimestampType(),
        "array<string>": types.ArrayType(text),
        "map<string,string>": types.MapType(text, text),
    }
