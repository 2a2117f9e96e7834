"""Memory for columns that is reused when no reader uses the columns in it any more.

A fresh page costs a microsecond or more, as much as the row that is copied into it.  The system's allocator returns blocks of
megabytes to the system and gets fresh ones for every batch.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

LEAST_BYTES = 1 << 16  # the allocator keeps the pages of smaller blocks
KEPT_BYTES = 32 << 20


def _references(blocks: list[Any], index: int) -> int:
    """Return the reference count of a block, including that of the list and of this call."""
    return sys.getrefcount(blocks[index])


UNUSED = _references([object()], 0)


class BufferPool:
    """Blocks whose sizes are powers of two.  `take` returns a view; the block is free again when all views are gone."""

    def __init__(self) -> None:
        """Create a pool without blocks."""
        self._blocks: list[Array] = []
        self._guard = threading.Lock()

    def take(self, size_bytes: int) -> Array:
        """Return an array of that many uninitialized bytes."""
        import numpy as np

        if size_bytes < LEAST_BYTES or size_bytes > KEPT_BYTES // 4:
            return np.empty(size_bytes, np.uint8)
        whole = 1 << (size_bytes - 1).bit_length()
        with self._guard:
            for index in range(len(self._blocks)):
                if len(self._blocks[index]) == whole and _references(self._blocks, index) == UNUSED:
                    return self._blocks[index][:size_bytes]
            made = np.empty(whole, np.uint8)
            if sum(map(len, self._blocks)) + whole <= KEPT_BYTES:
                self._blocks.append(made)
            return made[:size_bytes]


BUFFER_POOL = BufferPool()
