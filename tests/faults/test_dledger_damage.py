"""Damaged DLedger folders of a real broker against the plain model of `tests/dledger.py`: read, verified, recovered."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerstore.identify import identify
from commitlog import StoredMessage
from commitlog.walk import LogFiles
from messagestore import MessageStore
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK, UnsupportedFormat
from tests.amounts import amount
from tests.dledger import HEADER, UNIT, Entry, checkpoint, data_files, entries, index_units, peer, unpacked
from tests.helpers import overwrite

pytestmark = pytest.mark.default

ROUNDS = amount(2, 25)  # of each kind: 300 folders at night
NAME = "dledger497"
ENTRIES = 650


def index_file(store: Path) -> Path:
    return peer(store) / "index" / ("0" * 20)


def used_position(store: Path, chance: random.Random) -> tuple[Path, int]:
    """Return a data file and a position in it that an entry uses."""
    end = entries(store)[-1].position
    position = chance.randrange(end + 300)
    path = next(path for path in reversed(data_files(store)) if int(path.name) <= position)
    return path, position - int(path.name)


def flip(path: Path, at: int, chance: random.Random) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << chance.randrange(8)]))


def data_bit(store: Path, chance: random.Random) -> None:
    flip(*used_position(store, chance), chance)


def header_bit(store: Path, chance: random.Random) -> None:
    entry = chance.choice(entries(store))
    path = next(path for path in reversed(data_files(store)) if int(path.name) <= entry.position)
    flip(path, entry.position - int(path.name) + chance.randrange(HEADER.size), chance)


def data_zeros(store: Path, chance: random.Random) -> None:
    path, at = used_position(store, chance)
    overwrite(path, at, bytes(min(chance.choice([1, 48, 512, 4096]), path.stat().st_size - at)))


def data_cut(store: Path, chance: random.Random) -> None:
    """A file that ends early: the rest was never written."""
    path, at = used_position(store, chance)
    overwrite(path, at, bytes(path.stat().st_size - at))


def data_short(store: Path, chance: random.Random) -> None:
    path, at = used_position(store, chance)
    os.truncate(path, at)


def data_missing(store: Path, chance: random.Random) -> None:
    chance.choice(data_files(store)[1:]).unlink()


def data_empty(store: Path, chance: random.Random) -> None:
    os.truncate(chance.choice(data_files(store)[1:]), 0)


def data_older(store: Path, chance: random.Random) -> None:
    """A copy of the last file from before its last entries."""
    last = data_files(store)[-1]
    kept = chance.choice([entry.position for entry in entries(store) if entry.position >= int(last.name)]) - int(last.name)
    overwrite(last, kept, bytes(last.stat().st_size - kept))


def index_bit(store: Path, chance: random.Random) -> None:
    flip(index_file(store), chance.randrange(UNIT.size * ENTRIES), chance)


def index_zeros(store: Path, chance: random.Random) -> None:
    at = chance.randrange(UNIT.size * ENTRIES - 1)
    overwrite(index_file(store), at, bytes(min(chance.choice([32, 512, 4096]), UNIT.size * ENTRIES - at)))


def index_cut(store: Path, chance: random.Random) -> None:
    os.truncate(index_file(store), chance.choice([0, 1, UNIT.size * chance.randrange(ENTRIES)]))


def index_missing(store: Path, chance: random.Random) -> None:
    index_file(store).unlink() if chance.random() < 0.5 else index_file(store).rename(store / "index-of-another-day")


KINDS: list[Callable[[Path, random.Random], None]] = [
    data_bit, header_bit, data_zeros, data_cut, data_short, data_missing, data_empty, data_older, index_bit, index_zeros,
    index_cut, index_missing,
]  # fmt: skip


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_damaged_folder_is_reported_read_and_recovered_like_the_model(
    kind: Callable[[Path, random.Random], None], number: int, tmp_path: Path
) -> None:
    """No strange record is read, no whole one is lost to a reader, and a recovery cuts at a damaged entry, nowhere before."""
    store = unpacked(NAME, tmp_path)
    before = entries(store)
    kind(store, random.Random(f"{kind.__name__} {number}"))
    check_reading(store, before)
    model = entries(store)
    whole = next((row for row, entry in enumerate(model) if not entry.is_whole), len(model))
    units = index_units(store, ENTRIES) if index_file(store).exists() else []
    is_damaged = whole < len(before) or units != [entry.unit for entry in before]
    report = verify_store(str(store))
    assert report.problems or not is_damaged
    assert not report.problems or is_changed(store, before, units)
    try:
        Recovery(str(store), Choice.TRUNCATE).apply()
    except UnsupportedFormat:  # a damaged magic may be one of a newer version
        Recovery(str(store), Choice.TRUNCATE, force=True).apply()
    check_recovered(store, before, model[:whole])


def bytes_at(store: Path, entry: Entry) -> bytes:
    """Return what is now where an entry was, its header with it."""
    for path in data_files(store):
        if 0 <= entry.position - int(path.name) < 65536:
            data = path.read_bytes()
            return data[entry.position - int(path.name) :][: HEADER.size + len(entry.record)]
    return b""


def header_of(entry: Entry) -> bytes:
    size = len(entry.record)
    return HEADER.pack(1, HEADER.size + size, entry.index, entry.term, entry.position, 0, 0, 0, size)


def is_changed(store: Path, before: list[Entry], units: list[bytes]) -> bool:
    """Return whether anything that a reader could find is not as it was."""
    sizes = [path.stat().st_size for path in data_files(store)]
    return (
        units != [entry.unit for entry in before]
        or sizes != [65536] * 4
        or any(bytes_at(store, entry) != header_of(entry) + entry.record for entry in before)
        or index_file(store).stat().st_size != 167_772_160
    )


def check_reading(store: Path, before: list[Entry]) -> None:
    """Check that a walk gives every record whose bytes are as they were, and no other but those with a body of its CRC."""
    files = LogFiles(REAL_DISK, identify(str(store)).log_folders)
    found = {one.physical_offset: one for one in files.messages() if isinstance(one, StoredMessage)}
    known = {entry.position + HEADER.size: entry for entry in before}
    assert found.keys() <= known.keys()
    for offset, entry in known.items():
        now = bytes_at(store, entry)[HEADER.size :]
        if now == entry.record:
            assert offset in found, f"the record at {offset} is whole, and was not read"
        elif offset in found:
            assert entry._replace(record=now).is_whole


def check_recovered(store: Path, before: list[Entry], prefix: list[Entry]) -> None:
    """Check data, index, checkpoint and queues after a recovery that cut the log."""
    after = entries(store)
    assert after == prefix[: len(after)]
    if len(after) < len(prefix):  # by a check that the model lacks
        entry = before[len(after)]
        assert bytes_at(store, entry) != header_of(entry) + entry.record
        assert prefix[len(after)] != entry, "a whole entry was cut"
    assert index_units(store, ENTRIES) == [entry.unit for entry in after] + [bytes(UNIT.size)] * (ENTRIES - len(after))
    assert all(number <= len(after) - 1 for number in checkpoint(store).values())
    assert not verify_store(str(store)).problems
    with MessageStore.open(store, "r") as opened:
        offsets = {
            m.physical_offset for topic in opened.topics() for q in opened.queue_ids(topic) for m in opened.read(topic, q)
        }
    assert offsets <= {entry.position + HEADER.size for entry in after}
