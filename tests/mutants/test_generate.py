"""What the mutation run changes: one thing at a time, on the same lines, and only inside functions."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.generate import Mutant, changed, compiles, lines_of, mutants
from tests.mutants.table import GROUPS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''
LIMIT = 3


class Store:
    def put(self, size: int, room: int) -> int:
        """Says 1 < 2."""
        if size < 0 or size > room:
            raise ValueError(f"{size} > {room}")
        LOG.info("size %d", size + 1)
        self.disk.sync(
            size - 1,
        )
        self.used = size
        self.left = [size, size]
        self.left[0] = self.left[0]
        return min(size, room)
'''


def found(source: str) -> list[Mutant]:
    return [mutant for mutant in mutants("store.py", source) if compiles(mutant, source)]


def test_each_kind_of_mutation_is_generated_and_no_other() -> None:
    """Strings, annotations, log lines and the module's level stay unchanged."""
    lines = {lines_of(mutant, SOURCE) for mutant in found(SOURCE)}
    test = "if size < 0 or size > room:"
    assert lines == {
        (test, "if ((size < 0) and (size > room)):"), (test, "if not (size < 0 or size > room):"),
        (test, "if size <= 0 or size > room:"), (test, "if size < 1 or size > room:"), (test, "if size < 0 or size >= room:"),
        ('raise ValueError(f"{size} > {room}")', "pass"), ("self.disk.sync( size - 1, )", "pass"),
        ("size - 1,", "size + 1,"), ("size - 1,", "size - 2,"), ("self.used = size", "pass"),
        ("self.left = [size, size]", "pass"), ("self.left[0] = self.left[0]", "pass"),
        ("self.left[0] = self.left[0]", "self.left[1] = self.left[0]"),
        ("self.left[0] = self.left[0]", "self.left[0] = self.left[1]"),
        ("return min(size, room)", "return max(size, room)"), ("return min(size, room)", "return None"),
    }  # fmt: skip


def test_a_mutation_keeps_line_numbers_and_its_key_is_stable_when_lines_move() -> None:
    """The changed code object fits the running process, and results stay valid when other lines move."""
    moved = "# a comment\n" + SOURCE
    assert len({mutant.key for mutant in found(SOURCE)}) == len(found(SOURCE)), "two of one text are told apart"
    assert {mutant.key for mutant in found(SOURCE)} == {mutant.key for mutant in found(moved)}
    for mutant in found(SOURCE):
        ast.parse(changed(mutant, SOURCE))
        assert changed(mutant, SOURCE).count("\n") == SOURCE.count("\n")


@pytest.mark.parametrize("name", GROUPS)
def test_the_table_names_files_and_tests_that_exist(name: str) -> None:
    """A renamed one would drop out of the run unnoticed."""
    for path in (*GROUPS[name].files, *GROUPS[name].tests):
        assert (ROOT / path).exists(), path
