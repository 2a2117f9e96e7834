"""`serve`: a folder as a RocketMQ broker and name server for one machine."""

from __future__ import annotations

import ssl
import sys
import time
from typing import BinaryIO

import click

from ..codes import CLEAN
from ..options import JSON, plain_command
from ..output import emit, emit_json
from ..sigterm import sigterm_interrupts
from .replicate import SECRET, address, secret_of


@plain_command("serve", "serve orders-store", "serve orders-store --listen 127.0.0.1:10911 --namesrv 127.0.0.1:9876")
@click.argument("folder", metavar="DIR", type=click.Path())
@click.option(
    "--listen", type=address, default="127.0.0.1:10911", show_default=True, metavar="HOST:PORT", help="The broker's address."
)
@click.option("--namesrv", type=address, metavar="HOST:PORT", help="A second port for a name server's requests; the same host.")
@click.option("--tls-cert", type=click.Path(exists=True), metavar="FILE", help="TLS for --listen: the certificate chain, PEM.")
@click.option("--tls-key", type=click.Path(exists=True), metavar="FILE", help="The private key of that certificate, PEM.")
@click.option("--grpc", type=address, metavar="HOST:PORT", help="A port for clients of RocketMQ 5 that speak gRPC.")
@click.option("--grpc-cert", type=click.File("rb"), metavar="FILE", help="The certificate chain of the gRPC port, PEM.")
@click.option("--grpc-key", type=click.File("rb"), metavar="FILE", help="The private key of the certificate, PEM.")
@click.option("--access-key", help=f"Require RocketMQ's signature; the secret is in the environment variable {SECRET}.")
@JSON
def serve(
    folder: str, listen: tuple[str, int], namesrv: tuple[str, int] | None, tls_cert: str | None, tls_key: str | None,
    grpc: tuple[str, int] | None, grpc_cert: BinaryIO | None, grpc_key: BinaryIO | None, access_key: str | None, *,
    as_json: bool,
) -> int:  # fmt: skip
    """Serve DIR to official RocketMQ clients until interrupted.

    It is meant for tests, small machines and several processes. The broker's address also answers what clients
    ask a name server. A folder that does not exist becomes a new store.
    """
    from brokerstore.identify import FolderKind
    from brokerstore.write_target import check_write_target
    from messagestore import MessageStore
    from rocketlink import BrokerServer

    if namesrv is not None and namesrv[0] != listen[0]:
        raise click.UsageError(f"--namesrv: the host has to be that of --listen, {listen[0]}")
    if bool(tls_cert) != bool(tls_key):
        raise click.UsageError("--tls-cert and --tls-key: give both")
    if bool(grpc_cert) != bool(grpc_key) or (grpc_cert and grpc is None):
        raise click.UsageError("--grpc-cert and --grpc-key: give both, with --grpc")
    secret = secret_of(access_key)
    grpc_tls = (grpc_cert.read(), grpc_key.read()) if grpc_cert and grpc_key else None
    tls = _tls_context(tls_cert, tls_key) if tls_cert and tls_key else None
    grpc_host, grpc_port = grpc or (None, None)
    check_write_target(folder, FolderKind.ROCKETMQ)
    names_port = namesrv[1] if namesrv is not None else None
    with (
        sigterm_interrupts(),
        MessageStore.open(folder) as store,
        BrokerServer(
            store, *listen, names_port=names_port, access_key=access_key, secret=secret, grpc_port=grpc_port,
            grpc_host=grpc_host, grpc_tls=grpc_tls, tls=tls,
        ) as server,
    ):  # fmt: skip
        facts = {"broker": server.address, "names_port": server.names_port} | ({"grpc": server.grpc_address} if grpc else {})
        if as_json:
            emit_json(facts)
        else:
            also = f", gRPC on {server.grpc_address}" if grpc else ""
            emit(f"Serving on {server.address}; the name server's port is {server.names_port}{also}. Interrupt to stop.")
        sys.stdout.flush()
        while server.is_serving:
            time.sleep(1)
    return CLEAN


def _tls_context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # else OpenSSL asks on the terminal
    except OSError as error:  # of which SSLError is one
        raise click.UsageError(f"--tls-cert {certificate} and --tls-key {key}: {error}") from error
    return context
