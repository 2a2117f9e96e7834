"""Flipped bits of commit-log files: each is reported or in an uncovered field; no record is wrong, and no other is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from storebytes.builds import build_name
from tests.faults.golden import LogFile, fast_folder
from tests.faults.log_flips import UNCOVERED, Stretch, golden_log, header_bits, sampled_bits, sweep

pytestmark = pytest.mark.default

HEADER_STEP = {"propcrc": 13, "plain": 47, "lmq": 9}  # odd, so that every bit of every field gets flipped in some record
SAMPLED = {"propcrc": 1000, "plain": 200, "lmq": 1000}
# Every n-th of these bits; all of them at night.
SCARCE = [5, pytest.param(1, marks=pytest.mark.night)] if build_name() == "compiled" else [20]


@pytest.fixture(params=HEADER_STEP)
def log(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[LogFile]]]:
    with fast_folder() as folder:
        yield request.param, golden_log(request.param, folder)


@pytest.mark.parametrize("scarce", SCARCE)
def test_a_flipped_bit_in_a_log_is_reported_or_in_an_unchecked_field(log: tuple[str, list[LogFile]], scarce: int) -> None:
    """Header fields of every kind and random bits, in logs with and without whole-record checksums."""
    name, files = log
    found: Counter[str] = Counter()
    touched = set()
    for file in files:
        bits = [*header_bits(file, len(file.data) % 7, HEADER_STEP[name] * scarce)]
        bits += sampled_bits(file, SAMPLED[name] // scarce, 1)
        touched |= {file.owner(bit // 8).name for bit in bits}
        found += sweep(file, bits)
    header = set(UNCOVERED) - {"topic", "properties"} | {
        "size",
        "magic",
        "body_crc",
        "body_size",
        "topic_size",
        "properties_size",
    }
    assert scarce > 1 or touched >= header  # a fifth of the bits need not reach every field
    assert found["named"] > 0
    print(f"{name}: {sum(found.values())} bits flipped: {dict(found)}")


def test_a_lost_separator_before_a_checksum_is_reported(tmp_path: Path) -> None:
    """A flipped bit in the byte before a record's checksum used to make it a record without one, unnoticed.

    This holds for the last record and between records without checksums; neighbours with a checksum reveal it.
    """
    file = golden_log("propcrc", tmp_path)[0]
    separators = [field for field in file.fields if field.name == "separator"]
    assert len(separators) > 100
    for field in separators:
        alone = Stretch(file, field.record, field.stop + 20)
        assert {alone.judge(8 * field.start + bit) for bit in range(8)} == {"named"}
