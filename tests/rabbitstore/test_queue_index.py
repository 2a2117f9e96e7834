"""Writing the version-1 queue index: journal, flush, segments, and the replay after a crash at any call."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rabbitstore.engine.queue_index_cy import QueueIndex
from rabbitstore.format.torn import SECTOR_SIZE
from rabbitstore.read.queue_folder import QueueFolder
from rabbitstore.settings import IndexSettings
from storageio import REAL_DISK, DiskError
from storageio.testing import FailingDisk
from tests.faults.golden import fast_folder

SETTINGS = IndexSettings(segment_entries=16, journal_entries_max=50)


def ident(number: int) -> bytes:
    return number.to_bytes(16, "big")


def publish(index: Any, seq_id: int, persistent: bool = True) -> None:
    embedded = b"term%d" % seq_id if seq_id % 3 else None
    index.publish(seq_id, ident(seq_id), seq_id * 7, 10 + seq_id, persistent, embedded)


def open_index(folder: Path, disk: Any = REAL_DISK, settings: IndexSettings = SETTINGS) -> tuple[QueueIndex, list[Any]]:
    index = QueueIndex(disk, str(folder), settings)
    entries = list(index.load(lambda entry: entry.persistent))
    return index, entries


def as_tuple(entry: Any) -> tuple[Any, ...]:
    return entry.seq_id, entry.msg_id, entry.expiry_us, entry.size, entry.persistent, entry.term


def expected_of(seq_id: int, persistent: bool = True) -> tuple[Any, ...]:
    return seq_id, ident(seq_id), seq_id * 7, 10 + seq_id, persistent, b"term%d" % seq_id if seq_id % 3 else None


def test_entries_are_read_back_across_flushes_and_segments(tmp_path: Path) -> None:
    """Unacknowledged entries are read by segment, from memory and from files."""
    index, _ = open_index(tmp_path / "q")
    alive = set()
    for seq_id in range(100):
        publish(index, seq_id)
        alive.add(seq_id)
        if seq_id % 5 == 4:
            index.acknowledge([seq_id - 2])
            alive.discard(seq_id - 2)
    found = [as_tuple(entry) for start in range(0, 100, 16) for entry in index.read(start, min(start + 16, 100))]
    assert found == [expected_of(seq_id) for seq_id in sorted(alive)]
    index.close()
    again, entries = open_index(tmp_path / "q")
    assert [as_tuple(entry) for entry in entries] == [expected_of(seq_id) for seq_id in sorted(alive)]
    assert (again.next_seq_id, again.unacked) == (100, len(alive))
    again.close()


def test_journal_and_segment_bytes_equal_those_of_the_server(tmp_path: Path) -> None:
    """Journal and segment have each publish with its delivered mark, then acknowledgements."""
    index, _ = open_index(tmp_path / "q", settings=IndexSettings())
    index.publish(0x77, bytes.fromhex("5c95" + "00" * 12 + "77b6"), 0, 8192, True, None)
    index.publish(3, bytes(16), 5, 1, False, b"ab")
    index.sync()
    body = bytes.fromhex("5c95" + "00" * 12 + "77b6" + "00" * 8 + "00002000" + "00000000")
    small = bytes(16) + (5).to_bytes(8, "big") + (1).to_bytes(4, "big") + (2).to_bytes(4, "big") + b"ab"
    journal = (
        bytes(7) + b"\x77" + body + b"\x80" + bytes(6) + b"\x77" + b"\x40" + bytes(6) + b"\x03" + small + b"\x80" + bytes(6)
    )
    assert (tmp_path / "q" / "journal.jif").read_bytes() == journal + b"\x03"
    index.acknowledge([3])
    index.flush()
    assert (tmp_path / "q" / "0.idx").read_bytes() == b"\xc0\x77" + body + b"\x40\x77"
    assert (tmp_path / "q" / "journal.jif").read_bytes() == b""
    index.acknowledge([0x77])
    index.sync()
    assert (tmp_path / "q" / "journal.jif").read_bytes() == b"\xc0" + bytes(6) + b"\x77"
    index.close()


def test_the_read_only_reader_finds_the_written_entries(tmp_path: Path) -> None:
    """The read-only reader finds the written entries before and after a flush."""
    index, _ = open_index(tmp_path / "queues" / "Q")
    for seq_id in range(40):
        publish(index, seq_id, persistent=seq_id % 4 != 1)
    index.acknowledge([0, 17, 39])
    for step in (index.sync, index.flush):
        step()
        entries = QueueFolder(REAL_DISK, str(tmp_path), "Q", 16, []).entries([])
        alive = [as_tuple(entry) for entry in entries if not entry.acked]
        assert alive == [expected_of(seq_id, seq_id % 4 != 1) for seq_id in range(40) if seq_id not in (0, 17, 39)]
    index.close()


def test_a_segment_with_everything_acknowledged_is_deleted(tmp_path: Path) -> None:
    """A flush deletes it; entries that are acknowledged before a flush never create a file."""
    index, _ = open_index(tmp_path / "q")
    for seq_id in range(20):
        publish(index, seq_id)
    index.flush()
    assert {path.name for path in (tmp_path / "q").iterdir()} == {"journal.jif", "0.idx", "1.idx"} - {"journal.jif"}
    index.acknowledge(range(16))
    publish(index, 40)
    index.acknowledge([40])
    index.flush()
    assert {path.suffix: path.name for path in (tmp_path / "q").iterdir()}[".idx"] == "1.idx"
    assert not (tmp_path / "q" / "0.idx").exists() and not (tmp_path / "q" / "2.idx").exists()
    index.close()


def test_a_restart_drops_transient_entries(tmp_path: Path) -> None:
    """The load acknowledges them, also on disk."""
    index, _ = open_index(tmp_path / "q")
    for seq_id in range(10):
        publish(index, seq_id, persistent=seq_id % 2 == 0)
    index.close()
    again, entries = open_index(tmp_path / "q")
    assert [entry.seq_id for entry in entries] == [0, 2, 4, 6, 8] and again.unacked == 5
    again.close()
    third, entries = open_index(tmp_path / "q")
    assert [entry.seq_id for entry in entries] == [0, 2, 4, 6, 8]
    third.close()


def test_a_torn_journal_tail_is_dropped(tmp_path: Path) -> None:
    """The last entry is cut at every length."""
    index, _ = open_index(tmp_path / "q", settings=IndexSettings())
    for seq_id in range(4):
        publish(index, seq_id)
    index.sync()
    index.abandon()
    path = tmp_path / "q" / "journal.jif"
    data = path.read_bytes()
    for keep in range(len(data) - 1, len(data) - 48, -7):
        path.write_bytes(data[:keep])
        for segment in (tmp_path / "q").glob("*.idx"):
            segment.unlink()
        again, entries = open_index(tmp_path / "q", settings=IndexSettings())
        assert [entry.seq_id for entry in entries] in ([0, 1, 2], [0, 1, 2, 3])
        again.abandon()
    assert [entry.seq_id for entry in entries] == [0, 1, 2]


def test_a_damaged_segment_is_rewritten_and_the_old_one_kept(tmp_path: Path) -> None:
    """Whole entries before the damage survive, and the old bytes are kept as .bak."""
    index, _ = open_index(tmp_path / "q")
    for seq_id in range(10):
        publish(index, seq_id)
    index.close()
    path = tmp_path / "q" / "0.idx"
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    again, entries = open_index(tmp_path / "q")
    assert [entry.seq_id for entry in entries] == list(range(9))
    publish(again, 9)
    again.acknowledge([0])
    again.close()
    _, entries = open_index(tmp_path / "q")
    assert [entry.seq_id for entry in entries] == list(range(1, 10))
    assert (tmp_path / "q" / "0.idx.bak").read_bytes() == data[:-20]


def _work(index: Any, seed: int, confirmed: list[set[Any]]) -> None:
    """Random publishes and acknowledgements; `confirmed` is the state of the last sync."""
    rng = random.Random(seed)
    alive, seq_id = set(), 0
    for _ in range(60):
        if rng.random() < 0.6 or not alive:
            publish(index, seq_id)
            alive.add(seq_id)
            seq_id += 1
        else:
            gone = rng.choice(sorted(alive))
            index.acknowledge([gone])
            alive.discard(gone)
        if rng.random() < 0.2:
            index.sync()
            confirmed[:] = [set(alive)]
        if rng.random() < 0.1:
            index.flush()
            confirmed[:] = [set(alive)]


@pytest.fixture
def in_memory() -> Iterator[Path]:
    with fast_folder() as folder:
        yield folder


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_every_call_of_the_disk(in_memory: Path, seed: int) -> None:
    """Synced entries survive each crash, and synced acknowledgements are not undone."""
    fail_at, is_done = 0, False
    while not is_done:
        fail_at += 1
        folder = in_memory / str(fail_at)
        disk = FailingDisk(fail_at, for_ever=True)
        confirmed = [set()]
        index = QueueIndex(disk, str(folder), SETTINGS)
        try:
            list(index.load(lambda entry: True))
            _work(index, seed, confirmed)
            is_done = True
        except DiskError:
            pass
        index.abandon()
        again, entries = open_index(folder)
        found = {entry.seq_id for entry in entries}
        assert all(as_tuple(entry) == expected_of(entry.seq_id) for entry in entries)
        assert found >= confirmed[0] - _acknowledged_later(seed)
        again.abandon()


def _acknowledged_later(seed: int) -> set[int]:
    """Return all acknowledged entries: an acknowledgement that is not synced may be on disk or not."""
    acked = set()

    class Recorder:
        def publish(self, *_: Any) -> None:
            pass

        def acknowledge(self, seq_ids: list[int]) -> None:
            acked.update(seq_ids)

        def sync(self) -> None:
            pass

        flush = sync

    _work(Recorder(), seed, [set()])
    return acked


def on_the_disk(tmp_path: Path) -> list[Any]:
    """Return the entries that an opening of a copy finds; an opening flushes."""
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    shutil.copytree(tmp_path / "q", tmp_path / "copy")
    return open_index(tmp_path / "copy")[1]


def test_entries_published_after_the_message_sync_began_are_not_written(tmp_path: Path) -> None:
    """Its message may be in no file yet, so only the next sync writes the entry."""
    index, _ = open_index(tmp_path / "q")
    publish(index, 0)
    position = index.position()
    publish(index, 1)
    index.sync(position)
    assert [entry.seq_id for entry in on_the_disk(tmp_path)] == [0]
    assert index.needs_sync
    index.sync()
    assert [entry.seq_id for entry in on_the_disk(tmp_path)] == [0, 1]
    index.close()


def test_a_sync_to_a_position_before_a_flush_writes_no_later_entry(tmp_path: Path) -> None:
    """The flush moved everything to the segments; later entries are not written for the old position."""
    index, _ = open_index(tmp_path / "q")
    publish(index, 0)
    position = index.position()
    index.flush()
    publish(index, 1)
    index.sync(position)
    assert [entry.seq_id for entry in on_the_disk(tmp_path)] == [0]
    index.close()


def test_a_flush_waits_until_the_messages_are_on_the_disk(tmp_path: Path) -> None:
    """A flush, automatic or not, writes no segment before the messages are durable."""
    index, _ = open_index(tmp_path / "q", settings=IndexSettings(segment_entries=16, journal_entries_max=4))
    seen = []
    index.before_flush = lambda: seen.append(sorted(path.name for path in (tmp_path / "q").glob("*")))
    for seq_id in range(3):
        publish(index, seq_id)
    assert seen == [[]] and (tmp_path / "q" / "0.idx").exists()
    index.close()
    assert seen == [[]], "nothing was left to flush"


@pytest.mark.parametrize("kept", range(1, 8))
def test_a_synced_acknowledgement_that_resembles_a_torn_one_is_flushed_to_the_segment(tmp_path: Path, kept: int) -> None:
    """The journal would end with zeros after a sector border, like a lost sector; the acknowledgement must hold."""
    index, _ = open_index(tmp_path / "q", settings=IndexSettings())
    index.publish(0, ident(7), 0, 1, True, None)
    index.publish(1, ident(8), 0, 1, True, b"x" * (SECTOR_SIZE - kept - 2 * 48))
    index.acknowledge([0])
    index.sync()
    assert [entry.seq_id for entry in on_the_disk(tmp_path)] == [1]
    index.close()
