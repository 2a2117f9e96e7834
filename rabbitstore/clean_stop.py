"""A clean stop, as the server leaves it: tables of the persistent store, terms of every queue, and the mark, written last.

The server trusts the tables only if the mark is there and names the same clients as the terms; so until the mark is
on the disk under its name the folder counts as not cleanly stopped, and whoever opens it deletes the mark first.
We trust them if besides every file that they describe is there with its size, and nothing else is.  They have no checksums,
and an offset that lost a bit would lose a message: after a stop of ours the note `brokerstore/clean_stop.json` has checksums.
"""

from __future__ import annotations

import json
import zlib
from typing import NamedTuple

from storageio import Disk, replace_file

from . import layout, tables
from .folder import VhostFolder
from .own_files import read_json
from .paths import numbers_in, read_if_there
from .problems import Problem
from .shared_store_cy import SharedStore
from .store_state_cy import Location, resume_rows
from .table_check import Tables, check_clients, check_summary, read_tables
from .tables import LocationRow, RecoveryRow, SummaryRow

_STORES = (layout.PERSISTENT_FOLDER, layout.TRANSIENT_FOLDER)
MARKS = tuple(f"{store}/{layout.CLEAN_NAME}" for store in _STORES)
_NOTE = f"{layout.OWN_FOLDER}/clean_stop.json"
CLEAN_FILES = (
    *MARKS,
    layout.RECOVERY_NAME,
    *(f"{store}/{name}" for store in _STORES for name in (layout.SUMMARY_NAME, layout.LOCATIONS_NAME)),
)


class CleanStop(NamedTuple):
    """What the last stop noted: the terms of every queue by folder, the files of the persistent store, and what lies where."""

    terms: dict[str, RecoveryRow]
    summary: list[SummaryRow]
    locations: dict[bytes, Location]


def read_clean_stop(folder: VhostFolder, problems: list[Problem]) -> CleanStop | None:
    """None when the last stop was not clean, or when its files do not fit the folder: then `problems` says why."""
    store = folder.stores[layout.PERSISTENT_FOLDER]
    read = read_tables(store, problems)
    if read.mark is None:
        return None
    problems += _missing_beside_the_mark(folder, read, problems)
    problems += _changed_since(folder.disk, folder.path)
    problems += (Problem(f"{store.name}/{number}.rdt", 0, "unfinished_compaction", "no such file", "a salvaged tail")
                 for number in numbers_in(folder.disk, store.path, "rdt"))  # fmt: skip
    if read.summary is None or read.locations is None or folder.recovery is None:
        return None
    check_clients(store, read.mark, folder.recovery, problems)
    locations: dict[bytes, Location] = {}
    valid, bad_row = resume_rows(read.locations, {row.file: row.file_size for row in read.summary}, locations)
    if bad_row >= 0:
        where = f"a row of {read.locations[bad_row][0].hex()} within a file"
        file = f"{store.name}/{layout.LOCATIONS_NAME}"
        problems.append(Problem(file, 8, "bad_location", where, str(read.locations[bad_row][1:])))
    check_summary(store, read.summary, valid, problems)
    return None if problems else CleanStop(folder.recovery, read.summary, locations)


def _missing_beside_the_mark(folder: VhostFolder, read: Tables, problems: list[Problem]) -> list[Problem]:
    """The files that the mark promises; one that is damaged has been named."""
    named = {problem.file for problem in (*folder.problems, *problems)}
    parts = (
        (f"{layout.PERSISTENT_FOLDER}/{layout.SUMMARY_NAME}", "bad_table", read.summary),
        (f"{layout.PERSISTENT_FOLDER}/{layout.LOCATIONS_NAME}", "bad_table", read.locations),
        (layout.RECOVERY_NAME, "bad_recovery_terms", folder.recovery),
    )
    gone = [(file, kind) for file, kind, found in parts if found is None and file not in named]
    return [Problem(file, 0, kind, "a file beside the mark", "none") for file, kind in gone]


def _changed_since(disk: Disk, path: str) -> list[Problem]:
    """The files that are not what our stop wrote; none after a stop of the server's, whose mark is another."""
    noted = read_json(disk, f"{path}/{_NOTE}")
    found = {name: _checksum(disk, f"{path}/{name}") for name in noted if name in CLEAN_FILES}
    mark = f"{layout.PERSISTENT_FOLDER}/{layout.CLEAN_NAME}"
    if noted.get(mark) is None or noted[mark] != found.get(mark):
        return []
    wrong = [name for name, checksum in found.items() if checksum is not None and checksum != noted[name]]
    kinds = {layout.RECOVERY_NAME: "bad_recovery_terms"}
    return [Problem(name, 0, kinds.get(name, "bad_table"), "the file that the last stop wrote", "another") for name in wrong]


def is_own_stop(disk: Disk, path: str) -> bool:
    """Whether the last process that wrote to the folder was one of ours that stopped cleanly."""
    mark = f"{layout.PERSISTENT_FOLDER}/{layout.CLEAN_NAME}"
    noted = read_json(disk, f"{path}/{_NOTE}").get(mark)
    return noted is not None and noted == _checksum(disk, f"{path}/{mark}")


def _checksum(disk: Disk, path: str) -> int | None:
    data = read_if_there(disk, path)
    return None if data is None else zlib.crc32(data)


def write_clean_stop(disk: Disk, path: str, store: SharedStore, rows: list[RecoveryRow]) -> None:
    """The last writes of a clean stop; everything the files tell of is on the disk already."""
    refs = [row.persistent_ref for row in rows if row.persistent_ref is not None]
    above, mark = layout.PERSISTENT_FOLDER, tables.write_clean_mark(refs)
    texts = {
        f"{above}/{layout.SUMMARY_NAME}": tables.write_summary(_summary_rows(store)),
        f"{above}/{layout.LOCATIONS_NAME}": tables.write_locations(_location_rows(store)),
        layout.RECOVERY_NAME: tables.write_recovery(rows),
    }
    for name, text in texts.items():
        replace_file(disk, f"{path}/{name}", text)
    last = {f"{above}/{layout.CLEAN_NAME}": mark}
    note = {name: zlib.crc32(text) for name, text in (texts | last).items()}
    replace_file(disk, f"{path}/{_NOTE}", json.dumps(note, indent=1).encode())
    replace_file(disk, f"{path}/{above}/{layout.CLEAN_NAME}", mark)


def _summary_rows(store: SharedStore) -> list[SummaryRow]:
    rows = ((number, store.files[number]) for number in store.files)
    return [SummaryRow(number, file.valid_total_size, file.left, file.right, file.file_size, False, 0) for number, file in rows]


def _location_rows(store: SharedStore) -> list[LocationRow]:
    """Those of count 0 too: a later write of the same id may revive them."""
    places = store.locations.items()
    return [LocationRow(msg_id, place.ref_count, place.file, place.offset, place.total_size) for msg_id, place in places]


def delete_clean_stop(disk: Disk, path: str) -> None:
    """From the deletion of the mark on the folder counts as not cleanly stopped."""
    for group in (MARKS, CLEAN_FILES):
        gone = [name for name in group if disk.stat(f"{path}/{name}") is not None]
        for name in gone:
            disk.delete(f"{path}/{name}")
        for folder in sorted({f"{path}/{name}".rpartition("/")[0] for name in gone}):
            disk.sync_folder(folder)
