"""Whole files of RocketMQ stores empty, zeroed, missing, older, of another store, or beside one whose name is not ASCII."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path

import pytest

from tests.faults.damaged_stores import OURS, REAL, Template, damaged_copies, template
from tests.faults.file_damage import copied
from tests.faults.file_judge import Judge, unexpected
from tests.faults.golden import fast_folder
from tests.faults.witnesses import read_witnesses

pytestmark = pytest.mark.default
SAMPLE = [pytest.param(4, id="sample"), pytest.param(30, id="many", marks=pytest.mark.deep)]
HEALTHY = [name for name in (*REAL, *OURS) if name != "crash-torn"]
Make = Callable[[str], Template]


@pytest.fixture(scope="module")
def make() -> Iterator[Make]:
    """Return a function that makes each template once."""
    with fast_folder() as above:
        yield cache(lambda name: template(name, above / name))


@pytest.mark.parametrize("folders", SAMPLE)
@pytest.mark.parametrize("name", (*REAL, *OURS))
def test_a_damaged_file_is_reported_and_what_it_loses_is_counted(name: str, folders: int, make: Make) -> None:
    """`verify` is 0 only if a plain model finds no contradiction, and the printed commands end without an uncounted loss."""
    with fast_folder() as above:
        judge = Judge(make(name), above / "scratch")
        wrong = []
        for folder, damages in islice(damaged_copies(judge.made, above / "damaged", seed=folders), folders):
            wrong += unexpected(judge.judge(folder, damages))
            judge.forget(folder)
        assert not wrong


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_store_has_no_contradiction(name: str, make: Make, tmp_path: Path) -> None:
    """The plain model agrees with every file of real brokers' stores and of ours, and so does `verify`."""
    made = make(name)
    witnesses = read_witnesses(made.folder, made.slots)
    assert witnesses.records and not witnesses.disagreements()
    outcome = Judge(made, tmp_path / "scratch").judge(copied(made.folder, tmp_path / "copy" / "store"), [])
    assert (outcome.verify, outcome.violations) == (0, [])
