"""What a new log takes over from the old one: settings, term, machine version, and the marks of its records."""

from __future__ import annotations

import contextlib
import shutil

import pytest

from rabbitstore import apply_recovery
from rabbitstore.node_folder import NodeFolder
from rabbitstore.quorum.encode import LogRecord, wal_pieces
from rabbitstore.quorum.wal import WalScan

from .test_quorum_damage import flip, wal_of


@pytest.fixture
def copy(folders, tmp_path):
    """Return a function that copies the quorum queues of a fixture's node."""

    def make(kind):
        shutil.copytree(folders[kind][0] / "quorum", tmp_path / "node/quorum")
        return tmp_path / "node"

    return make


def logs(node):
    """Return version, settings and terms of each queue."""
    with contextlib.closing(NodeFolder(str(node), "/")) as folder:
        return {queue.queue: _log(queue) for queue in folder.quorum_queues}


def _log(queue):
    settings = queue.last_settings()
    command = None if settings is None else settings.decode()[2]
    return queue.machine().version, command, [entry.term for entry in queue.entries().values()]


def test_settings_and_machine_version_of_a_damaged_log(copy):
    """A leader would apply the entries by other rules, and without the limits."""
    node = copy("rabbitmq4-streams")
    before = logs(node)
    (path,) = (node / "quorum").iterdir()
    record = next(
        row
        for row in WalScan(wal_of(path).read_bytes(), "", [], []).records()
        if row.uid.startswith("2F_QFA") and row.index == 4
    )
    flip(wal_of(path), record.at + record.size // 2)
    apply_recovery(str(node))
    after = logs(node)
    assert after["q.fan"][2] != before["q.fan"][2] and before["q.fan"][1] is not None
    assert after["q.fan"][:2] == before["q.fan"][:2]


def test_the_term_of_a_log_is_restored_from_its_snapshot_alone(copy):
    """A new log of an earlier term would be overwritten by its own elections."""
    node = copy("rabbitmq4-quorum-snapshot")
    (path,) = (node / "quorum").iterdir()
    (folder,) = path.glob("2F_QRO*")
    for file in (*folder.glob("*.segment"), wal_of(path)):
        file.unlink()
    apply_recovery(str(node))
    assert logs(node)["q.roll"][2][1] == 1  # the folder of the snapshot has the term in its name


def test_a_rewritten_log_keeps_the_truncate_mark_of_a_record(copy):
    """The log is written again because of a bad head; a leader's mark stays in it."""
    node = copy("rabbitmq4-streams")
    (path,) = (node / "quorum").iterdir()
    last = list(WalScan(wal_of(path).read_bytes(), "", [], []).records())[-1]
    newer = path / "00000009.wal"
    newer.write_bytes(b"".join(wal_pieces([LogRecord(last.uid, last.index, last.term, b"\x83j", True)])))
    flip(newer, 0)
    apply_recovery(str(node))
    assert [row.truncates for row in WalScan(newer.read_bytes(), "", [], []).records()] == [True]


@pytest.mark.parametrize("has_marker", [False, True])
def test_the_names_of_new_segments_are_as_long_as_the_server_reads_them(copy, has_marker):
    """Eight digits; a server of 4.3 that renamed all files reads only those with sixteen."""
    node = copy("rabbitmq4-streams")
    (path,) = (node / "quorum").iterdir()
    if has_marker:
        (path / "segment_name_upgrade_marker").touch()
    record = next(row for row in WalScan(wal_of(path).read_bytes(), "", [], []).records() if row.index == 4)
    flip(wal_of(path), record.at + record.size // 2)
    apply_recovery(str(node))
    expected = "0000000000000001.segment" if has_marker else "00000001.segment"
    assert [file.name for file in (path / record.uid).glob("*.segment")] == [expected]
