"""Items of tags, which brokers since RocketMQ 5.4 add to the key index (docs/formats/indexfile.md#what-is-indexed)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from messagestore import MessageStore
from messagestore.derive.index_comparison import IndexComparison
from messagestore.repair.recover import Recovery
from messagestore.repair.verification import verify_store
from tests.messagestore.test_wheel_snapshots import store_of
from tests.stores import problem_kinds

TAG = b"TAGS\x01"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return the folder of a 5.5.1 broker, without its empty database: 102 messages, 101 of them with a tag."""
    folder = store_of("timersnap551", tmp_path)
    shutil.rmtree(folder / "rocksdbstore")
    return folder


def test_index_items_of_tags_are_matched_with_their_records(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is intact and stays as it is, and no second pass over the log is needed to tell that."""
    before = {path: path.read_bytes() for path in (store / "index").iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(IndexComparison, "_differences", lambda *_: pytest.fail("a second pass"))
        report = verify_store(str(store))
    assert (report.problems, report.items) == ([], 301)
    assert not any("index" in step.text for step in Recovery(str(store)).plan().steps)
    Recovery(str(store)).apply()
    assert {path: path.read_bytes() for path in (store / "index").iterdir()} == before


def test_item_of_another_tag_is_dangling(store: Path) -> None:
    """The index shows that the tag of a record was changed, as the tags code of its unit does."""
    (log,) = (store / "commitlog").glob("0*")
    data = log.read_bytes()
    log.write_bytes(data.replace(TAG, b"TAGZ\x01", 1))
    assert problem_kinds(store) == {"dangling_item", "wrong_unit"}


def test_records_without_items_of_tags_are_no_problem(store: Path) -> None:
    """In a store that an older broker began, or after messages of a program without them, the index has items of some tags."""
    with MessageStore.open(store, "a") as opened:
        number = opened.max_offset("MixPlain", 0)
        opened.put("MixPlain", b"one more", tags="a", keys=["k"], queue_id=0)
        assert opened.max_offset("MixPlain", 0) == number + 1
    assert problem_kinds(store) == set()
