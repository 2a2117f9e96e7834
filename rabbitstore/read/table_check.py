"""Check a message store's clean-stop files: each on its own, against each other, and against the message files.

`verify` runs every check.  An opening runs those that read no message file, and trusts the tables when all pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from storageio import StoreCorrupt, UnsupportedFormat
from storebytes.finding import Finding, finding_of

from ..files import read_if_there
from ..format import layout, tables
from ..format.tables import CleanMark, LocationRow, RecoveryRow, SummaryRow, shares_a_row
from .store_folder import StoreFolder


class RecoveryTables(NamedTuple):
    """The clean-stop files of a store; None for one that is missing or damaged."""

    mark: CleanMark | None
    summary: list[SummaryRow] | None
    locations: list[tuple[bytes, int, int, int, int]] | None  # the fields of `LocationRow`, unsorted


def read_tables(store: StoreFolder, problems: list[Finding]) -> RecoveryTables:
    """Read the clean-stop files; add damaged ones to `problems`, but not missing ones."""

    def read(name: str, kind: str, reader: Callable[[bytes, str], Any]) -> Any:
        try:
            data = read_if_there(store.disk, f"{store.path}/{name}")
            return None if data is None else reader(data, f"{store.name}/{name}")
        except (StoreCorrupt, UnsupportedFormat) as error:
            problems.append(finding_of(error, kind))
            return None

    return RecoveryTables(
        read(layout.CLEAN_NAME, "bad_clean_mark", tables.read_clean_mark),
        read(layout.SUMMARY_NAME, "bad_table", tables.read_summary),
        read(layout.LOCATIONS_NAME, "bad_table", tables.read_location_rows),
    )


def check_clients(store: StoreFolder, mark: CleanMark, recovery: dict[str, RecoveryRow], problems: list[Finding]) -> None:
    """Check that the clean mark and the recovery terms name the same clients: then both are of one stop."""
    known = sorted(row.persistent_ref for row in recovery.values() if row.persistent_ref is not None)
    if shares_a_row(recovery) and set(known) <= set(mark.client_refs):
        return
    if known != sorted(mark.client_refs):
        file = f"{store.name}/{layout.CLEAN_NAME}"
        problems.append(Finding(file, 0, "bad_clean_mark", f"{len(known)} queues' references", "others"))


def crashed_clients(mark: CleanMark, recovery: dict[str, RecoveryRow]) -> int:
    """Return how many clients of the store had crashed before a clean stop: the mark names them, and no queue's terms do.

    A server that starts with such a mark makes the tables again, as after a kill.
    """
    known = {row.persistent_ref for row in recovery.values() if row.persistent_ref is not None}
    return len(set(mark.client_refs) - known) if known <= set(mark.client_refs) and not shares_a_row(recovery) else 0


def valid_bytes(rows: list[LocationRow]) -> dict[int, int]:
    """Return the referenced bytes by file."""
    valid: dict[int, int] = {}
    for row in rows:
        valid[row.file] = valid.get(row.file, 0) + (row.total_size if row.ref_count else 0)
    return valid


def referenced_ends(rows: list[LocationRow]) -> dict[int, int]:
    """Return where the last referenced message of each file ends."""
    ends: dict[int, int] = {}
    for row in rows:
        ends[row.file] = max(ends.get(row.file, 0), (row.offset + row.total_size) if row.ref_count else 0)
    return ends


def check_summary(
    store: StoreFolder,
    rows: list[SummaryRow],
    valid: dict[int, int] | None,
    problems: list[Finding],
    *,
    ends: dict[int, int] | None = None,
) -> None:
    """Check sizes against the files, neighbours against each other, and referenced bytes against `valid`.

    With `ends`, where the last referenced messages end, all files but the last may be longer than their size: RabbitMQ 4.0
    counts each one up to there when it starts after a kill, and leaves what is behind it.
    """
    file = f"{store.name}/{layout.SUMMARY_NAME}"
    numbers = [row.file for row in rows]
    for row, left, right in zip(rows, [None, *numbers], [*numbers[1:], None], strict=False):
        if (row.left, row.right) not in ((left, right), (None, None)):  # 3.13 and later list no neighbours
            expected = f"{row.file}.rdq between {left} and {right}"
            problems.append(Finding(file, 8, "bad_table", expected, f"{row.left} and {row.right}"))
        if valid is not None and row.valid_total_size != valid.get(row.file, 0):
            expected = f"{valid.get(row.file, 0)} valid bytes in {row.file}.rdq"
            problems.append(Finding(file, 8, "bad_table", expected, str(row.valid_total_size)))
    sizes = store.sizes()
    listed = {row.file: row.file_size for row in rows}
    for number in sorted({*sizes, *listed}):
        size, known = sizes.get(number, -1), listed.get(number, -1)
        is_kept = ends is not None and number < max(sizes) and ends.get(number, 0) <= known < size
        if size != known and not is_kept:
            expected, real = f"{number}.rdq of {listed.get(number)} bytes", str(sizes.get(number))
            problems.append(Finding(file, 8, "bad_table", expected, real))


def check_locations(
    store: StoreFolder,
    rows: list[LocationRow],
    counts: dict[bytes, int] | None,
    problems: list[Finding],
    *,
    may_be_more: bool = False,
) -> None:
    """Check that every row points at its record and has the queues' count of references, and that no row is missing.

    With `may_be_more` a row may count more: after a kill RabbitMQ 4.0 counts references twice.
    """
    file = f"{store.name}/{layout.LOCATIONS_NAME}"
    for row in rows:
        if row.ref_count and store.record_at(row.file, row.offset, row.total_size) != row.msg_id:
            where = f"{row.msg_id.hex()} in {row.file}.rdq at {row.offset}"
            problems.append(Finding(file, 8, "bad_location", where, "no such record"))
        held = row.ref_count if counts is None else counts.get(row.msg_id, 0)
        if row.ref_count != held and not (may_be_more and row.ref_count > held):
            expected = f"{held} references to {row.msg_id.hex()}"
            problems.append(Finding(file, 8, "bad_ref_count", expected, str(row.ref_count)))
    listed = {row.msg_id for row in rows}
    for msg_id in (counts or {}).keys() - listed:
        if msg_id in store.locations:
            problems.append(Finding(file, 8, "bad_location", f"a row of {msg_id.hex()}", "none"))
