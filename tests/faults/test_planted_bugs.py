"""Four planted bugs that the tests must catch; `scripts/planted_bugs.py` runs all of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def planted() -> Any:
    spec = importlib.util.spec_from_file_location("planted_bugs", ROOT / "scripts" / "planted_bugs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["planted_bugs"] = module
    spec.loader.exec_module(module)
    return module


def test_every_bug_can_be_planted() -> None:
    """There are at least 25, and the source contains the text of each exactly once."""
    module = planted()
    assert len({bug.name for bug in module.BUGS}) >= 25
    assert [module.problem_of(bug) for bug in module.BUGS] == [None] * len(module.BUGS)
    assert sum(bug.is_quick for bug in module.BUGS) == 4


def test_the_tests_of_every_bug_exist() -> None:
    """With a renamed file, or a word that selects no test, nothing runs, and the bug counts as missed."""
    for bug in planted().BUGS:
        paths, _, word = bug.tests.partition(" -k ")
        text = "".join((ROOT / path).read_text() for path in paths.split() if path.endswith(".py"))
        assert all((ROOT / path).exists() for path in paths.split()) and word in text, bug.name


def test_a_copy_in_which_nothing_was_changed_is_not_caught() -> None:
    """A control: tests that fail in every copy, or are not found there, would catch every bug."""
    module = planted()
    assert module.NOTHING.before == module.NOTHING.after
    assert not module.is_caught(module.NOTHING)


@pytest.mark.parametrize("number", range(4))
def test_a_planted_bug_is_caught(number: int) -> None:
    """The named tests fail on a copy of the source that has the bug."""
    module = planted()
    bug = [bug for bug in module.BUGS if bug.is_quick][number]
    assert module.is_caught(bug), bug.name
