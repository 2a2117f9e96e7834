"""Charts as SVG whose colours come from the page, so that one chart serves light and dark schemes.

Matplotlib draws with placeholder colours; each becomes a CSS variable of the page.  Text stays text.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from storageio import needs_extra

from ..tool.escapes import printable
from .facts import Facts, FileMap

INK, LINE = "#000001", "#000002"
PARTS = {"live": "#000011", "expired": "#000012", "garbage": "#000013", "blank": "#000014", "damaged": "#000015"}
COLOURS = {INK: "--ink", LINE: "--line"} | {mark: f"--{name}" for name, mark in PARTS.items()}
WIDTH_IN, TEXT_PT = 5.0, 11  # text is readable at 390 pixels
FILES_SHOWN, ROWS_SHOWN, NAME_SHOWN = 40, 15, 24
ROW_IN = 0.24  # height of a bar
UNITS = {1: "B", 1 << 10: "KiB", 1 << 20: "MiB", 1 << 30: "GiB"}
DURATIONS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"))
Draw = Callable[[Any], None]
Picture = tuple[str, str, float, Draw]  # title, caption, height in inches, drawing function


def pictures(facts: Facts) -> list[tuple[str, str, str]]:
    """Return title, caption and SVG of every chart that there is data for.

    Raises `MissingExtra` without matplotlib.
    """
    found = [*_of_files(facts), *_of_queues(facts), *_of_times(facts), *_of_sizes(facts), *_of_lags(facts)]
    return [(title, what, _svg(title, height, draw)) for title, what, height, draw in found]


def _of_files(facts: Facts) -> Iterator[Picture]:
    if facts.files:
        shown = grouped(facts.files)
        of_what = "of each file" if len(shown) == len(facts.files) else "of the files, in groups"
        what = "One bar a file, as long as the file; colours show what its bytes are used for."
        yield f"Use of the bytes {of_what}", what, 1.7 + ROW_IN * len(shown), lambda axes: _files(axes, shown)


def _of_queues(facts: Facts) -> Iterator[Picture]:
    rows = [(row["queue"], row["bytes"]) for row in facts.queues[:ROWS_SHOWN]]
    if rows:
        unit, scale = unit_for(max(size for _, size in rows))
        scaled = [(name, size / scale) for name, size in rows]
        many = f"The {len(rows)} queues" if len(rows) > 1 else "The queue"
        what = "The sum of the bytes of a queue's messages."
        yield (
            f"{many} with the most bytes",
            what,
            _height(rows),
            lambda axes: _bars(axes, scaled, unit, f"bytes of a queue, in {unit}"),
        )


def _of_times(facts: Facts) -> Iterator[Picture]:
    if facts.times:
        unit, scale = unit_for(max(row[2] for row in facts.times))
        every = _bucket_text(facts.bucket_ms)
        what = "By the time at which the messages were stored, in UTC."
        yield f"Messages stored, by {every}", what, 2.7, lambda axes: _over_time(axes, facts, 1, "messages", 1)
        yield f"Bytes stored, by {every}", what, 2.7, lambda axes: _over_time(axes, facts, 2, unit, scale)


def _bucket_text(bucket_ms: int) -> str:
    """Return the length of a bucket.

    >>> _bucket_text(1000), _bucket_text(600_000), _bucket_text(86_400_000)
    ('second', '10 minutes', 'day')
    """
    size_ms, name = next(unit for unit in DURATIONS if unit[0] <= bucket_ms)
    count = bucket_ms // size_ms
    return name if count == 1 else f"{count} {name}s"


def _of_sizes(facts: Facts) -> Iterator[Picture]:
    """Show the sizes up to the greatest one."""
    last = max((index for index, (_, count) in enumerate(facts.sizes) if count), default=-1)
    rows = facts.sizes[: last + 1]
    if rows:
        what = "How many messages are of a size above the previous step and up to this one."
        yield "Messages by their size", what, _height(rows), lambda axes: _bars(axes, rows, "messages", "messages of a size")


def _of_lags(facts: Facts) -> Iterator[Picture]:
    lags = [(f"{row['group']} {row['topic']}/{row['queue_id']}", row["lag"]) for row in facts.lags if row["lag"]]
    rows = sorted(lags, key=lambda row: -row[1])[:ROWS_SHOWN]
    if rows:
        what = "Messages that a group has not read yet, by group and queue."
        yield "Lag of consumer groups", what, _height(rows), lambda axes: _bars(axes, rows, "messages", "messages not read yet")


def _height(rows: Sequence[object]) -> float:
    """Return the height of a chart with one bar a row, in inches."""
    return 1.4 + ROW_IN * len(rows)


def unit_for(size_bytes: int) -> tuple[str, int]:
    """Return the unit in which the greatest of some sizes reads well, and its number of bytes.

    >>> unit_for(25_000), unit_for(0)
    (('KiB', 1024), ('B', 1))
    """
    scale = max((scale for scale in UNITS if scale <= size_bytes), default=1)
    return UNITS[scale], scale


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


def _svg(title: str, height: float, draw: Draw) -> str:
    """Return one chart as SVG, without a fixed size and without external references."""
    with needs_extra("report"):
        import matplotlib
        from matplotlib.figure import Figure

    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": title, "font.size": TEXT_PT, "text.parse_math": False}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    with matplotlib.rc_context({**style, "axes.edgecolor": LINE}):
        figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
        axes = figure.subplots()
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        draw(axes)
        made = io.StringIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # the browser has its own fonts
            figure.savefig(made, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_page(made.getvalue(), title)


def _for_page(svg: str, title: str) -> str:
    """Turn an SVG file into an element with the page's colours and fonts and a name for screen readers."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1)
    body = re.sub(r' xmlns(:\w+)?="[^"]*"', "", body)
    body = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px; font-family: inherit", body)
    for mark, name in COLOURS.items():
        body = body.replace(mark, f"var({name})")
    return body.replace("xlink:href", "href").replace("<svg", f'<svg role="img" aria-label="{title}"', 1)


