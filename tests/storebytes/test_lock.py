"""The append lock: the compiled class keeps the promises of `threading.Lock`."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from tests.builds import World


def test_one_holder_at_a_time(world: World) -> None:
    """A second thread waits until any thread releases it."""
    lock = world.module("storebytes._lock_cy").Lock()
    assert lock.acquire()
    assert lock.locked()
    assert not lock.acquire(blocking=False)
    assert not lock.acquire(timeout=0.01)
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(lock.acquire()))
    waiting.start()
    time.sleep(0.02)
    assert found == []
    lock.release()
    waiting.join()
    assert found == [True]
    lock.release()
    assert not lock.locked()


def test_release_of_a_free_lock_raises(world: World) -> None:
    """It raises `RuntimeError`, as the standard library does."""
    with pytest.raises(RuntimeError):
        world.module("storebytes._lock_cy").Lock().release()


def test_error_in_the_with_block_releases_the_lock(world: World) -> None:
    """This holds for the appender's lock in either build."""
    lock = world.module("storebytes._lock_cy").new_lock()
    with pytest.raises(KeyError), lock:
        raise KeyError
    assert not lock.locked()


def test_counting_threads_lose_nothing(world: World) -> None:
    """Four threads read, pause and write one number under the lock."""
    lock = world.module("storebytes._lock_cy").new_lock()
    count = 0

    def work() -> None:
        nonlocal count
        for _ in range(200):
            with lock:
                seen = count
                time.sleep(0)
                count = seen + 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == 800


def test_a_waiting_thread_can_be_interrupted(world: World) -> None:
    """A signal handler runs while the main thread waits, and its exception ends the wait."""

    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    lock = world.module("storebytes._lock_cy").Lock()
    lock.acquire()
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(Alarm):
            lock.acquire(timeout=30)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    lock.release()
    assert lock.acquire(blocking=False)
