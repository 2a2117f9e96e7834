"""The frames of both directions (docs/formats/rocketmq-ha.md#frames)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ..errors import WrongFrame

REPORT = struct.Struct(">q")  # slave to master: the end of its log
HEADER = struct.Struct(">qi")  # master to slave: physical offset and size of the bytes that follow; 0 bytes: a heartbeat
DATA_SIZE_MAX = 1 << 22  # bytes; a real slave takes no more
REPORT_EVERY_S = 5.0
SILENCE_S = 20.0  # after this time without a frame a side closes the connection


class HaFrameReader:
    """Splits what a master sends."""

    def __init__(self) -> None:
        """Create it for a new connection."""
        self._waiting = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield (physical offset, log bytes) of the frames that are complete now.  Raises `WrongFrame`."""
        self._waiting += data
        at = 0
        try:
            while len(self._waiting) - at >= HEADER.size:
                offset, size = HEADER.unpack_from(self._waiting, at)
                if offset < 0 or not 0 <= size <= DATA_SIZE_MAX:
                    raise WrongFrame(f"a replication frame of {size} bytes for offset {offset}: at most {DATA_SIZE_MAX} bytes")
                begin = at + HEADER.size
                if len(self._waiting) - begin < size:
                    return
                at = begin + size
                yield offset, bytes(self._waiting[begin:at])
        finally:
            del self._waiting[:at]


class ReportReader:
    """Returns the newest report of a slave."""

    def __init__(self) -> None:
        """Create it for a new connection."""
        self._waiting = b""

    def feed(self, data: bytes) -> int | None:
        """Return the last whole report; None before there is one."""
        self._waiting += data
        whole = len(self._waiting) // REPORT.size * REPORT.size
        if not whole:
            return None
        (newest,) = REPORT.unpack_from(self._waiting, whole - REPORT.size)
        self._waiting = self._waiting[whole:]
        return int(newest)
