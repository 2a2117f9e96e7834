"""Copies of golden stores that real brokers wrote, for tests that damage them."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.archives import unpack

DATA = Path(__file__).resolve().parents[1] / "data"
MEMORY = Path("/dev/shm")
MAGIC_V2 = 0xDAA320AB
CRC_START = b"__CRC32#\x01"
BORN_V6, STORE_V6 = 0x10, 0x20


def unpacked(name: str, above: Path) -> Path:
    """Unpack a golden store below `above` and return RocketMQ's folder `store` or RabbitMQ's `vhost`."""
    unpack(DATA / f"{name}.tar.xz", above)
    return above / "vhost" if name.startswith("rabbitmq") else above / name / "store"


@contextmanager
def fast_folder() -> Iterator[Path]:
    """Give a temporary folder, in memory if the machine has `/dev/shm`: these tests need nothing to last."""
    above = MEMORY if os.access(MEMORY, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="brokerstore-", dir=above))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


class Field(NamedTuple):
    """Bytes start..stop of a file; `record` is the start of the field's record, or -1 outside of all records."""

    start: int
    stop: int
    name: str
    record: int


def record_fields(data: bytes, at: int) -> Iterator[Field]:
    """Yield the fields of the commit-log record at `at`, as docs/formats/commitlog.md lists them."""
    position = at

    def field(name: str, size_bytes: int) -> Field:
        nonlocal position
        position += size_bytes
        return Field(position - size_bytes, position, name, at)

    sys_flag = struct.unpack_from(">i", data, at + 36)[0]
    is_v2 = struct.unpack_from(">I", data, at + 4)[0] == MAGIC_V2
    fixed = [("size", 4), ("magic", 4), ("body_crc", 4), ("queue_id", 4), ("flag", 4), ("queue_offset", 8)]
    fixed += [("physical_offset", 8), ("sys_flag", 4), ("born_timestamp", 8), ("born_host", 20 if sys_flag & BORN_V6 else 8)]
    fixed += [("store_timestamp", 8), ("store_host", 20 if sys_flag & STORE_V6 else 8), ("reconsume_times", 4)]
    fixed += [("prepared_offset", 8), ("body_size", 4)]
    for name, size_bytes in fixed:
        yield field(name, size_bytes)
    yield field("body", struct.unpack_from(">i", data, position - 4)[0])
    yield field("topic_size", 2 if is_v2 else 1)
    yield field("topic", struct.unpack_from(">h", data, position - 2)[0] if is_v2 else data[position - 1])
    yield field("properties_size", 2)
    size_bytes = struct.unpack_from(">h", data, position - 2)[0]
    has_crc = data[position + size_bytes - 20 : position + size_bytes - 11] == CRC_START
    before = size_bytes - 20 if has_crc else size_bytes
    yield field("properties", before - 1 if has_crc and before else before)
    if has_crc and before:
        yield field("separator", 1)  # without it, the checksum is part of the previous property
    if has_crc:
        yield field("checksum", 20)
    assert position == at + struct.unpack_from(">i", data, at)[0], "the fields fill the record"


class LogFile:
    """One file of a golden log, copied to its own folder, with the positions of its records and fields."""

    def __init__(self, source: Path, above: Path, physical_offsets: list[int]) -> None:
        self.data = source.read_bytes()
        self.base = int(source.name)
        self.folder = above / f"log-{source.name}"
        self.folder.mkdir()
        self.path = self.folder / source.name
        self.path.write_bytes(self.data)
        end = self.base + len(self.data)
        self.records = [offset - self.base for offset in physical_offsets if self.base <= offset < end]
        self.fields = [field for at in self.records for field in record_fields(self.data, at)]
        self._owners = {at: field for field in self.fields for at in range(field.start, field.stop)}

    def owner(self, at: int) -> Field:
        """Return the field that a byte belongs to."""
        return self._owners.get(at) or Field(at, at + 1, "behind the records", -1)


@contextmanager
def changed(path: Path, at: int, data: bytes) -> Iterator[None]:
    """Overwrite bytes of a file, and restore them afterwards."""
    with open(path, "r+b", buffering=0) as file:
        file.seek(at)
        before = file.read(len(data))
        file.seek(at)
        file.write(data)
        try:
            yield
        finally:
            file.seek(at)
            file.write(before)


@contextmanager
def flipped(path: Path, bit: int) -> Iterator[None]:
    """Flip one bit of a file, and flip it back afterwards."""
    at, shift = divmod(bit, 8)
    with open(path, "rb") as file:
        file.seek(at)
        value = file.read(1)[0]
    with changed(path, at, bytes([value ^ 1 << shift])):
        yield
