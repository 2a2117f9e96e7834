"""Write the rows of RocketMQ's versions in README.md and `docs/formats/store-folder.md` from what the tests ran.

The results are in `docs/evidence/broker-versions.json`, which `BROKERSTORE_INTEROP=1 BROKERSTORE_RESULTS=1 pytest
tests/interop/rocketmq` writes. Run this script afterwards; a test compares the pages with the results.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from messagestore.broker_versions import BROKER_VERSIONS  # noqa: E402

RESULTS = ROOT / "docs" / "evidence" / "broker-versions.json"
FILES = ("broker_versions", "version_programs")  # what a version must have passed to be named as one that is written
COLUMNS = {  # what a version's broker writes, by the field of its row
    "has_long_topics": "topics of more than 127 bytes",
    "has_tag_items": "items of tags in the index",
    "has_rocksdb_store": "`rocksdbstore`",
    "has_logics_offset": "log offset in the checkpoint",
}
TESTED = "tests with this broker, last run"
Results = dict[str, dict[str, dict[str, Any]]]


def passed(results: Results, files: Iterable[str]) -> str:
    """Return the versions whose tests in these files all passed."""
    rows = {version.name: [results.get(version.name, {}).get(file) for file in files] for version in BROKER_VERSIONS}
    return ", ".join(name for name, found in rows.items() if all(row and row["passed"] and not row["failed"] for row in found))


def tested(results: Results, version: str) -> str:
    """Return how many tests a version passed, and when."""
    rows = results.get(version, {}).values()
    failed = sum(row["failed"] for row in rows)
    text = f"{sum(row['passed'] for row in rows)} passed" + (f", {failed} not" if failed else "")
    return f"{text}, {max(row['date'] for row in rows)}" if rows else "none"


def readme(page: str, results: Results) -> str:
    """Return README.md with the versions of the results."""
    files = f"| RocketMQ {passed(results, FILES)}, queues in files |"
    ledger = f"| RocketMQ {passed(results, ['dledger'])} with a DLedger log |"
    page = re.sub(r"^\| RocketMQ [^|]*queues in files \|", files, page, flags=re.MULTILINE)
    return re.sub(r"^\| RocketMQ [^|]*with a DLedger log \|", ledger, page, flags=re.MULTILINE)


def store_folder(page: str, results: Results) -> str:
    """Return the page of the folder with its table of versions."""
    lines = [["broker", *COLUMNS.values(), TESTED], ["---"] * (len(COLUMNS) + 2)]
    for version in BROKER_VERSIONS:
        fields = ("yes" if getattr(version, name) else "no" for name in COLUMNS)
        lines.append([version.name, *fields, tested(results, version.name)])
    table = "".join(f"| {' | '.join(line)} |\n".replace(" --- ", "---") for line in lines)
    return re.sub(r"^\| broker \|.*\n(\|.*\n)+", table, page, flags=re.MULTILINE)


PAGES = {ROOT / "README.md": readme, ROOT / "docs" / "formats" / "store-folder.md": store_folder}


def main() -> None:
    """Write the pages from the results."""
    results = json.loads(RESULTS.read_text())
    for path, updated in PAGES.items():
        path.write_text(updated(path.read_text(), results))


if __name__ == "__main__":
    main()
