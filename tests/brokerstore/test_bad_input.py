"""Damaged and foreign folders: each command reports file, offset, expected and found, and changes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.brokerstore.damage import FILE_SIZE, Log
from tests.brokerstore.tool import Ran, run
from tests.helpers import contents


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def verify(log: Log) -> Ran:
    """Run `verify --json` and check that it changed nothing."""
    before = contents(log.store)
    ran = run("verify", "--json", log.store)
    assert contents(log.store) == before
    assert ran.code == (0 if ran.json["ok"] else 1)
    return ran


def only_problem(log: Log) -> dict[str, Any]:
    (problem,) = verify(log).json["problems"]
    assert list(problem) == ["file", "offset", "kind", "expected", "found"]
    return problem


def problem_at(log: Log, offset: int) -> tuple[str, Any, Any]:
    """Return (kind, expected, found) of the only problem, which must be at a physical offset."""
    problem = only_problem(log)
    assert (problem["file"], problem["offset"]) == (str(log.file(offset)), offset % FILE_SIZE)
    return problem["kind"], problem["expected"], problem["found"]


def test_an_undamaged_log_has_no_problem(log: Log) -> None:
    """The undamaged log has no problem."""
    ran = verify(log)
    assert ran.json["problems"] == ran.json["notes"] == []
    assert ran.json["counts"]["records"] == ran.json["counts"]["protected_records"] == len(log.offsets)


def test_an_unknown_magic(log: Log) -> None:
    """The walk finds the records after it again."""
    at = log.offsets[5]
    log.put(at, "magic", 0x12345678)
    assert problem_at(log, at) == ("bad_magic", "daa320a7, daa320ab or cbd43194", "12345678")
    assert verify(log).json["counts"]["records"] == len(log.offsets) - 1


def test_a_length_past_the_file(log: Log) -> None:
    """A length is never trusted."""
    at = log.offsets[7]
    log.put(at, "size", 1 << 30)
    assert problem_at(log, at) == ("torn", f"at most {FILE_SIZE - at} bytes", 1 << 30)


@pytest.mark.parametrize("size", [-1, -(1 << 31), 0, 90])
def test_a_length_too_small_or_negative(log: Log, size: int) -> None:
    """No record is shorter than 91 bytes."""
    at = log.offsets[3]
    log.put(at, "size", size)
    assert problem_at(log, at) == ("bad_size", "at least 91 bytes", size)


@pytest.mark.parametrize("size", [-1, -(1 << 31), 1 << 30])
def test_an_invalid_body_length_is_reported(log: Log, size: int) -> None:
    """Negative, or longer than the record."""
    at = log.offsets[3]
    log.put(at, "body_size", size)
    kind, _, found = problem_at(log, at)
    assert (kind, found) == ("bad_body_size", size)


def test_an_invalid_topic_length_is_reported(log: Log) -> None:
    """RocketMQ reads a byte above 127 as negative."""
    at = log.offsets[3]
    log.write(at + 88 + 2000, b"\xff")
    kind, _, found = problem_at(log, at)
    assert (kind, found) == ("bad_topic_size", 255)


def test_properties_that_do_not_fill_the_record(log: Log) -> None:
    """The lengths have to add up."""
    at = log.offsets[3]
    length = int.from_bytes(log.read(at + 89 + 2000 + 5, 2), "big")
    log.write(at + 89 + 2000 + 5, b"\xff\xfe")
    assert problem_at(log, at) == ("bad_properties_size", length, -2)


def test_a_record_at_a_wrong_offset_is_rejected(log: Log) -> None:
    """The offset in the record must match its position."""
    at = log.offsets[4]
    log.put(at, "physical_offset", at + 1)
    assert problem_at(log, at) == ("misplaced", at, at + 1)


def test_a_flipped_bit_in_a_body(log: Log) -> None:
    """The checksum of the body detects it."""
    at = log.offsets[6]
    stored = int.from_bytes(log.read(at + 8, 4), "big")
    log.put(at, "body", 7)
    kind, expected, found = problem_at(log, at)
    assert (kind, expected) == ("bad_body_crc", stored)
    assert found != stored


def test_a_flipped_bit_outside_the_body(log: Log) -> None:
    """Only the checksum of the whole record detects it."""
    at = log.offsets[6]
    log.write(at + 16, b"\x01")  # the user's flag
    digits = log.read(log.offsets[7] - 11, 10)  # the checksum property's value, least significant first
    kind, expected, found = problem_at(log, at)
    assert (kind, expected) == ("bad_record_crc", int(bytes(reversed(digits))))
    assert expected != found


def test_a_broken_checksum_property_makes_a_record_suspect(log: Log) -> None:
    """Its neighbours have the property, so it had one too."""
    at = log.offsets[6]
    log.write(log.offsets[7] - 15, b"X")
    assert problem_at(log, at)[0] == "suspect_record"


def test_records_without_checksums_are_not_suspect(tmp_path: Path) -> None:
    """The store was never protected."""
    assert verify(Log(tmp_path, with_crc=False)).json["counts"]["protected_records"] == 0


def test_records_before_checksums_were_enabled_are_not_suspect(tmp_path: Path) -> None:
    """Records without the property precede records with it, so none has protected neighbours on both sides."""
    bare, protected = Log(tmp_path, with_crc=False), Log(tmp_path / "other")
    for index in range(1, 3):
        protected.file(index * FILE_SIZE).replace(bare.file(index * FILE_SIZE))
    ran = verify(bare)
    assert ran.json["problems"] == []
    assert 0 < ran.json["counts"]["protected_records"] < ran.json["counts"]["records"]


def test_two_damaged_records_in_every_file(log: Log) -> None:
    """Each is reported, and everything between them is counted."""
    damaged = [offset for index in range(3) for offset in log.in_file(index)[2:6:3]]
    for offset in damaged:
        log.put(offset, "magic", 1)
    ran = verify(log)
    assert [(p["file"], p["offset"]) for p in ran.json["problems"]] == [(str(log.file(o)), o % FILE_SIZE) for o in damaged]
    assert ran.json["counts"]["records"] == len(log.offsets) - len(damaged)


def test_a_hole_of_zeros_in_the_middle(log: Log) -> None:
    """Newer records follow, so this is not the end."""
    at, behind = log.offsets[5], log.offsets[8]
    log.write(at, bytes(behind - at))
    assert problem_at(log, at) == ("empty", "a record or a blank record", "zeros")
    assert verify(log).json["counts"]["records"] == len(log.offsets) - 3


def test_a_file_that_ends_in_zeros_before_another_with_records(log: Log) -> None:
    """The blank record is missing."""
    last = log.in_file(1)[-1]
    log.write(last, bytes(2 * FILE_SIZE - last))
    assert problem_at(log, last)[0] == "empty"


def test_a_blank_record_of_a_wrong_size(log: Log) -> None:
    """A blank record must reach the end of the file."""
    last = log.in_file(0)[-1]
    at = last + int.from_bytes(log.read(last, 4), "big")
    log.put(at, "size", 12)
    assert problem_at(log, at) == ("bad_blank_size", FILE_SIZE - at, 12)


def test_a_torn_last_record_is_reported_as_a_tail(log: Log) -> None:
    """It is a problem, with a note that opening for writing would cut here."""
    at = log.offsets[-1]
    log.write(at + 100, bytes(log.end_offset - at - 100))
    assert problem_at(log, at)[0] in ("bad_body_crc", "bad_properties_size", "bad_topic_size")
    assert [note["kind"] for note in verify(log).json["notes"]] == ["tail"]


def test_stale_bytes_behind_the_end_are_a_note(log: Log) -> None:
    """A truncation leaves older records after the end."""
    old = log.read(log.offsets[0], 100)
    log.write(log.end_offset + 1000, old)
    ran = verify(log)
    assert ran.code == 0
    assert [(note["kind"], note["offset"]) for note in ran.json["notes"]] == [
        ("stale_bytes", log.end_offset % FILE_SIZE + 1000 + next(i for i, byte in enumerate(old) if byte))
    ]


def test_stale_bytes_behind_a_blank_record_are_a_note(log: Log) -> None:
    """The rest of a closed file is zeros or older bytes."""
    log.write(FILE_SIZE - 5, b"old")
    ran = verify(log)
    assert (ran.code, ran.json["problems"]) == (0, [])
    assert [(note["kind"], note["file"], note["offset"]) for note in ran.json["notes"]] == [
        ("stale_bytes", str(log.file(0)), FILE_SIZE - 5)
    ]


def test_older_records_after_damage_are_not_counted(log: Log) -> None:
    """The walk does not continue at a record from before the truncation."""
    bad, stale = log.offsets[-2], log.offsets[-1]
    size = log.end_offset - stale
    log.put(bad, "magic", 1)
    log.write(stale + 56, (1_600_000_000_000).to_bytes(8, "big"))  # its store time
    rewritten = Log(log.store.parent / "other", with_crc=False)
    bare = rewritten.read(rewritten.offsets[0], rewritten.offsets[1] - rewritten.offsets[0])
    log.write(stale, bytes(size))
    log.write(stale, bare)
    log.put(stale, "physical_offset", stale)
    log.write(stale + 56, (1_600_000_000_000).to_bytes(8, "big"))
    ran = verify(log)
    assert [problem["kind"] for problem in ran.json["problems"]] == ["bad_magic"]
    assert ran.json["counts"]["records"] == len(log.offsets) - 2


def test_a_stray_file(log: Log) -> None:
    """RocketMQ would not start."""
    (log.folder / "notes.txt").write_text("hello")
    problem = only_problem(log)
    assert (problem["file"], problem["kind"]) == (str(log.folder / "notes.txt"), "stray_file")
    assert problem["found"] == "'notes.txt'"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_in_the_folder_is_never_opened(log: Log) -> None:
    """Reading a pipe would block."""
    os.mkfifo(log.folder / f"{9 * FILE_SIZE:020d}")
    assert only_problem(log)["kind"] == "stray_file"


def test_a_link_to_a_file_is_never_followed(log: Log) -> None:
    """A symbolic link could lead anywhere."""
    (log.folder / f"{9 * FILE_SIZE:020d}").symlink_to("/etc/hostname")
    assert only_problem(log)["kind"] == "stray_file"


def test_a_file_cut_short(log: Log) -> None:
    """The size of the file is reported, and the record that it cuts."""
    path = log.file(FILE_SIZE)
    path.write_bytes(path.read_bytes()[:10_000])
    problems = verify(log).json["problems"]
    assert {"wrong_file_size", "torn"} == {problem["kind"] for problem in problems}
    sized = next(problem for problem in problems if problem["kind"] == "wrong_file_size")
    assert (sized["file"], sized["expected"], sized["found"]) == (str(path), f"{FILE_SIZE} bytes", "10000 bytes")


def test_a_file_too_long(log: Log) -> None:
    """One byte too many is reported."""
    path = log.file(0)
    path.write_bytes(path.read_bytes() + b"\0")
    assert "wrong_file_size" in {problem["kind"] for problem in verify(log).json["problems"]}


def test_an_empty_file_in_the_middle(log: Log) -> None:
    """Only the last file may be empty, after a crash between creating and filling it."""
    log.file(FILE_SIZE).write_bytes(b"")
    problem = only_problem(log)
    assert (problem["kind"], problem["expected"], problem["found"]) == ("empty_file", f"{FILE_SIZE} bytes", "0 bytes")


def test_an_empty_last_file_is_a_note(log: Log) -> None:
    """RocketMQ deletes it when it starts."""
    log.file(3 * FILE_SIZE).write_bytes(b"")
    ran = verify(log)
    assert (ran.code, [note["kind"] for note in ran.json["notes"]]) == (0, ["empty_file"])


def test_a_missing_file(log: Log) -> None:
    """The gap is reported under the name of the missing file."""
    log.file(FILE_SIZE).unlink()
    problem = only_problem(log)
    assert problem["kind"] == "missing_file"
    assert (problem["expected"], problem["found"]) == (f"{FILE_SIZE:020d}", f"{2 * FILE_SIZE:020d}")


def test_a_misnamed_file(log: Log) -> None:
    """Every record in it is at another offset than it says."""
    log.file(FILE_SIZE).rename(log.folder / f"{FILE_SIZE + 8:020d}")
    assert {"misnamed_file", "misplaced"} <= {problem["kind"] for problem in verify(log).json["problems"]}


def test_dump_continues_after_damage_and_reports_it(log: Log) -> None:
    """`dump` prints every intact message and exits with 1."""
    log.put(log.offsets[5], "magic", 1)
    ran = run("dump", "--json", log.store)
    assert ran.code == 1
    assert [line["physical_offset"] for line in ran.lines] == [offset for offset in log.offsets if offset != log.offsets[5]]
    assert "bad magic" in ran.talk
    assert str(log.file(0)) in ran.talk


def test_ls_and_info_work_on_a_damaged_log(log: Log) -> None:
    """Both answer and exit with 1."""
    (log.folder / "stray").touch()
    assert run("ls", "--json", log.store).json["queues"][0]["messages"] == len(log.offsets)
    ran = run("info", "--json", log.store)
    assert (ran.code, ran.json["max_offset"]) == (1, log.end_offset)
    assert [problem["kind"] for problem in ran.json["problems"]] == ["stray_file"]


def test_info_on_a_torn_tail(log: Log) -> None:
    """The end is after the last good header."""
    log.put(log.offsets[-1], "size", -5)
    ran = run("info", "--json", log.store)
    assert (ran.code, ran.json["max_offset"]) == (1, log.offsets[-1])


@pytest.mark.parametrize("step", range(0, 2300, 23))
def test_verify_detects_any_flipped_bit_in_a_record_with_a_checksum(log: Log, step: int) -> None:
    """Verification reports the record, whichever of its bits is flipped."""
    at = log.offsets[9]
    position = at + step % (log.offsets[10] - at)
    log.write(position, bytes([log.read(position, 1)[0] ^ 0x10]))
    ran = verify(log)
    assert ran.code == 1
    assert ran.json["problems"][0]["offset"] == at
    assert ran.json["counts"]["records"] >= len(log.offsets) - 1
