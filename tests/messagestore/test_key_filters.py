"""Queries with filters of key hashes, of writers and readers (docs/formats/indexfile.md#key-filters)."""

from __future__ import annotations

import random
from errno import EIO
from pathlib import Path

import pytest

from messagestore import MessageStore
from messagestore.repair.verification import verify_store
from storageio import DiskError
from storageio.testing import WrappedDisk
from tests.messagestore.writers import number_of, open_store, put_all

COUNT = 3700  # seven full index files and one that is not


def build(store: MessageStore) -> None:
    """Build all filters now; the housekeeper takes a short step each second."""
    store.get("t", 0, 0)  # waits for the dispatcher
    filters = store.engine.key_filters
    with store.engine.housekeeper.guard:
        for _ in range(2):  # the first one may end what the housekeeper began with fewer files
            filters.step(iter(lambda: 0.0, None).__next__)
    assert len(store.engine.index.filters) and not filters._is_failed


def answers(store: MessageStore) -> list[list[int]]:
    """Return the answers about keys of each index file, and about a key that is nowhere."""
    return [[number_of(hit) for hit in store.query("t", f"k{number}")] for number in range(0, COUNT + 50, 41)]


EXPECTED = [[number] if number < COUNT else [] for number in range(0, COUNT + 50, 41)]


def test_a_query_reads_only_files_that_may_have_the_key(tmp_path: Path) -> None:
    """Beside the writer a reader uses its filters, and maps one of the full files."""
    with open_store(tmp_path) as store:
        put_all(store, 0, COUNT)
        assert answers(store) == EXPECTED
        build(store)
        assert answers(store) == EXPECTED
        with open_store(tmp_path, "r") as reader:
            assert [number_of(hit) for hit in reader.query("t", "k700")] == [700]
            opened = [file.is_open for file in reader.engine.index.files]
            assert opened[1] and sum(opened) <= 3, opened  # that of the key, the newest one, and at most one by chance
            put_all(store, COUNT, COUNT + 700)
            assert [number_of(hit) for hit in reader.query("t", f"k{COUNT + 699}")] == [COUNT + 699]
            assert answers(reader)[:90] == EXPECTED[:90]


def test_a_damaged_filter_changes_no_answer(tmp_path: Path) -> None:
    """Bits of every kind of byte flip; `verify` notes the file, and a writer builds it again."""
    with open_store(tmp_path) as store:
        put_all(store, 0, COUNT)
        build(store)
        assert len(list((tmp_path / "brokerstore/keys").iterdir())) == 3
    assert not [one for one in verify_store(str(tmp_path)).notes if one.kind == "key_filter"]
    chosen = random.Random(11)
    for path in sorted((tmp_path / "brokerstore/keys").iterdir()):
        whole = path.read_bytes()
        for at in [3, 9, 30, 90, *chosen.sample(range(4096, len(whole)), 6)]:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << chosen.randrange(8))]) + whole[at + 1 :])
            with open_store(tmp_path, "r") as reader:
                assert answers(reader) == EXPECTED
        found = verify_store(str(tmp_path))
        assert str(path) in [one.file for one in found.notes if one.kind == "key_filter"] and not found.problems
    with open_store(tmp_path) as store:
        build(store)
        assert answers(store) == EXPECTED
        build(store)  # what the queries found to be damaged
    found = verify_store(str(tmp_path))
    assert not [one for one in found.notes if one.kind == "key_filter"]


def test_filters_of_a_rebuilt_index_are_not_used(tmp_path: Path) -> None:
    """The old filters are of other files, although the folder has some of the same names."""
    with open_store(tmp_path) as store:
        put_all(store, 0, COUNT)
        build(store)
    names = sorted((tmp_path / "index").iterdir())
    data = [path.read_bytes() for path in names]
    for path, other in zip(names[:-1], [*data[1:-1], data[0]], strict=True):  # each name has another file's keys
        path.write_bytes(other)
    with open_store(tmp_path, "r") as reader:
        assert sorted(answers(reader)) == sorted(EXPECTED)
        assert not [one for one in reader.engine.index.searched if hasattr(one, "live")]


