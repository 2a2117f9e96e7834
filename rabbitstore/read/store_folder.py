"""Read a message store's folder, `msg_store_persistent` or `msg_store_transient`: locations and terms of messages."""

from __future__ import annotations

from collections import OrderedDict

from storageio import Disk, DiskError, File, Kind, Mode
from storebytes.finding import Finding

from ..files import FILE_SIZE_MAX, mapped, numbers_in
from ..format import layout
from ..format.content import is_message
from ..format.layout import RECORD_HEAD, RECORD_MIN, RECORD_OVERHEAD
from ..format.names import numbered
from ..format.rdq import RECORD_END, TERM_AT, RdqScan, StoreRecord, check_record, find_containers, find_record, scan_records

_OPEN_FILES_MAX = 32
SEARCHED_MAX = 16 << 30  # bytes searched for records past damage


class StoreFolder:
    """The files of a message store, scanned on first use."""

    def __init__(self, disk: Disk, vhost_path: str, name: str) -> None:
        """Open the folder `name`, one of `layout.STORE_FOLDERS`."""
        self.disk = disk
        self.name = name
        self.path = f"{vhost_path}/{name}"
        self.problems: list[Finding] = []
        self.salvaged: dict[int, dict[int, tuple[bytes, bytes]]] = {}  # by file and offset: (id, term) of a damaged record
        self._locations: dict[bytes, tuple[int, StoreRecord]] | None = None
        self.found_past_damage: dict[int, list[StoreRecord]] = {}  # by file: records past damage, found by their ids
        self._unframed: dict[int, int] = {}  # by file: where the first bytes outside of whole records begin
        self._following: dict[int, dict[bytes, StoreRecord]] = {}  # by file: the records after one that was found past damage
        self._containers: dict[bytes, tuple[int, StoreRecord, bytes]] | None = None  # by id, where a record is damaged
        self._searched = 0
        self._tail = -1, b""  # the file that was searched last, and its bytes
        self._open: OrderedDict[int, File] = OrderedDict()

    def file_numbers(self) -> list[int]:
        """Return the numbers of the `.rdq` files."""
        return numbers_in(self.disk, self.path, "rdq")

    def sizes(self) -> dict[int, int]:
        """Return the sizes of the `.rdq` files by number, without opening one."""
        files = [entry for entry in self.disk.list(self.path) if entry.kind is Kind.FILE]
        found = ((numbered(entry.name, "rdq"), entry.size_bytes) for entry in files)
        return {number: size_bytes for number, size_bytes in found if number is not None}

    def scan(self, number: int, problems: list[Finding]) -> RdqScan:
        """Scan the records of one file."""
        with mapped(self.disk, f"{self.path}/{number}.rdq") as view:
            return scan_records(view, f"{self.name}/{number}.rdq", problems)

    def compaction_ids(self, number: int) -> set[bytes]:
        """Return the ids of the whole messages in `N.rdt`, which an opening and `recover` append to `N.rdq`."""
        with mapped(self.disk, f"{self.path}/{number}.rdt") as view:
            found = scan_records(view, "").records
            terms = (bytes(view[record.offset + TERM_AT : record.offset + record.total_size - 1]) for record in found)
            return {record.msg_id for record, term in zip(found, terms, strict=True) if is_message(term, record.msg_id)}

    @property
    def locations(self) -> dict[bytes, tuple[int, StoreRecord]]:
        """File number and record of every id; the copy at the highest offset of the highest file counts."""
        if self._locations is None:
            self._locations = {}
            for number in self.file_numbers():
                scan = self.scan(number, self.problems)
                for record in scan.records:
                    self._locations[record.msg_id] = number, record
                if scan.unframed_from < self.size_of(number):
                    self._unframed[number] = scan.unframed_from
        return self._locations

    def locate(self, msg_id: bytes) -> tuple[int, StoreRecord] | None:
        """Return file number and record of an id, past damage too; None when it is in no file."""
        found = self.locations.get(msg_id)
        if found is not None or not msg_id:  # one that was only in the server's memory has no id
            return found
        for number in self._unframed:
            record = self._find_past_damage(number, msg_id)
            if record is not None:
                self.found_past_damage.setdefault(number, []).append(record)
                self.locations[msg_id] = number, record
                return number, record
        return self._locate_container(msg_id)

    def _locate_container(self, msg_id: bytes) -> tuple[int, StoreRecord] | None:
        """Find a message container whose record has a damaged size, id or end mark."""
        if self._containers is None:
            self._containers = {}
            for number in self.file_numbers():
                self._search_containers(number, self._containers)
        found = self._containers.get(msg_id)
        if found is None:
            return None
        number, record, term = found
        self.problems.append(Finding(f"{self.name}/{number}.rdq", record.offset, "bad_record", "a whole record", msg_id.hex()))
        self.salvaged.setdefault(number, {})[record.offset] = msg_id, term
        self.locations[msg_id] = number, record
        return number, record

    def _search_containers(self, number: int, found: dict[bytes, tuple[int, StoreRecord, bytes]]) -> None:
        size = self.size_of(number)
        if size > FILE_SIZE_MAX or self._searched > SEARCHED_MAX:
            return
        self._searched += size
        for msg_id, offset, term in find_containers(self._file(number).read(0, size)):
            if msg_id not in self.locations:
                found[msg_id] = number, StoreRecord(msg_id, offset, len(term) + TERM_AT + len(RECORD_END)), term

    def knows(self, msg_id: bytes) -> bool:
        """Return whether a scan found the id, or a search for a missing one found it in a damaged record."""
        return msg_id in self.locations or (self._containers is not None and msg_id in self._containers)

    def _find_past_damage(self, number: int, msg_id: bytes) -> StoreRecord | None:
        """Find a record after the bytes that stop a scan.

        A record that is found frames those after it, so a file is searched about once for any number of ids.
        `SEARCHED_MAX` limits the time for files that defeat this.
        """
        known = self._following.setdefault(number, {})
        if msg_id in known or self._searched > SEARCHED_MAX:
            return known.get(msg_id)
        start, size = self._unframed[number], self.size_of(number)
        if size > FILE_SIZE_MAX:
            return None  # RabbitMQ wrote no such file: it is sparse
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
        """Scan again at the next use: a writer may have moved records."""
        self._locations = None
        self._unframed.clear()
        self._following.clear()
        self._containers = None
        self.salvaged.clear()
        self._tail = -1, b""
        self.close()

    def term(self, number: int, record: StoreRecord) -> bytes | None:
        """Return the record's term; None when the bytes are no longer that record, or the file is gone."""
        salvaged = self.salvaged.get(number, {}).get(record.offset)
        if salvaged is not None and salvaged[0] == record.msg_id:
            return salvaged[1]
        try:
            data = self._file(number).read(record.offset, record.total_size)
        except DiskError:
            if self.disk.stat(f"{self.path}/{number}.rdq") is not None:
                raise
            return None
        return data[TERM_AT:-1] if check_record(data, record.msg_id, record.total_size) else None

    def size_of(self, number: int) -> int:
        """Return the size of a file."""
        return self._file(number).size()

    def record_at(self, number: int, offset: int, total_size: int) -> bytes | None:
        """Return the id of the record with exactly this location; None when there is no such record."""
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
        """Close the open files."""
        while self._open:
            self._open.popitem()[1].close()


def store_names(persistent: bool) -> tuple[str, str]:
    """Return the stores to search, the likelier first: a non-durable queue keeps persistent messages in the transient store."""
    return layout.STORE_FOLDERS if persistent else layout.STORE_FOLDERS[::-1]
