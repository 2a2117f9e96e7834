"""Every writer rejects unknown formats with a specific error and changes no byte."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from brokerstore.migrate import export_to_rabbit
from commitlog import Message
from messagestore import MessageStore, StoreConfig
from rabbitstore import RabbitSettings, RabbitStore, apply_recovery, plan_recovery, verify
from storageio import DiskError, StoreError, UnsupportedFormat
from storageio.testing import WrappedDisk
from tests.archives import unpack
from tests.brokerstore.tool import run
from tests.helpers import tree

from .conftest import DATA
from .later import PLANTS, VHOST, marks, node_of, restore

OLD = ("rabbitmq-clean", "rabbitmq-v2")
LATER = ("rabbitmq4-clean", "rabbitmq4-killed", "rabbitmq43-clean")
LARGE = ("18PFRXGVXXG0ZIS281F2ZCGPH", "BGRIRRI733GZZGP0F653VU17V", "E7D7TRJ0WEKD4VY1HVOHVGX7M")  # thousands of messages
UNKNOWN_STORE = 3


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    """Each fixture, unpacked once without its largest queues, and the name of its first queue."""
    found = {}
    for kind in (*OLD, *LATER):
        folder = tmp_path_factory.mktemp(kind)
        unpack(DATA / f"{kind}.tar.xz", folder)
        above = folder / "node" / VHOST if kind in LATER else folder / "vhost"
        for queue in LARGE:
            shutil.rmtree(above / "queues" / queue, ignore_errors=True)
        found[kind] = folder
    return found


@pytest.fixture(scope="session")
def log(tmp_path_factory):
    """A RocketMQ store with one message to import."""
    path = tmp_path_factory.mktemp("log") / "store"
    with MessageStore.open(str(path), "a", StoreConfig.small()) as store:
        store.put(Message("t", b"body"))
    return path


def _writers(vhost: Path, log: Path):
    """Return (name, call) of each writing call of the library."""
    path = str(vhost)
    return {
        "open r+": lambda: RabbitStore.open(path, "r+").close(),
        "open a": lambda: RabbitStore.open(path, "a").close(),
        "plan_recovery": lambda: plan_recovery(path),
        "apply_recovery": lambda: apply_recovery(path),
        "export_to_rabbit": lambda: export_to_rabbit(str(log), path),
    }


def _commands(vhost: Path, log: Path):
    """Return each writing command of the tool."""
    queue = RabbitStore.open(str(vhost), "r").queues()[0].queue
    return [
        ["put", vhost, queue, "body"],
        ["put", vhost, queue, "body", "--drop-transient"],
        ["rebuild", "--apply", vhost],
        ["rebuild", "--apply", vhost, "--drop-transient"],
        ["recover", vhost],
        ["recover", vhost, "--apply"],
        ["recover", vhost, "--apply", "--json"],
        ["import", log, "--to-rabbit", vhost],
    ]


def _refused_by_all(vhost: Path, log: Path, *, commands: bool = True) -> None:
    """Every writing call raises `UnsupportedFormat`, every command exits with 3, and no file changes."""
    node = vhost.parents[2]
    marked = marks(node.parent)
    for name, call in _writers(vhost, log).items():
        with pytest.raises(UnsupportedFormat, match="unsupported format"):
            call()
        assert marks(node.parent) == marked, name
    for command in _commands(vhost, log) if commands else ():
        ran = run(*command)
        assert (ran.code, "unsupported" in ran.talk) == (UNKNOWN_STORE, True), (command, ran)
        assert marks(node.parent) == marked, command


@pytest.fixture
def copied(sources, tmp_path_factory, request):
    """The virtual host of the fixture `kind` in its node's folder, restored after each test."""
    kind = request.getfixturevalue("kind")
    if kind not in _COPIES:
        above, pristine = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("pristine")
        node_of(kind, sources[kind], pristine / "node")
        shutil.copytree(pristine, above, dirs_exist_ok=True)
        _COPIES[kind] = above, pristine
    above, pristine = _COPIES[kind]
    yield above / "node" / VHOST
    restore(above, pristine)


_COPIES = {}
_BEFORE = {}  # the verification of each unchanged copy


@pytest.mark.deep
@pytest.mark.parametrize("kind", [*OLD, *LATER])
@pytest.mark.parametrize("plant", PLANTS)
def test_writers_refuse_unknown_formats_and_files(log, copied, kind, plant):
    """Each unknown version, magic, term, flag or file is rejected by name, without changing a byte."""
    vhost = copied
    if not PLANTS[plant](vhost):
        pytest.skip(f"{kind} has no place for it")
    _refused_by_all(vhost, log)


