"""Conversion of bodies, keys and tags from any column type to what `Appender.append_columns` takes: 64-bit offsets and data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from storageio import InvalidMessage

from ._packed_cy import list_column

if TYPE_CHECKING:
    import numpy as np


def offsets_and_data(values: Any, *, name: str = "bodies", null_is_empty: bool = False) -> tuple[Any, Any]:
    """Convert an Arrow binary or string array, a 2-D uint8 array (a row each), (offsets, data), or a list to (offsets, data).

    Data is not copied where possible.  A null becomes an empty value with `null_is_empty` (keys and tags).  Raises
    `InvalidMessage` for other nulls and other types.
    """
    if hasattr(values, "combine_chunks") and hasattr(values, "chunks"):
        values = values.combine_chunks()
    if hasattr(values, "buffers") and hasattr(values, "type"):
        return _from_arrow(values, name, null_is_empty)
    if isinstance(values, tuple) and len(values) == 2:
        return _as_int64(values[0], name), values[1]
    if hasattr(values, "ndim") and hasattr(values, "dtype"):
        return _from_rows(values, name)
    if isinstance(values, Sequence) and not isinstance(values, (str, bytes, bytearray, memoryview)):
        return list_column(list(values), name, null_is_empty)
    raise InvalidMessage(f"{name}: {type(values).__name__} is no column")


def _as_int64(offsets: Any, name: str) -> np.ndarray[Any, Any]:
    """Convert offsets of any integer width to 64 bits."""
    import numpy as np  # 80 ms

    found = np.asarray(offsets)
    if found.ndim != 1 or found.dtype.kind not in "iu" or len(found) == 0:
        raise InvalidMessage(f"{name}: offsets are integers in one dimension, one more than rows")
    return np.ascontiguousarray(found, dtype=np.int64)


def _from_rows(rows: Any, name: str) -> tuple[Any, Any]:
    """Convert rows of bytes, all of one length."""
    import numpy as np  # 80 ms

    if rows.ndim != 2 or rows.dtype != np.uint8:
        raise InvalidMessage(f"{name}: a two-dimensional array of uint8 wanted, not {rows.ndim}-dimensional {rows.dtype}")
    count, width = rows.shape
    return np.arange(count + 1, dtype=np.int64) * width, np.ascontiguousarray(rows).reshape(-1)


def _from_arrow(values: Any, name: str, null_is_empty: bool) -> tuple[Any, Any]:
    """Return the array's own buffers, limited to its slice."""
    import numpy as np  # 80 ms

    if values.null_count:
        if not null_is_empty:
            raise InvalidMessage(f"{name}: {values.null_count} nulls")
        values = values.fill_null("" if "string" in str(values.type) else b"")
    kind = str(values.type)
    if kind.startswith("fixed_size_binary"):
        width = values.type.byte_width
        first = values.offset * width
        data = np.frombuffer(values.buffers()[1], np.uint8) if len(values) else np.empty(0, np.uint8)
        return np.arange(len(values) + 1, dtype=np.int64) * width + first, data
    widths = {"string": np.int32, "binary": np.int32, "large_string": np.int64, "large_binary": np.int64}
    if kind not in widths:
        raise InvalidMessage(f"{name}: Arrow {kind}; binary or string wanted")
    _, offsets, held = values.buffers()
    if len(values) == 0:
        return np.zeros(1, np.int64), b""
    found = np.frombuffer(offsets, widths[kind])[values.offset : values.offset + len(values) + 1]
    return found.astype(np.int64), b"" if held is None else held
