"""Lines that fit a terminal: tables, prose, and rows of messages.

`columns` is the width to fit; None is output that no terminal shows, where nothing is wrapped or cut. Lines break between
words, never inside a word, a number or a time. Only a word that is longer than a line exceeds it.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

GAP = "  "
INDENT = 2  # of rows below a cell that has a line of its own
REST_MIN = 24  # columns for the end of a row; with fewer it gets a line of its own


class TableColumn(NamedTuple):
    """A column of message rows, which are printed before the widths of all cells are known."""

    header: str
    width: int
    is_number: bool = False


def width_of(text: str) -> int:
    """Return how many columns a terminal needs for a text: two for a wide character, none for a combining one.

    >>> width_of("orders"), width_of("\u6807\u7b7e")
    (6, 4)
    """
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)


def cut(text: str, columns: int) -> str:
    """Return a text that ends in dots where it was too long.

    >>> cut("message", 5), cut("message", 7)
    ('me...', 'message')
    """
    if width_of(text) <= columns:
        return text
    while text and width_of(text) > columns - 3:
        text = text[:-1]
    return text + "..."


def wrapped(text: str, columns: int | None, indent: int = 0) -> list[str]:
    """Break a text between words; lines after the first are indented.

    If a word is too long for that, the text stays one line, so that it can be copied.

    >>> wrapped("one two three", 8, 2)
    ['one two', '  three']
    """
    if columns is None or width_of(text) <= columns:
        return [text]
    if indent and max(map(width_of, text.split())) > columns - indent:
        return [text]
    return textwrap.wrap(
        text, columns, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )  # fmt: skip


def is_number(text: str) -> bool:
    """Return whether a cell is a number, or the word for a missing one.

    >>> [is_number(text) for text in ("1,024", "-7", "none", "1.0 KiB")]
    [True, True, True, False]
    """
    return text in ("none", "unknown") or (text.removeprefix("-").replace(",", "").isdigit() and text.isascii())


def table_lines(headers: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None) -> list[str]:
    """Return the lines of a table, the headers first; numbers are right-aligned.

    Where the rows are too wide, columns of words are wrapped. If this is not enough, the first cells of a row that are no
    numbers go to a line of their own, unless they fit; equal ones in consecutive rows are shown once.
    """
    numbers = [all(is_number(row[column]) for row in rows) for column in range(len(headers))]
    movable = min(len(headers) - 1, numbers.index(True) if True in numbers else len(headers))
    lines = [list(headers), *map(list, rows)]
    for moved in range(movable + 1):
        rest = [line[moved:] for line in lines]
        widths = _fitted(rest, None if columns is None else columns - (INDENT if moved else 0), numbers[moved:])
        if widths is not None or moved == movable:
            break
    widths = _natural(rest) if widths is None else widths
    if not moved:
        return [line for row in rest for line in _row_lines(row, widths, numbers, 0)]
    first = _space_left(lines, columns, widths) if moved == 1 else 0
    shown: list[str] = []
    before: list[str] = []
    for line, row in zip(lines, rest, strict=True):
        name = GAP.join(line[:moved])
        if width_of(name) <= first:
            shown += _row_lines([name, *row], [first, *widths], [False, *numbers[moved:]], 0)
        else:
            shown += wrapped(name, columns) if line[:moved] != before else []
            shown += _row_lines(row, widths, numbers[moved:], first + len(GAP) if first else INDENT)
        before = line[:moved]
    return shown


def _space_left(lines: list[list[str]], columns: int | None, widths: list[int]) -> int:
    """Return how wide the first column may be; 0 if not even its header fits."""
    space = (columns or 0) - sum(width + len(GAP) for width in widths)
    return min(space, max(width_of(line[0]) for line in lines)) if space >= width_of(lines[0][0]) else 0


def _natural(lines: list[list[str]]) -> list[int]:
    return [max(map(width_of, cells)) for cells in zip(*lines, strict=True)]


def _fitted(lines: list[list[str]], columns: int | None, numbers: Sequence[bool]) -> list[int] | None:
    """Return widths that fit, with columns of words narrower where needed; None if they cannot."""
    widths = _natural(lines)
    if columns is None:
        return widths
    least = [
        width if number else max(width_of(word) for cell in cells for word in cell.split(" "))
        for cells, width, number in zip(zip(*lines, strict=True), widths, numbers, strict=True)
    ]
    over = sum(widths) + len(GAP) * (len(widths) - 1) - columns
    while over > 0:
        spare, column = max((width - low, column) for column, (width, low) in enumerate(zip(widths, least, strict=True)))
        if spare <= 0:
            return None
        step = min(spare, over)
        widths[column] -= step
        over -= step
    return widths


def _row_lines(cells: Sequence[str], widths: Sequence[int], numbers: Sequence[bool], indent: int) -> list[str]:
    """Return a row, with as many lines as its cell with the most."""
    parts = [wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
    return [
        (" " * indent + GAP.join(map(_padded, line, widths, numbers))).rstrip() for line in zip_longest(*parts, fillvalue="")
    ]


def _padded(text: str, width: int, is_right: bool) -> str:
    space = " " * (width - width_of(text))
    return space + text if is_right else text + space


def message_lines(layout: Sequence[TableColumn], cells: Sequence[str], rest: str, columns: int | None) -> list[str]:
    """Return a row of fixed columns and its end, which is cut; on a narrow terminal the end is on the next line."""
    row = GAP.join(_padded(cell, one.width, one.is_number) for one, cell in zip(layout, cells, strict=True))
    if columns is None:
        return [(row + GAP + rest).rstrip()]
    space = columns - sum(one.width + len(GAP) for one in layout)
    if space >= REST_MIN and width_of(row) + len(GAP) + REST_MIN <= columns:
        return [(row + GAP + cut(rest, columns - width_of(row) - len(GAP))).rstrip()]
    below = [" " * 2 * INDENT + cut(rest, columns - 2 * INDENT)] if rest else []
    return [*wrapped(row.rstrip(), columns, 2 * INDENT), *below]
