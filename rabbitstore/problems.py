"""What is wrong with a folder, as data: readers add to a list and go on."""

from __future__ import annotations

from typing import NamedTuple

from storageio import StoreCorrupt


class Problem(NamedTuple):
    """One finding; `offset` is a byte in `file`, `kind` one of the names in docs/formats/rabbitmq-damage.md."""

    file: str
    offset: int
    kind: str
    expected: str
    found: str


def of_corrupt(kind: str, error: StoreCorrupt) -> Problem:
    """The finding that an error stands for."""
    return Problem(error.file, error.offset, kind, f"{error.reason}: {error.expected}", str(error.found))
