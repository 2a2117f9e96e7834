"""Compare the queues that a node's metadata declares with the folders that hold their messages (docs/formats/rabbitmq-4.md).

A server starts a queue without its folder as an empty one, so nothing else shows that its messages are gone.  Of a folder whose
queue is not declared it delivers nothing.
"""

from __future__ import annotations

from contextlib import closing
from os import fsencode
from typing import Any, NamedTuple

from storageio import REAL_DISK, Disk, Kind, read_head
from storebytes.finding import Finding

from .files import SMALL_SIZE_MAX
from .format.layout import QUEUE_NAME_FILE
from .format.names import index_version, part_name, queue_folder_name, vhost_folder_name
from .format.terms import TRUE, Atom
from .khepri.store import read_khepri_tables
from .quorum.coordinator import current_name
from .quorum.folder import quorum_nodes
from .read.metadata import contradictions
from .read.mnesia import QUEUES, VHOSTS, Tables, has_tables, read_tables
from .read.vhost_folder import VhostFolder, find_vhosts

_ROW_MIN = 18  # fields of a row that has a type
_DURABLE, _PROCESS = 2, 6
_PRIORITIES_MAX = 255
_SINCE_4, _SINCE_KHEPRI = "node-type.txt", "rabbitmq_metadata"


class _Declared(NamedTuple):
    """A row of the table."""

    vhost: str
    name: bytes
    row: tuple[Any, ...]

    @property
    def has_type(self) -> bool:
        """Return whether the row has a type and a state; those of servers before 3.8 have none."""
        return len(self.row) >= _ROW_MIN

    @property
    def is_kept(self) -> bool:
        """Return whether the queue is durable: Khepri has others, too, whose folders a stop removes."""
        return bool(self.row[_DURABLE] == TRUE)

    @property
    def state(self) -> dict[Any, Any]:
        return self.row[-1] if isinstance(self.row[-1], dict) else {}

    def is_on(self, node: str) -> bool:
        """Return whether a node has a part of the queue: another one of the cluster may have all of it."""
        members = self.state.get(Atom("nodes"), ())
        return node in members if members else node in str(self.row[_PROCESS])


def declaration_problems(node: str, disk: Disk = REAL_DISK) -> list[Finding]:
    """Return the declared queues without a folder, and the folders of queues that are not declared.

    The tree of Khepri is the result of its whole log: if something of that is damaged or not known, the result has only this.
    What of Mnesia's files is damaged, another check reports.
    """
    problems: list[Finding] = []
    if disk.stat(f"{node}/{_SINCE_KHEPRI}") is not None and not quorum_nodes(node, disk):
        problems.append(Finding("quorum", 0, "missing_queue", "a folder of the node, which every server has", "none"))
    tables, is_mnesia = _tables(node, disk, problems)
    if problems or tables is None:
        return problems
    rows = _declared(tables)
    found = [] if is_mnesia else [_in_khepri(one) for one in contradictions(node, tables, disk)]
    return found + _missing_queues(node, rows, disk) + _undeclared_queues(node, rows, disk)


def unreported(found: list[Finding], known: list[Finding]) -> list[Finding]:
    """Return the findings that are not known: a check of the files may have met the same damage, with other words."""
    positions = {(one.file, one.offset, one.kind) for one in known}
    return [one for one in found if (one.file, one.offset, one.kind) not in positions]


def _in_khepri(found: Finding) -> Finding:
    """Return a finding about a file of Mnesia as one about the logs that have the same."""
    return found._replace(file="coordination") if found.file.endswith(".DCD") else found


def _missing_queues(node: str, rows: list[_Declared], disk: Disk) -> list[Finding]:
    """Return the declared queues whose folder is not there; nothing where the metadata cannot be read."""
    name = current_name(node, disk)
    declared = [one for one in rows if one.has_type and one.is_kept and one.is_on(name)] if name else []
    logs = _logged(node, disk) if any(one.row[-2] == "rabbit_quorum_queue" for one in declared) else set()
    found = []
    for one in declared:
        folder = _missing_folder(node, one, logs, disk)
        if folder:
            expected = f"the folder of queue {one.name.decode('utf-8', 'replace')!r}, which the metadata declares"
            found.append(Finding(folder, 0, "missing_queue", expected, "none; a server starts the queue empty"))
    return found


