"""The reference of the settings lists every field of `StoreConfig` with its default."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from messagestore import FlushMode, RetentionPolicy, Role, StoreConfig

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "config.md"
ROW = re.compile(r"^\| `(\w+)` \|(.*?)\| `(.*?)`(?: \([\d,]+\))? \| (\S.*) \|$", re.MULTILINE)


def test_every_setting_is_on_its_page_with_its_default() -> None:
    """No field is missing or invented; each default on the page equals the one in the class."""
    names = {"FlushMode": FlushMode, "RetentionPolicy": RetentionPolicy, "Role": Role}
    shown = {name: eval(default, names) for name, _, default, _ in ROW.findall(PAGE.read_text())}
    assert shown == {field.name: field.default for field in fields(StoreConfig)}


def test_every_number_has_a_unit() -> None:
    """A reader must not have to guess seconds or milliseconds."""
    units = {name: unit for name, unit, _, _ in ROW.findall(PAGE.read_text())}
    types = {field.name: str(field.type) for field in fields(StoreConfig)}
    assert [name for name, unit in units.items() if "int" in types[name] and not unit.strip()] == []
