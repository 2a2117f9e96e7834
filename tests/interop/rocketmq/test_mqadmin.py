"""Every command of RocketMQ's `mqadmin`, unchanged, against a store of ours: it works, or a line tells why not."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .jvm import OPTIONS, SMALL_JVM, prepare
from .live import MARKS, Served
from .real_broker import CLUSTER, NAME, until
from .test_served_clients import sent

pytestmark = MARKS
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "mqadmin.md"
MAIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
MESSAGES = 20
PATIENCE_S = 60
FOREVER = ("clusterRT", "startMonitoring")  # they go on until they are stopped
FOREVER_S = 8


class Expected(NamedTuple):
    """Arguments of a command, and a pattern that its output has."""

    arguments: str
    pattern: str
    is_refused: bool = False


def refused(arguments: str, reason: str) -> Expected:
    return Expected(arguments, rf"CODE: 3  DESC: {reason}", is_refused=True)


AUTH = "access is by one key and secret"
KV = "this name server keeps no settings"
ONE = "this is one broker, without a controller"
# In this order: the last ones delete what the others read.
COMMANDS = {
    "clusterList": Expected("", rf"{CLUSTER} +{NAME} +0 .*V5_3_3"),
}  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start a server with messages, a group that is connected and one that is not."""
    with Served(tmp_path_factory.mktemp("served")) as found:
        for topic in ("orders", "spare", "moved"):
            found.invoke("topic", topic=topic, queues=2)
        found.invoke("send", messages=[sent("orders", number) for number in range(MESSAGES)])
        found.invoke("send", messages=[sent("moved", number) for number in range(MESSAGES)])
        found.invoke("subscribe", topic="orders", group="gone", count=MESSAGES, patience_ms=60_000)
        file = str(found.folder.with_name("file"))
        found.invoke("start_consumer", name="c", group="readers", topic="orders", file=file)
        until(lambda: bool(found.members("readers")), "the consumer is there")
        yield found
