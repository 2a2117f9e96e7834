"""A plain model of what the files of a RocketMQ folder say about its messages.

It is written from `docs/formats` alone and shares no code with the product: a record, a unit and an index item are decoded here
a second time, slowly.  `read_witnesses` never fails: an unreadable file names nothing, and is listed as such.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

MAGICS = (0xDAA320A7, 0xDAA320AB)
BLANK = 0xCBD43194
HEAD = struct.Struct(">iIiiiqqiq")  # size to born timestamp
UNIT, BATCH_UNIT = struct.Struct(">qiq"), struct.Struct(">qiqqqhii")
ITEM = struct.Struct(">iqii")
BLANK_UNIT_SIZE = 0x7FFFFFFF
PREPARED, ROLLED_BACK, TRANSACTION_BITS = 4, 12, 12
LMQ = "%LMQ%"
NUMBERED = re.compile(r"\d{20}")
BARE_KEYS = re.compile(r"([{,]\s*)(-?\d+)\s*:")  # fastjson writes numbers as names without quotes
CONFIG = ("topics", "consumerOffset", "delayOffset", "subscriptionGroup", "consumerFilter")
SCHEDULE = "SCHEDULE_TOPIC_XXXX"

Queue = tuple[str, int]
Message = tuple[str, int, int]  # topic, queue id, queue offset


class Record(NamedTuple):
    """One whole record of the log."""

    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    properties: dict[str, str]
    is_filler: bool  # docs/formats/commitlog.md#filler-records: a repair wrote it in place of a lost message

    @property
    def is_visible(self) -> bool:
        """Return whether the dispatcher gives it a unit: a transaction's only when it is committed."""
        return self.sys_flag & TRANSACTION_BITS not in (PREPARED, ROLLED_BACK)


class Witnesses:
    """What each part of a folder names."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self.files: dict[int, int] = {}  # log files: first offset, size
        self.holes: list[tuple[int, int]] = []  # bytes of the log that are no record, with one behind them
        self.zeros: set[tuple[int, int]] = set()  # those of the holes that have nothing but zeros
        self.tail: tuple[int, int] | None = None  # bytes behind the last record that are not zeros, as after a kill
        self.units: dict[Message, int] = {}  # physical offset of each unit of an ordinary queue
        self.batch_units: dict[tuple[str, int, int], int] = {}  # base offset of each batch unit
        self.indexed: set[int] = set()
        self.tables: dict[str, Any] = {}
        self.unreadable: list[str] = []
        self.clean_end: int | None = None
        self.was_clean = True  # no file `abort`
        self.has_queue_files = True  # no RocksDB queues

    @property
    def messages(self) -> set[int]:
        """Return the physical offset of every whole record that is no filler."""
        return {at for at, record in self.records.items() if not record.is_filler}

    @property
    def start(self) -> int:
        """Return the first offset of the log."""
        return min(self.files, default=0)

    def named(self) -> set[int]:
        """Return the physical offset of every message that a queue or the index names and the log could still have."""
        return {at for at in {*self.units.values(), *self.batch_units.values(), *self.indexed} if at >= self.start}

    def lost(self, read: set[int]) -> set[int]:
        """Return what is named, was not read, and lay in a hole or behind the end; any other unit is a wrong one."""
        positions = [*self.holes, (self.log_end(), 1 << 62)]  # where a record could have been
        return {at for at in self.named() - read if any(start <= at < stop for start, stop in positions)}

    def missing_numbers(self, read: set[int]) -> set[Message]:
        """Return queue offsets between those of a queue's records: messages that were there once."""
        seen: dict[Queue, list[tuple[int, int]]] = defaultdict(list)  # first queue offset of a record, and the one behind it
        for at in sorted(read):
            if (record := self.records.get(at)) is not None and record.is_visible and not record.topic.startswith(LMQ):
                count = int(record.properties.get("INNER_NUM", 1))
                seen[record.topic, record.queue_id].append((record.queue_offset, record.queue_offset + count))
        return {
            (*queue, number)
            for queue, numbers in seen.items()
            for (_, before), (after, _) in pairwise(numbers)
            for number in range(before, min(after, before + 10_000))
        }

    def disagreements(self) -> list[str]:
        """Return everything in which two parts of a folder that nobody has open contradict each other."""
        found = [f"{len(self.holes)} holes in the log, the first at {self.holes[0]}"] if self.holes else []
        found += [f"bytes behind the last record at {self.tail}"] if self.tail and self.was_clean else []
        found += [f"unreadable: {name}" for name in self.unreadable]
        lost = self.lost(set(self.records))
        found += [f"{len(lost)} messages are named and not in the log, the first at {min(lost)}"] if lost else []
        found += self._units_against_records()
        found += self._offsets_against_queues()
        end = max((at + record.size for at, record in self.records.items()), default=self.start)
        if self.clean_end is not None and self.clean_end > self.log_end():
            found.append(f"clean.json says {self.clean_end}, the last record ends at {end}")
        return found

    def log_end(self) -> int:
        """Return the end of the last record, or of the file if a blank record follows it."""
        last = max(self.records, default=self.start)
        end = last + self.records[last].size if self.records else last
        later = [start for start in self.files if start > last]
        return max([end, *later])

    def _units_against_records(self) -> list[str]:
        wrong = []
        for message, at in self.units.items():
            record = self.records.get(at)
            if record is None or message[0].startswith(LMQ) or "INNER_MULTI_DISPATCH" in record.properties:
                continue
            if record[2:5] != message:
                wrong.append(f"unit {message} names the record {record[2:5]} at {at}")
        batch_queues = {key[:2] for key in self.batch_units}
        for at, record in self.records.items() if self.has_queue_files else ():
            key = (record.topic, record.queue_id, record.queue_offset)
            if record.is_visible and self.has_topic(record.topic) and key[:2] not in batch_queues and key not in self.units:
                wrong.append(f"record {key} at {at} has no unit")
        return wrong[:3]

    def has_topic(self, topic: str) -> bool:
        """Return whether a topic has queues: false if it was deleted, which leaves its records in the log."""
        topics = (self.tables.get("topics") or {}).get("topicConfigTable")
        return topics is None or topic in topics or topic.startswith(("%RETRY%", "%DLQ%", "SCHEDULE", "rmq_sys", LMQ))

    def ends(self) -> dict[Queue, int]:
        """Return the end of each ordinary queue."""
        found: dict[Queue, int] = {}
        for topic, queue_id, number in self.units:
            found[topic, queue_id] = max(found.get((topic, queue_id), 0), number + 1)
        return found

    def _offsets_against_queues(self) -> list[str]:
        ends, ahead = self.ends(), []
        for name, offsets in (self.tables.get("consumerOffset") or {}).get("offsetTable", {}).items():
            topic = name.split("@")[0]
            for queue_id, offset in offsets.items():
                if (topic, int(queue_id)) in ends and offset > ends[topic, int(queue_id)]:
                    ahead.append(f"{name} queue {queue_id}: committed {offset}, ends at {ends[topic, int(queue_id)]}")
        for level, offset in (self.tables.get("delayOffset") or {}).get("offsetTable", {}).items():
            end = ends.get((SCHEDULE, int(level) - 1), 0)
            if offset > end:
                ahead.append(f"delay level {level}: {offset}, its queue ends at {end}")
        return ahead[:3]


