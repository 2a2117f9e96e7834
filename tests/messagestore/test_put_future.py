"""The future of a pipelined put behaves as one of `concurrent.futures`, whenever somebody begins to wait."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, as_completed, wait
from concurrent.futures._base import FINISHED, RUNNING
from typing import Any

import pytest

from commitlog import PutResult
from messagestore import PutFuture

RESULT: PutResult = PutResult.__new__(PutResult)


def set_later(future: PutFuture) -> threading.Timer:
    timer = threading.Timer(0.02, future.set_result, (RESULT,))
    timer.start()
    return timer


def test_a_result_that_was_set_is_there() -> None:
    """For every method that reads it, and for callbacks that are added later."""
    future, called = PutFuture(), []
    assert not future.done() and future.running() and not future.cancel()
    future.set_result(RESULT)
    future.add_done_callback(called.append)
    assert future.result() is RESULT and future.result(0) is RESULT and future.exception() is None
    assert called == [future] and future.done() and not future.running() and not future.cancel()
    assert "finished" in repr(future)


def test_an_error_is_raised() -> None:
    """By `result`, in every call."""
    future, error = PutFuture(), ValueError("x")
    future.set_exception(error)
    assert future.done() and future.exception() is error
    for _ in range(2):
        with pytest.raises(ValueError, match="x"):
            future.result()


@pytest.mark.parametrize("has_error", [False, True])
def test_nothing_is_set_twice(has_error: bool) -> None:
    """A second result is refused, as by `Future`."""
    future = PutFuture()
    if has_error:
        future.set_exception(ValueError())
    else:
        future.set_result(RESULT)
    with pytest.raises(InvalidStateError):
        future.set_result(RESULT)
    with pytest.raises(InvalidStateError):
        future.set_exception(ValueError())


def test_all_waiters_before_the_result_receive_it() -> None:
    """A thread, `wait`, `as_completed`, a callback and a coroutine; a wait that is too short raises."""
    with pytest.raises(TimeoutError):
        PutFuture().result(0.001)
    future, called = PutFuture(), []
    future.add_done_callback(called.append)
    timer = set_later(future)
    assert future.result(10) is RESULT
    timer.join()
    assert called == [future]

    futures: list[Any] = [PutFuture(), PutFuture()]
    timer = set_later(futures[1])
    assert wait(futures, 10, FIRST_COMPLETED).done == {futures[1]}
    timer.join()
    timer = set_later(futures[0])
    assert {one.result() for one in as_completed(futures, 10)} == {RESULT}
    timer.join()

    async def awaited() -> PutResult:
        one = PutFuture()
        timer = set_later(one)
        found: PutResult = await one
        timer.join()
        return found

    assert asyncio.run(awaited()) is RESULT


def test_private_attributes_of_future_are_the_supported_ones() -> None:
    """`PutFuture` sets private parts of `Future`: a Python with others must be noticed before it is supported."""
    assert set(vars(Future())) == {"_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks"}
    future: Future[int] = Future()
    future.set_running_or_notify_cancel()
    assert vars(future)["_state"] == RUNNING
    future.set_result(1)
    assert vars(future)["_state"] == FINISHED


def test_no_waiter_misses_a_result() -> None:
    """Whoever comes first, the one who waits or the one who sets it."""
    for _ in range(300):
        future, found = PutFuture(), []
        start = threading.Barrier(2)

        def take(future: PutFuture = future, start: threading.Barrier = start, found: list[Any] = found) -> None:
            start.wait()
            found.append(future.result(10))

        thread = threading.Thread(target=take)
        thread.start()
        start.wait()
        future.set_result(RESULT)
        thread.join()
        assert found == [RESULT]
