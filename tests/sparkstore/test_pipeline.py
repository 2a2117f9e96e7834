"""The example pipeline, run as its page describes: twice, over a store that grows in between, and then its report."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.sparkstore.sink_tools import logged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "pipeline"
ORDERS, FIRST_RUN = 500, 300


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder after two runs.  The fixture `spark` only checks that Spark exists; the runs have their own session."""
    for name in ("yaml", "grpc", "grpc_status"):
        pytest.importorskip(name, reason="spark-pipelines needs pyspark[pipelines]")
    folder = tmp_path_factory.mktemp("shop")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    reported = subprocess.run(
        [sys.executable, str(EXAMPLE / "run.py"), str(folder)],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert reported.returncode == 0, reported.stderr + (folder / "pipeline.log").read_text()[-5000:]
    assert reported.stdout.splitlines() == [
        f"400 messages put; 100 paid orders in {folder}/paid",
        f"267 messages put; 167 paid orders in {folder}/paid",
    ]
    return folder


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_paid_orders_reach_their_store_once_and_in_order(shop: Path) -> None:
    """The second run wrote only new orders, in later batches."""
    messages = logged(shop / "paid")
    assert [json.loads(message.body)["order"] for message in messages] == [n for n in range(ORDERS) if n % 3 == 0]
    assert all(message.topic == "paid-orders" and message.tags and message.keys for message in messages)
    keys = [message.all_properties["UNIQ_KEY"].split(":") for message in messages]
    assert len({query for query, _, _ in keys}) == 1
    batches = [int(batch) for _, batch, _ in keys]
    first = sum(number % 3 == 0 for number in range(FIRST_RUN))
    assert max(batches[:first]) < min(batches[first:])


@pytest.mark.spark
def test_the_table_has_each_message_once(shop: Path) -> None:
    """The Parquet files, read without Spark, equal the store's messages."""
    dataset = pytest.importorskip("pyarrow.dataset")
    rows = dataset.dataset(shop / "spark-warehouse" / "orders", format="parquet").to_table().to_pylist()
    expected = [
        (message.physical_offset, message.tags, json.loads(message.body)["order"]) for message in logged(shop / "orders")
    ]
    assert sorted((row["physical_offset"], row["state"], row["order"]) for row in rows) == expected


@pytest.mark.spark
def test_the_report_counts_and_plots(
    shop: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script runs in this session, and its numbers equal a plain count."""
    pytest.importorskip("matplotlib")
    picture = shop / "plot.png"
    monkeypatch.setattr(sys, "argv", ["report.py", str(shop), str(picture)])
    made: dict[str, Any] = runpy.run_path(str(EXAMPLE / "report.py"))
    assert "167 paid orders in the pipeline's store, 0 missing, 0 too many" in capsys.readouterr().out
    found = {(row["item"], row["tags"]): (row["orders"], row["cents"]) for row in made["rows"]}
    count, cents = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for message in logged(shop / "orders"):
        body = json.loads(message.body)
        count[body["item"], message.tags] += 1
        cents[body["item"], message.tags] += body["cents"]
    assert found == {key: (count[key], cents[key]) for key in count}
    assert picture.read_bytes().startswith(b"\x89PNG")
    made["plt"].close("all")
