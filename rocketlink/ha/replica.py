"""Follow the log of a running master into a store of this process.

The bytes go through `MessageStore.append_data`, which checks every record before it writes any.  What is reported to the master
is durable here, so a put that the master acknowledges only with its replicas survives the loss of the master.

At every connection the stream begins at a record that this side has already, and the bytes of both sides are compared.  A
master whose log ends before this one, or has other bytes there, ends the replica with `MasterDiffers`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from commitlog import Reader
from messagestore import MessageStore, Role, StoreConfig
from messagestore.property_names import INNER_COUNT
from storageio import REAL_DISK, Closing, Disk, StoreError
from storageio.background import BackgroundThread
from storageio.local_sockets import LocalSocket, PeerGone
from storageio.tcp_sockets import connect_tcp

from ..errors import MasterDiffers, RemoteError
from ..remoting.client import RemotingClient
from ..remoting.signature import Access
from .first_bytes import Start, start_of
from .frames import REPORT, REPORT_EVERY_S, SILENCE_S, HaFrameReader
from .master_state import Metadata, log_range, settings_of

LOG = logging.getLogger(f"brokerstore.{__name__}")
RECEIVE_SIZE = 1 << 20
CONNECT_TIMEOUT_S = 5.0
RECONNECT_S = 1.0
BATCH_MARK = INNER_COUNT.encode() + b"\x01"  # in the properties of a record that holds many messages
POLL_S = 0.2  # how fast a stop is noticed while nothing arrives


class ReplicaStatus(NamedTuple):
    """How far a replica is.  Offsets are physical offsets of the log."""

    is_connected: bool
    log_end: int
    durable_end: int
    master_end: int
    connections: int
    last_error: str | None

    @property
    def lag_bytes(self) -> int:
        """Bytes that the master is known to have and this side does not."""
        return max(0, self.master_end - self.log_end)


class Replica(Closing):
    """A store that follows a live master until it is closed.  Other processes may read the folder meanwhile."""

    def __init__(
        self, host: str, port: int, path: str | os.PathLike[str], *, ha_port: int | None = None, from_start: bool = False,
        config: StoreConfig | None = None, metadata_every_s: float = 10.0, disk: Disk = REAL_DISK,
        access_key: str | None = None, secret: str | None = None,
    ) -> None:  # fmt: skip
        """Open or create the store in `path`, and start to follow the broker that listens on `host` and `port`.

        The broker is asked for its replication port, unless `ha_port` is given, and for the sizes of its files.  A new store
        begins with the master's last file, or with `from_start` at the oldest message that the master has.  Topics, groups and
        offsets are fetched every `metadata_every_s` seconds.  `access_key` and `secret` are for a broker that wants RocketMQ's
        signature.

        Raises `PeerGone` if the broker cannot be reached, and what `MessageStore.open` raises.
        """
        self._host, self._port = host, port
        self._access = Access(access_key, secret) if access_key and secret else None
        with self._client() as client:
            settings = settings_of(client)
        self._ha_port = ha_port
        self._from_start = from_start
        given = config or StoreConfig(**settings.sizes)
        self.store = MessageStore.open(path, "a", dataclasses.replace(given, broker_role=Role.SLAVE), disk=disk)
        self._metadata = Metadata(self.store)
        self._durable = self.store.log_end
        self._master_end = 0
        self._connections = 0
        self._is_connected = False
        self._last_error: str | None = None
        self._failure: StoreError | None = None
        self._link: LocalSocket | None = None
        self._changed = threading.Condition()
        self._fetching = threading.Lock()
        self._follower = BackgroundThread("brokerstore-replica", self._step)
        self._fetcher = BackgroundThread("brokerstore-replica-metadata", self._fetch)
        self._metadata_every_s = metadata_every_s
        self._follower.start()
        self._fetcher.start()

    @property
    def status(self) -> ReplicaStatus:
        """How far the replica is now."""
        end = self.store.engine.log.written_offset
        return ReplicaStatus(self._is_connected, end, self._durable, self._master_end, self._connections, self._last_error)

    def check(self) -> None:
        """Raise the error that ended the replication, such as `MasterDiffers`; a master that is away is none."""
        if self._failure is not None:
            raise self._failure

    def wait(self, physical_offset: int, timeout_s: float | None = None) -> bool:
        """Wait until the log is durable up to an offset; return False after the time-out.  Raises as `check`."""
        with self._changed:
            self._changed.wait_for(lambda: self._durable >= physical_offset or self._failure is not None, timeout_s)
        self.check()
        return self._durable >= physical_offset

    def wait_for_end(self) -> None:
        """Wait until an error ends the replication, and raise it; return after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._follower.is_stopping)
        self.check()

    def close(self) -> None:
        """Stop following, fetch topics, groups and offsets a last time if the master is there, and close the store."""
        was_connected = self._is_connected
        self._follower.is_stopping = True
        link = self._link
        if link is not None:
            link.shut_down()
        self._follower.stop()
        self._fetcher.stop()
        if was_connected:
            self._fetch()
        self._notify()
        self.store.close()

    def _client(self) -> RemotingClient:
        return RemotingClient(self._host, self._port, CONNECT_TIMEOUT_S, self._access)

    # The log

    def _step(self) -> float | None:
        """Follow one connection to its end; return after how many seconds the next one is tried."""
        try:
            self._follow()
        except (PeerGone, RemoteError) as error:  # a broker that starts answers some requests with an error
            self._record_failure(error)
        except StoreError as error:
            LOG.error("replication from %s:%d ended: %s", self._host, self._port, error)
            self._last_error = str(error)
            self._failure = error
            self._follower.is_stopping = True
        finally:
            self._is_connected = False
            self._notify()
        return RECONNECT_S

    def _record_failure(self, error: StoreError) -> None:
        if str(error) != self._last_error and not self._follower.is_stopping:
            LOG.warning("replica of %s:%d: %s", self._host, self._port, error)
        self._last_error = str(error)

    def _follow(self) -> None:
        with self._client() as client:
            low, high = log_range(client)
            named = settings_of(client).ha_port  # asked in any case: a server that wants signatures admits this host by it
        ha_port = named if self._ha_port is None else self._ha_port
        start = start_of(self.store, low, high, from_start=self._from_start)
        self._master_end = max(self._master_end, high)
        link = connect_tcp(self._host, ha_port, CONNECT_TIMEOUT_S)
        self._link = link
        try:
            if not self._follower.is_stopping:
                self._receive(link, start)
        finally:
            self._link = None
            link.shut_down()
            link.close()

    def _receive(self, link: LocalSocket, start: Start) -> None:
        """Append what arrives until the connection ends."""
        stream = Stream(self.store, start, self._fetch_now)
        frames = HaFrameReader()
        link.send(REPORT.pack(start.request))
        reported_s = heard_s = time.monotonic()
        self._connections += 1
        self._is_connected = True
        while not self._follower.is_stopping:
            now_s = time.monotonic()
            if now_s - heard_s > SILENCE_S:
                raise PeerGone(f"no frame for {SILENCE_S:g} s")
            if now_s - reported_s > REPORT_EVERY_S:
                link.send(REPORT.pack(self._durable or start.request))
                reported_s = now_s
            if not link.wait(POLL_S):
                continue
            for offset, data in frames.feed(link.receive(RECEIVE_SIZE)):
                stream.take(offset, data)
            heard_s = time.monotonic()
            self._last_error = None
            if stream.append():
                self._durable = self.store.flush()
                self._master_end = max(self._master_end, stream.received)
                link.send(REPORT.pack(self._durable))
                reported_s = time.monotonic()
                self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # Topics, groups and offsets

    def _fetch(self) -> float | None:
        """Fetch the tables once; the next connection tries again what failed."""
        with contextlib.suppress(PeerGone):
            self._fetch_now()
        return self._metadata_every_s

    def _fetch_now(self) -> None:
        with self._fetching, self._client() as client:
            self._metadata.fetch(client)


