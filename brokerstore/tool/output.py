"""Output: JSON for programs; text, tables and progress bars for people.

Text for people has every character that a terminal could act on escaped (`escapes`); JSON is written in ASCII.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from storageio import DiskError, DiskFull, InvalidMessage

from .codes import CLEAN
from .escapes import plain_stderr, printable, printable_lines

if TYPE_CHECKING:
    from .backends import Backend

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_encode = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode
UNSUPPORTED = "unsupported_format"  # the kind of a problem that is no damage


class OutputClosedError(Exception):
    """The program that reads our output has closed it (`| head`)."""


class Table(NamedTuple):
    """Rows under headers; the cells may be of any type."""

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]


class Answer(NamedTuple):
    """The answer of a command: a JSON object, the same as lines, fields and tables, and the exit code."""

    facts: dict[str, Any]
    text: Sequence[str | dict[str, object] | Table]
    code: int = CLEAN


def show(answer: Answer, as_json: bool) -> int:
    """Print an answer and return its exit code."""
    if as_json:
        emit_json(answer.facts)
        return answer.code
    _show_text(answer.text)
    return answer.code


def _show_text(text: Sequence[str | dict[str, object] | Table]) -> None:
    for part in text:
        if isinstance(part, str):
            emit(part)
        elif isinstance(part, Table):
            table(*part)
        else:
            fields(part)


def show_live(views: Iterable[Sequence[str | dict[str, object] | Table]]) -> None:
    """Show each view in place of the one before on a terminal, else below it."""
    if sys.stdout.isatty():
        with contextlib.suppress(ModuleNotFoundError):
            _show_rich_views(views)
            return
    for number, view in enumerate(views):
        if number:
            emit("")
        _show_text(view)
        sys.stdout.flush()


def _show_rich_views(views: Iterable[Sequence[str | dict[str, object] | Table]]) -> None:
    from rich.console import Group  # 80 ms, only on a terminal
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, vertical_overflow="crop") as live:
        for view in views:
            parts = [_rich_table(*_cells(*part)) if isinstance(part, Table) else Text(printable(str(part))) for part in view]
            live.update(Group(*parts), refresh=True)


def show_messages(
    backend: Backend, messages: Iterable[Any], as_json: bool, *, details: bool = False, heading: bool = True
) -> int:  # fmt: skip
    """Print messages as JSON lines, as rows under a heading, or with every field; return how many there were."""
    if not as_json and not details and heading and backend.heading is not None:
        emit(backend.heading)
    count = 0
    for message in messages:
        count += 1
        if as_json:
            found = backend.to_json(message)
            if found is not None:
                emit_json(found)
        elif details:
            fields(backend.details(message) or {})
        else:
            emit(backend.row(message))
    return count


def emit_json(value: Any) -> None:
    """Write one JSON line to stdout."""
    sys.stdout.write(json_line(value))


def json_line(value: Any) -> str:
    """Return JSON in ASCII without control characters, with its line end."""
    return _encode(value).replace("\x7f", "\\u007f") + "\n"  # JSON does not require this escape


def emit_block(lines: memoryview) -> None:
    """Write ASCII to stdout, bypassing its text layer where that saves time and changes nothing."""
    raw = getattr(sys.stdout, "buffer", None)
    if raw is None or codecs.lookup(sys.stdout.encoding).name not in ("utf-8", "ascii", "iso8859-1"):
        sys.stdout.write(str(lines, "ascii"))
        return
    sys.stdout.flush()
    raw.write(lines)


def emit(text: str) -> None:
    """Write a line for people to stdout."""
    sys.stdout.write(printable(text) + "\n")


def emit_csv(text: str) -> None:
    """Write lines of CSV to stdout, escaped on a terminal."""
    sys.stdout.write(printable_lines(text) if sys.stdout.isatty() else text)


def say(text: str) -> None:
    """Write a line of diagnostics to stderr."""
    sys.stderr.write(printable(text) + "\n")


def time_text(timestamp_ms: int) -> str:
    """Return a time as ISO 8601 in UTC, or the number itself if it is outside the calendar."""
    try:
        return (_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(timestamp_ms)


def time_ms(text: str) -> int:
    """Parse milliseconds, or an ISO 8601 time in UTC unless it names a zone; raise `ValueError` for anything else.

    >>> time_ms("1970-01-01T00:00:01Z")
    1000
    """
    if text.isascii() and text.isdigit():
        return int(text)
    found = datetime.fromisoformat(text)
    moment = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def size_text(size_bytes: int) -> str:
    """Return a size with its unit.

    >>> size_text(1 << 30)
    '1.0 GiB'
    """
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}" if unit != "B" else f"{size_bytes} B"
        size /= 1024
    return f"{size:.1f} TiB"


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun in the right number.

    >>> count_text(1, "file"), count_text(0, "file")
    ('1 file', '0 files')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def problem_text(problem: Any) -> str:
    """Return a problem or note of either engine as one line."""
    place = f"{problem.file} at byte {problem.offset}"
    if problem.kind == UNSUPPORTED:
        return f"{place}: unsupported format: {problem.found} (supported: {problem.expected})"
    if problem.kind == "not_read":
        return f"{problem.file}: not read: {problem.found}"
    return f"{place}: {problem.kind.replace('_', ' ')}: expected {problem.expected}, found {problem.found}"


def problem_json(problem: Any) -> dict[str, Any]:
    """Return a problem or note of either engine with the fixed JSON keys."""
    return {key: getattr(problem, key) for key in ("file", "offset", "kind", "expected", "found")}


def check_answer(
    verdict: str, problems: Sequence[Any], notes: Sequence[Any], counts: dict[str, Any], details: str, more: dict[str, Any],
    code: int, ok: bool,
) -> Answer:  # fmt: skip
    """Return the answer of `verify`: the verdict, each problem and note, and what was checked."""
    lists = {"problems": [problem_json(one) for one in problems], "notes": [problem_json(one) for one in notes]}
    lines = [f"problem: {problem_text(one)}" for one in problems] + [f"note: {problem_text(one)}" for one in notes]
    return Answer({"ok": ok, **lists, "counts": counts, **more}, [verdict, *lines, details], code)


def in_use_keys(checked_to: int | None) -> dict[str, object]:
    """Return the JSON keys that a check adds for a store in use."""
    return {} if checked_to is None else {"in_use": True, "checked_to_offset": checked_to}


def say_in_use(checked_to: int | None) -> None:
    """Report on stderr that a check of a store in use ended before the log's end."""
    if checked_to is not None:
        say(f"brokerstore: checked up to offset {checked_to}; the store is in use")


