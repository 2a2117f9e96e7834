"""Charts as SVG elements; their colours come from the page, so that one chart serves light and dark schemes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from ..tool.escapes import printable
from ..tool.output import size_text, table_time
from .facts import Facts, FileMap

PARTS = ("live", "expired", "garbage", "blank", "damaged")  # classes of the style sheet
WIDTH, ROW, TEXT = 480, 24, 14  # text is readable at 390 pixels
NAMES, COLUMN_HEIGHT = 176, 150  # the width of names beside bars; the height of columns
FILES_SHOWN, ROWS_SHOWN, NAME_SHOWN = 40, 15, 24
UNITS = {1: "B", 1 << 10: "KiB", 1 << 20: "MiB", 1 << 30: "GiB"}
DURATIONS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"))


class Picture(NamedTuple):
    """One chart; `svg` is an element, the others are text."""

    title: str
    caption: str
    svg: str


def pictures(facts: Facts) -> Iterator[Picture]:
    """Yield every chart that there is data for."""
    if shown := grouped(facts.files):
        title = "Use of the bytes " + ("of each file" if len(shown) == len(facts.files) else "of the files, in groups")
        about = "One bar a file, as long as the file; colours show what its bytes are used for."
        yield Picture(title, about, _stacked(title, shown))
    if rows := [(row["queue"], row["bytes"]) for row in facts.queues[:ROWS_SHOWN]]:
        title = f"The {len(rows)} queues with the most bytes" if len(rows) > 1 else "The queue with the most bytes"
        yield Picture(title, "The sum of the bytes of a queue's messages.", bars(title, rows, is_bytes=True))
    for column, what in ((1, "Messages"), (2, "Bytes")) if facts.times else ():
        title, times = f"{what} stored, by {bucket_text(facts.bucket_ms)}", [(row[0], row[column]) for row in facts.times]
        about = "By the time at which the messages were stored, in UTC."
        yield Picture(title, about, columns(title, times, facts.bucket_ms, is_bytes=column == 2))
    last = max((index for index, (_, count) in enumerate(facts.sizes) if count), default=-1)
    if rows := facts.sizes[: last + 1]:
        about = "How many messages are of a size above the previous step and up to this one."
        yield Picture("Messages by their size", about, bars("Messages by their size", rows))
    lags = [(f"{row['group']} {row['topic']}/{row['queue_id']}", row["lag"]) for row in facts.lags if row["lag"]]
    if rows := sorted(lags, key=lambda row: -row[1])[:ROWS_SHOWN]:
        about = "Messages that a group has not read yet, by group and queue."
        yield Picture("Lag of consumer groups", about, bars("Lag of consumer groups", rows))


def bucket_text(bucket_ms: int) -> str:
    """Return the length of a bucket.

    >>> bucket_text(1000), bucket_text(600_000), bucket_text(86_400_000)
    ('second', '10 minutes', 'day')
    """
    size_ms, name = next((unit for unit in DURATIONS if unit[0] <= bucket_ms), (1, "millisecond"))
    count = bucket_ms // size_ms
    return name if count == 1 else f"{count} {name}s"


def grouped(files: Sequence[FileMap]) -> list[FileMap]:
    """Return at most `FILES_SHOWN` rows; neighbouring files are combined."""
    step = -(-len(files) // FILES_SHOWN)
    if step <= 1:
        return list(files)
    rows = []
    for start in range(0, len(files), step):
        part = files[start : start + step]
        row = FileMap(f"{part[0].name} +{len(part) - 1}", sum(file.size_bytes for file in part))
        for name in PARTS:
            setattr(row, name, sum(getattr(file, name) for file in part))
        rows.append(row)
    return rows


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    """Return one chart, as wide as the page allows, with a name for screen readers."""
    return f'<svg role="img" aria-label="{escape(printable(title))}" viewBox="0 0 {WIDTH} {height:.0f}">{"".join(parts)}</svg>'


def _label(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(printable(text))}</text>'


def _rect(x: float, y: float, width: float, height: float, part: str) -> str:
    return f'<rect class="{part}" x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height:.1f}"/>'


def _short(name: str) -> str:
    name = printable(name)
    return name if len(name) <= NAME_SHOWN else name[: NAME_SHOWN - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _amount(amount: int, *, is_bytes: bool) -> str:
    return size_text(amount) if is_bytes else f"{amount:,}"


def bars(title: str, rows: Sequence[tuple[str, int]], *, is_bytes: bool = False) -> str:
    """Return one bar a name, with its number behind it."""
    most, parts = max(1, *(amount for _, amount in rows)), []
    for number, (name, amount) in enumerate(rows):
        y, width = number * ROW, (WIDTH - NAMES - 90) * amount / most
        parts += [_label(NAMES - 8, y + 16, _short(name), "end"), _rect(NAMES, y + 4, width, ROW - 8, "live")]
        parts.append(_label(NAMES + width + 6, y + 16, _amount(amount, is_bytes=is_bytes)))
    return _svg(title, len(rows) * ROW + 4, parts)


def _stacked(title: str, files: Sequence[FileMap]) -> str:
    """Return one stacked bar a file, and what each colour is."""
    most, parts = max(1, *(file.size_bytes for file in files)), []
    scale = (WIDTH - NAMES - 90) / most
    for number, file in enumerate(files):
        y, x = number * ROW, float(NAMES)
        parts.append(_label(NAMES - 8, y + 16, _short(file.name.lstrip("0") or "0"), "end"))
        parts.append(_rect(x, y + 4, file.size_bytes * scale, ROW - 8, "unused"))
        for name in PARTS:
            if size := getattr(file, name):
                parts.append(_rect(x, y + 4, size * scale, ROW - 8, name))
                x += size * scale
        parts.append(_label(NAMES + file.size_bytes * scale + 6, y + 16, size_text(file.size_bytes)))
    used = [name for name in PARTS if any(getattr(file, name) for file in files)]
    y = len(files) * ROW + 8
    for number, name in enumerate([*used, "unused"]):
        x, below = 8 + number % 4 * 118, y + number // 4 * ROW
        parts += [_rect(x, below + 2, 14, 14, name), _label(x + 20, below + 14, name)]
    return _svg(title, y + (len(used) // 4 + 1) * ROW + 4, parts)


def columns(title: str, rows: Sequence[tuple[int, int]], bucket_ms: int, *, is_bytes: bool = False) -> str:
    """Return columns over time, from the first bucket to the last; a row has the bucket's start in ms, and an amount."""
    first, most = rows[0][0], max(1, *(amount for _, amount in rows))
    width = WIDTH / ((rows[-1][0] - first) // bucket_ms + 1)
    parts = [_rect(0, 20 + COLUMN_HEIGHT, WIDTH, 1, "axis"), _label(0, 14, f"most: {_amount(most, is_bytes=is_bytes)}")]
    for start_ms, amount in rows:
        height = COLUMN_HEIGHT * amount / most
        x = (start_ms - first) // bucket_ms * width
        parts.append(_rect(x, 20 + COLUMN_HEIGHT - height, max(0.8, width * 0.9), height, "live"))
    y = 40 + COLUMN_HEIGHT
    begin, end = (table_time(moment).replace("T", " ") for moment in (first, rows[-1][0]))
    return _svg(title, y + 6, [*parts, _label(0, y, begin), _label(WIDTH, y, end, "end")])
