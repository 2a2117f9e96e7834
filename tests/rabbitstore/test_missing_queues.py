"""A declared queue without its folder is reported: a server starts it empty, so nothing else shows the loss."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from rabbitstore import plan_recovery
from rabbitstore.declared import declaration_problems
from rabbitstore.definitions import read_definitions
from rabbitstore.khepri.store import rows
from rabbitstore.quorum.wal import WalScan
from tests.archives import unpack
from tests.brokerstore.tool import run
from tests.cases import unpack_case

from .conftest import DATA
from .later import forget, node_of

NODES = ("rabbitmq4-streams", "rabbitmq4-clean", "rabbitmq4-killed", "rabbitmq4-quorum-snapshot", "rabbitmq43-clean")
CASES = ("rabbit-clean-3.8.9", "rabbit-dlx-3.10.8", "rabbit-quorum-latin1-4.0.5")
YEARS = ("rabbitmq38-killed", "rabbitmq310-clean")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Return the folders of servers of five releases by name."""
    above = tmp_path_factory.mktemp("declared")
    found = {name: unpack_case(name, above / name).folder for name in CASES}
    for name in (*NODES, *YEARS):
        unpack(DATA / f"{name}.tar.xz", above / name / "source")
        node_of(name, above / name / "source", above / name / "node")
        found[name] = above / name / "node"
    return found


@pytest.fixture
def copied(nodes, tmp_path):
    """Return a function that copies one of them."""
    return lambda name: Path(shutil.copytree(nodes[name], tmp_path / "node"))


@pytest.mark.parametrize("name", [*NODES, *CASES])
def test_a_healthy_node_has_every_declared_queue(name, nodes):
    """Clean and killed, of 3.8 to 4.3; version 1 makes no folder for a queue without messages."""
    assert declaration_problems(str(nodes[name])) == []


@pytest.mark.parametrize("name", ["rabbitmq4-streams", "rabbitmq4-killed", *CASES[1:]])
def test_a_queue_missing_from_an_older_table_requires_an_operator(name, copied):
    """A server delivers none of its messages, while `dump` lists them."""
    node = copied(name)
    forget(node, b"amqqueue")
    listed = {line["queue"] for line in run("dump", "--json", node).lines if line.get("persistent", True)}
    found = declaration_problems(str(node))
    assert {problem.kind for problem in found} == {"undeclared_queue"}
    expected = {problem.expected for problem in found if not problem.file.startswith("stream/")}
    assert all(
        any(text.endswith(f"for {queue!r}") for text in expected) for queue in listed if not queue.startswith(("s.", "str"))
    )
    assert sum(problem.file.startswith("stream/") for problem in found) == len(list(node.glob("stream/*")))
    assert run("verify", node).code == 1
    recovered = run("recover", node)
    assert recovered.code == 1 and "not repaired: " in recovered.out


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("rabbit-quorum-latin1-4.0.5", "quorum"),
        ("rabbit-quorum-latin1-4.0.5", "quorum/*"),
        ("rabbitmq4-streams", "stream"),
        ("rabbitmq4-streams", "stream/*"),
        ("rabbitmq4-clean", "msg_stores/vhosts/*/queues/*"),
        ("rabbit-dlx-3.10.8", "msg_stores/vhosts/*/queues"),
        ("rabbitmq43-clean", "quorum"),
        ("rabbitmq43-clean", "quorum/*"),
        ("rabbitmq43-clean", "stream/*"),
        ("rabbitmq43-clean", "msg_stores/vhosts/*/queues"),
        ("rabbitmq43-clean", "msg_stores/vhosts/*/queues/*"),
    ],
)
def test_a_queue_without_its_folder_is_not_intact(name, folder, copied):
    """`verify` names it, and `recover` leaves it to a person: the messages are in no file."""
    node = copied(name)
    shutil.rmtree(next(node.glob(folder)))
    verified = run("verify", node)
    assert verified.code == 1 and "missing queue" in verified.out
    recovered = run("recover", node)
    assert recovered.code == 1 and "not repaired: " in recovered.out


def test_a_renamed_node_has_neither_its_quorum_queues_nor_its_streams(tmp_path):
    """After `rabbitmqctl rename_cluster_node` and a start 3.10.8 delivered `c1` and `c2`, and had no node of `q1` and `s1`."""
    unpack(DATA / "rabbitmq310-renamed.tar.xz", tmp_path)
    node = tmp_path / "node"
    found = {one["kind"]: one for one in run("verify", "--json", node).json["problems"]}
    assert set(found) == {"undeclared_queue", "unregistered_stream"}
    quorum = found["undeclared_queue"]
    assert quorum["file"].startswith("quorum/old@localhost/") and "'q1'" in quorum["expected"]
    assert found["unregistered_stream"]["file"].startswith("stream/__s1_")
    assert Counter(line["queue"] for line in run("dump", "--json", node).lines) == dict.fromkeys(("c1", "c2", "q1", "s1"), 4)
    assert "not repaired: " in run("recover", node).out


