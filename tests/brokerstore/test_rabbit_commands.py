"""The commands on RabbitMQ folders, against what the real server said of them."""

from __future__ import annotations

import hashlib
import json
import shutil
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from brokerstore import RabbitStore
from rabbitstore.check import verify
from tests.brokerstore.tool import run

FOLDERS = ["rabbitmq-clean", "rabbitmq-v2"]
KEYS = [
    "queue", "vhost", "seq_id", "msg_id", "persistent", "acked", "redelivered", "expiry_us", "size", "embedded", "file",
    "offset", "exchange", "routing_keys", "properties", "body_base64",
]  # fmt: skip


class Rabbit:
    """A fixture's virtual host and its truth."""

    def __init__(self, folder: Path, truth: Any) -> None:
        self.folder = folder
        self.truth = truth


@pytest.fixture
def rabbit(fixture_store: Any, tmp_path: Path) -> Any:
    """`rabbit(name)`: a copy of one's own."""

    def make(name: str) -> Rabbit:
        fixture = fixture_store(name)
        above = fixture.folder.parent
        manifest = next(above.rglob("manifest.json"))
        vhost = next(path.parent for path in sorted(above.rglob(".vhost")))
        shutil.copytree(vhost, tmp_path / name)
        return Rabbit(tmp_path / name, json.loads(manifest.read_text()))

    return make


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", FOLDERS)
def test_dump_gives_every_message_of_the_manifest(rabbit: Any, name: str) -> None:
    """With the fixed keys; payloads by their hash."""
    fixture = rabbit(name)
    ran = run("dump", "--json", fixture.folder)
    assert (ran.code, ran.talk) == (0, "")
    assert all(list(line) == KEYS for line in ran.lines)
    wanted = {
        (queue, message["seq"]): (message["msg_id"], message["persistent"], message["payload_sha256"])
        for queue, facts in fixture.truth["queues"].items()
        for message in facts.get("messages", [])
        if not message["acked"]
    }
    found = {
        (line["queue"], line["seq_id"]): (
            line["msg_id"],
            line["persistent"],
            hashlib.sha256(b64decode(line["body_base64"])).hexdigest(),
        )
        for line in ran.lines
    }
    assert {lane: found[lane] for lane in wanted if lane in found} == {lane: wanted[lane] for lane in wanted if lane in found}
    assert {lane[0] for lane in found} <= set(fixture.truth["queues"])
    assert len(ran.lines) == sum(row["messages"] for row in run("ls", "--json", fixture.folder).json["queues"])


@pytest.mark.parametrize("name", FOLDERS)
def test_reading_commands_change_nothing(rabbit: Any, name: str) -> None:
    """With and without JSON."""
    folder = rabbit(name).folder
    before = contents(folder)
    for command in (["info"], ["ls"], ["dump"], ["stats"], ["verify"], ["recover"], ["export"]):
        ran = run(*command, folder)
        assert (ran.code, ran.talk) == (0, ""), command
        assert ran.out
    for command in (["info"], ["ls"], ["stats"], ["verify"], ["recover"]):
        assert run(*command, "--json", folder).json is not None
    assert contents(folder) == before


def test_the_answers_have_the_fixed_keys(rabbit: Any) -> None:
    """Of `ls`, `verify`, `recover`; the figures agree with each other."""
    folder = rabbit("rabbitmq-clean").folder
    rows = run("ls", "--json", folder).json["queues"]
    assert list(rows[0]) == ["queue", "vhost", "messages", "unacked", "persistent", "segments"]
    report = run("verify", "--json", folder).json
    assert (report["ok"], report["problems"], report["counts"]["messages"]) == (True, [], sum(row["messages"] for row in rows))
    plan = run("recover", "--json", folder).json
    assert list(plan["plan"]) == ["valid_end", "records_kept", "records_dropped", "actions"]
    assert plan["applied"] is False
    total = run("stats", "--json", folder).json["total"]
    assert total["messages"] == report["counts"]["messages"] == run("info", "--json", folder).json["messages"]


