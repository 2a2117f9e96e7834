"""The commands that the tool prints end the problem: followed from `verify` on, they end at a `verify` that finds nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.archives import unpack
from tests.brokerstore.printed_steps import endings
from tests.cases import RABBITMQ_CASES, ROCKETMQ_CASES, unpack_case
from tests.rabbitstore.later import node_of

UNSUPPORTED = 3
DATA = Path(__file__).parent.parent / "data"
FIXTURES = sorted(path.name.removesuffix(".tar.xz") for path in DATA.glob("*.tar.xz") if not path.name.startswith("rabbit"))


def last_file(folder: Path) -> Path:
    """Return the last file of the log."""
    return max((folder / "commitlog").iterdir())


def cut_inside(folder: Path) -> None:
    """Leave zeros behind the middle of the last file's first record."""
    size = last_file(folder).stat().st_size
    last_file(folder).write_bytes(last_file(folder).read_bytes()[:100].ljust(size, b"\0"))


def first_zeroed(folder: Path) -> None:
    """Leave nothing but zeros in the log's first file."""
    path = min((folder / "commitlog").iterdir())
    path.write_bytes(bytes(path.stat().st_size))


DAMAGES: list[Callable[[Path], object]] = [
    lambda folder: last_file(folder).unlink(),
    cut_inside,
    first_zeroed,
    lambda folder: [path.unlink() for path in (folder / "commitlog").iterdir()],
    lambda folder: shutil.rmtree(folder / "commitlog"),
]


def assert_all_end(folder: Path) -> None:
    """Assert that every way through the printed commands ends at a `verify` that finds nothing."""
    wrong = [str(ending) for ending in endings(folder) if not ending.is_intact]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ROCKETMQ_CASES)
@pytest.mark.deep
def test_the_printed_commands_repair_a_reported_folder(name: str, tmp_path: Path) -> None:
    """Each case that an operator reported, with each option where `recover` asks for a choice."""
    assert_all_end(unpack_case(name, tmp_path / "case").folder)


@pytest.mark.parametrize("name", RABBITMQ_CASES)
@pytest.mark.deep
def test_the_printed_commands_end_with_an_intact_node_or_require_an_operator(name: str, tmp_path: Path) -> None:
    """A format that is not understood is left alone, with exit 3."""
    for ending in endings(unpack_case(name, tmp_path / "case").folder):
        is_left = ending.last.code == UNSUPPORTED or "a person has to decide: " in ending.last.talk
        assert ending.is_intact or is_left, str(ending)


def test_streams_without_a_coordinator_require_an_operator(tmp_path: Path) -> None:
    """`recover` has no step for them and does not print one."""
    unpack(DATA / "rabbitmq4-streams.tar.xz", tmp_path / "source")
    node_of("rabbitmq4-streams", tmp_path / "source", tmp_path / "node")
    shutil.rmtree(next((tmp_path / "node" / "coordination").iterdir()))
    (ending,) = endings(tmp_path / "node")
    assert [step.split()[0] for step in ending.steps] == ["verify", "recover"]
    assert "a person has to decide: brokerstore export" in ending.last.talk


@pytest.mark.parametrize("name", FIXTURES)
def test_the_printed_commands_repair_a_store_of_the_real_system(name: str, tmp_path: Path) -> None:
    """Healthy stores need no step, killed ones a recovery."""
    unpack(DATA / f"{name}.tar.xz", tmp_path)
    for log in sorted(tmp_path.rglob("commitlog")):
        assert_all_end(log.parent)


@pytest.mark.deep
@pytest.mark.parametrize("damage", DAMAGES, ids=["last file gone", "cut", "first file zeroed", "no file", "no folder"])
@pytest.mark.parametrize("name", ["propcrc", "batchcq", "broker-live"])
def test_the_printed_commands_repair_a_damaged_log(name: str, damage: Callable[[Path], object], tmp_path: Path) -> None:
    """Each option that the tool names for a log that lost files ends at an intact store."""
    unpack(DATA / f"{name}.tar.xz", tmp_path)
    folder = next(tmp_path.rglob("commitlog")).parent
    damage(folder)
    assert_all_end(folder)
