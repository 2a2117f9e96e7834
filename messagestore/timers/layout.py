"""The timer files of RocketMQ 5: units, slots and checkpoint (`docs/formats/rocketmq-timer.md`).

Integers are big-endian, times are milliseconds. A unit of the timer log, 52 bytes:

    offset  size  field
    0       4     size            52
    4       8     previous        position of the previous unit of the same slot, -1 for none
    12      4     magic           1; 2 more for a unit that is rolled to a later slot, 4 more for one that deletes a timer
    16      8     write_time_ms   whole seconds
    24      4     delay_ms        due time minus write time
    28      8     log_offset      of the message's record
    36      4     log_size        of the record
    40      4     topic_hash      Java's hash code of the real topic
    44      8     reserved        0

A slot of the wheel has 32 bytes: due time in seconds (8), first unit (8), last unit (8), number of units (4), zero (4).
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

WHEEL_NAME = "timerwheel"
LOG_NAME = "timerlog"
CHECK_NAME = os.path.join("config", "timercheck")
TIMER_TOPIC = "rmq_sys_wheel_timer"  # all timers lie in its queue 0
DELETES = "TIMER_DEL_UNIQKEY"  # property of a message that deletes the timer of this UNIQ_KEY
DUE = "TIMER_OUT_MS"
ENQUEUED = "TIMER_ENQUEUE_MS"  # a delivered message has it, also one that is rolled
DELIVERED = "TIMER_DEQUEUE_MS"  # a delivered message and one that is rolled have it
ROLL_LABEL = "TIMER_ROLL_LABEL"  # a timer that was rolled in RocksDB has it
ROLLS = "TIMER_ROLL_TIMES"  # how often a timer was rolled; absent for never
REAL_TOPIC = "REAL_TOPIC"
UNIQ_KEY = "UNIQ_KEY"
UNIT = struct.Struct(">iqiqiqiiq")
UNIT_SIZE = 52
assert UNIT.size == UNIT_SIZE
NO_UNIT = -1
END_SIZE = 4 + 8 + 4  # end of a file: size of the rest, zero, magic of a blank record
LOG_FILE_SIZE = 104_857_600  # mappedFileSizeTimerLog of a broker without configuration
MAGIC_DEFAULT = 1
MAGIC_ROLL = 2
MAGIC_DELETE = 4
MAGICS = (1, 3, 5, 7)
PRECISION_MS = 1000
ROLL_WINDOW_MS = 172_800 * PRECISION_MS  # timerRollWindowSlot of a broker without configuration
SLOT = struct.Struct(">qqqii")
WHEEL_SLOTS = 2 * 7 * 24 * 3600
WHEEL_SIZE = WHEEL_SLOTS * SLOT.size
assert WHEEL_SIZE == 38_707_200
SLOT_TIMES = range(1_000_000_000, 10_000_000_000)  # seconds from 2001 to 2286; others belong to another precision
CHECK = struct.Struct(">7q")
CHECK_SIZE = 4096


class TimerUnit(NamedTuple):
    """One unit; `position` is its position in the timer log."""

    position: int
    previous: int
    magic: int
    write_ms: int
    delay_ms: int
    log_offset: int
    log_size: int
    topic_hash: int

    @property
    def due_ms(self) -> int:
        """Return the time of the slot that the unit is in."""
        return self.write_ms + self.delay_ms

    @property
    def log_end(self) -> int:
        """Return the physical end of the record that it points to."""
        return self.log_offset + self.log_size

    @property
    def deletes(self) -> bool:
        """Return whether the unit deletes a timer instead of being one."""
        return bool(self.magic & MAGIC_DELETE) and not self.magic & MAGIC_ROLL


class Slot(NamedTuple):
    """One used slot of the wheel; `number` is its place there."""

    number: int
    due_s: int
    first: int
    last: int
    units: int

    @property
    def offset(self) -> int:
        """Return where the slot is in the file."""
        return self.number * SLOT.size


class TimerCheckpoint(NamedTuple):
    """The fields of `config/timercheck`. `last_read_ms` is the time of the next slot to be delivered."""

    last_read_ms: int = 0
    flushed: int = 0  # length of the timer log
    queue_offset: int = 0  # in queue 0 of the timers' topic; messages before it have a unit or were delivered
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0


def slot_s(time_ms: int) -> int:
    """Return the time of a slot in seconds, which is what the wheel keeps."""
    return time_ms // PRECISION_MS