def test_a_node_that_began_anew_with_another_name_has_only_its_own_declarations(tmp_path):
    """4.3.6 starts on the folder of another name as a new node, and knows none of the queues `c1`, `c2`, `q1` and `s1`."""
    unpack(DATA / "rabbitmq43-moved.tar.xz", tmp_path)
    node = tmp_path / "node"
    assert read_definitions(str(node)).content["queues"] == []
    assert ("undeclared_queue", "a declaration for 'q1'") in {
        (one.kind, one.expected) for one in declaration_problems(str(node))
    }
    shutil.rmtree(node / "coordination" / "second@localhost")
    assert sorted(one["name"] for one in read_definitions(str(node)).content["queues"]) == ["c1", "c2", "q1", "s1"]


def test_queues_missing_from_an_older_log_of_khepri_require_an_operator(copied):
    """The log is whole again after `recover`, and a server of 4.3.6 delivers nothing of the queues that `dump` lists."""
    node = copied("rabbitmq43-clean")
    (file,) = node.glob("coordination/*/*.wal")
    data = file.read_bytes()
    records = {one.position: data[one.at : one.stop] for one in WalScan(data, "", [], []).records()}
    file.write_bytes(data[: next(at for at, command in records.items() if b"amqqueue" in command and b"p_data" in command)])
    listed = run("dump", "--json", node).lines
    assert {problem.kind for problem in declaration_problems(str(node))} == {"applied_ahead"}
    assert run("verify", node).code == 1
    run("recover", node, "--apply")
    verified = run("verify", node)
    assert verified.code == 1 and "undeclared queue" in verified.out
    found = declaration_problems(str(node))
    folders = [path for pattern in ("queues/*", "stream/*") for path in node.glob(f"**/{pattern}") if path.is_dir()]
    assert {problem.kind for problem in found} == {"undeclared_queue"} and len(found) > len(folders) > 3
    assert run("dump", "--json", node).lines == listed
    recovered = run("recover", node)
    assert recovered.code == 1 and "not repaired: " in recovered.out


@pytest.mark.parametrize("table", ["internal_user", "user_permission"])
def test_khepri_without_users_or_permissions_is_not_intact(table, copied, monkeypatch):
    """As Mnesia without them: a server refuses everybody."""
    node = copied("rabbitmq43-clean")
    monkeypatch.setattr("rabbitstore.khepri.store.rows", lambda tree: [row for row in rows(tree) if not row or row[0] != table])
    (found,) = declaration_problems(str(node))
    assert (found.file, found.kind) == ("coordination", {"internal_user": "missing_user"}.get(table, "missing_permission"))


def test_a_deleted_queue_is_not_reported_as_missing(copied):
    """Its row ends with the deletion."""
    node = copied("rabbitmq4-streams")
    log = node / "LATEST.LOG"
    data = log.read_bytes()
    assert declaration_problems(str(node)) == []
    shutil.rmtree(node / "stream")
    assert {problem.kind for problem in declaration_problems(str(node))} == {"missing_queue"}
    log.write_bytes(data[:8])
    (node / "rabbit_durable_queue.DCD").write_bytes(data[:8])
    assert "missing_queue" not in {problem.kind for problem in declaration_problems(str(node))}


@pytest.mark.parametrize("name", ["Тема-é", os.fsdecode(b"caf\xe9")])
def test_a_folder_that_belongs_to_no_queue_requires_an_operator(name, copied):
    """Its name is the hash of no queue's name, and need not be UTF-8; a server deletes such folders when it starts."""
    node = copied("rabbit-dlx-3.10.8")
    folder = next(node.glob("msg_stores/vhosts/*/queues/*"))
    shutil.copytree(folder, folder.with_name(name))
    assert run("verify", node).code == 1
    assert run("recover", node, "--apply").code in (1, 7)  # the tables of the clean stop do not know the copy
    recovered = run("recover", node)
    assert recovered.code == 1 and "a person has to decide: " in recovered.talk


@pytest.mark.parametrize("name", ["rabbit-quorum-latin1-4.0.5", "rabbitmq4-clean", "rabbit-dlx-3.10.8"])
def test_the_name_of_a_queue_is_restored_from_the_metadata(name, copied):
    """Also where no routing key of a message is the queue's name."""
    node = copied(name)
    for path in node.glob("msg_stores/vhosts/*/queues/*/.queue_name"):
        text = path.read_bytes()
        path.write_bytes(bytes(len(text)))
        assert run("recover", node, "--apply").code == 7
        assert text.startswith(path.read_bytes())  # an empty queue has no index that shows the version
    assert run("verify", node).code == 0