def _undeclared_queues(node: str, rows: list[_Declared], disk: Disk) -> list[Finding]:
    """Return the folders whose messages no server delivers, because the metadata has no such queue.

    A queue that is not durable is not in Mnesia's table either; none of its messages is persistent.
    """
    found = _undeclared_classic(node, rows, disk) + _undeclared_quorum(node, rows, disk)
    streams = {one.state.get(Atom("name")) for one in rows if one.has_type}
    folders = [entry.name for entry in disk.list(f"{node}/stream")] if disk.stat(f"{node}/stream") is not None else []
    found += [(f"stream/{name}", name) for name in folders if fsencode(name) not in streams]
    delivered = "none; no server delivers its messages, while dump and export read them"
    return [Finding(file, 0, "undeclared_queue", f"a declaration for {name!r}", delivered) for file, name in found]


def _undeclared_classic(node: str, rows: list[_Declared], disk: Disk) -> list[tuple[str, str]]:
    known = {(vhost_folder_name(one.vhost), queue_folder_name(one.vhost, part)) for one in rows for part in _parts(one)}
    found = []
    for path in find_vhosts(node, disk):
        vhost = path.rpartition("/")[2]
        with closing(VhostFolder(path, disk)) as folder:
            left = [queue for queue in folder.queue_folders() if (vhost, queue.folder) not in known]
            names = [(queue.folder, queue.queue) for queue in left if folder.queue_info(queue).persistent]
        found += [(f"{path.removeprefix(node + '/')}/queues/{location}", name) for location, name in names]
    return found


def _undeclared_quorum(node: str, rows: list[_Declared], disk: Disk) -> list[tuple[str, str]]:
    """Return the queues whose process no row has, and all in the folder of another name: a renamed node reads only its own.

    A queue may be killed while it is deleted, after its row.
    """
    processes = {process[0] for one in rows if isinstance(process := one.row[_PROCESS], tuple) and process}
    name = current_name(node, disk)
    found = []
    for system in quorum_nodes(node, disk):
        known = processes if name in ("", system.path.rpartition("/")[2]) else set()
        with system:
            left = [queue for queue in system.queues() if queue.registered_name and queue.registered_name not in known]
            found += [(queue.relative, queue.queue) for queue in left if not system.is_deleted(queue.uid)]
    return found


def declared_members(node: str, vhost: str, disk: Disk = REAL_DISK) -> dict[str, int]:
    """Return on how many nodes the metadata of one has each replicated queue of a virtual host."""
    tables, _is_mnesia = _tables(node, disk, [])
    rows = [] if tables is None else _declared(tables)
    found = {one.name.decode("utf-8", "replace"): one.state.get(Atom("nodes"), ()) for one in rows if one.vhost == vhost}
    return {name: len(nodes) for name, nodes in found.items() if nodes}


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
        is_since_4 = any(disk.stat(f"{node}/{name}") is not None for name in (_SINCE_4, _SINCE_KHEPRI))
        is_expected = is_since_4 or any(entry.size_bytes for entry in files)
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
    return [part_name(one.name, priority) for priority in range(highest + 1)]


def _logged(node: str, disk: Disk) -> set[str]:
    """Return the processes of the quorum queues that have a folder, or a row in `names.dets`."""
    found: set[str] = set()
    for system in quorum_nodes(node, disk):
        with system:
            found |= {str(name) for name in system.registered()}
            found |= {str(queue.registered_name) for queue in system.queues()}
    return found


def _tables(node: str, disk: Disk, problems: list[Finding]) -> tuple[Tables | None, bool]:
    """Return the metadata by table, None without any, and whether it is Mnesia's; `problems` gets those of Khepri.

    A server of 4.0 with Mnesia has Khepri's log as well, and nothing in it.
    """
    if disk.stat(node) is not None and has_tables({entry.name for entry in disk.list(node)}):
        return read_tables(node, disk), True
    tables = read_khepri_tables(node, problems, disk)
    is_used = tables is not None and (tables[VHOSTS] or disk.stat(f"{node}/{_SINCE_KHEPRI}") is not None)
    return tables if is_used else None, False


def _declared(tables: Tables) -> list[_Declared]:
    rows = tables[QUEUES]
    return [_Declared(key[1].decode("utf-8", "replace"), key[3], row) for key, row in rows.items() if len(row) > _PROCESS]
