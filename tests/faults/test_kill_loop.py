"""SIGKILL, again and again, on a real process with several writers."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.faults.golden import fast_folder
from tests.faults.kill_loop import KillLoop

CYCLES = 200
STORE_CYCLES = 10  # then a new store, so that reading all of it stays cheap

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="stores are not written there")


def test_nothing_acknowledged_is_lost_by_two_hundred_kills() -> None:
    """Writers of three topics, synchronous and asynchronous flush, killed at work and in recovery."""
    done = messages = 0
    while done < CYCLES:
        with fast_folder() as folder:
            loop = KillLoop(folder / "store", seed=done)
            for _ in range(STORE_CYCLES):
                loop.cycle()
            loop.check()
            done += loop.cycles
            messages += loop.messages
    print(f"{done} kills, {messages} messages acknowledged, 0 lost")
    assert messages > CYCLES


def test_the_loop_notices_a_lost_message(tmp_path: Path) -> None:
    """A canary: acknowledged counts raised by one must fail the check."""
    loop = KillLoop(tmp_path / "store", seed=1)
    loop.cycle()
    from tests.faults.kill_loop import COUNTER

    COUNTER.pack_into(loop.shared, 0, loop.acknowledged(0) + 1_000_000)
    with pytest.raises(AssertionError, match="acknowledged and lost"):
        loop.check()
    shutil.rmtree(tmp_path / "store")
