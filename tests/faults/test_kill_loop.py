"""SIGKILL, again and again, on a real process with several writers."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.amounts import amount
from tests.faults.golden import fast_folder
from tests.faults.kill_loop import KillLoop
from tests.faults.rabbit_kill_loop import CONFIRMED, GONE, RabbitKillLoop

CYCLES = amount(60, 200)
STORE_CYCLES = 10  # then a new store, so that reading all of it stays fast

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="stores are not written there")


@pytest.mark.parametrize("kind", [KillLoop, RabbitKillLoop])
def test_nothing_acknowledged_is_lost_by_two_hundred_kills(kind: type[KillLoop]) -> None:
    """The kills hit both flush modes of three writers, with consumers for RabbitMQ, at work and in recovery."""
    done = messages = 0
    while done < CYCLES:
        with fast_folder() as folder:
            loop = kind(folder / "store", seed=done)
            for _ in range(STORE_CYCLES):
                loop.cycle()
            loop.check()
            done += loop.cycles
            messages += loop.messages
    print(f"{done} kills, {messages} messages acknowledged, 0 lost")
    assert messages > CYCLES


def test_the_loop_notices_a_lost_message(tmp_path: Path) -> None:
    """A canary: the check fails when the acknowledged count is raised by one."""
    loop = KillLoop(tmp_path / "store", seed=1)
    loop.cycle()
    loop.shared[0] = loop.acknowledged(0) + 1_000_000
    with pytest.raises(AssertionError, match="acknowledged and lost"):
        loop.check()
    shutil.rmtree(tmp_path / "store")


def test_the_rabbit_loop_notices_a_lost_message(tmp_path: Path) -> None:
    """A canary: the check fails when a confirm is counted that was never given."""
    loop = RabbitKillLoop(tmp_path / "store", seed=1)
    while loop.messages == 0:
        loop.cycle()
    loop.first[0] = max(loop.present[0], default=0) + 1
    loop.tell(CONFIRMED, 0, loop.first[0] + 1_000_000)
    with pytest.raises(AssertionError, match="confirmed and lost"):
        loop.check()


def test_the_rabbit_loop_detects_an_acknowledged_message_that_is_delivered_again(tmp_path: Path) -> None:
    """A canary: the check fails when an acknowledgement is counted that was never given."""
    loop = RabbitKillLoop(tmp_path / "store", seed=2)
    while not any(loop.present):
        loop.cycle()
    writer = next(writer for writer, present in enumerate(loop.present) if present)
    loop.tell(GONE, writer, max(loop.present[writer]) + 1)
    with pytest.raises(AssertionError, match="acknowledged for good, and back"):
        loop.check()
