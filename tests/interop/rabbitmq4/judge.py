"""Compare what a folder lists with what the real server delivers after a start on it."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from rabbitstore import RabbitStore
from rabbitstore.node_folder import NodeFolder
from rabbitstore.stream import StreamFolder
from rabbitstore.stream.scan import StreamScan
from storageio import StoreCorrupt

from .server import HOME, Server

HEARTBEAT_OFF = 0
_SETTLE_S = 2.0
_SURPLUS_S, _EMPTY_S, _STABLE_S = 1.0, 2.0, 6.0  # how long to wait for more after all, after none, and after a change
_PATIENCE_S = 20  # for a message that should come: a loaded machine is slow
_ATTEMPTS, _BETWEEN_S = 3, 3.0  # a queue may still elect its leader
STREAM_PREFETCH = 100
_FAILURES_SINCE = 8  # version of the queue machine from which x-delivery-count counts only failed deliveries
_DRAINS = 24  # connections at a time
_ADVANCED = "{rabbit, [{quorum_snapshot_interval, 64}, {quorum_min_checkpoint_interval, 64}]}"
_SETTINGS = "raft.wal_max_size_bytes = 300000\nraft.segment_max_entries = 128\n"


class Delivered(NamedTuple):
    """One message as a consumer gets it; `count` is the header x-delivery-count, which counts every return."""

    message_id: str | None
    body: bytes
    count: int


class Judge:
    """A server whose data folder can be saved and put back."""

    def __init__(self, name: str, shift: int, *, is_patient: bool = True, node_name: str = "", home: Path = HOME) -> None:
        """Prepare a node of its own name and ports, which writes segments and snapshots soon.

        One that is not patient expects queues that cannot be served.  The node's name is part of its folders, which only a
        node of the same name can serve.
        """
        self._patience_s, self._attempts = (_PATIENCE_S, _ATTEMPTS) if is_patient else (_STABLE_S, 1)
        self.server = Server(name, node_name=node_name or name, shift=shift, advanced=_ADVANCED, settings=_SETTINGS, home=home)

    @property
    def node(self) -> Path:
        """The node's data folder."""
        return self.server.node

    def save(self, target: Path) -> Path:
        """Copy the folder of the stopped node, and the feature flags beside it."""
        shutil.copytree(self.node, target)
        shutil.copy(f"{self.node}-feature_flags", f"{target}-feature_flags")
        return target

    def put_back(self, source: Path) -> None:
        """Let the node have a copy of a saved folder."""
        shutil.rmtree(self.server.outside / "mnesia")
        (self.server.outside / "mnesia").mkdir()
        shutil.copytree(source, self.node)
        shutil.copy(f"{source}-feature_flags", f"{self.node}-feature_flags")
        shutil.rmtree(self.server.outside / "log")  # has a folder in 3.8
        (self.server.outside / "log").mkdir()

    def connect(self) -> Any:
        """Return a connection to the node."""
        import pika

        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.server.port, heartbeat=HEARTBEAT_OFF))

    def start(self) -> str:
        """Start the node and wait for its elections; return an empty text, or why it did not start."""
        try:
            self.server.start()
        except AssertionError as error:
            self.server.abandon()
            return str(error) or "no start"
        time.sleep(_SETTLE_S)
        return ""

    def kill(self) -> None:
        """Kill the node without a stop."""
        self.server.end(signal.SIGKILL)

    def log(self) -> str:
        """Return the server's own log."""
        files = sorted((self.server.outside / "log").glob("*.log"))
        return "".join(file.read_text(errors="replace") for file in files)

    def drain(self, queue: str, kind: str, count: int) -> list[Delivered] | str:
        """Return what a queue delivers, or the error; `count` is the number of messages that it should have."""
        for attempt in range(self._attempts):
            time.sleep(_BETWEEN_S if attempt else 0)
            try:
                connection = self.connect()
                try:
                    take = _stream if kind == "stream" else _queue
                    return take(connection, queue, count, self._patience_s)
                finally:
                    with contextlib.suppress(Exception):
                        connection.close()
            except Exception as error:  # of pika: what the server answered is the result
                answer = f"{type(error).__name__} {error}"[:200]
        return answer

    def differences(self, expected: dict[str, tuple[str, list[Delivered]]], growing: str = "") -> dict[str, Any]:
        """Return what each queue delivers if it is not the expected: both numbers and the first pairs that differ.

        The start itself may add messages to the queue `growing`, after the expected ones.
        """
        with ThreadPoolExecutor(_DRAINS) as pool:
            drained = pool.map(lambda item: self.drain(item[0], item[1][0], len(item[1][1])), expected.items())
            return {
                queue: (len(rows), len(got), [pair for pair in zip(rows, got, strict=False) if pair[0] != pair[1]][:3])
                for (queue, (_kind, rows)), got in zip(expected.items(), drained, strict=True)
                if (got[: len(rows)] if queue == growing else got) != rows
            }