def body_text(body: bytes, size_max: int) -> str:
    """Return the beginning of a body, as text if it is UTF-8, else in hex."""
    part = body[:size_max]
    more = "..." if len(body) > size_max else ""
    try:
        return printable(part.decode("utf-8")) + more
    except UnicodeDecodeError:
        return part[: size_max // 2].hex() + more


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write columns to stdout, numbers right-aligned; rich draws them on a terminal."""
    headers, texts, are_numbers = _cells(headers, rows)
    if sys.stdout.isatty():
        with contextlib.suppress(ModuleNotFoundError):
            _print_rich(_rich_table(headers, texts, are_numbers))
            return
    widths = [max([len(header), *(len(row[column]) for row in texts)]) for column, header in enumerate(headers)]
    for row in [list(headers), *texts]:
        line = "  ".join(
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, are_numbers, strict=True)
        )
        sys.stdout.write(line.rstrip() + "\n")


def _cells(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> tuple[Sequence[str], list[list[str]], list[bool]]:
    """Return the headers, the cells as text, and whether each column has only numbers."""
    texts = [[printable(str(cell)) for cell in row] for row in rows]
    return headers, texts, [all(_is_number(row[column]) for row in texts) for column in range(len(headers))]


def _is_number(text: str) -> bool:
    """Return whether a cell is a number, or the word for a missing one.

    >>> [_is_number(text) for text in ("1,024", "-7", "none", "1.0 KiB")]
    [True, True, True, False]
    """
    return text in ("none", "unknown") or (text.removeprefix("-").replace(",", "").isdigit() and text.isascii())


def _rich_table(headers: Sequence[str], rows: list[list[str]], are_numbers: list[bool]) -> Any:
    from rich.table import Column  # 80 ms, only on a terminal
    from rich.table import Table as RichTable
    from rich.text import Text

    columns = [
        Column(header, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")  # never split a number
        for header, is_number in zip(headers, are_numbers, strict=True)
    ]
    drawn = RichTable(*columns, box=None, header_style="bold")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn


def _print_rich(drawn: Any) -> None:
    from rich.console import Console

    Console().print(drawn)


def fields(pairs: dict[str, object]) -> None:
    """Write names and values to stdout, one pair a line."""
    width = max((len(name) for name in pairs), default=0)
    for name, value in pairs.items():
        emit(f"{name.ljust(width)}  {value}")


@contextlib.contextmanager
def progress(title: str, total: int, *, quiet: bool = False, is_bytes: bool = True) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the bytes, or items, done since its last call; a total of 0 is unknown.

    On a terminal, stderr shows a bar with rate and time left; elsewhere nothing is shown.
    """
    bar = _bar(is_bytes) if not quiet and sys.stderr.isatty() else None
    if bar is None:
        yield lambda _done: None
        return
    with bar:
        task = bar.add_task(title, total=total or None)
        yield lambda done: bar.advance(task, done)
        if total:
            bar.update(task, completed=total)


def _bar(is_bytes: bool) -> Any:
    """Return a progress bar, or None if rich is not installed."""
    try:
        from rich.console import Console  # 80 ms, only on a terminal
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
    except ModuleNotFoundError:
        return None
    amounts = (DownloadColumn(), TransferSpeedColumn()) if is_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *amounts, TimeRemainingColumn())
    # no redirection: rich would send stdout to the bar's stream, even if stdout is a file
    return Progress(*columns, console=Console(file=plain_stderr()), transient=True, redirect_stdout=False)


@contextlib.contextmanager
def named_file(out: str) -> Iterator[None]:
    """Turn an error of the operating system into a `DiskError` that names the file."""
    try:
        yield
    except OSError as error:
        file = error.filename if isinstance(error.filename, str) else out
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else DiskError
        raise kind("write", file, error.errno or 0, error.strerror or str(error)) from error


def file_to_write(out: str) -> str:
    """Return a path with its symlinks resolved; raise `InvalidMessage` unless it is free or a regular file.

    A finished file is renamed into place. In the place of a device, such as /dev/null, it would harm every other program.
    """
    path = os.path.realpath(out)
    if os.path.lexists(path) and not os.path.isfile(path):
        raise InvalidMessage(f"{out}: not a regular file; expected the name of a file to write")
    return path


@contextlib.contextmanager
def text_file(out: str | None) -> Iterator[Callable[[str], object]]:
    """Yield a function that writes to stdout, or to a file that appears only when it is complete."""
    if out is None:
        yield sys.stdout.write
        return
    out = file_to_write(out)
    part = f"{out}.part"
    try:
        with named_file(out):
            with open(part, "w", encoding="utf-8", newline="") as file:
                yield file.write
            os.replace(part, out)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
