"""Memory for columns, used again once nobody reads the columns that were made in it.

A fresh page costs a microsecond and more, as much as the row that is copied into it; the system's allocator gives blocks of
megabytes back and takes fresh ones at every batch.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

LEAST_BYTES = 1 << 16  # below that the allocator keeps its pages
KEPT_BYTES = 32 << 20


def _references(blocks: list[Any], place: int) -> int:
    """To one of them, the list's and those of this question among them."""
    return sys.getrefcount(blocks[place])


UNUSED = _references([object()], 0)


class Rooms:
    """Blocks whose sizes are powers of two; who takes one gets a view, and the block is free again when all views are gone."""

    def __init__(self) -> None:
        """Nothing is kept yet."""
        self._blocks: list[Array] = []
        self._guard = threading.Lock()

    def take(self, size_bytes: int) -> Array:
        """That many bytes with anything in them."""
        import numpy as np

        if size_bytes < LEAST_BYTES or size_bytes > KEPT_BYTES // 4:
            return np.empty(size_bytes, np.uint8)
        whole = 1 << (size_bytes - 1).bit_length()
        with self._guard:
            for place in range(len(self._blocks)):
                if len(self._blocks[place]) == whole and _references(self._blocks, place) == UNUSED:
                    return self._blocks[place][:size_bytes]
            made = np.empty(whole, np.uint8)
            if sum(map(len, self._blocks)) + whole <= KEPT_BYTES:
                self._blocks.append(made)
            return made[:size_bytes]


ROOMS = Rooms()
