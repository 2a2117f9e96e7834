"""Damage to the files of a node: one change each, in a copy of a real server's folder."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

from rabbitstore.quorum.wal import WalRecord, WalScan

SECTOR = 512


class MissingFileError(Exception):
    """The folder has no file of a pattern."""


class Node:
    """A node's folder that is damaged, with a seeded choice of the place."""

    def __init__(self, path: Path, seed: int | str) -> None:
        self.path = path
        self.chance = random.Random(seed)

    def files(self, pattern: str) -> list[Path]:
        """Return the files below the folder; a pattern must match."""
        return sorted(self.path.glob(pattern))

    def one(self, pattern: str) -> Path:
        """Choose a file that is not empty; raise `MissingFileError` without one."""
        found = [file for file in self.files(pattern) if file.stat().st_size]
        if not found:
            raise MissingFileError(pattern)
        return self.chance.choice(found)

    def edit(self, file: Path, at: int, data: bytes) -> None:
        """Overwrite bytes of a file."""
        with file.open("r+b") as opened:
            opened.seek(at)
            opened.write(data)

    def flip(self, file: Path, at: int) -> None:
        """Flip one bit of a file."""
        self.edit(file, at, bytes((file.read_bytes()[at] ^ 1 << self.chance.randrange(8),)))

    def cut(self, file: Path, size: int) -> None:
        """Cut the end off a file."""
        with file.open("r+b") as opened:
            opened.truncate(size)

    def records(self, file: Path) -> list[WalRecord]:
        """Return the records of a write-ahead log."""
        return list(WalScan(file.read_bytes(), "", [], []).records())

    def middle(self, file: Path) -> WalRecord:
        """Choose a record that is not among the last ones and has data of a message or command."""
        found = [record for record in self.records(file)[:-5] if record.size > 60]
        return self.chance.choice(found)


def _in_record(field: str) -> Callable[[Node], None]:
    def damage(node: Node) -> None:
        file = node.one("quorum/*/*.wal")
        record = node.middle(file)
        at = {
            "writer": record.position + 2,
            "checksum": record.at - 24 + node.chance.randrange(4),
            "size": record.at - 20 + node.chance.randrange(4),
            "index": record.at - 9,
            "term": record.at - 1,
            "data": record.at + node.chance.randrange(record.size),
        }[field]
        node.flip(file, at)

    return damage


def _wal_name(node: Node) -> None:
    file = node.one("quorum/*/*.wal")
    named = [record for record in node.records(file) if record.at - record.position > 27]
    node.flip(file, node.chance.choice(named).position + 5 + node.chance.randrange(16))


def _wal_last(node: Node) -> None:
    file = node.one("quorum/*/*.wal")
    record = node.records(file)[-1]
    node.flip(file, record.at + node.chance.randrange(record.size))


def _wal_cut(node: Node) -> None:
    file = node.one("quorum/*/*.wal")
    record = node.records(file)[-1]
    node.cut(file, record.position + node.chance.randrange(1, record.stop - record.position))


