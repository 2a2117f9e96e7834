"""Openings after queue folders appeared or disappeared, and after interrupted creations."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from rabbitstore import RabbitSettings, RabbitStore, StoreSettings, verify
from rabbitstore.format import tables
from storageio import DiskError, UnknownStore

from .conftest import ChangesFail, WhenItWasWritten
from .test_damage import DEEP, MIXED, STORE

QUIET = RabbitSettings(background=False, index_version=1)
WAITING = 3037  # messages of the server's folder that have not expired


def waiting(store: RabbitStore) -> dict[str, int]:
    return {name: len(store.queue(name)) for name in store.queue_names()}


def opened(folder: Path, **settings: Any) -> RabbitStore:
    return RabbitStore.open(str(folder), "r+", settings=RabbitSettings(background=False, **settings), disk=WhenItWasWritten())


def test_a_queue_folder_deleted_after_the_clean_stop_is_reported(folder: Path) -> None:
    """Its terms list messages, so the tables are not trusted; all other queues are complete."""
    with opened(Path(shutil.copytree(folder, folder.parent / "whole"))) as store:
        whole = waiting(store)
    shutil.rmtree(folder / DEEP)
    with opened(folder) as store:
        assert not store.parts.is_resumed
        assert [problem.kind for problem in store.problems] == ["bad_recovery_terms"] and DEEP[7:] in store.problems[0].expected
        found = waiting(store)
    assert len(whole.keys() - found.keys()) == 1
    assert found == {name: count for name, count in whole.items() if name in found}


def test_a_queue_unknown_to_the_clean_stop_is_reported(folder: Path) -> None:
    """A restored folder is not in the terms: everything is scanned, and no queue loses a message."""
    path = folder / "recovery.dets"
    rows = tables.read_recovery(path.read_bytes(), "")
    gone = rows.pop(MIXED[7:])
    path.write_bytes(tables.write_recovery(rows.values()))
    mark = folder / STORE / "clean.dot"
    refs = [ref for ref in tables.read_clean_mark(mark.read_bytes(), "").client_refs if ref != gone.persistent_ref]
    mark.write_bytes(tables.write_clean_mark(refs))
    with opened(folder) as store:
        assert not store.parts.is_resumed and store.lost == []
        assert [problem.kind for problem in store.problems] == ["bad_recovery_terms"]
        assert sum(waiting(store).values()) == WAITING


def test_an_empty_queue_folder_is_deleted_after_a_clean_stop(folder: Path) -> None:
    """A kill during a declaration leaves neither name nor index.  The stop is still trusted."""
    half = folder / "queues" / "0HALFMADE"
    half.mkdir()
    (half / "journal.jif").touch()
    with opened(folder) as store:
        assert store.parts.is_resumed and sum(waiting(store).values()) == WAITING
    assert not half.exists()


def test_a_folder_in_the_transient_store_stays(folder: Path) -> None:
    """Each start deletes its files, but not its subfolders."""
    kept = folder / "msg_store_transient" / "lost+found"
    kept.mkdir()
    (kept / "0.rdq").write_bytes(b"somebody's")
    with opened(folder) as store:
        assert sum(waiting(store).values()) == WAITING
    assert (kept / "0.rdq").read_bytes() == b"somebody's"


@pytest.mark.parametrize("body", [bytes(300), b"x" + bytes(200) + b"y", bytes(64)])
def test_a_message_of_zeros_does_not_count_as_torn(tmp_path: Path, body: bytes) -> None:
    """A confirmed message of zeros looks like a lost sector, but its term is complete."""
    store = RabbitStore.open(str(tmp_path / "vhost"), settings=QUIET)
    store.declare_queue("q")
    for text in (b"before", body, b"behind"):
        store.publish("q", text)
    store.sync()
    store.abandon()
    with RabbitStore.open(str(tmp_path / "vhost"), settings=QUIET) as store:
        assert [store.get("q").body for _ in range(3)] == [b"before", body, b"behind"]


def test_a_creation_interrupted_at_any_change_is_completed(tmp_path: Path) -> None:
    """An interrupted creation leaves some of folders, name and configuration: the next opening adds the rest."""
    fail_at, is_done = 0, False
    while not is_done:
        fail_at += 1
        path = str(tmp_path / f"vhost-{fail_at}")
        disk = ChangesFail(fail_at, for_ever=True)
        with contextlib.suppress(DiskError):
            RabbitStore.open(path, settings=QUIET, disk=disk).abandon()
            is_done = True
        with RabbitStore.open(path, settings=QUIET) as store:
            store.declare_queue("q")
            store.publish("q", b"x" * 9000)
        assert verify(path).problems == []
    assert fail_at > 8


@pytest.mark.parametrize("mode", ["w", "rw", ""])
def test_an_unknown_mode_is_refused(tmp_path: Path, mode: str) -> None:
    """The error names the folder, and nothing is created."""
    with pytest.raises(ValueError, match="is not one of"):
        RabbitStore.open(str(tmp_path / "vhost"), mode)
    assert not (tmp_path / "vhost").exists()


def test_mode_x_rejects_an_existing_folder_and_mode_r_plus_a_missing_one(folder: Path) -> None:
    """The errors of `x` and `r+` describe the folder."""
    with pytest.raises(UnknownStore, match="already"):
        RabbitStore.open(str(folder), "x")
    with pytest.raises(UnknownStore, match="not the folder"):
        RabbitStore.open(str(folder.parent / "nowhere"), "r+")


def test_a_store_that_stopped_without_a_message_file_is_resumed(tmp_path: Path) -> None:
    """With small messages only, the tables are empty; the first large message creates file 0."""
    path = tmp_path / "vhost"
    with RabbitStore.open(str(path), settings=QUIET) as store:
        store.declare_queue("q")
        store.publish("q", b"small")
    store = RabbitStore.open(str(path), settings=QUIET)
    assert store.parts.is_resumed
    store.close()
    for file in (path / STORE).glob("*.rdq"):
        assert file.stat().st_size == 0
        file.unlink()
    (path / STORE / "file_summary.ets").write_bytes(tables.write_summary([]))
    (path / "brokerstore" / "clean_stop.json").unlink()  # of our stop, and this shall be a server's
    with RabbitStore.open(str(path), settings=QUIET) as store:
        assert store.parts.is_resumed and store.problems == []
        store.publish("q", b"x" * 9000)
        assert [store.get("q").body for _ in range(2)] == [b"small", b"x" * 9000]


def test_invalid_options_are_ignored(folder: Path) -> None:
    """Without queues.json the folders decide."""
    own = folder / "brokerstore"
    own.mkdir(exist_ok=True)
    for text in (b"{", b"[]", b'{"q.deep": 5}', b'{"q.deep": {"colour": 1}}', b'{"q.deep": {"durable": 2}}', b"[" * 99_999):
        (own / "queues.json").write_bytes(text)
        with opened(Path(shutil.copytree(folder, folder.parent / "copy"))) as store:
            assert sum(waiting(store).values()) == WAITING
        shutil.rmtree(folder.parent / "copy")


def test_a_segment_file_deleted_under_a_lazy_queue_is_reported(tmp_path: Path) -> None:
    """A missing segment is reported when it is read, and the other segments are delivered."""
    path = tmp_path / "vhost"
    settings = RabbitSettings(background=False, index_version=1, store=StoreSettings())
    with RabbitStore.open(str(path), settings=settings) as store:
        store.declare_queue("q", mode="lazy")
        for number in range(4100):
            store.publish("q", b"%d" % number)
    segments = sorted(path.glob("queues/*/*.idx"), key=lambda file: int(file.stem))
    assert len(segments) == 3
    with RabbitStore.open(str(path), settings=settings) as store:
        segments[1].unlink()
        found = [int(delivery.body) for delivery in iter(lambda: store.get("q", auto_ack=True), None)]
        [problem] = store.problems
    assert found == [*range(2048), *range(4096, 4100)]
    assert problem.file.endswith("1.idx") and "2048" in problem.expected
