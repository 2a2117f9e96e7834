"""`diff`, `import` and `report` of a whole RabbitMQ node: quorum queues of a later version are named, all else is read."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.archives import unpack
from tests.brokerstore.schema import check_schema
from tests.brokerstore.tool import run
from tests.rabbitstore.conftest import DATA
from tests.rabbitstore.later import make_later_machine, node_of

UNREAD = 3
Node = tuple[Path, dict[str, int]]


@pytest.fixture(scope="module", params=["rabbitmq4-killed", "rabbitmq43-clean", "later"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Return a node's folder and the number of its queues of each kind; only the second has AMQP 1.0 messages."""
    above = tmp_path_factory.mktemp("node")
    kind = "rabbitmq43-clean" if request.param == "later" else request.param
    unpack(DATA / f"{kind}.tar.xz", above / "source")
    node_of(kind, above / "source", above / "node")
    if request.param == "later":
        make_later_machine(above / "node")
    manifest = json.loads((above / "source" / "manifest.json").read_text())
    kinds = [row["type"] for row in manifest["queues"].values()]
    counts = {kind: kinds.count(kind) for kind in ("quorum", "stream")}
    return above / "node", counts | {"later": int(request.param == "later")}


def is_later(node: Node) -> bool:
    return bool(node[1]["later"])


def check_left_out(node: Node, ran: Any, *, times: int = 1) -> None:
    """Check the exit code and the unread part, on stderr and in JSON."""
    assert ran.code == (UNREAD if is_later(node) else 0)
    assert ran.talk.count(f"not read: {node[1]['quorum']} quorum queues") == (times if is_later(node) else 0)


def left_out(node: Node) -> int:
    return node[1]["quorum"] if is_later(node) else 0


def test_a_diff_of_a_node(node: Node) -> None:
    """Every queue of every type is compared; what is not read is named."""
    ran = run("diff", "--json", node[0], node[0])
    check_left_out(node, ran, times=2)
    assert (ran.json["same"], ran.json["count"]) == (not is_later(node), 0)
    sides = ran.json.get("not_read", {"first": {"quorum_queues": []}, "second": {"quorum_queues": []}})
    assert [len((sides[side] or {"quorum_queues": []})["quorum_queues"]) for side in ("first", "second")] == [
        left_out(node)
    ] * 2
    check_schema("diff", ran.json)
    expected = "The readable messages are the same.\n" if left_out(node) else "The messages are the same.\n"
    assert run("diff", node[0], node[0]).out == expected


def test_a_diff_finds_a_settled_message(node: Node, tmp_path: Path) -> None:
    """A stream without its last chunk and a quorum queue without its last entries differ by number."""
    other = shutil.copytree(node[0], tmp_path / "other")
    stream = max(other.glob("stream/*/*.segment"), key=lambda path: path.stat().st_size)
    with stream.open("r+b") as file:
        file.truncate(stream.stat().st_size - 1)
    found = run("diff", "--json", node[0], other).json
    assert len({row["queue"] for row in found["differences"]}) == 1
    assert {row["kind"] for row in found["differences"]} == {"only_in_first"}
    if not is_later(node):
        wal = next(other.glob("quorum/*/*.wal"))
        with wal.open("r+b") as file:
            file.truncate(wal.stat().st_size // 2)
        queues = {row["queue"] for row in run("diff", "--json", "--limit", "10000", node[0], other).json["differences"]}
        assert len([queue for queue in queues if queue.startswith("q.")]) > 1


def test_a_diff_of_damaged_folders_is_not_the_same(fixture_store: Any, tmp_path: Path) -> None:
    """Both lack the same message, so it is unknown whether it was equal."""
    vhost = shutil.copytree(fixture_store("rabbitmq-clean").folder.parent / "vhost", tmp_path / "vhost")
    stored = next(row for row in run("dump", "--json", vhost).lines if not row["embedded"])
    path = vhost / stored["file"]
    data = path.read_bytes()
    path.write_bytes(data[: stored["offset"] + 24] + b"\xff" + data[stored["offset"] + 25 :])
    ran = run("diff", "--json", vhost, vhost)
    assert (ran.code, ran.json["same"], ran.json["count"]) == (1, False, 0) and "expected" in ran.talk


@pytest.mark.deep
def test_an_import_of_a_node_and_back(node: Node, tmp_path: Path) -> None:
    """Every message of every type goes to a topic, once, and comes back to a classic queue with body and properties."""
    store, back = tmp_path / "store", tmp_path / "vhost"
    listed = run("dump", "--json", node[0]).lines
    ran = run("import", "--json", node[0], "--to", store, "--small")
    assert (ran.code, ran.json["messages"], ran.json["failed"]) == (UNREAD if is_later(node) else 0, len(listed), [])
    assert len(ran.json.get("not_read", {"quorum_queues": []})["quorum_queues"]) == left_out(node)
    check_schema("import", ran.json)
    again = run("import", "--json", node[0], "--to", store, "--small")
    assert (again.json["messages"], again.json["skipped"]) == (0, len(listed))
    assert run("import", "--json", store, "--to-rabbit", back).json["failed"] == []
    found: dict[str, list[Any]] = {}
    for row in run("dump", "--json", back).lines:
        found.setdefault(row["queue"], []).append((row["body_base64"], row["properties"], row["exchange"]))
    expected: dict[str, list[Any]] = {}
    for row in listed:
        expected.setdefault(row["queue"], []).append((row["body_base64"], row["properties"], row["exchange"]))
    assert {queue: len(rows) for queue, rows in found.items()} == {queue: len(rows) for queue, rows in expected.items()}
    for queue in expected:
        if not queue.startswith("c."):
            assert found[queue] == expected[queue], queue


@pytest.mark.usefixtures("undrawn")
def test_a_report_of_a_node(node: Node, tmp_path: Path) -> None:
    """Its page has every queue, and names those that are not read."""
    ran = run("report", "--json", node[0], "--out", tmp_path / "page.html")
    assert ran.talk.count(f"not read: {node[1]['quorum']} quorum queues") == int(is_later(node))
    assert len(ran.json.get("not_read", {"quorum_queues": []})["quorum_queues"]) == left_out(node)
    check_schema("report", ran.json)
    page = re.sub(r"<[^>]+>", " ", (tmp_path / "page.html").read_text().replace("<wbr>", ""))
    rows = run("ls", "--json", node[0]).json["queues"]
    assert all(row["queue"] in page for row in rows)
    assert f"{sum(row['messages'] for row in rows):,}" in page
