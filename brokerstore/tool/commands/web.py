"""`web`: pages over folders."""

from __future__ import annotations

import socket

import click

from storageio import DiskError, needs_extra

from ..body_schemas import BodySchemas
from ..codes import CLEAN
from ..options import plain_command
from ..output import emit, print_line


@plain_command("web", "web orders-store", "web orders-store vhost --port 8123", "web orders-store --allow-changes")
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path())
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1; by default a free one.")
@click.option("--vhost", metavar="NAME", help="Virtual host, for a RabbitMQ node with several.")
@click.option(
    "--schema", "schemas", metavar="[TOPIC=]FILE", multiple=True, help="Avro schema, or descriptors and :MESSAGE, of bodies."
)
@click.option("--allow-changes", is_flag=True, help="Also requeue, purge, reset and put; each is shown first.")
def web(folders: tuple[str, ...], port: int, vhost: str | None, schemas: tuple[str, ...], *, allow_changes: bool) -> int:
    """Serve pages over folders on 127.0.0.1 until interrupted.

    Open the printed address: it has a token. Without --allow-changes the pages only read.
    """
    with needs_extra("web"):
        import starlette  # noqa: F401
        import uvicorn

        from brokerstore.web import Site, make_app

    decoders = BodySchemas(schemas)
    site = Site([(folder, {"vhost": vhost}) for folder in folders], print_line, decoders, allow_changes=allow_changes)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen()  # before the address is printed: a program that reads it may connect before the server runs
        except OSError as error:
            raise DiskError("listen", f"127.0.0.1:{port}", error.errno or 0, error.strerror or str(error)) from error
        emit(f"http://127.0.0.1:{listening.getsockname()[1]}/?token={site.token}")
        emit("Interrupt to stop.")
        settings = uvicorn.Config(
            make_app(site), loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
            server_header=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        try:
            uvicorn.Server(settings).run(sockets=[listening])
        finally:
            site.forget()
    return CLEAN
