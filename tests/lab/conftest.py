"""Fixtures of the crash lab."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.counted import COUNTED, Counted


@pytest.fixture(autouse=True)
def no_news(quiet: None) -> None:
    """Log nothing: thousands of openings after a crash would report what they cut."""


@pytest.fixture
def counted() -> Counted:
    return COUNTED


@pytest.fixture
def lab(world: Any) -> Any:
    """Return the lab of RocketMQ-style stores."""
    return world.module("lab.rocketmq_lab")
