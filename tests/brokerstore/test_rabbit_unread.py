"""What a reading command cannot read makes its answer incomplete: exit code 3, and the text names what is unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.archives import unpack
from tests.brokerstore.tool import run
from tests.cases import unpack_case
from tests.rabbitstore.conftest import DATA
from tests.rabbitstore.later import make_later_machine

UNREAD = 3
COMMANDS = (("dump",), ("dump", "--json"), ("export",), ("export", "--to", "csv"), ("ls",), ("stats",), ("tail",))
Node = tuple[Path, dict[str, str]]


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Return a node whose quorum queues are of a later machine, and the types of its queues."""
    folder = tmp_path_factory.mktemp("later")
    unpack(DATA / "rabbitmq43-clean.tar.xz", folder)
    make_later_machine(folder / "node")
    queues = json.loads((folder / "manifest.json").read_text())["queues"]
    return folder / "node", {name: row["type"] for name, row in queues.items()}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_that_skips_queues_does_not_end_with_0(later: Node, command: tuple[str, ...]) -> None:
    """The quorum queues of machine version 9 are named, with the version that was found and the supported ones."""
    count = list(later[1].values()).count("quorum")
    ran = run(*command, later[0])
    assert ran.code == UNREAD and count > 5
    names = f"not read: {count} quorum queues of an unsupported format: q."
    assert names in ran.talk or ran.talk.count("queue machine version 9") == count
    assert "queue machine version 9 (supported: 0 to 8)" in ran.talk and "later version" not in ran.talk


def test_an_export_to_a_file_that_skips_queues_does_not_end_with_0(later: Node, tmp_path: Path) -> None:
    """The file has all readable messages; the exit code tells that there are others."""
    ran = run("export", later[0], "--out", tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert ran.code == UNREAD and {later[1].get(row["queue"]) for row in rows} == {"classic", "stream"}


def test_one_readable_queue_is_a_complete_answer(later: Node) -> None:
    """A filter by a classic queue reads no other, so the answer lacks nothing."""
    name = next(name for name, kind in later[1].items() if kind == "classic")
    assert run("dump", later[0], "--queue", name).code == 0


def test_quorum_queues_of_3_10_are_read(tmp_path: Path) -> None:
    """Machine version 2 was not read before: the answer lacked five queues."""
    case = unpack_case("rabbit-quorum-3.10.8", tmp_path)
    ran = run("dump", "--json", case.folder)
    assert ran.code == 0 and len([one for one in ran.lines if "state" in one]) > 80
