"""Decide from which physical offset a replica asks for the log, and what it compares first."""

from __future__ import annotations

from typing import NamedTuple

from messagestore import MessageStore

from ..errors import MasterDiffers


class Start(NamedTuple):
    """The first request of a connection.

    `known` are bytes of this side's log from `known_at` on, which the master must send first.  `prefix` goes before the first
    byte that arrives.
    """

    request: int
    known: bytes = b""
    known_at: int = 0
    prefix: bytes = b""


def start_of(store: MessageStore, low: int, high: int, *, from_start: bool) -> Start:
    """Return where to begin, for a master whose log has the offsets from `low` to `high`.

    Raises `MasterDiffers` if this side's log ends after the master's, or before its oldest byte.
    """
    end, log = store.log_end, store.engine.log
    files = log.queue.files
    if not files:
        return _first_start(low, from_start=from_start)
    if end == files[0].start_offset:  # killed between the creation of the first file and the first byte
        return _start_at(end) if end >= low else _first_start(low, from_start=from_start)
    if not low <= end <= high:
        raise MasterDiffers(end, "the end of the replica's log in it", f"a log from {low} to {high}")
    at = _last_record(store)
    message = store.message_at(at) if at >= low else None
    record = log.select(at, message.size) if message is not None else None
    return Start(end) if record is None else Start(at, bytes(record), at)


def _first_start(low: int, *, from_start: bool) -> Start:
    """Return the request of an empty replica; a request for 0 gets the master's last file."""
    return _start_at(low) if from_start else Start(0)


def _start_at(offset: int) -> Start:
    """Return the request for a log from an offset on.

    There is no request for all of a log that begins at 0, so it is asked for from 1, and the first byte is added: the size of a
    record is below 16 MiB, so its first byte is 0.
    """
    return Start(offset) if offset > 0 else Start(1, prefix=b"\0")


def _last_record(store: MessageStore) -> int:
    """Return the physical offset of the newest record that a queue points at, else of the last log file."""
    engine = store.engine
    newest = engine.log.queue.files[-1].start_offset
    for queue in engine.queues:
        for _, unit in queue.units(queue.max_offset - 1):
            newest = max(newest, unit.physical_offset)
    return newest
