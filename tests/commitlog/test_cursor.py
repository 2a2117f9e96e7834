"""Where a log file is finished (docs/formats/commitlog.md, "Blank record")."""

from __future__ import annotations

import pytest

from tests.builds import World

BLANK_OF_16 = bytes.fromhex("00000010 cbd43194")


@pytest.mark.parametrize(
    ("why", "left", "is_end", "is_end_for_rocketmq"),
    [
        ("blank", 16, True, True),
        ("blank", 15, False, True),
        ("blank", 17, False, True),
        ("torn", 7, True, True),
        ("torn", 8, False, False),
        ("end", 0, True, True),
        ("end", 7, False, False),
        ("full", 7, False, False),
        ("empty", 16, False, False),
        ("bad_magic", 16, False, False),
    ],
)
def test_the_end_of_a_finished_file(world: World, why: str, left: int, is_end: bool, is_end_for_rocketmq: bool) -> None:
    """A blank record covers the rest of its file; RocketMQ's dispatcher does not compare its size."""
    is_file_end = world.module("commitlog.cursor").is_file_end
    assert is_file_end(why, left, BLANK_OF_16) == is_end
    assert is_file_end(why, left, any_blank=True) == is_end_for_rocketmq
