"""The file `checkpoint`: up to which store time what is on the disk (format page `docs/formats/checkpoint.md`).  Big-endian.

    offset  size  field                     meaning
    0       8     physic_msg_timestamp_ms   every record stored at or before it was on the disk, less 3 seconds
    8       8     logics_msg_timestamp_ms   the same of queue units
    16      8     index_msg_timestamp_ms    end time of the newest index file that was synced whole
    24      8     master_flushed_offset     a slave's note of its master
    32      8     confirm_phy_offset        begin of the last whole record that a recovery found
    40      4056  rest                      zero

The five values lie in one sector, so a write of them is all or nothing.
"""

from __future__ import annotations

import os
import struct
import threading
from typing import NamedTuple

from storageio import Disk, File, Mode, StoreClosed, StoreError

PHYSIC_MSG_TIMESTAMP_MS_AT = 0
LOGICS_MSG_TIMESTAMP_MS_AT = PHYSIC_MSG_TIMESTAMP_MS_AT + 8
INDEX_MSG_TIMESTAMP_MS_AT = LOGICS_MSG_TIMESTAMP_MS_AT + 8
MASTER_FLUSHED_OFFSET_AT = INDEX_MSG_TIMESTAMP_MS_AT + 8
CONFIRM_PHY_OFFSET_AT = MASTER_FLUSHED_OFFSET_AT + 8
REST_AT = CONFIRM_PHY_OFFSET_AT + 8
VALUES = struct.Struct(">5q")
assert VALUES.size == REST_AT == 40

CHECKPOINT_SIZE = 4096
REST_SIZE = CHECKPOINT_SIZE - REST_AT
FILE_NAME = "checkpoint"
TIMES = ("physic_msg_timestamp_ms", "logics_msg_timestamp_ms", "index_msg_timestamp_ms")  # in the file's order
SLACK_MS = 3000
TIMESTAMP_MAX_MS = 253_402_300_799_999  # the year 9999: what lies beyond is no time
OFFSET_MIN = -1  # what the real store holds before it knows one


def is_time(timestamp_ms: int) -> bool:
    """Whether a store time can be one: of a record without a checksum over all of it, it may say anything."""
    return 0 <= timestamp_ms <= TIMESTAMP_MAX_MS


class CheckpointValues(NamedTuple):
    """What the file says."""

    physic_msg_timestamp_ms: int = 0
    logics_msg_timestamp_ms: int = 0
    index_msg_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0

    @property
    def is_plausible(self) -> bool:
        """Whether these can be times and offsets."""
        return all(map(is_time, self[:3])) and min(self[3:]) >= OFFSET_MIN

    @property
    def min_timestamp_ms(self) -> int:
        """A record stored at or before it was on the disk, and its queue unit written."""
        return max(0, min(self.physic_msg_timestamp_ms, self.logics_msg_timestamp_ms) - SLACK_MS)

    @property
    def min_index_timestamp_ms(self) -> int:
        """The same for the index too; 0 until a first index file was full."""
        return min(self.min_timestamp_ms, self.index_msg_timestamp_ms)


class Found(NamedTuple):
    """A checkpoint as it was read."""

    values: CheckpointValues
    rest: bytes
    is_damaged: bool


NOTHING = Found(CheckpointValues(), bytes(REST_SIZE), False)


def read_checkpoint(disk: Disk, path: str) -> Found:
    """Never raises for bytes: they say nothing then (all 0), and `is_damaged` is set.

    A missing file and a whole one of zeros are what a store has that never synced, and no damage.  Damaged are a file that is
    shorter than 4096 bytes, none at all among them, and one whose values cannot be times and offsets.
    """
    if disk.stat(path) is None:
        return NOTHING
    file = disk.open(path, Mode.READ)
    try:
        return decode(file.read(0, CHECKPOINT_SIZE))
    finally:
        file.close()


