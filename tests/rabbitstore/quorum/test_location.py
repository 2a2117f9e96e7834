"""Servers of 3.9 to 3.12 find quorum queues and streams by the path of the folder, which each `config` has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rabbitstore.quorum.location import path_notes
from tests.archives import unpack
from tests.brokerstore.tool import run
from tests.rabbitstore.conftest import DATA

WRITTEN = "/srv/hr-bookworm/mnesia/years@localhost"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A folder of 3.10.8 with eight quorum queues and two streams, at another path than it was written at."""
    unpack(DATA / "rabbitmq310-clean.tar.xz", tmp_path)
    shutil.copy(tmp_path / "feature_flags", tmp_path / "node-feature_flags")
    return tmp_path / "node"


def change(node: Path, old: str, new: str, most: int = 99) -> None:
    """Replace a path in so many `config` files."""
    for path in sorted([*node.glob("quorum/*/*/config"), *node.glob("coordination/*/*/config")])[:most]:
        path.write_bytes(path.read_bytes().replace(old.encode(), new.encode()))


def test_a_copy_is_intact_and_the_path_that_the_server_needs_is_noted(node: Path) -> None:
    """3.10.8 served none of the ten queues there, and all of them at the path or with a symlink there."""
    verified = run("verify", "--json", node)
    (found,) = [one for one in verified.json["notes"] if one["kind"] == "other_path"]
    assert verified.code == 0 and found["expected"].endswith(f" at {WRITTEN}")
    assert "does not serve 8 quorum queues and the streams" in found["found"]
    assert run("recover", node).code == 0


def test_the_path_may_be_within_a_chroot(node: Path, tmp_path: Path) -> None:
    """A path is absolute for the server alone: the folder of a container lies below another root."""
    inner = tmp_path / "root" / WRITTEN.lstrip("/")
    inner.parent.mkdir(parents=True)
    node.rename(inner)
    assert path_notes(str(inner)) == []
    other = inner.rename(inner.with_name("another"))
    assert len(path_notes(str(other))) == 1


def test_a_symlink_at_the_path_is_enough(node: Path, tmp_path: Path) -> None:
    """Whether the folder is named by the link or by its own path."""
    link = tmp_path / "link"
    change(node, WRITTEN, str(link))
    assert len(path_notes(str(node))) == 1
    link.symlink_to(node)
    assert path_notes(str(node)) == path_notes(str(link)) == []


def test_each_path_of_a_folder_that_served_at_two_paths_is_noted(node: Path) -> None:
    """Queues that were declared at one path are not served at the other."""
    change(node, WRITTEN, str(node))
    assert path_notes(str(node)) == []
    change(node, str(node), "/other/path", 3)
    (found,) = path_notes(str(node))
    assert str(found.expected).endswith(" at /other/path") and "2 quorum queues and the streams" in str(found.found)


@pytest.mark.parametrize("text", [[*"/srv/\u0416".encode()], [*map(ord, "/srv/\u0416")]], ids=["bytes", "characters"])
def test_a_path_beyond_ascii_is_a_list_of_numbers(node: Path, text: list[int]) -> None:
    """Erlang writes a list that is no Latin-1 text so."""
    change(node, f'"{WRITTEN}/quorum/years@localhost"', str([*text, *b"/quorum/years@localhost"]))
    change(node, f'"{WRITTEN}/coordination/years@localhost"', str([*text, *b"/coordination/years@localhost"]))
    (found,) = path_notes(str(node))
    assert str(found.expected).endswith(" at /srv/\u0416")


def test_servers_of_4_do_not_use_the_path(node: Path) -> None:
    """4.0.5 and 4.3.6 served every queue whose `config` had another path."""
    flags = node.with_name("node-feature_flags")
    flags.write_text(flags.read_text().rstrip().removesuffix("].") + ",'rabbitmq_4.0.0'].")
    assert path_notes(str(node)) == []


def test_a_renamed_node_has_no_use_for_the_folder_of_its_former_name(tmp_path: Path) -> None:
    """That its quorum queue is not declared is reported."""
    unpack(DATA / "rabbitmq310-renamed.tar.xz", tmp_path)
    assert path_notes(str(tmp_path / "node")) == []
