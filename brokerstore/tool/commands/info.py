"""`info`: what a folder holds."""

from __future__ import annotations

from ..backends import Backend
from ..options import JSON, store_command
from ..output import show


@store_command("info", "info orders-store", "info vhost", "info orders-store --config broker.conf")
@JSON
def info(backend: Backend, as_json: bool) -> int:
    """Show what a folder holds: files, sizes, times, index.

    Only names, sizes and headers are read: files, first and last message, queues, index, checkpoint and config.
    """
    return show(backend.info(), as_json)
