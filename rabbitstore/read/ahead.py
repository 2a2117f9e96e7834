"""Work on the next files while the caller takes the last one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

_THREADS = 2
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_turn(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    """Yield `work(item)` of each item, in their order, as `map` does.

    Two threads work on the next items meanwhile, so at most three results exist.  This gains if `work` mostly reads, or runs in
    a kernel without the GIL.
    """
    if len(items) < _THREADS:
        yield from map(work, items)
        return
    from concurrent.futures import ThreadPoolExecutor  # 10 ms that a small folder saves

    pending: deque[Future[_Result]] = deque()
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="rabbitstore-ahead")
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > _THREADS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
