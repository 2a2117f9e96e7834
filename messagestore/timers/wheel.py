"""Read the timer wheel and the timer checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator

from storageio import Disk, Kind, Mode, StoreCorrupt, UnsupportedFormat

from .layout import CHECK, CHECK_NAME, CHECK_SIZE, SLOT, SLOT_TIMES, WHEEL_NAME, Slot, TimerCheckpoint

_PIECE = SLOT.size << 15


def wheel_snapshots(disk: Disk, root: str) -> list[tuple[int, str]]:
    """Return the snapshots of the wheel, sorted: the position in the timer log up to which each is complete, and its path.

    A broker with `timerWheelSnapshotFlush` writes them, and no longer the wheel itself: it loads the last one.
    """
    found = []
    for entry in disk.list(root) if disk.stat(root) is not None else ():
        name, _, position = entry.name.partition(".")
        if name == WHEEL_NAME and position.isascii() and position.isdigit() and entry.kind is Kind.FILE:
            found.append((int(position), os.path.join(root, entry.name)))
    return sorted(found)


def wheel_path(disk: Disk, root: str) -> str:
    """Return the path of the wheel that a broker loads."""
    snapshots = wheel_snapshots(disk, root)
    return snapshots[-1][1] if snapshots else os.path.join(root, WHEEL_NAME)


def used_slots(disk: Disk, root: str) -> Iterator[Slot]:
    """Yield every slot that was ever used, of the last snapshot if there is one; holes of the file are not read.

    Raises `UnsupportedFormat` for a slot time that is not in seconds: the broker has another timerPrecisionMs.
    """
    path = wheel_path(disk, root)
    entry = disk.stat(path)
    if entry is None or entry.kind is not Kind.FILE:
        return
    with disk.open(path, Mode.READ) as file:
        at = file.next_data(0)
        while at < entry.size_bytes:
            start = at - at % SLOT.size
            data = file.read(start, _PIECE)
            whole = data[: len(data) - len(data) % SLOT.size]
            yield from _slots(path, start // SLOT.size, whole)
            at = file.next_data(start + max(len(whole), SLOT.size))


def _slots(path: str, start: int, data: bytes) -> Iterator[Slot]:
    if not any(data):
        return
    for number, (due_s, first, last, units, _) in enumerate(SLOT.iter_unpack(data), start):
        if due_s == 0:
            continue
        if due_s not in SLOT_TIMES:
            raise UnsupportedFormat(
                "timer slot time", file=path, offset=number * SLOT.size, found=due_s, supported="seconds since 1970"
            )
        yield Slot(number, due_s, first, last, units)


def read_timer_checkpoint(disk: Disk, root: str) -> TimerCheckpoint | None:
    """Return the checkpoint, or None without one. Raises `StoreCorrupt` for a file that is too short."""
    path = os.path.join(root, CHECK_NAME)
    entry = disk.stat(path)
    if entry is None or entry.kind is not Kind.FILE:
        return None
    if entry.size_bytes < CHECK.size:
        raise StoreCorrupt(
            "timer checkpoint too short", file=path, offset=0, expected=f"{CHECK_SIZE} bytes", found=f"{entry.size_bytes} bytes"
        )
    with disk.open(path, Mode.READ) as file:
        return TimerCheckpoint(*CHECK.unpack(file.read(0, CHECK.size)))
