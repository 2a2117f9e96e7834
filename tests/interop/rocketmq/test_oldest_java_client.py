"""The Java client 3.2.6, `com.alibaba.rocketmq` on a served store: sends, pushes, retries, order, pulls, queries."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from messagestore import MessageStore
from rocketlink import BrokerServer

from .jvm import HERE, OPTIONS, SMALL_JVM, prepared
from .live import CONFIG, LIVE, MARKS

pytestmark = [*MARKS, pytest.mark.timeout(900)]
COUNT = min(LIVE // 10, 2000)
NUMBERS = {
    "push": list(range(COUNT)),
    "tag": list(range(0, COUNT, 2)),
    "retry": list(range(1, COUNT, 2)),
    "pull": list(range(COUNT)),
    "query": [3],
}


def test_java_client_of_rocketmq_3(tmp_path: Path) -> None:
    """Each way to send and to consume delivers each message once, in order where it is asked for."""
    try:
        path = prepared(HERE / "java3" / "pom.xml", HERE / "java3", "3.2.6")
    except RuntimeError as error:
        pytest.skip(str(error))
    with MessageStore.open(tmp_path / "s", "a", CONFIG) as store, BrokerServer(store) as server:
        command = ["java", *SMALL_JVM, *OPTIONS, "-Xmx256m", f"-Duser.home={tmp_path}", "-cp", path, "OldestClient"]
        command += [server.address, str(COUNT)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = dict(line.split(" ", 1) for line in ran.stdout.splitlines() if line.split(" ")[0] in (*NUMBERS, "order"))
    for name, expected in NUMBERS.items():
        assert sorted(map(int, found[name].split(","))) == expected, name
    for queue in "01":
        of_queue = [int(one[2:]) for one in found["order"].split(",") if one[0] == queue]
        assert of_queue == list(range(int(queue), COUNT, 2))
