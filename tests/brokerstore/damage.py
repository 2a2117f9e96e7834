"""Logs that tests damage, and the damage."""

from __future__ import annotations

from pathlib import Path

from commitlog import CommitLog, LogPaths, Message
from commitlog.layout import BODY_AT, BODY_CRC_AT, BODY_SIZE_AT, MAGIC_AT, PHYSICAL_OFFSET_AT, SIZE_AT
from storageio import REAL_DISK

FILE_SIZE = 65536
FIELDS = {
    "size": (SIZE_AT, 4),
    "magic": (MAGIC_AT, 4),
    "body_crc": (BODY_CRC_AT, 4),
    "physical_offset": (PHYSICAL_OFFSET_AT, 8),
    "body_size": (BODY_SIZE_AT, 4),
    "body": (BODY_AT, 4),
}


class Log:
    """A store with a log of three files of 64 KiB and one message a millisecond; `offsets` lists the messages."""

    def __init__(self, folder: Path, with_crc: bool = True, body_size: int = 2000) -> None:
        self.store = folder / "store"
        self.folder = self.store / "commitlog"
        self.offsets: list[int] = []
        clock = iter(range(1_700_000_000_000, 1_800_000_000_000)).__next__
        paths = LogPaths(REAL_DISK, [str(self.folder)])
        log = CommitLog(paths, writable=True, file_size_bytes=FILE_SIZE, with_crc=with_crc, clock=clock)
        log.attach(0)
        while log.written_offset < 2 * FILE_SIZE + FILE_SIZE // 2:
            body = f"{len(self.offsets):06d}".encode().ljust(body_size, b".")
            self.offsets.append(log.appender.append(Message("topic", body, tags="t", keys=["k"], queue_id=0)).physical_offset)
        self.end_offset = log.written_offset
        log.flush()
        log.close()

    def file(self, offset: int) -> Path:
        return self.folder / f"{offset // FILE_SIZE * FILE_SIZE:020d}"

    def in_file(self, index: int) -> list[int]:
        """Return the offsets of the messages of one file."""
        return [offset for offset in self.offsets if offset // FILE_SIZE == index]

    def write(self, offset: int, data: bytes) -> None:
        path = self.file(offset)
        content = bytearray(path.read_bytes())
        at = offset % FILE_SIZE
        content[at : at + len(data)] = data
        path.write_bytes(content)

    def put(self, offset: int, field: str, value: int) -> None:
        """Overwrite one field of the message at `offset`."""
        at, size = FIELDS[field]
        self.write(offset + at, value.to_bytes(size, "big", signed=True))

    def read(self, offset: int, size: int) -> bytes:
        at = offset % FILE_SIZE
        return self.file(offset).read_bytes()[at : at + size]
