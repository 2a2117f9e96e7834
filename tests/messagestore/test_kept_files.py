"""What `recover --apply` removes or overwrites is kept in `brokerstore/`, unless `--no-backup` is given."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.recover import Choice, Recovery
from tests.helpers import overwrite
from tests.stores import small_config

SMALL = small_config()
Bytes = dict[str, bytes]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cleanly closed store with offsets of a group, and a backup of each of their files."""
    folder = tmp_path_factory.mktemp("kept") / "store"
    with MessageStore.open(folder, config=SMALL) as store:
        for number in range(30):
            store.put(Message("T", b"%d" % number, queue_id=0, keys=[f"k{number}"]))
        for _ in range(2):
            with store.consumer("T", group="g") as consumer:
                consumer.ack(consumer.poll()[0])
    return folder


def damage_queue(store: Path) -> str:
    overwrite(store / "consumequeue" / "T" / "0" / ("0" * 20), 100, b"\x07" * 8)
    return "consumequeue"


def damage_index(store: Path) -> str:
    overwrite(next((store / "index").iterdir()), 40 + 400 + 100, b"\x11" * 12)
    return "index"


def damage_checkpoint(store: Path) -> str:
    overwrite(store / "checkpoint", 0, b"\x80" * 24)
    return "checkpoint"


def damage_offsets(store: Path) -> str:
    path = store / "config" / "consumerOffset.json"
    shutil.copy(path, path.with_suffix(".json.bak"))
    path.write_bytes(path.read_bytes()[:-7])
    return "config/consumerOffset.json"


def set_offsets_ahead(store: Path) -> str:
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:999999}}}')
    (store / "abort").touch()
    return "config/consumerOffset.json"


def add_a_stray(store: Path) -> str:
    (store / "commitlog" / "notes.txt").write_text("mine")
    return "commitlog/notes.txt"


DAMAGES = [damage_queue, damage_index, damage_checkpoint, damage_offsets, set_offsets_ahead, add_a_stray]


def files_of(folder: Path) -> Bytes:
    """Return the files of a folder, or one file."""
    if folder.is_file():
        return {"": folder.read_bytes()}
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def own_files(store: Path) -> list[Path]:
    """Return what a recovery kept: cut bytes, strays, and overwritten files."""
    own = store / "brokerstore"
    return sorted([*own.glob("kept-*"), *own.glob("cut-*"), *own.glob("strays/*")])


def damage(store: Path, damaged: Callable[[Path], str]) -> Bytes:
    damage_name = damaged(store)
    return files_of(store / damage_name)


@pytest.mark.parametrize("damaged", DAMAGES)
def test_what_is_removed_or_written_over_is_kept(original: Path, tmp_path: Path, damaged: Callable[[Path], str]) -> None:
    """It is kept byte for byte as it was before the recovery, with its damage."""
    store = tmp_path / "store"
    shutil.copytree(original, store)
    before = damage(store, damaged)
    plan = Recovery(str(store), Choice.SKIP).apply()
    assert plan.steps and not Recovery(str(store)).plan().steps
    kept = [files_of(path) for path in own_files(store)]
    assert before in kept


@pytest.mark.parametrize("damaged", [damaged for damaged in DAMAGES if damaged is not add_a_stray])
def test_without_backup_nothing_is_kept(original: Path, tmp_path: Path, damaged: Callable[[Path], str]) -> None:
    """Only a stray file is moved, because it belongs to another program."""
    store = tmp_path / "store"
    shutil.copytree(original, store)
    damaged(store)
    assert Recovery(str(store), Choice.SKIP, keep_backup=False).apply().steps
    assert own_files(store) == []
    assert not Recovery(str(store)).plan().steps


def test_a_batch_queue_is_kept(fixture_store: Any) -> None:
    """Only the queue that disagrees with the log is kept, under a name that identifies it."""
    store = fixture_store("batchcq", own=True).store
    folder = store / "batchconsumequeue" / "BcqTopic" / "0"
    overwrite(min(folder.iterdir()), 0, b"\x07" * 8)
    before = files_of(folder)
    Recovery(str(store), Choice.SKIP).apply()
    assert files_of(store / "brokerstore" / "kept-batchconsumequeue-BcqTopic-0-0") == before


@pytest.mark.parametrize("what", ["consumequeue", "index"])
def test_rebuild_backs_up_a_folder_with_a_foreign_file(original: Path, tmp_path: Path, what: str) -> None:
    """`rebuild` deletes what it replaces; a folder with a file of another kind is kept as a whole."""
    store = tmp_path / "store"
    shutil.copytree(original, store)
    rebuild_store(str(store), frozenset({what}))
    assert own_files(store) == []
    (store / what / "README.txt").write_text("mine")
    before = files_of(store / what)
    rebuild_store(str(store), frozenset({what}))
    assert [files_of(path) for path in own_files(store)] == [before]
    assert not (store / what / "README.txt").exists()
