"""Folders that two programs write in turn, one with the whole-record checksum and one without."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from commitlog import Message
from commitlog.layout import BODY_AT, CRC_NAME, CRC_SIZE
from messagestore import MessageStore
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from tests.stores import small_config

SMALL = small_config(max_hash_slot_num=50)
Positions = list[tuple[int, int]]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Positions]:
    """Write records with and without the property in turn; return their offsets and sizes."""
    positions = []
    folder = tmp_path_factory.mktemp("in-turn") / "store"
    for number in range(7):
        with MessageStore.open(folder, config=SMALL.but(enabled_append_prop_crc=number % 2 == 0)) as store:
            put = store.put(Message("t", b"%d" % number, queue_id=0, keys=[f"k{number}"]))
            positions.append((put.physical_offset, put.size_bytes))
    return folder, positions


@pytest.fixture
def in_turn(original: tuple[Path, Positions], tmp_path: Path) -> tuple[Path, Positions]:
    """Return a copy to be damaged."""
    shutil.copytree(original[0], tmp_path / "store")
    return tmp_path / "store", original[1]


def overwrite(folder: Path, at: int, data: bytes) -> None:
    with (folder / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_records_that_a_broker_and_we_wrote_in_turn_are_no_problem(in_turn: tuple[Path, Positions]) -> None:
    """RocketMQ writes no whole-record checksum by default: such records are notes, one each."""
    folder, positions = in_turn
    report = verify_store(str(folder))
    assert report.problems == []
    assert [(one.kind, one.offset) for one in report.notes] == [("unprotected_record", at) for at, _ in positions[1::2]]
    assert (report.log.records, report.log.protected_records) == (7, 4)


def test_filler_too_small_for_a_checksum_is_not_reported(in_turn: tuple[Path, Positions]) -> None:
    """A record without the property is damaged and closed by a filler of its size; the folder is clean afterwards."""
    folder, positions = in_turn
    overwrite(folder, positions[3][0] + BODY_AT, b"X")
    assert not verify_store(str(folder)).is_ok
    Recovery(str(folder), Choice.SKIP).apply()
    assert verify_store(str(folder)).problems == []


def test_a_checksum_property_that_lost_a_part_of_its_name_is_a_problem(in_turn: tuple[Path, Positions]) -> None:
    """Up to half of the name may be missing: the rest cannot be another property's name."""
    folder, positions = in_turn
    at, size = positions[4]
    for lost in range(1, len(CRC_NAME) // 2 + 1):
        overwrite(folder, at + size - CRC_SIZE, b"X" * lost)
        found = verify_store(str(folder)).problems
        assert [(one.kind, one.offset) for one in found] == [("suspect_record", at)]
