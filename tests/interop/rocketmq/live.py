"""What the tests of live brokers share: a store of ours that real clients use, replicas in processes of their own, and amounts.

`make live-night` runs the same tests with more of everything: BROKERSTORE_LIVE messages in a scenario, BROKERSTORE_REPLICATED
between a master and a replica, and BROKERSTORE_KILLS kills of each side.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from messagestore import MessageStore, StoreConfig
from rocketlink import BrokerServer
from tests.serving import free_ports

from .folders import JAVA_NAMES
from .jvm import VERSION, Jvm, prepare_or_skip, why_not
from .real_broker import CLUSTER, NAME, client

CLIENT_VERSION = os.environ.get("BROKERSTORE_CLIENT", VERSION)  # of the Java clients
LIVE = int(os.environ.get("BROKERSTORE_LIVE", "3000"))
REPLICATED = int(os.environ.get("BROKERSTORE_REPLICATED", "20000"))
KILLS = int(os.environ.get("BROKERSTORE_KILLS", "2"))
PATIENCE_S = 120 + LIVE // 200 + REPLICATED // 500 + 30 * KILLS  # on a busy machine
MARKS = [
    pytest.mark.slow,
    pytest.mark.timeout(600 + 2 * PATIENCE_S),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]
NIGHT = pytest.mark.skipif(LIVE < 50_000, reason="it waits for time limits of the clients; make live-night has it")
LOG_FILE_SIZE = 1 << 20 if max(LIVE, REPLICATED) < 100_000 else 1 << 26
SIZES = dict(zip(JAVA_NAMES, (LOG_FILE_SIZE, 20_000, 5_000, 20_000), strict=True))
CONFIG = StoreConfig(
    mapped_file_size_commit_log=LOG_FILE_SIZE, mapped_file_size_consume_queue=20_000, max_hash_slot_num=5_000,
    max_index_num=20_000, transaction_timeout_ms=1000,
)  # fmt: skip
QUEUES = 4
REPLICA = """
import sys, time
from rocketlink import Replica
from storageio.local_sockets import PeerGone
while True:
    try:
        replica = Replica("127.0.0.1", int(sys.argv[1]), sys.argv[2], from_start=True)
        break
    except PeerGone:  # the broker is starting again
        time.sleep(0.1)
with replica:
    replica.wait_for_end()
"""
STREAM = """
import os, sys, time
from pyspark.errors import StreamingQueryException
from tests.sparkstore.stream_driver import session
folder, out, stop = sys.argv[1:]
spark = session()
def start(**trigger):
    options = {"columns": "queue_id,queue_offset,body", "topic": "flood"}
    stream = spark.readStream.format("brokerstore").options(**options).load(folder).writeStream.format("parquet")
    return stream.option("checkpointLocation", out + "-checkpoint").trigger(**trigger).start(out)
failed = 0
while True:  # a query that failed, mostly because a worker had no time to start, goes on from its checkpoint
    is_last = os.path.exists(stop)
    query = start(availableNow=True) if is_last else start(processingTime="0 seconds")
    try:
        while not query.awaitTermination(0.5) and (is_last or not os.path.exists(stop)):
            pass
        query.stop()
        if is_last:
            break
    except StreamingQueryException as error:
        failed += 1
        print("the stream begins again:", str(error)[:300], flush=True)
        assert failed <= 20
