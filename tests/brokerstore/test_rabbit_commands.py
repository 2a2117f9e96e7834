"""The commands on RabbitMQ folders, compared with the real server's account of them."""

from __future__ import annotations

import hashlib
import json
import shutil
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from brokerstore import RabbitStore
from rabbitstore.repair.check import verify
from storageio import REAL_DISK, Writer
from tests.brokerstore.tool import run
from tests.helpers import contents

FOLDERS = ["rabbitmq-clean", "rabbitmq-v2"]
KEYS = [
    "queue", "vhost", "seq_id", "msg_id", "persistent", "acked", "redelivered", "expiry_us", "size", "embedded", "file",
    "offset", "exchange", "routing_keys", "properties", "body_base64",
]  # fmt: skip


class Rabbit:
    """A fixture's virtual host and its truth."""

    def __init__(self, folder: Path, expected: Any) -> None:
        self.folder = folder
        self.expected = expected


@pytest.fixture
def rabbit(fixture_store: Any, tmp_path: Path) -> Any:
    """Return a function that gives a test its own copy of a fixture."""

    def make(name: str) -> Rabbit:
        fixture = fixture_store(name)
        above = fixture.folder.parent
        manifest = next(above.rglob("manifest.json"))
        vhost = next(path.parent for path in sorted(above.rglob(".vhost")))
        shutil.copytree(vhost, tmp_path / name)
        return Rabbit(tmp_path / name, json.loads(manifest.read_text()))

    return make


