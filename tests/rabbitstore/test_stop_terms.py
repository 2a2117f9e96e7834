"""The terms of the last stop against the index."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.builds import World


@pytest.mark.parametrize(
    ("count", "next_seq_id", "expected"),
    [(5, 10, (10, 8)), (5, 7, (10, 8)), (5, 0, (10, 8)), (5, 11, (11, 0)), (4, 10, (10, 0)), (6, 7, (7, 0))],
)
def test_terms_count_while_the_index_is_unchanged(
    world: World, count: int, next_seq_id: int, expected: tuple[int, int]
) -> None:
    """The terms count only with the same number of messages and no higher sequence number.

    An index whose last messages were acknowledged no longer shows the highest number, but `clean_stop.json` does.
    """
    part: Any = SimpleNamespace(
        persistent_count=count, next_deliver_seq_id=0, index=SimpleNamespace(next_seq_id=next_seq_id)
    )  # fmt: skip
    row = SimpleNamespace(persistent_count=5, next_seq_id=10, next_deliver_seq_id=8)
    world.module("rabbitstore.engine.opening")._apply_terms(part, row)
    assert (part.index.next_seq_id, part.next_deliver_seq_id) == expected
