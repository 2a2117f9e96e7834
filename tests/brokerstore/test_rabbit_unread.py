"""What a reading command cannot read makes its answer incomplete: exit code 3, and the text names what is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.brokerstore.tool import run
from tests.cases import Case, unpack_case

UNREAD = 3
COMMANDS = (("dump",), ("dump", "--json"), ("export",), ("export", "--to", "csv"), ("ls",), ("stats",), ("tail",))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return unpack_case("rabbit-quorum-3.10.8", tmp_path_factory.mktemp("case"))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_that_skips_queues_does_not_end_with_0(case: Case, command: tuple[str, ...]) -> None:
    """The five quorum queues of machine version 2 are named, with the version that was found and the supported ones."""
    ran = run(*command, case.folder)
    assert ran.code == UNREAD
    assert (
        "not read: 5 quorum queues of an unsupported format: q." in ran.talk or ran.talk.count("queue machine version 2") == 5
    )
    assert "queue machine version 2 (supported: 3" in ran.talk and "later version" not in ran.talk


def test_an_export_to_a_file_that_skips_queues_does_not_end_with_0(case: Case, tmp_path: Path) -> None:
    """The file has all readable messages; the exit code tells that there are others."""
    ran = run("export", case.folder, "--out", tmp_path / "out.jsonl")
    assert (ran.code, len((tmp_path / "out.jsonl").read_bytes().splitlines())) == (UNREAD, 323)


def test_one_readable_queue_is_a_complete_answer(case: Case) -> None:
    """A filter by a classic queue reads no other, so the answer lacks nothing."""
    assert run("dump", case.folder, "--queue", "plain.0").code == 0
