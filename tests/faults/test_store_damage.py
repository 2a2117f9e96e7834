"""Whole RocketMQ stores with a flipped bit, a cut or stale bytes; `test_file_damage.py` has whole files."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.verify import verify_log
from commitlog.walk import LogFiles, Piece
from storageio import REAL_DISK
from storebytes.builds import build_name
from tests.faults.golden import LogFile, changed, fast_folder, flipped, unpacked
from tests.faults.log_flips import golden_log
from tests.faults.store_damage import Store

pytestmark = pytest.mark.default

# Every n-th damage of a full run, which the deep tier makes on the compiled build; the plain build is slower.
SCARCE = [5, pytest.param(1, marks=pytest.mark.night)] if build_name() == "compiled" else [10]
NAMES = ("propcrc", "lmq", "cqext")
FLIPS = 40
RECOVERED = 8  # every n-th flip is recovered too
# Files and folders that no message read depends on.
BESIDE = {"lock", "abort.bak", "consumequeue_ext", "timerlog", "timerwheel"}


@pytest.fixture
def folder() -> Iterator[Path]:
    with fast_folder() as made:
        yield made


@pytest.mark.parametrize("scarce", SCARCE)
@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_beside_the_log_never_gives_a_wrong_message(name: str, scarce: int, folder: Path) -> None:
    """A queue gives its own messages, or the damage is reported; a recovery repairs it."""
    store = Store(unpacked(name, folder))
    groups: dict[str, list[tuple[Path, int]]] = {}
    for path in store.files:
        top = path.relative_to(store.folder).parts[0]
        if top != "commitlog" and path.stat().st_size:
            groups.setdefault(top, []).append((path, _bits_used(path)))
    chance = random.Random(name)
    found: Counter[tuple[str, str]] = Counter()
    for top, paths in groups.items():
        for number in range(FLIPS // scarce if top in ("consumequeue", "index", "checkpoint") else 20 // scarce):
            path, bits = chance.choice(paths)
            with flipped(path, chance.randrange(bits)):
                found[top, "named" if store.check(number % 3 == 0) else "silent"] += 1
                if number % (RECOVERED * scarce) == 0:
                    store.check_recovery(folder / "copy", set())
    assert found["consumequeue", "named"] and found["index", "named"] and found["checkpoint", "named"]
    assert not any(top in BESIDE and kind == "named" for top, kind in found)
    print(f"{name}: {found}")


def _bits_used(path: Path) -> int:
    """Return the number of bits up to 64 bytes after the last byte that is not zero."""
    return 8 * min(path.stat().st_size, len(path.read_bytes().rstrip(b"\0")) + 64)


def _cuts(file: LogFile) -> Iterator[tuple[int, int]]:
    """Yield (record border, offset of the cut) for each border and up to 8 bytes before and after it."""
    borders = [*file.records[1:], max(field.stop for field in file.fields)]
    for border in borders:
        for at in range(border - 8, min(border + 9, len(file.data))):
            yield border, at


@pytest.mark.parametrize("scarce", SCARCE)
@pytest.mark.parametrize("name", ["propcrc", "lmq"])
def test_a_log_cut_at_every_record_border(name: str, scarce: int, folder: Path) -> None:
    """The rest is zeros, as after a torn write: whole records before the cut are read, and a torn one is reported."""
    file = golden_log(name, folder)[-1]
    done = 0
    for border, at in list(_cuts(file))[::scarce]:
        with changed(file.path, at, bytes(len(file.data) - at)):
            is_named = bool(verify_log([str(file.folder)]).problems)
            given = _given(file)
        whole = {record for record in file.records if _end(file, record) <= at}
        at_border = at >= border and not any(file.data[border:at])
        assert given == whole, (border, at)
        assert is_named != at_border, (border, at)
        done += 1
    print(f"{name}: {done} cuts")


def _end(file: LogFile, record: int) -> int:
    fields = [field for field in file.fields if field.record == record]
    return fields[-1].stop


def _given(file: LogFile) -> set[int]:
    steps = LogFiles(REAL_DISK, [str(file.folder)]).walk()
    return {at for step in steps if isinstance(step, Piece) for at in step.positions}


@pytest.mark.parametrize("scarce", SCARCE)
@pytest.mark.parametrize("name", ["propcrc", "lmq"])
def test_recover_keeps_whole_records_of_a_truncated_log(name: str, scarce: int, folder: Path) -> None:
    """The last file, shortened near record borders, is reported; a recovery keeps every whole record."""
    store = Store(unpacked(name, folder))
    path = sorted((store.folder / "commitlog").iterdir())[-1]
    base, data = int(path.name), path.read_bytes()
    inside = sorted(at - base for at in store.records if at >= base)
    for number, border in enumerate(inside[:: 9 * scarce]):
        at = max(border + (number % 17) - 8, 0)
        path.write_bytes(data[:at])
        assert store.check(True), "a shortened file and nothing was said"
        torn = max((record for record in inside if record < at), default=0)
        store.check_recovery(folder / "copy", {base + record for record in inside if record >= torn})
    path.write_bytes(data)


@pytest.mark.parametrize("gap", [8, 91, 4096])
def test_stale_records_after_the_end_are_not_read(gap: int, folder: Path) -> None:
    """Older records after a gap, as a truncation leaves them, are never read, and a note reports them."""
    file = golden_log("lmq", folder)[-1]
    end = max(field.stop for field in file.fields)
    first = file.records[0]
    size = _size(file, first)
    at = end + gap
    record = bytearray(file.data[first : first + size])
    record[28:36] = (file.base + at).to_bytes(8, "big")
    with changed(file.path, at, bytes(record)):
        report = verify_log([str(file.folder)])
        assert _given(file) == set(file.records) and not report.problems
        assert "stale_bytes" in {found.kind for found in report.notes}


@pytest.mark.parametrize("shift", [0, 1, 91])
def test_a_record_at_a_wrong_offset_is_rejected(shift: int, folder: Path) -> None:
    """After a misdirected write the record is whole, but its physical offset does not match."""
    file = golden_log("propcrc", folder)[-1]
    end = max(field.stop for field in file.fields)
    record = file.data[file.records[0] : file.records[0] + _size(file, file.records[0])]
    with changed(file.path, end + shift, record):
        assert _given(file) == set(file.records)


def _size(file: LogFile, record: int) -> int:
    return int.from_bytes(file.data[record : record + 4], "big")
