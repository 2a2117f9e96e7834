"""`info`: what a folder holds."""

from __future__ import annotations

from ..backends import Backend
from ..options import JSON, store_command
from ..output import show


@store_command("info", "info orders-store", "info vhost", "info orders-store --config broker.conf")
@JSON
def info(backend: Backend, as_json: bool) -> int:
    """Show the kind of a folder, its files, sizes, first and last message, index and checkpoint."""
    return show(backend.info(), as_json)
