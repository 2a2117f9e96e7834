"""The tool on the folder of a whole RabbitMQ 4 node: classic queues, quorum queues and streams."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.archives import unpack
from tests.brokerstore.schema import check_schema
from tests.brokerstore.tool import run
from tests.cases import unpack_case
from tests.rabbitstore.conftest import DATA
from tests.rabbitstore.later import node_of

KINDS = (pytest.param("rabbitmq4-clean", marks=pytest.mark.deep), "rabbitmq4-killed", "rabbitmq4-streams")
Node = tuple[Path, dict[str, Any]]


@pytest.fixture(scope="module", params=KINDS)
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Return a node's folder and the server's own account of it."""
    above = tmp_path_factory.mktemp("node")
    unpack(DATA / f"{request.param}.tar.xz", above / "source")
    node_of(request.param, above / "source", above / "node")
    return above / "node", json.loads((above / "source" / "manifest.json").read_text())


def delivered(manifest: dict[str, Any], kind: str) -> dict[str, list[str]]:
    """Return the ids that the restarted server delivered, by queue."""
    rows = {name: row["delivered"] for name, row in manifest["queues"].items() if row["type"] == kind}
    return {name: [row["message_id"] for row in found] for name, found in rows.items()}


def ids(lines: list[dict[str, Any]]) -> list[str]:
    return [row["properties"]["message_id"] for row in lines if row.get("state") != "dead_lettered"]


def test_dump_shows_each_queue_as_the_server_delivers_it(node: Node) -> None:
    """Quorum queues and streams by name, each line of the published form."""
    path, manifest = node
    for kind in ("quorum", "stream"):
        for name, expected in delivered(manifest, kind).items():
            lines = run("dump", "--json", path, "--queue", name).lines
            assert ids(lines)[: len(expected)] == expected and (name == "s.batched" or len(ids(lines)) == len(expected))
            for line in lines:
                check_schema("rabbit_message", line)


def test_ls_and_stats_have_a_row_for_each_queue(node: Node) -> None:
    """Types and counts are the server's."""
    path, manifest = node
    types = {name: row["type"] for name, row in manifest["queues"].items()}
    ran = run("ls", "--json", path)
    rows = {row["queue"]: row for row in ran.json["queues"]}
    assert {name: rows[name]["type"] for name in types} == types and "not_read" not in ran.json
    dead = {"q.once": 2, "q.dead": 0}
    for name, expected in delivered(manifest, "quorum").items():
        assert len(expected) <= rows[name]["messages"] <= len(expected) + dead.get(name, 0), name
    found = {row["queue"]: row["messages"] for row in run("stats", "--json", path).json["queues"]}
    assert {name: found[name] for name in types} == {
        name: len(run("dump", "--json", path, "--queue", name).lines) for name in types
    }
    check_schema("rabbit_ls", ran.json)


def test_query_get_and_tail_reach_every_type(node: Node) -> None:
    """A message is found by the id that its publisher gave, by its number, and at the end."""
    path, manifest = node
    for kind in ("quorum", "stream"):
        name, expected = next((name, rows) for name, rows in delivered(manifest, kind).items() if len(rows) > 1)
        assert ids(run("query", "--json", path, name, expected[1]).lines) == [expected[1]]
        lines = run("dump", "--json", path, "--queue", name).lines
        last = max(line["seq_id"] for line in lines)
        assert run("get", "--json", path, "--queue", name, "--offset", last).lines[0]["seq_id"] == last
        assert run("tail", "--json", path, "--queue", name, "-n", "1").lines == lines[-1:]


def test_verify_covers_all_files(node: Node, tmp_path: Path) -> None:
    """A healthy node has no problem; a damaged chunk and a damaged log are named."""
    path, _manifest = node
    healthy = run("verify", "--json", path)
    assert healthy.json["problems"] == [] and healthy.code in (0, 3)  # 3: messages of AMQP 1.0 in classic queues
    damage = shutil.copytree(path, tmp_path / "hurt")
    segment, log = next(damage.glob("stream/*/*.segment")), next(damage.glob("quorum/*/*.wal"))
    for file, at in ((segment, 200), (log, 700)):
        data = bytearray(file.read_bytes())
        data[at] ^= 1
        file.write_bytes(data)
    ran = run("verify", "--json", damage)
    assert ran.code == 1 and not ran.json["ok"]
    named = {problem["file"] for problem in ran.json["problems"]}
    assert {str(segment.relative_to(damage)), str(log.relative_to(damage))} <= named
    check_schema("verify", ran.json)


def test_export_has_every_message(node: Node, tmp_path: Path) -> None:
    """The lines of an export are those of a dump."""
    path, _manifest = node
    out = tmp_path / "all.jsonl"
    run("export", path, "--out", out)
    assert [json.loads(line) for line in out.read_text().splitlines()] == run("dump", "--json", path).lines


def test_names_of_streams_come_from_the_coordinator(node: Node) -> None:
    """A stream whose messages do not have its name is listed by it too."""
    path, manifest = node
    names = {row["queue"] for row in run("ls", "--json", path).json["queues"] if row["type"] == "stream"}
    assert names == {name for name, row in manifest["queues"].items() if row["type"] == "stream"}


@pytest.mark.parametrize("name", ["quorum/*/*.wal", "coordination/*/names.dets"])
def test_a_damaged_log_of_a_node_without_quorum_queues_is_repaired(name: str, tmp_path: Path) -> None:
    """A server of 3.10 has these files from its first start on, and does not start on a damaged one."""
    node = unpack_case("rabbit-dlx-3.10.8", tmp_path).folder
    path = next(node.glob(name))
    path.write_bytes(bytes(path.stat().st_size))
    assert [run("verify", node).code, run("recover", node, "--apply").code, run("verify", node).code] == [1, 7, 0]