@pytest.mark.parametrize("name", FOLDERS)
def test_dump_gives_every_message_of_the_manifest(rabbit: Any, name: str) -> None:
    """The keys are fixed; payloads are compared by their hash."""
    fixture = rabbit(name)
    ran = run("dump", "--json", fixture.folder)
    assert (ran.code, ran.talk) == (0, "")
    assert all(list(line) == KEYS for line in ran.lines)
    expected = {
        (queue, message["seq"]): (message["msg_id"], message["persistent"], message["payload_sha256"])
        for queue, facts in fixture.expected["queues"].items()
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
    assert {lane: found[lane] for lane in expected if lane in found} == {
        lane: expected[lane] for lane in expected if lane in found
    }
    assert {lane[0] for lane in found} <= set(fixture.expected["queues"])
    assert len(ran.lines) == sum(row["messages"] for row in run("ls", "--json", fixture.folder).json["queues"])


@pytest.mark.parametrize("name", FOLDERS)
def test_reading_commands_change_nothing(rabbit: Any, name: str) -> None:
    """Nothing changes with or without --json."""
    folder = rabbit(name).folder
    before = contents(folder)
    for command in (["info"], ["ls"], ["dump"], ["stats"], ["verify"], ["recover"], ["export"]):
        ran = run(*command, folder)
        assert (ran.code, ran.talk) == (0, ""), command
        assert ran.out
    for command in (["info"], ["ls"], ["stats"], ["verify"], ["recover"]):
        assert run(*command, "--json", folder).json is not None
    assert contents(folder) == before


def test_json_output_has_the_fixed_keys(rabbit: Any) -> None:
    """The figures of `ls`, `verify` and `recover` agree with each other."""
    folder = rabbit("rabbitmq-clean").folder
    rows = run("ls", "--json", folder).json["queues"]
    assert list(rows[0]) == ["queue", "vhost", "messages", "unacked", "persistent", "segments"]
    report = run("verify", "--json", folder).json
    assert (report["ok"], report["problems"], report["counts"]["messages"]) == (True, [], sum(row["messages"] for row in rows))
    plan = run("recover", "--json", folder).json
    keys = ["messages_kept", "messages_lost", "lost_by_queue", "steps", "findings", "unrepaired", "choices"]
    assert list(plan["plan"]) == [*keys, "valid_end", "records_kept", "records_dropped", "actions"]
    assert plan["applied"] is False
    total = run("stats", "--json", folder).json["total"]
    assert total["messages"] == report["counts"]["messages"] == run("info", "--json", folder).json["messages"]


def test_get_by_number_and_by_id(rabbit: Any) -> None:
    """An id is found in every queue that has the message."""
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


def test_tail_shows_the_last_messages_of_each_queue(rabbit: Any) -> None:
    """Each queue has its own end, because there is no order between queues."""
    folder = rabbit("rabbitmq-clean").folder
    lines = run("dump", "--json", folder).lines
    last = {line["queue"]: line for line in lines}
    assert run("tail", "--json", "-n", 1, folder).lines == [
        last[queue] for queue in dict.fromkeys(one["queue"] for one in lines)
    ]
    deep = [line for line in lines if line["queue"] == "q.deep" and line["seq_id"] <= 3000]
    assert run("tail", "--json", "--queue", "q.deep", "--to-offset", 3000, "-n", 7, folder).lines == deep[-7:]
    assert len(run("tail", "-n", 0, folder).out.splitlines()) == 1  # the heading


def test_query_finds_messages_by_routing_key_and_ids(rabbit: Any) -> None:
    """A routing key, message id, correlation id or store id finds the message."""
    folder = rabbit("rabbitmq-clean").folder
    lines = run("dump", "--json", "--queue", "q.props", folder).lines
    named = next(line for line in lines if "correlation_id" in line["properties"])
    for key in (named["properties"]["correlation_id"], named["properties"]["message_id"], named["msg_id"].upper()):
        assert named in run("query", "--json", folder, "q.props", key).lines
    assert run("query", "--json", folder, "q.props", "q.props").lines == lines
    assert run("query", "--json", "--max", 2, folder, "q.props", "q.props").lines == lines[:2]
    assert run("query", folder, "q.props", "none").out == ""
    ran = run("query", folder, "q.none", "none")
    assert (ran.code, "no queue 'q.none'" in ran.talk) == (0, True)


def _queue(folder: Path) -> Path:
    with RabbitStore.open(folder, "x") as store:
        store.declare_queue("mail")
        store.publish("mail", b"first")
    return folder


def test_a_message_is_put_into_a_queue(tmp_path: Path) -> None:
    """AMQP's properties keep their names and types, others become headers; existing messages stay."""
    folder = _queue(tmp_path / "vhost")
    given = ["--property", "message_id=m", "--property", "priority=3", "--property", "timestamp=18446744073709551615"]
    ran = run("put", "--json", *given, "--property", "region=eu", "--key", "a", "--key", "b", folder, "mail", "second")
    assert (ran.code, ran.talk) == (0, "")
    lines = run("dump", "--json", folder).lines
    assert [b64decode(line["body_base64"]) for line in lines] == [b"first", b"second"]
    assert (lines[1]["msg_id"], lines[1]["routing_keys"], lines[1]["persistent"]) == (ran.json["msg_id"], ["a", "b"], True)
    expected = {"message_id": "m", "priority": 3, "timestamp": (1 << 64) - 1, "headers": {"region": "eu"}, "delivery_mode": 2}
    assert lines[1]["properties"] == expected
    assert run("verify", folder).code == 0
    assert run("info", "--json", folder).json["clean_stop"] is True


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["other", "x"], 1),
        (["mail", "x", "--property", "priority=256"], 2),
        (["mail", "x", "--property", "timestamp=18446744073709551616"], 2),
        (["mail", "x", "--property", "priority=high"], 2),
        (["mail", "x", "--property", "delivery_mode=1"], 2),
        (["mail", "x", "--property", f"message_id={'x' * 256}"], 2),
        (["mail", "x", "--tag", "t"], 2),
        (["mail", "x", "--queue", "0"], 2),
    ],
)
def test_a_refused_put_changes_nothing(tmp_path: Path, options: list[str], code: int) -> None:
    """Opening for writing acts like a server's start, so everything is checked first."""
    folder = _queue(tmp_path / "vhost")
    before = contents(folder)
    assert run("put", folder, *options).code == code
    assert contents(folder) == before


def test_transient_messages_are_dropped_only_on_request(rabbit: Any) -> None:
    """A server drops them when it starts; the tool asks first."""
    fixture = rabbit("rabbitmq-clean")
    before = contents(fixture.folder)
    lines = run("dump", "--json", fixture.folder).lines
    transient = [line for line in lines if not line["persistent"]]
    assert transient
    for command in (["put", fixture.folder, "q.mixed", "x"], ["rebuild", "--apply", fixture.folder]):
        ran = run(*command)
        assert (ran.code, f"would drop {len(transient)} transient messages" in ran.talk) == (1, True)
    assert contents(fixture.folder) == before
    assert run("rebuild", "--apply", "--drop-transient", fixture.folder).code == 6
    kept = [line["msg_id"] for line in run("dump", "--json", fixture.folder).lines]
    assert kept == [line["msg_id"] for line in lines if line["persistent"]]
    assert run("rebuild", "--apply", fixture.folder).code == 0
    assert run("rebuild", "--apply", "--drop-transient", "missing").code == 3


