"""What must hold of a RocketMQ-style store that was opened after a crash.

- every flushed record is there, byte for byte; of the others any number is lost, from the tail only
- no record that was never put; nothing but zeros after the last one
- no queue offset twice and none skipped
- queues and index agree with the log in both directions, and the chains of the index are sound
- a second recovery leaves the same bytes

Expected bytes come from the ledger and the format pages, never from the engine's own readers.
"""

from __future__ import annotations

import struct

from commitlog import CommitLog
from messagestore import MessageStore
from storageio.testing import ForgettingDisk

from .rocketmq_ledger import Ledger, LedgerEntry

UNIT = struct.Struct(">qiq")  # physical offset, size, tags code
INDEX_HEADER = struct.Struct(">qqqqii")
INDEX_ITEM = struct.Struct(">iqii")
SAME_AGAIN = ("/commitlog/", "/consumequeue/")  # a second recovery must not change these


class Broken(AssertionError):
    """A promise that was not kept; the text says which."""


def must(is_so: object, what: str) -> None:
    """Raise `Broken` unless the condition holds."""
    if not is_so:
        raise Broken(what)


def check_store(store: MessageStore, disk: ForgettingDisk, ledger: Ledger, flushed: int) -> int:
    """Compare a store that has just been recovered with the ledger; return how many of its entries the log has.

    `flushed` is the number of entries that were safe at the moment of the crash.
    """
    engine = store.engine
    low, end = max(engine.log.min_offset, 0), engine.log.written_offset
    must(low <= ledger.low, f"the log begins at {low}, deleted was before {ledger.low}")
    count = _count_kept(ledger, end)
    must(count >= flushed, f"{flushed - count} flushed records of {flushed} are lost: the log ends at {end}")
    kept = [entry for entry in ledger.entries[:count] if entry.physical_offset >= low]
    check_log(engine.log, kept, low, end)
    files = disk.files()
    root = engine.paths.root
    check_queues(files, f"{root}/consumequeue/", ledger.entries[:count], low)
    if engine.index is not None:
        check_index(files, f"{root}/index/", kept, low, engine.index.slots)
    for (topic, queue_id), expected in _next_offsets(ledger.entries[:count]).items():
        found = engine.offsets.next_offset(topic, queue_id)
        must(found == expected, f"the next offset of {topic}-{queue_id} is {found}, not {expected}")
    return count


def _count_kept(ledger: Ledger, end: int) -> int:
    """Count the entries that end by `end`."""
    count = len(ledger.entries)
    while count and ledger.entries[count - 1].end_offset > end:
        count -= 1
    return count


