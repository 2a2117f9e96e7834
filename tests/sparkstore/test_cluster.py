"""More than one JVM: a master and two workers on this machine, each executor a process of its own.

`local-cluster` starts Spark's Master and Workers in the driver's JVM; the standalone cluster has a JVM for each.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from .conftest import JAVA_OPTIONS, ROOT, quick_home, why_not
from .local import dumped
from .sink_tools import bodies

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCRIPT = """
import json, sys, time
import sparkstore
from sparkstore.jobs import audit
from tests.sparkstore.killing_source import KillingSource
from tests.sparkstore.sink_tools import SMALL

made, work, master = sys.argv[1:]
settings = {
    "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "600m",
    "spark.driver.host": "127.0.0.1", "spark.executor.memory": "500m", "spark.sql.shuffle.partitions": "2",
    "spark.local.dir": work + "/local", "spark.executor.cores": "1", "spark.cores.max": "2",
}
spark = sparkstore.session(master, settings=settings)
spark.sparkContext.setLogLevel("FATAL")
deadline = time.monotonic() + 300  # both executors, however busy the machine is: Spark itself begins with none
while (hosts := spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1) < 2 and time.monotonic() < deadline:
    time.sleep(0.1)
rows = sparkstore.read_messages(spark, made, ["physical_offset"], splitBytes="100000").count()
report = audit(spark, made, splitBytes="100000")
spark.dataSource.register(KillingSource)
frame = spark.range(0, 400, 1, 3).selectExpr("'t' topic", "cast('body ' || id AS binary) body")
killing = {**SMALL, "killTask": "0", "killExecutor": "true", "deaths": work + "/deaths", "sinkId": "one"}
for _ in range(2):  # the second run finds the whole batch
    frame.write.format("brokerstore_killing").options(**killing).mode("append").save(work + "/sink")
print("FOUND", json.dumps([hosts, rows, report.is_ok, report.counts["messages"]]))
spark.stop()
"""


@contextmanager
def standalone(work: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run a master and two workers of one core each; yield the master's URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, common = f"spark://127.0.0.1:{port}", ["--host", "127.0.0.1", "--webui-port", "0"]
    words = [["Master", *common, "--port", str(port)]]
    words += [["Worker", *common, "-c", "1", "-m", "1g", "-d", str(work / f"worker-{number}"), url] for number in range(2)]
    with ExitStack() as stack:
        for role, *rest in words:
            command = [f"{environment['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{role.lower()}.{role}", *rest]
            log = stack.enter_context((work / "cluster.txt").open("a"))
            process = stack.enter_context(subprocess.Popen(command, env=os.environ | environment, stdout=log, stderr=log))
            stack.callback(process.terminate)
            if role == "Master":
                wait_for(port, process)
        yield url


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a port of this machine takes connections."""
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"the master did not start; it ended with {process.poll()}")


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only Linux says which process started an executor")
@pytest.mark.parametrize("kind", ["local-cluster[2,1,1024]", pytest.param("standalone", marks=pytest.mark.deep)])
def test_a_sink_commits_each_row_once_although_executors_are_killed(made: Path, tmp_path: Path, kind: str) -> None:
    """Tasks lost with their executor run again in another process, and the sink commits each row once."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    for name in ("deaths", "home"):
        (tmp_path / name).mkdir()
    environment = {
        "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": JAVA_OPTIONS, "SPARK_HOME": str(quick_home(tmp_path / "home")),
    }  # fmt: skip
    with ExitStack() as stack:
        master = stack.enter_context(standalone(tmp_path, environment)) if kind == "standalone" else kind
        reported = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(made), str(tmp_path), master], capture_output=True, text=True, check=False,
            cwd=tmp_path, env=os.environ | environment,
        )  # fmt: skip
    lines = [line for line in reported.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, reported.stderr[-3000:]
    expected = len(dumped(made))
    assert json.loads(lines[0][6:]) == [2, expected, True, expected]
    assert list((tmp_path / "deaths").iterdir()), "an executor was killed"
    assert sorted(bodies(tmp_path / "sink")) == sorted(b"body %d" % number for number in range(400))
