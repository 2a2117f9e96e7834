"""Every kind of damage through every reading command: an answer or a named error, and not one byte changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.brokerstore.tool import run

COMMANDS = [
    "info", "ls", "dump", "get --at 0", "get --topic LiveFilter --queue 0 --offset 0 --count 9", "tail", "stats",
    "stats --by hour", "verify", "verify --log-only", "recover", "offsets show", "export", "export --to csv",
]  # fmt: skip


def _fill(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _as_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_bytes(b"not a folder")


def _first(folder: Path) -> Path:
    return min(path for path in folder.rglob("*") if path.is_file())


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "log_file_empty": lambda store: _fill(_first(store / "commitlog"), b""),
    "log_file_of_noise": lambda store: _fill(_first(store / "commitlog"), b"\xa7\x5a" * 32768),
    "log_file_of_ff": lambda store: _fill(_first(store / "commitlog"), b"\xff" * 65536),
    "log_file_cut": lambda store: _fill(_first(store / "commitlog"), _first(store / "commitlog").read_bytes()[:777]),
    "log_file_gone": lambda store: _first(store / "commitlog").unlink(),
    "log_stray": lambda store: _fill(store / "commitlog" / "notes.txt", b"hello"),
    "log_name_of_a_giant": lambda store: _fill(store / "commitlog" / ("9" * 40), b"x" * 65536),
    "queue_file_cut": lambda store: _fill(_first(store / "consumequeue"), b"x" * 7),
    "queue_file_of_ff": lambda store: _fill(_first(store / "consumequeue"), b"\xff" * 2000),
    "queue_file_empty": lambda store: _fill(_first(store / "consumequeue"), b""),
    "queues_as_a_file": lambda store: _as_file(store / "consumequeue"),
    "index_file_empty": lambda store: _fill(_first(store / "index"), b""),
    "index_file_of_ff": lambda store: _fill(_first(store / "index"), b"\xff" * _first(store / "index").stat().st_size),
    "index_file_cut": lambda store: _fill(_first(store / "index"), _first(store / "index").read_bytes()[:100]),
    "index_as_a_file": lambda store: _as_file(store / "index"),
    "checkpoint_of_ff": lambda store: _fill(store / "checkpoint", b"\xff" * 4096),
    "checkpoint_empty": lambda store: _fill(store / "checkpoint", b""),
    "config_as_a_file": lambda store: _as_file(store / "config"),
    "config_no_json": lambda store: [_fill(path, b"{{{") for path in (store / "config").iterdir() if path.is_file()],
    "config_of_other_types": lambda store: [_fill(path, b"[1]") for path in (store / "config").iterdir() if path.is_file()],
    "config_nested": lambda store: _fill(store / "config" / "topics.json", b"[" * 100_000),
    "abort_file": lambda store: _fill(store / "abort", b""),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_reading_a_damaged_store(fixture_store: Any, name: str) -> None:
    """No command ends in an error of our own; those that say nothing is wrong have an answer."""
    store = fixture_store("broker-live", own=True).store
    DAMAGE[name](store)
    before = contents(store)
    for line in [*COMMANDS, "query"]:
        command, *options = line.split()
        arguments = ["LiveFilter", "key"] if command == "query" else []
        ran = run(command, *options, store, *arguments) if command != "offsets" else run(command, "show", store)
        assert "internal error" not in ran.talk, (line, ran.talk)
        assert ran.code in (0, 1, 2, 3, 5), line
        assert ran.code == 0 or ran.talk or ran.out, line
    assert contents(store) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


RABBIT_COMMANDS = [
    "info",
    "ls",
    "dump",
    "dump --json",
    "get --queue q.mixed --offset 0",
    "stats",
    "verify",
    "recover",
    "export",
]


@pytest.mark.parametrize(
    "pattern", ["*.rdq", "*.idx", "*.jif", ".queue_name", "clean.dot", "*.ets", "recovery.dets", ".config"]
)
@pytest.mark.parametrize("data", [b"", b"\xff" * 5000, b"\x83h" + b"l" * 3000], ids=["empty", "ff", "deep term"])
def test_reading_a_damaged_rabbitmq_folder(fixture_store: Any, tmp_path: Path, pattern: str, data: bytes) -> None:
    """Every file of one kind beyond use."""
    folder = tmp_path / "vhost"
    shutil.copytree(fixture_store("rabbitmq-clean").folder.parent / "vhost", folder)
    for path in folder.rglob(pattern):
        path.write_bytes(data)
    before = contents(folder)
    for line in RABBIT_COMMANDS:
        command, *options = line.split()
        ran = run(command, *options, folder)
        assert "internal error" not in ran.talk, (line, ran.talk)
        assert ran.code in (0, 1, 2), line
    assert contents(folder) == before
