"""A record of an unknown version is refused with a specific error; bytes that only resemble one are damage."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from commitlog.mapped_file import MappedFile
from commitlog.offset_files import OffsetFile
from commitlog.unknown_version import find_unknown_version
from commitlog.verify import verify_log
from messagestore import MessageStore, Role
from messagestore.repair.recover import Choice, Recovery
from storageio import REAL_DISK, StoreCorrupt, UnsupportedFormat
from storebytes._crc_cy import checksum
from tests.brokerstore.damage import Log
from tests.faults.test_unknown_formats import snapshot
from tests.stores import small_config

V3 = -626843473  # 0xDAA320AF: V2 and 4, as V2 is V1 and 4
SMALL = small_config()


def kinds(log: Log) -> list[str]:
    return [problem.kind for problem in verify_log([str(log.folder)]).problems]


def seal(log: Log, offset: int, size: int) -> None:
    """Compute the whole-record checksum again, as the program that wrote the record did."""
    crc = checksum(log.read(offset, size - 20)) & 0x7FFFFFFF
    log.write(offset + size - 11, f"{crc:010d}"[::-1].encode())


def size_of(log: Log, offset: int) -> int:
    return int.from_bytes(log.read(offset, 4), "big")


@pytest.mark.parametrize("magic", [V3, 0x12345678, -1, 0x5AA320A7], ids=["next", "any", "ones", "one bit more"])
@pytest.mark.parametrize("number", [0, 5, -1], ids=["first", "middle", "last"])
def test_a_record_of_an_unknown_version_is_named(tmp_path: Path, number: int, magic: int) -> None:
    """Size and offset are right, the magic is new: its writer knows a newer format."""
    log = Log(tmp_path, with_crc=False)
    log.put(log.offsets[number], "magic", magic)
    found = verify_log([str(log.folder)]).problems
    assert [problem.kind for problem in found] == ["unknown_version"]
    assert found[0].found == f"{magic & 0xFFFFFFFF:08x}"
    for choice in Choice:
        with pytest.raises(UnsupportedFormat, match=str(found[0].found)):
            Recovery(str(log.store), choice).plan()


def test_unknown_version_with_another_layout_is_reported(tmp_path: Path) -> None:
    """All but size, magic and offset may differ: body, topic and properties are other bytes, and no checksum fits."""
    log = Log(tmp_path, with_crc=False)
    offset = log.offsets[7]
    log.write(offset + 4, V3.to_bytes(4, "big", signed=True))
    log.write(offset + 36, random.Random(1).randbytes(size_of(log, offset) - 36))
    assert kinds(log) == ["unknown_version"]


def test_unknown_version_at_offset_zero_needs_a_following_record(tmp_path: Path) -> None:
    """There the offset is 0, as in zeros.  Followed by a record it is an unknown version, otherwise damage."""
    log = Log(tmp_path, with_crc=False)
    log.put(0, "magic", V3)
    log.write(36, random.Random(1).randbytes(500))
    assert kinds(log) == ["unknown_version"]
    log.write(log.offsets[1], b"\xee" * 8)
    assert kinds(log) == ["bad_magic"]


@pytest.mark.parametrize("bit", range(8))
def test_a_changed_bit_of_a_protected_records_magic_is_damage(tmp_path: Path, bit: int) -> None:
    """The whole-record checksum shows which magic was written; if it is computed again, it is another version."""
    log = Log(tmp_path, with_crc=True)
    offset = log.offsets[5]
    flipped = log.read(offset + 7, 1)[0] ^ 1 << bit
    log.write(offset + 7, bytes([flipped]))
    assert kinds(log) == ["bad_magic"]
    assert Recovery(str(log.store), Choice.SKIP).plan().messages_lost == 1
    seal(log, offset, size_of(log, offset))
    assert kinds(log) == ["unknown_version"]


@pytest.mark.parametrize("with_crc", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_random_bytes_are_damage(tmp_path: Path, seed: int, with_crc: bool) -> None:
    """They replace a whole record, its head, or its first bytes."""
    log = Log(tmp_path, with_crc=with_crc)
    chance = random.Random(seed)
    offset = log.offsets[chance.randrange(1, len(log.offsets) - 1)]
    length = chance.choice([8, 40, size_of(log, offset)])
    log.write(offset, chance.randbytes(length))
    assert kinds(log) and "unknown_version" not in kinds(log)
    Recovery(str(log.store), Choice.SKIP).plan()


def test_a_lost_sector_is_damage(tmp_path: Path) -> None:
    """Zeros in place of the magic never reached the disk; they are no version."""
    log = Log(tmp_path, with_crc=False)
    log.put(log.offsets[5], "magic", 0)
    assert "unknown_version" not in kinds(log)


def test_unknown_records_behind_damage_are_not_cut_as_a_crash_tail(tmp_path: Path) -> None:
    """No known record follows the damaged one, but the unknown ones are no crash tail."""
    log = Log(tmp_path, with_crc=False)
    last = log.offsets[-6:]
    for offset in last[1:]:
        log.put(offset, "magic", V3)
    log.write(last[0], b"\xee" * 40)
    assert kinds(log)[-1] == "unknown_version"
    (log.store / "abort").write_bytes(b"")
    (log.store / "lock").write_bytes(b"")
    (log.store / "checkpoint").write_bytes(bytes(4096))
    before = snapshot(log.store)
    for action in (lambda: MessageStore.open(log.store), lambda: Recovery(str(log.store), Choice.TRUNCATE).apply()):
        with pytest.raises(UnsupportedFormat, match="daa320af"):
            action()
    assert snapshot(log.store) == before


@pytest.mark.parametrize("base", [0, 1 << 20, (1 << 48) + 65536])
def test_search_finds_exactly_the_records_with_matching_offsets(tmp_path: Path, base: int) -> None:
    """It is compared with a check of every byte: heads across a window of 65,536 offsets, and copies elsewhere."""
    chance = random.Random(base)
    size = 3 << 16
    data = bytearray(size)
    for at in (1000, 65536 - 20, 65536 + 300, 140_000):
        head = (120).to_bytes(4, "big") + V3.to_bytes(4, "big", signed=True) + bytes(20) + (base + at).to_bytes(8, "big")
        data[at : at + len(head)] = head
        data[at + 200 : at + 200 + len(head)] = head  # with the offset of another record
        data[at + 300 : at + 400] = chance.randbytes(100)
    path = tmp_path / f"{base:020d}"
    path.write_bytes(data)
    file = MappedFile.of(REAL_DISK, OffsetFile(base, str(path), size, 0), writable=False)
    found, at = [], 0
    while (at := find_unknown_version(file, at)) >= 0:
        found.append(at)
        at += 1
    expected = [at for at in range(size - 36) if data[at + 28 : at + 36] == (base + at).to_bytes(8, "big") and data[at + 4]]
    assert found == expected == [1000, 65516, 65836, 140_000]


def test_a_slave_takes_no_record_of_an_unknown_version(tmp_path: Path) -> None:
    """A master of a newer version sends them: the bytes are refused, and none is written."""
    with MessageStore.open(tmp_path / "master", config=SMALL.but(enabled_append_prop_crc=False)) as master:
        for number in range(3):
            master.put(Message("T", b"%d" % number, queue_id=0))
        data = bytearray(master.read_log_bytes(0))
    at = int.from_bytes(data[:4], "big")
    data[at + 4 : at + 8] = V3.to_bytes(4, "big", signed=True)
    with MessageStore.open(tmp_path / "slave", config=SMALL.but(broker_role=Role.SLAVE)) as slave:
        with pytest.raises(UnsupportedFormat, match=f"byte {at}: unsupported record magic daa320af"):
            slave.append_data(0, bytes(data))
        assert slave.log_end == 0
        data[at + 28] = 1  # another offset
        with pytest.raises(StoreCorrupt, match="bad_magic"):
            slave.append_data(0, bytes(data))


def test_reading_a_store_raises_unsupported_format_at_an_unknown_version(tmp_path: Path) -> None:
    """Earlier messages are read; at the record the error names the version instead of damage."""
    log = Log(tmp_path, with_crc=False)
    log.put(log.offsets[2], "magic", V3)
    with MessageStore.open(log.store, "r") as store:
        messages: Any = store.engine.log.messages()
        assert [next(messages).physical_offset, next(messages).physical_offset] == log.offsets[:2]
        with pytest.raises(UnsupportedFormat):
            next(messages)
