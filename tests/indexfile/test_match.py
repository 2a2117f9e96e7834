"""The comparison of items in log order with index files, against sets of pairs."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from indexfile.layout import FIRST_ITEM, SECONDS_OPTIONAL
from tests.builds import World
from tests.indexfile.model import HEADER, ITEM, PROPERTY

LOW, END = 100, 900
Pair = tuple[int, int]  # physical offset, key hash
hashes = st.integers(0, 3)
records = st.lists(st.tuples(st.integers(0, 40).map(lambda at: 25 * at), st.lists(hashes, max_size=4)), max_size=30).map(
    lambda found: [(offset, code) for offset, codes in sorted(dict(found).items()) for code in codes]
)


def buffer_of(world: World, pairs: list[Pair]) -> Any:
    """Return an index of one slot with these items; those of a negative hash are optional."""
    items = b"".join(ITEM.pack(abs(code), offset, SECONDS_OPTIONAL if code < 0 else 0, 0) for offset, code in pairs)
    header = HEADER.pack(0, 0, 0, 0, 0, len(pairs) + 1)
    return world.module("indexfile._index_cy").IndexBuffer(bytearray(header + bytes(4 + 20) + items), 1, len(pairs) + 1)


def matched(world: World, made: list[list[Pair]], found: list[list[Pair]]) -> Any:
    """Match items as a caller does: the log in batches, the index in files."""
    matcher = world.module("indexfile._match_cy").ItemMatcher()
    left = [buffer_of(world, file) for file in reversed(found)]
    open_file = None
    for number, batch in enumerate(made):
        items, at = buffer_of(world, batch), FIRST_ITEM
        while at <= len(batch):
            if open_file is None and left:
                open_file, matcher.at = left.pop(), FIRST_ITEM
            at = matcher.match(items, at, open_file, LOW, END)
            open_file = None if at <= len(batch) else open_file
        if batch and number + 1 < len(made) and made[number + 1] and made[number + 1][0][0] == batch[-1][0]:
            matcher.list_last(items, LOW, END)
    while open_file is not None or left:
        if open_file is None:
            open_file, matcher.at = left.pop(), FIRST_ITEM
        matcher.rest(open_file, LOW, END)
        open_file = None
    return matcher


def parts(pairs: list[Pair], size: int) -> list[list[Pair]]:
    return [pairs[at : at + size] for at in range(0, len(pairs), size)]


def check(matcher: Any, made: list[Pair], found: list[Pair]) -> None:
    """Offsets that are not listed must have equal sets of items, and their different items must have been counted."""
    expected = {pair for pair in made if LOW <= pair[0] < END}
    present = {pair for pair in found if LOW <= pair[0] < END}
    own, others = set(matcher.differing_made), set(matcher.differing_found)
    assert {pair for pair in expected ^ present if pair[0] not in own | others} == set()
    assert matcher.unique == sum(pair[0] not in own for pair in expected)


@PROPERTY
@given(records, records, st.integers(1, 9), st.integers(1, 9))
def test_differences_are_among_the_listed_offsets(
    world: World, made: list[Pair], found: list[Pair], batch: int, file: int
) -> None:
    """Whatever both sides hold, a caller that compares the listed offsets as sets misses nothing."""
    check(matched(world, parts(made, batch), parts(found, file)), made, found)


@PROPERTY
@given(records, st.lists(st.tuples(st.integers(0, 60), st.tuples(st.integers(0, 1000), hashes)), max_size=3), st.integers(1, 9))
def test_a_few_foreign_items_list_only_a_few_offsets(
    world: World, made: list[Pair], added: list[tuple[int, Pair]], file: int
) -> None:
    """An item that does not belong there must not make the two sides lose each other."""
    made = [pair for pair in made if LOW <= pair[0] < END]  # the look ahead is one item, whether it counts or not
    found = list(made)
    for position, pair in added:
        found.insert(min(position, len(found)), pair)
    matcher = matched(world, [made], parts(found, file))
    check(matcher, made, found)
    if len(added) <= 1:
        assert len(set(matched(world, [made], [found]).differing_made)) <= 2


@PROPERTY
@given(records, st.integers(1, 9))
def test_an_index_in_log_order_lists_nothing(world: World, made: list[Pair], file: int) -> None:
    """This is the index of a dispatcher that never crashed, and it needs no comparison as sets."""
    matcher = matched(world, [made], parts(made, file))
    assert (list(matcher.differing_made), list(matcher.differing_found)) == ([], [])
    assert matcher.unique == len({pair for pair in made if LOW <= pair[0] < END})


@PROPERTY
@given(
    st.lists(st.tuples(st.lists(hashes, max_size=3), st.sampled_from(["no tag", "lacks it", "has it"])), max_size=30),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_an_index_may_have_or_lack_the_optional_items_of_each_record(
    world: World, made: list[tuple[list[int], str]], batch: int, file: int
) -> None:
    """They follow the others of their record, and count for nothing."""
    expected: list[Pair] = []
    found: list[Pair] = []
    for number, (codes, tag) in enumerate(made):
        offset = LOW + 25 * number
        expected += [(offset, code) for code in codes] + ([] if tag == "no tag" else [(offset, -2)])
        found += [(offset, code) for code in codes] + ([(offset, 2)] if tag == "has it" else [])
    required = [pair for pair in expected if pair[1] >= 0]
    matcher = matched(world, [expected], parts(found, file))
    assert (list(matcher.differing_made), list(matcher.differing_found)) == ([], [])
    assert matcher.unique == len({pair for pair in required if pair[0] < END})
    split = matched(world, parts(expected, batch), parts(found, file))
    own, others = set(split.differing_made), set(split.differing_found)
    assert {pair for pair in set(required) - set(found) if pair[0] not in own | others and pair[0] < END} == set()
    assert split.unique == len({pair for pair in required if pair[0] < END and pair[0] not in own})


def test_a_record_with_many_keys_is_listed_and_not_counted(world: World) -> None:
    """Comparing its items with each other would take quadratic time."""
    pairs = [(200, code) for code in range(100)] + [(300, 1)]
    matcher = matched(world, [pairs], [pairs])
    assert (list(matcher.differing_made), list(matcher.differing_found), matcher.unique) == ([200], [], 1)


def test_thousands_of_offsets_are_listed(world: World) -> None:
    """The kernel lists a few thousand in one call."""
    made = [(200, 1)] + [(300 + position // 20, position % 20) for position in range(10_000)]
    found = [(300 + position // 20, 50) for position in range(10_000)]
    matcher = matched(world, [made], [found])
    assert set(matcher.differing_made) == {offset for offset, _ in made[1:]} | {200}
    check(matcher, made, found)
