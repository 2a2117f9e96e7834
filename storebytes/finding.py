"""One thing that a check found in a folder, as data: a reader adds it to a list and goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from storageio import StoreCorrupt, UnsupportedFormat

UNSUPPORTED = "unsupported_format"  # not damage: something that this version does not know
FINDINGS_MAX = 100  # of a kind, where a check may find very many
Value = int | str


class Finding(NamedTuple):
    """One result of a check: `offset` is a byte in `file`, `kind` names what is wrong; a note is not damage."""

    file: str
    offset: int
    kind: str
    expected: Value
    found: Value
    is_problem: bool = True

    def as_dict(self) -> dict[str, Value]:
        """Return the fields with the fixed keys of the tool."""
        return {key: getattr(self, key) for key in ("file", "offset", "kind", "expected", "found")}


def note(file: str, offset: int, kind: str, expected: Value, found: Value) -> Finding:
    """Return a finding that is not damage."""
    return Finding(file, offset, kind, expected, found, is_problem=False)


def limited(findings: Iterable[Finding], most: int = FINDINGS_MAX) -> Iterator[Finding]:
    """Yield the findings, but at most so many of a kind."""
    counts: Counter[str] = Counter()
    for finding in findings:
        counts[finding.kind] += 1
        if counts[finding.kind] <= most:
            yield finding


def finding_of(error: StoreCorrupt | UnsupportedFormat, kind: str) -> Finding:
    """Return the finding that an error describes: of `kind` for damage, else of an unsupported format."""
    if isinstance(error, UnsupportedFormat):
        return Finding(error.file, error.offset or 0, UNSUPPORTED, error.supported, f"{error.what} {error.found}")
    return Finding(error.file, error.offset, kind, f"{error.reason}: {error.expected}", str(error.found))


def unsupported_error(path: str, finding: Finding) -> UnsupportedFormat:
    """Return the error that a writing call raises for an unsupported format in the folder `path`."""
    file = f"{path}/{finding.file}"
    return UnsupportedFormat(
        "format:", file=file, found=finding.found, supported=str(finding.expected), offset=finding.offset
    )  # fmt: skip