print(failed, "queries failed", flush=True)
"""
MASTER = """
import contextlib, sys, time
from commitlog import Message
from messagestore import MessageStore
from rocketlink import HaMaster, RemoteError
from storageio.local_sockets import PeerGone
from tests.interop.rocketmq.live import CONFIG
folder, (port, slave, first, count, pauses) = sys.argv[1], map(int, sys.argv[2:])
with MessageStore.open(folder, "a", CONFIG) as store, HaMaster(store, port=port) as master:
    for number in range(first, 1 << 62):
        if number < count:
            store.put(Message("T", b"%d" % number, queue_id=number % 2, keys=[f"k{number}"]))
            print(number, flush=True)
        if number >= count or number % max(1, count // pauses) == 0:
            time.sleep(0.05)
            if not master.slaves:
                with contextlib.suppress(PeerGone, RemoteError):
                    master.invite("127.0.0.1", slave)
                    time.sleep(1)
"""


class Served:
    """A store that a server of this process offers to real clients."""

    def __init__(self, folder: Path, config: StoreConfig = CONFIG, *, version: str = CLIENT_VERSION) -> None:
        """Start the server and one JVM of clients of a version."""
        prepare_or_skip(VERSION, version)
        self._scratch, self._version = folder, version
        self.folder = folder / "store"
        self.store = MessageStore.open(self.folder, "a", config)
        self.server = BrokerServer(self.store, names_port=0, name=NAME, cluster=CLUSTER)
        self._jvms: list[Jvm] = []
        self.clients = self.another()

    def another(self) -> Jvm:
        """Start another JVM of clients."""
        jvm = client(f"127.0.0.1:{self.server.names_port}", self.server.address, self._scratch, version=self._version)
        self._jvms.append(jvm)
        jvm.answer()
        return jvm

    def invoke(self, do: str, **arguments: Any) -> Any:
        """Send a command to the first JVM and return the answer."""
        return self.clients.invoke(do, **arguments)

    def members(self, group: str) -> list[str]:
        """Return the ids of the clients that are members of a consumer group."""
        return self.server._requests.clients.member_ids(group)

    def end(self) -> None:
        """Kill the clients, and close the server and the store."""
        for jvm in self._jvms:
            jvm.end()
        self.server.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class Delivery(NamedTuple):
    """One message that a consumer of `java/Consumers.java` has processed."""

    name: str
    queue_id: int
    queue_offset: int
    tries: int
    body: int


def deliveries(file: Path) -> list[Delivery]:
    """Return what consumers have written to their file, in the order of processing."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    found = []
    for line in lines:
        if line.endswith("\n"):
            name, *numbers = line.split()
            found.append(Delivery(name, *map(int, numbers)))
    return found


def processed(file: Path) -> int:
    """Return how many deliveries there were; quick, because the server in this process needs the lock of the interpreter."""
    return file.read_bytes().count(b"\n") if file.exists() else 0


def missing(file: Path, count: int) -> int:
    """Return how many of the bodies from 0 to `count` were not processed; of a file that is too short, at least how many."""
    short = count - processed(file)
    return short if short > 0 else count - len({one.body for one in deliveries(file)})


def repeated(found: list[Delivery]) -> int:
    """Return how many deliveries were not the first of their message."""
    return sum(times - 1 for times in Counter(one.body for one in found).values())


def start_replica(port: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that replicates from the broker on a port."""
    return subprocess.Popen([sys.executable, "-c", REPLICA, str(port), str(folder)])


class Streaming:
    """A Spark driver of its own that streams what a replica has into Parquet files."""

    def __init__(self, folder: Path) -> None:
        """Start it beside the replica that writes the folder."""
        self._out, self._stop = folder.with_name("stream"), folder.with_name("stop-streaming")
        self.process = subprocess.Popen([sys.executable, "-c", STREAM, *map(str, (folder, self._out, self._stop))])

    def rows(self) -> list[tuple[int, int, bytes]]:
        """Let it read the rest, and return queue id, offset and body of each row, sorted."""
        import pyarrow.dataset

        self._stop.touch()
        assert self.process.wait(PATIENCE_S) == 0, "the stream failed"
        table = pyarrow.dataset.dataset(self._out, format="parquet").to_table()
        columns = (table[name].to_pylist() for name in ("queue_id", "queue_offset", "body"))
        return sorted(zip(*columns, strict=True))


class Putting:
    """A process of ours that puts numbered messages and is the master of a real slave; it may be killed and started again."""

    def __init__(self, folder: Path, slave_port: int, count: int, pauses: int) -> None:
        """Start it; it puts `count` messages and sleeps `pauses` times in between."""
        self._folder, self._numbers = folder, folder.with_name("numbers")
        self._arguments = [str(number) for number in (free_ports(1)[0], slave_port)]
        self._count, self._pauses = count, pauses
        self.start()

    def start(self) -> None:
        """Go on behind the last message that was acknowledged; one more may be stored."""
        arguments = [*self._arguments, str(self.acknowledged), str(self._count), str(self._pauses)]
        with self._numbers.open("ab") as stream:
            command = [sys.executable, "-c", MASTER, str(self._folder), *arguments]
            self._process = subprocess.Popen(command, stdout=stream)

    @property
    def acknowledged(self) -> int:
        """The number of the next message, according to the puts that have returned."""
        lines = self._numbers.read_bytes().splitlines(keepends=True) if self._numbers.exists() else []
        whole = [line for line in lines[-2:] if line.endswith(b"\n")]
        return int(whole[-1]) + 1 if whole else 0

    def kill(self) -> None:
        """Kill it; it must have been alive."""
        assert self._process.poll() is None, "it ended by itself"
        self._process.kill()
        self._process.wait()
        data = self._numbers.read_bytes()
        self._numbers.write_bytes(data[: data.rfind(b"\n") + 1])


def log_of(folder: Path, end: int) -> bytes:
    """Return the bytes of a folder's log up to an offset."""
    return b"".join(file.read_bytes() for file in sorted((folder / "commitlog").iterdir()))[:end]
