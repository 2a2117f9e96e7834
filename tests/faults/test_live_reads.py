"""The tool beside a writer at full speed: no false alarm, and no acknowledged message is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.amounts import amount
from tests.faults.golden import fast_folder
from tests.faults.live_reads import ACKNOWLEDGED, END_OFFSET, VERBS, LiveReads, Shared, live_runs

RUNS = amount(8, 20)  # `python -m tests.faults.night --only live` makes 2,000

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="stores are not written there")


def test_reading_commands_beside_a_writer_report_no_problem_and_find_everything() -> None:
    """verify, dump, query and tail run in turn, in this process and in others, while files roll and are deleted."""
    with fast_folder() as folder:
        runs = live_runs(folder / "store", RUNS, seed=1)
    assert runs == dict.fromkeys(VERBS, RUNS // len(VERBS))


def test_the_harness_notices_a_lost_message_and_a_check_that_ended_early(tmp_path: Path) -> None:
    """A canary: `judge` rejects each kind of wrong answer."""
    shared = Shared(tmp_path / "shared")
    shared[ACKNOWLEDGED], shared[END_OFFSET] = 100, 5000
    reads = LiveReads(tmp_path / "store", shared, 1)
    rows = [{"keys": [f"k{number}"]} for number in range(100)]
    known = range(10, 100)
    report = {"ok": True, "problems": [], "in_use": True, "checked_to_offset": 5000}
    assert [reads.judge(*case) for case in (("dump", rows, known, 50, 5000), ("tail", rows[-40:], known, 50, 5000))] == ["", ""]
    assert reads.judge("query", rows[50:51], known, 50, 5000) == reads.judge("verify", [report], known, 50, 5000) == ""
    assert "lost" in reads.judge("dump", rows[:50] + rows[51:], known, 50, 5000)
    assert reads.judge("query", [], known, 50, 5000) and reads.judge("query", rows[:1], known, 50, 5000)
    assert reads.judge("tail", rows[-41:-1], known, 50, 5000)
    assert reads.judge("verify", [report | {"checked_to_offset": 4999}], known, 50, 5000)
    assert reads.judge("verify", [report | {"ok": False}], known, 50, 5000)
