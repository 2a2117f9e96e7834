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
SPARK = [ROOT / "docs" / "spark.md", ROOT / "docs" / "spark-sinks.md"]
FOLDERS = ("howto", "explanation", "reference")
PAGES = [*(page for folder in FOLDERS for page in sorted((ROOT / "docs" / folder).glob("*.md"))), *SPARK]
PAGES += [page for name in ("index", "tutorial") if (page := ROOT / "docs" / f"{name}.md").exists()]
RUN, SHOWN = {"python", "console"}, {"properties"}  # languages; a broker's own file is only shown
FENCE = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS = ("duckdb", "polars")
SPARK_NEEDS = {"PYTHONWARNINGS": "default", "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) in order."""
    return [(found[1], found[2]) for found in FENCE.finditer(page.read_text())]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """`brokerstore` on the path, and the packages of this tree."""
    (tmp_path / "bin").mkdir()
    for name, command in (("brokerstore", f"{sys.executable} -m brokerstore"), ("python", sys.executable)):
        tool = tmp_path / "bin" / name
        tool.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        tool.chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_runs_word_by_word(
    page: Path, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Programs of a page share their names; a command's exit code is 0 unless the line ends in `# exit N`."""
    for package in NEEDS:
        if f"import {package}" in page.read_text():
            pytest.importorskip(package)
    if page.stem.startswith("spark") and why_not() is not None:  # its commands look at what its programs wrote
        pytest.skip(why_not() or "")
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


def test_no_page_has_a_block_that_does_not_run() -> None:
    """A program or a command stands on a page that is run, in a language that is run; no line looks like one and is none."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text()
        languages = set(re.findall(r"^ *```(\w*)$", text, re.MULTILINE)[::2])
        assert languages <= (RUN | SHOWN if page in PAGES else set()), page
        assert len(blocks(page)) == len(re.findall(r"^ *```(?:python|console)", text, re.MULTILINE)), page
        outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        assert not re.search(
            r"^(    |\t)(\$ |brokerstore |python |pip |import |from \w+ import |\w+ = spark)", outside, re.MULTILINE
        ), page


def test_every_page_is_in_the_table_of_contents() -> None:
    """None is written and forgotten."""
    contents = (ROOT / "mkdocs.yml").read_text()
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page not in contents] == []


def _command(line: str, work: Path, environment: dict[str, str]) -> None:
    assert line.startswith("$ "), f"a command begins with $: {line!r}"
    wanted = re.search(r"# exit (\d+)$", line)
    if "sparkstore" not in line:
        _run(["sh", "-c", line[2:]], work, environment, int(wanted[1]) if wanted else 0)
    elif why_not() is None:
        _run(["sh", "-c", line[2:]], work, environment | SPARK_NEEDS, 0)


def _program(text: str, work: Path, environment: dict[str, str]) -> None:
    """In a process of its own: a page's Spark session must not become that of other tests.  Left out where none can run."""
    if why_not() is None:
        _run([sys.executable, "-c", text], work, environment | SPARK_NEEDS, 0)


def _run(command: list[str], work: Path, environment: dict[str, str], code: int) -> None:
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == code, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr or code
