"""A log that ends before what queues, index, `clean.json` or the checkpoint name has lost its end.

RocketMQ cuts its queues there and uses the positions again (apache/rocketmq#9728).  Here a writer refuses such a store and
changes nothing; `recover` counts what is lost, shows what each choice costs, and keeps copies.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerstore import Message, MessageStore, StoreCorrupt, UnknownStore
from commitlog.walk import LogFiles, Piece
from consumequeue.layout import UNIT
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK
from tests.brokerstore.tool import run
from tests.cases import unpack_case

NAME = "clean-stop-older-log"


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file, and the names of folders."""
    paths = [path for path in sorted(folder.rglob("*")) if path.name != "lock"]
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in paths}


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


def no_log_folder(store: Path) -> None:
    """Remove the log's folder."""
    shutil.rmtree(store / "commitlog")


def last_file_empty(store: Path) -> None:
    """Leave no byte of the last file."""
    max((store / "commitlog").iterdir()).write_bytes(b"")


def as_it_is(_store: Path) -> None:
    """Keep the folder unchanged."""


WAYS = [
    as_it_is, no_queues, no_queues_and_checkpoint, no_queues_and_index, last_file_gone, cut_inside_a_record, no_log_files,
    no_log_folder, last_file_empty,
]  # fmt: skip


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
        with pytest.raises((StoreCorrupt, UnknownStore)):
            MessageStore.open(store, mode)
    refused = 3 if way is no_log_folder else 1
    assert run("put", store, "any", "x").code == refused
    assert run("rebuild", store, "all", "--apply").code == refused
    assert contents(store) == before
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
    assert applied.messages_lost == expected["messages_lost"]
    kept = {path.read_bytes() for path in (store / "brokerstore").rglob("*") if path.is_file()}
    assert before["consumequeue/LiveTran/0/00000000000000000000"] in kept
    with MessageStore.open(store, "r+") as opened:
        assert opened.put(Message("LiveNormal", b"next", queue_id=0)).physical_offset == expected["log_end_after_damage"]


def test_losses_of_both_choices_are_counted_in_messages(tmp_path: Path) -> None:
    """A missing file loses its messages either way; cutting loses those behind it as well."""
    store, expected = unpack_case("middle-log-file-gone", tmp_path)
    costs = Recovery(str(store)).plan().choices
    in_file, behind = expected["messages_in_the_file"], expected["messages_behind"]
    without_unit = 3  # records of transactions, which no queue names
    assert costs["skip-bad"].messages_lost == in_file - without_unit
    assert costs["truncate"].messages_lost == in_file - without_unit + behind and costs["truncate"].bytes_lost > 0


def test_a_real_brokers_clean_stop_opens_as_before(tmp_path: Path) -> None:
    """Queues that agree with the log are no reason to refuse it."""
    store = unpack_case("delay-offset-ahead", tmp_path).folder
    with MessageStore.open(store, "r+") as opened:
        opened.put(Message("LiveNormal", b"next", queue_id=0))


@pytest.fixture
def truncated(fixture_store: Any) -> Path:
    """Return a store in which RocketMQ cut a torn record, whose bytes and unit it left, and then stopped cleanly."""
    folder: Path = fixture_store("crash-torn", own=True).folder / "store-after-java"
    return folder


def test_a_record_that_a_broker_cut_before_its_clean_stop_is_no_loss(truncated: Path) -> None:
    """Nothing names more than the torn record, so opening cuts it, and recover asks for no choice."""
    copy = shutil.copytree(truncated, truncated.with_name("copy"))
    applied = Recovery(str(copy)).apply()
    assert (applied.is_damaged, applied.messages_lost) == (False, 0)
    with MessageStore.open(truncated, "r+") as opened:
        assert opened.put(Message("HotTopic", b"next", queue_id=0)).physical_offset == applied.valid_end
    assert run("verify", copy).code == 0
    assert all("/index" in problem.file for problem in verify_store(str(truncated)).problems)  # files are missing there


def without_checkpoint(store: Path) -> None:
    """Leave nothing that tells what was synced."""
    (store / "checkpoint").unlink()


def zeroed_checkpoint(store: Path) -> None:
    """Leave a checkpoint of a store that never synced."""
    (store / "checkpoint").write_bytes(bytes(4096))


def newer_checkpoint(store: Path) -> None:
    """Let the checkpoint cover a record that was stored 1 ms after the last one."""
    data = (store / "checkpoint").read_bytes()
    last_ms = list(store_times(store))[-1]
    (store / "checkpoint").write_bytes((last_ms + 1).to_bytes(8, "big") + data[8:])


