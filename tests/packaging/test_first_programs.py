"""What a new user does first: the program of the README, and the two of the tutorial's beginning, also for a type checker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import brokerstore
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


@pytest.fixture
def first_program(tmp_path: Path) -> str:
    """Write the README's first program into a folder; return its source."""
    (found, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "first.py").write_text(found)
    return str(found)


def test_the_readme_acknowledges_a_first_job_in_twelve_lines(first_program: str, tmp_path: Path) -> None:
    """It needs a store, a topic and a group, and no settings; the job does not come again."""
    assert len(first_program.splitlines()) + 1 <= 12  # with the line that installs the library
    words = set(re.findall(r"\w+", first_program))
    assert {"put", "consumer", "ack"} < words
    assert not words & {"StoreConfig", "MessageStore", "create_topic", "queue_id", "queues", "config"}
    assert run(tmp_path, "first.py") == "b'two coffees'\n"
    connected = brokerstore.connect(str(tmp_path / "orders-store"))
    with connected as store, store.consumer("orders", group="kitchen", timeout_s=0.1) as consumer:
        assert list(consumer) == []


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_retention_and_acknowledgement_have_a_sentence_each(page: str) -> None:
    """A new user reads what is kept and what comes again before anything else."""
    text = " ".join((ROOT / page).read_text().split())
    assert "Nothing that a group has not acknowledged is deleted: a full disk refuses puts with `StoreFull`." in text
    assert "An acknowledgement is as durable as a put: after a kill only the messages in hand come again." in text


def test_another_process_consumes_the_first_message(programs: list[str], tmp_path: Path) -> None:
    """The second program prints what the first one put."""
    first, second = programs
    assert run(tmp_path, first) == ""
    assert run(tmp_path, second) == "b'resize 17.png'\n"


@pytest.mark.deep
@pytest.mark.usefixtures("first_program")
def test_the_first_programs_are_typed(programs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mypy in strict mode accepts them, with the types of the library's source; `make wheels` asks for an installed wheel."""
    pytest.importorskip("mypy")
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    options = ("--strict", "--follow-imports", "silent", "--cache-dir", str(tmp_path / "cache"))
    shown = run(tmp_path, "-m", "mypy", *options, *programs, "first.py")
    assert shown == "Success: no issues found in 3 source files\n"
