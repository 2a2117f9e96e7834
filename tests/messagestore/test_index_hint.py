"""After a crash the key index is kept up to where the hint says, as long as the hint matches the log."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from indexfile import IndexFiles
from messagestore import MessageStore, StoreConfig
from messagestore.checkpoint import Checkpoint
from messagestore.index_hint import UNKNOWN, IndexHint, read_hint
from messagestore.recovery import witnesses
from messagestore.repair.recover import Choice, Recovery
from messagestore.write.dispatcher import DispatchService
from storageio import REAL_DISK, StoreCorrupt
from tests.stores import small_config

SMALL = small_config(max_hash_slot_num=50)
COUNT = 60


def put(store: MessageStore, numbers: range, word: str = "k") -> None:
    for number in numbers:
        store.put(Message("T", b"%d" % number, queue_id=0, keys=[f"{word}{number}"] if word else []))


def crash(folder: Path) -> None:
    """Make a cleanly closed store look like a crashed one."""
    (folder / "abort").touch()
    (folder / "brokerstore" / "clean.json").unlink(missing_ok=True)


def hits(store: MessageStore, word: str, numbers: range) -> list[int]:
    """Return how often each key is found."""
    return [len(store.query("T", f"{word}{number}")) for number in numbers]


def lose_units(queue: Path, kept: int) -> None:
    """Zero everything after the first units."""
    for path in sorted(queue.iterdir()):
        units = path.read_bytes()
        left = units[: max(0, 20 * kept - int(path.name))]
        path.write_bytes(left.ljust(len(units), b"\0"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with MessageStore.open(tmp_path / "store", config=SMALL) as store:
        put(store, range(COUNT))
    crash(tmp_path / "store")
    return tmp_path / "store"


def test_every_key_is_found_once_and_the_file_is_the_old_one(folder: Path) -> None:
    """No key is lost or doubled, and the file was not rebuilt."""
    before = [path.stat().st_ino for path in (folder / "index").iterdir()]
    with MessageStore.open(folder, "r+") as store:
        assert hits(store, "k", range(COUNT)) == [1] * COUNT
    assert [path.stat().st_ino for path in (folder / "index").iterdir()] == before
    assert not Recovery(str(folder)).plan().steps


def test_log_truncated_and_rewritten_by_a_broker_is_indexed_again(folder: Path) -> None:
    """A real broker may have done so: the hint's records are not these."""
    with MessageStore.open(folder / "other", config=SMALL) as store:
        put(store, range(COUNT), word="new")
    shutil.copytree(folder / "other" / "commitlog", folder / "commitlog", dirs_exist_ok=True)
    shutil.copytree(folder / "other" / "consumequeue", folder / "consumequeue", dirs_exist_ok=True)
    shutil.rmtree(folder / "other")
    with MessageStore.open(folder, "r+") as store:
        assert hits(store, "new", range(COUNT)) == [1] * COUNT
        assert hits(store, "k", range(COUNT)) == [0] * COUNT


@pytest.mark.parametrize(
    "change",
    [
        {"next_item": 1 << 40},
        {"next_item": -5},
        {"last_offset": 1 << 62},
        {"last_offset": 3},
        {"end_offset": 7},
        {"name": ".."},
    ],
)
def test_invalid_index_hint_is_ignored(folder: Path, change: dict[str, object]) -> None:
    """The hint is an optimization and never needed."""
    path = folder / "brokerstore" / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with MessageStore.open(folder, "r+") as store:
        assert hits(store, "k", range(COUNT)) == [1] * COUNT


def dispatched_from(folder: Path, patch: pytest.MonkeyPatch, config: StoreConfig = SMALL) -> tuple[int, list[int]]:
    """Return where dispatch begins at an open, and the queue offsets that exist then."""
    began: list[int] = []

    def watching(self: DispatchService, **options: bool) -> None:
        began.append(self.position)
        catch_up(self, **options)

    catch_up = DispatchService.catch_up
    patch.setattr(DispatchService, "catch_up", watching)
    with MessageStore.open(folder, "r+", config) as store:
        end = store.engine.log.written_offset
        found = [message.queue_offset for message in store.read("T", 0)]
        assert hits(store, "k", range(COUNT)) == [1] * COUNT
    return began[0] if began else end, found