def read_witnesses(store: Path, slots: int) -> Witnesses:
    """Read every part of a folder; `slots` is the number of slots of an index file."""
    found = Witnesses()
    found.was_clean = not (store / "abort").exists()
    found.has_queue_files = not (store / "consumequeue" / "CURRENT").is_file()
    for path in _numbered(store / "commitlog"):
        found.files[int(path.name)] = path.stat().st_size
    _log(store / "commitlog", found)
    for topic, queue_id, at, data in _queue_files(store / "consumequeue"):
        _units(found, topic, queue_id, at, data)
    for topic, queue_id, _, data in _queue_files(store / "batchconsumequeue"):
        for offset, size, _, _, base, count, *_ in BATCH_UNIT.iter_unpack(
            data[: len(data) // BATCH_UNIT.size * BATCH_UNIT.size]
        ):
            if offset >= 0 and size > 0 and count > 0:
                found.batch_units[topic, queue_id, base] = offset
    for path in sorted((store / "index").glob("*")):
        _items(found, path.read_bytes() if path.is_file() else b"", slots)
    for name in CONFIG:
        _table(found, name, store / "config" / f"{name}.json")
    _table(found, "clean", store / "brokerstore" / "clean.json")
    clean = found.tables.get("clean")
    found.clean_end = clean.get("end_offset") if clean else None
    return found


def _numbered(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if NUMBERED.fullmatch(path.name) and path.is_file())


def _log(folder: Path, found: Witnesses) -> None:
    """Read whole records, and look for the next one at every byte where none is."""
    paths = _numbered(folder)
    for number, path in enumerate(paths):
        data, base = path.read_bytes(), int(path.name)
        if number and base > (before := int(paths[number - 1].name) + paths[number - 1].stat().st_size):
            found.holes.append((before, base))
        at = 0
        while at < len(data):
            record = _record(data, at, base)
            if record is not None:
                found.records[base + at] = record
                at += record.size
            elif len(data) - at >= 8 and struct.unpack_from(">I", data, at + 4)[0] == BLANK:
                break
            else:
                at = _behind(data, at, base, found)
    _tail(found)


def _tail(found: Witnesses) -> None:
    """Take the holes behind the last record away: they are the end of the log, with a torn record or without."""
    last = max(found.records, default=-1)
    behind = [hole for hole in found.holes if hole[0] > last]
    found.holes = [hole for hole in found.holes if hole[0] <= last]
    torn = [hole for hole in behind if hole not in found.zeros]
    found.tail = torn[0] if torn else None


def _behind(data: bytes, at: int, base: int, found: Witnesses) -> int:
    """Return the next record's position behind one where there is none, and note the hole."""
    following = at + 1
    while following < len(data) and _record(data, following, base) is None:
        magics = [position for magic in MAGICS if (position := data.find(struct.pack(">I", magic), following + 5)) >= 0]
        following = min(magics, default=len(data) + 4) - 4
    found.holes.append((base + at, base + following))
    if not data[at:following].strip(b"\0"):
        found.zeros.add(found.holes[-1])
    return following


def _record(data: bytes, at: int, base: int) -> Record | None:
    """Return the record at a position, if it is whole, in its place, and its body's checksum is right."""
    if len(data) - at < 91:
        return None
    size, magic, crc, queue_id, _, queue_offset, physical, sys_flag, _ = HEAD.unpack_from(data, at)
    if magic not in MAGICS or physical != base + at or not 91 <= size <= len(data) - at:
        return None
    position = at + HEAD.size + (20 if sys_flag & 0x10 else 8) + 8 + (20 if sys_flag & 0x20 else 8) + 4 + 8
    (length,) = struct.unpack_from(">i", data, position)
    body = data[position + 4 : position + 4 + max(length, 0)]
    position += 4 + max(length, 0)
    width = 1 if magic == MAGICS[0] else 2
    if position + width + 2 > at + size or (body and zlib.crc32(body) & 0x7FFFFFFF != crc):
        return None
    topic_size = int.from_bytes(data[position : position + width], "big")
    topic = data[position + width : position + width + topic_size]
    position += width + topic_size
    (properties_size,) = struct.unpack_from(">h", data, position)
    if position + 2 + properties_size != at + size or b"\0" in topic + data[position + 2 : at + size]:
        return None
    pairs = data[position + 2 : at + size].decode("utf-8", "replace").split("\x02")
    properties = dict(pair.split("\x01", 1) for pair in pairs if "\x01" in pair)
    is_filler = sys_flag & 0xC0 == 0xC0 and (len(body) <= 10 or sys_flag & TRANSACTION_BITS == ROLLED_BACK)
    return Record(physical, size, topic.decode("utf-8", "replace"), queue_id, queue_offset, sys_flag, properties, is_filler)


def _queue_files(folder: Path) -> list[tuple[str, int, int, bytes]]:
    """Return topic, queue id, first byte and content of each queue file; nothing of a folder that is a RocksDB database."""
    paths = [path for path in sorted(folder.glob("*/*/*")) if NUMBERED.fullmatch(path.name) and path.parent.name.isdigit()]
    return [(path.parts[-3], int(path.parts[-2]), int(path.name), path.read_bytes()) for path in paths if path.is_file()]


def _units(found: Witnesses, topic: str, queue_id: int, start: int, data: bytes) -> None:
    for number, (offset, size, _) in enumerate(
        UNIT.iter_unpack(data[: len(data) // UNIT.size * UNIT.size]), start // UNIT.size
    ):
        if offset >= 0 and 0 < size < BLANK_UNIT_SIZE:
            found.units[topic, queue_id, number] = offset


def _items(found: Witnesses, data: bytes, slots: int) -> None:
    start = 40 + 4 * slots
    rest = data[start + ITEM.size :]  # item 0 is never used
    for key_hash, offset, seconds, _ in ITEM.iter_unpack(rest[: len(rest) // ITEM.size * ITEM.size]):
        if offset >= 0 and seconds >= 0 and (key_hash, offset) != (0, 0):
            found.indexed.add(offset)


def _table(found: Witnesses, name: str, path: Path) -> None:
    """Read one document; RocketMQ writes numbers as names without quotes."""
    if not path.is_file():
        return
    try:
        found.tables[name] = json.loads(BARE_KEYS.sub(r'\1"\2":', path.read_text("utf-8")))
    except ValueError:
        if name != "clean":  # a sidecar only saves work: unreadable, it names nothing
            found.unreadable.append(f"{path.parent.name}/{path.name}")
