"""Records as Arrow batches: the columns of the tool's JSON, text and bodies included.  Needs pyarrow (extra `arrow`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from storageio import needs_extra

from ._scan_cy import gather, locate, split_pairs
from .column_batch import KERNEL_COLUMNS, ColumnBatch, as_numbers, as_text
from .columns import FIXED, Batch, batches, fixed_columns
from .commit_log import CommitLog
from .hosts import decode_host
from .layout import CRC_NAME

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Array = np.ndarray[Any, Any]

COLUMNS = (
    "topic", "queue_id", "queue_offset", "physical_offset", "size", "magic", "body_crc", "flag", "sys_flag",
    "born_timestamp_ms", "born_host", "store_timestamp_ms", "store_host", "reconsume_times", "prepared_transaction_offset",
    "message_id", "tags", "keys", "properties", "body",
)  # fmt: skip
_PARTS = ("body", "topic", "properties", "born_host", "store_host")  # the ranges that `locate` fills, in its order
_HEX_PAIRS = b"".join(b"%02X" % value for value in range(256))  # the two digits of each byte value


def schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Return the schema: hosts and magic (8 hex digits) are dictionaries, missing tags are null, missing keys an empty list."""
    return _schema(tuple(columns))


@cache
def _schema(columns: tuple[str, ...]) -> pa.Schema:
    with needs_extra("arrow"):
        import pyarrow as pa  # 150 ms

    named = pa.dictionary(pa.int32(), pa.string())
    kinds: dict[str, Any] = {name: pa.int32() if kind == "i4" else pa.int64() for name, kind in FIXED}
    kinds |= {"magic": named, "born_host": named, "store_host": named, "keys": pa.list_(pa.string()), "body": pa.binary()}
    kinds |= {"properties": pa.map_(pa.string(), pa.string())}
    unknown = set(columns) - set(COLUMNS)
    if unknown:
        raise ValueError(f"no such columns: {sorted(unknown)}")
    return pa.schema([pa.field(name, kinds.get(name, pa.string())) for name in columns])


def read_columns(
    source: CommitLog | memoryview | bytes | bytearray,
    start: int | None = None,
    stop: int | None = None,
    *,
    columns: Sequence[str] = COLUMNS,
    **options: Any,
) -> pa.RecordBatchReader:
    """Read the given columns of a log or a buffer as Arrow batches.  `options` are those of `columns.batches`."""
    with needs_extra("arrow"):
        import pyarrow as pa  # 150 ms

    wanted = schema(columns)
    made: Iterator[Any] = (record_batch(batch, columns) for batch in batches(source, start, stop, **options))
    return pa.RecordBatchReader.from_batches(wanted, made)


def record_batch(batch: Batch, columns: Sequence[str] = COLUMNS) -> pa.RecordBatch:
    """Return the given columns of one batch, which owns its bytes.  Raises `ValueError` if a row's position has no record."""
    made = checked_batch(batch, columns, 0)
    if columns and made.num_rows < len(batch.positions):
        raise ValueError(f"row {made.num_rows}: no record lies at {batch.positions[made.num_rows]}")
    return made


