"""The jobs without a JVM: their tasks and commits, called one after the other."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from commitlog import Message
from messagestore import MessageStore
from messagestore.config import DELAY_LEVELS
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.verification import verify_store
from sparkstore import BadOption
from sparkstore.jobs import auditing, reindex_commit, reindex_source
from sparkstore.source import split_reader
from storageio import InvalidMessage, StoreCorrupt, StoreError, StoreLocked, UnknownStore
from storageio.testing import CountingDisk, FailingDisk
from tests.helpers import contents

from .local import audited, copied, dumped, reindex, reindex_tasks
from .stores import SMALL, damage

QUEUES, INDEX = "consumequeue", "index"


@pytest.mark.parametrize("split_bytes", ["0", "20011"])
@pytest.mark.parametrize("name", ["plain", "lmq", "propcrc", "batchcq", "broker-live"])
def test_reindex_gives_the_bytes_of_the_real_broker(
    fixture_store: Any, tmp_path: Path, name: str, split_bytes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues and index equal RocketMQ's, including LMQ queues and rolled index files."""
    real = fixture_store(name).store
    store = copied(real, tmp_path / "store")
    for folder in (QUEUES, INDEX):
        for path in (store / folder).rglob("*"):
            if path.is_file():
                path.write_bytes(bytes(path.stat().st_size))  # so that a reindex can reuse only names and sizes
    _keep_shape(real, store)
    reindex(store, monkeypatch, splitBytes=split_bytes, delaylevels=DELAY_LEVELS)
    assert contents(store / QUEUES) == contents(real / QUEUES)
    assert contents(store / INDEX) == contents(real / INDEX)


