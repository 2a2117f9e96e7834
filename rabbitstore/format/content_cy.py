"""Encode and split message terms in bulk (docs/formats/rabbitmq-terms.md).

The bytes before the body are cached per route.  `terms_cy.decode` reads a term in another form, such as other tags for atoms.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from itertools import accumulate
from struct import Struct
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from storageio import InvalidMessage

from .layout import MC_AFTER_BLOCK, MC_FALSE, MC_START, MC_TRUE, MSG_ID_SIZE
from .terms import FALSE, NONE, TRUE, Atom, Term, encode

if not cython.compiled:
    from storebytes._bytes_cy import (
        Bool, I64, I64s, Size, Source, get_i32, i64s_of, is_same, is_same_at, source_of_bytes, take_bytes,
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
VERSION: Size = 131
ATOM: Size = 119
NAME_MAX: Size = 3
WORDS: tuple[bytes, ...] = (  # the fixed parts of a term
    START, EXCHANGE, CONTENT_START, PROTOCOL, ID_HEAD, TRUE_TERM, FALSE_TERM, MC_START, MC_AFTER_BLOCK, MC_TRUE, MC_FALSE,
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
# annotations by the bytes of their names; the last two are numbers that change nothing
MC_EXCHANGE: Size = 0x78  # x
MC_KEYS: Size = 0x726B  # rk
MC_ID: Size = 0x6964  # id
MC_DURABLE: Size = 0x64  # d
MC_PRIORITY: Size = 0x70  # p
MC_TTL: Size = 0x74746C  # ttl
MC_TIME: Size = 0x7473  # ts
MC_RECEIVED: Size = 0x727473  # rts
OTHER_NUMBER: Size = -2
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
    """Encode the term of a message; the arguments are the fields of `content.Content`.

    The part before the body is reused while route and properties stay the same.
    """
    global _last_head
    prefix = _prefix(vhost, exchange, routing_keys)
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


class ContentParts:
    """Where the parts of a message's term are; `locate` sets them.

    `vhost_at`, `exchange_at` and `block_at` are of binaries, `keys_at` and `body_at` of lists; `id_at` is of the id's bytes.
    `value` is the last number that was read; `priority` and `ttl_ms` of a container are -1 if it has none.
    """

    __slots__ = (
        "block_at", "body_at", "exchange_at", "id_at", "is_container", "is_durable", "keys_at", "keys_end", "priority", "start",
        "ttl_ms", "value", "vhost_at",
    )  # fmt: skip

    def __init__(self) -> None:
        """Know no place yet."""
        self.start = self.vhost_at = self.exchange_at = self.keys_at = self.keys_end = self.block_at = self.body_at = 0
        self.id_at = self.value = self.priority = self.ttl_ms = 0
        self.is_container = self.is_durable = False


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def locate(parts: ContentParts, source: Source, start: Size, stop: Size) -> Bool:
    """Find the parts of the message that fills start..stop; return false for a term in a form that only `decode` reads."""
    return _locate_container(parts, source, start, stop) or _locate_term(parts, source, start, stop)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _locate_term(parts: ContentParts, source: Source, start: Size, stop: Size) -> Bool:
    """Find the parts of a `basic_message`."""
    parts.start = start
    parts.is_container = False
    parts.vhost_at = _after_word(source, start, stop, IN_START)
    parts.exchange_at = _after_word(source, _after_binary(source, parts.vhost_at, stop), stop, IN_EXCHANGE)
    parts.keys_at = _after_binary(source, parts.exchange_at, stop)
    parts.keys_end = _after_list(source, parts.keys_at, stop)
    parts.block_at = _after_word(source, parts.keys_end, stop, IN_CONTENT)
    parts.body_at = _after_word(source, _after_binary(source, parts.block_at, stop), stop, IN_PROTOCOL)
    parts.id_at = _after_word(source, _after_list(source, parts.body_at, stop), stop, IN_ID)
    if parts.id_at < 0 or stop - parts.id_at < MSG_ID_SIZE:
        return False
    end: Size = parts.id_at + MSG_ID_SIZE
    parts.is_durable = _after_word(source, end, stop, IN_TRUE) == stop
    return parts.is_durable or _after_word(source, end, stop, IN_FALSE) == stop


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _locate_container(parts: ContentParts, source: Source, start: Size, stop: Size) -> Bool:
    """Find the parts of a container of AMQP 0-9-1, which must have an id."""
    parts.start = start
    if start >= stop or source[start] != VERSION:
        return False
    return container_end(parts, source, start + 1, stop) == stop and parts.id_at >= 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def container_end(parts: ContentParts, source: Source, at: Size, stop: Size) -> Size:
    """Find the parts of the container of AMQP 0-9-1 at `at`, behind the version byte of a term; return where it ends, or -1.

    Exchange and routing keys must be there; a message with annotations that change it at delivery has another form.
    """
    parts.is_container = parts.is_durable = True
    parts.exchange_at = parts.keys_at = parts.id_at = parts.priority = parts.ttl_ms = -1
    parts.block_at = _after_word(source, at, stop, MC_HEAD)
    parts.body_at = _after_word(source, _after_binary(source, parts.block_at, stop), stop, MC_PROTOCOL)
    at = _after_list(source, parts.body_at, stop)
    left: Size
    name: Size
    value: Size
    if at < 0 or stop - at < HEAD_SIZE or source[at] != MAP:
        return -1
    left = get_i32(source, at + 1)
    at += HEAD_SIZE
    while left > 0 and at >= 0:
        left -= 1
        name = _name(source, at, stop)
        if name < 0:
            return -1
        value = at + 2 + source[at + 1]
        if name == MC_KEYS:
            at = parts.keys_end = _after_list(source, value, stop)
            parts.keys_at = value
        elif name == MC_EXCHANGE:
            at = _after_binary(source, value, stop)
            parts.exchange_at = value
        elif name == MC_ID:
            at = _after_binary(source, value, stop)
            parts.id_at = value + HEAD_SIZE
            if at - parts.id_at != MSG_ID_SIZE:
                return -1
        elif name == MC_DURABLE:
            at = _after_word(source, value, stop, MC_YES)
            parts.is_durable = at >= 0
            if at < 0:
                at = _after_word(source, value, stop, MC_NO)
        elif name == MC_PRIORITY or name == MC_TTL or name == MC_TIME or name == MC_RECEIVED:
            at = after_number(parts, source, value, stop)
            if name == MC_PRIORITY:
                parts.priority = parts.value
            elif name == MC_TTL:
                parts.ttl_ms = parts.value
        else:
            return -1
    return at if left == 0 and parts.exchange_at >= 0 and parts.keys_at >= 0 else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _name(source: Source, at: Size, stop: Size) -> Size:
    """Return the bytes of the short atom at `at` as a number, or -1."""
    name: Size = 0
    index: Size = 0
    size: Size
    if stop - at < 2 or source[at] != ATOM:
        return -1
    size = source[at + 1]
    if size > NAME_MAX or size > stop - at - 2:
        return -1
    while index < size:
        name = (name << 8) | source[at + 2 + index]
        index += 1
    return name


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def after_number(parts: ContentParts, source: Source, at: Size, stop: Size) -> Size:
    """Return where the integer at `at` ends, or -1; `value` is the number, or OTHER_NUMBER for a negative or greater one."""
    size: Size = 0
    left: Size
    value: I64 = 0
    if at < 0 or stop - at < 2:
        return -1
    parts.value = OTHER_NUMBER
    if source[at] == SMALL_INTEGER:
        parts.value = source[at + 1]
        return at + 2
    if source[at] == INTEGER:
        if stop - at < 5:
            return -1
        value = get_i32(source, at + 1)
        parts.value = value if value >= 0 else OTHER_NUMBER
        return at + 5
    size = source[at + 1]
    if source[at] != SMALL_BIG or size + 3 > stop - at:
        return -1
    if size < 8 and not source[at + 2]:
        left = size
        while left > 0:
            left -= 1
            value = (value << 8) | source[at + 3 + left]
        parts.value = value
    return at + 3 + size


@cython.cfunc
def take_binary(source: Source, at: Size) -> bytes:
    """Return the binary whose tag is at `at`: the caller has located it, as what the following take."""
    return take_bytes(source, at + HEAD_SIZE, get_i32(source, at + 1))


@cython.cfunc
def _take_list(source: Source, at: Size) -> list[bytes]:
    """Return a list of binaries."""
    found: list[bytes] = []
    count: Size = get_i32(source, at + 1) if source[at] == LIST else 0
    at += HEAD_SIZE
    while count > 0:
        found.append(take_binary(source, at))
        at += HEAD_SIZE + get_i32(source, at + 1)
        count -= 1
    return found


@cython.cfunc
def take_keys(source: Source, at: Size) -> Any:
    """Return the routing keys of a list."""
    return _texts(_take_list(source, at))


@cython.cfunc
def take_body(source: Source, at: Size) -> bytes:
    """Return the body of a message, whose fragments are stored last first."""
    fragments = _take_list(source, at)
    if len(fragments) == 1:
        return fragments[0]
    fragments.reverse()
    return b"".join(fragments)


def split_term(term: bytes) -> Fields | None:
    """Return the fields of `content.Content` of a `basic_message`; None for a term in another form.

    Most messages have the route of the one before: comparing its bytes saves decoding its texts.
    """
    global _last
    source: Source = source_of_bytes(term)
    parts = ContentParts()
    size: Size
    if not _locate_term(parts, source, 0, len(term)):
        return None
    with cython.critical_section(_lasts):
        last = _last
    size = len(last[0])
    if parts.block_at != size or not is_same(source, 0, size, source_of_bytes(last[0]), size):
        vhost = take_binary(source, parts.vhost_at).decode("utf-8", "replace")
        exchange = take_binary(source, parts.exchange_at).decode("utf-8", "replace")
        last = term[: parts.block_at], vhost, exchange, take_keys(source, parts.keys_at)
        with cython.critical_section(_lasts):
            _last = last
    block = take_binary(source, parts.block_at)
    body = take_body(source, parts.body_at)
    return last[1], last[2], last[3], block, body, take_bytes(source, parts.id_at, MSG_ID_SIZE), parts.is_durable


def split_container(term: bytes, vhost: str) -> Fields | None:
    """Return the fields of `content.Content` of a message container of AMQP 0-9-1; None for any other form.

    A container does not have the name of its virtual host: it is `vhost`.
    """
    source: Source = source_of_bytes(term)
    parts = ContentParts()
    if not _locate_container(parts, source, 0, len(term)):
        return None
    exchange = take_binary(source, parts.exchange_at).decode("utf-8", "replace")
    block = take_binary(source, parts.block_at)
    body = take_body(source, parts.body_at)
    msg_id = take_bytes(source, parts.id_at, MSG_ID_SIZE)
    return vhost, exchange, take_keys(source, parts.keys_at), block, body, msg_id, parts.is_durable


def _texts(keys: list[bytes]) -> tuple[str, ...]:
    if len(keys) == 1:
        return (keys[0].decode("utf-8", "surrogateescape"),)
    return tuple([key.decode("utf-8", "surrogateescape") for key in keys])
