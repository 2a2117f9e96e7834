"""The page of findings and steps lists the kinds that the code makes, and no others.

A new kind needs the code that makes it and a row here.  `kinds.py` tells where the code may have a kind.
"""

from __future__ import annotations

import re

import pytest

from tests.packaging.kinds import FINDINGS, ROOT, STEPS, Kinds

PAGE = (ROOT / "docs" / "reference" / "findings.md").read_text()
COLUMNS_OF_FINDINGS, COLUMNS_OF_STEPS = 4, 3
REPEATS = ("rabbitstore/quorum/repair.py", "rabbitstore/repair/classic.py")  # they name kinds of other calls once more
OTHERS = ("messagestore/broker/services/timers.py", "messagestore/derive/_dispatch_cy.py")  # they add to no plan


SECTIONS = {"RabbitMQ": ["rabbitstore"], "RocketMQ": ["commitlog", "consumequeue", "indexfile", "messagestore"]}
NO_FINDING = {"blank"}  # a reason why a walk stopped, which is reported as `bad_blank_size`


@pytest.fixture(scope="module", params=SECTIONS)
def package(request: pytest.FixtureRequest) -> tuple[str, Kinds]:
    return request.param, Kinds(*SECTIONS[request.param])


def rows(section: str, columns: int) -> list[list[str]]:
    """Return the cells of the tables with so many columns in the section of one engine."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    table = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| `")]
    return [cells for cells in table if len(cells) == columns]


@pytest.mark.parametrize(
    ("calls", "columns"), [(FINDINGS, COLUMNS_OF_FINDINGS), (STEPS, COLUMNS_OF_STEPS)], ids=["findings", "steps"]
)
def test_page_lists_the_kinds_that_the_code_makes(
    package: tuple[str, Kinds], calls: dict[str, tuple[int, str]], columns: int
) -> None:
    """Each kind has exactly one row, whose cells are filled."""
    section, kinds = package
    table = rows(section, columns)
    names = [re.fullmatch(r"`(\w+)`", cells[0]) for cells in table]
    listed = [name[1] for name in names if name is not None]
    assert len(listed) == len(table) == len(set(listed)) and all(map(all, table))
    assert set(listed) == kinds.found(calls) - NO_FINDING


def test_no_kind_is_hidden_from_the_page(package: tuple[str, Kinds]) -> None:
    """A kind that the source does not show, such as one from a call of another package, would have no row."""
    _section, kinds = package
    kinds.unresolved.clear()
    kinds.found(FINDINGS)
    kinds.found(STEPS)
    assert [position for position in kinds.unresolved if not position.startswith(REPEATS + OTHERS)] == []


def test_kinds_are_found_where_the_code_has_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A control: a literal, both branches of a condition, a table, a loop, and a parameter whose caller has the kind."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "module.py").write_text(
        """
TABLE = {"a": "in_table", "b": "in_table_too"}

def make(found, kind):
    found.append(Finding("f", 0, kind, "", ""))

def check(found, is_end, error):
    make(found, "from_caller")
    found.append(Finding("f", 0, "literal", "", ""))
    found.append(finding_of(error, "torn" if is_end else "bad"))
    found.append(note("f", 0, TABLE[error], "", ""))
    found += [Finding("f", 0, kind, "", "") for kind in ("in_loop", "in_loop_too")]
    plan.add("step", "f", "", None)
    found.append(Finding("f", 0, error.kind, "", ""))
"""
    )
    kinds = Kinds(str(folder))
    expected = {"from_caller", "literal", "torn", "bad", "in_table", "in_table_too", "in_loop", "in_loop_too"}
    assert kinds.found(FINDINGS) == expected and kinds.found(STEPS) == {"step"}
    assert len(kinds.unresolved) == 1
