"""The lab's figures, printed at the end."""

from __future__ import annotations

import pytest

from tests.lab.counted import COUNTED, Counted


@pytest.fixture(autouse=True)
def no_news(quiet: None) -> None:
    """Thousands of openings after a crash say what they cut."""


@pytest.fixture
def counted() -> Counted:
    return COUNTED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last lines of a run, so that they stand in the log of the machine that checks every change."""
    if COUNTED.reports:
        terminalreporter.section("reliability lab")
        for line in COUNTED.lines():
            terminalreporter.write_line(line)
