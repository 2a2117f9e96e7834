"""Which query a stream's explicit `sinkId` belongs to: `<store>/brokerstore/sink-queries/<sink id>`.

Batches are known by sink id and batch id.  Another query's batch ids begin at 0 again, so under the same sink id its rows
would be taken for those that are there already, and be dropped without a word.
"""

from __future__ import annotations

import os

from storageio import Disk, Mode, replace_file

from ..errors import BadOption

FOLDER = os.path.join("brokerstore", "sink-queries")
QUERY_ID_BYTES_MAX = 1 << 10


def check_owner(disk: Disk, root: str, sink_id: str, query_id: str) -> None:
    """Raise `BadOption` where another query wrote under a sink id; from the first call on it belongs to this one."""
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
    file = disk.open(path, Mode.READ)
    try:
        return file.read(0, QUERY_ID_BYTES_MAX).decode("utf-8", "replace")
    finally:
        file.close()
