"""The unmodified official Rust client (crate `rocketmq`, gRPC): the tests of Python's client with its programs.

It has a producer and a simple consumer.
"""

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
from .test_python_client import (
    Run,
    Server,
    lines,
    programs,
    server,
    test_delayed_message_arrives_at_its_time,
    test_nothing_acknowledged_is_lost_when_the_server_is_killed,
    test_simple_consumer_gets_each_message_once,
    test_transactions_are_decided_by_their_producer,
)

__all__ = [
    "lines", "server",
    "test_delayed_message_arrives_at_its_time", "test_nothing_acknowledged_is_lost_when_the_server_is_killed",
    "test_simple_consumer_gets_each_message_once", "test_transactions_are_decided_by_their_producer",
]  # fmt: skip
BUILD_PATIENCE_S = 900
pytestmark = [
    pytest.mark.timeout(BUILD_PATIENCE_S + 300),  # of two, the first counts
    *MARKS,
    pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not installed"),
    pytest.mark.skipif(importlib.util.find_spec("rocketmq") is None, reason="the extra grpc is not installed"),
]
SOURCES = Path(__file__).with_name("rust")


def rust_program() -> Path:
    """Return the compiled driver; skip the test if cargo cannot get or build the client."""
    files = sorted(path for path in SOURCES.rglob("*") if path.suffix in (".rs", ".toml"))
    program = CACHES / f"rust-clients-{digest(files)}"
    if not program.is_file():
        made = program.with_name(f"{program.name}-{os.getpid()}")
        shutil.copytree(SOURCES, made)
        command = ["cargo", "build", "--quiet"]
        done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=BUILD_PATIENCE_S, check=False)
        if done.returncode == 0:
            take_name(made / "target" / "debug" / "brokerstore-rust-clients", program)
        shutil.rmtree(made)
        if done.returncode != 0:
            pytest.skip(f"the Rust client cannot be built: {done.stderr[-300:]}")
    return program


@pytest.fixture
def start(server: Server, tmp_path: Path) -> Iterator[Run]:
    """Return a function that starts a scenario and returns its process."""
    with programs([str(rust_program())], server.address, tmp_path) as run:
        yield run
