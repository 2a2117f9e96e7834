"""The unmodified official Node client (`rocketmq-client-nodejs`, gRPC): the tests of Python's client with its programs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .jvm import CACHES, digest, take_name
from .live import MARKS
from .test_killed_server import (
    test_delayed_messages_never_come_before_their_time,
    test_messages_are_delivered_at_least_once,
    test_messages_of_a_group_stay_in_order,
    test_messages_that_always_fail_become_dead_letters,
    test_transactions_keep_their_decision,
)
from .test_python_client import (
    Run,
    Server,
    lines,
    programs,
    server,
    test_client_signs_its_requests,
    test_delayed_message_arrives_at_its_time,
    test_held_message_comes_again_after_its_time,
    test_message_that_always_fails_becomes_a_dead_letter,
    test_messages_of_a_group_are_consumed_in_order,
    test_nothing_acknowledged_is_lost_when_the_server_is_killed,
    test_push_consumers_share_a_topic,
    test_simple_consumer_gets_each_message_once,
    test_transactions_are_decided_by_their_producer,
)

__all__ = [
    "lines", "server",
    "test_client_signs_its_requests", "test_delayed_message_arrives_at_its_time",
    "test_delayed_messages_never_come_before_their_time", "test_held_message_comes_again_after_its_time",
    "test_message_that_always_fails_becomes_a_dead_letter", "test_messages_are_delivered_at_least_once",
    "test_messages_of_a_group_are_consumed_in_order", "test_messages_of_a_group_stay_in_order",
    "test_messages_that_always_fail_become_dead_letters",
    "test_nothing_acknowledged_is_lost_when_the_server_is_killed", "test_push_consumers_share_a_topic",
    "test_simple_consumer_gets_each_message_once", "test_transactions_are_decided_by_their_producer",
    "test_transactions_keep_their_decision",
]  # fmt: skip
TOOLS = ("node", "npm")
pytestmark = [
    *MARKS,
    pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason="node or npm is not installed"),
    pytest.mark.skipif(importlib.util.find_spec("rocketmq") is None, reason="the extra grpc is not installed"),
]
SOURCES = Path(__file__).with_name("node")
INSTALL_PATIENCE_S = 240


def node_program() -> Path:
    """Return the driver beside the client's modules; skip the test if npm cannot get them."""
    folder = CACHES / f"node-clients-{digest(sorted(SOURCES.iterdir()))}"
    if not folder.is_dir():
        made = folder.with_name(f"{folder.name}-{os.getpid()}")
        shutil.copytree(SOURCES, made)
        command = ["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=INSTALL_PATIENCE_S, check=False)
        if done.returncode != 0:
            shutil.rmtree(made)
            pytest.skip(f"the Node client cannot be installed: {done.stderr[-300:]}")
        take_name(made, folder)
    return folder / "driver.js"


@pytest.fixture
def start(server: Server, tmp_path: Path) -> Iterator[Run]:
    """Return a function that starts a scenario and returns its process."""
    with programs(["node", str(node_program())], server.address, tmp_path) as run:
        yield run


def test_message_keeps_its_fields(lines: Run) -> None:
    """Topic, body, tag, keys, properties and id."""
    (found,) = lines("dump", "orders")
    expected = {
        "body": "körper", "keys": ["key-1"], "same_id": True, "topic": "orders", "tag": "t", "properties": {"colour": "grün"},
        "delivery_attempt": 1, "corrupted": False,
    }  # fmt: skip
    assert found == expected
