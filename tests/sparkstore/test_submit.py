"""The jobs run by `spark-submit`, as documented: a JVM starts Python instead of the other way round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark

from .conftest import JAVA_OPTIONS, ROOT, why_not

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_a_python_without_the_library_is_named(made: Path, tmp_path: Path) -> None:
    """A script run without its environment used to print a hundred lines of Java without the reason."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    python = {"PYSPARK_PYTHON": str(bare / "bin" / "python"), "PYTHONPATH": "", "JDK_JAVA_OPTIONS": JAVA_OPTIONS}
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pyspark.sql import SparkSession\n"
        "from sparkstore import read_messages\n"
        'spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()\n'
        "read_messages(spark, sys.argv[2])\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", script, str(ROOT), str(made)], capture_output=True, text=True, check=False, cwd=tmp_path,
        env=os.environ | python | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip
    assert told.returncode != 0
    last = told.stderr.strip().splitlines()[-1]
    assert last.startswith("storageio.errors.MissingExtra: the Python of Spark's workers")
    assert (str(bare) in last, sys.executable in last) == (True, True)


def test_a_job_by_spark_submit(made: Path) -> None:
    """The documented command used to end with an import error."""
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