@pytest.mark.parametrize("name", ["broker-live", "broker-ext", "cqext"])
def test_reindex_keeps_what_the_log_does_not_contain(fixture_store: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delivery times and addresses of extended units are those of the old queues."""
    store = fixture_store(name, own=True).store
    before = {folder: contents(store / folder) for folder in (QUEUES, "consumequeue_ext")}
    reindex(store, monkeypatch)
    assert {folder: contents(store / folder) for folder in before} == before


def test_delay_levels_of_another_broker_are_kept_or_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit accepts correct units; the reindex keeps delivery times and invents none."""
    store = tmp_path / "store"
    config = SMALL.but(message_delay_level="1s 1h", deliver_delayed=False)
    with MessageStore.open(store, config=config) as made:
        made.put(Message("T", b"x", queue_id=0, keys=["key"], properties={"DELAY": "2"}))
    before = contents(store / QUEUES)
    for _ in range(2):
        assert list(audited(store).problems) == []
        reindex(store, monkeypatch)
        assert contents(store / QUEUES) == before
        shutil.rmtree(store / "brokerstore", ignore_errors=True)  # a broker's folder does not record its levels
    units = store / QUEUES / "SCHEDULE_TOPIC_XXXX" / "1" / f"{0:020d}"
    units.write_bytes(bytes(units.stat().st_size))
    with pytest.raises(InvalidMessage, match="option delayLevels"):
        reindex(store, monkeypatch)
    reindex(store, monkeypatch, delaylevels="1s 1h")
    assert contents(store / QUEUES) == before


def _keep_shape(real: Path, store: Path) -> None:
    """Keep the first index file's bytes, because only chains show how many slots a file has."""
    for path in sorted((real / INDEX).iterdir())[:1]:
        shutil.copy(path, store / INDEX / path.name)


@pytest.mark.parametrize("tasks", [1, 3])
def test_reindex_gives_the_bytes_of_the_engine(made: Path, tmp_path: Path, tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One index file rolls within a record's keys, and one is exactly full."""
    other = copied(made, tmp_path / "other")
    rebuild_store(str(other), config=SMALL)
    before = contents(made / INDEX)
    reindex(made, monkeypatch, splitBytes="10007", tasks=tasks)
    assert contents(made / QUEUES) == contents(other / QUEUES)
    assert contents(made / INDEX) == contents(other / INDEX) == before
    assert len(before) > 3
    assert not [path for path in (made / "brokerstore").iterdir() if path.name.startswith(reindex_commit.WORK)]


@pytest.mark.parametrize("keyed", [398, 399, 400])
def test_a_record_without_keys_after_a_full_index_file_creates_the_next(
    tmp_path: Path, keyed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later record without keys creates the next file, as in the engine."""
    path = tmp_path / "full"
    with MessageStore.open(path, config=SMALL) as store:
        for number in range(keyed):
            store.put(Message("t", b"x", keys=[f"k{number}"]))
        store.put(Message("t", b"without a key"))
    before = contents(path / INDEX)
    reindex(path, monkeypatch)
    assert contents(path / INDEX) == before


def test_reindex_of_queues_only(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is left unchanged."""
    before = contents(made / QUEUES)
    shutil.rmtree(made / QUEUES)
    (made / INDEX / "20200101000000000").write_bytes(b"left alone")
    reindex(made, monkeypatch, what=QUEUES)
    assert contents(made / QUEUES).keys() == before.keys()
    assert (made / INDEX / "20200101000000000").read_bytes() == b"left alone"


def test_reindex_of_a_damaged_log_changes_nothing(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has file and offset, and every byte is as before."""
    file, at = damage(made, next(row for row in dumped(made)[500:] if len(row["body"]) == 300))
    before = contents(made)
    with pytest.raises(StoreCorrupt) as caught:
        reindex(made, monkeypatch)
    assert (caught.value.file, caught.value.offset) == (file, at)
    assert contents(made) == before


def test_reindex_of_a_store_that_is_open_elsewhere(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes before any work."""
    with MessageStore.open(made, config=SMALL), pytest.raises(StoreLocked):
        reindex(made, monkeypatch)


def test_a_log_that_was_written_while_it_was_read_keeps_its_old_queues(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit checks again where the log ends."""
    real = reindex_source._Writer.commit

    def after_a_put(self: Any, messages: Any) -> None:
        with MessageStore.open(made, config=SMALL) as store:
            store.put(Message("topic-0", b"meanwhile"))
        real(self, messages)

    monkeypatch.setattr(reindex_source._Writer, "commit", after_a_put)
    with pytest.raises(StoreError, match="was written during the reindex"):
        reindex(made, monkeypatch)
    assert verify_store(str(made), SMALL).is_ok


def test_reindex_needs_a_store(made: Path, fixture_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log folder alone, another kind of store and an unknown part are refused."""
    with pytest.raises(UnknownStore, match="without its store"):
        reindex(made / "commitlog", monkeypatch)
    with pytest.raises(BadOption):
        reindex(fixture_store("rabbitmq-clean").folder.parent / "vhost", monkeypatch)
    with pytest.raises(BadOption, match="what"):
        reindex(made, monkeypatch, what="everything")


NARROWING = (
    "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "topic", "queueId", "key", "badRecords",
    "checkCrc", "failOnDataLoss", "queue", "vhost",
)  # fmt: skip


@pytest.mark.parametrize("name", NARROWING)
def test_reindex_refuses_options_that_skip_records(made: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Queues and index of a part of the log would replace complete ones."""
    before = contents(made)
    value = {"badRecords": "skip", "checkCrc": "false", "failOnDataLoss": "false"}.get(name, "70000")
    with pytest.raises(BadOption, match=f"option {name.lower()}: a reindex reads every record"):
        reindex(made, monkeypatch, **{name: value})
    assert contents(made) == before


def _works(store: Path) -> list[str]:
    """Return the working folders of reindexes in a store."""
    return [path.name for path in (store / "brokerstore").iterdir() if path.name.startswith(reindex_commit.WORK)]


def test_two_concurrent_reindexes(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first to finish used to delete the other's files, and the other installed the rest."""
    before = contents(made / QUEUES), contents(made / INDEX)
    first, second = reindex_tasks(made, monkeypatch), reindex_tasks(made, monkeypatch, tasks=3)
    for writer, messages in (first, second):
        writer.commit(messages)
        assert (contents(made / QUEUES), contents(made / INDEX)) == before
    assert _works(made) == []


@pytest.mark.parametrize("lost", [f"{QUEUES}/topic-1/2", QUEUES, f"{INDEX}/*", INDEX, ""])
def test_a_part_missing_at_the_commit(made: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """The result used to be a store without some of its queues, and no error."""
    before = contents(made / QUEUES), contents(made / INDEX)
    writer, messages = reindex_tasks(made, monkeypatch)
    gone = next(path for path in sorted((made / "brokerstore").glob(f"rebuild-spark-*/part-*/{lost}")))
    gone.unlink() if gone.is_file() else shutil.rmtree(gone)
    with pytest.raises(StoreCorrupt, match=r"part-.*: a part of a reindex: expected \d+ (queues|index files), found \d+"):
        writer.commit(messages)
    assert (contents(made / QUEUES), contents(made / INDEX)) == before


def test_leftovers_of_a_killed_reindex_are_deleted_after_a_week(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to stay; a younger folder may belong to a running job."""
    reindex_tasks(made, monkeypatch)
    killed = _works(made)
    reindex(made, monkeypatch)
    assert _works(made) == killed
    monkeypatch.setattr(reindex_commit, "STALE_MS", -60_000)
    reindex(made, monkeypatch)
    assert _works(made) == []


def test_a_reindex_killed_at_every_call_of_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kill may leave a store that does not open, or queues with half of their messages."""
    with MessageStore.open(tmp_path / "whole", config=SMALL) as store:
        for number in range(40):
            store.put(Message(f"t-{number % 2}", b"%d" % number, keys=[f"k{number}"], queue_id=0))
    disk = CountingDisk()
    writer, messages = reindex_tasks(copied(tmp_path / "whole", tmp_path / "counted"), monkeypatch)
    monkeypatch.setattr(reindex_source, "REAL_DISK", disk)
    writer.commit(messages)
    assert [call.operation for call in disk.calls].count("rename") >= 6
    states = set()
    for number in range(1, len(disk.calls) + 1):
        states.add(_state_after_kill(tmp_path, monkeypatch, number))
    assert states >= {(True, True), (False, True), (True, False)}, "no kill was between the two moves of a swap"


def _state_after_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> tuple[bool, bool]:
    """Return whether queues and index existed after the kill; an opening must then complete the store."""
    root = copied(tmp_path / "whole", tmp_path / f"killed-{number}")
    with monkeypatch.context() as patched:
        writer, messages = reindex_tasks(root, patched)
        patched.setattr(reindex_source, "REAL_DISK", FailingDisk(number, for_ever=True))
        with pytest.raises(StoreError):
            writer.commit(messages)
    state = (root / QUEUES).exists(), (root / INDEX).exists()
    with MessageStore.open(root, config=SMALL) as store:
        store.put(Message("t-0", b"more", queue_id=0))
        found = [message.body for topic in ("t-0", "t-1") for message in store.get(topic, 0, 0, 100).messages]
        assert found == [b"%d" % n for n in range(0, 40, 2)] + [b"more"] + [b"%d" % n for n in range(1, 40, 2)], number
        assert all(store.query(f"t-{n % 2}", f"k{n}")[0].body == b"%d" % n for n in range(40)), number
    assert verify_store(str(root), SMALL).is_ok, number
    shutil.rmtree(root)
    return state


# Audit


def _reported(problems: Any) -> set[tuple[str, str]]:
    """Return (kind, file) of each finding."""
    rows = [(row.kind, row.file) if hasattr(row, "kind") else (row["kind"], row["file"]) for row in problems]
    return {(kind, Path(file).name) for kind, file in rows}


@pytest.mark.parametrize("name", ["plain", "lmq", "propcrc", "batchcq", "cqext", "broker-live", "broker-ext"])
def test_audit_of_sound_stores(fixture_store: Any, name: str) -> None:
    """No problem is reported, and the counts are those of `verify`."""
    store = fixture_store(name).store
    report, expected = audited(store, splitBytes="30011"), verify_store(str(store)).counts()
    assert report.is_ok, report.problems
    assert report.counts["messages"] == expected["records"]
    assert (report.counts["items"], report.counts["index_files"]) == (expected["items"], expected["index_files"])
    assert report.counts["units"] == expected["units"]


@pytest.mark.parametrize("name", ["crash-torn", "crash-lost-cq"])
def test_audit_reports_the_same_problems_as_verify(fixture_store: Any, name: str) -> None:
    """The same kinds of problems are reported for the same files."""
    store = fixture_store(name).store
    found = _reported(audited(store, splitBytes="30011").problems)
    expected = _reported(verify_store(str(store)).problems)
    assert {kind for kind, _ in found} == {kind for kind, _ in expected}
    assert {row for row in found if "item" not in row[0]} == {row for row in expected if "item" not in row[0]}


def test_audit_of_a_damaged_record(made: Path) -> None:
    """The record's position is reported once, and so is the gap in its queue."""
    file, at = damage(made, next(row for row in dumped(made)[500:] if len(row["body"]) == 300))
    report = audited(made, splitBytes="49999")
    first = next(row for row in report.problems if row["kind"] == "bad_body_crc")
    assert (first["file"], first["offset"]) == (file, at)
    assert {"gap", "bad_body_crc"} <= {row["kind"] for row in report.problems}, "the record's number is missing in its queue"
    assert sum(row["gaps"] for row in report.queues) == 1


def test_audit_of_a_wrong_unit(made: Path) -> None:
    """The problem has the queue's folder and the byte offset."""
    file = next((made / QUEUES / "topic-1" / "2").iterdir())
    data = bytearray(file.read_bytes())
    data[20 * 7 + 3] ^= 1
    file.write_bytes(data)
    problems = audited(made, splitBytes="70001").problems
    assert [(row["kind"], row["file"], row["offset"]) for row in problems] == [("wrong_unit", str(file.parent), 140)]


def test_audit_of_a_unit_too_many(made: Path) -> None:
    """The queue has a unit after its last record."""
    folder = made / QUEUES / "topic-2" / "1"
    file = next(folder.iterdir())
    data = bytearray(file.read_bytes())
    count = len([row for row in dumped(made) if (row["topic"], row["queue_id"]) == ("topic-2", 1)])
    data[20 * count : 20 * count + 20] = data[20 * count - 20 : 20 * count]
    file.write_bytes(data)
    problems = audited(made, splitBytes="70001").problems
    assert [(row["kind"], row["file"], row["offset"]) for row in problems] == [("dangling_unit", str(folder), 20 * count)]


def test_audit_of_an_index_item_without_a_record(made: Path) -> None:
    """A changed physical offset makes one item missing and one dangling; its chain stays valid."""
    file = sorted((made / INDEX).iterdir())[0]
    data = bytearray(file.read_bytes())
    at = 40 + 4 * SMALL.max_hash_slot_num + 20 * 9 + 4  # type: ignore[operator]
    data[at + 7] ^= 1
    file.write_bytes(data)
    assert {row["kind"] for row in audited(made).problems} == {"missing_item", "dangling_item"}


def test_audit_of_a_broken_chain(made: Path) -> None:
    """The problem names the index file."""
    file = sorted((made / INDEX).iterdir())[1]
    data = bytearray(file.read_bytes())
    data[40 + 4 * SMALL.max_hash_slot_num + 20 * 9 + 3] ^= 1  # type: ignore[operator]
    file.write_bytes(data)
    assert ("damaged_index", str(file)) in {(row["kind"], row["file"]) for row in audited(made).problems}


def test_an_audit_finds_ranges_that_do_not_join(forged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that cannot look back far enough takes a copy in a body for a record."""
    assert audited(forged, splitBytes=333).is_ok
    monkeypatch.setattr(split_reader, "SEARCH_BACK", 50)
    assert not audited(forged, splitBytes=333).is_ok
    stretches = [{"store": "s", "file": "f", "begin": at, "end": at + 100} for at in (0, 100, 150)]
    assert [row["offset"] for row in auditing._unjoined(stretches, [])] == [150]


def test_audit_of_rabbitmq_folders(fixture_store: Any) -> None:
    """The result is that of the folder's own check."""
    folder = fixture_store("rabbitmq-clean", own=True).folder.parent / "vhost"
    report = audited(folder)
    assert report.is_ok and report.counts["messages"] > 100
    file = next((folder / "msg_store_persistent").glob("*.rdq"))
    data = bytearray(file.read_bytes())
    data[60] ^= 255
    file.write_bytes(data)
    assert not audited(folder).is_ok


def test_a_report_as_json_and_as_a_table(made: Path) -> None:
    """Both have the counts; the table has a row for each queue."""
    import json

    report = audited(made)
    reported = json.loads(report.to_json())
    assert reported["ok"] is True and reported["counts"]["messages"] == 1500
    text = report.to_text().splitlines()
    assert text[0].split() == ["topic", "queue_id", "first", "last", "messages", "gaps", "duplicates"]
    assert text[-1].startswith("OK: 1 stores")


def test_an_audit_refuses_filters(made: Path, fixture_store: Any) -> None:
    """It would seem to have checked everything."""
    with pytest.raises(BadOption, match="topic"):
        audited(made, topic="topic-1")
    folder = fixture_store("rabbitmq-clean").folder.parent / "vhost"
    for name in ("vhost", "splitBytes", "fileBytes"):
        with pytest.raises(BadOption, match=f"(?i){name}"):
            audited(folder, **{name: "7"})
