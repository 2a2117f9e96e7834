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
import os
import pickle
import sys
import traceback
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import IO, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import DataType, StructField, StructType, TimestampType

from commitlog import fields, layout
from commitlog.checks import CHECK_BODY
from commitlog.row_filter import IN, Condition, RowFilter
from storageio import StoreError

from ..errors import DataLost
from ..jar import is_for_jvm
from ..object_disk import is_remote
from ..options import EPOCH, FAIL, REPORT, parse_read_options, paths_of
from ..schema import MESSAGE_COLUMNS, PROBLEM_COLUMN, STORE_COLUMN, TIMES, message_schema, problem_type
from .batches import MS_MAX, ReadRequest
from .data_source import BrokerStoreSource, PushdownReader, split_batches
from .several_stores import stream_reader
from .split_reader import BATCH_BYTES, SplitReader, aligned
from .splits import LogSplit
from .stores import find_stores
from .streaming import StreamPartition
from .time_filter import by_milliseconds
from .worker import TRACE

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


def choose(request: Answer) -> Answer:
    """Return whether the JVM reads the columns of a table with these options; otherwise the Python source is faster."""
    options = request["options"]
    is_chosen = is_for_jvm(_schema(request["table"]).names, options) and not _shows_trace(request)
    return {"jvm": is_chosen and not find_stores(paths_of(options))[0].is_rabbit}


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
    parts = reader.partitions()
    return {**_decoding(reader.request), "ranges": _ranges(parts, reader.request)}


def _decoding(request: ReadRequest) -> Answer:
    """Return how to decode the records of every range."""
    columns = [_column(field.name, field.dataType) for field in request.schema.fields]
    is_plain = request.options.is_plain and request.has_body
    return {
        "request": _packed(request),
        "columns": [] if None in columns else columns,
        "checksums": bool(request.checks & CHECK_BODY),
        "flags": PLAIN_FLAGS & ~layout.COMPRESSED if is_plain else PLAIN_FLAGS,
        "batchRows": request.options.batch_rows,
        "batchBytes": BATCH_BYTES,
        "msMax": MS_MAX,
        "layout": {"CRC_NAME": layout.CRC_NAME.decode(), **{name: getattr(layout, name) for name in LAYOUT}},
    }


def read(request: Answer, target: IO[bytes]) -> Answer:
    """Write the rows of a range from physical offset `from` on as an Arrow stream."""
    import pyarrow as pa

    expected, start = _unpacked(request["request"]), request["from"]
    split, expected = _one(_unpacked(request["split"]), expected)
    if start > request["begin"]:  # the JVM returned the rows before; the whole split is read, so that damage is judged as ever
        expected = replace(expected, row_filter=expected.row_filter.plus([Condition("physical_offset", "ge", start)]))
    with pa.ipc.new_stream(target, expected.arrow) as stream:
        try:
            for batch in split_batches(split, expected):
                stream.write_batch(batch)
        except StoreError as error:
            return _error(error)
    return {"done": True}


class StreamSide:
    """The stream reader of this process, for the calls that Spark makes to that of the Python source.

    Offsets are the text that Spark writes for the Python source, so each source continues a checkpoint of the other.
    """

    def __init__(self) -> None:
        """List the calls; `stream` comes first."""
        self.verbs = {
            "stream": self.open,
            "initialOffset": lambda _: _offset(self._reader.initialOffset()),
            "latestOffset": self.latest_offset,
            "reportLatestOffset": lambda _: _offset(self._reader.reportLatestOffset()),
            "getDefaultReadLimit": lambda _: {"maxBytes": getattr(self._reader.getDefaultReadLimit(), "max_bytes", None)},
            "prepareForTriggerAvailableNow": lambda _: {"done": self._reader.prepareForTriggerAvailableNow()},
            "partitions": self.partitions,
        }

    def open(self, request: Answer) -> Answer:
        """Make the reader; return how to decode records."""
        self._reader = stream_reader(request["options"], _schema(request["table"]))
        return _decoding(self._reader.request)

    def latest_offset(self, request: Answer) -> Answer:
        """Return the end of the next batch."""
        most = request["maxBytes"]
        limit = ReadAllAvailable() if most is None else ReadMaxBytes(most)
        return _offset(self._reader.latestOffset(json.loads(request["start"]), limit))

    def partitions(self, request: Answer) -> Answer:
        """Return the ranges of a batch."""
        parts = self._reader.partitions(json.loads(request["start"]), json.loads(request["end"]))
        return {"ranges": _ranges(parts, self._reader.request)}


def _offset(found: Any) -> Answer:
    return {"offset": json.dumps(found)}


def _one(part: InputPartition, request: ReadRequest) -> tuple[Any, ReadRequest]:
    """Return the split of a partition, and the request for it."""
    return part.value, request.beginning(part.starting) if isinstance(part, StreamPartition) else request


def _ranges(parts: Sequence[InputPartition], request: ReadRequest) -> list[Answer]:
    """Return the ranges of partitions, with the conditions that the JVM decides."""
    is_decoded = all(_column(field.name, field.dataType) is not None for field in request.schema.fields)
    found = []
    for part in parts:
        split, expected = _one(part, request)
        conditions = _conditions(expected.row_filter) if is_decoded else None
        common = {"conditions": conditions or [], "split": _packed(part)}
        found += [{**item, **common} for item in _range(split, conditions is None)]
    return found


def _range(split: Any, is_python: bool) -> Iterator[Answer]:
    """Yield the range of a split, from its first record on; nothing if no record starts in it."""
    if not isinstance(split, LogSplit):  # of a RabbitMQ folder
        at = dict.fromkeys(("base", "size", "begin", "end"), 0)
        yield {"file": split.folder, "store": split.store, **at, "python": True}
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
        "store": split.store, "python": is_python,
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


def _shows_trace(request: Answer) -> bool:
    """Return whether errors of a request come with a stack."""
    return TRACE in os.environ or BrokerStoreSource(request.get("options", {})).shows_trace


def _error(error: StoreError) -> Answer:
    """Return an error in the form in which Spark reports those of a Python worker."""
    return {"error": f"{type(error).__module__}.{type(error).__name__}: {error}"}


def main(source: IO[bytes], target: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    verbs: dict[str, Callable[[Answer], Answer]] = {
        "schema": schema_of,
        "choose": choose,
        "plan": plan,
        "read": lambda request: read(request, target),
        **StreamSide().verbs,
    }
    for line in source:
        request = json.loads(line)
        try:
            answer = verbs[request["verb"]](request)
        except StoreError as error:
            answer = {"error": traceback.format_exc()} if _shows_trace(request) else _error(error)
        target.write(json.dumps(answer).encode() + b"\n")
        target.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
