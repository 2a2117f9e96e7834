"""Pictures as SVG that takes its colours from the page, so that a dark scheme needs no second picture.

Matplotlib draws with marks for colours; each mark becomes a CSS variable of the page.  Text stays text.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from storageio import MissingExtra

from ..tool.output import printable
from .facts import Facts, FileMap

INK, LINE = "#000001", "#000002"
PARTS = {"live": "#000011", "expired": "#000012", "garbage": "#000013", "blank": "#000014", "damaged": "#000015"}
COLOURS = {INK: "--ink", LINE: "--line"} | {mark: f"--{name}" for name, mark in PARTS.items()}
WIDTH_IN, TEXT_PT = 6.0, 11
FILES_SHOWN, ROWS_SHOWN, NAME_SHOWN = 40, 15, 28
MIB = 1 << 20
Draw = Callable[[Any], None]


def pictures(facts: Facts) -> list[tuple[str, str, str]]:
    """(title, what it shows in a sentence, SVG) of every picture that there is something for.

    Raises `MissingExtra` without matplotlib.
    """
    found: list[tuple[str, str, float, Draw]] = []
    if facts.files:
        shown = grouped(facts.files)
        height = 1.5 + 0.24 * len(shown)
        what = (
            "What the bytes of each file are."
            if len(shown) == len(facts.files)
            else "What the bytes of the files are, in groups."
        )
        found.append(("Files", what, height, lambda axes: _files(axes, shown)))
    if facts.times:
        found.append(
            ("Messages over time", "Messages by the time they were stored.", 2.4, lambda axes: _over_time(axes, facts, 1))
        )
        found.append(("Bytes over time", "Bytes by the time they were stored.", 2.4, lambda axes: _over_time(axes, facts, 2)))
    if facts.queues:
        rows = [(row["queue"], row["bytes"] / MIB) for row in facts.queues[:ROWS_SHOWN]]
        found.append(
            (
                "Largest queues",
                "Bytes of the queues with the most.",
                1.2 + 0.24 * len(rows),
                lambda axes: _bars(axes, rows, "MiB"),
            )
        )
    if any(count for _, count in facts.sizes):
        found.append(("Sizes", "Messages by their size.", 3.2, lambda axes: _bars(axes, facts.sizes, "messages")))
    if lags := [(f"{row['group']} {row['topic']}/{row['queue_id']}", row["lag"]) for row in facts.lags if row["lag"]][
        :ROWS_SHOWN
    ]:
        found.append(
            (
                "Lag",
                "Messages that a group has not read yet.",
                1.2 + 0.24 * len(lags),
                lambda axes: _bars(axes, lags, "messages"),
            )
        )
    return [(title, what, _svg(title, height, draw)) for title, what, height, draw in found]


def grouped(files: Sequence[FileMap]) -> list[FileMap]:
    """At most so many rows: neighbours together."""
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
    """One picture, without a fixed size and without anything to fetch."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise MissingExtra("this needs the 'report' extra: pip install 'brokerstore[report]'") from error
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
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # whoever opens the page has its own fonts
            figure.savefig(made, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_page(made.getvalue(), title)


def _for_page(svg: str, title: str) -> str:
    """From a file to an element: no prologue, no links, named for a screen reader, colours and fonts of the page."""
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
    """A row a file, its parts side by side."""
    places = range(len(files))
    left = [0.0] * len(files)
    for name, mark in PARTS.items():
        widths = [getattr(file, name) / MIB for file in files]
        if any(widths):
            axes.barh(places, widths, left=left, color=mark, label=name, height=0.7)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    unused = [max(0.0, file.size_bytes / MIB - used) for file, used in zip(files, left, strict=True)]
    axes.barh(places, unused, left=left, facecolor="none", edgecolor=LINE, label="unused", height=0.7)
    axes.set_yticks(places, [_short(file.name.lstrip("0") or "0") for file in files])
    axes.invert_yaxis()
    axes.set_xlabel("MiB")
    axes.figure.legend(loc="outside lower center", ncols=3, frameon=False)


def _over_time(axes: Any, facts: Facts, column: int) -> None:
    """Bars as wide as a bucket."""
    width_days = facts.bucket_ms / 86_400_000
    days = [_day(row[0]) for row in facts.times]
    scale = MIB if column == 2 else 1
    axes.bar(days, [row[column] / scale for row in facts.times], width=width_days, align="edge", color=PARTS["live"])
    axes.set_ylabel("MiB" if column == 2 else "messages")
    from matplotlib import dates

    made: Any = dates  # its classes are untyped
    locator = made.AutoDateLocator(minticks=2, maxticks=6)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(made.ConciseDateFormatter(locator))


def _day(timestamp_ms: int) -> datetime:
    """What no calendar has is drawn at its border."""
    return datetime.fromtimestamp(min(max(timestamp_ms / 1000, 0), 4_000_000_000), UTC)


def _bars(axes: Any, rows: Sequence[tuple[str, float]], unit: str) -> None:
    """A row a name."""
    places = range(len(rows))
    axes.barh(places, [amount for _, amount in rows], color=PARTS["live"], height=0.7)
    axes.set_yticks(places, [_short(name) for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel(unit)
