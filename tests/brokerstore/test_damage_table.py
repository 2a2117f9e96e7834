"""Every kind of damage through every reading command: an answer or a named error, and no byte changed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.brokerstore.tool import run
from tests.helpers import contents

COMMANDS = [
    "info", "ls", "dump", "get --at 0", "get --topic LiveFilter --queue 0 --offset 0 --count 9", "tail", "stats",
    "stats --by hour", "verify", "verify --log-only", "recover", "offsets show", "export", "export --to csv",
    "export --to parquet --out OUT", "export --to arrow --out OUT", "export --out OUT", "report", "query", "diff",
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


@pytest.mark.deep
@pytest.mark.parametrize("name", DAMAGE)
def test_reading_a_damaged_store(fixture_store: Any, tmp_path: Path, name: str) -> None:
    """No command ends in an internal error; commands that report no problem have an answer."""
    store = fixture_store("broker-live", own=True).store
    DAMAGE[name](store)
    before = contents(store)
    for line in COMMANDS:
        command, *options = line.split()
        options = [str(tmp_path / "out") if option == "OUT" else option for option in options]
        behind = {"query": ["LiveFilter", "key"], "diff": [store]}.get(command, [])
        ran = run(command, *options, store, *behind)
        assert "internal error" not in ran.talk, (line, ran.talk)
        assert ran.code in (0, 1, 2, 3, 5), line
        assert ran.code == 0 or ran.talk or ran.out, line
        assert ran.code == 0 or "run: " in ran.talk or "Try " in ran.talk or command == "diff", (line, ran.talk)
    assert contents(store) == before


RABBIT_QUICK = ["info", "ls", "get --queue q.mixed --offset 0", "verify", "recover", "export"]
RABBIT_SLOW = [
    "dump",
    "dump --json",
    "stats",
    "export --to csv",
    "export --to parquet --out OUT",
    "export --to arrow --out OUT",
    "report",
    "diff",
]


@pytest.mark.parametrize("commands", [RABBIT_QUICK, pytest.param(RABBIT_SLOW, marks=pytest.mark.deep)], ids=["quick", "slow"])
@pytest.mark.parametrize(
    "pattern", ["*.rdq", "*.idx", "*.jif", ".queue_name", "clean.dot", "*.ets", "recovery.dets", ".config"]
)
@pytest.mark.parametrize("data", [b"", b"\xff" * 5000, b"\x83h" + b"l" * 3000], ids=["empty", "ff", "deep term"])
def test_reading_a_damaged_rabbitmq_folder(
    fixture_store: Any, tmp_path: Path, pattern: str, data: bytes, commands: list[str]
) -> None:
    """Every file of one kind is unreadable."""
    folder = tmp_path / "vhost"
    shutil.copytree(fixture_store("rabbitmq-clean").folder.parent / "vhost", folder)
    for path in folder.rglob(pattern):
        path.write_bytes(data)
    before = contents(folder)
    for line in commands:
        command, *options = line.split()
        options = [str(tmp_path / "out") if option == "OUT" else option for option in options]
        ran = run(command, *options, folder, *([folder] if command == "diff" else []))
        assert "internal error" not in ran.talk, (line, ran.talk)
        assert ran.code in (0, 1, 2), line
    assert contents(folder) == before


READ_QUICKLY = [command for command in COMMANDS if command != "report" and "OUT" not in command]


def harm(folder: Path, chance: random.Random) -> str:
    """Remove, cut, extend or empty a file, flip a bit, fill a range, or replace it by another file's bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path, other = chance.choice(files), chance.choice(files)
    data = bytearray(path.read_bytes())
    at, size = chance.randrange(len(data) + 1), chance.choice([1, 8, 20, 512, 4096])
    how = chance.choice(["gone", "cut", "grown", "empty", "bit", "zeros", "noise", "other"])
    if how == "gone":
        path.unlink()
        return f"{how} {path}"
    if how == "bit" and data:
        data[at % len(data)] ^= 1 << chance.randrange(8)
    elif how in ("zeros", "noise"):
        data[at : at + size] = bytes(size) if how == "zeros" else chance.randbytes(size)
    else:
        data = {"cut": data[:at], "grown": data + b"\xff" * size, "other": bytearray(other.read_bytes())}.get(how, bytearray())
    path.write_bytes(data)
    return f"{how} {path} at {at}"


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("kind", ["rocketmq", "rabbitmq"])
def test_reading_commands_survive_random_damage_to_any_file(fixture_store: Any, tmp_path: Path, kind: str, seed: int) -> None:
    """After one to three random changes every reading command answers or reports, and changes nothing."""
    chance = random.Random(f"{kind} {seed}")
    if kind == "rocketmq":
        folder, commands = fixture_store("broker-live", own=True).store, READ_QUICKLY
    else:
        folder, commands = (
            tmp_path / "vhost",
            [one for one in (*RABBIT_QUICK, *RABBIT_SLOW) if one != "report" and "OUT" not in one],
        )
        shutil.copytree(fixture_store("rabbitmq-clean").folder.parent / "vhost", folder)
    done = [harm(folder, chance) for _ in range(chance.randint(1, 3))]
    before = contents(folder)
    for line in [*commands, *(["report"] if seed % 6 == 0 else [])]:
        command, *options = line.split()
        behind = {"query": ["LiveFilter", "key"], "diff": [folder]}.get(command, [])
        ran = run(command, *options, folder, *behind)
        assert "internal error" not in ran.talk, (done, line, ran.talk)
        assert ran.code in (0, 1, 2, 3, 5), (done, line)
    assert contents(folder) == before
