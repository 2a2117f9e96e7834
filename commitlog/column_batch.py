"""The columns of a batch, which a kernel fills in one pass.

The room for texts is estimated small; if it does not suffice, it becomes as large as the records could need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ._rows_cy import Columns, TextColumn
from .buffer_pool import BUFFER_POOL
from .columns import Batch, NumberColumns
from .fields import BODY, FIELDS, HEX, HOST
from .hosts import decode_host
from .layout import HOST_SIZE_V6, PAIR_SIZE_MIN

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

KINDS = {field.name: field.kind for field in FIELDS}
ID_SIZE_MAX = 2 * (HOST_SIZE_V6 + 8)
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


def _strings(texts: list[str]) -> Any:
    """Return a few texts as an array, without `pa.array`, which may import pandas."""
    import numpy as np
    import pyarrow as pa

    items = [text.encode() for text in texts]
    offsets = np.concatenate([[0], np.cumsum([len(item) for item in items])]).astype(np.int32)
    return pa.StringArray.from_buffers(len(items), pa.py_buffer(offsets), pa.py_buffer(b"".join(items)))


def _named(codes: Any, text: Callable[[Any], str]) -> Any:
    """Return a dictionary column with a text for each distinct code."""
    import pyarrow as pa

    encoded = codes.dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices, _strings([text(code) for code in encoded.dictionary.to_pylist()]))


def _bytes_inside(batch: Batch) -> int:
    """Return the total size of the records that can lie in the view."""
    import numpy as np

    inside = (batch.sizes > 0) & (batch.positions >= 0) & (batch.positions <= len(batch.view) - batch.sizes)
    return int(batch.sizes[inside].sum(dtype=np.int64))


class _Text:
    """The buffers of one text column."""

    def __init__(self, positions: int, capacity: int, *, has_mask: bool = False) -> None:
        import numpy as np

        self.offsets, self.data = BUFFER_POOL.take(4 * (positions + 1)).view(np.int32), BUFFER_POOL.take(capacity)
        self.mask = np.zeros((positions + 7) // 8, np.uint8) if has_mask else None
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
        requested, rows = frozenset(columns), len(batch.positions)
        most = _bytes_inside(batch) if most is None else most
        for text_capacity, words in ((ROW_TEXT_SIZE * rows + LEAST_TEXT_SIZE, ROW_WORDS * rows + LEAST_WORDS), (most, most)):
            kernel = self._columns_for(requested, rows, most, min(text_capacity, most), min(words, most))
            filled = kernel.fill(batch.view, batch.base, batch.positions, batch.sizes, rows, checks)
            if filled == rows or text_capacity >= most <= words:
                break
        self.rows = filled

    def _columns_for(self, requested: frozenset[str], rows: int, most: int, text_capacity: int, words: int) -> Columns:
        import numpy as np

        self._numbers = NumberColumns(requested, rows)
        hosts = HOST_SIZE_V6 * rows
        capacities = {"body": most, "topic": text_capacity, "tags": text_capacity, "born_host": hosts, "store_host": hosts}
        capacities["message_id"] = ID_SIZE_MAX * rows
        texts = {
            name: _Text(rows, capacity, has_mask=name == "tags") for name, capacity in capacities.items() if name in requested
        }
        if "keys" in requested:
            texts["words"] = _Text(words, text_capacity)
        if "properties" in requested:
            pairs = min(2 * words, most // PAIR_SIZE_MIN + rows)
            texts |= {name: _Text(pairs, most) for name in ("names", "values")}
        self._texts = texts
        self._ends: dict[str, np.ndarray[Any, Any]] = {
            name: np.empty(rows + 1, np.int32) for name in ("keys", "properties") if name in requested
        }
        given: dict[str, Any] = {name: text.kernel for name, text in texts.items()}
        return Columns(*self._numbers.arguments, **given, keys=self._ends.get("keys"), pairs=self._ends.get("properties"))

    def column(self, name: str) -> Any:
        """Return a column that was requested: hosts and magic as dictionaries, properties without the checksum."""
        import pyarrow as pa

        kind = KINDS[name]
        if name in self._numbers.by_name:
            numbers = as_numbers(self._numbers.by_name[name][: self.rows])
            return _named(numbers, lambda code: f"{code & 0xFFFFFFFF:08x}") if kind == HEX else numbers
        if name in self._texts:
            text = self._texts[name].array(self.rows, is_text=kind not in (BODY, HOST))
            return _named(text, decode_host) if kind == HOST else text
        ends, count = self._ends[name], int(self._ends[name][self.rows])
        if name == "keys":
            offsets, words = [None, pa.py_buffer(ends)], self._texts["words"].array(count)
            return pa.Array.from_buffers(pa.list_(pa.string()), self.rows, offsets, children=[words])
        names, values = self._texts["names"].array(count), self._texts["values"].array(count)
        return pa.MapArray.from_arrays(as_numbers(ends[: self.rows + 1]), names, values)