def clean_json_names_more(store: Path) -> None:
    """Let the last clean stop be behind the torn record."""
    (store / "brokerstore").mkdir(exist_ok=True)
    (store / "brokerstore" / "clean.json").write_text('{"end_offset": 300000, "last_offset": 299000}')


def unit_behind_the_torn_bytes(store: Path) -> None:
    """Let the stale unit point behind everything that was written."""
    path = max((store / "consumequeue" / "HotTopic" / "0").iterdir())
    data, at = path.read_bytes(), 3080 - int(path.name)
    path.write_bytes(data[:at] + (260_000).to_bytes(8, "big") + data[at + 8 :])


def store_times(store: Path) -> Iterator[int]:
    """Yield the store times of the whole records."""
    for step in LogFiles(REAL_DISK, [str(store / "commitlog")]).walk():
        if isinstance(step, Piece):
            yield from (message.store_timestamp_ms for message in step.messages())


@pytest.mark.parametrize(
    "way",
    [without_checkpoint, zeroed_checkpoint, newer_checkpoint, clean_json_names_more, unit_behind_the_torn_bytes],
    ids=lambda way: way.__name__,
)
def test_open_refuses_a_torn_record_after_a_clean_stop_if_more_is_referenced(
    truncated: Path, way: Callable[[Path], None]
) -> None:
    """Opening refuses the store and changes nothing; recover asks for a choice."""
    way(truncated)
    before = contents(truncated)
    with pytest.raises(StoreCorrupt):
        MessageStore.open(truncated, "r+")
    assert Recovery(str(truncated)).apply().needs_choice
    assert contents(truncated) == before


@pytest.mark.parametrize("name", ["consumerOffset.json", "delayOffset.json", "timerlog", "clean.json"])
def test_an_empty_log_is_refused_while_one_file_names_its_messages(tmp_path: Path, name: str) -> None:
    """Offsets of consumers and levels, timers and the last clean stop show alone that there were messages."""
    store = unpack_case(NAME, tmp_path).folder
    no_queues_and_checkpoint(store)
    no_log_files(store)
    shutil.rmtree(store / "index")
    clean_json_names_more(store)
    kept = {"timerlog": store / "timerlog", "clean.json": store / "brokerstore"}.get(name, store / "config" / name)
    for path in [*(store / "config").iterdir(), store / "timerlog", store / "timerwheel", store / "brokerstore"]:
        if path != kept and path.name not in ("topics.json", "timercheck"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = contents(store)
    with pytest.raises(StoreCorrupt) as refused:
        MessageStore.open(store, "r+")
    assert name in str(refused.value) and run("verify", store).code == 1
    ran = run("recover", store, "--apply", "--json")
    assert ran.json["plan"]["needs_choice"] and contents(store) == before
    assert run("recover", store, "--truncate", "--apply").code == 6
    assert run("verify", store).code == 0


@pytest.mark.parametrize("unit", [UNIT.pack(1 << 40, 200, 1), UNIT.pack(0, 1 << 30, 1)], ids=["far_away", "too_long"])
def test_recover_creates_no_files_up_to_the_offset_of_a_damaged_unit(store: Path, unit: bytes) -> None:
    """Such a unit is dropped and counted: nothing else names anything near it, and no record is longer than a file."""
    fill = Recovery(str(store), Choice.SKIP).apply()
    path = next(path for path in sorted((store / "consumequeue").rglob("0*")) if path.is_file() and any(path.read_bytes()))
    data = path.read_bytes()
    used = next(at for at in range(0, len(data), len(unit)) if not any(data[at : at + len(unit)]))
    path.write_bytes(data[: used - len(unit)] + unit + data[used:])
    assert verify_store(str(store)).problems
    plan = Recovery(str(store), Choice.SKIP).apply()
    assert plan.messages_lost <= 1 and plan.valid_end == fill.valid_end
    assert verify_store(str(store)).problems == [] and Recovery(str(store)).plan().steps == []


def test_interrupted_recovery_still_requires_a_choice(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The abort file that a recovery leaves tells that the stop before was clean: nothing is cut without a choice."""

    def fail(*_: object) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="killed"):
        patch.setattr(Recovery, "_cut_log", fail)
        Recovery(str(store), Choice.TRUNCATE).apply()
    assert (store / "abort").exists()
    with pytest.raises(StoreCorrupt, match="lost its end"):
        MessageStore.open(store, "r+")
    assert Recovery(str(store)).apply().needs_choice
    assert Recovery(str(store), Choice.TRUNCATE).apply().messages_lost == 96
    assert verify_store(str(store)).problems == [] and not (store / "abort").exists()
