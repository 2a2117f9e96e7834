"""The example that feeds Delta Lake and Iceberg tables, with its driver killed at the worst moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import JAVA_OPTIONS, ROOT, why_not
from .sink_tools import logged

pytestmark = [pytest.mark.spark, pytest.mark.deep, pytest.mark.timeout(900)]

EXAMPLE = ROOT / "examples" / "lakehouse"
NAMES = ("topic", "queue_id", "queue_offset", "physical_offset", "tags")
SCRIPT = """
import os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import feed

store, lake, kill_batch = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
both_committed = threading.Barrier(2, timeout=300)
has_begun = threading.Event()

def killing(append):
    def write(batch, number, query, table):
        has_begun.set()
        made = append(batch, number, query, table)
        if number == kill_batch:
            both_committed.wait()
            os.killpg(0, signal.SIGKILL)
        return made
    return write

feed.WRITERS = {kind: killing(append) for kind, append in feed.WRITERS.items()}
spark = feed.start_session("delta")
with ThreadPoolExecutor(2) as pool:
    feeds = [pool.submit(feed.feed, spark, store, lake / "delta", "delta", "8k")]
    has_begun.wait(60)  # two first stages at once may fail in Spark's serialization of the job's properties
    feeds.append(pool.submit(feed.feed, spark, store, lake / "iceberg", "iceberg", "8k"))
    for one in feeds:
        one.result()
"""


def put(folder: Path, first: int, count: int) -> None:
    """Put orders with the other example's program."""
    words = [str(folder / "orders"), str(first), str(count)]
    subprocess.run([sys.executable, str(ROOT / "examples" / "pipeline" / "orders.py"), *words], check=True, capture_output=True)


def run(folder: Path, batch: int) -> tuple[int, list[str]]:
    """Run both feeds in one session; return the exit code and the lines of the example, those of Delta Lake first."""
    path = os.pathsep.join(filter(None, [str(ROOT), str(EXAMPLE), os.environ.get("PYTHONPATH")]))
    reported = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder / "orders"), str(folder / "lake"), str(batch)],
        env=os.environ | {"PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": JAVA_OPTIONS},
        capture_output=True, text=True, check=False, start_new_session=True,
    )  # fmt: skip
    lines = [line.rpartition("\r")[2].strip() for line in reported.stdout.splitlines()]
    assert reported.returncode in (0, -signal.SIGKILL), reported.stderr[-3000:]
    return reported.returncode, sorted((line for line in lines if ": batch " in line), key=lambda line: line.split(":")[0])


def expected_rows(folder: Path) -> list[dict[str, Any]]:
    """Return what the tables must hold, read without Spark."""
    return [
        {name: getattr(message, name) for name in NAMES} | json.loads(message.body) for message in logged(folder / "orders")
    ]


def test_each_message_is_in_both_tables_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver dies between both tables' commits and Spark's; the log grows meanwhile."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    for name in ("deltalake", "pyiceberg", "sqlalchemy", "matplotlib"):
        pytest.importorskip(name, reason="the example needs deltalake, pyiceberg[sql-sqlite] and matplotlib (extra examples)")
    put(tmp_path, 0, 60)
    assert run(tmp_path, 1) == (-signal.SIGKILL, ["delta: batch 0 appended", "iceberg: batch 0 appended"])
    put(tmp_path, 60, 30)
    code, lines = run(tmp_path, -1)
    assert code == 0
    for kind in ("delta", "iceberg"):
        first, *others = [line for line in lines if line.startswith(kind)]
        assert first == f"{kind}: batch 1 is in the table already", "Spark repeats the batch whose commit it did not record"
        assert others and all(line.endswith("appended") for line in others)

    monkeypatch.syspath_prepend(str(EXAMPLE))
    import dashboard  # type: ignore[import-not-found]

    expected = expected_rows(tmp_path)
    tables = {kind: getattr(dashboard, f"{kind}_rows")(tmp_path / "lake" / kind) for kind in ("delta", "iceberg")}
    for kind, (table, added) in tables.items():
        found = sorted(table.to_pylist(), key=lambda row: row["physical_offset"])
        assert [{name: row[name] for name in expected[0]} for row in found] == expected, kind
        assert sum(added) == len(expected) == 120 and len(added) > 3, kind
    dashboard.draw(tables, str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
