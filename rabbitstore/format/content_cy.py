"""Encode and split message terms in bulk (docs/formats/rabbitmq-terms.md).

The bytes before the body are cached per route.  `terms_cy.decode` reads a term in another form, such as other tags for atoms.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate
from struct import Struct

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from storageio import InvalidMessage

from .layout import MC_AFTER_BLOCK, MC_FALSE, MC_START, MC_TRUE, MSG_ID_SIZE
from .terms import FALSE, NONE, TRUE, Atom, Term, encode

if not cython.compiled:
    from storebytes._bytes_cy import (
        Bool, I64s, Size, Source, get_i32, i64s_of, is_same, is_same_at, source_of_bytes, take_bytes,
    )  # fmt: skip

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
WORDS: tuple[bytes, ...] = (  # the fixed parts of a term; the last four name annotations that are numbers and change nothing
    START, EXCHANGE, CONTENT_START, PROTOCOL, ID_HEAD, TRUE_TERM, FALSE_TERM,
    b"\x83" + MC_START, MC_AFTER_BLOCK, MC_TRUE, MC_FALSE, b"w\1x", b"w\2rk", b"w\2id", b"w\1d",
    b"w\1p", b"w\3ttl", b"w\2ts", b"w\3rts",
)  # fmt: skip
IN_START: Size = 0
IN_EXCHANGE: Size = 1
IN_CONTENT: Size = 2
IN_PROTOCOL: Size = 3
IN_ID: Size = 4
IN_TRUE: Size = 5
IN_FALSE: Size = 6
MC_HEAD: Size = 7
MC_PROTOCOL: Size = 8
MC_YES: Size = 9
MC_NO: Size = 10
MC_EXCHANGE: Size = 11
MC_KEYS: Size = 12
MC_ID: Size = 13
MC_DURABLE: Size = 14
WORD_COUNT: Size = len(WORDS)
_joined_words: bytes = b"".join(WORDS)
_words: Source = source_of_bytes(_joined_words)
_ends_held = memoryview(array("q", accumulate(map(len, WORDS), initial=0)))
_ends: I64s = i64s_of(_ends_held)
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
@cython.nogil
@cython.exceptval(check=False)
def _after_word(source: Source, at: Size, stop: Size, word: Size) -> Size:
    """Return where a word of `WORDS` ends if it is at `at`, or -1; this and the following take -1 as `at`, too."""
    size: Size = _ends[word + 1] - _ends[word]
    if at < 0 or stop - at < size or not is_same_at(source, at, size, _words, _ends[word]):
        return -1
    return at + size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _after_binary(source: Source, at: Size, stop: Size) -> Size:
    """Return where the binary whose tag is at `at` ends, or -1."""
    size: Size
    if at < 0 or stop - at < HEAD_SIZE or source[at] != BINARY:
        return -1
    size = get_i32(source, at + 1)
    return at + HEAD_SIZE + size if 0 <= size <= stop - at - HEAD_SIZE else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _after_list(source: Source, at: Size, stop: Size) -> Size:
    """Return where a list of binaries ends, or -1."""
    count: Size
    if at < 0 or at >= stop:
        return -1
    if source[at] == NIL:
        return at + 1
    if stop - at < HEAD_SIZE or source[at] != LIST:
        return -1
    count = get_i32(source, at + 1)
    at += HEAD_SIZE
    while count > 0 and at >= 0:
        at = _after_binary(source, at, stop)
        count -= 1
    return at + 1 if count == 0 and 0 <= at < stop and source[at] == NIL else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _after_number(source: Source, at: Size, stop: Size) -> Size:
    """Return where the integer at `at` ends, or -1."""
    size: Size = 0
    if at < 0 or stop - at < 2:
        return -1
    if source[at] == SMALL_INTEGER:
        size = 2
    elif source[at] == INTEGER:
        size = 5
    elif source[at] == SMALL_BIG:
        size = 3 + source[at + 1]
    return at + size if 0 < size <= stop - at else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _term_id(source: Source, start: Size, stop: Size) -> Size:
    """Return where the id in the `basic_message` that fills start..stop is; -1 for a term in another form."""
    at: Size = _after_binary(source, _after_word(source, start, stop, IN_START), stop)
    at = _after_binary(source, _after_word(source, at, stop, IN_EXCHANGE), stop)
    at = _after_word(source, _after_list(source, at, stop), stop, IN_CONTENT)
    at = _after_word(source, _after_binary(source, at, stop), stop, IN_PROTOCOL)
    at = _after_word(source, _after_list(source, at, stop), stop, IN_ID)
    if at < 0 or stop - at < MSG_ID_SIZE:
        return -1
    end: Size = at + MSG_ID_SIZE
    is_whole: Bool = _after_word(source, end, stop, IN_TRUE) == stop or _after_word(source, end, stop, IN_FALSE) == stop
    return at if is_whole else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _container_id(source: Source, start: Size, stop: Size) -> Size:
    """Return where the id in the container of AMQP 0-9-1 that fills start..stop is; -1 for a term in another form.

    Exchange, routing keys and id must be there; any other annotation must be known.
    """
    at: Size = _after_binary(source, _after_word(source, start, stop, MC_HEAD), stop)
    at = _after_list(source, _after_word(source, at, stop, MC_PROTOCOL), stop)
    found: Size = -1
    has_exchange: Bool = False
    has_keys: Bool = False
    left: Size
    word: Size
    value: Size
    if at < 0 or stop - at < HEAD_SIZE or source[at] != MAP:
        return -1
    left = get_i32(source, at + 1)
    at += HEAD_SIZE
    while left > 0 and at >= 0:
        left -= 1
        word = _annotation(source, at, stop)
        if word < 0:
            return -1
        value = _after_word(source, at, stop, word)
        at = _after_value(source, value, stop, word)
        if word == MC_ID:
            found = value + HEAD_SIZE
            if at - found != MSG_ID_SIZE:
                return -1
        elif word == MC_EXCHANGE:
            has_exchange = True
        elif word == MC_KEYS:
            has_keys = True
    return found if left == 0 and at == stop and has_exchange and has_keys else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _annotation(source: Source, at: Size, stop: Size) -> Size:
    """Return which word of `WORDS` is the name of the annotation at `at`; -1 for an unknown one."""
    word: Size = MC_EXCHANGE
    while word < WORD_COUNT and _after_word(source, at, stop, word) < 0:
        word += 1
    return word if word < WORD_COUNT else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _after_value(source: Source, at: Size, stop: Size, word: Size) -> Size:
    """Return where the value of an annotation of this name ends, or -1."""
    end: Size
    if word == MC_KEYS:
        return _after_list(source, at, stop)
    if word == MC_EXCHANGE or word == MC_ID:
        return _after_binary(source, at, stop)
    if word == MC_DURABLE:
        end = _after_word(source, at, stop, MC_YES)
        return end if end >= 0 else _after_word(source, at, stop, MC_NO)
    return _after_number(source, at, stop)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def id_of_message(source: Source, start: Size, stop: Size) -> Size:
    """Return where the id of the message that fills start..stop is; -1 for a term in a form that only `decode` reads."""
    at: Size = _container_id(source, start, stop)
    return at if at >= 0 else _term_id(source, start, stop)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_container(source: Source, start: Size, stop: Size) -> Bool:
    """Return whether a term begins as a container of AMQP 0-9-1."""
    return _after_word(source, start, stop, MC_HEAD) >= 0


@cython.cfunc
def _take_binary(source: Source, at: Size) -> bytes:
    """Return the binary whose tag is at `at`: the caller has checked the term, as for what follows."""
    return take_bytes(source, at + HEAD_SIZE, get_i32(source, at + 1))


@cython.cfunc
def _take_list(source: Source, at: Size) -> list[bytes]:
    """Return a list of binaries."""
    found: list[bytes] = []
    count: Size = get_i32(source, at + 1) if source[at] == LIST else 0
    at += HEAD_SIZE
    while count > 0:
        found.append(_take_binary(source, at))
        at += HEAD_SIZE + get_i32(source, at + 1)
        count -= 1
    return found


@cython.cfunc
def split_at(source: Source, start: Size, stop: Size) -> Fields | None:
    """Return the fields of `content.Content` of the term in start..stop; None for a term in another form.

    Most messages have the route of the one before: comparing its bytes saves decoding its texts.
    """
    global _last
    id_at: Size = _term_id(source, start, stop)
    if id_at < 0:
        return None
    size: Size
    with cython.critical_section(_lasts):
        last = _last
    size = len(last[0])
    if stop - start < size or not is_same(source, start, size, source_of_bytes(last[0]), size):
        last = _take_route(source, start, stop)
        with cython.critical_section(_lasts):
            _last = last
        size = len(last[0])
    block = _take_binary(source, start + size)
    body = _take_list(source, start + size + HEAD_SIZE + len(block) + len(PROTOCOL))
    is_true: Bool = _after_word(source, id_at + MSG_ID_SIZE, stop, IN_TRUE) == stop
    return last[1], last[2], last[3], block, _joined(body), take_bytes(source, id_at, MSG_ID_SIZE), is_true


@cython.cfunc
def _joined(fragments: list[bytes]) -> bytes:
    """Return the body of a message, whose fragments are stored last first."""
    if len(fragments) == 1:
        return fragments[0]
    fragments.reverse()
    return b"".join(fragments)


@cython.cfunc
def _take_route(source: Source, start: Size, stop: Size) -> Route:
    """Return the bytes before the property block and their texts."""
    vhost_at: Size = start + len(START)
    exchange_at: Size = _after_word(source, _after_binary(source, vhost_at, stop), stop, IN_EXCHANGE)
    keys_at: Size = _after_binary(source, exchange_at, stop)
    at: Size = _after_word(source, _after_list(source, keys_at, stop), stop, IN_CONTENT)
    vhost = _take_binary(source, vhost_at).decode("utf-8", "replace")
    exchange = _take_binary(source, exchange_at).decode("utf-8", "replace")
    return take_bytes(source, start, at - start), vhost, exchange, _texts(_take_list(source, keys_at))


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
    id_at: Size = _container_id(source, 0, stop)
    if id_at < 0:
        return None
    at: Size = _after_word(source, 0, stop, MC_HEAD)
    block = _take_binary(source, at)
    at = _after_word(source, _after_binary(source, at, stop), stop, MC_PROTOCOL)
    body = _take_list(source, at)
    exchange, keys, is_durable = _annotations(source, _after_list(source, at, stop), stop)
    return vhost, exchange, keys, block, _joined(body), take_bytes(source, id_at, MSG_ID_SIZE), is_durable


@cython.cfunc
def _annotations(source: Source, at: Size, stop: Size) -> tuple[str, tuple[str, ...], bool]:
    """Return exchange, routing keys and durability of a container that was checked."""
    exchange: bytes = b""
    keys: list[bytes] = []
    is_durable: Bool = True
    word: Size
    at += HEAD_SIZE
    while at < stop:
        word = _annotation(source, at, stop)
        at = _after_word(source, at, stop, word)
        if word == MC_KEYS:
            keys = _take_list(source, at)
        elif word == MC_EXCHANGE:
            exchange = _take_binary(source, at)
        elif word == MC_DURABLE:
            is_durable = _after_word(source, at, stop, MC_YES) >= 0
        at = _after_value(source, at, stop, word)
    return exchange.decode("utf-8", "replace"), _texts(keys), is_durable


def _texts(keys: list[bytes]) -> tuple[str, ...]:
    if len(keys) == 1:
        return (keys[0].decode("utf-8", "surrogateescape"),)
    return tuple([key.decode("utf-8", "surrogateescape") for key in keys])
