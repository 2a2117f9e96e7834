"""Read and write the file `checkpoint`: store times up to which everything is synced (`docs/formats/checkpoint.md#checkpoint`).

Integers are big-endian:

    offset  size  field                     meaning
    0       8     physic_msg_timestamp_ms   every record stored 3 seconds or more before it is on disk
    8       8     logics_msg_timestamp_ms   the same for queue units
    16      8     index_msg_timestamp_ms    end time of the newest index file that was synced completely
    24      8     master_flushed_offset     a slave's record of its master's flushed offset
    32      8     confirm_phy_offset        offset of the last whole record that a recovery found
    40      8     logics_physical_offset    log offset of a record; it and all before have units on the disk; 0: unknown
    48      4048  rest                      zero

The six values are in one sector, so writing them is atomic.
"""

from __future__ import annotations

import os
import struct
import threading
from typing import TYPE_CHECKING, NamedTuple

from storageio import Closing, Disk, File, Mode, StoreClosed, StoreError

if TYPE_CHECKING:  # `info` reads checkpoints without the log's kernels
    from commitlog import CommitLog, MappedFile

VALUES = struct.Struct(">6q")
REST_AT = VALUES.size
assert REST_AT == 48
LOGICS_PHYSICAL_OFFSET_AT = REST_AT - 8

CHECKPOINT_SIZE = 4096
REST_SIZE = CHECKPOINT_SIZE - REST_AT
FILE_NAME = "checkpoint"
TIMES = ("physic_msg_timestamp_ms", "logics_msg_timestamp_ms", "index_msg_timestamp_ms")  # in the order of the file
CHECKPOINT_SLACK_MS = 3000  # see docs/formats/checkpoint.md#safe-time
TIMESTAMP_MAX_MS = 253_402_300_799_999  # end of the year 9999: a greater number is not a time
OFFSET_MIN = -1  # the value in a real store before it has an offset


def is_time(timestamp_ms: int) -> bool:
    """Return whether a store time is plausible. In a record without a whole-record checksum it may be any number."""
    return 0 <= timestamp_ms <= TIMESTAMP_MAX_MS


class CheckpointValues(NamedTuple):
    """The six values of the file."""

    physic_msg_timestamp_ms: int = 0
    logics_msg_timestamp_ms: int = 0
    index_msg_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_physical_offset: int = 0

    @property
    def is_plausible(self) -> bool:
        """Return whether the values can be times and offsets."""
        return all(map(is_time, self[:3])) and min(self[3:]) >= OFFSET_MIN

    @property
    def log_timestamp_ms(self) -> int:
        """Return the store time up to which the log is on disk; negative in a checkpoint that carries no information."""
        return self.physic_msg_timestamp_ms - CHECKPOINT_SLACK_MS

    @property
    def min_timestamp_ms(self) -> int:
        """Return the safe time: records stored up to it are on disk, with their queue units.

        See `docs/formats/checkpoint.md#safe-time`.
        """
        return max(0, min(self.physic_msg_timestamp_ms, self.logics_msg_timestamp_ms) - CHECKPOINT_SLACK_MS)

    @property
    def min_index_timestamp_ms(self) -> int:
        """Return the safe time for the index as well; 0 until a first index file was full."""
        return min(self.min_timestamp_ms, self.index_msg_timestamp_ms)


class Found(NamedTuple):
    """A checkpoint as it was read."""

    values: CheckpointValues
    rest: bytes
    is_damaged: bool


NOTHING = Found(CheckpointValues(), bytes(REST_SIZE), False)


def read_checkpoint(disk: Disk, path: str) -> Found:
    """Return the checkpoint; damaged content sets `is_damaged` and is never an error.

    A missing file, or a whole one of zeros, belongs to a store that never synced and is not damage. A file is damaged if it is
    shorter than 4096 bytes, even empty, or if its values cannot be times and offsets.
    """
    if disk.stat(path) is None:
        return NOTHING
    with disk.open(path, Mode.READ) as file:
        return decode(file.read(0, CHECKPOINT_SIZE))


def times_ahead(values: CheckpointValues, last_ms: int) -> dict[str, int]:
    """Return the checkpoint times that are later than the log's last record, by name.

    Such a checkpoint claims more than the log holds. The result is empty if `last_ms` is 0, which stands for a log without
    records. With an active writer the values must be read before the log's last record.
    """
    return {name: time_ms for name in TIMES if (time_ms := getattr(values, name)) > last_ms > 0}


def decode(data: bytes) -> Found:
    """Return the values in the bytes of a file; from a short file, those that are complete."""
    is_short = len(data) < CHECKPOINT_SIZE
    whole = data[: min(len(data), REST_AT) // 8 * 8]
    values = CheckpointValues(*VALUES.unpack(whole.ljust(REST_AT, b"\0")))
    if not values.is_plausible:
        return NOTHING._replace(is_damaged=True)
    return Found(values, data[REST_AT:CHECKPOINT_SIZE].ljust(REST_SIZE, b"\0"), is_short)


class Checkpoint(Closing):
    """The values in memory, and the open file if it is written.

    Set an attribute only to what is known to be synced: nothing is checked here, and nothing is written before `flush`. Any
    thread may set and flush.
    """

    def __init__(self, disk: Disk, folder: str, *, writable: bool = False) -> None:
        """Read the values. `folder` is the store's folder.

        `writable` calls `open`. Damage stays until `flush`.
        """
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
        self.logics_physical_offset = values.logics_physical_offset
        self._file: File | None = None
        if writable:
            self.open()

    def open(self) -> None:
        """Open the file for writing; create it durably if it is missing."""
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
        self._file = file

    @property
    def values(self) -> CheckpointValues:
        """Return the values in memory."""
        return CheckpointValues(*(getattr(self, name) for name in CheckpointValues._fields))

    @property
    def min_timestamp_ms(self) -> int:
        """Return the safe time of the values in memory."""
        return self.values.min_timestamp_ms

    @property
    def min_index_timestamp_ms(self) -> int:
        """Return the safe time of the index by the values in memory."""
        return self.values.min_index_timestamp_ms

    def is_beyond(self, last_offset: int) -> bool:
        """Return whether the queues' log offset is behind a log's last record, which begins at `last_offset` or is -1."""
        return self.logics_physical_offset > max(last_offset, 0)

    def lower_to(self, last_offset: int) -> None:
        """Lower the queues' log offset to the last record of a log that was cut; nothing is written before `flush`.

        A broker with enableAcceleratedRecovery does not start with an offset behind the log, nor with 0 and a time of the log.
        """
        if self.is_beyond(last_offset):
            self.logics_physical_offset = max(last_offset, 0)
            if self.logics_physical_offset == 0:
                self.physic_msg_timestamp_ms = 0

    def flush(self) -> None:
        """Write and sync the values. After a failure every later call raises the same error without trying again."""
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
        """Close the file; values that were set and not flushed are not written."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                file.close()


def start_file(log: CommitLog, safe_ms: int) -> MappedFile | None:
    """Return the newest file whose first record is whole and was stored at or before `safe_ms`; else the oldest."""
    files = log.queue.files
    for file in reversed(files):
        message = log.first_message(file)
        if message is not None and 0 < message.store_timestamp_ms <= safe_ms:
            return file
    return files[0] if files else None
