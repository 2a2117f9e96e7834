"""A damaged last record is damage after a clean stop, and a torn tail after a crash."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from commitlog import Message
from commitlog.verify import verify_log
from messagestore import MessageStore
from messagestore.repair.recover import Choice, Recovery
from storageio import StoreCorrupt
from tests.brokerstore.tool import run
from tests.faults.test_unknown_formats import snapshot
from tests.stores import small_config

SMALL = small_config()
COUNT = 5


@pytest.fixture(params=[True, False], ids=["our clean stop", "a broker's clean stop"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a cleanly stopped store with one changed byte in the last body; a broker leaves no record of its log's end."""
    with MessageStore.open(tmp_path / "store", config=SMALL) as opened:
        for number in range(COUNT):
            last = opened.put(Message("T", b"%d" % number * 50, queue_id=0))
    path = tmp_path / "store" / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[last.physical_offset + 100] ^= 0x01
    path.write_bytes(data)
    if not request.param:
        (tmp_path / "store" / "brokerstore" / "clean.json").unlink()
    return tmp_path / "store"


def test_open_does_not_truncate_a_damaged_last_record_after_a_clean_stop(store: Path) -> None:
    """Everything was on the disk before the abort file was removed, so a crash is no explanation.  Other messages are read."""
    before = snapshot(store)
    for mode in ("a", "r+"):
        with pytest.raises(StoreCorrupt, match="bad_"):
            MessageStore.open(store, mode, SMALL)
    assert snapshot(store) == before
    with MessageStore.open(store, "r", SMALL) as opened:
        assert [message.body for message in opened.get("T", 0, 0, COUNT - 1).messages] == [
            b"%d" % number * 50 for number in range(COUNT - 1)
        ]


def test_recover_names_the_lost_record(store: Path) -> None:
    """The lost message counts as dropped; its bytes are kept, and the store opens again."""
    plan = Recovery(str(store), Choice.REFUSE).plan()
    assert plan.messages_kept == COUNT - 1
    assert plan.needs_choice and {name: cost.messages_lost for name, cost in plan.choices.items()} == {
        "skip-bad": 1,
        "truncate": 1,
    }
    before = snapshot(store)
    assert run("recover", "--apply", store).code == 1 and snapshot(store) == before
    assert run("recover", "--apply", "--truncate", store).code == 6
    assert list((store / "brokerstore").glob("cut-*"))
    with MessageStore.open(store, "r+", SMALL) as opened:
        assert opened.max_offset("T", 0) == COUNT - 1


def test_the_same_bytes_after_a_crash_are_cut(store: Path) -> None:
    """With an abort file, without `clean.json` and without a checkpoint time nothing shows that the record was on the disk.

    A unit names it, so it is counted as lost.
    """
    (store / "brokerstore" / "clean.json").unlink(missing_ok=True)
    (store / "checkpoint").write_bytes(bytes(4096))
    (store / "abort").touch()
    plan = Recovery(str(store), Choice.REFUSE).plan()
    assert plan.messages_lost == 1 and not plan.needs_choice
    with MessageStore.open(store, "r+", SMALL) as opened:
        assert opened.max_offset("T", 0) == COUNT - 1
    assert list((store / "brokerstore").glob("cut-*"))


def test_a_blank_record_of_a_wrong_size_does_not_hide_the_next_file(tmp_path: Path) -> None:
    """RocketMQ's dispatcher skips to the next file at a blank record of any size; `verify` reports the size."""
    root, count = tmp_path / "store", 0
    with MessageStore.open(root, config=SMALL) as opened:
        while len(list((root / "commitlog").iterdir())) < 2 or count < 10:
            opened.put(Message("T", bytes(SMALL.mapped_file_size_commit_log // 10), queue_id=0))
            count += 1
    path = root / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    blank_at = data.rindex(bytes.fromhex("cbd43194")) - 4
    data[blank_at + 3] ^= 0x01
    path.write_bytes(data)
    shutil.rmtree(root / "consumequeue")
    with MessageStore.open(root, "r+", SMALL) as opened:
        assert opened.max_offset("T", 0) == count
        with opened.follow(0, timeout_s=0) as follower:
            assert len(list(follower)) == count
    problems = verify_log([str(root / "commitlog")]).problems
    assert [(one.kind, one.offset) for one in problems] == [("bad_blank_size", blank_at)]
