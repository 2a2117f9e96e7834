"""What lies beside the entries of a DLedger log: the index of its entries, and what the peer says about itself.

The format is in `docs/formats/dledger.md`. The log itself needs nothing of this module: its entries are records behind a header
(`commitlog/layout.py`), which every walk over a log skips.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from commitlog import MappedFile
from commitlog._scan_cy import entry_units
from commitlog.entry_layout import ENTRY_HEADER_SIZE, ENTRY_INDEX_FILE_SIZE, ENTRY_UNIT_SIZE
from commitlog.findings import Location
from commitlog.offset_files import OffsetFile, list_offset_files
from commitlog.walk import LogFiles, Piece
from storageio import Closing, Disk, Kind, Mode, StoreCorrupt, replace_file
from storebytes.finding import Finding, note

from .folder import FolderFacts

INDEX, CHECKPOINT, TERM = "index", "checkpoint", "currterm"
COMMITTED, END, LEADER, TERM_NUMBER = "committedIndex", "endIndex", "voteLeader", "currTerm"
ZEROS_PIECE = 1 << 20
_SIZE_MAX = 4096  # of a file of properties
_NO_UNIT = bytes(ENTRY_UNIT_SIZE)
_INDEX_AT = 16  # in a unit


class DledgerPeer(NamedTuple):
    """What a peer's files say; None where they say nothing. The checkpoint of a killed broker is older than its log."""

    name: str
    committed_index: int | None
    end_index: int | None
    term: int | None
    leader: str | None

    @property
    def was_leader(self) -> bool:
        """Whether the peer voted for itself in its last term."""
        return self.leader == self.name


def peer_folder(facts: FolderFacts) -> str | None:
    """Return the folder of the store's peer, None without a DLedger log inside the store."""
    folders = facts.contents.dledger_folders
    return os.path.join(facts.path, folders[0]) if len(folders) == 1 else None


def read_peer(disk: Disk, folder: str) -> DledgerPeer:
    """Read what the peer says about itself. Raises `StoreCorrupt` for a number that is none."""
    checkpoint, term = (_properties(disk, os.path.join(folder, name)) for name in (CHECKPOINT, TERM))
    path = os.path.join(folder, CHECKPOINT)
    committed_index, end_index = _number(checkpoint, COMMITTED, path), _number(checkpoint, END, path)
    number = _number(term, TERM_NUMBER, os.path.join(folder, TERM))
    return DledgerPeer(os.path.basename(folder).partition("-")[2], committed_index, end_index, number, term.get(LEADER))


def _properties(disk: Disk, path: str) -> dict[str, str]:
    found = disk.stat(path)
    if found is None or found.kind is not Kind.FILE:
        return {}
    with disk.open(path, Mode.READ) as file:
        text = file.read(0, _SIZE_MAX).decode("utf-8", "replace")
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in text.splitlines())}


def _number(found: dict[str, str], name: str, path: str) -> int | None:
    text = found.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise StoreCorrupt(f"no {name}", file=path, offset=0, expected="a number", found=repr(text)) from None


def write_checkpoint(disk: Disk, folder: str, end_index: int) -> None:
    """Replace the checkpoint by one that ends at an entry."""
    replace_file(disk, os.path.join(folder, CHECKPOINT), f"{COMMITTED}={end_index}\n{END}={end_index}\n".encode())


def entry_of(disk: Disk, files: LogFiles, physical_offset: int) -> tuple[int, int] | None:
    """Return index and term of the entry of a record; None if none precedes it."""
    start, found = files.step_offset(physical_offset), files.find(physical_offset)
    if found is None or start == physical_offset:
        return None
    view = MappedFile.of(disk, found, writable=False).view
    return Location(view, start - found.start_offset, found.start_offset).entry


