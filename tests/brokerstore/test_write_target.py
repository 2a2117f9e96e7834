"""`import` and `copy` into a folder that holds something else are refused before anything is written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from brokerstore.identify import FolderKind
from brokerstore.write_target import check_write_target
from storageio import UnknownStore
from tests.brokerstore.tool import run
from tests.helpers import tree

ROWS = '{"topic": "T", "body": "x"}\n'


@pytest.fixture
def positions(fixture_store: Any, tmp_path: Path) -> dict[str, Path]:
    """Return a RocketMQ store, a RabbitMQ folder, rows, and a RabbitMQ folder to write into."""
    rabbit = fixture_store("rabbitmq-clean").folder.parent / "vhost"
    shutil.copytree(rabbit, tmp_path / "other")
    (tmp_path / "rows.jsonl").write_text(ROWS)
    return {
        "P": fixture_store("plain", own=True).store, "R": rabbit, "ROWS": tmp_path / "rows.jsonl", "OTHER": tmp_path / "other",
    }  # fmt: skip


@pytest.mark.parametrize("line", ["import ROWS --to OTHER", "import R --to OTHER", "copy P --all --to OTHER",
                                  "import P --to-rabbit P"])  # fmt: skip
def test_a_store_of_another_kind_is_refused(positions: dict[str, Path], line: str) -> None:
    """A second kind of store would hide the queues of the first; the exit code is 3 and no byte changes."""
    target = positions["P" if "rabbit" in line else "OTHER"]
    before = tree(target)
    ran = run(*(positions.get(word, word) for word in line.split()))
    assert (ran.code, tree(target)) == (3, before)
    assert str(target) in ran.talk
    assert "choose a folder that does not exist" in ran.talk


@pytest.mark.parametrize(
    "line", ["import ROWS --to NEW", "import R --to NEW", "copy P --all --to NEW", "import P --to-rabbit NEW"]
)
@pytest.mark.parametrize("what", ["documents", "file", "log", "queues"])
def test_a_folder_of_other_files_is_refused(positions: dict[str, Path], tmp_path: Path, line: str, what: str) -> None:
    """A home folder, a file, a bare log, or queues without their log would be mixed with a new store's files."""
    new = tmp_path / "new"
    if what == "file":
        new.write_text("mine")
    else:
        shutil.copytree(positions["P"] / {"documents": "index", "log": "commitlog", "queues": "consumequeue"}[what], new)
    before = tree(tmp_path)
    assert run(*((positions | {"NEW": new}).get(word, word) for word in line.split())).code == 3
    assert tree(tmp_path) == before


@pytest.mark.parametrize("names", [[], ["lost+found"], ["lock", "brokerstore"], None])
def test_a_new_folder_is_accepted(tmp_path: Path, names: list[str] | None) -> None:
    """An empty folder, a new disk's, one left by a killed command, and a missing one are accepted."""
    for name in names or ():
        (tmp_path / "new" / name).mkdir(parents=True)
    for kind in (FolderKind.ROCKETMQ, FolderKind.RABBITMQ):
        check_write_target(tmp_path if names == [] else tmp_path / "new", kind)


def test_a_killed_import_can_be_continued(positions: dict[str, Path], tmp_path: Path) -> None:
    """A store of the right kind is continued."""
    for _ in range(2):
        assert run("import", positions["ROWS"], "--to", tmp_path / "store", "--small").code == 0
        assert run("import", positions["P"], "--to-rabbit", tmp_path / "vhost").code == 0
    with pytest.raises(UnknownStore, match="a rocketmq folder"):
        check_write_target(tmp_path / "store", FolderKind.RABBITMQ)
