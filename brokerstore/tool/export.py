"""`export` of a RocketMQ folder; one bounded batch in memory at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

from commitlog.findings import Finding
from commitlog.walk import LogFiles, Piece
from storageio import DiskError, DiskFull, InvalidMessage, MissingExtra

from .codes import CLEAN, PROBLEM
from .export_forms import csv_text
from .export_parts import Parts, write_parts
from .log_commands import tell
from .message_json import line_blocks
from .output import emit_block, progress
from .target import Target
from .wanted import Wanted

Item = tuple[Any, int, int]  # a block or batch, the physical offset behind it, the log's bytes since the last


def export_messages(target: Target, form: str, out: str | None, wanted: Wanted, quiet: bool) -> int:
    """Every wanted message; damage is said and passed over, and makes the exit code 1."""
    files = target.files()
    about = {"folders": [os.path.abspath(folder) for folder in target.log_folders], "wanted": list(wanted)}
    total = sum(file.size_bytes for file in files.files)

    def items(position: int, told: list[Any]) -> Iterator[Item]:
        if position and files.files and position < files.files[0].start_offset:
            raise InvalidMessage(f"the log begins at {files.files[0].start_offset} now; the export stopped at {position}")
        pieces = pieces_from(files, position, told)
        return _lines(pieces, wanted, position) if form == "jsonl" else _batches(pieces, wanted, position)

    with progress("export", total, wanted=not quiet) as advance:
        return export_items(items, form, out, about, advance)


def export_items(
    items: Callable[[int, list[Any]], Iterator[Item]], form: str, out: str | None, about: dict[str, Any],
    advance: Callable[[int], None] = lambda _done: None,
) -> int:  # fmt: skip
    """`items(position, told)`, to a file that can be interrupted, or to stdout; the exit code."""
    told: list[Any] = []
    try:
        if out is None:
            _to_stdout(items(0, told), form)
            return PROBLEM if told else CLEAN
        with _named(out):
            parts = Parts(out, form, about)
            write_parts(parts, _counted(items(parts.position, told), advance), told)
        return PROBLEM if parts.problems or told else CLEAN
    except ModuleNotFoundError as error:
        raise MissingExtra("this needs the 'arrow' extra: pip install 'brokerstore[arrow]'") from error


@contextlib.contextmanager
def _named(out: str) -> Iterator[None]:
    """What the system refuses is an error with the file's name."""
    try:
        yield
    except OSError as error:
        file = error.filename if isinstance(error.filename, str) else out
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else DiskError
        raise kind("write", file, error.errno or 0, error.strerror or str(error)) from error


def _counted(items: Iterator[Item], advance: Callable[[int], None]) -> Iterator[Item]:
    for item in items:
        yield item
        advance(item[2])


def _to_stdout(items: Iterator[Item], form: str) -> None:
    is_first = True
    for item, _, _ in items:
        if form == "csv":
            sys.stdout.write(csv_text(item, is_first))
        else:
            emit_block(item)
        is_first = False


@contextlib.contextmanager
def text_file(out: str | None) -> Iterator[Callable[[str], object]]:
    """stdout, or a file that stands there only when it is whole."""
    if out is None:
        yield sys.stdout.write
        return
    part = f"{out}.part"
    try:
        with open(part, "w", encoding="utf-8", newline="") as file:
            yield file.write
        os.replace(part, out)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def pieces_from(files: LogFiles, start: int, told: list[Finding]) -> Iterator[Piece]:
    """Good records from a physical offset on; what is wrong from there on is said."""
    for finding in files.check():
        tell(finding, told)
    files.files = [file for file in files.files if file.start_offset + file.size_bytes > start]
    begins = {file.path: file.start_offset for file in files.files}
    for step in files.walk():
        if isinstance(step, Finding) and begins[step.file] + step.offset >= start:
            tell(step, told)
        elif isinstance(step, Piece) and step.base + step.stop > start:
            first = bisect_left(step.positions, start - step.base)
            yield step._replace(start=max(step.start, start - step.base), positions=step.positions[first:])


def _lines(pieces: Iterator[Piece], wanted: Wanted, position: int) -> Iterator[Item]:
    """Blocks of lines; so that a part has a beginning, an empty one first."""
    yield memoryview(b""), position, 0
    for piece in pieces:
        positions = wanted.positions(piece)
        at = piece.start
        for block, done in line_blocks(piece, positions):
            stop = positions[done] if done < len(positions) else piece.stop
            yield block, piece.base + stop, stop - at
            at = stop
        if not positions:
            yield memoryview(b""), piece.base + piece.stop, piece.stop - at


def _batches(pieces: Iterator[Piece], wanted: Wanted, position: int) -> Iterator[Item]:
    """Arrow batches."""
    import pyarrow as pa

    from commitlog.arrow_columns import record_batch, schema
    from commitlog.columns import stretches

    plain = pa.schema([field.with_type(_plain(field.type)) for field in schema()])
    yield pa.RecordBatch.from_pylist([], schema=plain), position, 0  # so that an empty log has its columns
    for piece in pieces:
        for rows in stretches(piece.view, piece.base, piece.positions, piece.stop):
            batch = record_batch(rows)
            columns = [column.cast(_plain(column.type)) for column in batch.columns]
            size = int(rows.sizes.sum())
            behind = piece.base + int(rows.positions[0]) + size
            yield wanted.rows(pa.RecordBatch.from_arrays(columns, schema=plain)), behind, size


def _plain(kind: Any) -> Any:
    """Without dictionaries, which the file forms treat each in their own way."""
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind
