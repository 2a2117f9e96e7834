"""Compare the queues that a node's metadata declares with the folders that hold their messages (docs/formats/rabbitmq-4.md).

The rows of the table rabbit_durable_queue are in NAME.DCD, the changes since then in NAME.DCL and in the logs of transactions:

row       {amqqueue, Name, Durable, .., Arguments, Process, .., Type, State}      Name: {resource, Vhost, queue, Name}
change    {{rabbit_durable_queue, Name}, Row, write | delete | ..}

A server starts a queue without its folder as an empty one, so nothing else shows that its messages are gone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from storageio import REAL_DISK, Disk, Kind, StoreCorrupt, UnsupportedFormat, read_head

from ..files import SMALL_SIZE_MAX
from ..format.config_text import parse_term
from ..format.layout import QUEUE_NAME_FILE
from ..format.names import index_version, part_name, queue_folder_name, vhost_folder_name
from ..format.problems import Problem
from ..format.terms import Atom
from ..format.terms_cy import decode
from .folder import quorum_nodes

TABLE = "rabbit_durable_queue"
LOG_HEAD, ITEM_HEAD, MD5_FROM, MD5_SIZE = 8, 8, 65528, 16
_LOGS = (f"{TABLE}.DCD", f"{TABLE}.DCL", "PREVIOUS.LOG", "LATEST.LOG")
_SIZE_MAX = 1 << 30
_ROW_MIN = 18  # fields of a row that has a type
_PROCESS = 6
_PRIORITIES_MAX = 255
_SINCE_4 = "node-type.txt"


class _Declared(NamedTuple):
    """A row of the table."""

    vhost: str
    name: bytes
    row: tuple[Any, ...]

    @property
    def state(self) -> dict[Any, Any]:
        return self.row[-1] if isinstance(self.row[-1], dict) else {}

    def is_on(self, node: str) -> bool:
        """Return whether a node has a part of the queue: another one of the cluster may have all of it."""
        members = self.state.get(Atom("nodes"), ())
        return node in members if members else node in str(self.row[_PROCESS])


def missing_queues(node: str, disk: Disk = REAL_DISK) -> list[Problem]:
    """Return the declared queues whose folder is not there; nothing where the metadata cannot be read.

    The rows of Khepri are not read: of a node with it only the folder that every server has is expected.
    """
    if disk.stat(f"{node}/rabbitmq_metadata") is not None and not quorum_nodes(node, disk):
        return [Problem("quorum", 0, "missing_queue", "a folder of the node, which every server has", "none")]
    name = _node_name(node, disk)
    declared = [one for one in _declared(node, disk) if one.is_on(name)] if name else []
    logs = _logged(node, disk) if any(one.row[-2] == "rabbit_quorum_queue" for one in declared) else set()
    found = []
    for one in declared:
        folder = _missing_folder(node, one, logs, disk)
        if folder:
            expected = f"the folder of queue {one.name.decode('utf-8', 'replace')!r}, which the metadata declares"
            found.append(Problem(folder, 0, "missing_queue", expected, "none; a server starts the queue empty"))
    return found


def declared_names(node: str, vhost: str, disk: Disk = REAL_DISK) -> list[str]:
    """Return the names of the queues of a virtual host that the metadata of a node declares."""
    return [one.name.decode("utf-8", "replace") for one in _declared(node, disk) if one.vhost == vhost]


def _missing_folder(node: str, one: _Declared, logs: set[str], disk: Disk) -> str:
    """Return where the messages of a queue should be and are not; an empty text if they are there."""
    kind = one.row[-2]
    if kind == "rabbit_quorum_queue":
        process = one.row[_PROCESS]
        return "" if not isinstance(process, tuple) or process[0] in logs else "quorum"
    if kind == "rabbit_stream_queue":
        name = one.state.get(Atom("name"))
        path = f"stream/{name.decode('utf-8', 'replace')}" if isinstance(name, bytes) else ""
        return path if path and disk.stat(f"{node}/{path}") is None else ""
    return _missing_part(node, one, disk) if kind == "rabbit_classic_queue" else ""


def _missing_part(node: str, one: _Declared, disk: Disk) -> str:
    """Return the folder of a part of a classic queue that is not there and should be.

    Version 2 makes it when the queue is declared; version 1 makes it for the first message.
    """
    vhost = f"msg_stores/vhosts/{vhost_folder_name(one.vhost)}"
    folders = (f"{vhost}/queues/{queue_folder_name(one.vhost, part)}" for part in _parts(one))
    found = next((path for path in folders if disk.stat(f"{node}/{path}") is None), "")
    if not found:
        return ""
    versions = _versions(f"{node}/{vhost}/queues", disk)
    if not versions:
        stored = f"{node}/{vhost}/msg_store_persistent"
        files = [entry for entry in disk.list(stored) if entry.name.endswith(".rdq")] if disk.stat(stored) is not None else []
        is_expected = disk.stat(f"{node}/{_SINCE_4}") is not None or any(entry.size_bytes for entry in files)
        return found if is_expected else ""
    return found if versions == {2} else ""


def _versions(queues: str, disk: Disk) -> set[int]:
    """Return the versions of the indexes of the queues that are there."""
    names = [entry.name for entry in disk.list(queues) if entry.kind is Kind.FOLDER] if disk.stat(queues) is not None else []
    return {index_version(read_head(disk, f"{queues}/{name}/{QUEUE_NAME_FILE}", SMALL_SIZE_MAX)) for name in names}


def _parts(one: _Declared) -> list[bytes]:
    """Return the names of the parts of a classic queue: one, or one for each priority."""
    arguments = one.row[5] if isinstance(one.row[5], list) else []
    highest = next((each[2] for each in arguments if isinstance(each, tuple) and each[0] == b"x-max-priority"), 0)
    if not isinstance(highest, int) or not 0 < highest <= _PRIORITIES_MAX:
        return [one.name]
    return [one.name + part_name("", priority) for priority in range(highest + 1)]


def _node_name(node: str, disk: Disk) -> str:
    """Return the name of the node, which is that of its Raft folders; of a cluster without any an empty text."""
    for folder in ("quorum", "coordination"):
        entries = disk.list(f"{node}/{folder}") if disk.stat(f"{node}/{folder}") is not None else []
        if len(found := [entry.name for entry in entries if entry.kind is Kind.FOLDER and "@" in entry.name]) == 1:
            return found[0]
    try:
        known = parse_term(read_head(disk, f"{node}/cluster_nodes.config", _SIZE_MAX) or b"", "cluster_nodes.config")
    except (StoreCorrupt, UnsupportedFormat):  # reported by the check of the metadata
        return ""
    nodes = known[0] if isinstance(known, tuple) and known and isinstance(known[0], list) else []
    return str(nodes[0]) if len(nodes) == 1 else ""


def _logged(node: str, disk: Disk) -> set[str]:
    """Return the processes of the quorum queues that have a folder, or a row in `names.dets`."""
    found: set[str] = set()
    for system in quorum_nodes(node, disk):
        with system:
            found |= {str(name) for name in system.registered()}
            found |= {str(queue.registered_name) for queue in system.queues()}
    return found


def _declared(node: str, disk: Disk) -> list[_Declared]:
    rows: dict[Any, Any] = {}
    for name in _LOGS:
        for term in _terms(read_head(disk, f"{node}/{name}", _SIZE_MAX) or b""):
            for key, row in _changes(term):
                rows[key] = row
    known = [(key, row) for key, row in rows.items() if row is not None and len(row) >= _ROW_MIN and _is_name(key)]
    return [_Declared(key[1].decode("utf-8", "replace"), key[3], row) for key, row in known]


def _is_name(key: Any) -> bool:
    return isinstance(key, tuple) and len(key) == 4 and isinstance(key[1], bytes) and isinstance(key[3], bytes)


def _terms(data: bytes) -> Iterator[Any]:
    """Yield the items of a disk log that name a queue, up to the first damaged one, which another check reports."""
    at = LOG_HEAD
    while at + ITEM_HEAD <= len(data):
        size = struct.unpack_from(">I", data, at)[0]
        start = at + ITEM_HEAD + (MD5_SIZE if size >= MD5_FROM else 0)
        at = start + size
        item = data[start:at]
        if not size or at > len(data):
            return
        if b"amqqueue" in item or TABLE.encode() in item:
            try:
                yield decode(item)
            except (StoreCorrupt, UnsupportedFormat):
                return


def _changes(term: Any) -> Iterator[tuple[Any, tuple[Any, ...] | None]]:
    """Yield name and row of each queue that an item has, None for the row of a deleted one."""
    if isinstance(term, tuple) and term[:1] == ("amqqueue",):
        yield term[1], term
    elif isinstance(term, tuple) and term[:1] == ("commit",):
        for part in term:
            for change in part if isinstance(part, list) else ():
                yield from _change(change)
    else:
        yield from _change(term)


def _change(change: Any) -> Iterator[tuple[Any, tuple[Any, ...] | None]]:
    if isinstance(change, tuple) and len(change) == 3 and isinstance(change[0], tuple) and change[0][:1] == (TABLE,):
        key, row, action = change
        if len(key) == 2:
            yield key[1], row if action == "write" and isinstance(row, tuple) else None
