"""`audit` reports what `verify` reports, also where only the joined results of splits show a problem."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from commitlog import Message
from indexfile.index_file import IndexFile
from indexfile.layout import FIRST_ITEM, HEADER, HEADER_SIZE, SLOT_SIZE, file_size
from messagestore import MessageStore
from messagestore.repair.verification import verify_store
from sparkstore.jobs import audit_source
from sparkstore.jobs.dispatching import stored_item
from sparkstore.jobs.protection import at_seams
from storageio import REAL_DISK
from tests.messagestore.test_wheel_snapshots import store_of

from .local import audited, copied, dumped
from .stores import SMALL

BARE = SMALL.but(enabled_append_prop_crc=False)
FILE_BYTES = 65536
QUEUE_KEY = ("t", 0)


def agreed(store: Path, **options: Any) -> set[tuple[str, str, int, str, str]]:
    """Return the problems of an audit, which must equal those of `verify` in every field."""
    found = {
        (row["kind"], row["file"], row["offset"], row["expected"], row["found"]) for row in audited(store, **options).problems
    }
    expected = {
        (one.kind, one.file, one.offset, str(one.expected), str(one.found)) for one in verify_store(str(store)).problems
    }
    assert found == expected
    return found


def kinds(found: set[tuple[str, str, int, str, str]]) -> set[str]:
    """Return the kinds of the problems."""
    return {row[0] for row in found}


def write_at(store: Path, physical_offset: int, data: bytes) -> None:
    """Overwrite bytes of the log."""
    with (store / "commitlog" / f"{physical_offset // FILE_BYTES * FILE_BYTES:020d}").open("r+b") as file:
        file.seek(physical_offset % FILE_BYTES)
        file.write(data)


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """One queue of 60 messages in a log without whole-record checksums."""
    with MessageStore.open(tmp_path / "store", config=BARE) as store:
        for number in range(60):
            store.put(Message("t", bytes(700 + number), queue_id=0))
    return tmp_path / "store"


def test_index_items_of_tags_are_matched_with_their_records(tmp_path: Path) -> None:
    """Brokers since RocketMQ 5.4 add them to the index."""
    store = store_of("timersnap551", tmp_path)
    assert [problem.kind for problem in verify_store(str(store)).problems] == []
    assert "dangling_item" not in {row["kind"] for row in audited(store).problems}


def renumber(store: Path, first: int, by: int) -> None:
    """Shift the queue offsets of all messages from `first` on."""
    for row in dumped(store)[first:]:
        write_at(store, row["physical_offset"] + 20, (row["queue_offset"] + by).to_bytes(8, "big"))


@pytest.mark.parametrize("split_bytes", ["0", "7001", "900"])
def test_a_gap_in_the_numbers_of_a_queue(numbered: Path, split_bytes: str) -> None:
    """It is reported once, by the expected offset, wherever splits meet; the queue's row counts it."""
    renumber(numbered, 31, 3)
    report = audited(numbered, splitBytes=split_bytes)
    gaps = [row for row in report.problems if row["kind"] == "gap"]
    assert [(row["offset"], row["expected"], row["found"]) for row in gaps] == [
        (dumped(numbered)[31]["physical_offset"], "queue offset 31 of t queue 0", "queue offset 34")
    ]
    row = report.queues[0]
    assert (row["first"], row["last"], row["messages"], row["gaps"], row["duplicates"]) == (0, 62, 60, 1, 0)


@pytest.mark.parametrize("split_bytes", ["0", "7001", "900"])
def test_a_duplicate_offset_of_a_queue(numbered: Path, split_bytes: str) -> None:
    """Two writers on one folder would leave such a duplicate."""
    renumber(numbered, 31, -1)
    report = audited(numbered, splitBytes=split_bytes)
    twice = [row for row in report.problems if row["kind"] == "duplicate"]
    assert [(row["offset"], row["expected"], row["found"]) for row in twice] == [
        (dumped(numbered)[31]["physical_offset"], "queue offset 31 of t queue 0", "queue offset 30")
    ]
    row = report.queues[0]
    assert (row["last"], row["messages"], row["gaps"], row["duplicates"]) == (58, 60, 0, 1)


