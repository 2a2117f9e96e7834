"""A store against a plain model of lists, through every operation."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.messagestore.machine import machine_for

EXAMPLES = int(os.environ.get("BROKERSTORE_MACHINE_EXAMPLES", "12"))


@pytest.mark.deep
def test_a_store_and_its_model_agree(world: Any) -> None:
    """Puts of every kind, reads, queries, new files, reopening, a killed process and a crash of the machine."""
    profile = settings(
        max_examples=EXAMPLES,
        stateful_step_count=25,
        deadline=None,
        database=None,
        derandomize="BROKERSTORE_MACHINE_EXAMPLES" not in os.environ,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine_for(world), settings=profile)
