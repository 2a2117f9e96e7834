"""Chunks of single messages are split like all others."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rabbitstore.stream.records_cy import single_records
from tests.builds import World


def encoded(bodies: list[bytes]) -> bytes:
    """Encode entries by docs/formats/rabbitmq-streams.md#segment."""
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=9), max_size=5), st.binary(max_size=3), st.binary(max_size=3))
def test_entries_are_split(bodies: list[bytes], before: bytes, after: bytes) -> None:
    """Offset, position and bytes of each; another number of entries is left, and so is a size that ends elsewhere."""
    data = encoded(bodies)
    view = memoryview(before + data + after)
    found = single_records(view, len(before), len(before) + len(data), len(bodies), 7)
    positions = [len(before) + len(encoded(bodies[:at])) for at in range(len(bodies))]
    rows = [(one.offset, one.position, one.data) for one in found or []]
    assert rows == [(7 + at, positions[at], body) for at, body in enumerate(bodies)]
    for entries in (len(bodies) + 1, len(bodies) - 1):
        assert single_records(view, len(before), len(before) + len(data), entries, 7) is None or entries < 0
    if bodies and len(bodies[-1]) != 1:
        assert single_records(view, len(before), len(before) + len(data) - 1, len(bodies), 7) is None
    assert single_records(view, len(before), len(view) + 1, len(bodies), 7) is None


def test_a_sub_batch_and_a_size_beyond_the_end_are_left_to_the_decoder(world: World) -> None:
    """The first bit marks a sub-batch."""
    split: Any = world.module("rabbitstore.stream.records_cy").single_records
    assert split(memoryview(b"\0\0\0\1a\x80\0\0\1b"), 0, 10, 2, 0) is None
    assert split(memoryview(b"\0\0\0\2a"), 0, 5, 1, 0) is None
    assert split(memoryview(b"\0\0\0\1a"), -1, 5, 1, 0) is None
    assert [one.data for one in split(memoryview(b"\0\0\0\1a"), 0, 5, 1, 0)] == [b"a"]
