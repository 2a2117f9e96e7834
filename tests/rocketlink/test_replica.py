"""A replica behind a master: equal logs, pieces of any size, masters that changed, and what a master sends wrongly."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import FlushMode, MessageStore, StoreConfig
from rocketlink import BrokerServer, HaMaster, MasterDiffers, Replica
from rocketlink.ha import master as master_module
from storageio import StoreError
from storageio.local_sockets import PeerGone
from storageio.testing import WrappedDisk
from tests.helpers import until
from tests.rocketlink.fake_broker import FakeBroker
from tests.stores import small_config

SIZES = {"mappedFileSizeCommitLog": 16_384, "mappedFileSizeConsumeQueue": 2000, "maxHashSlotNum": 100, "maxIndexNum": 400}
CONFIG = small_config(mapped_file_size_commit_log=16_384)


def put(store: MessageStore, count: int, topic: str = "T") -> None:
    for number in range(count):
        store.put(Message(topic, b"%d" % number, keys=[f"k{number}"], queue_id=number % 2))


def log_of(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((folder / "commitlog").iterdir()))


def bodies(store: MessageStore, topic: str = "T") -> list[bytes]:
    store.engine.settle()
    return sorted(message.body for queue_id in store.queue_ids(topic) for message in store.read(topic, queue_id))


class Master:
    """A store that is served to replicas, with the broker that they ask."""

    def __init__(self, folder: Path, config: StoreConfig = CONFIG) -> None:
        self.store = MessageStore.open(folder, "a", config)
        self.link = HaMaster(self.store)
        self.broker = FakeBroker(self.link.port, **SIZES)
        self.tell()

    def tell(self) -> int:
        """Let the broker name the log's range."""
        self.broker.log = (self.store.engine.low_offset, max(self.store.log_end, 0))
        return self.store.log_end

    def delete_before(self, offset: int) -> None:
        """Delete the oldest files of the log."""
        self.store.flush()
        self.store.engine.settle()
        self.store.delete_before(offset)
        assert self.store.engine.low_offset == offset

    def __enter__(self) -> Master:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()
        self.broker.__exit__()
        self.store.close()


def test_a_replica_has_the_masters_log_byte_by_byte(tmp_path: Path) -> None:
    """Before and after it connects, over several files; queues and index are its own work."""
    with Master(tmp_path / "m") as master:
        put(master.store, 300)
        master.tell()
        with Replica("127.0.0.1", master.broker.port, tmp_path / "s", from_start=True) as replica:
            assert replica.wait(master.store.log_end, 20)
            put(master.store, 200)
            assert replica.wait(master.tell(), 20)
            assert bodies(replica.store) == bodies(master.store)
            assert [found.body for found in replica.store.query("T", "k7")] == [b"7", b"7"]
            assert replica.status.lag_bytes == 0
            end = master.store.log_end
            until(lambda: [one.reported for one in master.link.slaves] == [end])
    assert end > 3 * 16_384
    assert log_of(tmp_path / "s")[:end] == log_of(tmp_path / "m")[:end]


@pytest.mark.parametrize("options", [{"transient_store_pool_enable": True}, {"flush_disk_type": FlushMode.SYNC}])
def test_a_master_sends_only_what_its_files_have(tmp_path: Path, options: dict[str, Any]) -> None:
    """What is still in the pool's memory would arrive as zeros."""
    config = small_config(mapped_file_size_commit_log=16_384, **options)
    with Master(tmp_path / "m", config) as master:
        put(master.store, 5)
        master.tell()
        with Replica("127.0.0.1", master.broker.port, tmp_path / "s", from_start=True) as replica:
            for _ in range(8):
                put(master.store, 50)
                end = master.tell()
                assert replica.wait(end, 20)
            assert bodies(replica.store) == bodies(master.store)
    assert log_of(tmp_path / "s")[:end] == log_of(tmp_path / "m")[:end]


def test_an_empty_replica_begins_with_the_last_file(tmp_path: Path) -> None:
    """As a real slave does; older messages stay with the master."""
    with Master(tmp_path / "m") as master:
        put(master.store, 300)
        end = master.tell()
        with Replica("127.0.0.1", master.broker.port, tmp_path / "s") as replica:
            assert replica.wait(end, 20)
            assert replica.store.engine.low_offset == end // 16_384 * 16_384


