"""Write timer log, timer wheel and timer checkpoint anew, for timers that are known from the log.

The broker continues after the message of the last unit in the timer log. If its queue ends in delivered timers or in the
filler of a lost one, the last message therefore gets a unit in a slot before `last_read_ms`, which is not delivered. A broker
skips slots that are older than seven days, and delivers the timers of one slot in any order. So the seconds of overdue timers
become the last seconds before now, in their order: what acknowledges a message comes after the checkpoint that it is of.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator

from commitlog.layout import MAGIC_BLANK
from commitlog.offset_files import file_name
from consumequeue import Unit
from storageio import Disk, File, Mode, StoreCorrupt
from storebytes.java_hash import java_hash_code

from .layout import (
    CHECK,
    CHECK_NAME,
    CHECK_SIZE,
    END_SIZE,
    LOG_NAME,
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    NO_UNIT,
    PRECISION_MS,
    ROLL_WINDOW_MS,
    SLOT,
    UNIT,
    UNIT_SIZE,
    WHEEL_NAME,
    WHEEL_SIZE,
    WHEEL_SLOTS,
    Slot,
    TimerCheckpoint,
    TimerUnit,
    slot_s,
)
from .undelivered import TimerMessage
from .wheel import read_timer_checkpoint

_END = struct.Struct(">iqi")
assert _END.size == END_SIZE


def write_timer_files(disk: Disk, folder: str, units: list[TimerUnit], check: TimerCheckpoint, log_file_size: int) -> None:
    """Write and sync the three files below an empty folder, with the names that they have below a store's folder."""
    log, config = os.path.join(folder, LOG_NAME), os.path.dirname(os.path.join(folder, CHECK_NAME))
    for name in (folder, log, config):
        disk.make_folder(name)
    for start in range(0, units[-1].position + 1 if units else 0, log_file_size):
        inside = [unit for unit in units if start <= unit.position < start + log_file_size]
        _write(
            disk,
            os.path.join(log, file_name(start)),
            log_file_size,
            _log_file(inside, start, log_file_size, units[-1].position),
        )
    _write(disk, os.path.join(folder, WHEEL_NAME), WHEEL_SIZE, _wheel(units))
    _write(disk, os.path.join(folder, CHECK_NAME), CHECK_SIZE, [(0, CHECK.pack(*check))])
    for name in (log, config, folder):
        disk.sync_folder(name)


def new_checkpoint(
    disk: Disk, root: str, units: list[TimerUnit], queue_end: int, read_ms: int, now_ms: int
) -> TimerCheckpoint:  # fmt: skip
    """Return the checkpoint of new timer files: slots are read from `read_ms` on, the queue from its end."""
    try:
        old = read_timer_checkpoint(disk, root) or TimerCheckpoint()
    except StoreCorrupt:
        old = TimerCheckpoint()
    flushed = units[-1].position + UNIT_SIZE if units else 0
    return TimerCheckpoint(read_ms, flushed, queue_end, queue_end, old.state_version, now_ms, old.counter + 1)


