"""The commands that the tool prints end the problem: followed from `verify` on, they end at a `verify` that finds nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.archives import unpack
from tests.brokerstore.printed_steps import endings
from tests.cases import ROCKETMQ_CASES, unpack_case

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
]


def assert_all_end(folder: Path) -> None:
    """Assert that every way through the printed commands ends at a `verify` that finds nothing."""
    wrong = [str(ending) for ending in endings(folder) if not ending.is_intact]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ROCKETMQ_CASES)
def test_the_printed_commands_repair_a_reported_folder(name: str, tmp_path: Path) -> None:
    """Each case that an operator reported, with each option where `recover` asks for a choice."""
    assert_all_end(unpack_case(name, tmp_path / "case").folder)


@pytest.mark.parametrize("name", FIXTURES)
def test_the_printed_commands_repair_a_store_of_the_real_system(name: str, tmp_path: Path) -> None:
    """Healthy stores need no step, killed ones a recovery."""
    unpack(DATA / f"{name}.tar.xz", tmp_path)
    for log in sorted(tmp_path.rglob("commitlog")):
        assert_all_end(log.parent)


@pytest.mark.deep
@pytest.mark.parametrize("damage", DAMAGES, ids=["last file gone", "cut", "first file zeroed", "no file"])
@pytest.mark.parametrize("name", ["propcrc", "batchcq", "broker-live"])
def test_the_printed_commands_repair_a_damaged_log(name: str, damage: Callable[[Path], object], tmp_path: Path) -> None:
    """Each option that the tool names for a log that lost files ends at an intact store."""
    unpack(DATA / f"{name}.tar.xz", tmp_path)
    folder = next(tmp_path.rglob("commitlog")).parent
    damage(folder)
    assert_all_end(folder)
