"""What is wrong with a folder, as data: readers add to a list and go on."""

from __future__ import annotations

from typing import NamedTuple

from storageio import StoreCorrupt, UnsupportedFormat

UNSUPPORTED = "unsupported_format"  # the kind of a finding that is no damage: something that this version does not know


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


def of_unsupported(error: UnsupportedFormat) -> Problem:
    """Return the finding of an unsupported format: `expected` names what is supported."""
    return Problem(error.file, error.offset or 0, UNSUPPORTED, error.supported, f"{error.what} {error.found}")


def refusal(path: str, problem: Problem) -> UnsupportedFormat:
    """Return the error that a writing call raises for such a finding in the folder `path`."""
    file = f"{path}/{problem.file}"
    return UnsupportedFormat("format:", file=file, found=problem.found, supported=problem.expected, offset=problem.offset)
