"""Stores of real DLedger brokers, and a plain model of their log after `docs/formats/dledger.md`."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from tests.archives import unpack

YEARS = Path(__file__).parent / "data" / "years"
NAMES = ("dledger497", "dledger551", "dledger-mixed")
HEADER = struct.Struct(">iiqqqiiii")  # magic, size, index, term, position, channel, two checksums, size of the body
UNIT = struct.Struct(">iqiqq")  # magic, position, size, index, term


class Entry(NamedTuple):
    """One entry of the log."""

    position: int
    index: int
    term: int
    record: bytes

    @property
    def unit(self) -> bytes:
        """The unit that the index must have."""
        return UNIT.pack(1, self.position, HEADER.size + len(self.record), self.index, self.term)

    @property
    def is_whole(self) -> bool:
        """Whether the record is one, by its own offset and the CRC of its body; no broker asks for the latter."""
        record = self.record
        if len(record) < 91 or record[4:8] not in (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab"):
            return False
        sys_flag = int.from_bytes(record[36:40], "big")
        at = 84 + 12 * (sys_flag >> 4 & 1) + 12 * (sys_flag >> 5 & 1)
        size = int.from_bytes(record[at : at + 4], "big")
        body = record[at + 4 : at + 4 + size]
        crc = int.from_bytes(record[8:12], "big")
        return int.from_bytes(record[28:36], "big") == self.position + HEADER.size and (
            len(body) == size and (not body or zlib.crc32(body) & 0x7FFFFFFF == crc)
        )


def unpacked(name: str, folder: Path) -> Path:
    """Unpack a store, without the empty database that the broker of 5.5.1 left in it."""
    unpack(YEARS / f"{name}.tar.xz", folder)
    return folder / name / "store"


def manifest(store: Path) -> dict[str, Any]:
    """Return what the live broker delivered before its end."""
    found: dict[str, Any] = json.loads((store.parent / "manifest.json").read_text("utf-8"))
    return found


def peer(store: Path) -> Path:
    """Return the folder of the store's peer."""
    return next(path for path in store.iterdir() if path.name.startswith("dledger-"))


def data_files(store: Path) -> list[Path]:
    """Return the files of entries, oldest first."""
    return sorted((peer(store) / "data").iterdir())


def entries(store: Path) -> list[Entry]:
    """Return the entries up to the first place that breaks a rule of the broker."""
    found: list[Entry] = []
    files = data_files(store)
    end = int(files[0].name) if files else 0
    for path in files:
        if int(path.name) != end:
            break
        data = path.read_bytes()
        at = _take(data, end, found)
        if at < 0:
            break
        end += len(data)
    return found


def _take(data: bytes, base: int, found: list[Entry]) -> int:
    """Add the entries of one file; return -1 where the log ends in it."""
    at = 0
    while at + HEADER.size <= len(data):
        magic, size, index, term, position, _, _, _, body = HEADER.unpack_from(data, at)
        if magic == -1:
            return at if size == len(data) - at else -1
        before = found[-1] if found else None
        follows = before is None or (index == before.index + 1 and term >= before.term)
        if magic != 1 or size != HEADER.size + body or position != base + at or not follows or at + size > len(data):
            return -1
        found.append(Entry(position, index, term, data[at + HEADER.size : at + size]))
        at += size
    return at


def index_units(store: Path, count: int) -> list[bytes]:
    """Return the first units of an index of one file."""
    with open(peer(store) / "index" / ("0" * 20), "rb") as file:
        data = file.read(UNIT.size * count)
    return [data[at : at + UNIT.size] for at in range(0, len(data), UNIT.size)]


def checkpoint(store: Path) -> dict[str, int]:
    """Return the numbers of the peer's checkpoint."""
    lines = (peer(store) / "checkpoint").read_text().split()
    return {name: int(value) for name, value in (line.split("=") for line in lines)}
