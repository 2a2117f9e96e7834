"""`msg_store_persistent` and `msg_store_transient`, for reading: where each id lies, and its term."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from storageio import Disk, DiskError, File, Kind, Mode

from . import layout
from .content import is_message
from .layout import RECORD_HEAD, RECORD_MIN, RECORD_OVERHEAD
from .names import numbered
from .paths import FILE_SIZE_MAX, numbers_in
from .problems import Problem
from .records import RECORD_END, TERM_AT, Record, Scan, check_record, find_record, scan_records

Seen = TypeVar("Seen")
_OPEN_FILES_MAX = 32
SEARCHED_MAX = 16 << 30  # bytes looked through for records behind damage


class StoreFolder:
    """One message store's files, scanned on first use.  Never writes."""

    def __init__(self, disk: Disk, vhost_path: str, name: str) -> None:
        """`name` is one of the two store folders."""
        self.disk = disk
        self.name = name
        self.path = f"{vhost_path}/{name}"
        self.problems: list[Problem] = []
        self._places: dict[bytes, tuple[int, Record]] | None = None
        self.found_behind: dict[int, list[Record]] = {}  # by file: records behind damage, found by their ids
        self._torn: dict[int, int] = {}  # file: from where on bytes are in no whole record
        self._following: dict[int, dict[bytes, Record]] = {}  # by file: records behind one that was found behind damage
        self._searched = 0
        self._tail = -1, b""  # the one that was searched last
        self._open: OrderedDict[int, File] = OrderedDict()

    def file_numbers(self) -> list[int]:
        """The `.rdq` files."""
        return numbers_in(self.disk, self.path, "rdq")

    def sizes(self) -> dict[int, int]:
        """Bytes by number of the `.rdq` files; no file is opened."""
        files = [entry for entry in self.disk.list(self.path) if entry.kind is Kind.FILE]
        found = ((numbered(entry.name, "rdq"), entry.size_bytes) for entry in files)
        return {number: size_bytes for number, size_bytes in found if number is not None}

    def scan(self, number: int, problems: list[Problem]) -> Scan:
        """One file's records."""
        file = f"{number}.rdq"
        return self.mapped(file, lambda view: scan_records(view, f"{self.name}/{file}", problems))

    def salvageable(self, number: int) -> set[bytes]:
        """Ids of the whole messages in `N.rdt`, which opening and `recover` join to `N.rdq`."""
        return self.mapped(f"{number}.rdt", _whole_ids)

    def mapped(self, name: str, look: Callable[[memoryview], Seen]) -> Seen:
        """Return what `look` finds in the bytes of one file."""
        file = self.disk.open(f"{self.path}/{name}", Mode.READ)
        try:
            size = file.size()
            if size == 0:
                return look(memoryview(b""))
            held = file.map(size, writable=False)
            try:
                return look(held.view)
            finally:
                held.close()
        finally:
            file.close()

    @property
    def places(self) -> dict[bytes, tuple[int, Record]]:
        """(file number, record) of every id; the copy at the highest offset of the highest file wins."""
        if self._places is None:
            self._places = {}
            for number in self.file_numbers():
                scan = self.scan(number, self.problems)
                for record in scan.records:
                    self._places[record.msg_id] = number, record
                if scan.doubtful_from < self.size_of(number):
                    self._torn[number] = scan.doubtful_from
        return self._places

    def place(self, msg_id: bytes) -> tuple[int, Record] | None:
        """Where an id lies, behind damage too; None when it is in no file."""
        found = self.places.get(msg_id)
        if found is not None:
            return found
        for number in self._torn:
            record = self._behind(number, msg_id)
            if record is not None:
                self.found_behind.setdefault(number, []).append(record)
                self.places[msg_id] = number, record
                return number, record
        return None

    def _behind(self, number: int, msg_id: bytes) -> Record | None:
        """A record behind what no scan passes.

        Those that follow one that was found are framed by it, so a file is searched about once however many are asked for;
        a limit stands for files made so that they are not.
        """
        known = self._following.setdefault(number, {})
        if msg_id in known or self._searched > SEARCHED_MAX:
            return known.get(msg_id)
        start, size = self._torn[number], self.size_of(number)
        if size > FILE_SIZE_MAX:
            return None  # no file of RabbitMQ's: sparse files can be of any length
        if self._tail[0] != number:
            self._tail = number, self._file(number).read(start, size - start)
        data = self._tail[1]
        self._searched += len(data)
        record = find_record(data, msg_id, 0)
        if record is None:
            return None
        for one in scan_records(memoryview(data)[record.offset :], "").records:
            known[one.msg_id] = one._replace(offset=one.offset + record.offset + start)
        return known[msg_id]

    def forget(self) -> None:
        """Scan again at the next use: a writer beside us may have moved records."""
        self._places = None
        self._torn.clear()
        self._following.clear()
        self._tail = -1, b""
        self.close()

    def term(self, number: int, record: Record) -> bytes | None:
        """The record's term; None when the bytes are no longer that record, or the file is gone."""
        try:
            data = self._file(number).read(record.offset, record.total_size)
        except DiskError:
            if self.disk.stat(f"{self.path}/{number}.rdq") is not None:
                raise
            return None
        return data[TERM_AT:-1] if check_record(data, record.msg_id, record.total_size) else None

    def size_of(self, number: int) -> int:
        """Bytes in a file."""
        return self._file(number).size()

    def record_at(self, number: int, offset: int, total_size: int) -> bytes | None:
        """The id of the record that lies exactly there, None when none does."""
        if self.disk.stat(f"{self.path}/{number}.rdq") is None or not RECORD_MIN <= total_size <= self.size_of(number):
            return None
        head = self._file(number).read(offset, RECORD_HEAD.size)
        end = self._file(number).read(offset + total_size - 1, 1)
        if len(head) < RECORD_HEAD.size or end != RECORD_END:
            return None
        size, msg_id = RECORD_HEAD.unpack(head)
        return bytes(msg_id) if size + RECORD_OVERHEAD == total_size else None

    def _file(self, number: int) -> File:
        file = self._open.get(number)
        if file is None:
            file = self._open[number] = self.disk.open(f"{self.path}/{number}.rdq", Mode.READ)
            if len(self._open) > _OPEN_FILES_MAX:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(number)
        return file

    def close(self) -> None:
        """Give the descriptors back."""
        while self._open:
            self._open.popitem()[1].close()


def _whole_ids(view: memoryview) -> set[bytes]:
    records = scan_records(view, "").records
    terms = (bytes(view[record.offset + TERM_AT : record.offset + record.total_size - 1]) for record in records)
    return {record.msg_id for record, term in zip(records, terms, strict=True) if is_message(term, record.msg_id)}


def store_names(persistent: bool) -> tuple[str, str]:
    """Where to look for a message: its own store first (a non-durable queue keeps persistent ones in the transient store)."""
    names = layout.PERSISTENT_FOLDER, layout.TRANSIENT_FOLDER
    return names if persistent else (names[1], names[0])