def test_rebuild_shows_what_it_would_drop(rabbit: Any) -> None:
    """The plan counts messages and transient ones, and changes nothing."""
    fixture = rabbit("rabbitmq-clean")
    before = contents(fixture.folder)
    lines = run("dump", "--json", fixture.folder).lines
    ran = run("rebuild", "--plan", "--json", fixture.folder)
    transient = sum(not line["persistent"] for line in lines)
    assert (ran.code, ran.json["messages"], ran.json["transient"], ran.json["applied"]) == (0, len(lines), transient, False)
    assert f"{transient} transient messages would be dropped" in run("rebuild", "--plan", fixture.folder).out
    assert contents(fixture.folder) == before


def test_after_a_kill_the_clean_stop_files_are_rebuilt(tmp_path: Path) -> None:
    """A server then need not read every message when it starts."""
    folder = _queue(tmp_path / "vhost")
    whole = run("info", "--json", folder).json
    for name in ("msg_store_persistent/clean.dot", "recovery.dets"):
        (folder / name).unlink()
    assert run("info", "--json", folder).json["clean_stop"] is False
    ran = run("rebuild", "--apply", "--json", folder)
    assert (ran.code, ran.json["messages"], ran.json["dropped"]) == (0, 1, 0)
    assert all((folder / name).exists() for name in ran.json["rebuilt"])
    assert run("info", "--json", folder).json == whole


def test_a_server_on_the_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that it has only in memory are in no file, and nothing may be written beside it."""
    folder = _queue(tmp_path / "vhost")
    monkeypatch.setattr(type(REAL_DISK), "writers", lambda _self, _folder: (Writer(17, "beam.smp"),))
    for command in (["ls", folder], ["import", folder, "--to", tmp_path / "new", "--small"]):
        ran = run(*command)
        assert (ran.code, "a server runs on this folder (beam.smp, process 17)" in ran.talk) == (0, True)
    before = contents(folder)
    for command in (["put", folder, "mail", "x"], ["rebuild", "--apply", folder]):
        ran = run(*command)
        assert (ran.code, "StoreLocked" in ran.talk, "rabbitmqctl stop" in ran.talk) == (4, True, True)
    assert contents(folder) == before


def test_a_node_with_its_virtual_hosts(rabbit: Any, tmp_path: Path) -> None:
    """A node's data folder works; one of several hosts must be named."""
    vhost = rabbit("rabbitmq-clean").folder
    node = tmp_path / "node"
    shutil.copytree(vhost, node / "msg_stores" / "vhosts" / "one")
    assert run("ls", "--json", node).json == run("ls", "--json", vhost).json
    with RabbitStore.open(str(node / "msg_stores" / "vhosts" / "two"), "x", vhost="second") as store:
        store.declare_queue("q")
    assert run("ls", node).code == 3
    assert run("ls", "--json", "--vhost", "second", node).json["queues"][0]["vhost"] == "second"


def _damage(folder: Path) -> None:
    """Tear the last message of a message file."""
    path = max((folder / "msg_store_persistent").glob("*.rdq"), key=lambda one: one.stat().st_size)
    path.write_bytes(path.read_bytes()[:-50])


def test_damage_is_reported_and_repaired(rabbit: Any) -> None:
    """Exit codes are 1, 6 and then 0; everything else stays readable."""
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


def test_a_damaged_table_is_repaired_with_nothing_dropped(rabbit: Any) -> None:
    """The exit code is 7."""
    folder = rabbit("rabbitmq-clean").folder
    (folder / "msg_store_persistent" / "clean.dot").write_bytes(b"nonsense")
    count = len(run("dump", "--json", folder).lines)
    assert run("verify", folder).code == 1
    assert run("recover", "--apply", folder).code == 7
    assert verify(str(folder)).ok
    assert len(run("dump", "--json", folder).lines) == count


def test_a_folder_in_use_can_be_read_but_not_recovered(tmp_path: Path) -> None:
    """Recovery needs the lock; reading does not."""
    folder = str(tmp_path / "vhost")
    with RabbitStore.open(folder, "a") as store:
        store.declare_queue("q")
        store.publish("q", b"x" * 5000)
        store.sync()
        _damage(Path(folder))
        assert run("recover", "--apply", folder).code == 4
        assert run("ls", folder).code in (0, 1)
