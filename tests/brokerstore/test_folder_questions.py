"""What a folder is gets asked once: `recover` reaches its first look at the log over few places of the code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from messagestore.repair.recover import Recovery
from storageio import REAL_DISK
from tests.brokerstore.tool import run

ROOT = Path(__file__).parents[2]
ENGINES, FORMATS = ("brokerstore", "messagestore"), ("commitlog", "consumequeue", "indexfile")
LOCATIONS_MAX, FILES_MAX = 10, 6


def counting() -> tuple[str, str]:
    """Return file and name of the function that asks the disk; a format's package counts as the function that is called."""
    frame, below = sys._getframe(2), None
    while frame is not None:
        package = Path(frame.f_code.co_filename).relative_to(ROOT).parts[0] if ROOT in _parents(frame) else ""
        if package in ENGINES:
            break
        below = frame if package in FORMATS else below
        frame = frame.f_back
    code = (below or frame or sys._getframe()).f_code
    return code.co_filename, code.co_qualname


def _parents(frame: Any) -> list[Path]:
    return list(Path(frame.f_code.co_filename).parents)


def test_recover_identifies_the_folder_in_few_functions(fixture_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of the answer is found by one function, up to the first look at the log."""
    found: set[tuple[str, str]] = set()
    is_reading = False

    def observed(invoke: Any) -> Any:
        def wrapper(*arguments: Any) -> Any:
            if not is_reading:
                found.add(counting())
            return invoke(*arguments)

        return wrapper

    def examine(recovery: Recovery) -> Any:
        nonlocal is_reading
        is_reading = True
        return plan(recovery)

    plan = Recovery.plan
    monkeypatch.setattr(Recovery, "plan", examine)
    for name in ("stat", "list", "open", "is_locked"):
        monkeypatch.setattr(REAL_DISK, name, observed(getattr(REAL_DISK, name)))
    assert run("recover", fixture_store("plain").store).code in (0, 1)
    assert is_reading and found
    assert len(found) <= LOCATIONS_MAX, sorted(found)
    assert len({file for file, _ in found}) <= FILES_MAX, sorted(found)
