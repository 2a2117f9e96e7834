"""A plain model of which messages the files of a RabbitMQ node name.

It is written from `docs/formats` alone and shares no code with the product.  A message is named by its body, wherever that
lies whole in a file; by a live entry of an index or journal of a classic queue; by a record of a stream's index; and an entry
of a Raft log by the last index that `meta.dets` shows as applied.  `Witnesses` never fails: an unreadable file names nothing.
"""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import NamedTuple

BODY_MIN, BODY_MAX = 24, 100_000  # shorter ones are found by chance, longer ones lie in several frames
SEGMENT = re.compile(rb"segment_entry_count,\s*(\d+)")
PUBLISH, JOURNAL_PUBLISH = struct.Struct(">16sqII"), 40
STREAM_RECORD = struct.Struct(">QQQIB")  # chunk's first offset, time, epoch, position, type
DELIVERED = 2  # in the journal; 3 is an acknowledgement
SEEN_TWICE = 2  # in a segment the second mark of an entry acknowledges it


class Message(NamedTuple):
    """A message that the undamaged folder has."""

    queue: str
    message_id: str
    body: bytes


class Witnesses:
    """What a folder names."""

    def __init__(self, node: Path) -> None:
        self.node = node
        files = [path for path in sorted(node.rglob("*")) if path.is_file()]
        self.blobs = [data for path in files if (data := path.read_bytes().strip(b"\0"))]
        self.entries: dict[str, int] = {}  # live persistent entries by the folder of a classic queue
        for folder in sorted(node.glob("msg_stores/vhosts/*/queues/*")):
            self.entries[folder.name] = len(_version_1(folder)) + len(_version_2(folder))
        self.chunks: dict[str, tuple[int, int]] = {}  # last offset that the index names, bytes of the segment, by stream
        for folder in sorted(node.glob("stream/*")):
            self.chunks[folder.name] = _stream(folder)
        self.applied: dict[str, tuple[int, int]] = {}  # by writer of a Raft log: last applied, last that a log has
        for system in sorted(node.glob("quorum/*")):
            self.applied |= _raft(system)

    def has(self, message: Message) -> bool:
        """Return whether the body of a message lies whole in a file."""
        found = BODY_MIN <= len(message.body) <= BODY_MAX
        return found and any(message.body in blob for blob in self.blobs)

    def disagreements(self) -> list[str]:
        """Return what one part of the folder names and another one does not have, without any knowledge of the messages."""
        found = [
            f"stream {name}: index names a chunk at {at}, segment has {size}"
            for name, (at, size) in self.chunks.items()
            if at >= size > 0 or (at and not size)
        ]
        return found + [
            f"{uid}: {done} are applied, its log ends at {last}" for uid, (done, last) in self.applied.items() if done > last
        ]


def queue_names(node: Path) -> dict[str, str]:
    """Return the name of each classic queue's folder, of an undamaged node."""
    found = {}
    for path in node.glob("msg_stores/vhosts/*/queues/*/.queue_name"):
        text = path.read_text("utf-8", "replace")
        found[path.parent.name] = text.split("QUEUE: ", 1)[-1].removesuffix("\n").removesuffix("\nINDEX: v2").split("\0")[0]
    return found


def _version_1(folder: Path) -> set[int]:
    """Return the live persistent entries of `N.idx` and of the journal."""
    config = folder.parents[1] / ".config"
    size = SEGMENT.search(config.read_bytes() if config.is_file() else b"")
    per_file = int(size[1]) if size else 16384
    published: set[int] = set()
    marks: dict[int, int] = {}
    for path in sorted(folder.glob("*.idx")):
        if path.stem.isdigit():
            _segment(path.read_bytes(), int(path.stem) * per_file, published, marks)
    journal = folder / "journal.jif"
    _journal(journal.read_bytes() if journal.is_file() else b"", published, marks)
    return {number for number in published if marks.get(number, 0) < SEEN_TWICE}


def _segment(data: bytes, first: int, published: set[int], marks: dict[int, int]) -> None:
    at = 0
    while at + 2 <= len(data):
        (head,) = struct.unpack_from(">H", data, at)
        number = first + (head & 0x3FFF)
        if head & 0x8000:
            if at + 2 + PUBLISH.size > len(data):
                return
            published |= {number} if head & 0x4000 else set()
            at += 2 + PUBLISH.size + PUBLISH.unpack_from(data, at + 2)[3]
        elif head & 0x4000:
            marks[number] = marks.get(number, 0) + 1
            at += 2
        else:
            return


def _journal(data: bytes, published: set[int], marks: dict[int, int]) -> None:
    at = 0
    while at + 8 <= len(data):
        (head,) = struct.unpack_from(">Q", data, at)
        kind, number = head >> 62, head & (1 << 62) - 1
        if kind >= DELIVERED:
            marks[number] = max(marks.get(number, 0), kind - 1)  # a kill may leave what the segment has already
            at += 8
        elif at + JOURNAL_PUBLISH > len(data) or not any(data[at : at + JOURNAL_PUBLISH]):
            return
        else:
            published |= {number} if kind == 0 else set()
            at += JOURNAL_PUBLISH + PUBLISH.unpack_from(data, at + 8)[3]


