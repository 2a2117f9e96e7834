"""No process outlives its test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.shared.processes import Child


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Kill the processes that a failed test left."""
    yield
    Child.kill_all()
