"""`export` of a RocketMQ folder; one bounded batch in memory at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from commitlog.findings import Finding
from commitlog.walk import LogFiles, Piece
from storageio import DiskError, DiskFull, InvalidMessage, MissingExtra

from .codes import CLEAN, PROBLEM
from .export_forms import GuardedCsvPart, csv_text
from .export_parts import Parts, write_parts
from .log_commands import tell
from .message_json import line_blocks
from .output import emit_block, emit_csv, emit_json, progress, say, size_text
from .target import Target
from .wanted import Wanted

Item = tuple[
    Any, int, int, int
]  # a block or batch, the physical offset behind it, the log's bytes since the last, its messages


class Order(NamedTuple):
    """What an export is to be; with `as_json` a summary of a file is the answer."""

    form: str
    out: str | None
    limit: int | None
    as_json: bool
    quiet: bool
    csv_guard: bool = True

    @property
    def written_form(self) -> str:
        """`form`, or that of CSV whose cells are guarded."""
        return GuardedCsvPart.form if self.form == "csv" and self.csv_guard else self.form


def export_messages(target: Target, order: Order, wanted: Wanted) -> int:
    """Every wanted message; damage is said and passed over, and makes the exit code 1."""
    files = target.files()
    about = {"folders": [os.path.abspath(folder) for folder in target.log_folders], "wanted": list(wanted)}
    total = sum(file.size_bytes for file in files.files)

    def items(position: int, rows: int, told: list[Any]) -> Iterator[Item]:
        if position and files.files and position < files.files[0].start_offset:
            raise InvalidMessage(f"the log begins at {files.files[0].start_offset} now; the export stopped at {position}")
        pieces = pieces_from(files, position, told)
        left = None if order.limit is None else order.limit - rows
        return (_lines if order.form == "jsonl" else _batches)(pieces, wanted, position, left)

    return export_items(items, order, about, total)


def export_items(
    items: Callable[[int, int, list[Any]], Iterator[Item]], order: Order, about: dict[str, Any], total: int
) -> int:  # fmt: skip
    """`items(position, rows, told)`, to a file that can be interrupted, or to stdout; the exit code."""
    told: list[Any] = []
    try:
        is_mixed = order.out is None and sys.stdout.isatty()  # a bar would stand among the messages
        with progress("export", total, wanted=not order.quiet and not is_mixed) as advance:
            if order.out is None:
                _to_stdout(_counted(items(0, 0, told), advance), order.written_form)
                return PROBLEM if told else CLEAN
            with named_file(order.out):
                parts = Parts(order.out, order.written_form, {**about, "limit": order.limit})
                before = parts.problems
                write_parts(parts, _counted(items(parts.position, parts.rows, told), advance), told)
        problems = before + len(told)
        _say_written(order, parts.rows, problems)
        return PROBLEM if problems else CLEAN
    except ModuleNotFoundError as error:
        raise MissingExtra("this needs the 'arrow' extra: pip install 'brokerstore[arrow]'") from error


def _say_written(order: Order, rows: int, problems: int) -> None:
    """What came of it."""
    assert order.out is not None
    size = os.path.getsize(order.out)
    if order.as_json:
        emit_json({"file": order.out, "form": order.form, "messages": rows, "size_bytes": size, "problems": problems})
    elif not order.quiet:
        say(f"brokerstore: {rows} messages in {order.out}, {size_text(size)}")


@contextlib.contextmanager
def named_file(out: str) -> Iterator[None]:
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
    for item, _, _, _ in items:
        if form.startswith("csv"):
            emit_csv(csv_text(item, is_first, form))
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
        with named_file(out):
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


def _lines(pieces: Iterator[Piece], wanted: Wanted, position: int, left: int | None) -> Iterator[Item]:
    """Blocks of lines, `left` at most; so that a part has a beginning, an empty one first."""
    yield memoryview(b""), position, 0, 0
    for piece in pieces if left != 0 else ():
        positions = wanted.positions(piece)[:left]
        at, before = piece.start, 0
        for block, done in line_blocks(piece, positions):
            stop = positions[done] if done < len(positions) else piece.stop
            yield block, piece.base + stop, stop - at, done - before
            at, before = stop, done
        if not positions:
            yield memoryview(b""), piece.base + piece.stop, piece.stop - at, 0
        if left is not None:
            left -= len(positions)
            if left == 0:
                return


def _batches(pieces: Iterator[Piece], wanted: Wanted, position: int, left: int | None) -> Iterator[Item]:
    """Arrow batches, of `left` rows at most in all."""
    import pyarrow as pa

    from commitlog.arrow_columns import record_batch, schema
    from commitlog.columns import stretches

    plain = pa.schema([field.with_type(_plain(field.type)) for field in schema()])
    yield pa.RecordBatch.from_pylist([], schema=plain), position, 0, 0  # so that an empty log has its columns
    for piece in pieces if left != 0 else ():
        for rows in stretches(piece.view, piece.base, piece.positions, piece.stop):
            batch = record_batch(rows)
            columns = [column.cast(_plain(column.type)) for column in batch.columns]
            size = int(rows.sizes.sum())
            behind = piece.base + int(rows.positions[0]) + size
            chosen = wanted.rows(pa.RecordBatch.from_arrays(columns, schema=plain)).slice(0, left)
            yield chosen, behind, size, chosen.num_rows
            if left is not None:
                left -= chosen.num_rows
                if left == 0:
                    return


def _plain(kind: Any) -> Any:
    """Without dictionaries, which the file forms treat each in their own way."""
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind
