"""The workflows of a fork on GitHub: what they call exists in this repository."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.pages import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(path: Path) -> list[dict[str, Any]]:
    """Return the steps of all jobs of a workflow."""
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


def test_there_is_a_workflow_for_tests_and_one_for_wheels() -> None:
    """Their names are those of the files."""
    assert [(path.stem, yaml.safe_load(path.read_text())["name"]) for path in WORKFLOWS] == [
        ("tests", "tests"),
        ("wheels", "wheels"),
    ]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_exists(path: Path) -> None:
    """Targets of the Makefile, scripts of the repository, and tools that a step before has installed."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    installed: set[str] = {"pip"}
    for command in [step["run"] for step in steps(path) if "run" in step]:
        program, first, *rest = command.split()[:3] if " " in command else (command, "")
        if program == "make":
            assert first in targets
        elif program == "python":
            assert (first, rest[0] in installed) == ("-m", True), command
            installed |= set(re.findall(r"\"(\w+)[<>=]", command))
        else:
            assert (ROOT / program).stat().st_mode & 0o100, command


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_uses_only_the_actions_of_github_and_may_only_read(path: Path) -> None:
    """No address of a registry, no path of a machine, no write access."""
    assert {step["uses"].partition("/")[0] for step in steps(path) if "uses" in step} == {"actions"}
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    assert not re.search(r"https?:|\s/\w", path.read_text())


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="no actionlint")
def test_actionlint_finds_nothing() -> None:
    """It knows the keys, the expressions, the runners and the inputs of the actions."""
    done = subprocess.run(["actionlint", *WORKFLOWS], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
