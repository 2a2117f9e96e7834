"""`BrokerServer`: a store of this process as a broker and name server for official clients."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import ssl
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from messagestore import MessageStore
from storageio import Closing, DiskError, InvalidSetting, StoreClosed, StoreError
from storageio.background import BackgroundThread
from storageio.real_disk import disk_error

from ..ha.master import HaMaster
from ..remoting.signature import Access
from .connections import Connection, Connections
from .requests import AdmittedHosts, Requests
from .tables import Identity

if TYPE_CHECKING:
    from ..grpc.port import GrpcPort
    from ..grpc.service import MessagingService

LOG = logging.getLogger(f"brokerstore.{__name__}")
CLUSTER, NAME = "DefaultCluster", "brokerstore"
HOUSEKEEPING_S = 1.0
CHECK_TRANSACTIONS_S = 30.0
WAKE_PAUSE_S = 0.001
START_TIMEOUT_S = 10.0
SECOND_PORT_STEP = 2
ACCEPT_TURNS_MAX = 100


class BrokerServer(Closing):
    """Serves clients until it is closed; the store stays open.

    One port is broker and name server.  `names_port` adds a second one, for clients that are configured with the usual two.
    `grpc_port` adds one for clients of RocketMQ 5 that speak gRPC.
    """

    def __init__(
        self, store: MessageStore, host: str = "127.0.0.1", port: int = 0, *, names_port: int | None = None,
        access_key: str | None = None, secret: str | None = None, name: str = NAME, cluster: str = CLUSTER,
        grpc_port: int | None = None, grpc_host: str | None = None, grpc_tls: tuple[bytes, bytes] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip
        """Serve a store that is open for writing; port 0 takes a free one.

        With `access_key` and `secret` each request needs RocketMQ's signature.  `grpc_host` is `host` by default; `grpc_tls`
        has a certificate chain and its key, both PEM.  `tls` lets the other ports speak TLS alone; what replicas read stays as
        it is.  Raises `InvalidSetting` for an address that other machines can reach
        without a key, `DiskError` for a port that is taken, and `MissingExtra` for gRPC without the extra `grpc`.
        """
        engine = store.engine
        engine.check_open()
        for one in (host, grpc_host or host):
            if not _is_loopback(one) and not (access_key and secret):
                raise InvalidSetting(f"host {one!r} can be reached from other machines: give access_key and secret")
        self._store = store
        self._host = host
        self._connections = Connections(tls)
        self._loop = asyncio.new_event_loop()
        self._is_closing = asyncio.Event()
        hosts = AdmittedHosts(Access(access_key or "", secret) if secret else None)
        self._ha = HaMaster(store, host, admits=hosts.may_replicate)
        self._grpc: GrpcPort | None = None
        self._messaging: MessagingService | None = None
        self.grpc_port, self.grpc_address = 0, ""
        self._servers: list[asyncio.Server] = []
        try:
            for requested in (port, names_port):
                if requested is not None:
                    self._servers.append(self._listen(requested))
            if grpc_port is not None:
                self._loop.run_until_complete(self._listen_grpc(grpc_host or host, grpc_port, grpc_tls))
        except BaseException:
            for server in self._servers:
                server.close()
            self._ha.close()
            self._loop.close()
            raise
        ports = [server.sockets[0].getsockname()[1] for server in self._servers]
        self.port: int = ports[0]
        self._listen_for_slaves()
        self.names_port: int = ports[-1]
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        identity = Identity(cluster, name, self.address, self._ha.port)
        self._requests = Requests(store, identity, self._call_soon, hosts, self._expect)
        self._requests.slaves = lambda: self._ha.slaves
        if self._grpc is not None:
            from ..grpc.service import MessagingService

            address = grpc_host or host, self.grpc_port
            self._messaging = MessagingService(store, self._requests, identity, address, hosts.access)
        self._connections.serve(self._requests.handle, self._requests.closed)
        self._progress = engine.progress
        self._seen = self._progress.count
        self._is_expecting = self._is_woken = False
        self._is_started = threading.Event()
        self._thread = BackgroundThread("brokerstore-server", self._run)
        self._thread.start()
        self._is_started.wait(START_TIMEOUT_S)

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
        if not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # a second call
                self._loop.call_soon_threadsafe(self._is_closing.set)
        self._thread.stop()
        self._ha.close()

    def _listen_for_slaves(self) -> None:
        """Listen on RocketMQ's second port of a broker too: a real slave asks there for topics and groups."""
        port = self.port - SECOND_PORT_STEP
        if port > 0:
            try:
                self._servers.append(self._listen(port))
            except DiskError as error:
                LOG.info("real slaves get no topics and groups, because port %d is taken: %s", port, error)

    # The loop

    def _listen(self, port: int) -> asyncio.Server:
        try:
            return self._loop.run_until_complete(
                self._loop.create_server(lambda: Connection(self._connections), self._host, port, start_serving=False)
            )
        except OSError as error:
            raise disk_error("listen", f"{self._host}:{port}", error) from error

    async def _listen_grpc(self, host: str, port: int, tls: tuple[bytes, bytes] | None) -> None:
        """Take the gRPC port; the grpc library finds its loop as the running one."""
        from ..grpc.port import GrpcPort

        self._grpc = GrpcPort(self._store.config.max_message_size)
        try:
            self.grpc_port = self._grpc.listen(host, port, tls)
        except BaseException:
            await self._grpc.close()
            raise
        self.grpc_address = f"[{host}]:{self.grpc_port}" if ":" in host else f"{host}:{self.grpc_port}"

    def _run(self) -> float | None:
        """Run the loop until `close`."""
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._expect_nothing()
            self._loop.close()
            self._thread.is_stopping = True
        return None

    async def _serve(self) -> None:
        for server in self._servers:
            await server.start_serving()
        if self._grpc is not None and self._messaging is not None:
            await self._grpc.serve(self._messaging)
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
        if self._grpc is not None:
            await self._grpc.close()
        for _ in range(ACCEPT_TURNS_MAX):  # asyncio loses a client that was accepted and whose connection is not made yet
            for connection in list(self._connections.all):
                connection.close("the server was closed")
            accepted = asyncio.all_tasks() - {asyncio.current_task()}
            if not accepted:
                break
            await asyncio.wait(accepted)
        for server in self._servers:
            server.close()
        await asyncio.sleep(0)

    def _call_soon(self, function: Callable[[], None]) -> None:
        """Run a function in the loop's thread, from any thread; a closed loop runs none."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def _expect(self) -> None:
        """Let the next messages that are dispatched wake the loop, because a request waits for one."""
        if not self._is_expecting:
            self._is_expecting = True
            self._progress.add(self._progressed)
            if self._progress.count != self._seen:
                self._progressed()

    def _progressed(self) -> None:
        """Wake waiting requests, from any thread."""
        if not self._is_woken:
            self._is_woken = True
            self._call_soon(self._wake_pulls)

    def _check_transactions(self) -> None:
        try:
            self._requests.check_transactions()
        except StoreError as error:
            LOG.error("transactions were not checked: %s", error)

    def _wake_pulls(self) -> None:
        """Answer requests that waited for a message or long enough.

        Those that wait on pause: each of many messages would else wake the dispatcher and the loop, which share an interpreter.
        """
        self._expect_nothing()
        self._is_woken, self._seen = False, self._progress.count
        with contextlib.suppress(StoreClosed):
            self._requests.wake()
            if self._messaging is not None:
                self._messaging.wake()
            if self._is_awaited:
                self._loop.call_later(WAKE_PAUSE_S, self._expect_again)

    @property
    def _is_awaited(self) -> bool:
        return self._requests.is_awaited or (self._messaging is not None and self._messaging.receiving.is_awaited)

    def _expect_again(self) -> None:
        if self._is_awaited:
            self._expect()

    def _expect_nothing(self) -> None:
        if self._is_expecting:
            self._is_expecting = False
            self._progress.remove(self._progressed)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
