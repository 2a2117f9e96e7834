"""The file formats of an export: writers of one part each, and joining parts.

`jsonl` and CSV are written as blocks of finished lines, the other formats as Arrow batches.  Memory holds one at a
time; of Arrow batches two, the one that is being written and the one that is being made.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, Protocol

from storebytes.arrow_table import empty_batch

_CONTROLS = "\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff"  # and marks of direction
_CONTROL = re.compile(f"[{_CONTROLS}]")
_NEEDS_GUARD = re.compile(f"^\\s*['=+@\uff1d\uff0b\uff0d\uff20-]|[{_CONTROLS}]")  # the wide ones are formulas, too
CHECKSUM = "__CRC32#"  # the property depends on where and how a record was written, not on its content
_JSON = ("properties", "routing_keys")  # columns
CSV, CSV_GUARDED = "csv", "csv-guarded"  # the guarded cells are no formula for a spreadsheet, and no terminal obeys them


class ExportPart(Protocol):
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


def csv_text(lines: memoryview | bytes, header: Sequence[str], form: str) -> str:
    """Return JSON lines as rows of CSV, below a header unless it is empty.

    Keys are joined by spaces; properties, without the checksum property, and routing keys are JSON.
    """
    cell = _guarded_cell if form == CSV_GUARDED else _cell
    made = _Rows()
    writer = csv.writer(made)
    if header:
        writer.writerow(header)
    for line in bytes(lines).splitlines():
        row = json.loads(line)
        row["properties"].pop(CHECKSUM, None)
        writer.writerow([cell(*pair) for pair in row.items()])
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
    if name in _JSON:
        return json.dumps(value).replace("\x7f", "\\u007f")  # the one control character that JSON leaves as it is
    return str(value).lower() if isinstance(value, bool) else value


def _guarded_cell(name: str, value: Any) -> Any:
    """Return a cell that is safe in a spreadsheet; numbers, JSON and base64 need no guard."""
    made = _cell(name, value)
    is_text = isinstance(value, str) or name == "keys"
    return guarded(made) if is_text and name != "body_base64" else made


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


PARTS: dict[str, Callable[[BinaryIO, bool], ExportPart]] = {
    "jsonl": LinePart, CSV: LinePart, CSV_GUARDED: LinePart, "arrow": _ArrowPart, "parquet": _ParquetPart,
}  # fmt: skip


def join(form: str, parts: Sequence[str], out: str) -> None:
    """Join parts into one file, with the content of an uninterrupted export, a batch in memory at a time."""
    with open(out, "wb") as file:
        if PARTS[form] is LinePart:
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
        yield empty_batch(reader.schema)
        yield from (reader.get_batch(index) for index in range(reader.num_record_batches))
        return
    with pq.ParquetFile(part) as file:
        yield empty_batch(file.schema_arrow)
        for index in range(file.num_row_groups):
            yield from file.read_row_group(index).combine_chunks().to_batches()
