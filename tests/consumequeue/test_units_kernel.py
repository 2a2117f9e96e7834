"""The scans over packed units, on both builds."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.builds import World
from tests.consumequeue.model import PROPERTY, UNIT, packed

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
UNITS = st.lists(st.tuples(st.integers(0, 50) | I64, st.integers(0, 5) | I32, I64), max_size=20)
OFFSET_MAX = (1 << 63) - 1 - 0x7FFFFFFF


def leading(units: list[Any], holds: Any) -> int:
    return next((index for index, unit in enumerate(units) if not holds(unit)), len(units))


@PROPERTY
@given(UNITS, st.integers(0, 60) | I64)
def test_counts_are_those_of_a_plain_loop(world: World, units: list[tuple[int, int, int]], position: int) -> None:
    """Counts of valid units, units below an offset, repeats and new units are those of a plain loop."""
    data = b"".join(UNIT.pack(*unit) for unit in units)
    top = max(position, -1)
    ends: list[int] = [top]
    for offset, size, _ in units:
        if offset < 0 or size <= 0 or offset > OFFSET_MAX or offset + size <= ends[-1]:
            break
        ends.append(offset + size)
    kernel = world.module("consumequeue._units_cy")
    assert kernel.count_valid(data) == leading(units, lambda unit: unit[0] >= 0 and unit[1] > 0)
    assert kernel.count_below(data, position) == leading(units, lambda unit: 0 <= unit[0] < position and unit[1] > 0)
    assert kernel.count_new(data, top) == (len(ends) - 1, ends[-1])
    repeats = leading(units, lambda unit: 0 <= unit[0] <= OFFSET_MAX and unit[1] > 0 and unit[0] + unit[1] <= top)
    assert kernel.count_repeated(data, top) == repeats


def test_kernel_accepts_any_buffer_type(world: Any) -> None:
    """Bytes, byte arrays and slices of a view are accepted; an incomplete unit at the end is ignored."""
    kernel = world.module("consumequeue._units_cy")
    for data in (packed(0, 5), bytearray(packed(0, 5)), memoryview(b"xx" + packed(0, 5))[2:], packed(0, 5) + b"xyz"):
        assert kernel.count_valid(data) == 5
    assert kernel.count_valid(b"") == 0