def _short(name: str) -> str:
    name = printable(name)
    return name if len(name) <= NAME_SHOWN else name[: NAME_SHOWN - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _files(axes: Any, files: Sequence[FileMap]) -> None:
    """Draw one stacked bar a file."""
    unit, scale = unit_for(max(file.size_bytes for file in files))
    positions = range(len(files))
    left = [0.0] * len(files)
    for name, mark in PARTS.items():
        widths = [getattr(file, name) / scale for file in files]
        if any(widths):
            axes.barh(positions, widths, left=left, color=mark, label=name, height=0.7)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    unused = [max(0.0, file.size_bytes / scale - used) for file, used in zip(files, left, strict=True)]
    if any(size * scale >= 1 for size in unused):
        axes.barh(positions, unused, left=left, facecolor="none", edgecolor=LINE, label="unused", height=0.7)
    axes.set_yticks(positions, [_short(file.name.lstrip("0") or "0") for file in files])
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    _legend(axes)


def _legend(axes: Any) -> None:
    """Put the legend below the chart."""
    if axes.get_legend_handles_labels()[1]:
        axes.figure.legend(loc="outside lower center", ncols=3, frameon=False)


def _over_time(axes: Any, facts: Facts, column: int, unit: str, scale: int) -> None:
    """Draw bars as wide as a bucket."""
    width_days = facts.bucket_ms / 86_400_000
    days = [_day(row[0]) for row in facts.times]
    axes.bar(days, [row[column] / scale for row in facts.times], width=width_days, align="edge", color=PARTS["live"],
             label=f"{unit} stored")  # fmt: skip
    axes.set_ylabel(unit)
    axes.yaxis.get_major_locator().set_params(integer=unit == "messages")
    _legend(axes)
    from matplotlib import dates

    made: Any = dates  # its classes are untyped
    locator = made.AutoDateLocator(minticks=2, maxticks=6)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(made.ConciseDateFormatter(locator))


def _day(timestamp_ms: int) -> datetime:
    """Return the date, limited to what the calendar has."""
    return datetime.fromtimestamp(min(max(timestamp_ms / 1000, 0), 4_000_000_000), UTC)


def _bars(axes: Any, rows: Sequence[tuple[str, float]], unit: str, legend: str) -> None:
    """Draw one bar a name."""
    positions = range(len(rows))
    axes.barh(positions, [amount for _, amount in rows], color=PARTS["live"], height=0.7, label=legend)
    axes.set_yticks(positions, [_short(name) for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    _legend(axes)
