"""The gRPC port of a server: HTTP/2 with limits, in the server's loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from storageio import DiskError

from .protocol import grpc
from .service import MessagingService

LOG = logging.getLogger(f"brokerstore.{__name__}")
OVERHEAD = 1 << 16  # bytes of a request beside the body
REQUESTS_MAX = 16_384  # of all clients at a time: streams, polls and others
STREAMS_MAX = 1024  # of one connection
METADATA_MAX = 16 << 10
HANDSHAKE_MS = 10_000  # of TLS, and of HTTP/2
STOP_S = 0.2
AGAIN_S = 0.1


class GrpcPort:
    """A port that is open until it is closed."""

    def __init__(self, body_max: int) -> None:
        """Create it for bodies of a size; must be called in the loop."""
        self._options = [
            ("grpc.max_receive_message_length", body_max + OVERHEAD),
            ("grpc.max_send_message_length", -1),  # what is stored is delivered
            ("grpc.max_concurrent_streams", STREAMS_MAX),
            ("grpc.max_metadata_size", METADATA_MAX),
            ("grpc.so_reuseport", 0),
            ("grpc.http2.bdp_probe", 0),  # it lets the library read megabytes of a request before it is asked for
            ("grpc.server.max_pending_requests", REQUESTS_MAX),  # beyond 1000 others would be cancelled
            ("grpc.server.max_pending_requests_hard_limit", REQUESTS_MAX),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ]
        self._server: Any = None
        self._address = ""
        self._credentials: Any = None
        self._tasks: list[asyncio.Future[None]] = []
        self._ended: list[asyncio.Future[None]] = []

    def listen(self, host: str, port: int, tls: tuple[bytes, bytes] | None) -> int:
        """Take the port and return its number; raise `DiskError` if it is taken.  `tls`: certificate chain and key, PEM."""
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if tls is not None:
            certificate, key = tls
            self._credentials = grpc.ssl_server_credentials([(key, certificate)])
        found = self._open()
        self._address = self._address.removesuffix(f":{port}") + f":{found}"
        return found

    def _open(self) -> int:
        server: Any = grpc.aio.server(options=self._options, maximum_concurrent_rpcs=REQUESTS_MAX)
        self._server = server
        try:
            if self._credentials is None:
                return int(server.add_insecure_port(self._address))
            return int(server.add_secure_port(self._address, self._credentials))
        except RuntimeError as error:
            raise DiskError("listen", self._address, 0, str(error)) from error

    async def serve(self, service: MessagingService) -> None:
        """Answer requests from now on."""
        await self._start(service)
        self._tasks = [asyncio.ensure_future(one) for one in (service.uploads.watch(), self._keep(service))]

    async def _start(self, service: MessagingService) -> None:
        self._server.add_generic_rpc_handlers((service.handlers(),))
        await self._server.start()

    async def _keep(self, service: MessagingService) -> None:
        """Open the port again when the library has closed it, as it does after a method's name that is no UTF-8."""
        while True:
            await asyncio.sleep(AGAIN_S)
            if self._server._server.is_running():  # `wait_for_termination` returns when the last connection is closed
                continue
            LOG.warning("a request ended the server of the grpc library, which starts again")
            self._ended = [task for task in self._ended if not task.done()]
            self._ended.append(asyncio.ensure_future(_ending(self._server)))
            try:
                self._open()
            except DiskError as error:
                LOG.error("the gRPC port is not open: %s", error)
                await asyncio.sleep(1)
            else:
                await self._start(service)

    async def close(self) -> None:
        """Close the port and end all requests."""
        for task in self._tasks:
            task.cancel()
        await self._server.stop(STOP_S)
        await asyncio.gather(*self._ended)


async def _ending(server: Any) -> None:
    """Wait for the end of a server, whose error was reported."""
    with contextlib.suppress(Exception):
        await server.wait_for_termination()
