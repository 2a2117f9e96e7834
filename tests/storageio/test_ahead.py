"""Work that runs ahead of a caller: order, errors, bounds, and its end when the caller stops early."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from storageio.ahead import in_turn, one_ahead, one_behind


def halves(numbers: list[int]) -> Iterator[float]:
    return (6 / number for number in numbers)


RUNNERS: list[Callable[[list[int]], Iterator[float]]] = [
    lambda numbers: in_turn(lambda number: 6 / number, numbers),
    lambda numbers: one_ahead(halves(numbers)),
]


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize("numbers", [[], [3], [1, 2, 3, 6, 1, 2]])
def test_results_come_in_order(run: Callable[[list[int]], Iterator[float]], numbers: list[int]) -> None:
    """As those of `map`."""
    assert list(run(numbers)) == list(halves(numbers))


@pytest.mark.parametrize("run", RUNNERS)
def test_error_is_raised_after_the_results_before_it(run: Callable[[list[int]], Iterator[float]]) -> None:
    """After the results before it."""
    found = run([1, 2, 0, 3])
    assert [next(found), next(found)] == [6, 3]
    with pytest.raises(ZeroDivisionError):
        next(found)
    assert list(found) == []


@pytest.mark.parametrize("run", RUNNERS)
def test_no_thread_is_left_when_the_caller_stops(run: Callable[[list[int]], Iterator[float]]) -> None:
    """The iterator is closed in the middle."""
    before = threading.active_count()
    found = run([1] * 100)
    assert next(found) == 6
    found.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_the_work_is_bounded() -> None:
    """Three results exist at most, one of them the caller's; of an iterator two."""
    begun: list[int] = []
    found = in_turn(lambda number: begun.append(number) or number, range(100))  # type: ignore[func-returns-value]
    for number in range(5):
        assert next(found) == number and len(begun) <= number + 3
    made: list[int] = []
    following = one_ahead(made.append(number) or number for number in range(100))  # type: ignore[func-returns-value]
    for number in range(5):
        assert next(following) == number and len(made) <= number + 2


def test_both_threads_work() -> None:
    """Two calls that wait for each other end."""
    both = threading.Barrier(2, timeout=10)
    assert len(list(in_turn(lambda _number: both.wait(), range(4)))) == 4


def test_background_calls_keep_their_order() -> None:
    """All are done at the end of the context; an error comes with the next call, or with that end."""
    done: list[int] = []
    with one_behind(done.append) as take:
        for number in range(20):
            take(number)
            assert len(done) >= number
    assert done == list(range(20))
    before = threading.active_count()
    for calls in (1, 3):
        with pytest.raises(ZeroDivisionError), one_behind(lambda number: 6 / number) as divide:
            for _ in range(calls):
                divide(0)
    assert threading.active_count() == before
