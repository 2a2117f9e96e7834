"""The loop over the records of an `N.rdq` file (docs/formats/rabbitmq-rdq.md#scan)."""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from .layout import MSG_ID_SIZE, RECORD_END_MARK, RECORD_MIN, RECORD_OVERHEAD, RECORD_SIZE_BYTES

if not cython.compiled:
    from storebytes._bytes_cy import I64, Size, Source, get_i64, source_of, take_bytes

END_MARK: Size = RECORD_END_MARK
ID_AT: Size = RECORD_SIZE_BYTES
ID_SIZE: Size = MSG_ID_SIZE
LEAST: Size = RECORD_MIN
OVERHEAD: Size = RECORD_OVERHEAD


def frame(view: memoryview, rows: list[tuple[bytes, int, int]], unmarked: list[int]) -> tuple[int, int]:
    """Collect (id, offset, total size) of every whole record, and the offset of each wrong end mark.

    Return where the last whole record ends, and where no further record could be framed.
    """
    source: Source = source_of(view)
    stop: Size = len(view)
    at: Size = 0
    valid_end: Size = 0
    size: I64
    total: Size
    while stop - at >= LEAST:
        size = get_i64(source, at)
        if size < ID_SIZE or size > stop - at - OVERHEAD:
            break
        total = size + OVERHEAD
        if source[at + total - 1] == END_MARK:
            rows.append((take_bytes(source, at + ID_AT, ID_SIZE), at, total))
            valid_end = at + total
        else:
            unmarked.append(at + total - 1)
        at += total
    return valid_end, at
