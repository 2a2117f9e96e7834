"""A RocketMQ-style store on a disk that drops unsynced changes: many programs, crashed at every step, opened and checked."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.amounts import amount
from tests.lab.counted import Counted


@pytest.mark.parametrize("block", range(6))
def test_what_was_flushed_survives_every_crash_of_a_random_program(world: Any, block: int, counted: Counted) -> None:
    """The programs use every operation of the store, retention and reopening."""
    lab = world.module("lab.rocketmq_lab")
    if world.build == "compiled" or block in (1, 2):  # other programs use the ring, which has many more images
        lab.random_run(block, amount(14, 22), report=counted.report(world.build, "RocketMQ-style"))


@pytest.mark.parametrize("fails", [False, True], ids=["killed", "a sync failed"])
def test_what_was_flushed_survives_an_opening_before_the_power_fails(world: Any, fails: bool, counted: Counted) -> None:
    """An opening after a kill used to treat the unsynced queues and index as synced, so a power failure lost their entries."""
    reopening = world.module("lab.reopening")
    report = counted.report(world.build, "opened again before the power fails")
    for seed in range(amount(40, 120) if world.build == "compiled" else 6):
        report.images += reopening.rocket_reopened(seed, fails=fails)


def test_every_program_of_two_operations_survives_every_combination_of_lost_pages(world: Any, counted: Counted) -> None:
    """At every call and between calls, all subsets of unsynced pages, sizes and names are tried, up to 2^10."""
    lab = world.module("lab.rocketmq_lab")
    programs = list(lab.programs(lab.OPERATIONS, 2))
    assert len(programs) == 169
    lab.small_scope(
        programs[:: amount(3, 1) if world.build == "compiled" else 7], report=counted.report(world.build, "two operations")
    )


@pytest.mark.parametrize("mode", ["ASYNC", "SYNC"])
def test_a_recovery_that_crashes_at_any_call_and_again_gives_the_same_store(world: Any, mode: str, counted: Counted) -> None:
    """Every call that changes something crashes, with all, none or some changes kept, and so does the next recovery."""
    lab, deep = world.module("lab.rocketmq_lab"), world.module("lab.deep")
    run = lab.RocketmqRun(3, config=lab.lab_config(flush_disk_type=world.messagestore.FlushMode[mode]), tries=False)
    for operation in (
        *lab.BEFORE, ("put_many", "T", 6, 300), ("dispatch",), ("put", "V", 1, 4500, 2), ("flush",),
        ("put_many", "V", 5, 60), ("dispatch",),
    ):  # fmt: skip
        run.do(operation)
    random = Random(11)
    images = [run.disk.after_kill(), run.disk.least(), *(run.disk.any_image(random) for _ in range(4))]
    report = counted.report(world.build, "crashes inside recovery")
    for image in images[: amount(4, 6) if world.build == "compiled" else 2]:
        tried = deep.crash_inside(
            image, run.disk.time_ms, lambda disk: run.recover(disk, run.ledger.flushed), random, depth=2, chances=2
        )
        report.images += tried
        report.again += tried
    assert report.again > 30