def _queue(connection: Any, queue: str, count: int, patience_s: float) -> list[Delivered]:
    """Consume without a limit: a queue with a single active consumer answers no `basic.get`."""
    channel = connection.channel()
    _wait_for_returns(connection, channel, queue, count, patience_s)
    rows: list[Delivered] = []
    last = time.monotonic()

    def take(_channel: Any, _method: Any, properties: Any, body: bytes) -> None:
        nonlocal last
        last = time.monotonic()
        rows.append(_row(properties, body))

    channel.basic_consume(queue, take)
    while time.monotonic() - last < _wait_s(len(rows), count, patience_s):
        connection.process_data_events(0.1)
    return rows


def _wait_for_returns(connection: Any, channel: Any, queue: str, count: int, patience_s: float) -> None:
    """Wait until the server has returned what consumers held: it gives out other messages first."""
    stop = time.monotonic() + patience_s
    seen, since = -1, time.monotonic()
    while time.monotonic() < stop:
        ready = channel.queue_declare(queue, passive=True).method.message_count
        if ready != seen:
            seen, since = ready, time.monotonic()
        if ready >= count or time.monotonic() - since > _STABLE_S:
            return
        connection.process_data_events(0.2)


def _stream(connection: Any, queue: str, count: int, patience_s: float) -> list[Delivered]:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=STREAM_PREFETCH)
    rows: list[Delivered] = []
    last = time.monotonic()

    def take(own: Any, method: Any, properties: Any, body: bytes) -> None:
        nonlocal last
        last = time.monotonic()
        rows.append(_row(properties, body))
        own.basic_ack(method.delivery_tag)

    channel.basic_consume(queue, take, arguments={"x-stream-offset": "first"})
    while time.monotonic() - last < _wait_s(len(rows), count, patience_s):
        connection.process_data_events(0.1)
    return rows


def _wait_s(found: int, count: int, patience_s: float) -> float:
    """Return how long to wait after the last message, of which there should be `count`."""
    return patience_s if found < count else _SURPLUS_S if count else _EMPTY_S


def _row(properties: Any, body: bytes) -> Delivered:
    return Delivered(properties.message_id, body, (properties.headers or {}).get("x-delivery-count", 0))


def listed(node: Path, limits: dict[str, int] | None = None) -> dict[str, tuple[str, list[Delivered]]]:
    """Return type and messages of every quorum queue and stream, as the server should deliver them.

    A message that a consumer held counts as failed once more.  Before version 8, one that was never returned shows the count
    with which it was published.  Messages that wait for dead-lettering are not delivered.
    With `limits`, also of the classic queues that it names: a start removes the first messages above a number, and
    transient ones.
    """
    found: dict[str, tuple[str, list[Delivered]]] = {}
    if limits:
        with RabbitStore.open(str(node), "r") as store:
            for name, limit in limits.items():
                rows = [_listed(one, 0) for one in store.folder().messages(name) if one.persistent]
                found[name] = "classic", rows[-limit:]
    folder = NodeFolder(str(node), "/")
    with contextlib.closing(folder):
        for queue in folder.quorum_queues:
            machine = queue.restarted()
            is_failed = machine.version >= _FAILURES_SINCE
            counts = {one.index: (0 if is_failed else one.acquired) or one.delivery_count for one in machine.ready()}
            rows = [message for message in queue.messages() if not message.reason]
            found[queue.queue] = "quorum", [_listed(row, counts[row.seq_id]) for row in rows]
        for stream in folder.streams:
            stop = end_of_index(stream)
            found[stream.queue] = "stream", [_listed(row, 0) for row in stream.messages() if row.seq_id < stop]
    return found


def removed(node: Path, limits: dict[str, int]) -> set[bytes]:
    """Return the body of every message that `listed` leaves out.

    A start would remove it, or it waits for dead-lettering, or its classic queue has lost its name.
    """
    with RabbitStore.open(str(node), "r") as store:
        nameless = {message.body for message in store.folder().messages() if message.queue not in limits}
    with contextlib.closing(NodeFolder(str(node), "/")) as folder:
        return nameless | {row.body for queue in folder.quorum_queues for row in queue.messages() if row.reason}


def end_of_index(stream: StreamFolder) -> int:
    """Return the offset of the last chunk if a kill came before its index record: the server drops it."""
    if not stream.segments():
        return 0
    with stream.open_segment(stream.segments()[-1], []) as segment:
        chunks = list(StreamScan(segment.view, segment.file, [], chunk_id=segment.number).chunks())
        records = segment.index_records
        is_behind = len(records) == len(chunks) - 1 and chunks[:-1] and records[-1].chunk_id == chunks[-2].chunk_id
        return chunks[-1].chunk_id if is_behind else 1 << 64


def _listed(message: Any, count: int) -> Delivered:
    try:
        return Delivered(message.properties.get("message_id"), message.body, count)
    except StoreCorrupt:
        return Delivered(None, message.body, count)
