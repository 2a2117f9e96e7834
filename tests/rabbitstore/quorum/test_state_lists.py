"""The lists of messages in a state, read without terms, are what the decoder of terms gives."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rabbitstore.format.terms import UNDEFINED, Atom, Improper, Opaque, encode
from rabbitstore.format.terms_cy import decode
from rabbitstore.quorum.command_cy import INDEX_BITS, SIZE_MAX
from rabbitstore.quorum.state import _list, read_state
from rabbitstore.quorum.state_lists import split_state
from storageio import StoreCorrupt, UnsupportedFormat

VERSION = b"\x83"
INDEXES = (0, 255, 256, (1 << 31) - 1, 1 << 31, (1 << 43) + 5)
SIZES = (0, 1, 255, 256, 70_000, SIZE_MAX - 1, SIZE_MAX, 1 << 30)


def pair(index: int, tail: int) -> bytes:
    """Encode `[Index | Tail]`, a list that does not end with the empty one."""
    return b"l\0\0\0\1" + encode(index)[1:] + (tail if isinstance(tail, bytes) else encode(tail)[1:])


def listed(elements: list[bytes]) -> bytes:
    return b"l" + len(elements).to_bytes(4, "big") + b"".join(elements) + b"j" if elements else b"j"


def state(rear: list[bytes], front: list[bytes]) -> memoryview:
    """Encode a record of four fields, of which the third is a queue."""
    return memoryview(VERSION + b"h\4" + encode(Atom("rabbit_fifo"))[1:] + encode({b"a": [1, 2]})[1:]
                      + b"h\2" + listed(rear) + listed(front) + encode((7, b"end"))[1:])  # fmt: skip


def messages(data: memoryview) -> list[Any]:
    term, lists = split_state(data, "f", 0)
    assert (term[0], term[1], term[3]) == ("rabbit_fifo", {b"a": [1, 2]}, (7, b"end"))
    return [(one.index, one.size, one.expiry_ms) for one in _list(term[2], lists)]


def expected(data: memoryview) -> list[Any]:
    """Return the same by the decoder of terms, by the format page."""
    rear, front = decode(bytes(data), improper=True)[2]
    found = []
    for one in [*front, *reversed(rear)]:
        if isinstance(one, Improper):
            items, tail = one
            found.append((items[0], items[1], tail) if len(items) == 2 else (items[0], tail, None))
        else:
            found.append((one & (1 << INDEX_BITS) - 1, one >> INDEX_BITS, None))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_lists_split_from_a_state_equal_the_decoded_terms(seed: int) -> None:
    """Runs of one form, and forms in turn: pairs of each width, numbers with both, sizes too large for a column, expiry."""
    chance = random.Random(seed)
    forms = [
        lambda: pair(chance.choice(INDEXES), chance.choice(SIZES)),
        lambda: pair(chance.randrange(1 << 31), chance.randrange(256)),
        lambda: pair(chance.randrange(1 << 31), chance.randrange(256, 70_000)),
        lambda: encode(chance.randrange(1 << 62))[1:],
        lambda: b"l\0\0\0\2" + encode(5)[1:] + encode(6)[1:] + encode(chance.randrange(1 << 44))[1:],
    ]
    parts = []
    for _ in range(2):
        elements = []
        for _ in range(chance.randrange(30)):
            form = chance.choice(forms)
            elements += [form() for _ in range(chance.choice([1, 1, 2, 40, 5000 if seed == 0 else 100]))]
        parts.append(elements)
    data = state(*parts)
    assert messages(data) == expected(data)


def test_a_list_of_messages_is_not_a_term() -> None:
    """The term has its number, and a column its indexes and sizes."""
    term, lists = split_state(state([pair(300, 7), pair(301, 8)], [pair(5, 6)]), "f", 0)
    assert term[2] == (b"\0\0\0\0", b"\0\0\0\1")
    rows = [[(number & (1 << INDEX_BITS) - 1, number >> INDEX_BITS) for number in part] for (part,) in lists]
    assert rows == [[(300, 7), (301, 8)], [(5, 6)]]


@pytest.mark.parametrize(
    "other",
    [
        b"Z\0\3" + b"d\0\1a" + bytes(4) + bytes(12),  # NEWER_REFERENCE_EXT of three words
        b"r\0\2" + b"d\0\1a" + bytes(1) + bytes(8),
        b"X" + b"d\0\1a" + bytes(12),  # NEW_PID_EXT
        b"g" + b"s\1a" + bytes(9),
        b"F" + bytes(8),
        b"n\3\0\1\2\3",
        b"o\0\0\0\2\1\1\2",
        b"k\0\2ab",
        b"t\0\0\0\2a\1a\2a\3j",
        b"i\0\0\0\1a\1",
        b"w\2\xc3\xa4",
        b"v\0\2\xc3\xa4",
    ],
)
def test_terms_before_the_lists_are_skipped(other: bytes) -> None:
    """Each form of a term by the external term format, as the second field of the record."""
    record = VERSION + b"h\4" + encode(Atom("rabbit_fifo"))[1:] + other + b"h\2" + listed([]) + listed([pair(5, 6)]) + b"j"
    term, lists = split_state(memoryview(record), "f", 0)
    assert term[2] == ([], b"\0\0\0\0") and len(lists) == 1 and term[3] == []


PROCESS = Opaque(88, b"w\x01a" + bytes(12))


def fifo(**changed: Any) -> tuple[Any, ...]:
    """Return a record of a queue without messages, by the table of the format page."""
    handler, length, size, limit, ttl = (changed.get(name, UNDEFINED) for name in ("handler", "length", "size", "limit", "ttl"))
    settings = (Atom("cfg"), Atom("q"), UNDEFINED, UNDEFINED, handler, UNDEFINED,
                changed.get("overflow", Atom("drop_head")), length, size, changed.get("strategy", Atom("competing")), limit,
                UNDEFINED, ttl)  # fmt: skip
    fields: list[object] = [Atom("rabbit_fifo"), settings, (Atom("rabbit_fifo_q"), ([], []), ([], []), 0, 0), 1]
    fields += [changed.get("returns", (0, [], [])), 0, {PROCESS: (Atom("enqueuer"), 7)}, 0, 0]
    fields += [changed.get("consumers", {}), changed.get("service", (Atom("queue"), [], [], 0))]
    fields += [changed.get("dead", (Atom("rabbit_fifo_dlx"), UNDEFINED, (0, [], []), 0)), 70, 0, changed.get("waiting", [])]
    fields += [0, 0, 0]
    fields[2] = changed.get("messages", fields[2])
    return tuple(fields)


def read(version: int = 5, **changed: Any) -> Any:
    return read_state(fifo(**changed), [], version, "f")


def consumer(held: dict[Any, Any], mode: Atom | tuple[Atom, int], status: str = "up", priority: int = 3) -> tuple[Any, ...]:
    config = (Atom("consumer_cfg"), {}, PROCESS, b"tag", mode, Atom("auto"), priority)
    return (Atom("consumer"), config, Atom(status), 9, held, 4, 6)


def test_the_settings_of_a_state() -> None:
    """Each in its place."""
    found = read(handler=Atom("at_least_once"), length=5, size=6, limit=7, ttl=8, strategy=Atom("single_active")).settings
    assert (found.max_length, found.max_bytes, found.delivery_limit, found.msg_ttl) == (5, 6, 7, 8)
    assert (found.drops_head, found.is_single_active, found.dead_letters) == (True, True, "at_least_once")
    found = read(overflow=Atom("reject_publish"), limit=-1).settings
    assert (found.drops_head, found.is_single_active, found.delivery_limit) == (False, False, None)


def message(index: int, **header: Any) -> Improper:
    return Improper((index,), {Atom(name): value for name, value in {"size": 10, **header}.items()})


def test_returned_and_held_messages_of_a_state() -> None:
    """A header is a size, a pair of size and expiry, or a map; a consumer of 4.3 has its timeout before the message."""
    held = {2: Improper((5,), 11), 1: Improper((6, 12), 900), 3: (77, (14 << 44) + 7)}
    found = read(
        returns=(1, [message(9, acquired_count=3, delivery_count=2, expiry=80, anns={b"k": 1})], [Improper((8,), 10)]),
        consumers={4: consumer(held, (Atom("simple_prefetch"), 20))},
    )
    first, second = found.returns
    assert (first.index, first.size, first.acquired, first.delivery_count, first.expiry_ms) == (8, 10, 0, 0, None)
    assert (second.index, second.acquired, second.delivery_count, second.expiry_ms) == (9, 3, 2, 80)
    assert second.annotations == {b"k": 1} and found.enqueuers == {PROCESS: 7} and found.ready_bytes == 70
    rows = [(tag, one.index, one.size, one.expiry_ms) for tag, one in found.held()]
    assert rows == [(b"tag", 6, 12, 900), (b"tag", 5, 11, None), (b"tag", 7, 14, None)]
    one = found.consumers[4]
    assert (one.pid, one.credit, one.next_id, one.delivery_count, one.priority) == (PROCESS, 4, 9, 6, 3)
    assert (one.mode, one.is_once, one.status) == (("simple_prefetch", 20), False, "up")


def test_a_state_of_version_3() -> None:
    """One list of messages, one count of deliveries, and a consumer's mode without a prefetch."""
    found = read(
        3,
        messages=(2, [Improper((3,), 10)], [Improper((1,), 10)]),
        returns=(1, [], [message(2, delivery_count=4)]),
        consumers={(b"tag", PROCESS): consumer({0: message(5, delivery_count=1)}, Atom("credited"), "cancelled")},
    )
    assert [(one.index, one.acquired, one.delivery_count) for one in found.ready()] == [(2, 4, 4), (1, 0, 0), (3, 0, 0)]
    assert [(one.index, one.acquired) for _tag, one in found.held()] == [(5, 1)]
    (one,) = found.consumers.values()
    assert (one.mode, one.status) == (("credited", 0), "cancelled")
    assert [one.index for one in read(3, messages=(1, ([], [Improper((4,), 10)]))).ready()] == [4]


