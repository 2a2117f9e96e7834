"""Group commit without a disk: which put waits, leads, and returns."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from storageio import DiskError, FlushTimeout
from tests.builds import World

pytestmark = pytest.mark.both_builds

PATIENCE_S = 20


def group_of(world: World, sync: Any, timeout_ms: int = 10_000) -> Any:
    """Return a group whose leader calls `sync(group)`."""

    class Group(world.module("messagestore.write._group_cy").GroupCommit):  # type: ignore[misc, name-defined]
        written = 0

        def _flush(self, least_pages: int) -> None:
            assert least_pages == 0 and self._leader.locked()
            sync(self)

    return Group(0, timeout_ms)


def started(*works: Any) -> list[threading.Thread]:
    """Start each function on a thread of its own."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    return threads


def ended(threads: list[threading.Thread]) -> bool:
    """Return whether all threads end."""
    for thread in threads:
        thread.join(PATIENCE_S)
    return not any(thread.is_alive() for thread in threads)


def test_put_returns_only_after_a_sync_that_covers_it(world: World) -> None:
    """Sixteen threads put fifty times each; there are far fewer syncs, because each covers all earlier writes."""
    syncs, early, guard = [], [], threading.Lock()

    def sync(group: Any) -> None:
        goal = group.written
        time.sleep(0.0005)
        syncs.append(goal)
        group.flushed_offset = goal

    def put() -> None:
        for _ in range(50):
            with guard:
                group.written += 7
                end = group.written
            group.wait(end)
            if group.flushed_offset < end:
                early.append(end)

    group = group_of(world, sync)
    assert ended(started(*[put] * 16))
    assert (early, group.flushed_offset) == ([], 7 * 16 * 50)
    assert len(syncs) < 400 and syncs == sorted(syncs)


def test_failed_sync_is_raised_by_all_waiting_and_later_puts(world: World) -> None:
    """Puts that wrote during the sync fail as well."""
    is_syncing, goes_on, reported = threading.Event(), threading.Event(), []

    def sync(group: Any) -> None:
        is_syncing.set()
        goes_on.wait(PATIENCE_S)
        group.failure = DiskError("sync", "file", 5, "broken")
        raise group.failure

    def put(end: int) -> None:
        try:
            group.wait(end)
        except DiskError as error:
            reported.append(error)

    group = group_of(world, sync)
    threads = started(lambda: put(1))
    assert is_syncing.wait(PATIENCE_S)
    threads += started(lambda: put(2), lambda: put(3))
    time.sleep(0.05)
    goes_on.set()
    assert ended(threads)
    put(4)
    assert reported == [group.failure] * 4


def test_put_waits_no_longer_than_its_timeout(world: World) -> None:
    """The put that times out leaves; the sync that ends later releases the others."""
    is_syncing, goes_on, reported = threading.Event(), threading.Event(), []

    def sync(group: Any) -> None:
        goal = group.written
        is_syncing.set()
        goes_on.wait(PATIENCE_S)
        group.flushed_offset = goal

    def put(end: int) -> None:
        try:
            group.wait(end)
            reported.append(end)
        except FlushTimeout as error:
            reported.append(str(error))

    group = group_of(world, sync, timeout_ms=150)
    group.written = 1
    threads = started(lambda: put(1))
    assert is_syncing.wait(PATIENCE_S)
    group.written = 2
    assert ended(started(lambda: put(2)))
    goes_on.set()
    assert ended(threads)
    put(2)
    assert reported == ["no sync covered 2 within 150 ms", 1, 2]


def test_interrupted_leader_is_replaced_by_the_next_put(world: World) -> None:
    """Whatever is raised in the middle of its sync, no other put waits longer than for a sync."""
    is_syncing, goes_on, raised = threading.Event(), threading.Event(), []

    def sync(group: Any) -> None:
        if not is_syncing.is_set():
            is_syncing.set()
            goes_on.wait(PATIENCE_S)
            raise KeyboardInterrupt
        group.flushed_offset = group.written

    def interrupted() -> None:
        try:
            group.wait(1)
        except KeyboardInterrupt:
            raised.append(1)

    group = group_of(world, sync)
    threads = started(interrupted)
    assert is_syncing.wait(PATIENCE_S)
    group.written = 3
    threads += started(lambda: group.wait(2), lambda: group.wait(3))
    time.sleep(0.05)
    goes_on.set()
    assert ended(threads)
    assert (raised, group.flushed_offset) == ([1], 3)


def test_waiting_put_replaces_a_leader_that_never_synced(world: World) -> None:
    """A put was interrupted between becoming the leader and leading: a waiting put notices after a while."""
    if world.build == "compiled":
        pytest.skip("what it keeps is not to be seen in there")
    group = group_of(world, lambda group: setattr(group, "flushed_offset", group.written))
    group.written = 5
    ticket = world.module("messagestore.write._group_cy").Ticket(5)
    group._has_leader = True
    group._tickets.append(ticket)
    group.wait(5)
    assert group.flushed_offset == 5
    assert ticket.is_covered  # by the same sync


def test_the_first_failure_is_kept(world: World) -> None:
    """Flusher and committer may fail at the same time, while a put raises the error of one of them."""
    group = group_of(world, lambda group: None)
    first, second = (DiskError(operation, "log", 5, "EIO") for operation in ("sync", "write"))
    assert group.failure is None
    group.failure = first
    group.failure = second
    assert group.failure is first
    with pytest.raises(DiskError) as caught:
        group.wait(1)
    assert caught.value is first


def test_a_leader_expects_more_than_half_of_the_puts_of_the_last_sync(world: World) -> None:
    """Two that share a sync come again together; one that was alone expects nobody."""
    is_syncing, goes_on, seen = threading.Event(), threading.Event(), []

    def sync(group: Any) -> None:
        seen.append(bool(group.is_gathered()))
        is_syncing.set()
        assert goes_on.wait(PATIENCE_S)
        group.flushed_offset = min(group.written, 1) if len(seen) == 1 else group.written

    group = group_of(world, sync)
    group.written = 3
    threads = started(lambda: group.wait(1))
    assert is_syncing.wait(PATIENCE_S)
    threads += started(lambda: group.wait(2), lambda: group.wait(3))
    time.sleep(0.05)
    goes_on.set()
    assert ended(threads)
    for end in (4, 5):
        group.written = end
        group.wait(end)
    assert seen == [True, True, False, True]