@pytest.mark.parametrize("name", ["rabbitmq38-killed", "rabbitmq310-clean", "rabbitmq4-clean", "rabbitmq43-clean"])
def test_a_folder_without_its_name_is_listed_as_the_server_serves_it(name, copied):
    """3.8.9, 3.10.8, 4.0.5 and 4.3.6 look for the folder by the hash of the declared name, also of one that is not ASCII."""
    node = copied(name)
    listed = run("dump", "--json", node).lines
    files = list(node.glob("msg_stores/vhosts/*/queues/*/.queue_name"))
    for path in files:
        path.unlink()
    assert run("dump", "--json", node).lines == listed
    assert len(files) > 10 and "bad queue name" in run("verify", node).out


def test_without_the_metadata_a_folder_without_its_name_is_listed_under_its_own(copied):
    """A hash leads to no name; the folder of one virtual host has no metadata beside it."""
    node = copied("rabbitmq4-clean")
    (vhost,) = node.glob("msg_stores/vhosts/*")
    path = next(path for path in sorted(vhost.glob("queues/*/.queue_name")) if any(path.parent.glob("*.qs")))
    path.unlink()
    shutil.rmtree(node / "coordination")
    for file in [*node.glob("*.DC*"), *node.glob("*.LOG")]:
        file.unlink()
    assert path.parent.name in {line["queue"] for line in run("dump", "--json", vhost).lines}


def test_a_copied_quorum_queue_folder_requires_an_operator(copied):
    """Its `config` names another folder; the name need not be UTF-8."""
    node = copied("rabbit-quorum-latin1-4.0.5")
    folder = next(path for path in node.glob("quorum/*/*") if path.is_dir())
    shutil.copytree(folder, folder.with_name(os.fsdecode(b"caf\xe9")))
    assert run("verify", node).code == 1
    assert run("recover", node, "--apply").code in (1, 6, 7)
    recovered = run("recover", node)
    assert recovered.code == 1 and "a person has to decide: " in recovered.talk


@pytest.mark.parametrize("name", ["rabbitmq4-killed", "rabbitmq43-clean", "rabbitmq4-quorum-snapshot"])
def test_messages_in_the_log_stay_listed_if_all_queue_folders_are_missing(name, copied):
    """Without any `config` no queue can be made again: `recover` changes nothing, and what the log has stays listed."""
    node = copied(name)
    for folder in [path for path in node.glob("quorum/*/*") if path.is_dir()]:
        has_segments = any(folder.glob("*.segment"))
        for path in folder.iterdir() if has_segments else [folder]:
            if path.suffix != ".segment":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    files = {path: path.read_bytes() for path in node.rglob("quorum/**/*") if path.is_file()}
    listed = run("dump", "--json", node).lines
    assert run("verify", node).code == 1
    recovered = run("recover", node, "--apply")
    assert recovered.code == 1 and "a person has to decide: " in recovered.talk
    assert {path: path.read_bytes() for path in node.rglob("quorum/**/*") if path.is_file()} == files
    assert run("dump", "--json", node).lines == listed


def test_a_registered_folder_with_segments_alone_is_read(copied):
    """Its `config` is made by the model of another queue's."""
    node = copied("rabbitmq4-quorum-snapshot")
    listed = {line["body_base64"] for line in run("dump", "--json", node).lines}
    folders = {path.parent for path in node.glob("quorum/*/*/*.segment")}
    folder = next(path for path in sorted(folders) if not any(path.glob("*/*/snapshot.dat")))
    for path in folder.iterdir():
        if path.suffix != ".segment":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert run("verify", node).code == 1
    run("recover", node, "--apply")
    assert run("verify", node).code == 0
    assert {line["body_base64"] for line in run("dump", "--json", node).lines} == listed


def test_a_new_log_for_a_later_server_has_its_file_names_and_end_index(copied):
    """4.3 started no queue whose log ends before the index in `writers.snapshot`, and names segments with 16 digits."""
    node = copied("rabbitmq43-clean")
    system = next(node.glob("quorum/*"))
    (system / "writers.snapshot").write_bytes(bytes.fromhex("837400000000"))
    wal = max(system.glob("*.wal"), key=lambda path: path.stat().st_size)
    data = bytearray(wal.read_bytes())
    data[len(data.rstrip(b"\0")) // 2] ^= 0xFF
    wal.write_bytes(data)
    plan = plan_recovery(str(node))
    names = [step.file.rpartition("/")[2] for step in plan.steps if step.kind == "rebuild_log"]
    assert names and set(map(len, names)) == {len("0000000000000001.segment")}
    assert any(step.kind == "move_aside" and step.file.endswith("/writers.snapshot") for step in plan.steps)
