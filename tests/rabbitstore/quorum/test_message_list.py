"""The list of messages is what a queue of message objects would be."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rabbitstore.format.terms import UNDEFINED, Atom
from rabbitstore.quorum.command_cy import INDEX_BITS
from rabbitstore.quorum.machine import Machine
from rabbitstore.quorum.machine_parts import MessageInfo, Settings
from rabbitstore.quorum.messages import MessageList, QuorumContent

MESSAGES = st.builds(
    QuorumContent, st.integers(0, 1 << 45), st.sampled_from([0, 5, (1 << 19) - 1, 1 << 19]), st.sampled_from([0, 0, 1]),
    st.sampled_from([0, 0, 2]), st.sampled_from([None, None, 7]), st.sampled_from([{}, {}, {b"k": 1}]),
)  # fmt: skip
STEPS = st.lists(st.sampled_from(["pop", "copy", "many", "clear"]) | MESSAGES, max_size=40)


@settings(deadline=None, max_examples=50)
@given(STEPS)
def test_a_message_list_behaves_like_a_deque(steps: list[Any]) -> None:
    """Every step leaves the messages of a deque; a copy and its original do not change each other."""
    found, model = MessageList(), deque[QuorumContent]()
    others: list[tuple[MessageList, list[QuorumContent]]] = []
    for number, step in enumerate(steps):
        if isinstance(step, QuorumContent):
            found.append(step)
            model.append(step)
        elif step == "many":
            rows = [(number * 10_000 + index, index % 7) for index in range(3000)]
            found.extend(array("q", [size << INDEX_BITS | index for index, size in rows]))
            model.extend(QuorumContent(*row) for row in rows)
        elif step == "copy":
            others.append((found, [replace(message) for message in model]))
            found = found.copy()
        elif step == "clear":
            found.clear()
            model.clear()
        elif model:
            assert found.popleft() == model.popleft()
        assert found.first == (model[0] if model else None)
        assert len(found) == len(model) and bool(found) == bool(model)
    for one, expected in [*others, (found, list(model))]:
        assert list(one) == expected


def test_a_removed_message_uses_no_memory() -> None:
    """Nor does a message that is only a number."""
    found = MessageList([QuorumContent(1, 2, acquired=1), QuorumContent(2, 3), QuorumContent(3, 4, expiry_ms=5)])
    assert len(found._others) == 2
    while found:
        found.popleft()
    assert not found._others and not found._blocks


def test_changes_of_a_copied_message_stay_in_the_copy() -> None:
    """A message that is more than a number."""
    found = MessageList([QuorumContent(1, 2, delivery_count=1)])
    found.copy().popleft().delivery_count = 9
    assert found.popleft().delivery_count == 1


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["e", "purge"]), st.integers(0, 1 << 19)), max_size=12),
    st.sampled_from([Settings(), Settings(max_length=2), Settings(msg_ttl=5), Settings(max_bytes=9)]),
)
def test_messages_that_follow_one_another_are_added_like_single_ones(rows: list[tuple[str, int]], limits: Settings) -> None:
    """An idle queue takes many in one call; any other is not idle."""
    one_by_one, in_bulk = Machine(replace(limits)), Machine(replace(limits))
    for machine in (one_by_one, in_bulk):
        machine.enqueue(1, 0, UNDEFINED, 1, MessageInfo(3))
    for index, (name, size) in enumerate([*rows, ("purge", 0)], 2):
        number = one_by_one.enqueuers[UNDEFINED]
        if name == "e":
            one_by_one.enqueue(index, 0, UNDEFINED, number, MessageInfo(size))
        if name == "e" and size < 1 << 19 and in_bulk.is_idle():
            in_bulk.enqueue_plain(UNDEFINED, array("q", [size << INDEX_BITS | index]))
        elif name == "e":
            in_bulk.enqueue(index, 0, UNDEFINED, number, MessageInfo(size))
        assert list(in_bulk.ready()) == list(one_by_one.ready()) and in_bulk.ready_bytes == one_by_one.ready_bytes
        assert in_bulk.enqueuers == one_by_one.enqueuers and in_bulk.dropped == one_by_one.dropped
        if name == "purge":
            for machine in (one_by_one, in_bulk):
                machine.apply(index, 0, (Atom("purge"),), None, MessageInfo())
