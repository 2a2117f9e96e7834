"""Read and write `config/delayOffset.json`: the delivery progress of each delay level.

Levels count from 1; level L waits in queue L - 1 of `SCHEDULE_TOPIC_XXXX`.
"""

from __future__ import annotations

from collections.abc import Iterator

from commitlog.topic_names import SCHEDULE_TOPIC
from storageio import Disk, InvalidMessage

from .config_files import Document
from .consumer_offsets import OffsetTable, check_offset

VERSION_STEP = 200  # deliveries per step of dataVersion


class DelayOffsets(OffsetTable):
    """The queue offset of the next message to deliver, by level."""

    file_name = "delayOffset.json"
    table_name = "offsetTable"

    def __init__(self, disk: Disk, folder: str) -> None:
        """Read the file. `folder` is the store's `config/`."""
        self._steps = 0
        super().__init__(disk, folder)

    def _take(self, table: Document) -> None:
        self._table = self.offsets(table, self.table_name)

    def _fill(self, document: Document) -> None:
        document[self.table_name] = dict(self._table)

    def get(self, level: int) -> int:
        """Return the next offset of a level; 0 if it never delivered."""
        with self._lock:
            return self._table.get(level, 0)

    def levels(self) -> dict[int, int]:
        """Return a map from level to next offset, for the levels in the file."""
        with self._lock:
            return dict(self._table)

    def set(self, level: int, offset: int) -> None:
        """Set the next offset of a level. It is written by `persist`."""
        if level < 1:
            raise InvalidMessage(f"delay level {level}: levels count from 1")
        check_offset(level - 1, offset)
        with self._lock:
            self._table[level] = offset
            self._steps += 1
            self._change(counts=self._steps % VERSION_STEP == 0)

    def _rows(self) -> Iterator[tuple[str, str, int, int]]:
        for level, offset in self._table.items():
            yield SCHEDULE_TOPIC, SCHEDULE_TOPIC, level - 1, offset

    def _set(self, key: str, queue_id: int, offset: int) -> None:
        self._table[queue_id + 1] = offset