@pytest.mark.parametrize("split_bytes", ["0", "7001"])
def test_missing_lmqs_are_reported(tmp_path: Path, split_bytes: str) -> None:
    """The log refers to them: the first message of each is reported."""
    path = tmp_path / "store"
    with MessageStore.open(path, config=SMALL.but(enable_lmq=True)) as store:
        for number in range(20):
            store.put(Message("t", bytes(900), queue_id=0, properties={"INNER_MULTI_DISPATCH": f"%LMQ%{number % 2}"}))
    for name in ("%LMQ%0", "%LMQ%1"):
        shutil.rmtree(path / "consumequeue" / name)
    missing = [row["file"] for row in audited(path, splitBytes=split_bytes).problems if row["kind"] == "missing_queue"]
    assert {name.rpartition("consumequeue/")[2] for name in missing} == {"%LMQ%0/0", "%LMQ%1/0"}


@pytest.mark.parametrize(
    ("victim", "split_bytes"),
    [(30, "0"), (1, "20011"), (58, "20011"), (30, "1500"), *((victim, "3400") for victim in range(28, 34))],
)
def test_a_record_without_a_checksum_among_records_with_one_is_suspect(tmp_path: Path, victim: int, split_bytes: str) -> None:
    """Its neighbours have one, in the same split, at the border of splits, or in a split of few records."""
    path = tmp_path / "store"
    with MessageStore.open(path, config=SMALL) as store:
        for _ in range(60):
            store.put(Message("t", bytes(900), queue_id=0))
    row = dumped(path)[victim]
    write_at(
        path, row["physical_offset"] + row["size"] - 15, b"XX" if victim % 30 else b"X"
    )  # with two bytes changed, only neighbours show it
    assert "suspect_record" in kinds(agreed(path, splitBytes=split_bytes))


@pytest.mark.parametrize("cuts", [(), (1,), (2,), (3,), (1, 2), (1, 2, 3), (2, 4), (1, 4, 5)])
def test_splits_find_the_same_problems_as_one_walk(cuts: tuple[int, ...]) -> None:
    """For every pattern of six records and every way to split them, results within splits and at borders are complete."""
    from commitlog.verify import Protection

    for code in range(64):
        flags = [bool(code >> position & 1) for position in range(6)]
        whole, parts = Protection(), []
        expected = {found.offset for at, here in enumerate(flags) for found in whole.next("f", at, here)}
        found = set()
        for begin, end in zip((0, *cuts), (*cuts, 6), strict=True):
            alone, edges = Protection(), list(enumerate(flags))[begin:end]
            found |= {one.offset for at, here in edges for one in alone.next("f", at, here)}
            parts.append({"store": "s", "file": "f", "found": json.dumps([edges[:2], edges[-2:] if len(edges) > 2 else []])})
        found |= {one.offset for _, one in at_seams(parts)}
        assert found == expected, (flags, cuts)


@pytest.mark.parametrize("split_bytes", ["0", "20011"])
def test_units_of_lmqs(fixture_store: Any, tmp_path: Path, split_bytes: str) -> None:
    """A wrong unit and a unit too many are reported."""
    store = copied(fixture_store("lmq").store, tmp_path / "store")
    assert agreed(store, splitBytes=split_bytes) == set()
    report = audited(store, splitBytes=split_bytes)
    assert report.counts["units"] == verify_store(str(store)).counts()["units"] > sum(row["messages"] for row in report.queues)
    lmqs = sorted(path for path in (store / "consumequeue").iterdir() if path.name.startswith("%LMQ%"))
    data = bytearray((file := next((lmqs[0] / "0").iterdir())).read_bytes())
    data[20 * 2 + 3] ^= 1
    file.write_bytes(data)
    assert ("wrong_unit", str(file.parent), 40) in {row[:3] for row in agreed(store, splitBytes=split_bytes)}
    other = next((lmqs[1] / "0").iterdir())
    units = other.read_bytes()
    count = next(at for at in range(0, len(units), 20) if not any(units[at : at + 20]))
    other.write_bytes(units[:count] + units[count - 20 : count] + units[count + 20 :])
    assert {"wrong_unit", "dangling_unit"} <= kinds(agreed(store, splitBytes=split_bytes))


