"""The file formats of an export: writers of one part each, and joining parts.

`jsonl` is written as blocks of finished lines, the other formats as Arrow batches.  Memory holds one at a time; of Arrow
batches two, the one that is being written and the one that is being made.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from base64 import b64encode
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, Protocol

_CONTROLS = "\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff"  # and marks of direction
_CONTROL = re.compile(f"[{_CONTROLS}]")
_NEEDS_GUARD = re.compile(f"^\\s*['=+@\uff1d\uff0b\uff0d\uff20-]|[{_CONTROLS}]")  # the wide ones are formulas, too
_JSON = ("properties", "routing_keys")  # columns


class Part(Protocol):
    """A file that takes what is exported; it is complete when it is closed."""

    def write(self, item: Any) -> object:
        """Write the next block or batch."""

    def close(self) -> object:
        """Complete and close the file."""


class LinePart:
    """Lines as they come."""

    def __init__(self, file: BinaryIO, _is_first: bool) -> None:
        """Take over the file."""
        self._file = file

    def write(self, item: memoryview | bytes) -> None:
        """Write a block of finished lines."""
        self._file.write(item)

    def close(self) -> None:
        """Sync and close the file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


class CsvPart(LinePart):
    """CSV: keys are joined by spaces, properties are JSON, the body is base64; only the first part has a header."""

    form = "csv"

    def __init__(self, file: BinaryIO, is_first: bool) -> None:
        """Take over the file."""
        super().__init__(file, is_first)
        self._needs_header = is_first

    def write(self, item: Any) -> None:
        """Write an Arrow batch."""
        super().write(csv_text(item, self._needs_header, self.form).encode())
        self._needs_header = False


class GuardedCsvPart(CsvPart):
    """CSV whose cells no spreadsheet takes for a formula and no terminal obeys."""

    form = "csv-guarded"


def csv_text(batch: Any, with_header: bool, form: str) -> str:
    """Return the rows of an Arrow batch in one of the two CSV formats."""
    cell = _guarded_cell if form == GuardedCsvPart.form else _cell
    made = _Rows()
    writer = csv.writer(made)
    if with_header:
        writer.writerow("body_base64" if name == "body" else name for name in batch.schema.names)
    writer.writerows([cell(name, value) for name, value in row.items()] for row in batch.to_pylist())
    return "".join(made)


class _Rows(list[str]):
    """Rows that end in a line feed.

    The writer ends them with CR LF, so that it quotes a cell that holds either character.
    """

    def write(self, row: str) -> None:
        self.append(row.removesuffix("\r\n") + "\n")


def _cell(name: str, value: Any) -> Any:
    if name == "keys":
        return " ".join(value)  # a key has no spaces
    if name == "body":
        return b64encode(value).decode("ascii")
    if isinstance(value, list):
        value = json.dumps(dict(value) if name == "properties" else value)
    if name in _JSON:
        return value.replace("\x7f", "\\u007f")  # the one control character that JSON leaves as it is
    return str(value).lower() if isinstance(value, bool) else value


def _guarded_cell(name: str, value: Any) -> Any:
    """Return a cell that is safe in a spreadsheet; numbers, JSON and base64 need no guard."""
    made = _cell(name, value)
    is_text = isinstance(value, str) or name == "keys"
    return guarded(made) if is_text and name not in ("body", *_JSON) else made


def guarded(text: str) -> str:
    """Return a cell that is shown as it is: no formula, and no control character.

    A cell that needs it gets an apostrophe in front, and its control characters and backslashes as escapes.  Only such cells
    begin with an apostrophe, so the text can be recovered.

    >>> guarded("=1+1"), guarded("1+1"), guarded("'a"), guarded("a\\\\b\\x07")
    ("'=1+1", '1+1', "''a", "'a\\\\\\\\b\\\\x07")
    """
    if _NEEDS_GUARD.search(text) is None:
        return text
    return "'" + _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text.replace("\\", "\\\\"))


class _ArrowPart:
    """A writer that is created with the first batch's schema; later empty batches are skipped.

    A second thread writes a batch, in pyarrow's own code and without the GIL, while the next one is made.
    """

    def __init__(self, file: BinaryIO, _is_first: bool) -> None:
        """Take over the file."""
        self._file = file
        self._writer: Any = None
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    def write(self, item: Any) -> None:
        """Write an Arrow batch; raise the error of the previous one."""
        if self._writer is None:
            self._writer = self._make(item.schema)
        self._wait()
        if item.num_rows:
            self._writing = self._thread.submit(self._writer.write_batch, item)

    def _wait(self) -> None:
        """Wait for the batch that is being written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _make(self, schema: Any) -> Any:
        import pyarrow as pa

        return pa.ipc.new_file(self._file, schema)

    def close(self) -> None:
        """Sync and close the file."""
        try:
            self._wait()
            if self._writer is not None:
                self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._thread.shutdown()
            self._file.close()


UNIQUE = ("body", "message_id", "keys", "properties", "msg_id")  # no dictionary, least or greatest value would help a reader


def parquet_options(names: Sequence[str]) -> dict[str, Any]:
    """Return the options of a Parquet writer for these columns."""
    common = [name for name in names if name not in UNIQUE]
    dictionaries = [*common, "properties.key_value.key", "properties.key_value.value"]
    return {"compression": "zstd", "use_dictionary": dictionaries, "write_statistics": common}


class _ParquetPart(_ArrowPart):
    """A Parquet writer; each batch becomes a row group."""

    def _make(self, schema: Any) -> Any:
        import pyarrow.parquet as pq

        return pq.ParquetWriter(self._file, schema, **parquet_options(schema.names))


PARTS: dict[str, Callable[[BinaryIO, bool], Part]] = {
    "jsonl": LinePart, CsvPart.form: CsvPart, GuardedCsvPart.form: GuardedCsvPart, "arrow": _ArrowPart, "parquet": _ParquetPart,
}  # fmt: skip


def join(form: str, parts: Sequence[str], out: str) -> None:
    """Join parts into one file, with the content of an uninterrupted export, a batch in memory at a time."""
    with open(out, "wb") as file:
        if form in ("jsonl", CsvPart.form, GuardedCsvPart.form):
            for part in parts:
                with open(part, "rb") as source:
                    shutil.copyfileobj(source, file, 1 << 20)
            return
        made = PARTS[form](file, True)
        for part in parts:
            for batch in _batches(form, part):
                made.write(batch)
        made.close()


def _batches(form: str, part: str) -> Any:
    """Yield every batch of a part, after an empty one that has the columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if form == "arrow":
        reader = pa.ipc.open_file(pa.memory_map(part))
        yield pa.RecordBatch.from_pylist([], schema=reader.schema)
        yield from (reader.get_batch(index) for index in range(reader.num_record_batches))
        return
    with pq.ParquetFile(part) as file:
        yield pa.RecordBatch.from_pylist([], schema=file.schema_arrow)
        for index in range(file.num_row_groups):
            yield from file.read_row_group(index).combine_chunks().to_batches()