def test_consumers_with_credit_by_priority() -> None:
    """The record negates priorities; before it had any, there is one queue."""
    many = (Atom("pqueue"), [(-7, (Atom("queue"), [3], [1, 2], 3)), (0, (Atom("queue"), [], [4], 1)), (Atom("infinity"), 5)])
    assert {key: list(part) for key, part in read(service=many).service.items()} == {7: [1, 2, 3], 0: [4]}
    assert {key: list(part) for key, part in read(service=(Atom("queue"), [2], [1], 2)).service.items()} == {0: [1, 2]}


def test_messages_that_wait_for_dead_lettering() -> None:
    """Each with its reason before it; the process holds some by number."""
    rejected = Improper((Atom("rejected"), 5), 11)
    expired = Improper((Atom("expired"),), (12 << 44) + 6)
    process = (Atom("dlx_consumer"), PROCESS, 32, {8: rejected, 3: expired}, 9)
    found = read(dead=(Atom("rabbit_fifo_dlx"), process, (1, [], [Improper((Atom("maxlen"), 7), {Atom("size"): 13})]), 0)).dead
    rows = [(reason, one.index, one.size) for reason, one in found.every()]
    assert rows == [("expired", 6, 12), ("rejected", 5, 11), ("maxlen", 7, 13)]
    assert (found.pid, found.prefetch, found.next_id) == (PROCESS, 32, 9)


