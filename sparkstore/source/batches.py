"""Arrow batches of a split of a log, for the batch source and the streaming source.

    for batch in record_batches(split, ReadRequest.of(options, schema)): ...

Only the schema's columns are built, with exactly the Arrow types that Spark expects.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from commitlog import CHECK_POSITION
from commitlog.arrow_columns import record_batch
from commitlog.checks import CHECK_READ
from commitlog.columns import Batch, without_fillers
from commitlog.row_filter import RowFilter
from storageio import MissingExtra, StoreCorrupt
from storebytes.finding import Finding

from ..errors import DataLost
from ..options import FAIL, REPORT, ReadOptions
from ..schema import PROBLEM_COLUMN, STORE_COLUMN, STORED_AS, arrow_schema
from .row_filter import filter_from, filter_of
from .split_reader import SplitReader, walk
from .splits import LogSplit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from .start_position import StartPosition

LOG = logging.getLogger(f"brokerstore.{__name__}")
MS_MAX = ((1 << 63) - 1) // 1000


@dataclass(frozen=True)
class ReadRequest:
    """What a task needs besides its split; it is pickled."""

    schema: StructType
    options: ReadOptions
    row_filter: RowFilter

    @classmethod
    def of(cls, options: ReadOptions, schema: StructType) -> ReadRequest:
        """Build a request from parsed options and a checked schema."""
        return cls(schema, options, filter_of(options))

    def beginning(self, starting: StartPosition | None) -> ReadRequest:
        """Return the request limited to a streaming query's start position."""
        return self if starting is None else replace(self, row_filter=filter_from(self.row_filter, starting))

    @cached_property
    def arrow(self) -> pa.Schema:
        """Return the Arrow schema of the batches."""
        return arrow_schema(self.schema)

    @cached_property
    def stored_columns(self) -> list[str]:
        """Return the columns that come from the log."""
        names = [name for name in self.schema.names if name not in (STORE_COLUMN, PROBLEM_COLUMN)]
        return list(dict.fromkeys(STORED_AS.get(name, name) for name in names))

    @cached_property
    def has_body(self) -> bool:
        """Return whether bodies are read."""
        return "body" in self.stored_columns

    @property
    def checks(self) -> int:
        """Return the checks of every record: lengths and offset always, checksums if requested or if bodies are read."""
        expected = self.options.check_crc
        is_checked = self.has_body if expected is None else expected
        return CHECK_READ if is_checked else CHECK_POSITION


def record_batches(split: LogSplit, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """The wanted messages of a split, in log order.

    Raises `StoreCorrupt` at the first bad place, and `DataLost` for a file that is gone, unless the options say otherwise.
    """
    for finding in split.findings:
        yield from damage_batches(finding, split.store, split.file_start, request)
    if split.begin >= split.end:
        return
    try:
        reader = SplitReader(split)
    except DataLost as error:
        if request.options.fail_on_data_loss:
            raise
        LOG.warning("%s", error)
        return
    for found in walk(reader, request.checks, request.options.batch_rows):
        if isinstance(found, Finding):
            yield from damage_batches(found, split.store, split.file_start, request)
            continue
        expected = request.row_filter.apply(without_fillers(found))
        if len(expected.positions):
            yield from _made(expected, split, request)


def damage_batches(finding: Finding, store: str, file_start: int, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """Report damage as the options choose: raise an error, log a line, or yield a row."""
    if request.options.bad_records == FAIL:
        reason = finding.kind.replace("_", " ")
        found = f"{finding.found}; the option badRecords=skip or report continues after it"
        raise StoreCorrupt(reason, file=finding.file, offset=finding.offset, expected=finding.expected, found=found)
    if request.options.bad_records != REPORT:
        LOG.warning("%s at byte %d: %s: expected %s, found %s", *finding[:5])
        return
    row: dict[str, Any] = {STORE_COLUMN: store, "physical_offset": file_start + finding.offset}
    row[PROBLEM_COLUMN] = {
        "file": finding.file, "offset": finding.offset, "kind": finding.kind,
        "expected": str(finding.expected), "found": str(finding.found),
    }  # fmt: skip
    yield _of_rows([row], request)


def _of_rows(rows: list[dict[str, Any]], request: ReadRequest) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in request.arrow]
    return pa.RecordBatch.from_arrays(columns, schema=request.arrow)


def _made(batch: Batch, split: LogSplit, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    if request.options.is_plain and request.has_body:
        batch, bodies, findings = _unpacked(batch, split)
        for finding in findings:
            yield from damage_batches(finding, split.store, split.file_start, request)
    else:
        bodies = None
    if len(batch.positions):
        yield _columns(batch, bodies, split.store, request)


def _columns(batch: Batch, bodies: list[bytes] | None, store: str, request: ReadRequest) -> pa.RecordBatch:
    """Build the schema's columns in its order and types."""
    import pyarrow as pa

    rows = len(batch.positions)
    expected = [name for name in request.stored_columns if name != "body" or bodies is None]
    built = record_batch(batch, expected)
    made: dict[str, Any] = dict(zip(expected, built.columns, strict=True))
    if bodies is not None:
        made["body"] = pa.array(bodies, pa.binary())
    arrays = []
    for field in request.arrow:
        if field.name == STORE_COLUMN:
            arrays.append(pa.repeat(pa.scalar(store, field.type), rows))
        elif field.name == PROBLEM_COLUMN:
            arrays.append(pa.nulls(rows, field.type))
        else:
            arrays.append(_as(made[STORED_AS.get(field.name, field.name)], field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=request.arrow)


def _as(column: Any, kind: Any) -> Any:
    """Convert a column to the type that Spark expects; invalid UTF-8 in a body as text becomes U+FFFD."""
    import pyarrow as pa

    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(column.offsets, column.values, type=kind)
    if pa.types.is_timestamp(kind):
        return _times(column, kind)
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        return pa.array([bytes(item).decode("utf-8", "replace") for item in column.to_pylist()], kind)


def _times(column: Any, kind: Any) -> Any:
    """Convert milliseconds to timestamps; a number that microseconds cannot express becomes null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return column.cast(pa.timestamp("ms", kind.tz)).cast(kind)
    except pa.ArrowInvalid:
        is_small = pc.and_(pc.less_equal(column, MS_MAX), pc.greater_equal(column, -MS_MAX))
        return _times(pc.if_else(is_small, column, pa.scalar(None, column.type)), kind)


def _unpacked(batch: Batch, split: LogSplit) -> tuple[Batch, list[bytes] | None, list[Finding]]:
    """Decompress bodies; the list is None where no record of the batch is compressed."""
    import numpy as np

    from commitlog.columns import fixed_columns
    from commitlog.compression import decompress
    from commitlog.layout import COMPRESSED

    flags = fixed_columns(batch, ["sys_flag"])["sys_flag"]
    if not (flags & COMPRESSED).any():
        return batch, None, []
    bodies, good, findings = [], np.ones(len(flags), bool), []
    for row, (body, flag) in enumerate(zip(record_batch(batch, ["body"]).column(0).to_pylist(), flags, strict=True)):
        offset = batch.base + int(batch.positions[row]) - split.file_start
        try:
            bodies.append(decompress(body, int(flag), file=split.file, offset=offset))
        except MissingExtra:
            raise
        except StoreCorrupt as error:
            good[row] = False
            findings.append(Finding(split.file, offset, "bad_compression", str(error.expected), str(error.found)))
    kept = batch if good.all() else batch._replace(positions=batch.positions[good], sizes=batch.sizes[good])
    return kept, bodies, findings
