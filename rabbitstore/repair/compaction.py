"""Finish a compaction that a kill interrupted."""

from __future__ import annotations

from contextlib import closing

from storageio import Disk, Mode
from storageio.invariants import check_invariants

from ..files import read_all
from ..format.content import is_message
from ..format.rdq import TERM_AT, StoreRecord, scan_records


def recover_crashed_compaction(disk: Disk, folder: str, number: int) -> None:
    """Append the records of `N.rdt` to `N.rdq`, then delete `N.rdt`.

    RabbitMQ appends the whole file; after a torn or zeroed tail a scan would never reach it.  So `N.rdq` is cut at its last
    whole record first.  The bytes cut are a copy of what `N.rdt` has: it was complete on disk before `N.rdq` was touched.
    The last copy of a message counts, so only messages of which `N.rdq` has no copy, or a worse one, are appended.
    """
    target, source = f"{folder}/{number}.rdq", f"{folder}/{number}.rdt"
    with closing(disk.open(target, Mode.CREATE)) as file:
        known = read_all(disk, target)
        end = scan_records(known, target).valid_end
        tail = read_all(disk, source)
        good = _better_records(tail, known)
        joined = known[:end] + good
        check_invariants(_check_joined, joined, tail)
        if end < len(known) and good:
            file.truncate(end)
        file.write(0, joined)  # all of it: an earlier attempt may have died before its sync
        file.sync()
    disk.sync_folder(folder)
    disk.delete(source)


def _check_joined(joined: bytes, tail: bytes) -> None:
    """Assert that no message of the `.rdt` is lost with it."""
    ids = {record.msg_id for record in scan_records(joined, "").records}
    assert ids >= {record.msg_id for record in scan_records(tail, "").records}


def _better_records(data: bytes, known: bytes) -> bytes:
    """Return the records in `data` except those of which `known` has the same or a better copy."""
    there = {record.msg_id: _quality(known, record) for record in scan_records(known, "").records}
    records = [record for record in scan_records(data, "").records if there.get(record.msg_id, _NONE) < _quality(data, record)]
    return b"".join(data[record.offset : record.offset + record.total_size] for record in records)


_NONE = (False, -1 << 62)


def _quality(data: bytes, record: StoreRecord) -> tuple[bool, int]:
    """Order copies: whole messages first; of two others the torn one has more zeros."""
    term = data[record.offset + TERM_AT : record.offset + record.total_size - 1]
    return is_message(term, record.msg_id), -term.count(0)
