"""The Python side of the JVM source: it plans for the driver, and reads for a task what is not plainly healthy.

    echo '{"verb": "schema", "options": {"path": "/data/store"}}' | python -m sparkstore.source.jvm_side

A request is a line of JSON on standard input.  The answer is a line of JSON with the result or `error`; that of `read` follows
an Arrow stream, whose rows are complete only with it.

The JVM source has no rules of its own: options, splits, pruning by time, the first record of a split, and the offsets of fields
come from here.  It decodes only records that pass every check of a healthy one.  At any other bytes the rest of the range is
read by the Python source's reader, from the same split.
"""

from __future__ import annotations

import json
import pickle
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import IO, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import DataType, StructField, StructType, TimestampType

from commitlog import fields, layout
from commitlog.checks import CHECK_BODY
from commitlog.row_filter import IN, Condition, RowFilter
from storageio import StoreError

from ..errors import DataLost
from ..object_disk import is_remote
from ..options import EPOCH, FAIL, REPORT, parse_read_options
from ..schema import MESSAGE_COLUMNS, PROBLEM_COLUMN, STORE_COLUMN, TIMES, message_schema, problem_type
from .batches import MS_MAX
from .data_source import BrokerStoreSource, PushdownReader
from .split_reader import BATCH_BYTES, SplitReader, aligned
from .splits import LogSplit
from .time_filter import by_milliseconds

TIME, STORE, PROBLEM = "TIME", "STORE", "PROBLEM"  # kinds of columns in addition to those of `fields`
KINDS = ("INT", "LONG", "HEX", "HOST", "ID", "TOPIC", "TAGS", "KEYS", "PROPERTIES", "BODY")
LAYOUT = (
    "SIZE_AT", "MAGIC_AT", "BODY_CRC_AT", "QUEUE_ID_AT", "QUEUE_OFFSET_AT", "PHYSICAL_OFFSET_AT", "SYS_FLAG_AT",
    "STORE_HOST_AT", "HOST_SIZE", "BODY_SIZE_AT", "BODY_AT", "RECORD_SIZE_MIN", "MAGIC_V1", "MAGIC_BLANK", "BLANK_SIZE",
    "CRC_MASK", "NAME_END", "PAIR_END", "CRC_DIGITS", "CRC_SIZE", "TOPIC_SIZE_SIZE", "PROPERTIES_SIZE_SIZE",
)  # fmt: skip
# A record with any other flag is read here.
PLAIN_FLAGS = layout.COMPRESSED | layout.MULTI_TAGS | layout.TRANSACTION_MASK | layout.COMPRESSION_MASK
Answer = dict[str, Any]


def schema_of(request: Answer) -> Answer:
    """Return the schema of all columns."""
    return {"schema": BrokerStoreSource(request["options"]).schema().json()}


def plan(request: Answer) -> Answer:
    """Return the ranges of a read of the columns of a schema, and how to decode them.

    Conditions that a row filter does not decide are ignored: Spark evaluates all of them once more.
    """
    options = parse_read_options(request["options"])
    table = PushdownReader(options, _schema(request["table"]))  # checks the schema that the user knows
    schema = _schema(request["schema"])
    if not schema.fields:  # Spark counts rows
        schema = message_schema(["physical_offset"])
    if options.bad_records != FAIL and options.check_crc is None:  # the same rows whatever columns a query uses
        options = replace(options, check_crc=table.request.has_body)
    if options.bad_records == REPORT and PROBLEM_COLUMN not in schema.names:
        schema = StructType([*schema.fields, StructField(PROBLEM_COLUMN, problem_type())])
    reader = PushdownReader(replace(options, columns=None), schema)
    found = [by_milliseconds(_condition(*term)) for term in request["conditions"]]
    reader.take([condition for condition in found if condition.is_known])
    expected = reader.request
    columns = [_column(field.name, field.dataType) for field in schema.fields]
    conditions = _conditions(expected.row_filter)
    is_python = conditions is None or None in columns
    flags = PLAIN_FLAGS & ~layout.COMPRESSED if expected.options.is_plain and expected.has_body else PLAIN_FLAGS
    return {
        "ranges": [part for item in reader.partitions() for part in _ranges(item.value, is_python)],
        "reader": _packed(reader),
        "columns": [] if is_python else columns,
        "conditions": conditions or [],
        "checksums": bool(expected.checks & CHECK_BODY),
        "flags": flags,
        "batchRows": expected.options.batch_rows,
        "batchBytes": BATCH_BYTES,
        "msMax": MS_MAX,
        "layout": {"CRC_NAME": layout.CRC_NAME.decode(), **{name: getattr(layout, name) for name in LAYOUT}},
    }


