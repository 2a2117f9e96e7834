"""Folders of RabbitMQ 3.8.9 and 3.10.8, stopped and killed: all queues equal what the restarted server delivered.

`tests/interop/rabbitmq4/test_years.py` makes new ones.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rabbitstore import apply_recovery, plan_recovery
from rabbitstore.format.config_text import parse_config
from rabbitstore.format.terms import Atom
from rabbitstore.node_folder import NodeFolder
from rabbitstore.quorum import quorum_nodes
from rabbitstore.quorum.check import check_node
from rabbitstore.quorum.snapshot import read_snapshot
from rabbitstore.quorum.wal import WalScan
from storageio import StoreCorrupt
from tests.archives import unpack
from tests.brokerstore.tool import run
from tests.interop.rabbitmq4.years import DEAD, LOGGED, Row, listed, read_delivered

from .conftest import DATA
from .later import marks

KINDS = {"rabbitmq38-clean": 0, "rabbitmq38-killed": 0, "rabbitmq310-clean": 2, "rabbitmq310-killed": 2}
KILLED = [kind for kind in KINDS if kind.endswith("killed")]
STREAMS = {name: found for name, found in LOGGED.items() if name.startswith("s")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Unpack each folder once."""
    found = {}
    for kind in KINDS:
        found[kind] = tmp_path_factory.mktemp(kind)
        unpack(DATA / f"{kind}.tar.xz", found[kind])
    return found