def test_waiting_consumers_of_a_state() -> None:
    """In the order of the record."""
    rows = [(6, consumer({}, (Atom("simple_prefetch"), 1))), (2, consumer({}, (Atom("simple_prefetch"), 1), priority=0))]
    assert [(key, one.priority) for key, one in read(waiting=rows).waiting] == [(6, 3), (2, 0)]


def test_a_record_of_another_form_is_damage() -> None:
    """Numbers of fields and names are refused, and fields of another form named."""
    with pytest.raises(UnsupportedFormat, match="rabbit_fifo of 17 fields"):
        read_state(fifo()[:-1], [], 5, "f")
    with pytest.raises(UnsupportedFormat, match="version 9"):
        read(9)
    for bad in ({"returns": (1, [], [Atom("x")])}, {"consumers": {1: 5}}, {"dead": 5}, {"service": 5}):
        with pytest.raises(StoreCorrupt, match="not a queue state"):
            read(**bad)


@pytest.mark.parametrize("cut", [1, 5, 30, 100])
def test_a_cut_state_is_damage(cut: int) -> None:
    """As is one whose list has another count."""
    data = bytes(state([], [pair(number, 300) for number in range(300, 500)]))
    with pytest.raises(StoreCorrupt):
        split_state(memoryview(data[:-cut]), "f", 0)
    at = data.index(b"l\0\0\0\xc8")
    with pytest.raises(StoreCorrupt):
        split_state(memoryview(data[: at + 4] + b"\xc7" + data[at + 5 :]), "f", 0)


def test_a_claimed_size_takes_no_memory() -> None:
    """A list of four thousand million elements, and an atom in its place, are damage."""
    for bad in (b"l\xff\xff\xff\xff", b"m\xff\xff\xff\xff", b"h\xff", b"\x01"):
        with pytest.raises(StoreCorrupt):
            split_state(memoryview(VERSION + b"h\4jj" + bad), "f", 0)
