"""What a user's type checker knows of `open` and of the settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import brokerstore
from brokerstore import MessageStore, RabbitStore, StoreConfig

config: StoreConfig = StoreConfig.small(max_message_size=1 << 20).but(file_reserved_time_hours=1)
one: MessageStore = brokerstore.open("store", config=config)
either: MessageStore | RabbitStore = brokerstore.open("folder")
StoreConfig.small(max_message_sise=1)
config.but(max_message_size="1")
brokerstore.open("store", config)
"""


@pytest.mark.deep
def test_mypy_knows_the_settings_and_the_store_of_open(tmp_path: Path) -> None:
    """The right lines pass `mypy --strict`; each of the three wrong ones is an error."""
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", f"--cache-dir={tmp_path}", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env={"MYPYPATH": str(ROOT)}, capture_output=True, text=True)
    assert [line.split(":")[1] for line in done.stdout.splitlines() if line.startswith("program") and ": error:" in line] == [
        "8",
        "9",
        "10",
    ], done.stdout
