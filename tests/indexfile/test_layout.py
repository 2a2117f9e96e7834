"""The format page and the constants agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from indexfile import layout

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "indexfile.md").read_text()
ROW = re.compile(r"^    (\d+) +(\d+) +(\w+)", re.MULTILINE)
HEADER_NAMES = {
    "begin_timestamp_ms": layout.BEGIN_TIME_AT,
    "end_timestamp_ms": layout.END_TIME_AT,
    "begin_physical_offset": layout.BEGIN_OFFSET_AT,
    "end_physical_offset": layout.END_OFFSET_AT,
    "slots_used": layout.SLOTS_USED_AT,
    "next_item": layout.NEXT_ITEM_AT,
}


def rows(title: str) -> list[tuple[int, int, str]]:
    """Return (offset, size, field) of the table under a heading."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0].partition("Example")[0]
    return [(int(offset), int(size), field) for offset, size, field in ROW.findall(section)]


def test_the_header_on_the_page_is_the_modules() -> None:
    """Names and offsets agree, and the sizes add up."""
    assert [(field, offset) for offset, _, field in rows("Header")] == list(HEADER_NAMES.items())
    assert sum(size for _, size, _ in rows("Header")) == layout.HEADER_SIZE


def test_the_item_on_the_page_is_the_modules() -> None:
    """Names and offsets agree, and the sizes add up."""
    at = 0
    for offset, size, field in rows("Slots and items"):
        assert offset == at == getattr(layout, f"ITEM_{field.upper()}_AT")
        at += size
    assert at == layout.ITEM_SIZE


def test_the_page_is_the_modules_table() -> None:
    """The module's docstring has the same fields."""
    for offset, size, field in rows("Header") + rows("Slots and items"):
        assert re.search(rf"^    {offset} +{size} +{field}\b", layout.__doc__ or "", re.MULTILINE), field


def test_the_worked_example_is_in_the_fixture(fixture_store: Any) -> None:
    """Header, first and last item are equal byte by byte."""
    data = sorted((fixture_store("plain").store / "index").iterdir())[0].read_bytes()
    lines = re.findall(r"^    ((?:[0-9a-f]{2} +){8,20})", PAGE, re.MULTILINE)
    example = bytes.fromhex("".join(lines))
    assert example == data[:40] + data[2060:2080] + data[42020:42040]


def test_the_defaults() -> None:
    """The default sizes are those of the format page."""
    assert layout.file_size(layout.SLOTS_DEFAULT, layout.ITEMS_DEFAULT) == 420_000_040
    assert layout.MATCHES_MAX_DEFAULT == 64
    assert len(PAGE.splitlines()) <= 120
