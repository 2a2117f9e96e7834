"""Pages whose programs and commands the tests run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.archives import unpack

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FOLDERS = ("howto", "explanation", "reference")
FENCE = re.compile(r'^```(python|console)(?: title="([^"\n]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
NEEDS = ("duckdb", "polars", "opentelemetry.metrics", "kombu", "celery", "rocketmq")


def all_pages() -> list[Path]:
    """Return the pages that may have programs and commands; all of these are run."""
    ones = [DOCS / f"{name}.md" for name in ("index", "tutorial", "spark", "spark-sinks")]
    found = [page for folder in FOLDERS for page in sorted((DOCS / folder).glob("*.md"))]
    return [ROOT / "README.md", *(page for page in ones if page.exists()), *found]


def needs_spark(page: Path) -> bool:
    """Return whether a page starts Spark, which takes too long for the quick tests."""
    return page.name != "README.md" and any(_starts_spark(source) for language, source in blocks(page) if language == "python")


def _starts_spark(source: str) -> bool:
    return "pyspark" in source or "sparkstore.session" in source


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the (language, source) of each block, in order."""
    return [(language, source) for language, _, source in FENCE.findall(page.read_text())]


def files_of(page: Path) -> dict[str, str]:
    """Return the programs that a page gives the name of a file."""
    return {file: source for _, file, source in FENCE.findall(page.read_text()) if file}


def run_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    """Run a page from top to bottom in a folder of its own; `more` goes into the environment of its commands.

    Programs share their names, except for those with Spark, which run in processes of their own, and those with the name of a
    file, which are written to it.  A command must end with 0 unless its line ends in `# exit N`.
    """
    for package in NEEDS:
        if re.search(rf"^(import {package}|from {package} import)\b", page.read_text(), re.MULTILINE):
            pytest.importorskip(package)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    environment = _environment(tmp_path) | more
    if page.stem == "rescue-rabbitmq":
        unpack(ROOT / "tests" / "data" / "definitions" / "3.10.8.tar.xz", work)  # a dead server's folder `node`
    names: dict[str, object] = {"__name__": "__main__"}
    for language, file, source in FENCE.findall(page.read_text()):
        if file:
            (work / file).write_text(source)
        elif language == "python" and _starts_spark(source):
            _run([sys.executable, "-c", source], work, environment, 0)
        elif language == "python":
            exec(compile(source, str(page), "exec"), names)
        else:
            for line in source.splitlines():
                _command(line, work, environment)


def _environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment with `brokerstore` and `python` on the path, and the packages of this tree."""
    (tmp_path / "bin").mkdir()
    for name, command in (("brokerstore", f"{sys.executable} -m brokerstore"), ("python", sys.executable)):
        tool = tmp_path / "bin" / name
        tool.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        tool.chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}


def _command(line: str, work: Path, environment: dict[str, str]) -> None:
    assert line.startswith("$ "), f"a command begins with $: {line!r}"
    expected = re.search(r"# exit (\d+)$", line)
    _run(["sh", "-c", line[2:]], work, environment, int(expected[1]) if expected else 0)


def _run(command: list[str], work: Path, environment: dict[str, str], code: int) -> None:
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == code, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr or code
