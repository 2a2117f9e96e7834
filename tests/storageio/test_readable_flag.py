"""The flag that an event loop watches."""

from __future__ import annotations

import select

import pytest

from storageio.readable_flag import CLEARED_BYTES, ReadableFlag


@pytest.mark.parametrize("times", [1, CLEARED_BYTES, 3 * CLEARED_BYTES, 1_000_000])
def test_its_descriptor_is_readable_while_it_is_set(times: int) -> None:
    """However often it is set, also if no more bytes fit."""
    flag = ReadableFlag()
    waiter = select.poll()
    waiter.register(flag.fileno(), select.POLLIN)
    for _ in range(2):
        assert waiter.poll(0) == []
        for _ in range(times):
            flag.set()
        assert len(waiter.poll(0)) == 1
        flag.clear()
    assert waiter.poll(0) == []
    flag.close()
    flag.set()
