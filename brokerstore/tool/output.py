"""How things are shown: JSON for programs; text, tables and progress for people.

What is shown to people has every character that a terminal could act on written as an escape (`escapes`); JSON is written in
ASCII.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from .escapes import plain_stderr, printable, printable_lines

if TYPE_CHECKING:
    from commitlog.findings import Finding

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_encode = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


class ReaderWentError(Exception):
    """Whoever read our output has enough (`| head`)."""


def emit_json(value: Any) -> None:
    """One line on stdout."""
    sys.stdout.write(json_line(value))


def json_line(value: Any) -> str:
    """In ASCII without control characters, with its line end."""
    return _encode(value).replace("\x7f", "\\u007f") + "\n"  # JSON does not ask for this one


def emit_block(lines: memoryview) -> None:
    """ASCII on stdout, past its text layer where that would change nothing but the time it takes."""
    raw = getattr(sys.stdout, "buffer", None)
    if raw is None or codecs.lookup(sys.stdout.encoding).name not in ("utf-8", "ascii", "iso8859-1"):
        sys.stdout.write(str(lines, "ascii"))
        return
    sys.stdout.flush()
    raw.write(lines)


def emit(text: str) -> None:
    """A line for people on stdout."""
    sys.stdout.write(printable(text) + "\n")


def emit_csv(text: str) -> None:
    """Lines of CSV on stdout; on a terminal with escapes."""
    sys.stdout.write(printable_lines(text) if sys.stdout.isatty() else text)


def say(text: str) -> None:
    """A line of talk on stderr."""
    sys.stderr.write(printable(text) + "\n")


def time_text(timestamp_ms: int) -> str:
    """ISO 8601 in UTC; the number itself where no calendar has the day."""
    try:
        return (_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(timestamp_ms)


def time_ms(text: str) -> int:
    """Milliseconds from digits or from an ISO 8601 time, which is UTC unless it says otherwise; `ValueError` for others.

    >>> time_ms("1970-01-01T00:00:01Z")
    1000
    """
    if text.isascii() and text.isdigit():
        return int(text)
    found = datetime.fromisoformat(text)
    moment = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def size_text(size_bytes: int) -> str:
    """With a unit.

    >>> size_text(1 << 30)
    '1.0 GiB'
    """
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}" if unit != "B" else f"{size_bytes} B"
        size /= 1024
    return f"{size:.1f} TiB"


def finding_text(finding: Finding) -> str:
    """In a line."""
    what = finding.kind.replace("_", " ")
    return f"{finding.file} at byte {finding.offset}: {what}: expected {finding.expected}, found {finding.found}"


def in_use_keys(checked_to: int | None) -> dict[str, object]:
    """What the JSON of a check adds for a store in use."""
    return {} if checked_to is None else {"in_use": True, "checked_to_offset": checked_to}


def say_in_use(checked_to: int | None) -> None:
    """On stderr, where a check ended before the end of a store in use."""
    if checked_to is not None:
        say(f"brokerstore: checked up to offset {checked_to}; the store is in use")


def body_text(body: bytes, size_max: int) -> str:
    """The beginning of a body: as text where it is text, else as hex."""
    part = body[:size_max]
    more = "..." if len(body) > size_max else ""
    try:
        return printable(part.decode("utf-8")) + more
    except UnicodeDecodeError:
        return part[: size_max // 2].hex() + more


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns on stdout, numbers to the right; drawn by rich on a terminal, aligned text elsewhere."""
    texts = [[printable(str(cell)) for cell in row] for row in rows]
    are_numbers = [all(_is_number(row[column]) for row in texts) for column in range(len(headers))]
    if sys.stdout.isatty():
        with contextlib.suppress(ModuleNotFoundError):
            _rich_table(headers, texts, are_numbers)
            return
    widths = [max([len(header), *(len(row[column]) for row in texts)]) for column, header in enumerate(headers)]
    for row in [list(headers), *texts]:
        line = "  ".join(
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, are_numbers, strict=True)
        )
        sys.stdout.write(line.rstrip() + "\n")


def _is_number(text: str) -> bool:
    """Or what stands for one that is not known.

    >>> [_is_number(text) for text in ("1,024", "-7", "none", "1.0 KiB")]
    [True, True, True, False]
    """
    return text in ("none", "unknown") or (text.removeprefix("-").replace(",", "").isdigit() and text.isascii())


def _rich_table(headers: Sequence[str], rows: list[list[str]], are_numbers: list[bool]) -> None:
    from rich.console import Console  # 80 ms, only on a terminal
    from rich.table import Column, Table
    from rich.text import Text

    columns = [
        Column(header, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")  # a number stays whole
        for header, is_number in zip(headers, are_numbers, strict=True)
    ]
    drawn = Table(*columns, box=None, header_style="bold")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    Console().print(drawn)


def fields(pairs: dict[str, object]) -> None:
    """Names and values, one a line, on stdout."""
    width = max((len(name) for name in pairs), default=0)
    for name, value in pairs.items():
        emit(f"{name.ljust(width)}  {value}")


@contextlib.contextmanager
def progress(
    title: str, total: int, wanted: bool = True, is_bytes: bool = True
) -> Iterator[Callable[[int], None]]:  # fmt: skip
    """A function to call with the bytes, or things, done since the last call; a total of 0 is unknown.

    On a terminal a bar with rate and time left on stderr; elsewhere nothing is shown.
    """
    bar = _bar(is_bytes) if wanted and sys.stderr.isatty() else None
    if bar is None:
        yield lambda _done: None
        return
    with bar:
        task = bar.add_task(title, total=total or None)
        yield lambda done: bar.advance(task, done)
        if total:
            bar.update(task, completed=total)


def _bar(is_bytes: bool) -> Any:
    """None without rich."""
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
    # left alone: rich would send what goes to stdout to the bar's stream, even where stdout is a file
    return Progress(*columns, console=Console(file=plain_stderr()), transient=True, redirect_stdout=False)
