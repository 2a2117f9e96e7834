"""Whole files of RabbitMQ nodes empty, zeroed, missing, older, of another node, or beside one whose name is not ASCII."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from tests.amounts import amount
from tests.archives import unpack
from tests.cases import unpack_case
from tests.faults.file_damage import Damage, Damager
from tests.faults.golden import DATA, fast_folder
from tests.faults.rabbit_files import Base, Judge, damaged
from tests.faults.rabbit_witnesses import Witnesses

pytestmark = pytest.mark.default
CASES = ("rabbit-dlx-3.10.8", "rabbit-quorum-latin1-4.0.5")
NODES = ("rabbitmq4-killed", "rabbitmq43-clean")
# (folders, seed): a sample is the beginning of what runs at night
SAMPLE = [pytest.param((3, 3), id="sample"), pytest.param((amount(15, 60), 60), id="many", marks=pytest.mark.deep)]
Make = Callable[[str], Base]


@pytest.fixture(scope="module")
def make() -> Iterator[Make]:
    """Return a function that unpacks the folder of a real server once."""
    with fast_folder() as above:

        @cache
        def made(name: str) -> Base:
            if name in CASES:
                folder = unpack_case(name, above / name).folder
            else:
                unpack(DATA / f"{name}.tar.xz", above / name)
                folder = above / name / "node"
                shutil.copy(above / name / "feature_flags", above / name / "node-feature_flags")
            return Base(name, folder, None, None if name == CASES[-1] else made(CASES[-1]).folder)

        yield made


@pytest.mark.parametrize("name", [*CASES, *NODES])
def test_a_healthy_node_has_no_contradiction(name: str, make: Make) -> None:
    """The plain model agrees with every file of servers of four releases, and so does `verify`."""
    base = make(name)
    judge = Judge(base)
    assert judge.whole and Witnesses(base.folder).disagreements() == []
    outcome = judge.judge(base.folder, [])
    assert (outcome.verify, outcome.violations, outcome.limits) == (0, [], [])


def test_a_name_table_of_another_node_requires_an_operator(make: Make, tmp_path: Path) -> None:
    """The printed commands must end, or say that a person has to decide."""
    base = make("rabbit-dlx-3.10.8")
    folder = Path(shutil.copytree(base.folder, tmp_path / "node"))
    path = next(folder.glob("coordination/*/names.dets"))
    damage = Damage("", str(path.relative_to(folder)), "foreign")
    assert Damager(None, base.other, Random(1)).apply(folder, damage)
    assert not Judge(base).judge(folder, [damage]).violations


@pytest.mark.parametrize("folders", SAMPLE)
@pytest.mark.parametrize("name", [*CASES, *NODES])
@pytest.mark.deep
def test_a_damaged_file_is_reported_and_what_it_loses_is_counted(name: str, folders: tuple[int, int], make: Make) -> None:
    """`verify` is 0 only if a plain model finds nothing missing, and the printed commands end without an uncounted loss."""
    with fast_folder() as above:
        judge = Judge(make(name))
        found = {}
        count, seed = folders
        for folder, damages in islice(damaged(judge.base, above, seed), count):
            outcome = judge.judge(folder, damages)
            shutil.rmtree(folder.parent)
            if outcome.violations:
                found[" + ".join(map(str, damages))] = outcome.violations
        assert not found


@pytest.mark.parametrize(
    ("path", "how", "expected"),
    [
        ("quorum/*/*.wal", "zeros", "its log ends at"),
        ("msg_stores/vhosts/*/queues/*/0.qs", "empty", "entries of indexes name messages that are not listed"),
    ],
)
@pytest.mark.deep
def test_the_plain_model_sees_a_contradiction(path: str, how: str, expected: str, make: Make, tmp_path: Path) -> None:
    """Two parts of a folder that differ show what neither shows alone."""
    base = make("rabbitmq4-killed")
    judge = Judge(base)
    folder = Path(shutil.copytree(base.folder, tmp_path / "node"))
    for one in base.folder.glob(path):
        Damager(None, None, Random(1)).apply(folder, Damage("", str(one.relative_to(base.folder)), how))
    witnesses = Witnesses(folder)
    assert expected in " ".join([*witnesses.disagreements(), *judge.missing(witnesses, [])])
