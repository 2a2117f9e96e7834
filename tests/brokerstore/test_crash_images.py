"""Crash images of the lab through every reading command: each answers or reports a named error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lab import rabbitmq_lab, rocketmq_lab
from storageio.testing import ForgettingDisk, Image
from tests.brokerstore.tool import run
from tests.helpers import contents

IMAGES = 10  # of the thousands that a program makes
EVERY = [
    "info", "info --json", "ls", "ls --json", "dump", "dump --json", "stats", "stats --json", "verify", "verify --json",
    "recover", "export", "export --to csv", "export --to parquet --out OUT", "export --to arrow --out OUT", "diff",
]  # fmt: skip
COMMANDS = {
    "rocketmq": [*EVERY, "tail", "tail --json", "stats --by hour", "query", "get --at 0",
                 "get --topic T --queue 0 --offset 0 --count 9",
                 "offsets show", "verify --log-only", "recover --skip-bad", "recover --truncate"],
    "rabbitmq": [*EVERY, "get --queue a --offset 0"],
}  # fmt: skip


def crash_images(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> list[Image]:
    """Return some of the crash images of a random program of the lab."""
    lab: Any = {"rocketmq": rocketmq_lab, "rabbitmq": rabbitmq_lab}[kind]
    found: list[Image] = []
    runs = {"rocketmq": rocketmq_lab.RocketmqRun, "rabbitmq": rabbitmq_lab.RabbitRun}
    monkeypatch.setattr(runs[kind], "judge_image", lambda _run, image, _promise: found.append(image))
    lab.random_run(seed, {"rocketmq": 14, "rabbitmq": 40}[kind])
    assert len(found) > 100
    return Random(seed).sample(found, IMAGES)


def written(image: Image, folder: Path) -> Iterator[Path]:
    """Write an image as files and return the store's folder."""
    for path, data in ForgettingDisk.of(image).files().items():
        there = folder / path.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(data)
    yield from folder.iterdir()


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["rocketmq", "rabbitmq"])
def test_no_command_ends_in_a_traceback_on_a_crash_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
) -> None:
    """Torn pages, lost files, sizes and names end in an answer or an error, and nothing is changed."""
    codes = set()
    for number, image in enumerate(crash_images(kind, seed, monkeypatch)):
        for folder in written(image, tmp_path / f"image-{number}"):
            before = contents(folder)
            for line in [*COMMANDS[kind], *(["report"] if number < 2 else [])]:
                ran = answer(line, folder, tmp_path / f"out-{number}")
                assert "internal error" not in ran.talk, (number, line, ran.talk)
                assert ran.code in (0, 1, 2, 3), (number, line, ran)
                codes.add(ran.code)
            assert contents(folder) == before
    assert {0, 1} <= codes


def answer(line: str, folder: Path, out: Path) -> Any:
    """Return the answer of one command."""
    command, *options = line.split()
    options = [str(out) if option == "OUT" else option for option in options]
    behind = {"query": ["T", "key"], "diff": [folder]}.get(command, [])
    return run(command, *options, folder, *behind)