def read(request: Answer, target: IO[bytes]) -> Answer:
    """Write the rows of a range from physical offset `from` on as an Arrow stream."""
    import pyarrow as pa

    reader, split, start = _unpacked(request["reader"]), _unpacked(request["split"]), request["from"]
    if start > request["begin"]:  # the JVM returned the rows before; the whole split is read, so that damage is judged as ever
        reader.take([Condition("physical_offset", "ge", start)])
    with pa.ipc.new_stream(target, reader.request.arrow) as stream:
        try:
            for batch in reader.read(InputPartition(split)):
                stream.write_batch(batch)
        except StoreError as error:
            return _error(error)
    return {"done": True}


def _ranges(split: Any, is_python: bool) -> Iterator[Answer]:
    """Yield the range of a split, from its first record on; nothing if no record starts in it."""
    if not isinstance(split, LogSplit):  # of a RabbitMQ folder
        at = dict.fromkeys(("base", "size", "begin", "end"), 0)
        yield {"file": split.folder, "store": split.store, **at, "python": True, "split": _packed(split)}
        return
    start = split.begin
    is_python = is_python or bool(split.findings) or is_remote(split.file)
    if not is_python and split.begin > split.file_start:
        try:
            start, _ = aligned(SplitReader(split))
        except DataLost:
            is_python = True  # the task reports it
        if start >= split.end:
            return
    yield {
        "file": split.file, "base": split.file_start, "size": split.file_size, "begin": start, "end": split.end,
        "store": split.store, "python": is_python, "split": _packed(split),
    }  # fmt: skip


def _schema(text: str) -> StructType:
    return StructType.fromJson(json.loads(text))


def _condition(column: str, name: str, value: Any) -> Condition:
    """Make a condition of a request; a timestamp is an object with microseconds."""
    values = [EPOCH + timedelta(microseconds=one["us"]) if isinstance(one, dict) else one for one in value]
    return Condition(column, name, tuple(values) if name == IN else values[0])


def _column(name: str, kind: DataType) -> Answer | None:
    """Return how the JVM makes a column, or None if it does not."""
    if name in (STORE_COLUMN, PROBLEM_COLUMN):
        return {"kind": STORE if name == STORE_COLUMN else PROBLEM, "at": 0}
    stored = next((field for field in fields.FIELDS if field.name == TIMES.get(name, name)), None)
    if stored is None:
        return None
    if isinstance(kind, TimestampType):
        return {"kind": TIME, "at": stored.at}
    is_usual = kind.simpleString() == MESSAGE_COLUMNS[name]
    return {"kind": _kind_name(stored.kind), "at": stored.at} if is_usual else None


def _conditions(row_filter: RowFilter) -> list[Answer] | None:
    """Return the conditions of a filter, or None if the JVM cannot decide one."""
    if replace(row_filter, conditions=()) != RowFilter():
        return None
    found = []
    for column, name, value in row_filter.conditions:
        field = next(field for field in fields.FIELDS if field.name == column)
        values = list(value) if name == IN else [value]
        if name not in ("gt", "ge", "lt", "le"):
            if name not in ("eq", IN):
                return None
            name = IN
        found.append({"kind": _kind_name(field.kind), "at": field.at, "operator": name, "values": values})
    return found


def _kind_name(kind: int) -> str:
    return next(name for name in KINDS if getattr(fields, name) == kind)


def _packed(value: Any) -> str:
    return b64encode(pickle.dumps(value)).decode()


def _unpacked(text: str) -> Any:
    return pickle.loads(b64decode(text))  # what `plan` made


def _error(error: StoreError) -> Answer:
    """Return an error in the form in which Spark reports those of a Python worker."""
    return {"error": f"{type(error).__module__}.{type(error).__name__}: {error}"}


def main(source: IO[bytes], target: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    verbs: dict[str, Callable[[Answer], Answer]] = {
        "schema": schema_of,
        "plan": plan,
        "read": lambda request: read(request, target),
    }
    for line in source:
        request = json.loads(line)
        try:
            answer = verbs[request["verb"]](request)
        except StoreError as error:
            answer = _error(error)
        target.write(json.dumps(answer).encode() + b"\n")
        target.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
