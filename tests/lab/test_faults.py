"""Every storage call of a base workload failed, once and for ever: a named error, and nothing promised is lost."""

from __future__ import annotations

import logging
from typing import Any

import pytest

logging.getLogger("messagestore").setLevel(logging.CRITICAL)
logging.getLogger("consumequeue").setLevel(logging.CRITICAL)
logging.getLogger("brokerstore").setLevel(logging.CRITICAL)


@pytest.mark.parametrize("mode", ["ASYNC", "SYNC"])
def test_no_fault_of_a_rocketmq_style_store_loses_what_was_flushed(world: Any, mode: str) -> None:
    """EIO, ENOSPC, EMFILE, ENOMEM, short write; put, batch, roll-over, flush, checkpoint, retention, close, recovery."""
    faults = world.module("brokerstore.testing.faults")
    changes = {"flush_disk_type": world.messagestore.FlushMode[mode]}
    counted = faults.Counted()
    run, _ = faults.run_rocketmq(faults.ROCKETMQ_PROGRAM, counted, **changes)
    faults.close_rocketmq(run)
    every = list(faults.faults_of(counted.calls))
    assert len(counted.calls) > 200
    assert len(every) > 800
    for fault in every[:: 1 if world.build == "compiled" else 23]:
        faults.suffer_rocketmq(faults.ROCKETMQ_PROGRAM, fault, **changes)


def test_no_fault_of_a_rabbitmq_style_store_loses_what_was_confirmed(world: Any) -> None:
    """The same, with the collector."""
    faults = world.module("brokerstore.testing.faults")
    counted = faults.Counted()
    run, _ = faults.run_rabbitmq(faults.RABBITMQ_PROGRAM, counted)
    run.store.close()
    every = list(faults.faults_of(counted.calls))
    assert len(counted.calls) > 180
    assert len(every) > 700
    for fault in every[:: 1 if world.build == "compiled" else 23]:
        faults.suffer_rabbitmq(faults.RABBITMQ_PROGRAM, fault)


def test_no_fault_of_a_recovery_loses_what_was_flushed(world: Any) -> None:
    """Every call of an opening after a crash fails; the next opening finds everything."""
    faults, lab = world.module("brokerstore.testing.faults"), world.module("brokerstore.testing.rocketmq_lab")
    run = lab.Run(1, tries=False)
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
    for fault in every[:: 1 if world.build == "compiled" else 13]:
        disk = open_with(faults.Counted(fault))
        for left in faults.after(disk, fault.number):
            run.recover(lab.ForgettingDisk.of(left, run.disk.time_ms), run.ledger.flushed)
