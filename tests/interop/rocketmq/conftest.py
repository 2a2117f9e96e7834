"""Keep what each version of the broker has passed: BROKERSTORE_RESULTS=1 writes it to docs/evidence/broker-versions.json.

A test counts for the version in its parameters. The results of a file replace those of its last run: run whole files.
`scripts/version_tables.py` makes the tables of versions from them.
"""

from __future__ import annotations

import datetime
import json
import os
import re
from collections import defaultdict
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[3] / "docs" / "evidence" / "broker-versions.json"
OF_A_VERSION = re.compile(r"/test_(\w+)\.py::.*\[(?:.*-)?(\d+\.\d+\.\d+)(?:-.*)?\]$")
OUTCOMES: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)  # by version and file: of each test


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the outcome of a test's call, or that something failed before or after it; a skipped test is no result."""
    found = OF_A_VERSION.search(report.nodeid)
    if found is not None and (report.failed or (report.passed and report.when == "call")):
        OUTCOMES[found[2], found[1]][report.nodeid] = report.outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the file, in the process that has the reports of all workers."""
    if os.environ.get("BROKERSTORE_RESULTS") != "1" or hasattr(session.config, "workerinput") or not OUTCOMES:
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for (version, file), outcomes in OUTCOMES.items():
        passed = sum(outcome == "passed" for outcome in outcomes.values())
        row = {"date": today, "passed": passed, "failed": len(outcomes) - passed}
        results.setdefault(version, {})[file] = row
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
