"""The gRPC port of a server: HTTP/2 with limits, in the server's loop."""

from __future__ import annotations

from typing import Any

from storageio import DiskError

from .protocol import grpc
from .service import MessagingService

OVERHEAD = 1 << 16  # bytes of a request beside the body
REQUESTS_MAX = 16_384  # of all clients at a time: streams, polls and others
STREAMS_MAX = 1024  # of one connection
METADATA_MAX = 16 << 10
STOP_S = 0.2


class GrpcPort:
    """A port that is open until it is closed."""

    def __init__(self, body_max: int) -> None:
        """Create it for bodies of a size; must be called in the loop."""
        options = [
            ("grpc.max_receive_message_length", body_max + OVERHEAD),
            ("grpc.max_send_message_length", -1),  # what is stored is delivered
            ("grpc.max_concurrent_streams", STREAMS_MAX),
            ("grpc.max_metadata_size", METADATA_MAX),
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ]
        self._server: Any = grpc.aio.server(options=options, maximum_concurrent_rpcs=REQUESTS_MAX)

    def listen(self, host: str, port: int, tls: tuple[bytes, bytes] | None) -> int:
        """Take the port and return its number; raise `DiskError` if it is taken.  `tls`: certificate chain and key, PEM."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if tls is None:
                found = self._server.add_insecure_port(address)
            else:
                certificate, key = tls
                credentials = grpc.ssl_server_credentials([(key, certificate)])
                found = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise DiskError("listen", address, 0, str(error)) from error
        return int(found)

    async def serve(self, service: MessagingService) -> None:
        """Answer requests from now on."""
        self._server.add_generic_rpc_handlers((service.handlers(),))
        await self._server.start()

    async def close(self) -> None:
        """Close the port and end all requests."""
        await self._server.stop(STOP_S)
