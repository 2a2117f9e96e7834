"""Group commit: the first waiting put leads, and its sync covers all records written before it.

All puts that the sync covers return together.  The first of the puts that came meanwhile leads the next group.

This is compiled because under many threads every put waits while another one holds the interpreter.
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
        address_of_lock,
        take_raw_lock,
        take_raw_lock_now,
    )  # fmt: skip

PATIENCE_S = 0.1  # after it a waiting put checks whether a leader exists
US_PER_SECOND = 1_000_000


class Ticket:
    """One waiting put.  Its gate is opened once: when it is covered, or when it is its turn to lead."""

    __slots__ = ("_gate", "_is_open", "end_offset", "is_covered", "leads")

    def __init__(self, end_offset: I64) -> None:
        """Create it with its gate locked."""
        self._gate: RawLock = new_raw_lock()
        take_raw_lock_now(self._gate)
        self._is_open: Bool = False
        self.end_offset = end_offset
        self.leads: Bool = False
        self.is_covered: Bool = False  # if so, it is in no list any more

    def __dealloc__(self) -> None:
        """Free the lock of the compiled class."""
        free_raw_lock(self._gate)

    def wait(self, timeout_s: float) -> Bool:
        """Wait for the gate; return False if it was not opened in time."""
        timeout_us: I64 = int(timeout_s * US_PER_SECOND)
        return take_raw_lock(self._gate, timeout_us)


def open_all(tickets: list[Any]) -> Bool:
    """Open the gates of some tickets.

    A woken thread needs the interpreter immediately, so the compiled build opens the gates without holding it.
    """
    held: memoryview = memoryview(array("q", bytes(8 * len(tickets))))
    gates: I64s = i64s_of(held)
    count: Size = 0
    for item in tickets:
        ticket: Ticket = item
        was_open: Bool
        with cython.critical_section(ticket):  # two leaders may open it, one because it is covered, one because it leads next
            was_open = ticket._is_open
            ticket._is_open = True
        if was_open:
            continue
        if cython.compiled:
            gates[count] = address_of_lock(ticket._gate)
            count += 1
        else:
            give_raw_lock(ticket._gate)
    give_raw_locks(gates, count)
    return True


class GroupCommit:
    """The puts that wait for a sync, and which of them leads.  A leader calls `_flush(0)` while it holds `_leader`.

    `failure` is final: later waits fail as well.
    """

    __slots__ = (
        "_failure",
        "_group_guard",
        "_group_size",
        "_has_leader",
        "_leader",
        "_patience_s",
        "_tickets",
        "flushed_offset",
    )

    def __init__(self, flushed: I64, timeout_ms: int) -> None:
        """Create it without waiting puts."""
        self.flushed_offset = flushed
        self._failure: DiskError | None = None
        self._leader: Any = threading.Lock()  # held during a sync
        self._group_guard: Any = threading.Lock()
        self._tickets: list[Any] = []
        self._has_leader: Bool = False
        self._group_size: Size = 0  # the puts that the last sync covered, and that waited for the next one
        self._patience_s = timeout_ms / 1000

    @property
    def failure(self) -> DiskError | None:
        """The first error of a sync or commit."""
        with cython.critical_section(self):
            return self._failure

    @failure.setter
    def failure(self, failure: DiskError) -> None:
        """Keep the error unless there is one: flusher and committer may fail at the same time."""
        with cython.critical_section(self):
            if self._failure is None:
                self._failure = failure

    def wait(self, end_offset: I64) -> None:
        """Wait until everything before `end_offset` is on the disk: lead a group, or be covered by another's.

        Raises `DiskError` if the sync failed and `FlushTimeout` if no sync covered it in time.  Locks are only held by
        `with`, so that an interrupt cannot leave one locked.
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
        if self._failure is not None and self.flushed_offset < end_offset:
            raise self._failure

    def is_gathered(self) -> Bool:
        """Return whether more puts wait than half of those that took part in the last sync, which come again soon.

        To wait for all of many would take longer than it saves.
        """
        return self._group_size < 2 or 2 * len(self._tickets) > self._group_size

    def _wait(self, ticket: Ticket) -> Bool:
        """Wait until the ticket is covered or a sync failed; lead if it is its turn."""
        deadline: float = 0
        while self.flushed_offset < ticket.end_offset and self._failure is None:
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
                ticket.leads = True  # the leader is gone
        return True

    def _leave(self, ticket: Ticket) -> Bool:
        """Release all covered tickets, and make the first of the others lead."""
        if ticket.is_covered and not ticket.leads:
            return True
        let_go: list[Any] = []
        left: list[Any] = []
        with self._group_guard:
            is_over: Bool = self._failure is not None
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
                self._group_size = len(left) + len(let_go)
                if left:
                    following: Ticket = left[0]
                    following.leads = True
                    let_go.append(following)
        open_all(let_go)
        return True
