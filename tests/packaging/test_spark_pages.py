"""Every program and every command on the pages about Spark runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.packaging.pages import all_pages, needs_spark, run_page
from tests.sparkstore.conftest import why_not


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)  # one page starts Spark seven times
@pytest.mark.parametrize("page", [page for page in all_pages() if needs_spark(page)], ids=lambda page: page.stem)
def test_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom, each program in a Spark session of its own."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    run_page(
        page, tmp_path, monkeypatch, PYTHONWARNINGS="default", SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable
    )  # fmt: skip
