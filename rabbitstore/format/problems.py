"""Problems of a folder as data: a reader adds them to a list and goes on."""

from __future__ import annotations

from typing import NamedTuple

from storageio import StoreCorrupt, UnsupportedFormat

UNSUPPORTED = "unsupported_format"  # not damage: something that this version does not know


class Problem(NamedTuple):
    """One problem: `offset` is a byte of `file`, `kind` one of the names in docs/formats/rabbitmq-damage.md."""

    file: str
    offset: int
    kind: str
    expected: str
    found: str


def to_problem(error: StoreCorrupt | UnsupportedFormat, kind: str) -> Problem:
    """Return the problem that an error describes: of `kind` for damage, else of an unsupported format."""
    if isinstance(error, UnsupportedFormat):
        return Problem(error.file, error.offset or 0, UNSUPPORTED, error.supported, f"{error.what} {error.found}")
    return Problem(error.file, error.offset, kind, f"{error.reason}: {error.expected}", str(error.found))


def to_unsupported(path: str, problem: Problem) -> UnsupportedFormat:
    """Return the error that a writing call raises for an unsupported format in the folder `path`."""
    file = f"{path}/{problem.file}"
    return UnsupportedFormat("format:", file=file, found=problem.found, supported=problem.expected, offset=problem.offset)
