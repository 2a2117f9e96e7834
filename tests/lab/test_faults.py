"""Each storage call of a base workload fails, once or permanently: a named error, and nothing promised is lost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.amounts import amount

RING = {"transient_store_ring_size": 1}
MODES: dict[str, dict[str, Any]] = {
    "ASYNC": {}, "SYNC": {}, "ASYNC, pool": {"transient_store_pool_enable": True} | RING,
    "SYNC, ring": {"sync_flush_through_ring": True} | RING,
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["ROCKETMQ_PROGRAM", "ROLLING_PROGRAM"], ids=["base", "rolling"])
def test_no_fault_of_a_rocketmq_style_store_loses_what_was_flushed(world: Any, mode: str, name: str) -> None:
    """EIO, ENOSPC, EMFILE, ENOMEM and short writes in every operation, also in close and recovery.

    An opening after a failed sync used to trust pages in the system's cache that never reached the disk.
    """
    faults = world.module("lab.faults")
    changes = {"flush_disk_type": world.messagestore.FlushMode[mode[:5].strip(",")]} | MODES[mode]
    counted, program = faults.Counted(), getattr(faults, name)
    run, _ = faults.run_rocketmq(program, counted, **changes)
    faults.close_rocketmq(run)
    every = list(faults.faults_of(counted.calls))
    assert len(counted.calls) > 200
    assert len(every) > 800
    step = amount(5, 1) if mode in ("ASYNC", "SYNC") else amount(9, 3)  # odd: a fault comes once, the next one permanently
    some = every[:: step if world.build == "compiled" else 23]
    struck = sum(faults.suffer_rocketmq(program, fault, **changes) for fault in some)
    assert struck > 0.9 * len(some)


def test_no_fault_of_a_rabbitmq_style_store_loses_what_was_confirmed(world: Any) -> None:
    """The same faults hit every operation, also the collector."""
    faults = world.module("lab.faults")
    counted = faults.Counted()
    run, _ = faults.run_rabbitmq(faults.RABBITMQ_PROGRAM, counted)
    run.store.close()
    every = list(faults.faults_of(counted.calls))
    assert len(counted.calls) > 180
    assert len(every) > 700
    for fault in every[:: amount(3, 1) if world.build == "compiled" else 23]:
        faults.suffer_rabbitmq(faults.RABBITMQ_PROGRAM, fault)


def test_no_fault_of_a_recovery_loses_what_was_flushed(world: Any) -> None:
    """Every call of an opening after a crash fails once; the next opening finds everything."""
    faults, lab = world.module("lab.faults"), world.module("lab.rocketmq_lab")
    run = lab.RocketmqRun(1, tries=False)
    for operation in faults.ROCKETMQ_PROGRAM[:12]:
        run.do(operation)
    image = run.disk.after_kill()

    def open_with(refuse: Any) -> Any:
        disk = lab.ForgettingDisk.of(image, run.disk.time_ms)
        disk.refuse = refuse
        try:
            lab.abandon(lab.open_still(disk, run.config))
        except faults.StoreError:
            refuse.failed += 1
        disk.refuse = None
        return disk

    counted = faults.Counted()
    open_with(counted)
    every = list(faults.faults_of(counted.calls))
    assert len(every) > 100
    for fault in every[:: amount(3, 1) if world.build == "compiled" else 13]:
        disk = open_with(faults.Counted(fault))
        for left in faults.after(disk, fault.number):
            run.recover(lab.ForgettingDisk.of(left, run.disk.time_ms), run.ledger.flushed)