@pytest.mark.parametrize("plant", [name for name in PLANTS if "flag" not in name])
@pytest.mark.parametrize("kind", [*OLD, "rabbitmq43-clean"])
def test_verify_reports_unknown_formats_but_not_as_problems(copied, kind, plant):
    """It is neither damage nor loss: only a note is added, and the message count stays."""
    vhost = copied
    if kind not in _BEFORE:
        _BEFORE[kind] = verify(str(vhost))
    before = _BEFORE[kind]
    if not PLANTS[plant](vhost):
        pytest.skip(f"{kind} has no place for it")
    found = verify(str(vhost))
    assert set(found.problems) <= set(before.problems) and len(found.lost) <= len(before.lost)
    if plant != "message term in the transient store":  # for messages without a reference
        assert len(found.notes) > len(before.notes) and not found.ok
        assert run("verify", vhost).code == (1 if found.problems else UNKNOWN_STORE)


def _persistent(vhost: Path):
    with RabbitStore.open(str(vhost), "r") as store:
        return {
            queue.queue: [(one.content, one.priority, one.expiry_us) for one in store.messages(queue.queue) if one.persistent]
            for queue in store.queues()
        }


@pytest.mark.parametrize("has_evidence", [True, False])
@pytest.mark.parametrize("kind", LATER)
def test_folders_of_rabbitmq_4_are_written_without_losing_a_message(sources, tmp_path, kind, has_evidence):
    """Opened, written to and closed, clean and killed folders keep every persistent message."""
    vhost = node_of(kind, sources[kind], tmp_path / "node")
    if not has_evidence:
        (tmp_path / "node-feature_flags").unlink()
        (vhost / "msg_store_persistent/clean.dot").unlink(missing_ok=True)
    before = _persistent(vhost)
    for _attempt in range(2):
        with RabbitStore.open(str(vhost), "r+") as store:
            assert store.lost == []
            store.declare_queue("new")
            store.publish("new", b"body")
        assert verify(str(vhost)).problems == []
    found = _persistent(vhost)
    assert [content.body for content, _priority, _expiry in found.pop("new")] == [b"body"] * 2
    assert found == before
    assert run("recover", "--apply", vhost).code == 0
    assert _persistent(vhost).keys() == {*before, "new"}


@pytest.mark.deep
@pytest.mark.parametrize("kind", LATER)
def test_readers_do_not_change_folders_of_rabbitmq_4(sources, log, tmp_path, kind):
    """No reading command changes a byte of the node's folder."""
    vhost = node_of(kind, sources[kind], tmp_path / "node")
    before = tree(tmp_path)
    for command in ("info", "ls", "stats", "verify", "dump", "tail", "recover"):
        for options in ([], ["--json"]):
            ran = run(command, *options, tmp_path / "node")
            assert ran.code in (0, 1, 3), (command, ran)
    run("query", tmp_path / "node", "c.props", "m1")
    run("get", tmp_path / "node", "--queue", "c.props", "--offset", "0")
    run("report", tmp_path / "node", "--out", tmp_path / "page.html")
    run("import", tmp_path / "node", "--to", tmp_path / "imported")
    run("export", tmp_path / "node", "--out", tmp_path / "rows.jsonl")
    assert {name: data for name, data in tree(tmp_path).items() if name.startswith("node")} == before
    assert vhost.exists()


class FailsToSync(WrappedDisk):
    """A disk on which syncs of a journal can fail."""

    is_failing = False

    def before(self, operation, path):
        if self.is_failing and operation == "sync" and path.endswith("journal.jif"):
            raise DiskError(operation, path, errno.EIO, "input/output error")


def test_the_sync_failure_marker_is_not_an_unknown_file(tmp_path):
    """The mark of a failed sync does not make the next opening reject the folder."""
    disk = FailsToSync()
    store = RabbitStore.open(str(tmp_path), disk=disk, settings=RabbitSettings(index_version=1))
    store.declare_queue("q")
    store.publish("q", b"first")
    store.sync()
    disk.is_failing = True
    with pytest.raises(StoreError):
        store.publish("q", b"second")
        store.sync()
    store.abandon()
    assert [path.name for path in tmp_path.rglob("sync_failed")] == ["sync_failed"]
    assert verify(str(tmp_path)).problems == []
    with RabbitStore.open(str(tmp_path)) as again:
        assert again.get("q").body == b"first"
    assert list(tmp_path.rglob("sync_failed")) == []
