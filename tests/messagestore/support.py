"""Config files of the fixtures, and disks that fail at every call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from storageio import DiskError
from storageio.testing import FailingDisk
from storebytes.plan import Plan

BROKERS = ("broker-live", "broker-ext")
TABLES = ("topics.json", "consumerOffset.json", "delayOffset.json", "subscriptionGroup.json")
OTHERS = ("consumerFilter.json", "consumerOrderInfo.json", "timermetrics", "transactionMetrics")
ONE_LINE = ("timermetrics", "transactionMetrics")
CALLS_MAX = 60


def quoted(value: Any) -> Any:
    """Return the value with every key as text, as in the manifests."""
    if isinstance(value, dict):
        return {str(key): quoted(member) for key, member in value.items()}
    return [quoted(member) for member in value] if isinstance(value, list) else value


def labels(plan: Plan) -> list[str]:
    """Return kind and file of each step."""
    return [f"{step.kind} {step.file}" for step in plan.steps]


def failures(action: Callable[[FailingDisk], None], **how: Any) -> Iterator[int]:
    """Repeat `action` on a disk that fails at call 1, 2, 3 ...; yield after each failed run."""
    for number in range(1, CALLS_MAX):
        try:
            action(FailingDisk(number, **how))
        except DiskError:
            yield number
        else:
            assert number > 1, "nothing was called at all"
            return
    raise AssertionError(f"still failing after {CALLS_MAX} calls")


def folder_with(position: Path, **files: bytes) -> str:
    """Create a config folder; `topics_json="..."` is written as topics.json."""
    position.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (position / name.replace("_", ".")).write_bytes(data)
    return str(position)


def put_internally(store: Any, message: Any) -> Any:
    """Put a message to queue 0 of one of the broker's own topics, as its services do; return the result."""
    store.engine.admission.admit(message.topic)
    return store.engine.internal_puts.put(message, 0)
