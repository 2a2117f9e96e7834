"""The format page and the constants agree."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import pytest

from consumequeue import layout

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "consumequeue.md").read_text()
ROW = re.compile(r"^    (\d+) +(\d+) +(\w+)", re.MULTILINE)
TABLES = [("Ordinary unit", layout.UNIT), ("Extended unit", layout.EXT_UNIT), ("Batch unit", layout.BATCH_UNIT)]


def rows(title: str) -> list[tuple[int, int, str]]:
    """Return (offset, size, field) of the table under a heading."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return [(int(offset), int(size), field) for offset, size, field in ROW.findall(section.partition("Example")[0])]


@pytest.mark.parametrize(("title", "unit"), TABLES, ids=[table[0] for table in TABLES])
def test_the_page_and_the_constants_agree(title: str, unit: struct.Struct) -> None:
    """Every field has the same offset, and the sizes add up to the unit."""
    at = 0
    for index, (offset, size, field) in enumerate(rows(title)):
        assert offset == at == struct.calcsize(unit.format[: index + 1]), field
        at += size
    assert at == unit.size


def test_the_page_is_the_modules_table() -> None:
    """The module's docstring has the same fields."""
    for title, _ in TABLES:
        for offset, size, field in rows(title):
            assert re.search(rf"^    {offset} +{size} +{field}\b", layout.__doc__ or "", re.MULTILINE), field


def test_the_worked_example_is_in_the_fixture(fixture_store: Any) -> None:
    """The bytes on the page are those at the start of the fixture's file."""
    data = (fixture_store("plain").store / "consumequeue/HotTopic/0/00000000000000000000").read_bytes()
    example = re.findall(r"^    ((?:[0-9a-f]{2} +){20})", PAGE, re.MULTILINE)
    assert len(example) == 2
    assert bytes.fromhex("".join(example)) == data[:40]


@pytest.mark.parametrize(("size", "expected"), [(1, 20), (20, 20), (2001, 2020), (6_000_000, 6_000_000)])
def test_sizes_are_rounded_up(size: int, expected: int) -> None:
    """Configured sizes are rounded up to whole units."""
    assert layout.round_up(size) == expected


def test_the_defaults() -> None:
    """The default sizes are those of the format page."""
    assert layout.FILE_SIZE_DEFAULT == 6_000_000
    assert layout.BATCH_FILE_SIZE_DEFAULT == 13_800_000
    assert layout.EXT_FILE_SIZE_DEFAULT == 50_331_648
    assert len(PAGE.splitlines()) <= 120
