"""Read rows of `msg_store_index.ets` in bulk (docs/formats/rabbitmq-clean-stop.md); `terms_cy.decode` reads unusual ones."""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from .layout import MSG_ID_SIZE
from .terms import Atom, encode

if not cython.compiled:
    from storebytes._bytes_cy import Bool, Size, Source, get_i32, is_same, source_of_bytes, take_bytes

HEAD_SIZE: Size = 8  # length:32 "bWLA"
MAGIC: bytes = b"bWLA"
SMALL_INTEGER: Size = 97
INTEGER: Size = 98
_NUMBERS = 0, 0, 0, 0  # references, file, offset, total size
_EMPTY: bytes = encode((Atom("msg_location"), bytes(MSG_ID_SIZE), *_NUMBERS))
START: bytes = _EMPTY[: -MSG_ID_SIZE - 2 * len(_NUMBERS)]  # up to the id
NUMBER_COUNT: Size = len(_NUMBERS)
LONGEST: Size = len(START) + MSG_ID_SIZE + 5 * len(_NUMBERS)


def take_locations(data: bytes, at: Size, rows: list[tuple[bytes, int, int, int, int]]) -> Size:
    """Collect (id, references, file, offset, total size) and return where the first chunk of another form begins."""
    source: Source = source_of_bytes(data)
    stop: Size = len(data)
    length: Size
    while stop - at >= HEAD_SIZE:
        length = get_i32(source, at)
        if not 0 < length <= min(LONGEST, stop - at - HEAD_SIZE):
            break
        if not is_same(source, at + 4, 4, source_of_bytes(MAGIC), 4):
            break
        if not _take_row(source, at + HEAD_SIZE, length, rows):
            break
        at += HEAD_SIZE + length
    return at


@cython.cfunc
@cython.exceptval(-1)
def _take_row(source: Source, at: Size, length: Size, rows: list[tuple[bytes, int, int, int, int]]) -> Bool:
    """Collect one term of exactly `length` bytes; return whether it has the usual form."""
    stop: Size = at + length
    start_size: Size = len(START)
    id_at: Size = at + start_size
    if length < start_size + MSG_ID_SIZE or not is_same(source, at, start_size, source_of_bytes(START), start_size):
        return False
    at = id_at + MSG_ID_SIZE
    numbers: list[int] = []
    while len(numbers) < NUMBER_COUNT:
        if stop - at >= 2 and source[at] == SMALL_INTEGER:
            numbers.append(source[at + 1])
            at += 2
        elif stop - at >= 5 and source[at] == INTEGER:
            numbers.append(get_i32(source, at + 1))
            at += 5
        else:
            return False
    if at != stop:
        return False
    rows.append((take_bytes(source, id_at, MSG_ID_SIZE), numbers[0], numbers[1], numbers[2], numbers[3]))
    return True
