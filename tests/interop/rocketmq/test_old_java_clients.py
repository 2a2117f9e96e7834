"""The unmodified Java clients 3.2.6 and 4.9.7 on a served store: all ways to send and to consume that each of them has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from messagestore import MessageStore
from rocketlink import BrokerServer

from .jvm import HERE, OPTIONS, SMALL_JVM, prepared
from .live import CONFIG, LIVE, MARKS

pytestmark = [*MARKS, pytest.mark.timeout(900)]
SOURCES = HERE / "old_java"
COUNT = min(LIVE // 10, 2000)
EACH = {"push": list(range(COUNT)), "tag": list(range(0, COUNT, 2)), "pull": list(range(COUNT))}


def run(folder: Path, pom: Path, version: str, name: str, package: str = "org.apache.rocketmq") -> dict[str, str]:
    """Return the lines of a client's program, after checks that each message arrived once, in order where it is asked for."""
    sources = folder / "sources"
    sources.mkdir()
    for file in (SOURCES / "Common.java", SOURCES / f"{name}.java"):
        (sources / file.name).write_text(file.read_text().replace("import org.apache.rocketmq", f"import {package}"))
    try:
        path = prepared(pom, sources, version)
    except RuntimeError as error:
        pytest.skip(str(error))
    with MessageStore.open(folder / "s", "a", CONFIG) as store, BrokerServer(store) as server:
        command = ["java", *SMALL_JVM, *OPTIONS, "-Xmx256m", f"-Duser.home={folder}", "-cp", path, name]
        command += [server.address, str(COUNT)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = dict(line.split(" ", 1) for line in ran.stdout.splitlines() if " " in line)
    for kind, expected in EACH.items():
        assert numbers(found[kind]) == expected, kind
    for queue in "01":
        of_queue = [int(one[2:]) for one in found["order"].split(",") if one[0] == queue]
        assert of_queue == list(range(int(queue), COUNT, 2))
    return found


def numbers(line: str) -> list[int]:
    return sorted(map(int, line.split(",")))


def test_java_client_of_rocketmq_3(tmp_path: Path) -> None:
    """It also retries, and asks by key."""
    found = run(tmp_path, SOURCES / "pom-3.xml", "3.2.6", "OldestClient", "com.alibaba.rocketmq")
    assert numbers(found["retry"]) == list(range(1, COUNT, 2))
    assert numbers(found["query"]) == [3]


def test_java_client_of_rocketmq_4(tmp_path: Path) -> None:
    """It also decides transactions, and gets a reply."""
    found = run(tmp_path, HERE / "pom.xml", "4.9.7", "OldClient")
    assert numbers(found["transaction"]) == [number for number in range(COUNT) if number % 3 != 1]
    assert found["reply"] == "re: hello"
