"""`BrokerServer`: a store of this process as a broker and name server for official clients."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import ipaddress
import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from commitlog import StoredMessage
from commitlog.layout import MAGIC_V2, PROPERTIES_SIZE_SIZE, QUEUE_ID_AT, TOPIC_SIZE_SIZE, TOPIC_SIZE_SIZE_V2
from messagestore import MessageStore
from messagestore.broker.services.half_messages import HalfMessage
from storageio import InvalidSetting, StoreClosed, StoreError
from storageio.background import BackgroundThread
from storageio.real_disk import disk_error

from ..ha.master import HaMaster
from ..remoting import codes
from ..remoting.codes import NO_PERMISSION, NOT_SUPPORTED, SUCCESS
from ..remoting.frames import Command
from .clients import Clients
from .connections import Connection, Connections
from .lookups import Lookups
from .pulling import Pulling
from .sending import Sending
from .tables import Identity, Tables

LOG = logging.getLogger(f"brokerstore.{__name__}")
CLUSTER, NAME = "DefaultCluster", "brokerstore"
HOUSEKEEPING_S = 1.0
CHECK_TRANSACTIONS_S = 30.0
PROGRESS_WAIT_S = 0.5
START_TIMEOUT_S = 10.0


class BrokerServer:
    """Serves clients until it is closed; the store stays open.

    One port is broker and name server.  `names_port` adds a second one, for clients that are configured with the usual two.
    """

    def __init__(
        self, store: MessageStore, host: str = "127.0.0.1", port: int = 0, *, names_port: int | None = None,
        access_key: str | None = None, secret: str | None = None, name: str = NAME, cluster: str = CLUSTER,
    ) -> None:  # fmt: skip
        """Serve a store that is open for writing; port 0 takes a free one.

        With `access_key` and `secret` each request needs RocketMQ's signature.  Raises `InvalidSetting` for an address that
        other machines can reach without them, and `DiskError` for a port that is taken.
        """
        store.engine.check_open()
        if not _is_loopback(host) and not (access_key and secret):
            raise InvalidSetting(f"host {host!r} can be reached from other machines: give access_key and secret")
        self._store = store
        self._host = host
        self._access = (access_key or "", secret.encode()) if secret else None
        self._clients = Clients()
        self._connections = Connections(self._handle, self._closed)
        self._loop = asyncio.new_event_loop()
        self._is_closing = asyncio.Event()
        self._ha = HaMaster(store, host)
        try:
            self._servers = [self._listen(wanted) for wanted in (port, names_port) if wanted is not None]
        except BaseException:
            self._ha.close()
            self._loop.close()
            raise
        ports = [server.sockets[0].getsockname()[1] for server in self._servers]
        self.port: int = ports[0]
        self.names_port: int = ports[-1]
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self._sending = Sending(store, self.address, self._call_soon)
        self._pulling = Pulling(store, self._clients)
        lookups = Lookups(store)
        tables = Tables(store, Identity(cluster, name, self.address, self._ha.port))
        self._handlers = self._table(lookups, tables)
        self._is_woken = False
        self._is_started = threading.Event()
        self._thread = BackgroundThread("brokerstore-server", self._run)
        self._watcher = BackgroundThread("brokerstore-server-progress", self._watch)
        self._thread.start()
        self._is_started.wait(START_TIMEOUT_S)
        self._watcher.start()

    def __enter__(self) -> Self:
        """Return the server itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it on leaving the block."""
        self.close()

    @property
    def is_serving(self) -> bool:
        """Whether requests are answered; False after `close`, or after an error that the log names."""
        return not self._thread.is_stopping

    @property
    def connections(self) -> int:
        """Number of clients' connections."""
        return len(self._connections.all)

    def close(self) -> None:
        """Close all connections and ports.  The store stays open."""
        self._watcher.is_stopping = True
        self._store.engine.progress.notify()
        self._watcher.stop()
        if not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # a second call
                self._loop.call_soon_threadsafe(self._is_closing.set)
        self._thread.stop()
        self._ha.close()

    # The loop

    def _listen(self, port: int) -> asyncio.Server:
        try:
            return self._loop.run_until_complete(
                self._loop.create_server(lambda: Connection(self._connections), self._host, port, start_serving=False)
            )
        except OSError as error:
            raise disk_error("listen", f"{self._host}:{port}", error) from error

    def _run(self) -> float | None:
        """Run the loop until `close`."""
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()
            self._thread.is_stopping = True
        return None

    async def _serve(self) -> None:
        for server in self._servers:
            await server.start_serving()
        self._is_started.set()
        next_check_s = self._loop.time() + CHECK_TRANSACTIONS_S
        while not self._is_closing.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_closing.wait(), HOUSEKEEPING_S)
            self._connections.close_stale()
            self._wake_pulls()
            if self._loop.time() >= next_check_s:
                self._check_transactions()
                next_check_s = self._loop.time() + CHECK_TRANSACTIONS_S
        for server in self._servers:
            server.close()
        for connection in list(self._connections.all):
            connection.close("the server was closed")
        await asyncio.sleep(0)

    def _call_soon(self, function: Callable[[], None]) -> None:
        """Run a function in the loop's thread, from any thread; a closed loop runs none."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def _watch(self) -> float | None:
        """Wake waiting pulls when a message was dispatched."""
        progress = self._store.engine.progress
        seen = progress.count
        if progress.wait(seen, PROGRESS_WAIT_S) and not self._is_woken and not self._watcher.is_stopping:
            self._is_woken = True
            self._call_soon(self._wake_pulls)
        return 0.0

    def _wake_pulls(self) -> None:
        self._is_woken = False
        with contextlib.suppress(StoreClosed):
            self._pulling.wake()

    # Requests

    def _table(self, lookups: Lookups, tables: Tables) -> dict[int, Callable[[Connection, Command], Command | None]]:
        """Return what answers each request."""

        def alone(answer: Callable[[Command], Command]) -> Callable[[Connection, Command], Command]:
            return lambda _connection, request: answer(request)

        plain = {
            codes.QUERY_CONSUMER_OFFSET: lookups.committed_offset, codes.UPDATE_CONSUMER_OFFSET: lookups.commit_offset,
            codes.GET_MAX_OFFSET: lookups.max_offset, codes.GET_MIN_OFFSET: lookups.min_offset,
            codes.SEARCH_OFFSET_BY_TIMESTAMP: lookups.offset_by_time, codes.QUERY_MESSAGE: lookups.query,
            codes.VIEW_MESSAGE_BY_ID: lookups.view,
            codes.GET_ROUTE_INFO_BY_TOPIC: tables.route, codes.GET_BROKER_CLUSTER_INFO: tables.cluster,
            codes.GET_ALL_TOPIC_LIST_FROM_NAME_SERVER: tables.topic_names, codes.UPDATE_AND_CREATE_TOPIC: tables.create_topic,
            codes.GET_ALL_TOPIC_CONFIG: tables.topics, codes.GET_ALL_CONSUMER_OFFSET: tables.offsets,
            codes.GET_ALL_SUBSCRIPTION_GROUP_CONFIG: tables.groups, codes.GET_ALL_DELAY_OFFSET: tables.delays,
            codes.GET_BROKER_CONFIG: tables.settings, codes.GET_BROKER_RUNTIME_INFO: tables.state,
            codes.UNREGISTER_CLIENT: self._clients.unregister, codes.GET_CONSUMER_LIST_BY_GROUP: self._clients.members,
            codes.LOCK_BATCH_MQ: self._clients.lock, codes.UNLOCK_BATCH_MQ: self._clients.unlock,
            codes.CONSUMER_SEND_MSG_BACK: self._sending.send_back, codes.END_TRANSACTION: self._sending.end_transaction,
        }  # fmt: skip
        found: dict[int, Callable[[Connection, Command], Command | None]] = {code: alone(do) for code, do in plain.items()}
        found |= dict.fromkeys((codes.SEND_MESSAGE, codes.SEND_MESSAGE_V2, codes.SEND_BATCH_MESSAGE), self._sending.send)
        found |= dict.fromkeys((codes.PULL_MESSAGE, codes.LITE_PULL_MESSAGE), self._pulling.pull)
        found[codes.HEART_BEAT] = self._heartbeat
        return found

    def _handle(self, connection: Connection, request: Command) -> Command | None:
        if self._access is not None and not self._is_signed(request, *self._access):
            return request.answer(NO_PERMISSION, remark="the request has no valid signature")
        handler = self._handlers.get(request.code)
        if handler is None:
            return request.answer(NOT_SUPPORTED, remark=f"request code {request.code} is not supported")
        return handler(connection, request)

    def _heartbeat(self, connection: Connection, request: Command) -> Command:
        """Register a client; each group in clustering mode gets its retry topic."""
        for group in self._clients.heartbeat(connection, request):
            topic = f"%RETRY%{group}"
            if self._store.engine.topics.get(topic) is None:
                self._store.create_topic(topic, max(1, self._store.engine.retries.group(group).retry_queues))
        return request.answer(SUCCESS)

    def _closed(self, connection: Connection) -> None:
        self._clients.closed(connection)
        self._pulling.closed(connection)

    @staticmethod
    def _is_signed(request: Command, access_key: str, secret: bytes) -> bool:
        """Check RocketMQ's signature: HMAC-SHA1 over the fields in the order of their names, and the body."""
        fields = request.fields
        signed = "".join(fields[name] for name in sorted(fields) if name != "Signature").encode() + request.body
        wanted = base64.b64encode(hmac.new(secret, signed, hashlib.sha1).digest()).decode()
        return fields.get("AccessKey") == access_key and hmac.compare_digest(
            fields.get("Signature", "").encode(), wanted.encode()
        )

    # Transactions

    def _check_transactions(self) -> None:
        """Ask producers about half messages that they left undecided."""
        try:
            self._store.check_transactions(self._ask_producer)
        except StoreError as error:
            LOG.error("transactions were not checked: %s", error)

    def _ask_producer(self, half: HalfMessage) -> None:
        """Send the half message to one producer of its group, which answers with the end of its transaction."""
        producers = self._clients.producers.get(half.producer_group)
        if not producers:
            return
        record = self._store.engine.log.select(half.message.physical_offset, half.message.size)
        if record is None:
            return
        fields = {
            "tranStateTableOffset": str(half.queue_offset), "commitLogOffset": str(half.message.physical_offset),
            "msgId": half.transaction_id, "transactionId": half.transaction_id, "offsetMsgId": half.message.message_id,
        }  # fmt: skip
        body = renamed(bytes(record), half.message, half.topic, half.queue_id)
        next(iter(producers.values())).notify(codes.CHECK_TRANSACTION_STATE, fields, body)


def renamed(record: bytes, message: StoredMessage, topic: str, queue_id: int) -> bytes:
    """Return a record with another topic and queue id, for a producer that is asked about its half message.

    The whole-record checksum no longer fits; clients check that of the body.
    """
    name = topic.encode()
    end = len(record) - PROPERTIES_SIZE_SIZE - len(message.properties_raw)
    size_size = TOPIC_SIZE_SIZE_V2 if message.magic == MAGIC_V2 else TOPIC_SIZE_SIZE
    begin = end - len(message.topic.encode()) - size_size
    changed = bytearray(record[:begin] + len(name).to_bytes(size_size, "big") + name + record[end:])
    changed[:4] = len(changed).to_bytes(4, "big")
    changed[QUEUE_ID_AT : QUEUE_ID_AT + 4] = queue_id.to_bytes(4, "big")
    return bytes(changed)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
