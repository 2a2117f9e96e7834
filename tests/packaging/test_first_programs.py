"""What a new user does first: the two programs of the tutorial's beginning, in two processes and for a type checker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.pages import ROOT


@pytest.fixture
def programs(tmp_path: Path) -> list[str]:
    """Write the programs into a folder; return their names."""
    section = (ROOT / "docs" / "tutorial.md").read_text().partition("## Two processes")[2].partition("\n## ")[0]
    found = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for number, program in enumerate(found):
        (tmp_path / f"program_{number}.py").write_text(program)
    assert sum(bool(line) for program in found for line in program.splitlines()) <= 12
    return [f"program_{number}.py" for number in range(len(found))]


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def test_another_process_consumes_the_first_message(programs: list[str], tmp_path: Path) -> None:
    """The second program prints what the first one put."""
    first, second = programs
    assert run(tmp_path, first) == ""
    assert run(tmp_path, second) == "b'resize 17.png'\n"


@pytest.mark.deep
def test_the_first_programs_are_typed(programs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mypy in strict mode accepts them, with the types of the library's source; `make wheels` asks for an installed wheel."""
    pytest.importorskip("mypy")
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    options = ("--strict", "--follow-imports", "silent", "--cache-dir", str(tmp_path / "cache"))
    shown = run(tmp_path, "-m", "mypy", *options, *programs)
    assert shown == "Success: no issues found in 2 source files\n"
