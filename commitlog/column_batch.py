"""The columns of a batch that a kernel fills in one pass: numbers, body, topic, tags, keys.

The room for texts is estimated small; if it does not suffice, it becomes as large as the records could need.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from . import layout
from ._rows_cy import Columns, TextColumn
from .buffer_pool import BUFFER_POOL
from .columns import FIXED, Batch

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

FIELD_OFFSETS = {  # offsets in a record with IPv4 hosts
    "size": layout.SIZE_AT,
    "body_crc": layout.BODY_CRC_AT,
    "queue_id": layout.QUEUE_ID_AT,
    "flag": layout.FLAG_AT,
    "queue_offset": layout.QUEUE_OFFSET_AT,
    "physical_offset": layout.PHYSICAL_OFFSET_AT,
    "sys_flag": layout.SYS_FLAG_AT,
    "born_timestamp_ms": layout.BORN_TIME_AT,
    "store_timestamp_ms": layout.STORE_TIME_AT,
    "reconsume_times": layout.RECONSUME_AT,
    "prepared_transaction_offset": layout.PREPARED_AT,
}
WIDE = frozenset(name for name, kind in FIXED if kind == "i8")
KERNEL_COLUMNS = frozenset(FIELD_OFFSETS) | {"body", "topic", "tags", "keys"}
ROW_TEXT_SIZE, ROW_WORDS = 64, 4  # estimates
LEAST_TEXT_SIZE, LEAST_WORDS = 1 << 16, 1 << 14  # a row's properties always fit


def as_numbers(values: Array) -> Any:
    """Return an Arrow array on the same memory.  `pa.array` would import pandas if installed: half a second."""
    import pyarrow as pa

    kind = pa.int32() if values.dtype.itemsize == 4 else pa.int64()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def as_text(found: Any) -> Any:
    """Return a binary array as a string array; bytes that are not UTF-8 become U+FFFD, as in message objects."""
    import pyarrow as pa

    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if item is None else item.decode("utf-8", "replace") for item in found.to_pylist()]
        return pa.array(texts, pa.string())


@cache
def _numbers(wanted: frozenset[str]) -> list[tuple[list[str], Array]]:
    """Return the requested 64-bit columns and the requested 32-bit ones, each with their offsets in a record."""
    import numpy as np

    wide, narrow = sorted(wanted & WIDE & frozenset(FIELD_OFFSETS)), sorted((wanted & frozenset(FIELD_OFFSETS)) - WIDE)
    return [(names, np.array([FIELD_OFFSETS[name] for name in names], np.int32)) for names in (wide, narrow)]


def _bytes_inside(batch: Batch) -> int:
    """Return the total size of the records that can lie in the view."""
    import numpy as np

    inside = (batch.sizes > 0) & (batch.positions >= 0) & (batch.positions <= len(batch.view) - batch.sizes)
    return int(batch.sizes[inside].sum(dtype=np.int64))


class _Text:
    """The buffers of one text column."""

    def __init__(self, places: int, room: int, *, has_mask: bool = False) -> None:
        import numpy as np

        self.offsets, self.data = BUFFER_POOL.take(4 * (places + 1)).view(np.int32), BUFFER_POOL.take(room)
        self.mask = np.zeros((places + 7) // 8, np.uint8) if has_mask else None
        self.kernel = TextColumn(self.offsets, self.data, self.mask)

    def array(self, rows: int, *, is_text: bool = True) -> Any:
        """Return the first `rows` values."""
        import pyarrow as pa

        kind = pa.string() if is_text and self.kernel.high < 128 else pa.binary()
        mask = None if self.mask is None else pa.py_buffer(self.mask)
        found = pa.Array.from_buffers(kind, rows, [mask, pa.py_buffer(self.offsets), pa.py_buffer(self.data)])
        return as_text(found) if is_text and kind == pa.binary() else found


class ColumnBatch:
    """The columns of a batch up to the first row that is not a record or does not pass the checks; `rows` is their number."""

    def __init__(self, batch: Batch, columns: Sequence[str], checks: int, most: int | None = None) -> None:
        """Fill the columns.  `most`: the bytes of the batch's records, if known."""
        wanted, rows = frozenset(columns), len(batch.positions)
        most = _bytes_inside(batch) if most is None else most
        for text_room, words in ((ROW_TEXT_SIZE * rows + LEAST_TEXT_SIZE, ROW_WORDS * rows + LEAST_WORDS), (most, most)):
            self._make_room(wanted, rows, most, min(text_room, most), min(words, most))
            filled = self._kernel.fill(batch.view, batch.base, batch.positions, batch.sizes, rows, checks)
            if filled == rows or text_room >= most <= words:
                break
        self.rows = filled

    def _make_room(self, wanted: frozenset[str], rows: int, body_room: int, text_room: int, words: int) -> None:
        import numpy as np

        (self._wide_names, wide_places), (self._narrow_names, narrow_places) = _numbers(wanted)
        self._room = rows
        self._wide = BUFFER_POOL.take(8 * rows * len(self._wide_names)).view(np.int64)
        self._narrow = BUFFER_POOL.take(4 * rows * len(self._narrow_names)).view(np.int32)
        self._body = _Text(rows, body_room) if "body" in wanted else None
        self._topic = _Text(rows, text_room) if "topic" in wanted else None
        self._tags = _Text(rows, text_room, has_mask=True) if "tags" in wanted else None
        self._words = _Text(words, text_room) if "keys" in wanted else None
        self._keys = np.empty(rows + 1, np.int32)
        body, topic, tags, words_column = (
            text.kernel if text is not None else None for text in (self._body, self._topic, self._tags, self._words)
        )
        self._kernel = Columns(
            rows, self._wide, wide_places, self._narrow, narrow_places, body, topic, tags, words_column, self._keys
        )

    def column(self, name: str) -> Any:
        """Return a column of `KERNEL_COLUMNS` that was requested."""
        import pyarrow as pa

        if name in FIELD_OFFSETS:
            block, names = (self._wide, self._wide_names) if name in WIDE else (self._narrow, self._narrow_names)
            first = self._room * names.index(name)
            return as_numbers(block[first : first + self.rows])
        if name == "keys":
            assert self._words is not None
            words = self._words.array(int(self._keys[self.rows]))
            offsets = [None, pa.py_buffer(self._keys)]
            return pa.Array.from_buffers(pa.list_(pa.string()), self.rows, offsets, children=[words])
        text = {"body": self._body, "topic": self._topic, "tags": self._tags}[name]
        assert text is not None
        return text.array(self.rows, is_text=name != "body")
