"""Queries of stores whose index lacks a part: lost, zeroed, older or foreign index files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from indexfile.layout import HEADER_SIZE, SLOT_SIZE
from messagestore import MessageStore
from messagestore.read import unindexed
from storageio.testing import CountingDisk
from tests.brokerstore.tool import run
from tests.cases import unpack_case
from tests.messagestore.writers import LOG_SIZE, Writer, number_of, open_store, put_all

COUNT = 1800
SLOTS = 100  # of `writers.config`
ITEMS_AT = HEADER_SIZE + SLOT_SIZE * SLOTS
MODES = ("r", "r+")


def index_files(root: Path) -> list[Path]:
    """Return the index files, oldest first."""
    return sorted((root / "index").iterdir())


def zero(path: Path, start: int, stop: int) -> None:
    """Overwrite bytes with zeros."""
    data = bytearray(path.read_bytes())
    data[start:stop] = bytes(stop - start)
    path.write_bytes(data)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a closed store with several full index files; every message has its number as a key."""
    root = tmp_path_factory.mktemp("healthy") / "store"
    with open_store(root) as store:
        put_all(store, 0, COUNT)
    assert len(index_files(root)) >= 4
    return root


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return another store, with longer records."""
    root = tmp_path_factory.mktemp("other") / "store"
    with open_store(root) as store:
        put_all(store, 5000, 5000 + COUNT, size=70)
    return root


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory, healthy: Path) -> Path:
    """Return an index of the healthy store at an earlier time."""
    root = tmp_path_factory.mktemp("older") / "store"
    shutil.copytree(healthy, root)
    for path in index_files(root)[-2:]:
        path.unlink()
    return root


Damage = Callable[[Path, Path], None]
DAMAGES: dict[str, Damage] = {
    "the first file lost": lambda root, _other: index_files(root)[0].unlink(),
    "a middle file lost": lambda root, _other: index_files(root)[1].unlink(),
    "two middle files lost": lambda root, _other: [path.unlink() for path in index_files(root)[1:3]] and None,
    "the last file lost": lambda root, _other: index_files(root)[-1].unlink(),
    "a middle header zeroed": lambda root, _other: zero(index_files(root)[1], 0, HEADER_SIZE),
    "the last header zeroed": lambda root, _other: zero(index_files(root)[-1], 0, HEADER_SIZE),
    "a middle file's slots zeroed": lambda root, _other: zero(index_files(root)[1], HEADER_SIZE, ITEMS_AT),
    "a middle file's items zeroed": lambda root, _other: zero(index_files(root)[1], ITEMS_AT + 2000, ITEMS_AT + 6000),
    "a middle file all zeros": lambda root, _other: zero(path := index_files(root)[1], 0, path.stat().st_size),
    "a middle file of another store": lambda root, other: (
        index_files(root)[1].write_bytes(index_files(other)[1].read_bytes()) and None
    ),
    "the index of another store": lambda root, other: _replace_index(root, other),
    "every header zeroed but one": lambda root, _other: [zero(path, 0, HEADER_SIZE) for path in index_files(root)[1:]] and None,
}


def _replace_index(root: Path, other: Path) -> None:
    shutil.rmtree(root / "index")
    shutil.copytree(other / "index", root / "index")


@pytest.fixture(params=DAMAGES)
def damaged(request: pytest.FixtureRequest, tmp_path: Path, healthy: Path, other: Path) -> Iterator[Path]:
    """Return a copy of the healthy store with one damage of its index."""
    root = tmp_path / "store"
    shutil.copytree(healthy, root)
    DAMAGES[request.param](root, other)
    yield root


def wrong_answers(store: MessageStore, step: int = 7) -> list[int]:
    """Return the numbers whose key does not give exactly their message."""
    return [
        number for number in range(0, COUNT, step) if [number_of(hit) for hit in store.query("t", f"k{number}")] != [number]
    ]


def test_keys_in_the_index_gap_that_a_broker_left_are_found(tmp_path: Path) -> None:
    """RocketMQ 5.3.3 was killed, deleted its last index file and indexed only what it recovered."""
    case = unpack_case("index-gap-after-kill", tmp_path)
    for mode in MODES:
        with MessageStore.open(case.folder, mode) as store:
            for query in case.expected["queries"]:
                found = store.query(query["topic"], query["key"], max_count=64)
                assert [hit.physical_offset for hit in found] == query["physical_offsets"], query["key"]
            assert store.unsearched_bytes == 0


def test_the_newest_are_taken_of_index_and_log(tmp_path: Path) -> None:
    """A limit takes the newest messages, wherever they are found."""
    case = unpack_case("index-gap-after-kill", tmp_path)
    with MessageStore.open(case.folder, "r") as store:
        for query in case.expected["queries"]:
            for most in (1, 5, 30):
                found = [hit.physical_offset for hit in store.query(query["topic"], query["key"], max_count=most)]
                assert found == query["physical_offsets"][-most:]


@pytest.mark.parametrize("mode", MODES)
def test_every_key_is_found_whatever_the_index_lacks(damaged: Path, mode: str) -> None:
    """Readers and writers search the log for it."""
    with open_store(damaged, mode) as store:
        assert wrong_answers(store) == []
        assert store.query("t", "none") == [] and store.unsearched_bytes == 0


def test_verify_reports_what_the_index_lacks_and_a_rebuild_ends_it(damaged: Path) -> None:
    """`verify` is 1; after `rebuild --apply` it is 0, and the index alone answers."""
    assert run("verify", damaged).code == 1
    assert run("rebuild", damaged, "--apply").code in (0, 7)
    assert run("verify", damaged).code == 0
    with open_store(damaged, "r") as store:
        assert wrong_answers(store) == [] and store.engine.unindexed.is_whole is False
        assert all(part.is_done for part in store.engine.unindexed._coverage.gaps())


def test_a_writer_s_key_filters_hide_nothing(damaged: Path) -> None:
    """Filters of the index files, made before or after the damage, do not end a search early."""
    with open_store(damaged, "r+") as store:
        filters = store.engine.key_filters
        for _ in range(20):
            filters.step()
        assert wrong_answers(store) == []
    with open_store(damaged, "r") as store:
        store.engine.key_filters.load()
        assert wrong_answers(store) == []


def test_an_older_index_beside_a_newer_log_is_completed_by_the_next_writer(tmp_path: Path, healthy: Path, older: Path) -> None:
    """A reader searches the log behind it, and the next opening for writing indexes that before any other put."""
    root = tmp_path / "store"
    shutil.copytree(healthy, root)
    _replace_index(root, older)
    with open_store(root, "r") as store:
        assert wrong_answers(store) == []
    with open_store(root, "r+") as store:
        put_all(store, COUNT, COUNT + 10)
        assert wrong_answers(store) == []
    assert run("verify", root).code == 0


def test_a_reader_beside_a_writer_searches_a_gap(tmp_path: Path, healthy: Path) -> None:
    """The gap is older than the writer, which keeps putting."""
    root = tmp_path / "store"
    shutil.copytree(healthy, root)
    index_files(root)[1].unlink()
    with Writer(root, f"put_all(open_store(root), {COUNT}, {COUNT + 9})\nsaid('done')\ntold()\n") as writer:
        assert writer.hear() == "done"
        with open_store(root, "r") as store:
            assert wrong_answers(store) == []
            assert [number_of(hit) for hit in store.query("t", f"k{COUNT + 8}")] == [COUNT + 8]


def test_long_index_gap_is_searched_partially_and_reported_by_the_tool(
    tmp_path: Path, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is 1, and stderr has the number of bytes."""
    root = tmp_path / "store"
    shutil.copytree(healthy, root)
    for path in index_files(root)[:2]:
        path.unlink()
    monkeypatch.setattr(unindexed, "SEARCHED_MAX", LOG_SIZE // 4)
    monkeypatch.setattr(unindexed, "BATCH", 16)
    with open_store(root, "r") as store:
        assert store.query("t", "k900") == [] and store.unsearched_bytes > 0
    ran = run("query", root, "t", "k900")
    assert ran.code == 1 and "incomplete: " in ran.talk and "not searched" in ran.talk


def test_messages_without_keys_between_the_index_files_are_no_gap(tmp_path: Path) -> None:
    """They are walked once, and later queries trust the index alone."""
    with open_store(tmp_path) as store:
        for start in range(0, COUNT, 100):
            put_all(store, start, start + 100)
            for _ in range(50):
                store.put(Message("t", b"no key", queue_id=0))
        assert wrong_answers(store) == []
        assert store.engine.unindexed.is_whole
    with open_store(tmp_path, "r") as store:
        assert wrong_answers(store) == []
        assert not any(part.first_keyed >= 0 for part in store.engine.unindexed._coverage.gaps())


def test_a_healthy_folder_is_not_searched(healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record behind a header's end is read by the first query, no part of the log is walked, and no file is read again."""
    disk: Any = CountingDisk()
    with MessageStore.open(healthy, "r", disk=disk) as store:
        store.query("t", "k1")
        monkeypatch.setattr(store.engine.unindexed, "_walk", None)
        for number in range(0, COUNT, 11):
            store.query("t", f"k{number}")
        disk.calls.clear()
        for number in range(0, COUNT, 11):
            store.query("t", f"k{number}")
        assert {call.operation for call in disk.calls} == {"stat"}