class EntryIndex(Closing):
    """The index of the entries, compared with a log while a caller walks it; a unit of 32 bytes for each entry."""

    def __init__(self, disk: Disk, folder: str) -> None:
        """List the files of a peer's folder. Raises `StoreCorrupt` for a stray one."""
        self.folder = os.path.join(folder, INDEX)
        self.last_index = -1  # of the entries that were taken
        self.entries = 0
        self.findings: list[Finding] = []
        self._disk = disk
        self.files = list_offset_files(disk, self.folder)
        self._open: dict[str, MappedFile] = {}

    def take(self, piece: Piece) -> None:
        """Compare the units of the next entries of the log."""
        units = bytes(entry_units(piece.view, piece.positions))
        first = int(piece.positions[0] == piece.start)  # behind damage a record may have no header, or one that is damaged
        units = units[ENTRY_UNIT_SIZE * first :]
        if not units or units[:ENTRY_UNIT_SIZE] == _NO_UNIT:
            return  # the records of an ordinary log
        index = _index_of(units)
        self.entries += len(units) // ENTRY_UNIT_SIZE
        self.last_index = index + len(units) // ENTRY_UNIT_SIZE - 1
        self._compare(ENTRY_UNIT_SIZE * index, units)

    def _compare(self, start: int, units: bytes) -> None:
        """Report the first unit that differs of those from a position of the index on."""
        found = self._read(start, len(units))
        if found == units:
            return
        rows = range(0, len(units), ENTRY_UNIT_SIZE)
        differing = [row for row in rows if found[row : row + ENTRY_UNIT_SIZE] != units[row : row + ENTRY_UNIT_SIZE]]
        at, unit = differing[0], found[differing[0] : differing[0] + ENTRY_UNIT_SIZE]
        file = self._file_at(start + at)
        path, position = (file.path, start + at - file.start_offset) if file is not None else (self.folder, 0)
        what = "no such file" if file is None else "zeros" if unit == _NO_UNIT else unit.hex(" ", 4)
        more = f", and {len(differing) - 1} more that differ" if len(differing) > 1 else ""
        text = f"the unit of entry {(start + at) // ENTRY_UNIT_SIZE}: {units[at : at + ENTRY_UNIT_SIZE].hex(' ', 4)}"
        self.findings.append(Finding(path, position, "entry_index", text, what + more))

    def finish(self) -> None:
        """Report files of another size and a unit behind the last entry, once the whole log was taken."""
        end = ENTRY_UNIT_SIZE * (self.last_index + 1)
        for file in self.files:
            if file.size_bytes != ENTRY_INDEX_FILE_SIZE:
                found = f"{file.size_bytes} bytes"
                self.findings.append(Finding(file.path, 0, "entry_index", f"a file of {ENTRY_INDEX_FILE_SIZE} bytes", found))
            if not file.size_bytes:
                continue
            for start, stop in self._mapped(file).pieces_of_data(max(0, end - file.start_offset), ZEROS_PIECE):
                data = bytes(self._mapped(file).view[start:stop])
                if left := len(data.lstrip(b"\0")):
                    at = start + (len(data) - left) // ENTRY_UNIT_SIZE * ENTRY_UNIT_SIZE
                    found = f"the unit of entry {(file.start_offset + at) // ENTRY_UNIT_SIZE}"
                    self.findings.append(Finding(file.path, at, "entry_index", "zeros behind the last entry", found))
                    return

    def _file_at(self, position: int) -> OffsetFile | None:
        return next((file for file in self.files if file.start_offset <= position < file.start_offset + file.size_bytes), None)

    def _read(self, start: int, size_bytes: int) -> bytes:
        """Return bytes of the index, zeros where there is no file."""
        parts, at, stop = [], start, start + size_bytes
        while at < stop:
            file = self._file_at(at)
            later = [one.start_offset for one in self.files if one.start_offset > at]
            end = min([stop, *later]) if file is None else min(stop, file.start_offset + file.size_bytes)
            parts.append(bytes(end - at) if file is None else bytes(
                self._mapped(file).view[at - file.start_offset : end - file.start_offset]
            ))  # fmt: skip
            at = end
        return b"".join(parts)

    def _mapped(self, file: OffsetFile) -> MappedFile:
        if file.path not in self._open:
            self._open[file.path] = MappedFile.of(self._disk, file, writable=False)
        return self._open[file.path]

    def close(self) -> None:
        """Close the files that were mapped."""
        for file in self._open.values():
            file.close()
        self._open.clear()


def _index_of(unit: bytes) -> int:
    return int.from_bytes(unit[_INDEX_AT : _INDEX_AT + 8], "big")