def test_a_replica_resumes_at_its_last_record(tmp_path: Path) -> None:
    """It asks for its last record again, and stores nothing twice."""
    with Master(tmp_path / "m") as master:
        for part in range(3):
            put(master.store, 70 + part)
            end = master.tell()
            with Replica("127.0.0.1", master.broker.port, tmp_path / "s", from_start=True) as replica:
                assert replica.wait(end, 20)
    assert log_of(tmp_path / "s")[:end] == log_of(tmp_path / "m")[:end]


def test_a_replica_reconnects(tmp_path: Path) -> None:
    """A connection that ends is no error."""
    with Master(tmp_path / "m") as master:
        put(master.store, 10)
        with Replica("127.0.0.1", master.broker.port, tmp_path / "s", from_start=True) as replica:
            assert replica.wait(master.tell(), 20)
            master.link.close()
            put(master.store, 10)
            master.link = HaMaster(master.store, port=master.link.port)
            assert replica.wait(master.tell(), 20)
            assert replica.status.connections == 2


IMAGES_MAX = 60


class Snapshots(WrappedDisk):
    """A disk that copies the folder before each call that changes something, as a kill there would leave it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.images: list[Path] = []
        self.seen: set[bytes] = set()
        self.guard = threading.Lock()

    def before(self, operation: str, path: str) -> None:
        if operation in ("list", "stat", "open", "read", "size", "map", "space", "lock") or len(self.images) >= IMAGES_MAX:
            return
        with self.guard, contextlib.suppress(FileNotFoundError):  # another thread renames a file
            self.take()

    def take(self) -> None:
        """Copy the folder unless there is a copy like it."""
        files = sorted(file for file in self.folder.rglob("*") if file.is_file() and file.name != "lock")
        content = [(str(file.relative_to(self.folder)), file.read_bytes()) for file in files]
        key = hashlib.sha256(repr(content).encode()).digest()
        if key not in self.seen:
            self.seen.add(key)
            image = self.folder.with_name(f"image-{len(self.images)}")
            shutil.copytree(self.folder, image, ignore=shutil.ignore_patterns("lock"))  # closing it would lose the lock
            self.images.append(image)


@pytest.mark.deep
@pytest.mark.parametrize("first", [0, 16_384 * 2])
@pytest.mark.parametrize("from_start", [False, True])
def test_a_replica_that_was_killed_in_its_first_steps_starts_again(tmp_path: Path, first: int, from_start: bool) -> None:
    """After any call of them; also if the master has a new file by then, and if it deleted its oldest one."""
    (tmp_path / "s").mkdir()
    with Master(tmp_path / "m") as master:
        put(master.store, 600)
        master.delete_before(first)
        disk, end = Snapshots(tmp_path / "s"), master.tell()
        with Replica("127.0.0.1", master.broker.port, tmp_path / "s", from_start=from_start, disk=disk) as replica:
            assert replica.wait(end, 20)
        for step in range(3):
            end = master.tell()
            for image in disk.images:
                position = image.with_name(f"again-{step}-{image.name}")
                shutil.copytree(image, position)
                with Replica("127.0.0.1", master.broker.port, position, from_start=from_start) as replica:
                    assert replica.wait(end, 20), image
                    low = replica.store.engine.low_offset
                assert (
                    log_of(position)[: end - low] == log_of(tmp_path / "m")[low - master.store.engine.low_offset :][: end - low]
                )
            if step == 0:
                put(master.store, 600)
            else:
                master.delete_before(16_384 * 3)
                logs = {image: log_of(image) for image in disk.images if (image / "commitlog").exists()}
                disk.images = [image for image, log in logs.items() if log.strip(b"\0") == b""]
                assert disk.images


@pytest.mark.parametrize("first", [0, 16_384 * 2])
@pytest.mark.parametrize("from_start", [False, True])
@pytest.mark.parametrize("has_moved", [False, True])
def test_a_replica_with_an_empty_first_file_starts_again(tmp_path: Path, first: int, from_start: bool, has_moved: bool) -> None:
    """It was killed before the first byte; the master may have deleted that part of its log meanwhile."""
    position = tmp_path / "s" / "commitlog"
    position.mkdir(parents=True)
    (position / f"{first:020d}").write_bytes(bytes(16_384))
    (tmp_path / "s" / "abort").touch()
    with Master(tmp_path / "m") as master:
        put(master.store, 600)
        if has_moved:
            master.delete_before(16_384 * 3)
        low, end = master.store.engine.low_offset, master.tell()
        assert low == (16_384 * 3 if has_moved else 0)
        with Replica("127.0.0.1", master.broker.port, tmp_path / "s", from_start=from_start) as replica:
            assert replica.wait(end, 20)
            begin = replica.store.engine.low_offset
            assert replica.store.query("T", "k599")
    assert begin == (first if not has_moved else low if from_start else end // 16_384 * 16_384)
    assert log_of(tmp_path / "s")[: end - begin] == log_of(tmp_path / "m")[begin - low :][: end - begin]
    with MessageStore.open(tmp_path / "s", "r") as store:
        assert store.engine.low_offset == begin


@pytest.mark.parametrize("count", [2, 9])
def test_a_master_that_was_replaced_is_refused(tmp_path: Path, count: int) -> None:
    """Shorter, or longer with other bytes: the replica names the offset and keeps its log."""
    with Master(tmp_path / "m") as master:
        put(master.store, 5)
        with Replica("127.0.0.1", master.broker.port, tmp_path / "s", from_start=True) as replica:
            assert replica.wait(master.tell(), 20)
        end = replica.status.durable_end
    before = log_of(tmp_path / "s")[:end]
    time.sleep(0.002)  # the other log has other store times
    with Master(tmp_path / "other") as master:
        put(master.store, count)
        master.tell()
        with Replica("127.0.0.1", master.broker.port, tmp_path / "s") as replica, pytest.raises(MasterDiffers, match="offset"):
            replica.wait(1 << 40, 20)
    assert log_of(tmp_path / "s")[:end] == before


def test_an_error_ends_the_wait_for_a_replica(tmp_path: Path) -> None:
    """The command `replicate` shows it. A replica knows how far it is behind."""
    with Master(tmp_path / "m") as master:
        put(master.store, 5)
        master.tell()
        with Replica("127.0.0.1", master.broker.port, tmp_path / "s", from_start=True) as replica:
            assert replica.wait(master.store.log_end, 20)
            assert replica.status._replace(master_end=replica.status.log_end + 7).lag_bytes == 7
    with Master(tmp_path / "other") as master:
        master.tell()
        with Replica("127.0.0.1", master.broker.port, tmp_path / "s") as replica, pytest.raises(MasterDiffers):
            replica.wait_for_end()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("brokerstore-replica")]


def test_a_master_sends_heartbeats_and_refuses_hosts_that_are_not_admitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave without new bytes hears of it; one host too many, and one that is not admitted, is disconnected."""
    monkeypatch.setattr(master_module, "REPORT_EVERY_S", 0.01)
    monkeypatch.setattr(master_module, "SLAVES_MAX", 1)
    with MessageStore.open(tmp_path / "m", "a", CONFIG) as store, HaMaster(store) as link:
        with socket.create_connection(("127.0.0.1", link.port)) as slave:
            slave.settimeout(20)
            slave.sendall(struct.pack(">q", 0))
            assert slave.recv(12, socket.MSG_WAITALL) == struct.pack(">qi", 0, 0)
            with socket.create_connection(("127.0.0.1", link.port)) as other:
                other.settimeout(20)
                assert other.recv(1) == b""
        with (
            HaMaster(store, admits=lambda _host: False) as closed,
            socket.create_connection(("127.0.0.1", closed.port)) as other,
        ):
            other.settimeout(20)
            assert other.recv(1) == b""


