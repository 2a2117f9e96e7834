"""Quorum queues of RabbitMQ 4.0.5 equal what the restarted server delivered."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from rabbitstore.quorum import quorum_nodes
from rabbitstore.quorum.check import check_node
from storageio import UnsupportedFormat
from tests.rabbitstore.later import make_later_machine
from tests.rabbitstore.stream.test_stream_fixtures import plain

MADE_AT_DELIVERY = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count")


def digest_of(row: dict[str, Any], published: dict[str, dict[str, Any]]) -> str:
    """Return the SHA-256 of a delivered body: by the fixtures' rule unless the account has it."""
    sent = published[row["message_id"]]
    text = hashlib.sha256(f"{sent['tag']}:{sent['n']}".encode()).hexdigest()
    body = (text * (sent["size"] // len(text) + 1))[: sent["size"]].encode()
    return row.get("sha256", hashlib.sha256(body).hexdigest())


def stored(properties: dict[Any, Any]) -> dict[Any, Any]:
    """Drop the headers that the server makes at delivery."""
    headers = properties.get("headers", {})
    kept = {name: plain(value) for name, value in headers.items() if not name.startswith(MADE_AT_DELIVERY)}
    rest = {name: plain(value) for name, value in properties.items() if name not in ("headers", "message_id")}
    return rest | {"headers": kept}


def test_every_message_is_what_the_server_delivered(real: tuple[Path, dict[str, Any]]) -> None:
    """Order, id, body, route, properties, headers, redelivered flag and delivery count are equal in every queue."""
    path, manifest = real
    published = {f"m{row['n']}": row for row in manifest["published"]}
    names = {name for name, row in manifest["queues"].items() if row["type"] == "quorum"}
    (node,) = quorum_nodes(str(path))
    with node:
        assert {queue.queue for queue in node.queues()} == names
        for queue in node.queues():
            delivered = manifest["queues"][queue.queue]["delivered"]
            found = [message for message in queue.messages() if message.state != "dead_lettered"]
            assert [message.properties["message_id"] for message in found] == [row["message_id"] for row in delivered]
            for message, row in zip(found, delivered, strict=True):
                expected = row.get("properties", published[row["message_id"]]["properties"])
                assert stored(message.properties) == stored(expected), queue.queue
                assert (message.exchange, message.routing_keys[0]) == (row["exchange"], row["routing_key"])
                assert hashlib.sha256(message.body).hexdigest() == digest_of(row, published)
                assert message.redelivered == row["redelivered"]
                headers = expected.get("headers", {})
                if manifest["server"] == "RabbitMQ 4.3.6":  # shows both counts
                    reported = headers.get("x-acquired-count", 0), headers.get("x-delivery-count", 0)
                    assert (message.acquired_count, message.delivery_count) == reported
                    continue
                counted = (message.acquired_count or message.delivery_count) + (message.state == "checked_out")
                assert counted == headers.get("x-delivery-count", 0)
        assert node.problems == []


def test_a_killed_server_left_messages_with_its_consumers(folders: dict[str, tuple[Path, dict[Any, Any]]]) -> None:
    """The consumer that was at work holds all messages of its queue."""
    (node,) = quorum_nodes(str(folders["rabbitmq4-killed"][0]))
    with node:
        queue = next(one for one in node.queues() if one.queue == "q.live")
        found = list(queue.messages())
        assert {message.state for message in found} == {"checked_out"}
        assert {message.consumer.partition(".")[0] for message in found} == {"ctag1"}  # pika's names


def test_a_queue_missing_from_the_server_table_is_listed(folders: dict[str, tuple[Path, dict[Any, Any]]]) -> None:
    """All messages that were confirmed and not settled are there; the missing row of the table is reported."""
    path, manifest = folders["rabbitmq4-young"]
    sent = [f"m{row['n']}" for row in manifest["published"] if "q.fan" in row["queues"] and row["confirmed"]]
    settled = [name for _kind, name in manifest["settled"]["q.fan"]]
    (node,) = quorum_nodes(str(path))
    with node:
        (queue,) = node.queues()
        found = [message.properties["message_id"] for message in queue.messages()]
        assert (queue.vhost, queue.queue) == ("/", "q.fan")
        assert found == [name for name in sent if name not in settled]
        checked = check_node(node)
        assert [problem.kind for problem in checked.problems] == ["unregistered_queue"] and checked.notes == []


def test_a_healthy_node_has_no_problem(real: tuple[Path, dict[str, Any]]) -> None:
    """Every record, entry and state passes, and every queue is registered."""
    (node,) = quorum_nodes(str(real[0]))
    with node:
        checked = check_node(node)
        assert (checked.problems, checked.notes) == ([], []) and checked.entries > checked.messages
        assert checked.messages == sum(len(list(queue.messages())) for queue in node.queues())


def test_a_snapshot_and_the_whole_log_agree(folders: dict[str, tuple[Path, dict[Any, Any]]]) -> None:
    """Starting from the checkpoint or from the snapshot gives the same messages."""
    (node,) = quorum_nodes(str(folders["rabbitmq4-quorum-snapshot"][0]))
    with node:
        queue = next(one for one in node.queues() if one.queue == "q.roll")
        every = [message.to_json() for message in queue.messages()]
        newest = queue.snapshots()[0]
    (node,) = quorum_nodes(str(folders["rabbitmq4-quorum-snapshot"][0]))
    with node:
        queue = next(one for one in node.queues() if one.queue == "q.roll")
        older = queue._read_snapshot(f"{queue.uid}/snapshots/0000000000000001_00000000000016AE/snapshot.dat")
        queue.snapshots = lambda: [older]
        assert newest.index == 0x1783 and older.index == 0x16AE
        assert [message.to_json() for message in queue.messages()] == every


def test_a_later_machine_is_refused_by_number(folders: dict[str, tuple[Path, dict[Any, Any]]], tmp_path: Path) -> None:
    """Queues and names are listed; reading names the version."""
    shutil.copytree(folders["rabbitmq43-clean"][0] / "quorum", tmp_path / "quorum")
    make_later_machine(tmp_path)
    (node,) = quorum_nodes(str(tmp_path))
    with node:
        assert len(node.queues()) > 5
        with pytest.raises(UnsupportedFormat, match="queue machine version 9"):
            list(node.queues()[0].messages())
        assert {problem.kind for problem in check_node(node).problems} == {"unsupported_format"}
