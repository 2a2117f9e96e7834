"""A log that ends before what queues, index, `clean.json` or the checkpoint name has lost its end.

RocketMQ cuts its queues there and uses the positions again (apache/rocketmq#9728).  Here a writer refuses such a store and
changes nothing; `recover` counts what is lost, shows what each choice costs, and keeps copies.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerstore import Message, MessageStore, StoreCorrupt
from messagestore.repair.recover import Choice, Recovery
from tests.brokerstore.tool import run
from tests.cases import unpack_case

NAME = "clean-stop-older-log"


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file."""
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"
    }


def no_queues(store: Path) -> None:
    """Leave index and checkpoint."""
    shutil.rmtree(store / "consumequeue")


def no_queues_and_checkpoint(store: Path) -> None:
    """Leave only the index."""
    no_queues(store)
    (store / "checkpoint").unlink()


def no_queues_and_index(store: Path) -> None:
    """Leave only the checkpoint."""
    no_queues(store)
    shutil.rmtree(store / "index")


def last_file_gone(store: Path) -> None:
    """Leave the first log file."""
    max((store / "commitlog").iterdir()).unlink()


def cut_inside_a_record(store: Path) -> None:
    """End the last file 100 bytes behind the beginning of its first record."""
    path = max((store / "commitlog").iterdir())
    path.write_bytes(path.read_bytes()[:100].ljust(path.stat().st_size, b"\0"))


def no_log_files(store: Path) -> None:
    """Empty the log's folder, as if its disk was not mounted."""
    for path in (store / "commitlog").iterdir():
        path.unlink()


def as_it_is(_store: Path) -> None:
    """Keep the folder unchanged."""


WAYS = [as_it_is, no_queues, no_queues_and_checkpoint, no_queues_and_index, last_file_gone, cut_inside_a_record, no_log_files]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store whose last log file is an older copy after a clean stop."""
    return unpack_case(NAME, tmp_path).folder


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_writer_refuses_a_log_that_lost_its_end(store: Path, way: Callable[[Path], None]) -> None:
    """Opening, `put` and `rebuild` refuse it and leave every byte; `verify` finds a problem."""
    way(store)
    before = contents(store)
    for mode in ("a", "r+"):
        with pytest.raises(StoreCorrupt):
            MessageStore.open(store, mode)
    assert run("put", store, "any", "x").code == 1
    if way is not no_queues_and_index:
        assert run("rebuild", store, "all", "--apply").code == 1
    assert {name: data for name, data in contents(store).items() if name in before} == before
    assert run("verify", store).code == 1


def test_recover_shows_what_each_choice_loses(store: Path, tmp_path: Path) -> None:
    """It changes nothing without a choice, names both commands, and keeps the queues that it cuts."""
    expected = unpack_case(NAME, tmp_path / "again").expected
    before = contents(store)
    ran = run("recover", store, "--apply", "--json")
    plan = ran.json["plan"]
    assert (ran.code, contents(store)) == (1, before)
    assert "--skip-bad --apply" in ran.talk and "--truncate --apply" in ran.talk
    for cost in plan["costs"].values():
        assert cost["messages_lost"] == expected["messages_lost"]
        there = {name: n for name, n in expected["lost_by_queue"].items() if (store / "consumequeue" / name).exists()}
        assert cost["lost_by_queue"].items() >= there.items()
    applied = Recovery(str(store), Choice.TRUNCATE).apply()
    assert applied.records_dropped == expected["messages_lost"]
    kept = {path.read_bytes() for path in (store / "brokerstore").rglob("*") if path.is_file()}
    assert before["consumequeue/LiveTran/0/00000000000000000000"] in kept
    with MessageStore.open(store, "r+") as opened:
        assert opened.put(Message("LiveNormal", b"next", queue_id=0)).physical_offset == expected["log_end_after_damage"]


def test_costs_of_both_choices_have_the_same_units(tmp_path: Path) -> None:
    """A missing file loses its messages either way; cutting loses those behind it as well."""
    store, expected = unpack_case("middle-log-file-gone", tmp_path)
    costs = Recovery(str(store)).plan().costs
    in_file, behind = expected["messages_in_the_file"], expected["messages_behind"]
    without_unit = 3  # records of transactions, which no queue names
    assert costs["skip-bad"].messages_lost == in_file - without_unit
    assert costs["truncate"].messages_lost == in_file - without_unit + behind and costs["truncate"].bytes_lost > 0


def test_a_real_brokers_clean_stop_opens_as_before(tmp_path: Path) -> None:
    """Queues that agree with the log are no reason to refuse it."""
    store = unpack_case("delay-offset-ahead", tmp_path).folder
    with MessageStore.open(store, "r+") as opened:
        opened.put(Message("LiveNormal", b"next", queue_id=0))
