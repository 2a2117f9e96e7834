"""Group commit: whoever waits first leads, syncs for all who wrote before and lets them go at once; the first of those who
wrote meanwhile leads next.

Compiled, because under many threads what a put does with the interpreter in its hands is what all the others wait for.
"""

from __future__ import annotations

import threading
import time
from array import array
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from storageio import DiskError, FlushTimeout

if not cython.compiled:
    from storebytes._bytes_cy import (
        I64,
        Bool,
        I64s,
        RawLock,
        Size,
        free_raw_lock,
        give_raw_lock,
        give_raw_locks,
        i64s_of,
        new_raw_lock,
        place_of_lock,
        take_raw_lock,
        take_raw_lock_now,
    )  # fmt: skip

PATIENCE_S = 0.1  # after that a waiting put looks whether anybody leads
US_PER_SECOND = 1_000_000


class Ticket:
    """One put that waits.  Its gate is opened once: when it is covered, or when it is its turn to lead."""

    __slots__ = ("_gate", "_is_open", "end_offset", "is_covered", "leads")

    def __init__(self, end_offset: I64) -> None:
        """Shut."""
        self._gate: RawLock = new_raw_lock()
        take_raw_lock_now(self._gate)
        self._is_open: Bool = False
        self.end_offset = end_offset
        self.leads: Bool = False
        self.is_covered: Bool = False  # and on no list any more

    def __dealloc__(self) -> None:
        """Of the compiled class."""
        free_raw_lock(self._gate)

    def wait(self, timeout_s: float) -> Bool:
        """Whether the gate was opened in time."""
        timeout_us: I64 = int(timeout_s * US_PER_SECOND)
        return take_raw_lock(self._gate, timeout_us)


def open_all(tickets: list[Any]) -> Bool:
    """Open the gates of these.

    Whoever is let go wants the interpreter at once and would only find it taken, so the one who lets go gives it away first.
    """
    held: memoryview = memoryview(array("q", bytes(8 * len(tickets))))
    gates: I64s = i64s_of(held)
    count: Size = 0
    for item in tickets:
        ticket: Ticket = item
        if ticket._is_open:
            continue
        ticket._is_open = True
        if cython.compiled:
            gates[count] = place_of_lock(ticket._gate)
            count += 1
        else:
            give_raw_lock(ticket._gate)
    give_raw_locks(gates, count)
    return True


class GroupCommit:
    """Who waits for a sync, and who leads.  What a leader does is `_flush(0)`, under `_leader`.

    `failure` is final: nobody waits behind it.
    """

    __slots__ = ("_group_guard", "_has_leader", "_leader", "_patience_s", "_tickets", "failure", "flushed_offset")

    def __init__(self, flushed: I64, timeout_ms: int) -> None:
        """Nobody waits."""
        self.flushed_offset = flushed
        self.failure: DiskError | None = None
        self._leader: Any = threading.Lock()  # held by the one who syncs
        self._group_guard: Any = threading.Lock()
        self._tickets: list[Any] = []
        self._has_leader: Bool = False
        self._patience_s = timeout_ms / 1000

    def wait(self, end_offset: I64) -> None:
        """Return when everything before `end_offset` is on the disk: lead a group, or be covered by another's.

        Raises `DiskError` when the sync failed and `FlushTimeout` when it was not seen to end in time.  Every lock is held by
        a `with` alone, so that an interrupt anywhere leaves none behind.
        """
        ticket: Ticket = Ticket(end_offset)
        try:
            with self._group_guard:
                ticket.leads = not self._has_leader
                self._has_leader = True
                self._tickets.append(ticket)
            self._wait(ticket)
        finally:
            self._leave(ticket)
        if self.failure is not None and self.flushed_offset < end_offset:
            raise self.failure

    def _wait(self, ticket: Ticket) -> Bool:
        """Until it is covered or a sync failed."""
        deadline: float = 0
        while self.flushed_offset < ticket.end_offset and self.failure is None:
            if ticket.leads:
                with self._leader:
                    if self.flushed_offset < ticket.end_offset:
                        self._flush(0)  # type: ignore[attr-defined]
                continue
            now: float = time.monotonic()
            if deadline == 0:
                deadline = now + self._patience_s
            if now >= deadline:
                raise FlushTimeout(f"no sync covered {ticket.end_offset} within {self._patience_s * 1000:.0f} ms")
            if not ticket.wait(min(deadline - now, PATIENCE_S)) and not self._leader.locked():
                ticket.leads = True  # whoever was to lead is gone
        return True

    def _leave(self, ticket: Ticket) -> Bool:
        """Let all go who are covered, and have the first of the others lead."""
        if ticket.is_covered and not ticket.leads:
            return True
        let_go: list[Any] = []
        left: list[Any] = []
        with self._group_guard:
            is_over: Bool = self.failure is not None
            for item in self._tickets:
                other: Ticket = item
                if is_over or other.end_offset <= self.flushed_offset:
                    other.is_covered = not other.leads
                    let_go.append(other)
                elif other is not ticket:
                    left.append(other)
            self._tickets = left
            if ticket.leads:
                self._has_leader = len(left) > 0
                if left:
                    following: Ticket = left[0]
                    following.leads = True
                    let_go.append(following)
        open_all(let_go)
        return True