@pytest.mark.parametrize("kind", ["file", "symlink", "folder of folders"])
def test_file_or_symlink_instead_of_the_filter_folder_hides_no_key(tmp_path: Path, kind: str) -> None:
    """Queries of a reader and of a writer find everything, and nothing is written through a symlink."""
    with open_store(tmp_path) as store:
        put_all(store, 0, COUNT)
    position, other = tmp_path / "brokerstore/keys", tmp_path / "other"
    other.mkdir()
    if kind == "file":
        position.write_bytes(b"x")
    elif kind == "symlink":
        position.symlink_to(other)
    else:
        (position / "1-1.keys").mkdir(parents=True)
    with open_store(tmp_path, "r") as reader:
        assert answers(reader) == EXPECTED
    with open_store(tmp_path) as store:
        with store.engine.housekeeper.guard:
            store.engine.key_filters.step(lambda: 0.0)
        assert answers(store) == EXPECTED
        assert bool(store.engine.index.filters) == (kind == "folder of folders")
    assert not list(other.iterdir())
    found = verify_store(str(tmp_path))
    assert [one.kind for one in found.problems] == ["strange_sidecar"]


class NoFilters(WrappedDisk):
    """A disk that fails one operation on the folder of the filters and on its files."""

    def __init__(self, failing: str) -> None:
        super().__init__()
        self.failing = failing

    def before(self, operation: str, path: str) -> None:
        if operation == self.failing and "/brokerstore/keys" in path:
            raise DiskError(operation, path, EIO, "planted")


@pytest.mark.parametrize("operation", ["stat", "list", "open", "read", "size", "map"])
def test_filters_that_cannot_be_read(tmp_path: Path, operation: str, caplog: pytest.LogCaptureFixture) -> None:
    """Queries of a reader and of a writer find everything without them, and a reader that cannot list them says so once."""
    with open_store(tmp_path) as store:
        put_all(store, 0, COUNT)
        build(store)
    with open_store(tmp_path, "r", disk=NoFilters(operation)) as reader:
        reader.engine.view._refreshed_s = reader.engine.view._filters_loaded_s = -1000.0
        assert answers(reader) == EXPECTED
        reader.engine.view._refreshed_s = reader.engine.view._filters_loaded_s = -1000.0
        assert answers(reader) == EXPECTED
        assert not reader.engine.index.filters
    reported = [one.getMessage() for one in caplog.records if one.getMessage().startswith("key filters are not used")]
    assert len(reported) == (operation in ("stat", "list"))
    with open_store(tmp_path, disk=NoFilters(operation)) as store:
        with store.engine.housekeeper.guard:
            store.engine.key_filters.step()
        assert answers(store) == EXPECTED


def test_closing_does_not_wait_for_filters(tmp_path: Path) -> None:
    """A store that is closed in the middle of a filter ends it there; the next writer deletes the part and builds all."""
    with open_store(tmp_path) as store:
        put_all(store, 0, COUNT)
        store.get("t", 0, 0)
        filters = store.engine.key_filters
        with store.engine.housekeeper.guard:
            filters.close()
            filters._steps = filters._work()
            while not list((tmp_path / "brokerstore/keys").glob("*.new")):
                next(filters._steps)
            store.engine.housekeeper.jobs.clear()
        (part,) = (tmp_path / "brokerstore/keys").glob("*.new")
        before = sorted((tmp_path / "brokerstore/keys").iterdir())
    assert filters.is_idle and sorted((tmp_path / "brokerstore/keys").iterdir()) == before
    with open_store(tmp_path) as store:
        build(store)
        assert answers(store) == EXPECTED
    assert not part.exists() and len(list((tmp_path / "brokerstore/keys").iterdir())) == 3
