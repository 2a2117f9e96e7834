"""Compare declarations with what a server exports."""

from __future__ import annotations

import json
from typing import Any


def differences(export: dict[str, Any], found: dict[str, Any], *, suite: str = "") -> list[str]:
    """Describe how what was read differs from a server's export, but for the forms that releases give the same value."""
    expected, got = _plain(export, suite), _plain(found, suite)
    texts = []
    for name in sorted(expected.keys() | got.keys()):
        missing, more = [one for one in expected.get(name, []) if one not in got.get(name, [])], []
        more = [one for one in got.get(name, []) if one not in expected.get(name, [])]
        texts += [f"{name}: missing {one}" for one in missing] + [f"{name}: not declared {one}" for one in more]
        if not missing and not more and len(expected.get(name, [])) != len(got.get(name, [])):
            texts.append(f"{name}: {len(expected.get(name, []))} declared, {len(got.get(name, []))} found")
    return texts


def _plain(content: dict[str, Any], suite: str) -> dict[str, list[str]]:
    found = {}
    for name, rows in content.items():
        if isinstance(rows, list):
            kept = [_row(name, _value(row), suite) for row in rows if not _is_own(name, row)]
            found[name] = sorted(json.dumps(row, sort_keys=True) for row in kept)
    return found


def _is_own(name: str, row: dict[str, Any]) -> bool:
    """Return whether the server made a row itself: its log exchange, and a deletion that is under way."""
    return (
        row.get("name") == "amq.rabbitmq.log" if name == "exchanges" else row.get("component") == "exchange-delete-in-progress"
    )


def _row(name: str, row: dict[str, Any], suite: str) -> dict[str, Any]:
    if name == "users":  # a text in 3.8
        row = row | {"tags": row["tags"] if isinstance(row["tags"], str) else ",".join(row["tags"])}
        row.setdefault("limits", {})
    if name == "vhosts":  # 4.0 adds what a server would choose now
        row.pop("default_queue_type", None)
        row = row | {"metadata": {key: value or {} for key, value in row["metadata"].items() if value is not None}}
    if name == "bindings" and suite == "bullseye":
        row.pop("arguments")  # 3.8 exports none
    if "decimal" in row.get("arguments", {}):
        row["arguments"].pop("decimal")  # servers export 1.15 for 1.5
    return row


def _value(value: Any) -> Any:
    """Return a value in one form: releases before 4.3 export an object within another as a list of pairs, and no null."""
    if isinstance(value, dict):
        return {key: _value(one) for key, one in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) for one in value):
            return {key: _value(one) for key, one in value}
        return [_value(one) for one in value] or {}
    return None if value in ("null", "undefined") else value
