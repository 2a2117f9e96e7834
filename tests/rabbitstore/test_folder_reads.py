"""A virtual host's folder read beside a collector, after a kill, and with files that would take all memory."""

import os
import shutil
from pathlib import Path

import pytest

from rabbitstore import IndexSettings, RabbitSettings, RabbitStore, StoreSettings, VhostFolder, verify
from rabbitstore.files import FILE_SIZE_MAX, read_all
from rabbitstore.format.layout import CONFIG_NAME, PERSISTENT_FOLDER
from rabbitstore.format.rdq import encode_record
from rabbitstore.read import salvage
from rabbitstore.read.store_folder import StoreFolder
from rabbitstore.repair.recover import apply_recovery
from storageio import REAL_DISK, DiskError, StoreCorrupt, UnknownStore

from .conftest import FailsOnce, WhenItWasWritten
from .test_msg_store import ident, term

SMALL = RabbitSettings(
    background=False,
    store=StoreSettings(file_size_limit=20_000, file_garbage_fraction=0.0),
    index=IndexSettings(segment_entries=8),
)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "vhost")


def body(number):
    return b"%03d" % number * 1700


def filled(path, count, settings=SMALL):
    store = RabbitStore.open(path, settings=settings)
    store.declare_queue("q")
    for number in range(count):
        store.publish("q", body(number))
    store.flush_journals()
    return store


def test_messages_that_the_collector_moves_under_a_reader_are_found_where_they_are(path):
    """After the reader has scanned the files, a collector merges and deletes them."""
    count = 160  # in more files than the reader keeps open: those that it opens again are new or gone
    store = filled(path, count)
    reader = VhostFolder(path)
    seen = reader.messages("q")
    first = next(seen)
    for number in range(count):
        delivery = store.get("q")
        if number % 3 != 1:
            store.ack(delivery)
    store.sync()
    assert store.collect() > 10
    found = [first.body, *(message.body for message in seen)]
    alive = [body(number) for number in range(count) if number % 3 == 1]
    assert found[0] == body(0) and [text for text in found if text in alive] == alive
    assert {problem.kind for problem in reader.problems} <= {"message_lost"}  # acknowledged since: its entry was read before
    reader.close()
    store.close()


def test_a_read_that_fails_is_no_lost_message(path):
    """The file exists, so the caller gets the error, and nothing is reported as damage."""
    filled(path, 4).close()
    disk = FailsOnce()
    folder = VhostFolder(path, disk)
    assert len(list(folder.messages())) == 4
    disk.will_fail = True
    with pytest.raises(DiskError):
        list(folder.messages())
    assert folder.problems == [] and len(list(folder.messages())) == 4
    folder.close()


def test_many_message_files_are_read_with_few_descriptors(path):
    """There are more files than a process may open; every message comes in order."""
    filled(path, 150).close()
    folder = VhostFolder(path)
    assert len(folder.stores[PERSISTENT_FOLDER].file_numbers()) > 32
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for number, message in enumerate(folder.messages()):
        assert message.body == body(number)
        assert not before or len(os.listdir("/proc/self/fd")) <= before + 40
    folder.close()


def test_an_acknowledged_entry_without_its_message_is_not_damage(path):
    """Its segment remains for the others; the message file was deleted with its last message."""
    store = filled(path, 8)
    for _ in range(5):
        store.ack(store.get("q"))
    store.sync()
    store.flush_journals()
    store.collect()
    folder = VhostFolder(path)
    assert [message.body for message in folder.messages(include_acked=True)][-3:] == [body(5), body(6), body(7)]
    assert folder.problems == []
    folder.close()
    store.close()


def test_recovery_terms_are_ignored_after_a_kill_of_the_server(clean, tmp_path):
    """The table is open and there is no mark: all messages count as redelivered, and nothing is damaged."""
    folder = Path(shutil.copytree(clean.vhost, tmp_path / "vhost"))
    with (folder / "recovery.dets").open("r+b") as file:
        file.seek(8)
        file.write(bytes(4))  # not closed
    (folder / PERSISTENT_FOLDER / "clean.dot").unlink()
    seen = VhostFolder(str(folder), WhenItWasWritten())
    assert seen.recovery is None and not seen.is_clean
    assert all(message.redelivered for message in seen.messages()) and seen.problems == []
    seen.close()


def test_another_folder_is_rejected(tmp_path):
    """The folder is not changed."""
    with pytest.raises(UnknownStore):
        VhostFolder(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("count", "entries"), [(2060, 16384), (30, 2048)])
def test_a_lost_config_is_guessed_from_the_segments(path, count, entries):
    """A relative number of 2048 or more proves the old size; reading and `recover` use it."""
    settings = RabbitSettings(background=False, index_version=1, index=IndexSettings(segment_entries=entries))
    with RabbitStore.open(path, settings=settings) as store:
        store.declare_queue("q")
        for number in range(count):
            store.publish("q", b"%d" % number)
    Path(path, CONFIG_NAME).write_bytes(b"\0" * 40)
    Path(path, "queues", "notes.txt").write_bytes(b"a stranger's")
    with RabbitStore.open(path, "r") as seen:
        assert [message.body for message in seen.folder().messages()] == [b"%d" % number for number in range(count)]
    Path(path, "queues", "notes.txt").unlink()  # nothing is written beside a file that is not known
    with pytest.raises(StoreCorrupt, match=f"N = {entries}"):
        RabbitStore.open(path, settings=settings)
    apply_recovery(path)
    assert verify(path).problems == []
    with RabbitStore.open(path, settings=settings) as store:
        assert len(store.queue("q")) == count


@pytest.mark.deep
def test_a_damaged_file_of_any_length_is_not_read_into_memory(tmp_path):
    """A message after damage in a huge sparse file, which no server writes, counts as missing."""
    file = tmp_path / PERSISTENT_FOLDER / "0.rdq"
    file.parent.mkdir()
    file.write_bytes(encode_record(ident(1), term(1)) + b"\xff" * 60 + encode_record(ident(2), b"\x83" + term(2)))
    store = StoreFolder(REAL_DISK, str(tmp_path), PERSISTENT_FOLDER)
    assert store.locate(ident(1)) and store.locate(ident(2))
    store.close()
    os.truncate(file, FILE_SIZE_MAX + 1)
    store = StoreFolder(REAL_DISK, str(tmp_path), PERSISTENT_FOLDER)
    assert store.locate(ident(1)) and store.locate(ident(2)) is None
    store.close()
    with pytest.raises(StoreCorrupt, match="file too long"):
        read_all(REAL_DISK, str(file))


@pytest.mark.parametrize("is_bounded", [True, False])
def test_the_search_for_entries_in_a_hostile_segment_is_limited(monkeypatch, is_bounded):
    """Each candidate costs a check of its message, so the search has a limit."""
    false = b"\xc0\x05" + bytes(28) + b"\0\0\0\0" + b"\xc0\x05"  # a publish of a stored message without its delivered mark
    true = b"\xc0\x07" + bytes(15) + b"\7" + bytes(12) + bytes(4) + b"\x40\x07"
    data = b"\x11" + false * 50 + b"\x11" + true
    if is_bounded:
        monkeypatch.setattr(salvage, "_SEARCHED_MAX", 20 * len(data))
    found, _end = salvage.read_segment_past_damage(data, 0, 16, "0.idx", [])
    assert [entry.seq_id for entry in found.values()] == ([] if is_bounded else [7])
