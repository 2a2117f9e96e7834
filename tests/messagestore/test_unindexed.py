"""Queries of readers if the key index ends before the log does: beside a writer, and after a kill."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.read import reader_view, unindexed
from storageio.testing import CountingDisk
from tests.brokerstore.tool import run
from tests.messagestore.writers import LOG_SIZE, Writer, number_of, open_store, put_all

COUNT = 900
PROGRAM = f"""
store = open_store(root)
put_all(store, 0, 300)
store.get("t", 0, 0)
store.engine.dispatcher._round.acquire()
put_all(store, 300, {COUNT})
for number in range(9):
    store.put(Message("t", b"%d " % number, keys=["same"]))
said("done")
told()
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a killed writer's folder whose messages from number 300 on are in no queue and not in the index."""
    root = tmp_path_factory.mktemp("killed") / "store"
    with Writer(root, PROGRAM) as writer:
        assert writer.hear() == "done"
        writer.kill()
    return root


def test_a_broker_s_answers_are_found_without_its_index(fixture_store: Any) -> None:
    """A killed broker's folder without queues and index gives what the broker answered before."""
    fixture = fixture_store("crash-lost-cq")
    before = fixture.expected("before.json")
    assert before["queries"]
    with MessageStore.open(fixture.store, "r") as store:
        for query in before["queries"]:
            times = (query["begin"], query["end"])
            found = [stored.physical_offset for stored in store.query(query["topic"], query["key"], *times, query["maxNum"])]
            assert found == sorted(query["queryMessagePhyOffsets"]), query
        assert store.unsearched_bytes == 0


def test_rolled_back_transactions_are_not_found(fixture_store: Any) -> None:
    """No index has them: the broker's own answers with an index equal ours without."""
    fixture = fixture_store("crash-lost-cq")
    with MessageStore.open(fixture.store, "r") as store:
        rolled_back = [stored for stored in store.engine.log.messages() if stored.sys_flag & 0xC == 0xC]
        assert rolled_back
        for stored in rolled_back:
            hits = store.query(stored.topic, stored.keys[0], max_count=1000)
            assert stored.physical_offset not in [hit.physical_offset for hit in hits]


def test_messages_that_a_killed_writer_did_not_dispatch_are_found(killed: Path) -> None:
    """They are found across log files, together with those in the index."""
    with open_store(killed, "r") as store:
        for number in range(0, COUNT, 7):
            assert [number_of(hit) for hit in store.query("t", f"k{number}")] == [number]
        assert store.query("t", f"k{COUNT}") == [] and store.query("other", "k344") == []


def test_query_with_a_limit_returns_the_newest_messages(killed: Path) -> None:
    """As from the index, the newest of the same key are returned in log order; times count too."""
    with open_store(killed, "r") as store:
        assert [number_of(hit) for hit in store.query("t", "same", max_count=3)] == [6, 7, 8]
        assert store.query("t", "same", end_ms=1) == []