class Entries(NamedTuple):
    """The entries of a log: the first and the last index, and the index from which on each term holds; -1 without entries."""

    first_index: int
    last_index: int
    terms: list[tuple[int, int]]  # first index of a term, and the term

    @property
    def last_term(self) -> int | None:
        """The term of the last entry."""
        return self.terms[-1][1] if self.terms else None

    def term_of(self, index: int) -> int | None:
        """Return the term of an entry, None for one that is not there."""
        if not self.first_index <= index <= self.last_index or index < 0:
            return None
        return next(term for first, term in reversed(self.terms) if first <= index)

    def same_to(self, other: Entries) -> int:
        """Return the index of the last entry that both have, -1 without one: with equal index and term all before are equal."""
        ends = {first - 1 for first, _ in self.terms + other.terms} | {self.last_index, other.last_index}
        same = [end for end in ends if (term := self.term_of(end)) is not None and term == other.term_of(end)]
        return max(same, default=-1)


def read_entries(files: LogFiles) -> Entries:
    """Walk over a log, and return what entries it has."""
    first_index, last_index, terms = -1, -1, list[tuple[int, int]]()
    for step in files.walk():
        if not isinstance(step, Piece):
            continue
        found = [Location(step.view, at - ENTRY_HEADER_SIZE, step.base) for at in step.positions if at > step.start]
        if not found or not found[0].is_entry:
            continue  # of an ordinary log, or behind damage
        last_index = found[-1].entry[0]
        first_index = found[0].entry[0] if first_index < 0 else first_index
        for index, term in (one.entry for one in (found if found[0].entry[1] < found[-1].entry[1] else found[:1])):
            if not terms or term > terms[-1][1]:
                terms.append((index, term))
    return Entries(first_index, last_index, terms)


def checkpoint_findings(disk: Disk, folder: str, last_index: int) -> Iterator[Finding]:
    """Yield what the peer's checkpoint says against a log whose last entry has this index, -1 without entries."""
    path = os.path.join(folder, CHECKPOINT)
    peer = read_peer(disk, folder)
    for name, index in ((COMMITTED, peer.committed_index), (END, peer.end_index)):
        if index is not None and index > last_index:
            yield Finding(path, 0, "entries_missing", f"{name} at most {last_index}, the last entry of the log", index)
    behind = last_index - max(-1, peer.committed_index if peer.committed_index is not None else -1)
    if behind > 0:
        found = f"{behind} more, which another peer may have replaced"
        yield note(path, 0, "uncommitted_entries", f"entries up to {COMMITTED}={peer.committed_index}", found)


def rewrite_index(disk: Disk, folder: str, files: LogFiles) -> str:
    """Write the units of all entries of the log, and nothing behind them; return how many."""
    name, size = os.path.join(folder, INDEX), ENTRY_INDEX_FILE_SIZE
    disk.make_folder(name)
    count, end = 0, 0
    for step in files.walk():
        if isinstance(step, Piece):
            units = bytes(entry_units(step.view, step.positions))
            if units[:ENTRY_UNIT_SIZE] == _NO_UNIT:
                continue  # the records of an ordinary log
            start = ENTRY_UNIT_SIZE * _index_of(units)
            _write(disk, name, size, start, units)
            count, end = count + len(units) // ENTRY_UNIT_SIZE, start + len(units)
    for file in list_offset_files(disk, name):
        if file.start_offset > end or file.start_offset % size:
            disk.delete(file.path)
            continue
        with disk.open(file.path, Mode.WRITE) as opened:  # both make a hole of what was there
            opened.truncate(min(size, max(0, end - file.start_offset)))
            opened.truncate(size)
            opened.sync()
    disk.sync_folder(name)
    return f"{count} units"


def _write(disk: Disk, folder: str, size: int, start: int, units: bytes) -> None:
    """Write units, each into the file of its position; a missing file is created."""
    while units:
        first = start // size * size
        part = units[: first + size - start]
        with disk.open(os.path.join(folder, f"{first:020d}"), Mode.CREATE) as file:
            if file.size() != size:
                file.truncate(size)
            file.write(start - first, part)
            file.sync()
        start, units = start + len(part), units[len(part) :]
