"""`ls`: the queues of a folder."""

from __future__ import annotations

from ..backends import Backend
from ..options import JSON, store_command
from ..output import show


@store_command("ls", "ls orders-store", "ls vhost --json", sizes=True)
@JSON
def ls(backend: Backend, as_json: bool) -> int:
    """List topics and queues with their offsets and counts."""
    return show(backend.ls(), as_json)
