"""A clean stop: read, write and delete its files as the server does.

The persistent store leaves its tables, every queue its terms, and the clean mark is written last.  The server trusts the tables
only if the mark is there and names the same clients as the terms.  So until the mark has its name on disk the folder counts as
not cleanly stopped, and an opening deletes the mark first.  Here the tables are trusted if, in addition, they list exactly the
message files of the folder with their sizes, and the checksums of our own stop match (`stop_checksums`).
"""

from __future__ import annotations

from typing import NamedTuple

from storageio import Disk, replace_file
from storebytes.finding import Finding

from ..files import numbers_in
from ..format import layout, tables
from ..format.tables import LocationRow, RecoveryRow, SummaryRow
from ..read.table_check import RecoveryTables, check_clients, check_summary, read_tables
from ..read.vhost_folder import VhostFolder
from ..stop_checksums import changed_since_stop, write_checksums
from .msg_store_cy import MsgStore
from .msg_store_state_cy import RecordLocation, resume_rows


class RabbitCleanStop(NamedTuple):
    """The state of the last stop: every queue's terms by folder, the persistent store's files, and the message locations."""

    terms: dict[str, RecoveryRow]
    summary: list[SummaryRow]
    locations: dict[bytes, RecordLocation]


def read_clean_stop(folder: VhostFolder, problems: list[Finding]) -> RabbitCleanStop | None:
    """Return the last stop; None when it was not clean, or with the reasons in `problems` when it does not fit the folder."""
    store = folder.stores[layout.PERSISTENT_FOLDER]
    read = read_tables(store, problems)
    if read.mark is None:
        return None
    problems += _missing_files(folder, read, problems)
    problems += changed_since_stop(folder.disk, folder.path)
    problems += (Finding(f"{store.name}/{number}.rdt", 0, "unfinished_compaction", "no such file", "a salvaged tail")
                 for number in numbers_in(folder.disk, store.path, "rdt"))  # fmt: skip
    if read.summary is None or read.locations is None or folder.recovery is None:
        return None
    check_clients(store, read.mark, folder.recovery, problems)
    locations: dict[bytes, RecordLocation] = {}
    valid, bad_row = resume_rows(read.locations, {row.file: row.file_size for row in read.summary}, locations)
    if bad_row >= 0:
        expected = f"a row of {read.locations[bad_row][0].hex()} within a file"
        file = f"{store.name}/{layout.LOCATIONS_NAME}"
        problems.append(Finding(file, 8, "bad_location", expected, str(read.locations[bad_row][1:])))
    check_summary(store, read.summary, valid, problems)
    return None if problems else RabbitCleanStop(folder.recovery, read.summary, locations)


def _missing_files(folder: VhostFolder, read: RecoveryTables, problems: list[Finding]) -> list[Finding]:
    """Return the files that belong to the mark but do not exist; damaged ones are reported already."""
    reported = {problem.file for problem in (*folder.problems, *problems)}
    missing = []
    for file, kind, found in (
        (f"{layout.PERSISTENT_FOLDER}/{layout.SUMMARY_NAME}", "bad_table", read.summary),
        (f"{layout.PERSISTENT_FOLDER}/{layout.LOCATIONS_NAME}", "bad_table", read.locations),
        (layout.RECOVERY_NAME, "bad_recovery_terms", folder.recovery),
    ):
        if found is None and file not in reported:
            missing.append(Finding(file, 0, kind, "a file beside the mark", "none"))
    return missing


def write_clean_stop(disk: Disk, path: str, store: MsgStore, rows: list[RecoveryRow], version: int) -> None:
    """Write the files of a clean stop beside queue indexes of this version, the mark last.

    Everything that they describe is on disk already.
    """
    refs = [row.persistent_ref for row in rows if row.persistent_ref is not None]
    above = layout.PERSISTENT_FOLDER
    files = {
        f"{above}/{layout.SUMMARY_NAME}": tables.write_summary(_summary_rows(store), version),
        f"{above}/{layout.LOCATIONS_NAME}": tables.write_locations(_location_rows(store)),
        layout.RECOVERY_NAME: tables.write_recovery(rows, version),
    }
    for name, data in files.items():
        replace_file(disk, f"{path}/{name}", data)
    mark = {layout.CLEAN_MARKS[0]: tables.write_clean_mark(refs, version)}
    write_checksums(disk, path, files | mark)
    for name, data in mark.items():
        replace_file(disk, f"{path}/{name}", data)


def _summary_rows(store: MsgStore) -> list[SummaryRow]:
    rows = ((number, store.files[number]) for number in store.files)
    return [SummaryRow(number, file.valid_total_size, file.left, file.right, file.file_size, False, 0) for number, file in rows]


def _location_rows(store: MsgStore) -> list[LocationRow]:
    """Return the rows, also those of count 0: a later write of the same id may revive the record."""
    known = store.locations.items()
    return [LocationRow(msg_id, found.ref_count, found.file, found.offset, found.total_size) for msg_id, found in known]


def delete_clean_stop(disk: Disk, path: str) -> None:
    """Delete the marks, sync, then delete the other files: from the first sync on the folder is not cleanly stopped."""
    for group in (layout.CLEAN_MARKS, layout.CLEAN_FILES):
        gone = [name for name in group if disk.stat(f"{path}/{name}") is not None]
        for name in gone:
            disk.delete(f"{path}/{name}")
        for folder in sorted({f"{path}/{name}".rpartition("/")[0] for name in gone}):
            disk.sync_folder(folder)
