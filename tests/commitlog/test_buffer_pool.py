"""The memory pool for columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from commitlog.buffer_pool import KEPT_BYTES, BufferPool


def test_block_is_reused_only_when_no_reader_holds_it() -> None:
    """Views of views, Arrow's buffers and arrays of another type count as readers."""
    pool = BufferPool()
    first = pool.take(1 << 20)
    first[:] = 1
    position = first.ctypes.data
    held = [memoryview(first)[5:10], pa.py_buffer(first[100:]), first.view(np.int64)[3:], pa.array([1])]
    del first
    while held:
        other = pool.take(1 << 20)
        assert (other.ctypes.data == position) == (len(held) == 1)
        other[:] = 2
        if len(held) > 1:
            assert all(bytes(memoryview(reader).cast("B")[:4]) == b"\x01" * 4 for reader in held[:-1])
        del other
        held.pop(0)


def test_pool_keeps_at_most_the_limit_of_bytes() -> None:
    """Requests beyond the limit succeed but are not kept."""
    pool = BufferPool()
    taken = [pool.take(3 << 20) for _ in range(20)]
    assert len({view.ctypes.data for view in taken}) == 20
    assert sum(map(len, pool._blocks)) <= KEPT_BYTES
    assert len(pool.take(KEPT_BYTES)) == KEPT_BYTES
    assert pool.take(0).nbytes == 0
