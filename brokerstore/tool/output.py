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
from typing import Any, ClassVar, NamedTuple, Protocol

import click

from storageio import DiskError, DiskFull, InvalidMessage
from storebytes.plan import count_text as count_text

from .codes import CLEAN
from .escapes import plain_stderr, printable, printable_lines
from .layout import TableColumn, message_lines, table_lines, wrapped

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_encode = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode
UNSUPPORTED = "unsupported_format"  # the kind of a problem that is no damage


class OutputClosedError(Exception):
    """The program that reads our output has closed it (`| head`)."""


class Table(NamedTuple):
    """Rows under headers; the cells may be of any type."""

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]


NEXT_STEPS = "brokerstore.next_steps"


class Answer(NamedTuple):
    """The answer of a command: a JSON object, the same as lines, fields and tables, and the exit code."""

    facts: dict[str, Any]
    text: Sequence[str | dict[str, object] | Table]
    code: int = CLEAN
    next_steps: Sequence[str] = ()  # lines of what to run next, where the exit code alone does not tell


class MessageForms(Protocol):
    """How the messages of one kind of folder are shown."""

    columns: ClassVar[Sequence[TableColumn]]  # of rows of messages
    rest: ClassVar[str]  # header of what follows them in a row

    def row(self, message: Any) -> tuple[Sequence[str], str]:
        """Return a message as the cells of `columns`, and what follows them."""

    def to_json(self, message: Any) -> dict[str, Any] | None:
        """Return a message with the fixed JSON keys; None, with a problem reported, if it is damaged."""

    def details(self, message: Any) -> dict[str, object] | None:
        """Return every field of a message as text; None, with a problem reported, if it is damaged."""


def show(answer: Answer, as_json: bool) -> int:
    """Print an answer and return its exit code; keep its next steps for `store_command`, which prints them last."""
    if (context := click.get_current_context(silent=True)) is not None:
        context.meta[NEXT_STEPS] = answer.next_steps
    if as_json:
        emit_json(answer.facts)
        return answer.code
    _show_text(answer.text)
    return answer.code


def _show_text(text: Sequence[str | dict[str, object] | Table]) -> None:
    for line in _text_lines(text, _columns()):
        sys.stdout.write(line + "\n")


def _text_lines(text: Sequence[str | dict[str, object] | Table], columns: int | None) -> Iterator[str]:
    for part in text:
        if isinstance(part, str):
            yield from wrapped(printable(part), columns)
        elif isinstance(part, Table):
            yield from table_lines(part.headers, [[printable(str(cell)) for cell in row] for row in part.rows], columns)
        else:
            yield from _field_lines(part, columns)


def _columns() -> int | None:
    """Return the width of the terminal that shows stdout; None if there is none."""
    if not sys.stdout.isatty():
        return None
    import shutil  # it imports every module of compression

    return shutil.get_terminal_size().columns


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
    from rich.live import Live  # 80 ms, only on a terminal
    from rich.text import Text

    with Live(auto_refresh=False, vertical_overflow="crop") as live:
        for view in views:
            live.update(Text("\n".join(_text_lines(view, _columns()))), refresh=True)


def show_messages(
    forms: MessageForms, messages: Iterable[Any], as_json: bool, *, details: bool = False, heading: bool = True
) -> int:  # fmt: skip
    """Print messages as JSON lines, as rows under a heading, or with every field; return how many there were."""
    if not as_json and not details and heading:
        _show_row([column.header for column in forms.columns], forms.rest, forms)
    count = 0
    for message in messages:
        count += 1
        if as_json:
            found = forms.to_json(message)
            if found is not None:
                emit_json(found)
        elif details:
            _show_text([forms.details(message) or {}])
        else:
            _show_row(*forms.row(message), forms)
    return count


def _show_row(cells: Sequence[str], rest: str, forms: MessageForms) -> None:
    for line in message_lines(forms.columns, list(map(printable, cells)), printable(rest), _columns()):
        sys.stdout.write(line + "\n")


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


def print_line(text: str) -> None:
    """Write a line of diagnostics to stderr."""
    sys.stderr.write(printable(text) + "\n")


def time_text(timestamp_ms: int) -> str:
    """Return a time as ISO 8601 in UTC, or the number itself if it is outside the calendar."""
    try:
        return (_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(timestamp_ms)


def table_time(timestamp_ms: int) -> str:
    """Return a time for a table whose header says UTC, to the second; the options that take a time accept it.

    >>> table_time(1000)
    '1970-01-01T00:00:01'
    """
    return time_text(timestamp_ms).partition(".")[0]


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


def problem_text(problem: Any) -> str:
    """Return a problem or note of either engine as one line."""
    location = f"{problem.file} at byte {problem.offset}"
    if problem.kind == UNSUPPORTED:
        return f"{location}: unsupported format: {problem.found} (supported: {problem.expected})"
    if problem.kind == "not_read":
        return f"{problem.file}: not read: {problem.found}"
    return f"{location}: {problem.kind.replace('_', ' ')}: expected {problem.expected}, found {problem.found}"


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


def report_in_use(checked_to: int | None) -> None:
    """Report on stderr that a check of a store in use ended before the log's end."""
    if checked_to is not None:
        print_line(f"brokerstore: checked up to offset {checked_to}; the store is in use")


def body_text(body: bytes, size_max: int) -> str:
    """Return the beginning of a body, as text if it is UTF-8, else in hex."""
    part = body[:size_max]
    more = "..." if len(body) > size_max else ""
    try:
        return printable(part.decode("utf-8")) + more
    except UnicodeDecodeError:
        return part[: size_max // 2].hex() + more


def _field_lines(pairs: dict[str, object], columns: int | None) -> Iterator[str]:
    """Return names and values, one pair a line."""
    width = max((len(name) for name in pairs), default=0)
    for name, value in pairs.items():
        yield from wrapped(printable(f"{name.ljust(width)}  {value}"), columns, width + 2)


@contextlib.contextmanager
def progress(title: str, total: int, *, quiet: bool = False, is_bytes: bool = True) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the bytes, or items, done since its last call; a total of 0 is unknown.

    On a terminal, stderr shows a bar with rate and time left, which ends at 100 %; elsewhere nothing is shown.
    """
    bar = _bar(is_bytes) if not quiet and sys.stderr.isatty() else None
    if bar is None:
        yield lambda _done: None
        return
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        bar.update(task, completed=min(done, total) if total else done)

    with bar:
        task = bar.add_task(title, total=total or None)
        yield advance
        bar.update(task, total=total or done or 1, completed=total or done or 1)


def _bar(is_bytes: bool) -> Any:
    """Return a progress bar, or None if rich is not installed."""
    try:
        from rich.console import Console  # 80 ms, only on a terminal
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
    except ModuleNotFoundError:
        return None
    amounts = (DownloadColumn(), TransferSpeedColumn()) if is_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), *amounts, TimeRemainingColumn())
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