def check_log(log: CommitLog, kept: list[LedgerEntry], low: int, end: int) -> None:
    """Check that the log holds the records one after the other, and nothing else."""
    size = log.file_size_bytes
    at = low
    for entry in kept:
        if at != entry.physical_offset:  # a file was closed
            must(entry.physical_offset == -(-at // size) * size, f"a gap before the record at {entry.physical_offset}")
        raw = log.select(entry.physical_offset, len(entry.raw))
        must(raw is not None and raw == entry.raw, f"the record at {entry.physical_offset} is another")
        at = entry.end_offset
    must(at == end or end == -(-at // size) * size, f"the log ends at {end}, its last record at {at}")
    for file in log.queue.files:
        rest = file.view[max(0, end - file.start_offset) :]
        must(not any(bytes(rest)), f"bytes after the log's end in {file.path}")


def _next_offsets(entries: list[LedgerEntry]) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for entry in entries:
        queue_key = entry.topic, entry.queue_id
        must(entry.queue_offset == found.get(queue_key, 0), f"{queue_key} goes on with {entry.queue_offset}")
        found[queue_key] = entry.queue_offset + 1
    return found


def check_queues(files: dict[str, bytes], folder: str, entries: list[LedgerEntry], low: int) -> None:
    """Check that each kept record has its unit; units of records that left the log may remain, no others."""
    expected: dict[str, list[bytes]] = {}
    first: dict[str, int] = {}
    for entry in entries:
        queue_key = f"{folder}{entry.topic}/{entry.queue_id}/"
        units = expected.setdefault(queue_key, [])
        if entry.physical_offset >= low:
            first.setdefault(queue_key, len(units))
        units.append(UNIT.pack(entry.physical_offset, len(entry.raw), entry.tags_code))
    found: dict[str, list[tuple[int, bytes]]] = {}
    for path, data in files.items():
        if path.startswith(folder):
            queue_key, _, name = path.rpartition("/")
            found.setdefault(f"{queue_key}/", []).append((int(name), data))
    for queue_key in found.keys() - expected.keys():
        must(not any(any(data) for _, data in found[queue_key]), f"units of no record in {queue_key}")
    for queue_key, units in expected.items():
        _check_queue(queue_key, found.get(queue_key, []), b"".join(units), 20 * first.get(queue_key, len(units)))


def _check_queue(queue_key: str, parts: list[tuple[int, bytes]], requested: bytes, needed_from: int) -> None:
    """Compare one queue's files with all units it ever had; those before `needed_from` may be gone."""
    must(parts or needed_from == len(requested), f"{queue_key} is missing")
    at = parts[0][0] if parts else 0
    must(at <= needed_from or needed_from == len(requested), f"{queue_key} begins at byte {at}, wanted {needed_from}")
    for start, data in parts:
        must(start == at, f"{queue_key} lacks the file {at}")
        expected = requested[start : start + len(data)].ljust(len(data), b"\0")
        if data != expected and start < needed_from:  # blanks may replace records that left the log
            cut = min(needed_from - start, len(data))
            data, expected = data[cut:], expected[cut:]
        must(data == expected, f"{queue_key}{start:020d}: units that are not the log's{_first_difference(data, expected)}")
        at = start + len(data)
    must(at >= len(requested), f"{queue_key} ends at byte {at}, wanted {len(requested)}")


def _first_difference(found: bytes, expected: bytes) -> str:
    for at in range(0, len(found) - 19, 20):
        if found[at : at + 20] != expected[at : at + 20]:
            return f": unit {at // 20} is {UNIT.unpack(found[at : at + 20])}, not {UNIT.unpack(expected[at : at + 20])}"
    return ""


def check_index(files: dict[str, bytes], folder: str, kept: list[LedgerEntry], low: int, slots: int) -> None:
    """Check that the index holds every key of a kept record in log order, and that each slot leads through its items.

    After a recovery the last record of a full file may be in the next file too, as in RocketMQ; a query drops the duplicate.
    """
    expected = [(code, entry.physical_offset) for entry in kept for code in entry.key_hashes]
    found: list[tuple[int, int]] = []
    for path in sorted(path for path in files if path.startswith(folder)):
        found += _items(path, files[path], slots)
    found = [item for item in found if item[1] >= low]
    if list(dict.fromkeys(found)) != list(dict.fromkeys(expected)):
        missing, strange = set(expected) - set(found), set(found) - set(expected)
        must(False, f"the index lacks {sorted(missing)[:3]}, has strange {sorted(strange)[:3]} or others twice")


def _items(path: str, data: bytes, slots: int) -> list[tuple[int, int]]:
    """Return key hash and physical offset of each item of a file, following its chains."""
    *_, slots_used, next_item = INDEX_HEADER.unpack_from(data)
    start = INDEX_HEADER.size + 4 * slots
    items = [INDEX_ITEM.unpack_from(data, start + 20 * number) for number in range(1, max(1, next_item))]
    heads = [0] * slots
    for number, (code, _, _, previous) in enumerate(items, 1):
        must(previous == heads[code % slots], f"{path}: item {number} does not lead to the one before it")
        heads[code % slots] = number
    must(list(struct.unpack_from(f">{slots}i", data, INDEX_HEADER.size)) == heads, f"{path}: a slot leads astray")
    used = sum(1 for head in heads if head)
    must(not items or slots_used == used, f"{path}: {slots_used} slots used, found {used}")
    return [(code, offset) for code, offset, _, _ in items]


def same_again(before: dict[str, bytes], after: dict[str, bytes], root: str) -> None:
    """Check that a second recovery changed no byte of log and queues."""
    for part in SAME_AGAIN:
        old = {path: data for path, data in before.items() if path.startswith(root + part)}
        new = {path: data for path, data in after.items() if path.startswith(root + part)}
        for path in old.keys() | new.keys():
            must(old.get(path) == new.get(path), f"a second recovery changes {path}")
