"""`diff`, `import` and `report` name the part of a RabbitMQ node that they do not read."""

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
from tests.rabbitstore.later import node_of

UNREAD = 3
Node = tuple[Path, dict[str, int]]


@pytest.fixture(scope="module", params=["rabbitmq4-killed", "rabbitmq43-clean"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Return a node's folder and the number of its queues of each kind; only the second has AMQP 1.0 messages."""
    above = tmp_path_factory.mktemp("node")
    unpack(DATA / f"{request.param}.tar.xz", above / "source")
    node_of(request.param, above / "source", above / "node")
    manifest = json.loads((above / "source" / "manifest.json").read_text())
    kinds = [row["type"] for row in manifest["queues"].values()]
    return above / "node", {kind: kinds.count(kind) for kind in ("quorum", "stream")}


def check_left_out(node: Node, ran: Any, *, times: int = 1) -> None:
    """Check the exit code and the unread part, on stderr and in JSON."""
    assert ran.code == (UNREAD if "mc_amqp" in ran.talk or "unsupported" in ran.talk else 0)
    assert ran.talk.count(f"not read: {node[1]['quorum']} quorum queues, {node[1]['stream']} streams") == times


def counts(left_out: dict[str, list[str]]) -> dict[str, int]:
    return {"quorum": len(left_out["quorum_queues"]), "stream": len(left_out["streams"])}


def test_a_diff_names_what_it_did_not_compare(node: Node) -> None:
    """It reported equal messages with exit code 0, whatever the quorum queues held."""
    has_unread = run("verify", node[0]).code == UNREAD
    ran = run("diff", node[0], node[0])
    check_left_out(node, ran, times=2)
    assert ran.out == "The readable messages are the same.\n"
    assert ran.talk.count("message protocol mc_amqp") == (8 if has_unread else 0)
    ran = run("diff", "--json", node[0], node[0])
    check_left_out(node, ran, times=2)
    assert (ran.json["same"], ran.json["count"]) == (not has_unread, 0)
    assert [counts(ran.json["not_read"][side]) for side in ("first", "second")] == [node[1]] * 2
    check_schema("diff", ran.json)


def test_a_diff_of_damaged_folders_is_not_the_same(fixture_store: Any, tmp_path: Path) -> None:
    """Both lack the same message, so it is unknown whether it was equal."""
    vhost = shutil.copytree(fixture_store("rabbitmq-clean").folder.parent / "vhost", tmp_path / "vhost")
    stored = next(row for row in run("dump", "--json", vhost).lines if not row["embedded"])
    path = vhost / stored["file"]
    data = path.read_bytes()
    path.write_bytes(data[: stored["offset"] + 24] + b"\xff" + data[stored["offset"] + 25 :])
    ran = run("diff", "--json", vhost, vhost)
    assert (ran.code, ran.json["same"], ran.json["count"]) == (1, False, 0) and "expected" in ran.talk


def test_an_import_names_the_queues_that_it_did_not_move(node: Node, tmp_path: Path) -> None:
    """It printed "0 left out" for them."""
    ran = run("import", node[0], "--to", tmp_path / "store", "--small")
    assert f"not read: {node[1]['quorum']} quorum queues, {node[1]['stream']} streams" in ran.talk
    ran = run("import", "--json", node[0], "--to", tmp_path / "store", "--small")
    assert counts(ran.json["not_read"]) == node[1]
    check_schema("import", ran.json)


def test_a_report_names_what_it_does_not_show(node: Node, tmp_path: Path) -> None:
    """Its page listed no problem and only the classic queues."""
    unread = run("verify", "--json", node[0]).json["notes"]
    count = sum(note["kind"] == "unsupported_format" and not note["file"].startswith("quorum/") for note in unread)
    ran = run("report", "--json", node[0], "--out", tmp_path / "page.html")
    check_left_out(node, ran)
    assert counts(ran.json["not_read"]) == node[1]
    check_schema("report", ran.json)
    page = re.sub(r"<[^>]+>", "", (tmp_path / "page.html").read_text())
    assert f"{node[1]['quorum']} quorum queues, {node[1]['stream']} streams" in page
    assert (f"{count} not read" in page) == (count > 0)
