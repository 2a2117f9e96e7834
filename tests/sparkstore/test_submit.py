"""The jobs by `spark-submit`, as the documentation has it: a JVM that starts Python, and not the other way round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark

from .conftest import JAVA_OPTIONS, ROOT, why_not

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_a_job_by_spark_submit(made: Path) -> None:
    """The command of the documentation ended with an import error, and nobody had run it."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    python = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = ["--master", "local[2]", "--driver-memory", "1g", "--conf", "spark.ui.enabled=false"]
    settings += ["--conf", "spark.sql.shuffle.partitions=2"]
    command = [submit, *settings, ROOT / "sparkstore" / "__main__.py", "stats", made, "--by", "topic", "--json"]
    told = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False,
        env=os.environ | python | {"SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": JAVA_OPTIONS},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr[-3000:]
    rows = [json.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]
    assert [(row["topic"], row["messages"]) for row in rows] == [(f"topic-{number}", 500) for number in range(3)]
    assert "stats: done in" in told.stdout, "spark-submit joins the two outputs of a Python program"