def checked_batch(batch: Batch, columns: Sequence[str], checks: int, most: int | None = None) -> pa.RecordBatch:
    """Return the columns of the rows before the first that is not a record of its size or does not pass `checks`.

    `most`: the bytes of the batch's records, if known.
    """
    import pyarrow as pa  # 150 ms

    filled = ColumnBatch(batch, columns, checks, most)
    builder = _Builder(Batch(batch.view, batch.base, batch.positions[: filled.rows], batch.sizes[: filled.rows]))
    arrays = [filled.column(name) if name in KERNEL_COLUMNS else builder.column(name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=_schema(tuple(columns)))


class _Builder:
    """The columns that are built one by one; what several share is computed on first use."""

    def __init__(self, batch: Batch) -> None:
        import numpy as np
        import pyarrow as pa

        self.np, self.pa = np, pa
        self.view, self.rows = batch.view, len(batch.positions)
        self.batch = batch

    @cached_property
    def fixed(self) -> dict[str, Array]:
        """Every fixed field of the batch."""
        return fixed_columns(self.batch)

    @cached_property
    def _located(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """The position of each range in the view, and its size."""
        starts = {name: self.np.empty(self.rows, self.np.int64) for name in _PARTS}
        sizes = {name: self.np.empty(self.rows, self.np.int32) for name in _PARTS}
        locate(self.view, self.batch.positions, self.rows, list(starts.values()), list(sizes.values()))
        return starts, sizes

    def _part(self, name: str) -> tuple[Array, Array]:
        """Return positions and sizes of one of `_PARTS`."""
        return self._located[0][name], self._located[1][name]

    def column(self, name: str) -> Any:
        """Return one column as an Arrow array."""
        made: dict[str, Callable[[], Any]] = {
            "magic": self._magic,
            "born_host": lambda: self._hosts("born_host"),
            "store_host": lambda: self._hosts("store_host"),
            "message_id": self._message_ids,
            "properties": self._properties,
        }
        return made[name]()

    def _strings(self, texts: list[str]) -> Any:
        """Return a few texts as an array, without `pa.array`, which may import pandas."""
        np, pa = self.np, self.pa
        items = [text.encode() for text in texts]
        offsets = np.concatenate([[0], np.cumsum([len(item) for item in items])]).astype(np.int32)
        return pa.StringArray.from_buffers(len(items), pa.py_buffer(offsets), pa.py_buffer(b"".join(items)))

    def _bytes(self, starts: Array, sizes: Array) -> Any:
        """Return a binary column; a start of -1 is null."""
        np, pa, rows = self.np, self.pa, len(starts)
        offsets = np.empty(rows + 1, np.int32)
        data = np.empty(int(sizes.sum(dtype=np.int64)), np.uint8)
        gather(self.view, starts, sizes, rows, offsets, data)
        present = starts >= 0
        mask = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
        return pa.BinaryArray.from_buffers(pa.binary(), rows, [mask, pa.py_buffer(offsets), pa.py_buffer(data)])

    def _text(self, starts: Array, sizes: Array) -> Any:
        """Return a string column."""
        return as_text(self._bytes(starts, sizes))

    def _named(self, codes: Any, text: Callable[[Any], str]) -> Any:
        """Return a dictionary column with a text for each distinct code."""
        encoded = codes.dictionary_encode()
        names = self._strings([text(code) for code in encoded.dictionary.to_pylist()])
        return self.pa.DictionaryArray.from_arrays(encoded.indices, names)

    def _magic(self) -> Any:
        return self._named(as_numbers(self.fixed["magic"]), lambda code: f"{code & 0xFFFFFFFF:08x}")

    def _hosts(self, name: str) -> Any:
        return self._named(self._bytes(*self._part(name)), decode_host)

    def _message_ids(self) -> Any:
        """Return upper-case hex of store host and physical offset, computed for all hosts of one size together."""
        np, pa = self.np, self.pa
        starts, sizes = self._part("store_host")
        sizes = sizes.astype(np.int64)
        data, pairs = np.frombuffer(self.view, np.uint8), np.frombuffer(_HEX_PAIRS, np.uint16)
        offsets = np.concatenate([[0], np.cumsum(2 * (sizes + 8))]).astype(np.int32)
        text = np.empty(int(offsets[-1]) // 2, np.uint16)
        places = self.fixed["physical_offset"].astype(">i8").view(np.uint8).reshape(self.rows, 8)
        for size in np.unique(sizes):
            rows = np.flatnonzero(sizes == size)
            ids = np.hstack([data[starts[rows, None] + np.arange(size)], places[rows]])
            text[offsets[rows, None] // 2 + np.arange(size + 8)] = pairs[ids]
        return pa.StringArray.from_buffers(self.rows, pa.py_buffer(offsets), pa.py_buffer(text))

    def _properties(self) -> Any:
        """Return every pair except the checksum, as a map."""
        ends, columns = self._pairs()
        name_starts, name_sizes, value_starts, value_sizes = columns
        return self.pa.MapArray.from_arrays(
            as_numbers(ends), self._text(name_starts, name_sizes), self._text(value_starts, value_sizes)
        )

    def _pairs(self) -> tuple[Array, list[Array]]:
        """Return the ends of each row's pairs, and positions and sizes of names and values.  Room is doubled until they fit."""
        np = self.np
        starts, sizes = self._part("properties")
        most = (int(sizes.sum(dtype=np.int64)) + self.rows) // 4 + 1
        ends, room = np.empty(self.rows + 1, np.int32), min(most, 8 * self.rows)
        while True:
            columns = [np.empty(room, kind) for kind in (np.int64, np.int32, np.int64, np.int32)]
            try:
                count = split_pairs(self.view, starts, sizes, self.rows, ends, *columns)
                return self._without_checksum(ends, [column[:count] for column in columns])
            except ValueError:
                if room == most:
                    raise
                room = min(most, 2 * room)

    def _without_checksum(self, ends: Array, columns: list[Array]) -> tuple[Array, list[Array]]:
        """Remove a checksum property that is not the last one of its record."""
        np = self.np
        likely = np.flatnonzero(columns[1] == len(CRC_NAME))
        data, name = np.frombuffer(self.view, np.uint8), np.frombuffer(CRC_NAME, np.uint8)
        gone = likely[(data[columns[0][likely, None] + np.arange(len(name))] == name).all(axis=1)]
        if len(gone) == 0:
            return ends, columns
        return (ends - np.searchsorted(gone, ends)).astype(np.int32), [np.delete(column, gone) for column in columns]
