"""Encode and split message terms in bulk (docs/formats/rabbitmq-terms.md).

The bytes before the body are cached per route.  `terms_cy.decode` reads a term in another form, such as other tags for atoms.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import lru_cache
from struct import Struct

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from storageio import InvalidMessage

from .layout import MC_AFTER_BLOCK, MC_FALSE, MC_START, MC_TRUE, MSG_ID_SIZE
from .terms import FALSE, NONE, TRUE, Atom, Term, encode

if not cython.compiled:
    from storebytes._bytes_cy import Bool, Size, Source, get_i32, is_same, source_of_bytes, take_bytes

FRAGMENT_SIZE = 131064  # RabbitMQ's default frame_max - 8
CLASS_ID = 60
Route = tuple[bytes, str, str, tuple[str, ...]]
Fields = tuple[str, str, tuple[str, ...], bytes, bytes, bytes, bool]  # in the order of `content.Content`
NAME = Atom("basic_message")
_RESOURCE, _EXCHANGE, _CONTENT = Atom("resource"), Atom("exchange"), Atom("content")
_PROTOCOL = Atom("rabbit_framing_amqp_0_9_1")
LIST: Size = 108
NIL: Size = 106
BINARY: Size = 109
HEAD_SIZE: Size = 5  # tag and 32-bit length of a list or a binary


def _bare(term: Term) -> bytes:
    """Encode a term without the version byte."""
    return encode(term)[1:]


START: bytes = b"\x83h\x06" + _bare(NAME) + b"h\x04" + _bare(_RESOURCE)
EXCHANGE: bytes = _bare(_EXCHANGE)
CONTENT_START: bytes = b"h\x06" + _bare(_CONTENT) + _bare(CLASS_ID) + _bare(NONE)
PROTOCOL: bytes = _bare(_PROTOCOL)
TRUE_TERM: bytes = _bare(TRUE)
FALSE_TERM: bytes = _bare(FALSE)
_BINARY = Struct(">cI")  # tag, size
_pack_binary = _BINARY.pack
ID_HEAD: bytes = _pack_binary(b"m", MSG_ID_SIZE)
_LIST_OF_ONE: bytes = b"l" + (1).to_bytes(4, "big")
AFTER_BODY: bytes = b"j" + ID_HEAD  # a list's end, and the head of the id
SMALL_INTEGER: Size = 97
INTEGER: Size = 98
SMALL_BIG: Size = 110
MAP: Size = 116
ATOM: Size = 119  # of RabbitMQ 4, with a length of one byte
CONTAINER_START: bytes = b"\x83" + MC_START
CONTAINER_PROTOCOL: bytes = MC_AFTER_BLOCK
CONTAINER_TRUE: bytes = MC_TRUE
CONTAINER_FALSE: bytes = MC_FALSE
NUMBERS: tuple[bytes, ...] = (b"p", b"ttl", b"ts", b"rts")  # annotations that change nothing when they are numbers
# of the last message written: prefix, property block, both encoded, and the same with the head of a list of one
_last_head: tuple[bytes, bytes, bytes, bytes] = (b"", b"", b"", b"")
_last: tuple[bytes, str, str, tuple[str, ...]] = (b"\0", "", "", ())  # the last route that was read: its bytes and texts
_lasts = array("b")  # whoever reads or replaces one of the two holds it in a critical section


@lru_cache(maxsize=4096)
def _prefix(vhost: str, exchange: str, routing_keys: tuple[str, ...]) -> bytes:
    """Return the bytes before the property block: the same for every message of one route."""
    keys: list[Term] = [key.encode("utf-8", "surrogateescape") for key in routing_keys]
    route = _bare(vhost.encode()), EXCHANGE, _bare(exchange.encode()), _bare(keys)
    return b"".join((START, *route, CONTENT_START))


def _fragments(body: bytes) -> bytes:
    """Encode the body as a list of AMQP frames, last first."""
    starts = range(0, len(body), FRAGMENT_SIZE)
    return _bare([body[start : start + FRAGMENT_SIZE] for start in reversed(starts)])


def encode_parts(
    vhost: str,
    exchange: str,
    routing_keys: tuple[str, ...],
    properties_bin: bytes,
    body: bytes,
    msg_id: bytes,
    persistent: bool,
) -> bytes:
    """Encode the term of a message; the arguments are the fields of `content.Content`."""
    return _encode_after(_prefix(vhost, exchange, routing_keys), properties_bin, body, msg_id, persistent)


@cython.cfunc
def _encode_after(prefix: bytes, properties_bin: bytes, body: bytes, msg_id: bytes, persistent: Bool) -> bytes:
    """Encode a term; the part before the body is reused while prefix and properties stay the same."""
    global _last_head
    size: Size = len(body)
    with cython.critical_section(_lasts):
        last = _last_head
    if last[0] != prefix or last[1] != properties_bin:
        head = b"".join((prefix, _pack_binary(b"m", len(properties_bin)), properties_bin, PROTOCOL))
        last = prefix, properties_bin, head, head + _LIST_OF_ONE
        with cython.critical_section(_lasts):
            _last_head = last
    end = TRUE_TERM if persistent else FALSE_TERM
    if 0 < size <= FRAGMENT_SIZE:
        return b"".join((last[3], _pack_binary(b"m", size), body, AFTER_BODY, msg_id, end))
    return b"".join((last[2], _fragments(body), ID_HEAD, msg_id, end))


def check_msg_id(msg_id: bytes) -> None:
    """Raise `InvalidMessage` for an id of another length."""
    if len(msg_id) != MSG_ID_SIZE:
        raise InvalidMessage(f"a message id has {MSG_ID_SIZE} bytes, not {len(msg_id)}")


def encode_many(contents: Iterable[Fields]) -> list[tuple[bytes, bytes]]:
    """Return (id, term) of each message, as `StoreClient.write_many` takes them."""
    found = []
    for vhost, exchange, routing_keys, properties_bin, body, msg_id, persistent in contents:
        check_msg_id(msg_id)
        prefix = _prefix(vhost, exchange, routing_keys)
        found.append((msg_id, _encode_after(prefix, properties_bin, body, msg_id, persistent)))
    return found


@cython.cfunc
@cython.exceptval(check=False)
def _binary_size(source: Source, at: Size, stop: Size) -> Size:
    """Return the size of the binary whose tag is at `at`, or -1."""
    if stop - at < HEAD_SIZE or source[at] != BINARY:
        return -1
    size: Size = get_i32(source, at + 1)
    return size if 0 <= size <= stop - at - HEAD_SIZE else -1


@cython.cfunc
@cython.exceptval(check=False)
def _has(source: Source, at: Size, stop: Size, wanted: bytes) -> Size:
    """Return where `wanted` ends if it is at `at`, or -1."""
    size: Size = len(wanted)
    if stop - at < size or not is_same(source, at, size, source_of_bytes(wanted), size):
        return -1
    return at + size


@cython.cfunc
@cython.exceptval(check=False)
def _take_list(source: Source, at: Size, stop: Size, found: list[bytes]) -> Size:
    """Collect a list of binaries and return where it ends, or -1."""
    if at < stop and source[at] == NIL:
        return at + 1
    if stop - at < HEAD_SIZE or source[at] != LIST:
        return -1
    count: Size = get_i32(source, at + 1)
    size: Size
    at += HEAD_SIZE
    while count > 0:
        size = _binary_size(source, at, stop)
        if size < 0:
            return -1
        found.append(take_bytes(source, at + HEAD_SIZE, size))
        at += HEAD_SIZE + size
        count -= 1
    return at + 1 if count == 0 and at < stop and source[at] == NIL else -1


@cython.cfunc
def split_at(source: Source, start: Size, stop: Size) -> Fields | None:
    """Return the fields of `content.Content` of the term in start..stop; None for a term in another form.

    Most messages have the route of the one before: comparing its bytes saves decoding its texts.
    """
    global _last
    keys: list[bytes] = []
    fragments: list[bytes] = []
    block_size: Size
    block_at: Size
    is_true: Size
    with cython.critical_section(_lasts):
        last = _last
    at: Size = _has(source, start, stop, last[0])
    if at < 0:
        route = _take_route(source, start, stop, keys)
        if route is None:
            return None
        at = start + len(route[0])
        last = route
        with cython.critical_section(_lasts):
            _last = route
    block_size = _binary_size(source, at, stop)
    block_at = at + HEAD_SIZE
    if block_size < 0:
        return None
    at = _has(source, block_at + block_size, stop, PROTOCOL)
    if at < 0:
        return None
    at = _take_list(source, at, stop, fragments)
    if at < 0:
        return None
    at = _has(source, at, stop, ID_HEAD)
    if at < 0 or stop - at < MSG_ID_SIZE:
        return None
    is_true = _has(source, at + MSG_ID_SIZE, stop, TRUE_TERM)
    if is_true != stop and _has(source, at + MSG_ID_SIZE, stop, FALSE_TERM) != stop:
        return None
    block = take_bytes(source, block_at, block_size)
    return last[1], last[2], last[3], block, _joined(fragments), take_bytes(source, at, MSG_ID_SIZE), is_true == stop


@cython.cfunc
def _joined(fragments: list[bytes]) -> bytes:
    """Return the body of a message, whose fragments are stored last first."""
    if len(fragments) == 1:
        return fragments[0]
    fragments.reverse()
    return b"".join(fragments)


@cython.cfunc
def _take_route(source: Source, start: Size, stop: Size, keys: list[bytes]) -> Route | None:
    """Return the bytes before the property block and their texts, or None."""
    vhost_size: Size
    vhost_at: Size
    exchange_size: Size
    exchange_at: Size
    at: Size = _has(source, start, stop, START)
    if at < 0:
        return None
    vhost_size = _binary_size(source, at, stop)
    vhost_at = at + HEAD_SIZE
    if vhost_size < 0:
        return None
    at = _has(source, vhost_at + vhost_size, stop, EXCHANGE)
    if at < 0:
        return None
    exchange_size = _binary_size(source, at, stop)
    exchange_at = at + HEAD_SIZE
    if exchange_size < 0:
        return None
    at = _take_list(source, exchange_at + exchange_size, stop, keys)
    if at < 0:
        return None
    at = _has(source, at, stop, CONTENT_START)
    if at < 0:
        return None
    vhost = take_bytes(source, vhost_at, vhost_size).decode("utf-8", "replace")
    exchange = take_bytes(source, exchange_at, exchange_size).decode("utf-8", "replace")
    return take_bytes(source, start, at - start), vhost, exchange, _texts(keys)


def split_term(term: bytes) -> Fields | None:
    """Call `split_at` with a whole term."""
    return split_at(source_of_bytes(term), 0, len(term))


def split_container(term: bytes, vhost: str) -> Fields | None:
    """Return the fields of `content.Content` of a message container of AMQP 0-9-1; None for any other form.

    A container does not have the name of its virtual host: it is `vhost`.  A message with annotations that change it at
    delivery has another form.
    """
    source: Source = source_of_bytes(term)
    stop: Size = len(term)
    fragments: list[bytes] = []
    block_at: Size
    block_size: Size
    at: Size = _has(source, 0, stop, CONTAINER_START)
    if at < 0:
        return None
    block_size = _binary_size(source, at, stop)
    block_at = at + HEAD_SIZE
    if block_size < 0:
        return None
    at = _has(source, block_at + block_size, stop, CONTAINER_PROTOCOL)
    if at < 0:
        return None
    at = _take_list(source, at, stop, fragments)
    if at < 0:
        return None
    annotations = _annotations(source, at, stop)
    if annotations is None:
        return None
    exchange, keys, msg_id, is_durable = annotations
    return vhost, exchange, keys, take_bytes(source, block_at, block_size), _joined(fragments), msg_id, is_durable


@cython.cfunc
def _annotations(source: Source, at: Size, stop: Size) -> tuple[str, tuple[str, ...], bytes, bool] | None:
    """Return exchange, routing keys, id and durability; None without one of the first three, or with an unknown annotation."""
    exchange: bytes | None = None
    keys: list[bytes] | None = None
    msg_id: bytes | None = None
    is_durable: Bool = True
    size: Size
    name_size: Size
    left: Size
    if stop - at < HEAD_SIZE or source[at] != MAP:
        return None
    left = get_i32(source, at + 1)
    at += HEAD_SIZE
    while left > 0:
        left -= 1
        if stop - at < 2 or source[at] != ATOM:
            return None
        name_size = source[at + 1]
        at += 2
        if name_size > stop - at:
            return None
        name = take_bytes(source, at, name_size)
        at += name_size
        if name == b"rk":
            keys = []
            at = _take_list(source, at, stop, keys)
        elif name == b"x" or name == b"id":
            size = _binary_size(source, at, stop)
            if size < 0:
                return None
            found = take_bytes(source, at + HEAD_SIZE, size)
            at += HEAD_SIZE + size
            if name == b"x":
                exchange = found
            else:
                msg_id = found
        elif name == b"d":
            is_durable = _has(source, at, stop, CONTAINER_TRUE) >= 0
            at = _has(source, at, stop, CONTAINER_TRUE if is_durable else CONTAINER_FALSE)
        elif name in NUMBERS:
            at = _after_number(source, at, stop)
        else:
            return None
        if at < 0:
            return None
    if left < 0 or at != stop or exchange is None or keys is None or msg_id is None or len(msg_id) != MSG_ID_SIZE:
        return None
    return exchange.decode("utf-8", "replace"), _texts(keys), msg_id, is_durable


@cython.cfunc
@cython.exceptval(check=False)
def _after_number(source: Source, at: Size, stop: Size) -> Size:
    """Return where the integer at `at` ends, or -1."""
    size: Size = 0
    if stop - at < 2:
        return -1
    if source[at] == SMALL_INTEGER:
        size = 2
    elif source[at] == INTEGER:
        size = 5
    elif source[at] == SMALL_BIG:
        size = 3 + source[at + 1]
    return at + size if 0 < size <= stop - at else -1


def _texts(keys: list[bytes]) -> tuple[str, ...]:
    if len(keys) == 1:
        return (keys[0].decode("utf-8", "surrogateescape"),)
    return tuple([key.decode("utf-8", "surrogateescape") for key in keys])
