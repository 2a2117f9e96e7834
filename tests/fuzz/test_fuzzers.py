"""A sample of the fuzzers for every change: deterministic runs of decoders and whole folders, and a canary."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fuzz import corpus, folders, node_folders
from fuzz.decoders import SLOW, TARGETS, run_one
from fuzz.folders import SmallStore
from fuzz.run import decoder_runs, folder_runs, small_folder_runs, small_node_runs
from storageio import StoreCorrupt, StoreError
from storebytes.builds import build_name
from tests.amounts import amount
from tests.faults.golden import fast_folder, unpacked

pytestmark = pytest.mark.both_builds  # a plain kernel meets damage as errors of Python
SCARCE = 1 if build_name() == "compiled" else 20  # the plain build is slower
DECODER_RUNS = amount(80_000, 200_000) // SCARCE
FOLDER_RUNS = {"batchcq": amount(80, 200), "lmq": amount(10, 20), "rabbitmq-clean": amount(10, 20)}
SMALL_FOLDER_RUNS = amount(1_600, 5_000) // SCARCE
SMALL_NODE_RUNS = amount(25, 60) if build_name() == "compiled" else 10
LARGE_QUEUES = ("18PFRXGVXXG0ZIS281F2ZCGPH", "BGRIRRI733GZZGP0F653VU17V", "434QJ29PS1F7KJO6A26YZF1Z8")


@pytest.mark.parametrize("name", TARGETS)
def test_a_decoder_returns_a_value_or_raises_a_named_error(name: str) -> None:
    """For seeds and mutations, the answer is consistent or a named error."""
    assert len(corpus.seeds(name)) > 1, "a corpus is kept"
    runs = DECODER_RUNS // len(TARGETS) // SLOW.get(name, 1)
    assert decoder_runs(name, runs, seed=1) > runs


def test_the_canary_is_found() -> None:
    """A planted error: a driver that cannot find it finds nothing."""
    with pytest.raises(RuntimeError, match="the canary sings"):
        decoder_runs("canary", 400_000, seed=1)


@pytest.mark.parametrize("name", FOLDER_RUNS)
def test_a_damaged_folder_is_read_and_repaired_or_reported(name: str) -> None:
    """Each run changes one to three files; every tenth run recovers, and a second recovery has nothing to do."""
    with fast_folder() as above:
        golden = unpacked(name, above)
        for queue in LARGE_QUEUES if name.startswith("rabbitmq") else ():
            shutil.rmtree(golden / "queues" / queue)
        folder_runs(golden, max(FOLDER_RUNS[name] // SCARCE, 10), 1, is_rabbit=name.startswith("rabbitmq"))


@pytest.mark.parametrize("quarter", range(4))
def test_a_damaged_small_folder_is_repaired_or_reported(quarter: int) -> None:
    """The same in memory, for both engines, closed cleanly and not, with fifty times as many runs."""
    runs = SMALL_FOLDER_RUNS // 4
    assert small_folder_runs(runs, 1001 + quarter * runs) == runs


def test_a_damaged_node_is_repaired_or_reported() -> None:
    """The same for a node of RabbitMQ 4: no message that was readable before is missing after a recovery."""
    assert small_node_runs(SMALL_NODE_RUNS, 1) == SMALL_NODE_RUNS


def test_a_recovery_that_loses_a_queue_of_a_node_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: a recovery that deletes the write-ahead log."""
    node = node_folders.SmallNode()
    log = next(name for name in node.names if name.endswith(".wal") and "/quorum/" in name)
    monkeypatch.setattr(node_folders, "apply_recovery", lambda _path, disk: disk.stat(log) and disk.delete(log))
    with pytest.raises(AssertionError, match="readable messages are gone"):
        node.repair(node._disk(node.image), None)


def refuse(*_: object, **__: object) -> None:
    raise StoreError("a refusal")


@pytest.mark.parametrize("name", ["verify", "RabbitStore", "apply_recovery", "verify_store", "Recovery"])
def test_a_sound_folder_that_is_refused_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: a library that refuses everything used to pass, since every named error was a valid answer."""
    is_rabbit = name in ("verify", "RabbitStore", "apply_recovery")
    target = folders.RabbitStore if name == "RabbitStore" else folders
    monkeypatch.setattr(target, "open" if name == "RabbitStore" else name, refuse)
    with pytest.raises(StoreError, match="a refusal"):
        SmallStore(is_rabbit=is_rabbit, is_closed=True)


@pytest.mark.parametrize("is_rabbit", [False, True])
def test_a_recovery_that_refuses_to_rebuild_a_derived_file_is_detected(
    is_rabbit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage to clean-stop files, queues or index loses nothing, so an error is not a valid answer."""
    folder = SmallStore(is_rabbit=is_rabbit, is_closed=True)
    monkeypatch.setattr(folders, "apply_recovery" if is_rabbit else "Recovery", refuse)
    with pytest.raises(StoreError, match="a refusal"):
        for seed in range(0, 3000, 10):
            folder.run(seed)


def test_a_torn_segment_with_a_mark_of_no_message_is_repaired() -> None:
    """Found by fuzzing: `recover --apply` used to plan a rewrite of the segment again and again without doing it."""
    small_folder_runs(1, 220)


def test_expiries_of_any_64_bits_are_read() -> None:
    """Found by fuzzing: a flipped first bit of an expiry used to end `verify` of a RabbitMQ folder with an OverflowError."""
    publish = bytes(8) + b"i" * 16 + b"\xff" * 8 + bytes(4) + b"\0\0\0\2" + b"\x83j"
    run_one(TARGETS["rabbit_journal"], publish)
    from rabbitstore.format.journal import read_journal

    found, end = read_journal(publish, "journal.jif", [])
    assert end == len(publish) and found[0].publish is not None and found[0].publish.expiry_us == -1


def test_inputs_that_fail_are_kept_with_the_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later runs repeat what broke a decoder once."""
    monkeypatch.setattr(corpus, "FOLDER", tmp_path)
    assert corpus.keep("x", b"find").read_bytes() == b"find" and corpus.seeds("x") == [b"find", b""]


def test_a_gap_in_a_queue_is_rebuilt_only_once() -> None:
    """A damaged topic left a gap in the queue, which dispatch closes; each recovery used to plan a rebuild of it."""
    SmallStore(is_rabbit=False, is_closed=False).run(368_520)


def test_a_parquet_file_with_a_damaged_head_is_a_named_error() -> None:
    """Found by fuzzing: pyarrow's OSError used to leave an import, which expected only one kind of error."""
    data = (corpus.FOLDER / "parquet_rows" / "085b18999289f4f1").read_bytes()
    with pytest.raises(StoreCorrupt, match="not a Parquet file"):
        TARGETS["parquet_rows"](data)


def test_a_deeply_nested_row_is_a_named_error() -> None:
    """A line of brackets used to end an import with a RecursionError."""
    with pytest.raises(StoreCorrupt, match="row 1 of"):
        TARGETS["json_lines"](b'{"topic":' + b"[" * 100_000 + b"\n")