def checkpoint_ahead(disk: Disk, folder: str, last_ms: int) -> dict[str, int]:
    """Times that lie behind that of the log's last record, by name: the file claims what the log does not hold.

    None for a `last_ms` of 0, which stands for a log without records.
    """
    return times_ahead(read_checkpoint(disk, os.path.join(folder, FILE_NAME)).values, last_ms)


def times_ahead(values: CheckpointValues, last_ms: int) -> dict[str, int]:
    """As `checkpoint_ahead`, of values that were read before the log's last record was looked for: a writer may be at work."""
    return {name: time_ms for name in TIMES if (time_ms := getattr(values, name)) > last_ms > 0}


def decode(data: bytes) -> Found:
    """The values of a file's bytes.  Of a short one those count that are there whole."""
    is_short = len(data) < CHECKPOINT_SIZE
    whole = data[: min(len(data), REST_AT) // 8 * 8]
    values = CheckpointValues(*VALUES.unpack(whole.ljust(REST_AT, b"\0")))
    if not values.is_plausible:
        return NOTHING._replace(is_damaged=True)
    return Found(values, data[REST_AT:CHECKPOINT_SIZE].ljust(REST_SIZE, b"\0"), is_short)


class Checkpoint:
    """The values in memory, and the file kept open for them if it is written.

    Set an attribute only to what the caller knows to be on the disk; nothing is checked here, and nothing is written before
    `flush`.  Threads may set and flush as they like.
    """

    def __init__(self, disk: Disk, folder: str, *, writable: bool = False) -> None:
        """`folder` is the store's.  `writable` makes the file for good if need be and keeps it open; damage stays."""
        self.path = os.path.join(folder, FILE_NAME)
        self._disk = disk
        self._lock = threading.Lock()
        self._error: StoreError | None = None
        values, self._rest, self.is_damaged = read_checkpoint(disk, self.path)
        self.physic_msg_timestamp_ms = values.physic_msg_timestamp_ms
        self.logics_msg_timestamp_ms = values.logics_msg_timestamp_ms
        self.index_msg_timestamp_ms = values.index_msg_timestamp_ms
        self.master_flushed_offset = values.master_flushed_offset
        self.confirm_phy_offset = values.confirm_phy_offset
        self._file = self._open() if writable else None

    def _open(self) -> File:
        is_new = self._disk.stat(self.path) is None
        file = self._disk.open(self.path, Mode.CREATE)
        try:
            if is_new:
                file.write(0, bytes(CHECKPOINT_SIZE))
                file.sync()
                self._disk.sync_folder(os.path.dirname(self.path) or ".")
        except BaseException:
            file.close()
            raise
        return file

    @property
    def values(self) -> CheckpointValues:
        """As they stand in memory."""
        return CheckpointValues(
            self.physic_msg_timestamp_ms,
            self.logics_msg_timestamp_ms,
            self.index_msg_timestamp_ms,
            self.master_flushed_offset,
            self.confirm_phy_offset,
        )

    @property
    def min_timestamp_ms(self) -> int:
        """Of the values in memory."""
        return self.values.min_timestamp_ms

    @property
    def min_index_timestamp_ms(self) -> int:
        """Of the values in memory."""
        return self.values.min_index_timestamp_ms

    def flush(self) -> None:
        """Return when the values are on the disk.  After a failure every later call raises the same error, untried."""
        with self._lock:
            if self._file is None:
                raise StoreClosed(f"{self.path}: not open for writing")
            if self._error is not None:
                raise self._error
            values = self.values
            if not values.is_plausible:
                raise ValueError(f"{values} cannot stand in a checkpoint")
            try:
                self._file.write(0, VALUES.pack(*values) + self._rest)
                self._file.sync()
            except StoreError as error:
                self._error = error
                raise
            self.is_damaged = False

    def close(self) -> None:
        """Give the file back; what was set and not flushed is not written."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                file.close()
