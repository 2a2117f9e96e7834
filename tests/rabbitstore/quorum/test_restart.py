"""Queues of a killed 4.0.5 that differ most between the log and the next start: `manifest.json` has what that start delivered.

The folders have one queue each; their write-ahead logs were written again with its records alone.
"""

from __future__ import annotations

import contextlib
import json

import pytest

from rabbitstore import apply_recovery
from rabbitstore.node_folder import NodeFolder
from tests.archives import unpack
from tests.helpers import overwrite
from tests.rabbitstore.conftest import DATA

from .test_quorum_damage import flip


@pytest.fixture
def killed(tmp_path):
    """Return the folder of the tests' files and the server's account."""
    unpack(DATA / "rabbitmq4-restart.tar.xz", tmp_path)
    return tmp_path, json.loads((tmp_path / "manifest.json").read_text())


def delivered(node):
    """Return id and number of deliveries of each message that a start delivers, in order."""
    with contextlib.closing(NodeFolder(str(node), "/")) as folder:
        (queue,) = folder.quorum_queues
        counts = {message.index: message.acquired for message in queue.restarted().ready()}
        return [
            [message.properties["message_id"], counts[message.seq_id]] for message in queue.messages() if not message.reason
        ]


@pytest.mark.parametrize("kind", ["order", "limit"])
def test_messages_delivered_at_the_restart_equal_the_manifest(kind, killed):
    """A consumer that the leader did not know at its election got what another one held, before it ended as well."""
    folder, manifest = killed
    assert delivered(folder / kind) == manifest[kind]["delivered"]


def test_a_lost_meta_table_changes_only_the_counts(killed):
    """Without the last applied entry the leader knows no process, and all end in the order of their entries."""
    folder, manifest = killed
    next((folder / "order").glob("quorum/*/meta.dets")).unlink()
    assert sorted(row[0] for row in delivered(folder / "order")) == sorted(row[0] for row in manifest["order"]["delivered"])


@pytest.mark.parametrize("at", [0, 6, 10, 200])
def test_a_new_log_keeps_what_fits_the_limit(at, killed):
    """The start drops seven messages that consumers held, above the limit of 14; a new log must not drop others."""
    folder, manifest = killed
    node = folder / "limit"
    flip(next(node.glob("quorum/*/*/checkpoints/*/snapshot.dat")), at)
    apply_recovery(str(node))
    assert sorted(row[0] for row in delivered(node)) == sorted(row[0] for row in manifest["limit"]["delivered"])
    with contextlib.closing(NodeFolder(str(node), "/")) as opened:
        assert opened.check().problems == []


def test_a_queue_alone_on_its_node_gets_a_new_log(killed):
    """No other queue has the version of the machine; the oldest one with the queue's commands is raised by the next leader."""
    node = killed[0] / "limit"
    before = delivered(node)
    wal = next(node.glob("quorum/*/00000001.wal"))
    overwrite(wal, wal.read_bytes().index(b"noop"), b"poon")
    flip(next(node.glob("quorum/*/*/checkpoints/*/snapshot.dat")), 6)
    plan = apply_recovery(str(node))
    assert not plan.unrepaired
    assert sorted(row[0] for row in before) == sorted(row[0] for row in delivered(node))
