"""The unmodified Java clients 3.2.6 and 4.9.7 on a served store: all ways to send and to consume that each of them has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from messagestore import MessageStore
from rocketlink import BrokerServer

from .jvm import HERE, OPTIONS, SMALL_JVM, prepared
from .live import CONFIG, LIVE, MARKS

pytestmark = [pytest.mark.timeout(900), *MARKS]
SOURCES = HERE / "old_java"
COUNT = min(LIVE // 10, 2000)
EACH = {"push": list(range(COUNT)), "tag": list(range(0, COUNT, 2)), "pull": list(range(COUNT))}


PACKAGES = {
    "3": ("org.apache.rocketmq", "com.alibaba.rocketmq"),
    "5": ("rocketmq.common.protocol", "rocketmq.remoting.protocol"),
}


def class_path(folder: Path, version: str, *names: str) -> str:
    """Return the class path of programs for a version of the client, compiled with that version's names of packages."""
    sources = folder / f"sources-{version}"
    sources.mkdir()
    for name in names:
        text = (SOURCES / f"{name}.java").read_text()
        (sources / f"{name}.java").write_text(text.replace(*PACKAGES.get(version[0], ("", ""))))
    try:
        return prepared(SOURCES / "pom-3.xml" if version[0] == "3" else HERE / "pom.xml", sources, version)
    except RuntimeError as error:
        pytest.skip(str(error))


def run(folder: Path, version: str, name: str) -> dict[str, str]:
    """Return the lines of a client's program, after checks that each message arrived once, in order where it is asked for."""
    path = class_path(folder, version, "Common", name)
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
    found = run(tmp_path, "3.2.6", "OldestClient")
    assert numbers(found["retry"]) == list(range(1, COUNT, 2))
    assert numbers(found["query"]) == [3]


def test_java_client_of_rocketmq_4(tmp_path: Path) -> None:
    """It also decides transactions, and gets a reply."""
    found = run(tmp_path, "4.9.7", "OldClient")
    assert numbers(found["transaction"]) == [number for number in range(COUNT) if number % 3 != 1]
    assert found["reply"] == "re: hello"