class Stream:
    """The bytes of one connection on their way into the log."""

    def __init__(self, store: MessageStore, start: Start, fetch_topics: Callable[[], None]) -> None:
        """Create it; the first frame is expected at `start.request`, or anywhere if 0 was asked, as for an empty log."""
        self._store = store
        self._fetch_topics = fetch_topics
        self._known, self._known_at = start.known, start.known_at
        self._is_anywhere = start.request == 0 and not start.known
        self._waiting = bytearray(start.prefix)
        self._at = start.request - len(start.prefix)  # physical offset of the first waiting byte
        self.received = start.request

    def take(self, offset: int, data: bytes) -> None:
        """Take a frame.  Raises `MasterDiffers` if it does not continue the last one, or differs from what is here."""
        if self._is_anywhere:
            self._at = self.received = offset
            self._is_anywhere = not data
        if offset != self.received:
            raise MasterDiffers(self.received, "the bytes that follow", f"bytes for offset {offset}")
        self.received += len(data)
        self._waiting += data
        self._compare()

    def _compare(self) -> None:
        """Compare the record that this side has already, as far as it has arrived, and drop what lies before the log's end."""
        if self._known:
            count = min(len(self._waiting), len(self._known))
            for position in range(count):
                if self._waiting[position] != self._known[position]:
                    at = self._known_at + position
                    raise MasterDiffers(at, f"byte {self._known[position]:#04x}", f"{self._waiting[position]:#04x}")
            self._drop(count)
            self._known, self._known_at = self._known[count:], self._known_at + count

    def append(self) -> bool:
        """Append the whole records that have arrived; return whether the log grew."""
        end = max(self._store.log_end, 0)
        if self._at < end:
            self._drop(min(len(self._waiting), end - self._at))
        if not self._waiting:
            return False
        data = bytes(self._waiting)
        if BATCH_MARK in data and self._has_unknown_batch(data):
            self._fetch_topics()
        grown = self._store.append_data(self._at, data)
        self._drop(min(len(self._waiting), max(0, grown - self._at)))
        return grown > end

    def _has_unknown_batch(self, data: bytes) -> bool:
        """Return whether a record holds many messages of an unknown topic: the table tells in which kind of queue they are."""
        messages, _, _ = Reader(memoryview(data), self._at).decode_range(0, len(data), len(data))
        topics = self._store.engine.topics
        return any(message.topic not in topics and INNER_COUNT in message.all_properties for message in messages)

    def _drop(self, count: int) -> None:
        del self._waiting[:count]
        self._at += count
