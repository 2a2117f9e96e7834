"""A RabbitMQ-style store on a disk that drops unsynced changes: many programs, crashed at every step, opened and checked."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.amounts import amount
from tests.lab.counted import Counted


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("block", range(6))
def test_what_was_confirmed_survives_every_crash_of_a_random_program(
    world: Any, block: int, version: int, counted: Counted
) -> None:
    """The programs use every operation of the store, the collector, and reopening, with either version of the index."""
    lab = world.module("lab.rabbitmq_lab")
    settings = replace(lab.SETTINGS, index_version=version)
    seeds = range(block * 10, block * 10 + (amount(4, 10) if world.build == "compiled" else 2))
    for seed in seeds:
        lab.random_run(seed, 30, settings=settings, report=counted.report(world.build, "RabbitMQ-style"))


@pytest.mark.parametrize("fails", [False, True], ids=["killed", "a sync failed"])
def test_what_was_confirmed_survives_an_opening_before_the_power_fails(world: Any, fails: bool, counted: Counted) -> None:
    """The journal used to be emptied although the cache alone had the segments: confirmed messages were lost."""
    reopening = world.module("lab.reopening")
    report = counted.report(world.build, "opened again before the power fails")
    for seed in range(amount(50, 150) if world.build == "compiled" else 6):
        report.images += reopening.rabbit_reopened(seed, fails=fails)


def test_a_recovery_that_crashes_at_any_call_and_again_gives_the_same_store(world: Any, counted: Counted) -> None:
    """Every call that changes something crashes, and so does the recovery of that crash."""
    lab, deep = world.module("lab.rabbitmq_lab"), world.module("lab.deep")
    program = world.module("lab.faults").RABBITMQ_PROGRAM
    run = lab.RabbitRun(5, tries=False)
    for operation in program[:27]:
        run.do(operation)
    random = Random(11)
    images = [run.disk.after_kill(), run.disk.least(), *(run.disk.any_image(random) for _ in range(4))]
    floor = run.ledger.floor()
    report = counted.report(world.build, "crashes inside recovery")
    for image in images[: 6 if world.build == "compiled" else 2]:
        tried = deep.crash_inside(image, run.disk.time_ms, lambda disk: run.recover(disk, floor), random, depth=2, chances=2)
        report.images += tried
        report.again += tried
    assert report.again > 10
