"""The versions that the pages name are those whose tests ran and passed."""

from __future__ import annotations

import json
import runpy

from messagestore.broker_versions import BROKER_VERSIONS
from tests.packaging.pages import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "version_tables.py"))


def test_the_tables_are_those_of_the_results() -> None:
    """`scripts/version_tables.py` brings them up to date."""
    results = json.loads(SCRIPT["RESULTS"].read_text())
    for path, updated in SCRIPT["PAGES"].items():
        assert updated(path.read_text(), results) == path.read_text(), f"run scripts/version_tables.py: {path.name}"


def test_only_versions_that_passed_are_named() -> None:
    """Neither one with a failure, nor one that did not run."""
    good = {"date": "2026-01-02", "passed": 1, "failed": 0}
    every = dict.fromkeys((*SCRIPT["FILES"], "dledger"), good)
    results = {version.name: dict(every) for version in BROKER_VERSIONS}
    first, second, *others = (version.name for version in BROKER_VERSIONS)
    results[first]["broker_versions"] = good | {"failed": 1}
    del results[second]["version_programs"], results[second]["dledger"]
    page = SCRIPT["readme"]((ROOT / "README.md").read_text(), results)
    assert f"| RocketMQ {', '.join(others)}, queues in files |" in page
    assert f"| RocketMQ {', '.join([first, *others])} with a DLedger log |" in page
    assert f"| {first} | no | no | no | no | 3 passed, 1 not, 2026-01-02 |\n" in SCRIPT["store_folder"](
        (ROOT / "docs" / "formats" / "store-folder.md").read_text(), results
    )
