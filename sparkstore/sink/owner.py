"""The file that records which query owns a stream's explicit `sinkId`: `<store>/brokerstore/sink-queries/<sink id>`.

Batches are identified by sink id and batch id.  A new query's batch ids start at 0 again, so under the same sink id its rows
would be mistaken for existing ones and dropped silently.
"""

from __future__ import annotations

import os

from storageio import Disk, Mode, replace_file

from ..errors import BadOption

FOLDER = os.path.join("brokerstore", "sink-queries")
QUERY_ID_BYTES_MAX = 1 << 10


def check_owner(disk: Disk, root: str, sink_id: str, query_id: str) -> None:
    """Raise `BadOption` if another query owns a sink id; the first query that calls this becomes the owner."""
    path = os.path.join(root, FOLDER, sink_id)
    known = _read(disk, path)
    if known is None:
        disk.make_folder(os.path.dirname(path))
        replace_file(disk, path, query_id.encode())
    elif known != query_id:
        raise BadOption(
            f"option sinkId: {sink_id!r} belongs to query {known}, and this is query {query_id}, whose batches count from 0 "
            f"again: give another sinkId with a new checkpoint, or none (noted in {path})"
        )


def _read(disk: Disk, path: str) -> str | None:
    if disk.stat(path) is None:
        return None
    with disk.open(path, Mode.READ) as file:
        return file.read(0, QUERY_ID_BYTES_MAX).decode("utf-8", "replace")
