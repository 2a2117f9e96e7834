"""Both engines against their ledgers, step by step, with power failures as steps."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.amounts import amount

EXAMPLES = int(os.environ.get("BROKERSTORE_LAB_EXAMPLES", "0"))


@pytest.mark.parametrize("machine", ["RocketMachine", "RabbitMachine"])
def test_a_store_agrees_with_its_model_after_random_operations_and_crashes(world: Any, machine: str) -> None:
    """Lives of 50 steps over both builds; a crash drops unsynced pages, sizes and names."""
    profile = settings(
        max_examples=EXAMPLES or (amount(100, 250) if world.build == "compiled" else 50),
        stateful_step_count=50,
        deadline=None,
        database=None,
        derandomize=EXAMPLES == 0,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(getattr(world.module("lab.machines"), machine), settings=profile)
