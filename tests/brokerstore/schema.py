"""Check what `--json` prints against the published schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "reference" / "tool-schema-1.json").read_text())


def check_schema(name: str, value: Any) -> None:
    """Validate `value` against the definition `name`; skip the calling test where jsonschema is not installed."""
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(SCHEMA | {"$ref": f"#/$defs/{name}"}).validate(value)
