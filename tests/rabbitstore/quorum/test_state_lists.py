"""The lists of messages in a state, read without terms, are what the decoder of terms gives."""

from __future__ import annotations

import random

import pytest

from rabbitstore.format.terms import Atom, Improper, encode
from rabbitstore.format.terms_cy import decode
from rabbitstore.quorum.command_cy import INDEX_BITS, SIZE_MAX
from rabbitstore.quorum.state import _list
from rabbitstore.quorum.state_lists import split_state
from storageio import StoreCorrupt

VERSION = b"\x83"
INDEXES = (0, 255, 256, (1 << 31) - 1, 1 << 31, (1 << 43) + 5)
SIZES = (0, 1, 255, 256, 70_000, SIZE_MAX - 1, SIZE_MAX, 1 << 30)


def pair(index, tail):
    """Encode `[Index | Tail]`, a list that does not end with the empty one."""
    return b"l\0\0\0\1" + encode(index)[1:] + (tail if isinstance(tail, bytes) else encode(tail)[1:])


def listed(elements):
    return b"l" + len(elements).to_bytes(4, "big") + b"".join(elements) + b"j" if elements else b"j"


def state(rear, front):
    """Encode a record of four fields, of which the third is a queue."""
    return memoryview(VERSION + b"h\4" + encode(Atom("rabbit_fifo"))[1:] + encode({b"a": [1, 2]})[1:]
                      + b"h\2" + listed(rear) + listed(front) + encode((7, b"end"))[1:])  # fmt: skip


def messages(data):
    term, lists = split_state(data, "f", 0)
    assert (term[0], term[1], term[3]) == ("rabbit_fifo", {b"a": [1, 2]}, (7, b"end"))
    return [(one.index, one.size, one.expiry_ms) for one in _list(term[2], lists)]


def expected(data):
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
def test_lists_are_those_of_the_terms(seed):
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


@pytest.mark.parametrize("cut", [1, 5, 30, 100])
def test_a_cut_state_is_damage(cut):
    """As is one whose list has another count."""
    data = bytes(state([], [pair(number, 300) for number in range(300, 500)]))
    with pytest.raises(StoreCorrupt):
        split_state(memoryview(data[:-cut]), "f", 0)
    at = data.index(b"l\0\0\0\xc8")
    with pytest.raises(StoreCorrupt):
        split_state(memoryview(data[: at + 4] + b"\xc7" + data[at + 5 :]), "f", 0)


def test_a_claimed_size_takes_no_memory():
    """A list of four thousand million elements, and an atom in its place, are damage."""
    for bad in (b"l\xff\xff\xff\xff", b"m\xff\xff\xff\xff", b"h\xff", b"\x01"):
        with pytest.raises(StoreCorrupt):
            split_state(memoryview(VERSION + b"h\4jj" + bad), "f", 0)