@pytest.fixture
def copy(folders: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies a node's folder with what lies beside it."""
    return lambda kind: shutil.copytree(folders[kind], tmp_path / kind) / "node"


def rows_of(node: Path) -> dict[str, list[Row]]:
    """Return what is listed at the time of the deliveries."""
    made_us, expected = read_delivered(node.parent / "delivered.json")
    return listed(node, {name: STREAMS.get(name, {}) for name in expected}, made_us)


@pytest.mark.parametrize("kind", KINDS)
def test_every_message_is_what_the_server_delivered(kind: str, folders: dict[str, Path]) -> None:
    """Order, ids, bodies, properties, routes and redelivered flags; the start itself may add dead letters."""
    node = folders[kind] / "node"
    _made_us, expected = read_delivered(node.parent / "delivered.json")
    found = rows_of(node)
    expected[DEAD] = expected[DEAD][: len(found[DEAD])]
    assert found == expected and sum(map(len, found.values())) > 130
    assert any(row.redelivered for row in found["q.held"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_folder_needs_nothing(kind: str, copy: Callable[[str], Path]) -> None:
    """The folder is intact, and `recover` changes no file of it."""
    node = copy(kind)
    assert run("verify", node).code == 0
    before = marks(node)
    assert run("recover", "--apply", node).code == 0
    assert marks(node) == before


@pytest.mark.parametrize("kind", KINDS)
def test_the_machine_has_the_version_of_the_release(kind: str, folders: dict[str, Path]) -> None:
    """Nothing of it is guessed."""
    (node,) = quorum_nodes(str(folders[kind] / "node"))
    with node:
        queues = node.queues()
        assert [queue.machine().version for queue in queues] == [KINDS[kind]] * len(queues) and len(queues) >= 6
        assert all(queue.has_version for queue in queues)


def _change(pattern: str, change: Callable[[bytes], bytes | None]) -> Callable[[Path], None]:
    def damage(node: Path) -> None:
        file = max(node.glob(pattern), key=lambda one: one.stat().st_size)
        data = change(file.read_bytes())
        file.unlink()
        if data is not None:
            file.write_bytes(data)

    return damage


def _bit_of_a_message(data: bytes) -> bytes:
    records = [record for record in WalScan(data, "", [], []).records() if b"basic_message" in data[record.at : record.stop]]
    at = records[len(records) // 2].stop - 3
    return data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]


def _half_of_the_records(data: bytes) -> bytes:
    """Cut the log as an older copy of it ends."""
    records = list(WalScan(data, "", [], []).records())
    return data[: records[len(records) // 2].stop]


WAL, CONFIG = "quorum/*/*.wal", "quorum/*/*/config"
DAMAGES = {
    "a bit of a message": _change(WAL, _bit_of_a_message),
    "a zeroed log": _change(WAL, lambda data: bytes(len(data))),
    "an empty log": _change(WAL, lambda data: b""),
    "a cut log": _change(WAL, _half_of_the_records),
    "names.dets is missing": _change("quorum/*/names.dets", lambda data: None),
    "names.dets is zeros": _change("quorum/*/names.dets", lambda data: bytes(len(data))),
    "meta.dets is empty": _change("quorum/*/meta.dets", lambda data: b""),
    "a config is missing": _change(CONFIG, lambda data: None),
    "a config is empty": _change(CONFIG, lambda data: b""),
    "a config is zeros": _change(CONFIG, lambda data: bytes(len(data))),
}
QUICK = ("a bit of a message", "names.dets is missing")


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.deep) for name in DAMAGES])
@pytest.mark.parametrize("kind", KILLED)
def test_a_damaged_folder_is_recovered(kind: str, name: str, copy: Callable[[str], Path]) -> None:
    """What is listed before is listed afterwards, in a log of the same version, and nothing is left to repair."""
    node = copy(kind)
    DAMAGES[name](node)
    assert run("verify", node).code == 1 or name == "a cut log"  # that of a server which was killed earlier
    before = rows_of(node)
    apply_recovery(str(node))
    after = rows_of(node)
    assert Counter(row[:2] for rows in after.values() for row in rows) == Counter(
        row[:2] for rows in before.values() for row in rows
    )
    with contextlib.closing(NodeFolder(str(node), "/")) as folder:
        assert folder.check().problems == []
        assert {queue.machine().version for queue in folder.quorum_queues if len(queue.entries())} <= {KINDS[kind]}
    assert plan_recovery(str(node)).steps == []


def test_a_version_that_is_lost_is_that_of_the_settings(copy: Callable[[str], Path]) -> None:
    """The entry with the version means nothing: commands and settings show what can have written them."""
    for kind in KILLED:
        node = copy(kind)
        _change(WAL, lambda data: data.replace(b"noop", b"noap"))(node)
        with contextlib.closing(NodeFolder(str(node), "/")) as folder:
            versions = {queue.oldest_version() for queue in folder.quorum_queues if len(queue.entries())}
        assert versions == {KINDS[kind]}


def test_a_latin_1_config_of_3_8_is_a_problem(copy: Callable[[str], Path]) -> None:
    """The server writes a name in Latin-1, and does not start such a queue again; 3.10 does."""
    for kind, code in (("rabbitmq38-killed", 1), ("rabbitmq310-killed", 0)):
        node = copy(kind)
        file = next(file for file in node.glob(CONFIG) if b"q.plain" in file.read_bytes())
        file.write_bytes(
            file.read_bytes().replace(b".\n", b".\n%% \xe4\n") + (b"" if b".\n" in file.read_bytes() else b"% \xe4\n")
        )
        before = rows_of(node)
        assert run("verify", node).code == code
        plan = plan_recovery(str(node))
        assert [step.kind for step in plan.steps if step.kind == "write_config"] == ["write_config"] * code
        apply_recovery(str(node))
        assert run("verify", node).code == 0 and rows_of(node) == before
        assert file.read_bytes().isascii() == bool(code)


def test_a_compressed_state_is_read(tmp_path: Path) -> None:
    """Before ra 2.1 a snapshot is compressed; a state of another size than it says is damage."""
    meta = b"\x83t\0\0\0\x04" + b"".join(
        (b"w\x05indexa\x07", b"w\x04terma\x01", b"w\x07clusterj", b"w\x0fmachine_versiona\x00")
    )
    for size, is_good in ((5, True), (6, False), (4, False), (1 << 31, False)):
        state = b"\x83P" + size.to_bytes(4, "big") + zlib.compress(b"w\x03end")
        body = len(meta).to_bytes(4, "big") + meta + state
        data = memoryview(b"RASN\x01" + zlib.crc32(body).to_bytes(4, "big") + body)
        if is_good:
            assert read_snapshot(data, "snapshot.dat").state == "end"
        else:
            with pytest.raises(StoreCorrupt):
                read_snapshot(data, "snapshot.dat")


def test_a_real_snapshot_of_3_8_has_headers_only(tmp_path: Path) -> None:
    """Its 146 messages have no index; the entries behind it settle all, and what they leave is what the server delivered.

    Segments before the snapshot, which the server was about to delete, are not in the archive.
    """
    unpack(DATA / "rabbitmq38-snapshot.tar.xz", tmp_path)
    (node,) = quorum_nodes(str(tmp_path / "node"))
    with node:
        (queue,) = node.queues()
        start, first = queue._start()
        held = [message for _tag, message in start.held()]
        assert len([*start.ready(), *held]) == 146 and all(message.index < 0 for message in [*start.ready(), *held])
        assert first == 130960 and len({message.index for message in [*start.ready(), *held]}) == 146
        found = [[message.body.decode(), message.redelivered] for message in queue.messages()]
        assert found == json.loads((tmp_path / "delivered.json").read_text()) and len(found) == 137
        assert check_node(node).problems == []


def test_a_damaged_record_before_a_snapshot_leaves_no_gap(tmp_path: Path) -> None:
    """Nothing reads the entry, but servers of 3.8 and 3.10 write none of the log to a segment when one is missing.

    A real 3.10.8 reported `segment_writer: 1 failures encountered` for a log that was written without the record.
    """
    unpack(DATA / "rabbitmq38-snapshot.tar.xz", tmp_path)
    file = min((tmp_path / "node").glob(WAL))
    data = bytearray(file.read_bytes())
    records = [record for record in WalScan(bytes(data), "", [], []).records() if record.index < 130960]
    damaged = records[len(records) // 2]
    data[damaged.at + 3] ^= 1
    file.write_bytes(data)
    plan = apply_recovery(str(tmp_path / "node"))
    assert plan.cost.log_entries_lost == 0 and [step.kind for step in plan.steps] == ["rewrite_wal", "commit_staged"]
    found = [record.index for record in WalScan(file.read_bytes(), "", [], []).records() if record.uid == damaged.uid]
    assert found == list(range(records[0].index, found[-1] + 1))
    (node,) = quorum_nodes(str(tmp_path / "node"))
    with node:
        (queue,) = node.queues()
        rows = [[message.body.decode(), message.redelivered] for message in queue.messages()]
        assert rows == json.loads((tmp_path / "delivered.json").read_text())
        assert check_node(node).problems == []


@pytest.mark.parametrize("has_model", [True, False])
def test_a_lost_config_of_a_coordinator_of_3_10(has_model: bool, copy: Callable[[str], Path]) -> None:
    """It names the server's folder, without which no stream is served; a quorum queue's `config` names it, too."""
    node = copy("rabbitmq310-killed")
    (file,) = node.glob("coordination/*/*/config")
    before = parse_config(file.read_bytes(), "")
    file.unlink()
    if not has_model:
        shutil.rmtree(node / "quorum")
    plan = apply_recovery(str(node))
    left = [one.finding.kind for one in plan.unrepaired if one.finding.file.startswith("coordination/")]
    assert left == ["bad_queue_config"] * (not has_model) and file.exists() == has_model
    if has_model:
        after = parse_config(file.read_bytes(), "")
        for config in (before, after):  # the archive's server had other limits for the logs of quorum queues
            del config[Atom("system_config")][Atom("wal_max_size_bytes")]
        assert after == before
