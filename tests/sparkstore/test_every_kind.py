"""Rows in a real Spark equal the dump for every kind of folder in `tests/data`; `make spark-night` has more splits and data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from bench.spark_equals_dump import NO_FOLDERS, PUSHDOWN, SOURCES, Folder, names, real_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", names())
def test_rows_equal_the_dump(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """All rows of each source with small splits, and those of a condition that is pushed down; the condition selects some."""
    folder = Folder(real_folder(name, tmp_path))
    try:
        for source in SOURCES:
            assert folder.compare(spark, source, "64k", is_filtered=False) is None
            assert folder.compare(spark, source, "77777", is_filtered=True) is None
    finally:
        spark.conf.unset(PUSHDOWN)
    assert 0 < folder.selected.total() < folder.lines.total()


def test_a_missing_row_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    """The comparison itself notices one row too few and one too many."""
    folder = Folder(real_folder("batchcq", tmp_path))
    one = next(iter(folder.lines))
    folder.lines[one] -= 1
    assert (
        folder.compare(spark, SOURCES[0], "1m", is_filtered=False)
        == f"{folder.path}, {SOURCES[0]}, splitBytes 1m: 0 messages of the dump missing, 1 other rows"
    )
    folder.lines[one] += 2
    assert "1 messages of the dump missing, 0 other rows" in str(folder.compare(spark, SOURCES[0], "1m", is_filtered=False))


def test_every_archive_in_the_test_data_is_compared() -> None:
    """A new archive in `tests/data` is compared without anybody's doing."""
    assert NO_FOLDERS.isdisjoint(names()) and len(names()) >= 20
