"""`export` of a RocketMQ folder; one bounded batch in memory at a time."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

from commitlog.findings import Finding
from commitlog.walk import LogFiles, Piece
from storageio import MissingExtra

from .codes import CLEAN, PROBLEM
from .log_commands import json_blocks, tell
from .output import progress
from .target import Target
from .wanted import Wanted

Write = Callable[[Any], object]


def export_messages(target: Target, form: str, out: str | None, wanted: Wanted, quiet: bool) -> int:
    """Every wanted message; damage is said and passed over, and makes the exit code 1."""
    told: list[Finding] = []
    files = target.files()
    if form == "jsonl":
        with text_file(out) as write:
            for block in json_blocks(files, told, wanted, None):
                write(str(block, "ascii"))
        return PROBLEM if told else CLEAN
    total = sum(file.size_bytes for file in files.files)
    try:
        with progress("export", total, wanted=not quiet) as advance, _WRITERS[form](out) as write:
            for batch in _batches(files, told, advance):
                write(wanted.rows(batch))
    except ModuleNotFoundError as error:
        raise MissingExtra("this needs the 'arrow' extra: pip install 'brokerstore[arrow]'") from error
    return PROBLEM if told else CLEAN


@contextlib.contextmanager
def text_file(out: str | None) -> Iterator[Callable[[str], object]]:
    """stdout, or a file that stands there only when it is whole."""
    if out is None:
        yield sys.stdout.write
        return
    with _when_whole(out) as part, open(part, "w", encoding="utf-8", newline="") as file:
        yield file.write


@contextlib.contextmanager
def _when_whole(out: str) -> Iterator[str]:
    """The name of a file beside `out` that takes its place in the end."""
    part = f"{out}.part"
    try:
        yield part
        os.replace(part, out)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def _batches(files: LogFiles, told: list[Finding], advance: Callable[[int], None]) -> Iterator[Any]:
    """Arrow batches of every good record."""
    import pyarrow as pa

    from commitlog.arrow_columns import record_batch, schema
    from commitlog.columns import stretches

    for finding in files.check():
        tell(finding, told)
    plain = pa.schema([field.with_type(_plain(field.type)) for field in schema()])
    yield pa.RecordBatch.from_pylist([], schema=plain)  # so that an empty log has its columns
    for step in files.walk():
        if isinstance(step, Finding):
            tell(step, told)
        elif isinstance(step, Piece):
            for rows in stretches(step.view, step.base, step.positions, step.stop):
                batch = record_batch(rows)
                columns = [column.cast(_plain(column.type)) for column in batch.columns]
                yield pa.RecordBatch.from_arrays(columns, schema=plain)
            advance(step.stop - step.start)


def _plain(kind: Any) -> Any:
    """Without dictionaries, which the file forms treat each in their own way."""
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


@contextlib.contextmanager
def _parquet(out: str) -> Iterator[Write]:
    import pyarrow.parquet as pq

    with _when_whole(out) as part, _Late(lambda schema: pq.ParquetWriter(part, schema, compression="zstd")) as writer:
        yield writer.write


@contextlib.contextmanager
def _arrow(out: str) -> Iterator[Write]:
    import pyarrow as pa

    with _when_whole(out) as part, _Late(lambda schema: pa.ipc.new_file(part, schema)) as writer:
        yield writer.write


class _Late:
    """A writer that is made with the first batch's schema; later empty batches are left out."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make
        self._writer: Any = None

    def write(self, batch: Any) -> None:
        if self._writer is None:
            self._writer = self._make(batch.schema)
        if batch.num_rows:
            self._writer.write_batch(batch)

    def __enter__(self) -> _Late:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()


@contextlib.contextmanager
def _csv(out: str | None) -> Iterator[Write]:
    """Keys with spaces between them, properties as JSON, the body in base64."""
    header: list[str] = []

    with text_file(out) as write:

        def rows(batch: Any) -> None:
            made = io.StringIO(newline="")
            writer = csv.writer(made, lineterminator="\n")
            if not header:
                header.extend("body_base64" if name == "body" else name for name in batch.schema.names)
                writer.writerow(header)
            writer.writerows(_csv_row(row) for row in batch.to_pylist())
            write(made.getvalue())

        yield rows


def _csv_row(row: dict[str, Any]) -> list[Any]:
    row["keys"] = " ".join(row["keys"])
    row["properties"] = json.dumps(dict(row["properties"]))
    row["body"] = b64encode(row["body"]).decode("ascii")
    return list(row.values())


_WRITERS: dict[str, Callable[[Any], contextlib.AbstractContextManager[Write]]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _csv,
}