def test_only_records_not_covered_by_the_index_hint_are_dispatched_after_a_kill(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of the queues' ends is unchanged: nothing before the hint's record is dispatched."""
    note = json.loads((folder / "brokerstore" / "index.json").read_text())
    assert note["next_total"] == COUNT
    assert dispatched_from(folder, monkeypatch) == (note["end_offset"], list(range(COUNT)))


def test_records_after_the_index_hint_are_dispatched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill between two hints some of it is in the queues and some is not."""
    note = (folder / "brokerstore" / "index.json").read_text()
    with MessageStore.open(folder, "r+", SMALL) as store:
        put(store, range(100, 110), word="n")
        put(store, range(3), word="")
    crash(folder)
    (folder / "brokerstore" / "index.json").write_text(note)
    lose_units(folder / "consumequeue" / "T" / "0", COUNT + 4)
    began, found = dispatched_from(folder, monkeypatch)
    assert (began, found) == (json.loads(note)["end_offset"], list(range(COUNT + 13)))
    with MessageStore.open(folder, "r", SMALL) as store:
        assert hits(store, "n", range(100, 110)) == [1] * 10


@pytest.mark.parametrize("loss", ["the queue", "its last unit", "its last half", "all queues", "another topic's queue"])
def test_queues_that_lost_units_covered_by_the_hint_are_dispatched_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    """Files were changed by hand, or the disk lost a sync: the sum of the queues' ends is different."""
    with MessageStore.open(folder, "r+", SMALL) as store:
        store.put(Message("Other", b"x", queue_id=0))
    crash(folder)
    (folder / "brokerstore" / "queues.json").unlink()  # it would show the missing folder
    queue = folder / "consumequeue" / "T" / "0"
    if loss in ("its last unit", "its last half"):
        lose_units(queue, COUNT - 1 if loss == "its last unit" else COUNT // 2)
    else:
        gone = {"the queue": queue, "all queues": folder / "consumequeue"}
        shutil.rmtree(gone.get(loss, folder / "consumequeue" / "Other"))
    began, found = dispatched_from(folder, monkeypatch)
    assert (began, found) == (0, list(range(COUNT)))
    with MessageStore.open(folder, "r", SMALL) as store:
        assert [message.body for message in store.read("Other", 0)] == [b"x"]


def test_lost_extended_units_are_rebuilt_even_if_the_hint_covers_the_queues(tmp_path: Path) -> None:
    """Their queue is deleted and rebuilt after its end was counted."""
    folder, config = tmp_path / "store", SMALL.but(enable_consume_queue_ext=True)
    with MessageStore.open(folder, config=config) as store:
        put(store, range(COUNT))
    crash(folder)
    shutil.rmtree(folder / "consumequeue_ext")
    (folder / "brokerstore" / "queues.json").unlink()
    with MessageStore.open(folder, "r+", config) as store:
        assert [message.queue_offset for message in store.read("T", 0)] == list(range(COUNT))


def test_queues_are_not_compared_with_the_hint_of_another_log(tmp_path: Path) -> None:
    """The number of units before the hint's offset is the same, but more, shorter records precede it."""
    folder, other = tmp_path / "store", tmp_path / "other"
    with MessageStore.open(folder, config=SMALL) as store:
        for number in range(COUNT):
            store.put(Message("T", bytes(300), queue_id=0, keys=[f"k{number}"]))
    end = json.loads((folder / "brokerstore" / "index.json").read_text())["end_offset"]
    with MessageStore.open(other, config=SMALL) as store:
        while store.engine.log.written_offset < end - 1000:
            put(store, range(1))
        while store.engine.log.written_offset <= end:
            store.put(Message("Other", b"behind", queue_id=0, keys="k"))
        count = len(list(store.read("T", 0)))
        others = sum(message.physical_offset < end for message in store.read("Other", 0))
    assert count > COUNT > others
    shutil.copy(folder / "brokerstore" / "index.json", other / "brokerstore")
    lose_units(other / "consumequeue" / "T" / "0", COUNT - others)
    crash(other)
    with MessageStore.open(other, "r+", SMALL) as store:
        assert [message.queue_offset for message in store.read("T", 0)] == list(range(count))


def test_a_queue_that_lost_units_of_an_older_log_file_is_filled_from_there(tmp_path: Path) -> None:
    """Queues are cut once with the hint and once without: the first cut knows what was lost."""
    folder = tmp_path / "store"
    clock = iter(range(1_700_000_000_000, 1_800_000_000_000, 1000))
    with MessageStore.open(folder, config=SMALL, clock=lambda: next(clock)) as store:
        put(store, range(COUNT))
        for number in range(800):
            store.put(Message("Other", bytes(100), queue_id=0, keys=[f"o{number}"]))
    assert len(list((folder / "commitlog").iterdir())) > 2
    crash(folder)
    file = min((folder / "consumequeue" / "T" / "0").iterdir())
    units = file.read_bytes()
    file.write_bytes(units[:200] + bytes(20) + units[220:])
    with MessageStore.open(folder, config=SMALL) as store:
        assert [message.queue_offset for message in store.read("T", 0)] == list(range(COUNT))


def test_index_hint_of_an_older_version_does_not_cover_the_queues(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no sum: the index is kept, and dispatch begins at the checkpoint's position."""
    path = folder / "brokerstore" / "index.json"
    note = json.loads(path.read_text())
    del note["next_total"]
    path.write_text(json.dumps(note))
    assert read_hint(REAL_DISK, str(folder / "brokerstore")) == IndexHint(**note, next_total=UNKNOWN)
    before = [path.stat().st_ino for path in (folder / "index").iterdir()]
    assert dispatched_from(folder, monkeypatch) == (0, list(range(COUNT)))
    assert [path.stat().st_ino for path in (folder / "index").iterdir()] == before


def test_deleted_topic_invalidates_the_sum_of_queue_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues were deleted while the store ran: the sum of their ends is unknown until the next recovery counts."""
    with MessageStore.open(folder, "r+", SMALL) as store:
        store.put(Message("Other", b"x", queue_id=0))
        store.engine.settle()
        store.engine.queues.remove_topic("Other")
        put(store, range(1), word="")
    crash(folder)
    assert json.loads((folder / "brokerstore" / "index.json").read_text())["next_total"] == -1
    assert dispatched_from(folder, monkeypatch)[0] == 0
    crash(folder)
    end = json.loads((folder / "brokerstore" / "index.json").read_text())["end_offset"]
    assert dispatched_from(folder, monkeypatch)[0] == end


def test_a_store_without_keys_keeps_its_empty_file(tmp_path: Path) -> None:
    """Otherwise it would be deleted and created at each open after a crash, and the whole log read for nothing."""
    folder = tmp_path / "store"
    with MessageStore.open(folder, config=SMALL) as store:
        put(store, range(COUNT), word="")
    for _ in range(2):
        crash(folder)
        before = {path.name: path.stat().st_ino for path in (folder / "index").iterdir()}
        with MessageStore.open(folder, "r+", SMALL) as store:  # a file without items does not show its sizes
            put(store, range(3), word="")
        assert {path.name: path.stat().st_ino for path in (folder / "index").iterdir()} == before


def test_rebuilt_index_is_not_compared_with_the_hint_of_the_old_one(folder: Path) -> None:
    """Recovery replaced a record by a filler without keys; the old count would keep items of zeros."""
    log = next((folder / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    data[60] ^= 1
    log.write_bytes(data)
    (folder / "abort").unlink()
    Recovery(str(folder), Choice.SKIP).apply()
    assert not Recovery(str(folder)).plan().steps


def test_open_refuses_a_log_hole_followed_by_indexed_records(folder: Path) -> None:
    """Queues are missing and the log has a hole, after a clean stop: only the index names the records behind the hole."""
    with MessageStore.open(folder, "r", SMALL) as store:
        victim = list(store.engine.log.messages())[30]
    (folder / "abort").unlink()
    shutil.rmtree(folder / "consumequeue")
    with min((folder / "commitlog").iterdir()).open("r+b") as file:
        file.seek(victim.physical_offset)
        file.write(bytes(victim.size))
    with pytest.raises(StoreCorrupt, match="safely stored records behind it"):
        MessageStore.open(folder, config=SMALL)


def test_checkpoint_index_time_is_reset_before_the_index_is_truncated(tmp_path: Path) -> None:
    """The log lost its tail: a crash while the index is cut would leave a half-cut file that seems safe."""
    folder, config = tmp_path / "store", SMALL.but(max_index_num=11)
    clock = iter(range(1_700_000_000_000, 1_800_000_000_000, 1000))
    with MessageStore.open(folder, config=config, clock=lambda: next(clock)) as store:
        put(store, range(COUNT))
        offsets = [message.physical_offset for message in store.engine.log.messages()]
    assert Checkpoint(REAL_DISK, str(folder)).index_msg_timestamp_ms > 0
    crash(folder)
    with min((folder / "commitlog").iterdir()).open("r+b") as file:
        file.seek(offsets[25])
        file.write(bytes(offsets[-1] + 1000 - offsets[25]))
    index = IndexFiles.keep_until, IndexFiles.keep_sound
    printed: list[int] = []

    def watching(call: Any) -> Any:
        def examine(self: IndexFiles, *given: Any) -> Any:
            printed.append(Checkpoint(REAL_DISK, str(folder)).index_msg_timestamp_ms)
            return call(self, *given)

        return examine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(witnesses, "lacks_synced_records", lambda *_: False)  # as after a clock that was set back
        patch.setattr(IndexFiles, "keep_until", watching(index[0]))
        patch.setattr(IndexFiles, "keep_sound", watching(index[1]))
        with MessageStore.open(folder, config=config) as store:
            assert printed and set(printed) == {0}, "on the disk before the index is changed"
            assert hits(store, "k", range(COUNT)) == [1] * 25 + [0] * (COUNT - 25)
