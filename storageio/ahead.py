"""Work on what comes next while the caller uses what came last, or on what came last while the caller goes on.

That gains where one of them waits for the disk, or runs in a kernel without the GIL.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

_THREADS = 2
_END = object()
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_turn(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    """Yield `work(item)` of each item, in their order, as `map` does.

    Two threads work on the next items meanwhile, so at most three results exist.
    """
    if len(items) < 2 * _THREADS:
        yield from map(work, items)
        return
    from concurrent.futures import ThreadPoolExecutor  # 10 ms, more than two threads gain with so few items

    pending: deque[Future[_Result]] = deque()
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="brokerstore-ahead")
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > _THREADS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def one_ahead(items: Iterator[_Item]) -> Iterator[_Item]:
    """Yield the same items.  The iterator runs in a thread of its own, one item ahead of the caller."""
    from concurrent.futures import ThreadPoolExecutor  # 10 ms

    pool = ThreadPoolExecutor(1, thread_name_prefix="brokerstore-ahead")

    def following() -> Future[Any]:
        return pool.submit(next, items, _END)

    try:
        pending = following()
        while (item := pending.result()) is not _END:
            pending = following()
            yield item
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def one_behind(work: Callable[[_Item], object]) -> Iterator[Callable[[_Item], None]]:
    """Yield a function that has a thread do `work` with its argument, in the order of the calls.

    A call waits for the one before, and raises its error; the end of the context waits for the last.
    """
    from concurrent.futures import ThreadPoolExecutor  # 10 ms

    pool = ThreadPoolExecutor(1, thread_name_prefix="brokerstore-behind")
    pending: Future[object] | None = None

    def take(item: _Item) -> None:
        nonlocal pending
        if pending is not None:
            pending.result()
        pending = pool.submit(work, item)

    try:
        yield take
        if pending is not None:
            pending.result()
    finally:
        pool.shutdown(cancel_futures=True)
