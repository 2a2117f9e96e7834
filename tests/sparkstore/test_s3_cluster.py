"""A store in a bucket, read by the executors of a cluster: with s3fs as the driver and moto as the server.

Both are no part of the environment of the tests: `pip install s3fs "moto[server]"` in one of their own.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("s3fs", reason="s3fs is not installed")
pytest.importorskip("moto.server", reason="moto[server] is not installed")

from commitlog import Message
from messagestore import MessageStore
from tests.stores import small_config

from .conftest import JAVA_OPTIONS, ROOT, why_not
from .local import dumped

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
SCRIPT = """
import json, sys
import sparkstore
from sparkstore.jobs import audit

settings = {
    "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "600m",
    "spark.driver.host": "127.0.0.1", "spark.executor.memory": "500m",
}
spark = sparkstore.session("local-cluster[2,1,1024]", settings=settings)
spark.sparkContext.setLogLevel("FATAL")
found = {}
for form in ("brokerstore", "brokerstore-jvm", "brokerstore-python"):
    frame = spark.read.format(form).option("splitBytes", "100000").load("s3://bucket/store")
    found[form] = [[row[0], row[1].hex()] for row in frame.select("physical_offset", "body").collect()]
late = sparkstore.read_messages(spark, "s3://bucket/store", ["tags"]).where("tags = 'late'").count()
report = audit(spark, "s3://bucket/store", splitBytes="100000")
print("FOUND", json.dumps([found, late, report.is_ok, report.counts["messages"]]))
spark.stop()
"""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Serve an empty bucket; yield its file system."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {
        "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        files = importlib.import_module("s3fs").S3FileSystem(skip_instance_cache=True)
        files.mkdir("bucket")
        yield files
        server.terminate()


def on_cluster(folder: Path) -> list[object]:
    """Read the bucket on two executors."""
    python = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    reported = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, cwd=folder,
        env=os.environ | python | {"JDK_JAVA_OPTIONS": JAVA_OPTIONS},
    )  # fmt: skip
    lines = [line for line in reported.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, reported.stderr[-3000:]
    answer: list[object] = json.loads(lines[0][6:])
    return answer


def test_a_store_in_a_bucket_is_read_by_the_executors_and_again_after_it_grew(bucket: object, tmp_path: Path) -> None:
    """Each source gives every row once, with the jar and without; `audit` finds the log intact."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path / "store"
    for tags in ("early", "late"):
        with MessageStore.open(folder, config=small_config()) as store:
            for number in range(500):
                store.put(Message("t", b"%d" % number * 100, tags=tags))
        bucket.put(f"{folder}/", "bucket/store/", recursive=True)  # type: ignore[attr-defined]
        expected = sorted([row["physical_offset"], row["body"].hex()] for row in dumped(folder))
        found, late, is_ok, count = on_cluster(tmp_path)
        assert isinstance(found, dict) and len(found) == 3
        assert {name: sorted(rows) for name, rows in found.items()} == dict.fromkeys(found, expected)
        assert (late, is_ok, count) == (500 if tags == "late" else 0, True, len(expected))
