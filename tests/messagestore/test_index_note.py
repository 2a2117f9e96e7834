"""After a crash the key index is kept up to where a note says, and only while the note tells of this log."""

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
from messagestore.mending.recover import Choice, Recovery
from storageio import REAL_DISK

SMALL = StoreConfig(
    mapped_file_size_commit_log=65536, mapped_file_size_consume_queue=2000, max_hash_slot_num=50, max_index_num=400
)
COUNT = 60


def put(store: MessageStore, numbers: range, word: str = "k") -> None:
    for number in numbers:
        store.put(Message("T", b"%d" % number, queue_id=0, keys=[f"{word}{number}"] if word else []))


def crash(folder: Path) -> None:
    """What a cleanly closed store lacks of a crashed one's looks."""
    (folder / "abort").touch()
    (folder / "brokerstore" / "clean.json").unlink(missing_ok=True)


def hits(store: MessageStore, word: str, numbers: range) -> list[int]:
    """How often each key is found."""
    return [len(store.query("T", f"{word}{number}")) for number in numbers]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with MessageStore.open(tmp_path / "store", config=SMALL) as store:
        put(store, range(COUNT))
    crash(tmp_path / "store")
    return tmp_path / "store"


def test_every_key_is_found_once_and_the_file_is_the_old_one(folder: Path) -> None:
    """Nothing is lost, nothing doubled, and the file was not built anew."""
    before = [path.stat().st_ino for path in (folder / "index").iterdir()]
    with MessageStore.open(folder, "r+") as store:
        assert hits(store, "k", range(COUNT)) == [1] * COUNT
    assert [path.stat().st_ino for path in (folder / "index").iterdir()] == before
    assert not Recovery(str(folder)).plan().actions


def test_a_log_that_was_cut_and_written_anew_by_another_is_indexed_again(folder: Path) -> None:
    """A real broker may have done so: the records that the note tells of are not these."""
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
def test_a_note_of_nonsense_is_not_believed(folder: Path, change: dict[str, object]) -> None:
    """It is a short cut, never needed."""
    path = folder / "brokerstore" / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with MessageStore.open(folder, "r+") as store:
        assert hits(store, "k", range(COUNT)) == [1] * COUNT


def test_a_store_without_keys_keeps_its_empty_file(tmp_path: Path) -> None:
    """It was deleted and made again at each opening after a crash, and the whole log read for nothing."""
    folder = tmp_path / "store"
    with MessageStore.open(folder, config=SMALL) as store:
        put(store, range(COUNT), word="")
    for _ in range(2):
        crash(folder)
        before = {path.name: path.stat().st_ino for path in (folder / "index").iterdir()}
        with MessageStore.open(folder, "r+", SMALL) as store:  # the sizes cannot be told from a file without items
            put(store, range(3), word="")
        assert {path.name: path.stat().st_ino for path in (folder / "index").iterdir()} == before


def test_an_index_built_anew_is_not_measured_by_the_note_of_the_old_one(folder: Path) -> None:
    """Recovery replaced a record by a filler without keys; the old count kept items of zeros."""
    log = next((folder / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    data[60] ^= 1
    log.write_bytes(data)
    (folder / "abort").unlink()
    Recovery(str(folder), Choice.SKIP).apply()
    assert not Recovery(str(folder)).plan().actions


def test_a_note_of_keys_behind_the_logs_end_goes_with_them(folder: Path) -> None:
    """Queues gone and a hole in the log, after a stop that looks clean: what is put there is found, by the next opening too."""
    with MessageStore.open(folder, "r", SMALL) as store:
        victim = list(store.engine.log.messages())[30]
    (folder / "abort").unlink()
    shutil.rmtree(folder / "consumequeue")
    with min((folder / "commitlog").iterdir()).open("r+b") as file:
        file.seek(victim.physical_offset)
        file.write(bytes(victim.size))
    with MessageStore.open(folder, config=SMALL) as store:
        assert not (folder / "brokerstore" / "index.json").exists()
        put(store, range(100, 101), word="n")
        assert hits(store, "k", range(30)) == [1] * 30
        assert hits(store, "n", range(100, 101)) == [1]
        shutil.copytree(folder, folder.with_name("killed"))
    with MessageStore.open(folder.with_name("killed"), config=SMALL) as store:
        assert hits(store, "k", range(30)) == [1] * 30
        assert hits(store, "n", range(100, 101)) == [1]


def test_index_files_that_lose_what_the_checkpoint_vouched_for_are_vouched_for_no_more(tmp_path: Path) -> None:
    """The log lost its tail: a crash in the middle of cutting the index would leave half of it to be believed."""
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
    said: list[int] = []

    def looking(call: Any) -> Any:
        def look(self: IndexFiles, *given: Any) -> Any:
            said.append(Checkpoint(REAL_DISK, str(folder)).index_msg_timestamp_ms)
            return call(self, *given)

        return look

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IndexFiles, "keep_until", looking(index[0]))
        patch.setattr(IndexFiles, "keep_sound", looking(index[1]))
        with MessageStore.open(folder, config=config) as store:
            assert said and set(said) == {0}, "on the disk before the index is changed"
            assert hits(store, "k", range(COUNT)) == [1] * 25 + [0] * (COUNT - 25)
