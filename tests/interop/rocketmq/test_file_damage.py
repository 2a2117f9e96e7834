"""The real store and the real broker judge damaged folders: what `verify` calls intact, and what `recover` has repaired."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.amounts import amount
from tests.faults.damaged_stores import damaged_copies, template
from tests.faults.file_judge import Judge, with_damage
from tests.faults.golden import fast_folder

from .judged import BrokerJudge, RealStoreJudge
from .jvm import prepare_or_skip, why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]
FOLDERS = amount(4, 40)  # of each store
NAMES = ("propcrc", "broker-live", "cqext", "crash-torn", "ours-clean")
CONFIGURED, BROKERS = "broker-live", 3


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealStoreJudge]:
    prepare_or_skip()
    made = RealStoreJudge(tmp_path_factory.mktemp("jvm") / "stderr")
    yield made
    made.end()


@pytest.mark.parametrize("name", NAMES)
def test_the_real_store_delivers_what_dump_lists(name: str, real: RealStoreJudge) -> None:
    """It starts on every folder that `verify` calls intact, as it is or after the printed commands, and delivers the same."""
    with fast_folder() as above:
        made = template(name, above / "template")
        judge = Judge(made, above / "scratch", real)
        wrong = []
        for folder, damages in islice(damaged_copies(made, above / "damaged", seed=1), FOLDERS):
            wrong += with_damage(judge.judge(folder, damages))
        real.close()
        assert not wrong


def test_the_real_broker_starts_on_damaged_configuration_once_verify_is_0(tmp_path: Path) -> None:
    """It has the topics and committed offsets of the files, and delivers what `dump` lists."""
    prepare_or_skip()
    made = template(CONFIGURED, tmp_path / "template")
    broker = BrokerJudge(tmp_path / "broker")
    judge = Judge(made, tmp_path / "scratch", broker)
    wrong = []
    for folder, damages in damaged_copies(made, tmp_path / "damaged", seed=2):
        if broker.judged < BROKERS and all(damage.kind.startswith("config/") for damage in damages):
            wrong += with_damage(judge.judge(folder, damages))
    assert broker.judged and not wrong
