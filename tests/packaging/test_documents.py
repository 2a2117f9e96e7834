"""Every program and every command on the pages runs, from top to bottom of each page, in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sparkstore.conftest import why_not

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
FENCE = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS = ("duckdb", "polars")


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) in order."""
    return [(found[1], found[2]) for found in FENCE.finditer(page.read_text())]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """`brokerstore` on the path, and the packages of this tree."""
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "brokerstore"
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m brokerstore "$@"\n')
    tool.chmod(0o755)
    path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_runs_word_by_word(
    page: Path, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Programs of a page share their names; a command's exit code is 0 unless the line ends in `# exit N`."""
    for package in NEEDS:
        if f"import {package}" in page.read_text():
            pytest.importorskip(package)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    names: dict[str, object] = {"__name__": "__main__"}
    for language, text in blocks(page):
        if language == "python" and "pyspark" in text:
            _program(text, work, environment)
        elif language == "python":
            exec(compile(text, str(page), "exec"), names)
        else:
            for line in text.splitlines():
                _command(line, work, environment)


def test_every_page_is_in_the_table_of_contents() -> None:
    """None is written and forgotten."""
    contents = (ROOT / "mkdocs.yml").read_text()
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page not in contents] == []


def _command(line: str, work: Path, environment: dict[str, str]) -> None:
    assert line.startswith("$ "), f"a command begins with $: {line!r}"
    wanted = re.search(r"# exit (\d+)$", line)
    _run(["sh", "-c", line[2:]], work, environment, int(wanted[1]) if wanted else 0)


def _program(text: str, work: Path, environment: dict[str, str]) -> None:
    """In a process of its own: a page's Spark session must not become that of other tests.  Left out where none can run."""
    if why_not() is None:
        environment = environment | {
            "PYTHONWARNINGS": "default",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        _run([sys.executable, "-c", text], work, environment, 0)


def _run(command: list[str], work: Path, environment: dict[str, str], code: int) -> None:
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == code, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr or code