def _version_2(folder: Path) -> set[tuple[str, int]]:
    """Return the live persistent entries of `N.qi`."""
    found = set()
    for path in folder.glob("*.qi"):
        data = path.read_bytes()
        found |= {(path.name, at) for at in range(64, len(data) - 31, 32) if data[at] == 1 and data[at + 1] & 1}
    return found


def _stream(folder: Path) -> tuple[int, int]:
    """Return the position of the last chunk that the newest index names, and the size of its segment."""
    indexes = sorted(folder.glob("*.index"))
    if not indexes:
        return 0, 0
    data = indexes[-1].read_bytes()[8:]
    records = [STREAM_RECORD.unpack_from(data, at) for at in range(0, len(data) - STREAM_RECORD.size + 1, STREAM_RECORD.size)]
    segment = indexes[-1].with_suffix(".segment")
    return max((row[3] for row in records), default=0), segment.stat().st_size if segment.is_file() else 0


def _raft(system: Path) -> dict[str, tuple[int, int]]:
    """Return for each queue's folder the last index that `meta.dets` shows, and the last one that a log or snapshot has."""
    meta = system / "meta.dets"
    shown = meta.read_bytes() if meta.is_file() else b""
    found = {}
    ends = _wal_ends(system)
    for folder in sorted(path for path in system.iterdir() if path.is_dir()):
        uid = os.fsencode(folder.name)
        last = max([ends.get(uid, 0), *map(_segment_end, folder.glob("*.segment")), *_snapshots(folder)])
        found[folder.name] = _applied(shown, uid), last
    return found


def _applied(data: bytes, uid: bytes) -> int:
    """Return the greatest last number of a row {UId, Term, VotedFor, LastApplied}; freed rows are older."""
    key = b"h\4m" + struct.pack(">I", len(uid)) + uid
    found, at = 0, data.find(key)
    while at >= 0:
        at += len(key)
        for _ in range(3):
            value, at = _term(data, at)
        found, at = max(found, value), data.find(key, at)
    return found


def _term(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that a term of a row is, or 0, and where the next one begins; ends at an unknown one."""
    tag = data[at : at + 1]
    if tag == b"a":
        return data[at + 1], at + 2
    if tag == b"b":
        return struct.unpack_from(">i", data, at + 1)[0], at + 5
    if tag == b"n":
        return int.from_bytes(data[at + 3 : at + 3 + data[at + 1]], "little"), at + 3 + data[at + 1]
    if tag in (b"w", b"s"):
        return 0, at + 2 + data[at + 1]
    if tag in (b"d", b"v"):
        return 0, at + 3 + struct.unpack_from(">H", data, at + 1)[0]
    if tag == b"h":
        at, count = at + 2, data[at + 1]
        for _ in range(count):
            _, at = _term(data, at)
        return 0, at
    return 0, len(data)


def _wal_ends(system: Path) -> dict[bytes, int]:
    """Return the last index of each writer in the write-ahead logs; damage ends a log."""
    found: dict[bytes, int] = {}
    for path in sorted(system.glob("*.wal")):
        data, at = path.read_bytes(), 5
        names: dict[int, bytes] = {}
        while at + 3 < len(data) and any(data[at : at + 27]):
            flags = int.from_bytes(data[at : at + 3], "big")
            writer, is_known = flags & 0x3FFFFF, bool(flags & 0x400000)
            at += 3
            if not is_known:
                size = int.from_bytes(data[at : at + 2], "big")
                names[writer] = data[at + 2 : at + 2 + size]
                at += 2 + size
            if at + 24 > len(data):
                break
            _, size, index, _ = struct.unpack_from(">IIQQ", data, at)
            at += 24 + size
            if at <= len(data) and writer in names:
                found[names[writer]] = max(found.get(names[writer], 0), index)
    return found


def _segment_end(path: Path) -> int:
    data = path.read_bytes()
    if len(data) < 8:
        return 0
    count = struct.unpack_from(">H", data, 6)[0]
    rows = [at for at in range(8, 8 + 32 * count, 32) if at + 32 <= len(data) and any(data[at : at + 32])]
    return max((struct.unpack_from(">Q", data, at)[0] for at in rows), default=0)


def _snapshots(folder: Path) -> list[int]:
    """Return the index that the name of each snapshot or checkpoint ends with."""
    names = [path.parent.name for path in folder.glob("*/*/snapshot.dat") if path.stat().st_size]
    return [int(name.rsplit("_", 1)[-1], 16) for name in names if re.fullmatch(r"[0-9A-F]{16}", name.rsplit("_", 1)[-1])]