def new_units(
    timers: list[TimerMessage], last: Unit | None, now_ms: int, log_file_size: int
) -> tuple[list[TimerUnit], int]:  # fmt: skip
    """Return the units of undelivered timers in the order of their queue, one for the queue's last message, and the first slot.

    `last` is the last unit of the timers' queue. All slots before the first one are read already.
    """
    positions = _positions(log_file_size)
    overdue = _overdue_slots(timers, now_ms)
    first_ms = min(overdue.values(), default=now_ms)
    last_of: dict[int, int] = {}  # of each slot: its last unit
    units = []
    for timer in timers:
        write_ms = min(timer.store_ms // PRECISION_MS * PRECISION_MS, now_ms)
        slot_ms, magic = slot_of(timer, write_ms)
        if slot_ms <= now_ms:
            slot_ms, magic = slot_of(timer, now_ms)
            slot_ms = overdue.get(slot_s(timer.due_ms), slot_ms)
            write_ms = min(slot_ms, now_ms)
        position = next(positions)
        previous = last_of.get(slot_s(slot_ms), NO_UNIT)
        last_of[slot_s(slot_ms)] = position
        at = timer.log_offset, timer.log_size, java_hash_code(timer.topic)
        units.append(TimerUnit(position, previous, magic, write_ms, slot_ms - write_ms, *at))
    if timers and last is not None and last.physical_offset != timers[-1].log_offset:
        past_ms = first_ms - PRECISION_MS
        units.append(TimerUnit(next(positions), NO_UNIT, MAGIC_DEFAULT, past_ms, 0, last.physical_offset, last.size_bytes, 0))
    return units, first_ms


def _overdue_slots(timers: list[TimerMessage], now_ms: int) -> dict[int, int]:
    """Return the slot of each second that is due by now: the latest one is now, each earlier one a slot before."""
    seconds = sorted({slot_s(timer.due_ms) for timer in timers if timer.due_ms <= now_ms}, reverse=True)
    return {second: now_ms - min(rank * PRECISION_MS, ROLL_WINDOW_MS) for rank, second in enumerate(seconds)}


def _positions(log_file_size: int) -> Iterator[int]:
    """Yield positions for units: the end of a file needs 16 bytes after its last unit."""
    at = 0
    while True:
        if log_file_size - at % log_file_size < UNIT_SIZE + END_SIZE:
            at += log_file_size - at % log_file_size
        yield at
        at += UNIT_SIZE


def slot_of(timer: TimerMessage, write_ms: int) -> tuple[int, int]:
    """Return the time of the slot and the magic of a timer's unit, as the broker chooses them at `write_ms`."""
    magic = MAGIC_DEFAULT | (MAGIC_DELETE if timer.deletes else 0)
    wait_ms = timer.due_ms - write_ms
    if wait_ms < ROLL_WINDOW_MS:
        return timer.due_ms, magic
    rest_ms = wait_ms - ROLL_WINDOW_MS
    return write_ms + ROLL_WINDOW_MS // (2 if rest_ms < ROLL_WINDOW_MS // 3 else 1), magic | MAGIC_ROLL


def _log_file(units: list[TimerUnit], start: int, size: int, last: int) -> Iterator[tuple[int, bytes]]:
    """Yield the pieces of one file of the timer log."""
    for unit in units:
        yield unit.position - start, UNIT.pack(UNIT_SIZE, *unit[1:], 0)
    end = units[-1].position + UNIT_SIZE - start
    if units[-1].position != last:
        yield end, _END.pack(size - end, 0, MAGIC_BLANK)


def _wheel(units: list[TimerUnit]) -> Iterator[tuple[int, bytes]]:
    """Yield the used slots."""
    slots: dict[int, Slot] = {}
    for unit in units:
        due_s = slot_s(unit.due_ms)
        before = slots.get(due_s)
        count = -1 if unit.deletes else 1
        first, number = (unit.position, 0) if before is None else (before.first, before.units)
        slots[due_s] = Slot(due_s % WHEEL_SLOTS, due_s, first, unit.position, number + count)
    for slot in slots.values():
        yield slot.offset, SLOT.pack(slot.due_s, slot.first, slot.last, slot.units, 0)


def _write(disk: Disk, path: str, size: int, pieces: Iterable[tuple[int, bytes]]) -> None:
    """Write a file of a size; what is between the pieces is a hole."""
    with disk.open(path, Mode.CREATE) as file:
        file.truncate(size)
        _write_joined(file, pieces)
        file.sync()


def _write_joined(file: File, pieces: Iterable[tuple[int, bytes]]) -> None:
    """Write pieces, neighbours together."""
    start, held = 0, bytearray()
    for at, data in pieces:
        if at != start + len(held):
            file.write(start, held)
            start, held = at, bytearray()
        held += data
    file.write(start, held)