def test_search_stops_at_its_limit_and_reports_the_rest(
    killed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest behind the limit is counted and logged once, and the tool reports it."""
    monkeypatch.setattr(unindexed, "SEARCHED_MAX", LOG_SIZE // 4)
    monkeypatch.setattr(unindexed, "BATCH", 16)
    with open_store(killed, "r") as store, caplog.at_level(logging.WARNING):
        assert [number_of(hit) for hit in store.query("t", "k301")] == [301] and store.unsearched_bytes > 0
        assert store.query("t", "k899") == [] and store.unsearched_bytes > LOG_SIZE // 4
        assert sum("were not searched" in record.getMessage() for record in caplog.records) == 1
    ran = run("query", killed, "t", "k899")
    assert ran.code == 1 and "incomplete: " in ran.talk and "no message of topic 't' has the key 'k899'" in ran.talk


def test_search_uses_the_queues_to_skip_messages_without_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They leave no trace in the index: a long range of them would use up the limit."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 10)
        for _ in range(3000):
            store.put(Message("t", b"no key", queue_id=0))
        put_all(store, 10, 20)
        store.get("t", 0, 0)
        monkeypatch.setattr(unindexed, "QUEUES_AFTER", 4096)
        monkeypatch.setattr(unindexed, "SEARCHED_MAX", LOG_SIZE)
        monkeypatch.setattr(unindexed, "BATCH", 16)
        with open_store(tmp_path, "r") as reader:
            for number in range(20):
                assert [number_of(hit) for hit in reader.query("t", f"k{number}")] == [number]
            assert reader.query("t", "none") == [] and reader.unsearched_bytes == 0


def test_index_files_that_a_writer_makes_during_the_walk_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader walks 4 MiB, finds that the dispatcher is further, and lists the index files again.

    What the dispatcher did in between is in index files that the reader had not listed.
    """
    monkeypatch.setattr(unindexed, "QUEUES_AFTER", 4096)
    monkeypatch.setattr(unindexed, "BATCH", 16)
    with open_store(tmp_path) as store, open_store(tmp_path, "r") as reader:
        put_all(store, 0, 10)
        store.get("t", 0, 0)
        is_stopped = store.engine.dispatcher._round.acquire()
        put_all(store, 10, 1200)
        learn = reader.engine.unindexed._learn_dispatched

        def dispatching(at: int, part: Any) -> bool:
            nonlocal is_stopped
            if is_stopped:
                is_stopped = False
                store.engine.dispatcher._round.release()
                store.get("t", 0, 0)
            return bool(learn(at, part))

        monkeypatch.setattr(reader.engine.unindexed, "_learn_dispatched", dispatching)
        assert [number_of(hit) for hit in reader.query("t", "k1100")] == [1100]
        assert not is_stopped and len(reader.engine.index.files) > 1


def test_index_files_deleted_during_each_walk_end_no_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are deleted between the listing and the search, each time that the reader tries: it lists them again first."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 12_000)
    with open_store(tmp_path, "r") as reader:
        gone = []
        tail_of = reader.engine.unindexed._tail_of

        def deleting(is_in_use: bool) -> Any:
            gone.append(min((tmp_path / "index").iterdir()))
            gone[-1].unlink()
            return tail_of(is_in_use)

        monkeypatch.setattr(reader.engine.unindexed, "_tail_of", deleting)
        (tmp_path / "abort").touch()
        assert [number_of(hit) for hit in reader.query("t", "k1")] == [1], "the log still has it"
        assert [number_of(hit) for hit in reader.query("t", "k11999")] == [11_999]
        assert len(gone) == 3


def test_an_index_file_that_a_writer_deletes_ends_no_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is deleted between listing the folder and opening the file: the reader tries again."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 1200)
    with open_store(tmp_path, "r") as reader:
        oldest = sorted((tmp_path / "index").iterdir())[0]
        offsets = reader.engine.unindexed.offsets

        def deleting(topic: bytes, key: bytes) -> list[int]:
            found: list[int] = offsets(topic, key)
            oldest.unlink(missing_ok=True)
            return found

        monkeypatch.setattr(reader.engine.unindexed, "offsets", deleting)
        assert [number_of(hit) for hit in reader.query("t", "k1")] == [1], "the log still has it"
        assert [number_of(hit) for hit in reader.query("t", "k1199")] == [1199]


@pytest.fixture
def rarely_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let readers list folders again only where they see a reason, not because time has passed."""
    monkeypatch.setattr(reader_view, "CHECK_S", 1e9)


@pytest.mark.usefixtures("rarely_checked")
def test_a_reader_finds_each_put_of_a_living_writer(tmp_path: Path) -> None:
    """Over ends of log files and index files, dispatched or not; a reader that was just opened agrees."""
    with open_store(tmp_path) as store, open_store(tmp_path, "r") as reader:
        assert reader.query("t", "k0") == []
        for number in range(0, 1300, 13):
            put_all(store, number, number + 13)
            if number % 2:
                store.get("t", 0, 0)
            for expected in (number, number + 12):
                assert [number_of(hit) for hit in reader.query("t", f"k{expected}")] == [expected]
        assert len(reader.engine.index.files) > 2 and len(reader.engine.log.queue.files) > 2
        with open_store(tmp_path, "r") as fresh:
            for number in range(1300):
                assert [number_of(hit) for hit in fresh.query("t", f"k{number}")] == [number]


@pytest.mark.usefixtures("rarely_checked")
def test_a_reader_finds_the_puts_of_the_next_writer(tmp_path: Path) -> None:
    """The folder was closed, or another process opened it after a kill: its file `abort` changes."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 10)
    with open_store(tmp_path, "r") as reader:
        assert [number_of(hit) for hit in reader.query("t", "k9")] == [9]
        for start in range(10, 1300, 430):
            with Writer(tmp_path, f"put_all(open_store(root), {start}, {start + 430})\nsaid('done')\ntold()\n") as writer:
                assert writer.hear() == "done"
                for number in (start, start + 429):
                    assert [number_of(hit) for hit in reader.query("t", f"k{number}")] == [number]
                writer.kill()
            for number in (0, start, start + 429):
                assert [number_of(hit) for hit in reader.query("t", f"k{number}")] == [number]


@pytest.mark.usefixtures("rarely_checked")
def test_a_query_of_a_reader_lists_no_folder(tmp_path: Path) -> None:
    """It asks for two files, `abort` and that of deleted topics, beside a writer and after it."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 100)
        store.get("t", 0, 0)  # waits for the dispatcher, which creates the first index file
        disk = CountingDisk()
        with MessageStore.open(tmp_path, "r", disk=disk) as reader:
            for is_closed in (False, True):
                if is_closed:
                    store.close()
                reader.query("t", "k1")
                disk.calls.clear()
                for number in range(50):
                    assert reader.query("t", f"k{number}")
                found = [(call.operation, Path(call.path).name) for call in disk.calls]
                assert found == [("stat", "abort"), ("stat", "deleted.json")] * 50