def _wal_zero_tail(node: Node) -> None:
    file = node.one("quorum/*/*.wal")
    size = file.stat().st_size
    at = node.chance.randrange(size * 3 // 4, size)
    node.edit(file, at, bytes(size - at))


def _wal_zero_sector(node: Node) -> None:
    file = node.one("quorum/*/*.wal")
    at = node.chance.randrange(1, file.stat().st_size // SECTOR) * SECTOR
    node.edit(file, at, bytes(SECTOR))


def _wal_magic(node: Node) -> None:
    node.flip(node.one("quorum/*/*.wal"), 0)


def _wal_garbage_end(node: Node) -> None:
    file = node.one("quorum/*/*.wal")
    node.edit(file, file.stat().st_size, node.chance.randbytes(200))


def _segment(field: str) -> Callable[[Node], None]:
    def damage(node: Node) -> None:
        file = node.one("quorum/*/*/*.segment")
        data = file.read_bytes()
        count = struct.unpack_from(">H", data, 6)[0]
        rows = [at for at in range(8, 8 + 32 * count, 32) if any(data[at : at + 32])]
        row = node.chance.choice(rows)
        offset, size = struct.unpack_from(">QI", data, row + 16)
        if field == "entry":
            node.edit(file, row, bytes(32))
        elif field == "sector":
            node.edit(file, offset // SECTOR * SECTOR, bytes(SECTOR))
        elif field == "cut":
            node.cut(file, offset + size // 2)
        else:
            node.flip(
                file, {"data": offset + node.chance.randrange(size), "crc": row + 30, "magic": 0, "index": row + 7}[field]
            )

    return damage


def _lost(pattern: str) -> Callable[[Node], None]:
    return lambda node: node.one(pattern).unlink()


def _byte(pattern: str, first: int = 0) -> Callable[[Node], None]:
    def damage(node: Node) -> None:
        file = node.one(pattern)
        node.flip(file, node.chance.randrange(first, file.stat().st_size))

    return damage


def _config_cut(node: Node) -> None:
    file = node.one("quorum/*/*/config")
    node.cut(file, file.stat().st_size // 2)


def _chunks(data: bytes) -> list[tuple[int, int, int]]:
    """Return position, start of the data and end of each chunk of a segment, by the format page."""
    found, at = [], 8
    while at < len(data):
        size, trailer, filtered = struct.unpack_from(">IIB", data, at + 36)
        stop = at + 48 + filtered + size + trailer
        found.append((at, at + 48 + filtered, stop))
        at = stop
    return found


def _chunk(field: str, position: str) -> Callable[[Node], None]:
    def damage(node: Node) -> None:
        files = [file for file in node.files("stream/*/*.segment") if len(_chunks(file.read_bytes())) > 4]
        file = node.chance.choice(files)
        chunks = _chunks(file.read_bytes())
        at, data, stop = chunks[-1] if position == "last" else node.chance.choice(chunks[1:-1])
        if field == "cut":
            node.cut(file, at + node.chance.randrange(1, stop - at))
        elif field == "zeros":
            node.edit(file, at, bytes(stop - at))
        else:
            fields = {"magic": at, "id": at + 31, "epoch": at + 23, "records": at + 7, "size": at + 39, "crc": at + 33}
            node.flip(file, fields.get(field, data + node.chance.randrange(max(stop - data, 1))))

    return damage


def _stream_tail_garbage(node: Node) -> None:
    file = max(node.chance.choice(list((node.path / "stream").iterdir())).glob("*.segment"))
    node.edit(file, file.stat().st_size, node.chance.randbytes(300))


def _classic(pattern: str, change: str) -> Callable[[Node], None]:
    """Damage the classic queue of the evidence run."""

    def damage(node: Node) -> None:
        names = node.files("msg_stores/vhosts/*/queues/*/.queue_name")
        folder = next(file.parent for file in names if b"c.one" in file.read_bytes())
        files = sorted(folder.glob(pattern)) or node.files(f"msg_stores/vhosts/*/{pattern}")
        file = max(files, key=lambda path: path.stat().st_size)
        size = file.stat().st_size
        if change == "lost":
            file.unlink()
        elif change == "cut":
            node.cut(file, size // 2)
        elif change in ("status", "cleared"):
            node.edit(file, 64 + 32 * 5, b"\x07" if change == "status" else b"\0")
        elif change == "zeros":
            node.edit(file, size // 2, bytes(SECTOR))
        else:
            node.flip(file, {"entry": 64 + 32 * 5 + 9, "body": size // 2, "magic": 1}[change])

    return damage


def _coordinator_config_lost(node: Node) -> None:
    found = [
        file for file in node.files("coordination/*/*/config") if b"{module,rabbit_stream_coordinator" in file.read_bytes()
    ]
    found[0].unlink()


def _elections_lost(node: Node) -> None:
    file = node.files("coordination/*/*.wal")[-1]
    data = file.read_bytes()
    found = [record for record in node.records(file) if b"member_stopped" in data[record.at : record.stop]]
    assert found
    for record in found:
        node.flip(file, record.at + node.chance.randrange(record.size))


def _wal_older(node: Node) -> None:
    file = node.files("quorum/*/*.wal")[0]
    record = node.records(file)[-1]
    node.flip(file, record.at + node.chance.randrange(record.size))


DAMAGES: dict[str, Callable[[Node], None]] = {
    "WAL: a bit of a message": _in_record("data"),
    "WAL: a bit of a checksum": _in_record("checksum"),
    "WAL: a bit of a size": _in_record("size"),
    "WAL: a bit of an index": _in_record("index"),
    "WAL: a bit of a term": _in_record("term"),
    "WAL: a bit of a writer's number": _in_record("writer"),
    "WAL: a bit of a queue's name": _wal_name,
    "WAL: a bit of the last record": _wal_last,
    "WAL: cut in the last record": _wal_cut,
    "WAL: zeros from a place to the end": _wal_zero_tail,
    "WAL: a sector of zeros": _wal_zero_sector,
    "WAL: the magic": _wal_magic,
    "WAL: other bytes after the end": _wal_garbage_end,
    "WAL: lost": _lost("quorum/*/*.wal"),
    "segment: a bit of a message": _segment("data"),
    "segment: a bit of a CRC": _segment("crc"),
    "segment: a bit of an index": _segment("index"),
    "segment: an entry of its index zeroed": _segment("entry"),
    "segment: a sector of zeros": _segment("sector"),
    "segment: cut": _segment("cut"),
    "segment: the magic": _segment("magic"),
    "segment: lost": _lost("quorum/*/*/*.segment"),
    "snapshot: a bit": _byte("quorum/*/*/snapshots/*/snapshot.dat"),
    "snapshot: lost": _lost("quorum/*/*/snapshots/*/snapshot.dat"),
    "checkpoint: a bit": _byte("quorum/*/*/checkpoints/*/snapshot.dat"),
    "queue's config: cut": _config_cut,
    "queue's config: lost": _lost("quorum/*/*/config"),
    "names.dets: lost": _lost("quorum/*/names.dets"),
    "names.dets: a bit of its head": lambda node: node.flip(node.one("quorum/*/names.dets"), 5),
    "meta.dets: lost": _lost("quorum/*/meta.dets"),
    "meta.dets: a bit of its head": lambda node: node.flip(node.one("quorum/*/meta.dets"), 5),
    "coordinator's names.dets: lost": _lost("coordination/*/names.dets"),
    "coordinator's WAL: cut in the last record": lambda node: node.cut(
        node.one("coordination/*/*.wal"), node.one("coordination/*/*.wal").stat().st_size - 3
    ),
    "stream: a bit of a message": _chunk("data", "middle"),
    "stream: a bit of a message of the last chunk": _chunk("data", "last"),
    "stream: a bit of a chunk's magic": _chunk("magic", "middle"),
    "stream: a bit of a chunk's id": _chunk("id", "middle"),
    "stream: a bit of a chunk's number of records": _chunk("records", "middle"),
    "stream: a bit of a chunk's size": _chunk("size", "middle"),
    "stream: a bit of a chunk's CRC": _chunk("crc", "middle"),
    "stream: a chunk of zeros": _chunk("zeros", "middle"),
    "stream: cut in the last chunk": _chunk("cut", "last"),
    "stream: other bytes after the end": _stream_tail_garbage,
    "stream: the magic of a segment": lambda node: node.flip(node.one("stream/*/*.segment"), 0),
    "stream: segment lost": _lost("stream/*/*.segment"),
    "stream: index lost": _lost("stream/*/*.index"),
    "stream: a bit of an index": _byte("stream/*/*.index"),
    "stream: index cut": lambda node: node.cut(node.one("stream/*/*.index"), 8 + 29 + 11),
    "classic .qi: cut": _classic("*.qi", "cut"),
    "classic .qi: a status byte": _classic("*.qi", "status"),
    "classic .qi: a bit of an entry's location": _classic("*.qi", "entry"),
    "classic .qi: the magic": _classic("*.qi", "magic"),
    "classic .qi: lost": _classic("*.qi", "lost"),
    "classic .qs: a bit of a message": _classic("*.qs", "body"),
    "classic .qs: cut": _classic("*.qs", "cut"),
    "classic .qs: lost": _classic("*.qs", "lost"),
    "classic shared store: a bit of a message": _classic("msg_store_persistent/*.rdq", "body"),
    "classic shared store: a sector of zeros": _classic("msg_store_persistent/*.rdq", "zeros"),
    "classic shared store: cut": _classic("msg_store_persistent/*.rdq", "cut"),
    "coordinator's config: lost": _coordinator_config_lost,
    "WAL: a bit of the last record of an older log": _wal_older,
    "stream: a bit of a chunk's epoch": _chunk("epoch", "middle"),
    "classic .qi: a status of zero": _classic("*.qi", "cleared"),
    "coordinator's WAL: the last elections": _elections_lost,
}
AFTER_A_RESTART = {"coordinator's WAL: the last elections"}  # these need a folder of a node that was started again

FILES = {
    "WAL": "quorum/*/*.wal",
    "segment": "quorum/*/*/*.segment",
    "snapshot": "quorum/*/*/snapshots/*/snapshot.dat",
    "checkpoint": "quorum/*/*/checkpoints/*/snapshot.dat",
    "queue's config": "quorum/*/*/config",
    "names.dets": "quorum/*/names.dets",
    "meta.dets": "quorum/*/meta.dets",
    "coordinator's WAL": "coordination/*/*.wal",
    "coordinator's config": "coordination/*/*/config",
    "coordinator's names.dets": "coordination/*/names.dets",
    "coordinator's meta.dets": "coordination/*/meta.dets",
    "stream segment": "stream/*/*.segment",
    "stream index": "stream/*/*.index",
    "classic .qi": "msg_stores/vhosts/*/queues/*/*.qi",
    "classic .qs": "msg_stores/vhosts/*/queues/*/*.qs",
    "classic .queue_name": "msg_stores/vhosts/*/queues/*/.queue_name",
    "classic shared store": "msg_stores/vhosts/*/msg_store_persistent/*.rdq",
    "classic recovery.dets": "msg_stores/vhosts/*/recovery.dets",
}


def _bit(node: Node, file: Path) -> None:
    node.flip(file, node.chance.randrange(file.stat().st_size))


def _cut(node: Node, file: Path) -> None:
    node.cut(file, node.chance.randrange(file.stat().st_size))


def _sector(node: Node, file: Path) -> None:
    size = file.stat().st_size
    at = node.chance.randrange(-(-size // SECTOR)) * SECTOR
    node.edit(file, at, bytes(min(SECTOR, size - at)))


CLASSES: dict[str, Callable[[Node, Path], None]] = {
    "a bit": _bit, "cut": _cut, "a sector of zeros": _sector, "lost": lambda _node, file: file.unlink()
}  # fmt: skip


def damage_any(node: Node, kind: str, change: str) -> str:
    """Damage a file of a kind at any place, and return its path below the folder."""
    file = node.one(FILES[kind])
    CLASSES[change](node, file)
    return str(file.relative_to(node.path))