def test_a_queue_without_records_in_the_log(made: Path) -> None:
    """Its units lead to records of another queue."""
    copied(made / "consumequeue" / "topic-1" / "0", made / "consumequeue" / "nobody" / "0")
    assert "dangling_queue" in kinds(agreed(made, splitBytes="50001"))


def test_checkpoint_and_config_files(made: Path) -> None:
    """The audit calls the code that `verify` uses for files beside the log."""
    checkpoint, config = made / "checkpoint", made / "config"
    values = bytearray(checkpoint.read_bytes())
    values[:8] = (dumped(made)[-1]["store_timestamp_ms"] + 3_600_000).to_bytes(8, "big")
    checkpoint.write_bytes(values)
    assert kinds(agreed(made)) == {"checkpoint_ahead"}
    checkpoint.write_bytes(b"short")
    offsets = {"offsetTable": {"topic-1@group": {"0": 999}}}
    (config / "consumerOffset.json").write_text(json.dumps(offsets))
    (config / "topics.json").write_text("{")
    assert {"damaged_checkpoint", "offset_ahead", "damaged_config"} <= kinds(agreed(made))


def test_an_abort_file_is_a_note(made: Path) -> None:
    """The writer runs or crashed, which is not a problem."""
    (made / "abort").touch()
    report = audited(made)
    assert report.is_ok and [row["kind"] for row in report.notes] == ["abort_file"]


def test_index_items_of_a_split_are_found_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker skips pieces of an index file that it knows, but none that has an item of the split, or that has grown."""
    import numpy as np

    monkeypatch.setattr(audit_source, "ITEMS_AT_ONCE", 8)
    chance, slots, capacity, known = random.Random(26), 4, 400, {}
    offsets = [number * 100 for number in range(300)]
    for _ in range(40):  # as after a repair that dispatched records again
        one, other = chance.randrange(300), chance.randrange(300)
        offsets[one], offsets[other] = offsets[other], offsets[one]
    for count in (100, 203, 300):
        items = np.zeros(capacity, stored_item())
        items["offset"][FIRST_ITEM : FIRST_ITEM + count] = offsets[:count]
        items["hash"] = np.arange(capacity)
        head = HEADER.pack(1, 2, 0, 30_000, slots, FIRST_ITEM + count)
        (tmp_path / "index").write_bytes(
            (head + bytes(SLOT_SIZE * slots) + items.tobytes()).ljust(file_size(slots, capacity), b"\0")
        )
        assert len(head) == HEADER_SIZE
        for begin in (0, 5000, 12_345, 29_000, 5000):
            file = IndexFile(REAL_DISK, str(tmp_path / "index"), slots, capacity, writable=False)
            found = [int(one) for part in audit_source._pairs_between(file, begin, begin + 5000, known) for one in part]
            file.close()
            expected = [
                (offset - begin << 31) | FIRST_ITEM + number
                for number, offset in enumerate(offsets[:count])
                if begin <= offset < begin + 5000
            ]
            assert found == expected
    assert len(known) == 300 // 8


def test_a_queue_that_grows_between_two_splits(tmp_path: Path) -> None:
    """What a worker knows about the ends of queues may be old; a difference counts only if the files have it now."""
    for begin in (0, 30):
        with MessageStore.open(tmp_path / "store", config=BARE) as store:
            for number in range(begin, begin + 30):
                store.put(Message("t", bytes(700 + number), queue_id=0))
                store.put(Message(f"other-{begin}", b"body", queue_id=0))
        parts = [part.value for part in audit_source._AuditReader({"path": str(tmp_path / "store")}).partitions()]
        logs = [replace(part, audit="one") for part in parts if isinstance(part, audit_source.LogAudit)]
        found = [row["what"] for part in logs for row in audit_source._rows_of(part) if row["kind"] == "problem"]
        assert logs and not found
