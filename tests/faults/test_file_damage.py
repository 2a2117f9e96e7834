"""Whole files of RocketMQ stores empty, zeroed, missing, older, of another store, or beside one whose name is not ASCII."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from tests.amounts import amount
from tests.faults.damaged_stores import OURS, REAL, Template, damaged_copies, template
from tests.faults.file_damage import Damage, Damager, copied
from tests.faults.file_judge import Judge, with_damage
from tests.faults.golden import fast_folder, unpacked
from tests.faults.store_damage import record_offsets
from tests.faults.witnesses import read_witnesses

pytestmark = pytest.mark.default
# (folders, seed): a sample is the beginning of what runs at night
SAMPLE = [pytest.param((2, 4), id="sample"), pytest.param((amount(10, 30), 30), id="many", marks=pytest.mark.deep)]
HEALTHY = [name for name in (*REAL, *OURS) if name != "crash-torn"]
Make = Callable[[str], Template]


@pytest.fixture(scope="module")
def make() -> Iterator[Make]:
    """Return a function that makes each template once."""
    with fast_folder() as above:
        yield cache(lambda name: template(name, above / name))


@pytest.mark.parametrize("folders", SAMPLE)
@pytest.mark.parametrize("name", (*REAL, *OURS))
@pytest.mark.deep
def test_a_damaged_file_is_reported_and_what_it_loses_is_counted(name: str, folders: tuple[int, int], make: Make) -> None:
    """`verify` is 0 only if a plain model finds no contradiction, and the printed commands end without an uncounted loss."""
    with fast_folder() as above:
        judge = Judge(make(name), above / "scratch")
        wrong = []
        count, seed = folders
        for folder, damages in islice(damaged_copies(judge.made, above / "damaged", seed), count):
            wrong += with_damage(judge.judge(folder, damages))
            judge.forget(folder)
        assert not wrong


def test_a_log_file_of_another_store_requires_an_operator(make: Make, tmp_path: Path) -> None:
    """The printed commands must end, or say that a person has to decide."""
    made = make("propcrc")
    folder = copied(made.folder, tmp_path / "copy" / "store")
    damage = Damage("log, middle", "commitlog/00000000000000131072", "foreign")
    assert Damager(None, made.other, Random(1)).apply(folder, damage)
    assert not Judge(made, tmp_path / "scratch").judge(folder, [damage]).violations


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_store_has_no_contradiction(name: str, make: Make, tmp_path: Path) -> None:
    """The plain model agrees with every file of real brokers' stores and of ours, and so does `verify`."""
    made = make(name)
    witnesses = read_witnesses(made.folder, made.slots)
    assert witnesses.records and not witnesses.disagreements()
    outcome = Judge(made, tmp_path / "scratch").judge(copied(made.folder, tmp_path / "copy" / "store"), [])
    assert (outcome.verify, outcome.violations) == (0, [])


@pytest.mark.parametrize("name", ["plain", "propcrc", "broker-live", "broker-ext", "lmq", "batchcq", "cqext"])
def test_the_plain_model_reads_what_the_broker_listed(name: str, make: Make) -> None:
    """Its records are those of the broker's own account of the folder."""
    made = make(name)
    assert sorted(read_witnesses(made.folder, made.slots).records) == sorted(record_offsets(made.folder))


@pytest.mark.parametrize(
    ("path", "how", "expected"),
    [
        ("commitlog/00000000000000065536", "missing", "messages are named and not in the log"),
        ("commitlog/00000000000000000000", "zero pages", "holes in the log"),
        ("consumequeue/LiveOrder/0/00000000000000000000", "zeros", "has no unit"),
        ("consumequeue/LiveOrder/0/00000000000000000000", "foreign", "names the record"),
        ("config/consumerOffset.json", "empty", "unreadable"),
    ],
)
def test_the_plain_model_sees_a_contradiction(path: str, how: str, expected: str, make: Make, tmp_path: Path) -> None:
    """Two parts of a folder that differ show what neither shows alone."""
    made = make("broker-live")
    folder = copied(made.folder, tmp_path / "store")
    other = unpacked("plain", tmp_path) if how == "foreign" else None
    if other is not None:
        path_there = other / path
        path_there.parent.mkdir(parents=True)
        (other / "consumequeue/HotTopic/0/00000000000000000000").rename(path_there)
    assert Damager(None, other, Random(1)).apply(folder, Damage("", path, how))
    assert expected in " ".join(read_witnesses(folder, made.slots).disagreements())