def test_get_by_number_and_by_id(rabbit: Any) -> None:
    """An id in every queue that has the message."""
    folder = rabbit("rabbitmq-clean").folder
    lines = run("dump", "--json", "--queue", "q.mixed", folder).lines
    ran = run("get", "--json", "--queue", "q.mixed", "--offset", lines[5]["seq_id"], "--count", 3, folder)
    assert (ran.code, ran.lines) == (0, lines[5:8])
    everywhere = run("dump", "--json", folder).lines
    shared = next(one for one in everywhere if one["queue"] == "q.fan1")
    found = run("get", "--json", "--id", shared["msg_id"], folder).lines
    assert found == [one for one in everywhere if one["msg_id"] == shared["msg_id"]]
    assert len(found) > 1
    assert "body" in run("get", "--id", shared["msg_id"], folder).out
    assert run("get", "--id", "00" * 16, folder).code == 1
    assert run("get", "--at", 5, folder).code == 2


def test_a_node_with_its_virtual_hosts(rabbit: Any, tmp_path: Path) -> None:
    """The data folder of a node; of several hosts one is named."""
    vhost = rabbit("rabbitmq-clean").folder
    node = tmp_path / "node"
    shutil.copytree(vhost, node / "msg_stores" / "vhosts" / "one")
    assert run("ls", "--json", node).json == run("ls", "--json", vhost).json
    with RabbitStore.open(str(node / "msg_stores" / "vhosts" / "two"), "x", vhost="second") as store:
        store.declare_queue("q")
    assert run("ls", node).code == 3
    assert run("ls", "--json", "--vhost", "second", node).json["queues"][0]["vhost"] == "second"


def _damage(folder: Path) -> None:
    """The last message of a message file torn."""
    path = max((folder / "msg_store_persistent").glob("*.rdq"), key=lambda one: one.stat().st_size)
    path.write_bytes(path.read_bytes()[:-50])


def test_damage_is_named_and_mended(rabbit: Any) -> None:
    """Exit codes 1, 6 and then 0; everything else stays readable."""
    folder = rabbit("rabbitmq-clean").folder
    count = len(run("dump", "--json", folder).lines)
    _damage(folder)
    ran = run("dump", "--json", folder)
    assert ran.code == 1
    assert ran.talk
    lost = count - len(ran.lines)
    assert lost >= 1
    ran = run("verify", "--json", folder)
    assert (ran.code, ran.json["ok"]) == (1, False)
    assert list(ran.json["problems"][0]) == ["file", "offset", "kind", "expected", "found"]
    before = contents(folder)
    assert run("recover", folder).code == 1
    assert contents(folder) == before
    ran = run("recover", "--apply", "--json", folder)
    assert (ran.code, ran.json["applied"], ran.json["plan"]["records_dropped"]) == (6, True, lost)
    assert run("verify", folder).code == 0
    assert len(run("dump", "--json", folder).lines) == count - lost


def test_a_damaged_table_is_mended_with_nothing_dropped(rabbit: Any) -> None:
    """Exit code 7."""
    folder = rabbit("rabbitmq-clean").folder
    (folder / "msg_store_persistent" / "clean.dot").write_bytes(b"nonsense")
    count = len(run("dump", "--json", folder).lines)
    assert run("verify", folder).code == 1
    assert run("recover", "--apply", folder).code == 7
    assert verify(str(folder)).ok
    assert len(run("dump", "--json", folder).lines) == count


def test_in_use(tmp_path: Path) -> None:
    """Recovery needs the lock; reading does not."""
    folder = str(tmp_path / "vhost")
    with RabbitStore.open(folder, "a") as store:
        store.declare_queue("q")
        store.publish("q", b"x" * 5000)
        store.sync()
        _damage(Path(folder))
        assert run("recover", "--apply", folder).code == 4
        assert run("ls", folder).code in (0, 1)
