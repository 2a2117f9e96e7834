"""Find the name of a classic queue without a valid `.queue_name` in the metadata of its node.

The folder is named after the MD5 of virtual host and name (docs/formats/rabbitmq-folder.md#names), and a server looks for the
folder of each queue that it has declared.  The hash proves a name, wherever it is.  So the files of Mnesia and of Khepri's log
are searched for the bytes of `{resource, Vhost, queue, Name}`, without a replay, and past damage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from storageio import Disk, Kind, read_head

from ..format.layout import TABLE_ENDINGS
from ..format.names import part_name, queue_folder_name

_ABOVE = "/msg_stores/vhosts/"
_PRIORITIES = 256
_SIZE_MAX = 1 << 30
_ENDINGS = (*TABLE_ENDINGS, ".wal", ".segment", "snapshot.dat")
_QUEUE = re.compile(rb"(?s)(?:[ws]\x05|d\0\x05)queuem\0\0\0(.)")  # the atom in each encoding, and a binary of up to 255 bytes


def part_of_names(vhost: str, folder: str, names: Iterable[bytes]) -> bytes | None:
    """Return the name that a queue's folder is named after, with its priority if it is of a part; None if none fits."""
    known = list(dict.fromkeys(names))
    parts = (part_name(name, level) for level in (None, *range(_PRIORITIES)) for name in known)
    return next((part for part in parts if queue_folder_name(vhost, part) == folder), None)


def declared_names(vhost_path: str, vhost: str, disk: Disk) -> list[bytes]:
    """Return the names of the queues of a virtual host that the metadata of its node has, or had before a deletion."""
    node, found, _folder = vhost_path.rstrip("/").rpartition(_ABOVE)
    head = b"m" + len(vhost.encode()).to_bytes(4, "big") + vhost.encode()
    names: dict[bytes, None] = {}
    for path in _files(node, disk) if found else ():
        data = read_head(disk, path, _SIZE_MAX) or b""
        for match in _QUEUE.finditer(data):
            if data.endswith(head, 0, match.start()):
                names[data[match.end() : match.end() + match[1][0]]] = None
    return list(names)


def _files(node: str, disk: Disk) -> Iterator[str]:
    """Yield the files of Mnesia, which lie in the node's folder, and all of the logs in `coordination`."""
    folders = [f"{node}/coordination"]
    yield from (f"{node}/{entry.name}" for entry in disk.list(node) if _is_metadata(entry.name) and entry.kind is Kind.FILE)
    while folders:
        path = folders.pop()
        for entry in disk.list(path) if disk.stat(path) is not None else ():
            if entry.kind is Kind.FOLDER:
                folders.append(f"{path}/{entry.name}")
            elif entry.kind is Kind.FILE and _is_metadata(entry.name):
                yield f"{path}/{entry.name}"


def _is_metadata(name: str) -> bool:
    return name.endswith(_ENDINGS)