def test_a_broker_that_is_away_is_named(tmp_path: Path) -> None:
    """Nothing is created for it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(PeerGone, match=str(port)):
        Replica("127.0.0.1", port, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_topics_groups_and_offsets_are_replicated(tmp_path: Path) -> None:
    """The tables of the master's broker replace those here; what it refuses stays."""
    with Master(tmp_path / "m") as master:
        put(master.store, 5)
        topic = {"topicName": "T", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
        master.broker.bodies[21] = json.dumps({"dataVersion": {"counter": 4}, "topicConfigTable": {"T": topic}}).encode()
        master.broker.bodies[43] = b'{"dataVersion":{"counter":1},"offsetTable":{"T@g":{0:2,1:1}}}'
        with Replica("127.0.0.1", master.broker.port, tmp_path / "s", from_start=True, metadata_every_s=0.05) as replica:
            assert replica.wait(master.tell(), 20)
            until(lambda: replica.store.committed_offsets("T", "g") == {0: 2, 1: 1})
            master.broker.bodies[43] = b'{"dataVersion":{"counter":2},"offsetTable":{"T@g":{0:3,1:1}}}'
            until(lambda: replica.store.committed_offsets("T", "g") == {0: 3, 1: 1})
            master.broker.bodies[43] = b'{"offsetTable":[]}'
            rounds = master.broker.requested.count(43)
            until(lambda: master.broker.requested.count(43) > rounds + 2)
            assert replica.store.committed_offsets("T", "g") == {0: 3, 1: 1}
    with MessageStore.open(tmp_path / "s", "r") as store:
        assert store.engine.topics.get("T").write_queues == 3  # type: ignore[union-attr]
        assert store.committed_offsets("T", "g") == {0: 3, 1: 1}


def test_a_topic_that_is_newer_than_the_fetched_table_has_its_messages(tmp_path: Path) -> None:
    """Also after a restart; only a master may take a topic that its table lacks for a deleted one."""
    with Master(tmp_path / "m") as master:
        put(master.store, 5)
        master.broker.bodies[21] = json.dumps({"topicConfigTable": {"T": {"topicName": "T"}}}).encode()
        for count in (4, 6):
            with Replica("127.0.0.1", master.broker.port, tmp_path / "s", from_start=True) as replica:
                until(lambda replica=replica: replica.store.engine.topics.names() == ["T"])  # type: ignore[misc]
                put(master.store, count, "late")
                assert replica.wait(master.tell(), 20)
                assert bodies(replica.store, "late") == bodies(master.store, "late")


def test_a_replica_that_is_closed_has_the_newest_tables(tmp_path: Path) -> None:
    """They are fetched a last time, so that a promoted folder has the offsets that belong to the end of its log."""
    with Master(tmp_path / "m") as master:
        put(master.store, 5)
        with Replica("127.0.0.1", master.broker.port, tmp_path / "s", from_start=True, metadata_every_s=1000) as replica:
            assert replica.wait(master.tell(), 20)
            until(lambda: 45 in master.broker.requested)  # the first round is over
            master.broker.bodies[43] = b'{"offsetTable":{"T@g":{0:3}}}'
    with MessageStore.open(tmp_path / "s", "r") as store:
        assert store.committed_offsets("T", "g") == {0: 3}


@pytest.mark.parametrize(
    ("send", "error"),
    [
        (lambda log: struct.pack(">qi", 0, -1), "frame"),
        (lambda log: struct.pack(">qi", 0, 1 << 30), "frame"),
        (lambda log: struct.pack(">qi", -5, 4), "frame"),
        (lambda log: struct.pack(">qi", 0, 16) + log[:16] + struct.pack(">qi", 17, 4) + log[17:21], "differs"),
        (lambda log: struct.pack(">qi", 0, 400) + log[:50] + bytes([log[50] ^ 1]) + log[51:400], "log bytes"),
    ],
)
def test_invalid_data_from_a_master_does_not_change_the_replica(
    tmp_path: Path, send: Callable[[bytes], bytes], error: str
) -> None:
    """The replica ends with a named error, and its log has no byte of it."""
    with MessageStore.open(tmp_path / "m", "a", CONFIG) as store:
        put(store, 3)
    data = send(log_of(tmp_path / "m"))
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server.accept()[0] as connection:
            connection.recv(8)
            connection.sendall(data)
            connection.recv(8)

    threading.Thread(target=serve, daemon=True).start()
    with (
        server,
        FakeBroker(server.getsockname()[1], (0, 1000), **SIZES) as broker,
        Replica("127.0.0.1", broker.port, tmp_path / "s") as replica,
        pytest.raises(StoreError, match=error),
    ):
        replica.wait(1 << 40, 20)
    assert not any(log_of(tmp_path / "s"))


def test_a_batch_of_a_topic_that_is_new_gets_its_batch_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of topics was fetched before the topic existed; it is fetched again before its first batch is appended.

    For later batches it is not.
    """
    fetched: list[int] = []
    fetch = Replica._fetch_now

    def fetch_counted(replica: Replica) -> None:
        fetched.append(1)
        fetch(replica)

    monkeypatch.setattr(Replica, "_fetch_now", fetch_counted)
    with MessageStore.open(tmp_path / "m", "a", CONFIG) as store, BrokerServer(store) as server:
        store.put("T", b"0", queue_id=0)
        folder = tmp_path / "s"
        with Replica("127.0.0.1", server.port, folder, from_start=True, metadata_every_s=1000) as replica:
            assert replica.wait(store.log_end, 20)
            until(lambda: "T" in replica.store.engine.topics)
            store.create_topic("B", 1, attributes={"queue.type": "BatchCQ"})
            record = Message("B", b"two", queue_id=0, sys_flag=0x80, properties={"INNER_NUM": "2"})
            for _ in range(2):
                store.put(record)
                assert replica.wait(store.log_end, 20)
                assert len(fetched) == 2
            assert bodies(replica.store, "B") == bodies(store, "B") == [b"two", b"two"]
            assert replica.store.max_offset("B", 0) == store.max_offset("B", 0) == 4
