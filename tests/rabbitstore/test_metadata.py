"""A node whose server does not start, or knows no queue, is not intact: its metadata beside the messages.

What each damage leads to is what a real RabbitMQ 4.0.5 did with it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rabbitstore.read.metadata import metadata_problems
from tests.archives import unpack
from tests.brokerstore.tool import run

from .conftest import DATA
from .later import forget, node_of

DOES_NOT_START = ("schema.DAT", "cluster_nodes.config", "nodes_running_at_shutdown")
KNOWS_NOTHING = ("rabbit_user.DCD", "rabbit_user_permission.DCD", "rabbit_vhost.DCD", "rabbit_durable_queue.DCD")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a node that was stopped cleanly."""
    above = tmp_path_factory.mktemp("metadata")
    unpack(DATA / "rabbitmq4-streams.tar.xz", above / "source")
    node_of("rabbitmq4-streams", above / "source", above / "node")
    return above / "node"


@pytest.fixture
def node(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of it."""
    return Path(shutil.copytree(whole, tmp_path / "node"))


def test_a_servers_own_metadata_is_intact(node: Path) -> None:
    """Tables without a row and without changes among them."""
    assert metadata_problems(str(node)) == []


@pytest.mark.parametrize("change", [b"", bytes(3000), b"\1\2\3\4cXM\x0b" + bytes(30)], ids=["empty", "zeros", "zeroed"])
@pytest.mark.parametrize("name", [*DOES_NOT_START, *KNOWS_NOTHING])
def test_unreadable_metadata_is_reported(name: str, change: bytes, node: Path) -> None:
    """A server that starts on it delivers nothing; `recover` leaves the choice to a person."""
    (node / name).write_bytes(change)
    assert [(problem.file, problem.kind) for problem in metadata_problems(str(node))] == [(name, "bad_metadata")]


@pytest.mark.parametrize("name", ["schema.DAT", "cluster_nodes.config"])
def test_metadata_of_another_node_is_reported(name: str, node: Path) -> None:
    """It is readable; 3.8.9 does not start with it, or waits for the other node."""
    data = (node / name).read_bytes()
    assert b"a@localhost" in data
    (node / name).write_bytes(data.replace(b"a@localhost", b"b@localhost"))
    assert [(problem.file, problem.kind) for problem in metadata_problems(str(node))] == [(name, "bad_metadata")]
    for folder in (*node.glob("quorum/*"), *node.glob("coordination/*")):  # nothing else has the node's own name
        shutil.rmtree(folder)
    assert metadata_problems(str(node)) == []


@pytest.mark.parametrize("name", ["schema.DAT", *KNOWS_NOTHING])
def test_missing_metadata_is_reported(name: str, node: Path) -> None:
    """The server starts without it and refuses every client."""
    (node / name).unlink()
    assert [problem.file for problem in metadata_problems(str(node))] == [name]


DAMAGES = [b"", bytes(300), None]
IDS = ["empty", "zeros", "missing"]


@pytest.mark.parametrize("change", DAMAGES, ids=IDS)
def test_unreadable_feature_flags_are_reported(change: bytes | None, node: Path) -> None:
    """Servers of 3.8.9 to 4.3.6 do not start with an empty file or zeros, and make a missing one again."""
    flags = Path(f"{node}-feature_flags")
    if change is not None:
        flags.write_bytes(change)
    found = [(problem.file, problem.kind) for problem in metadata_problems(str(node))]
    assert found == [("node-feature_flags", "bad_metadata")] * (change is not None)
    assert run("verify", node).code == (change is not None)


@pytest.mark.parametrize("change", DAMAGES, ids=IDS)
@pytest.mark.parametrize("kind", ["rabbitmq38-clean", "rabbitmq310-clean"])
def test_a_server_of_3_8_or_3_10_needs_its_schema_version(kind: str, change: bytes | None, tmp_path: Path) -> None:
    """It does not start without it; later servers have none."""
    unpack(DATA / f"{kind}.tar.xz", tmp_path)
    shutil.move(tmp_path / "feature_flags", tmp_path / "node-feature_flags")
    assert metadata_problems(str(tmp_path / "node")) == []
    file = tmp_path / "node" / "schema_version"
    file.unlink()
    if change is not None:
        file.write_bytes(change)
    found = [(problem.file, problem.kind) for problem in metadata_problems(str(tmp_path / "node"))]
    assert found == [("schema_version", "bad_metadata")]


@pytest.mark.parametrize("name", ["cluster_nodes.config", "nodes_running_at_shutdown", "rabbit_durable_route.DCD"])
def test_metadata_that_a_server_makes_again_may_be_missing(name: str, node: Path) -> None:
    """It starts and delivers everything without these."""
    (node / name).unlink()
    assert metadata_problems(str(node)) == []


def test_a_folder_without_any_metadata_is_an_archive_of_messages(node: Path) -> None:
    """Operators copy `msg_stores` alone; nothing is missing then."""
    for path in [path for path in node.iterdir() if path.is_file()]:
        path.unlink()
    assert metadata_problems(str(node)) == []


def test_a_metadata_log_open_at_a_kill_may_end_at_any_byte(node: Path) -> None:
    """The server cuts its end."""
    path = node / "LATEST.LOG"
    path.write_bytes(b"\1\2\3\4\6\7\x08\x09" + path.read_bytes()[8:-3])
    assert metadata_problems(str(node)) == []


def test_the_tool_reports_damaged_metadata_without_a_repair_step(node: Path) -> None:
    """`recover` has no step for it, and prints none."""
    (node / "schema.DAT").unlink()
    verified, recovered = run("verify", node), run("recover", node)
    assert (verified.code, recovered.code) == (1, 1)
    assert "bad metadata" in verified.out and "not repaired: schema.DAT" in recovered.out
    assert "a person has to decide: " in recovered.talk


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([b"internal_user"], ["missing_user"]),
        ([b"user_permission"], ["missing_permission"]),
        ([b"internal_user", b"user_permission"], ["missing_user", "missing_permission"]),
        ([b"\x05vhost", b"rabbit_vhost"], ["missing_vhost"]),
    ],
)
def test_an_older_copy_of_a_table_with_which_a_server_refuses_clients_is_reported(
    words: list[bytes], expected: list[str], node: Path
) -> None:
    """Each file is readable, and the server starts: it knows no user, nobody's permission, or not the virtual host."""
    forget(node, *words)
    assert [problem.kind for problem in metadata_problems(str(node))] == expected
    verified, recovered = run("verify", node), run("recover", node)
    assert (verified.code, recovered.code) == (1, 1)
    assert "not repaired: " in recovered.out and "a person has to decide: " in recovered.talk


def test_a_permission_of_an_unknown_user_shows_that_the_table_of_users_is_older(node: Path) -> None:
    """The server deletes both together; a user who has no permission yet is no contradiction."""
    path = node / "LATEST.LOG"
    data, name = path.read_bytes(), b"user_vhostm\x00\x00\x00\x05"
    path.write_bytes(data.replace(name + b"guest", name + b"other"))
    (found,) = metadata_problems(str(node))
    assert found.kind == "missing_user" and found.expected.endswith(": other")
    path.write_bytes(path.read_bytes() + data.replace(b"guest", b"other")[8:])
    assert metadata_problems(str(node)) == []
