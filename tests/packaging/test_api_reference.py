"""The reference has every public class, method and field, and compiled classes show their signatures."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import brokerstore
import messagestore
from commitlog import Message, PutResult, StoredMessage
from storageio import StoreError
from tests.builds import World

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = "".join(page.read_text() for page in sorted(REFERENCE.glob("*.md")))
MESSAGES = (REFERENCE / "messages.md").read_text()
TABLES = {Message: "Message to put", StoredMessage: "Message from a store", PutResult: "Result of a put"}
CLASSES = [Message, StoredMessage, PutResult, *(getattr(messagestore, name) for name in messagestore.__all__)]


def fields_on_page(title: str) -> set[str]:
    """Return the names in the first column of the table under a heading."""
    rows = re.findall(r"^\| (`.*?) \|", MESSAGES.partition(f"## {title}\n")[2].partition("\n## ")[0], re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def public_fields(kind: type) -> set[str]:
    """Return the attributes of a class that are not methods."""
    members = [(name, inspect.getattr_static(kind, name)) for name in dir(kind) if not name.startswith("_")]
    return {name for name, member in members if not callable(member)}


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.__name__)
def test_every_field_of_a_message_is_in_its_table(kind: type) -> None:
    """The table lists the fields of the class and no others."""
    assert fields_on_page(TABLES[kind]) == public_fields(kind)


def test_every_public_name_is_in_the_reference() -> None:
    """Each class has a directive that renders it; errors are rendered as a module."""
    for name in brokerstore.__all__:
        found = getattr(brokerstore, name)
        is_error = isinstance(found, type) and issubclass(found, StoreError)
        assert is_error or name == "__version__" or re.search(rf"^::: \w+\.{name}$", PAGES, re.MULTILINE), name


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if "Enum" not in str(type(kind))], ids=lambda kind: kind.__name__)
def test_signatures_of_public_classes_and_methods(kind: Any) -> None:
    """`inspect.signature` and `help()` work in the compiled build as in the plain one."""
    if kind not in (StoredMessage, PutResult):  # made by the store alone
        assert inspect.signature(kind) is not None
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        if not name.startswith("_") and callable(member):
            assert inspect.signature(member) is not None, name


def test_the_signature_of_a_message(world: World) -> None:
    """Names and defaults are those of the fields, in both builds."""
    parameters = inspect.signature(world.module("commitlog._message_cy").Message).parameters
    assert list(parameters)[:5] == ["topic", "body", "tags", "keys", "properties"]
    assert set(parameters) == public_fields(Message) | {"delay", "delay_level", "deliver_at", "priority", "dedup_id", "ttl"}
    assert parameters["queue_id"].default == -1
