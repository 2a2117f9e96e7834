"""Find the names of streams in the log of the stream coordinator (docs/formats/rabbitmq-quorum.md#coordination)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from storageio import REAL_DISK, Disk, Kind, StoreCorrupt
from storebytes.finding import Finding

from ..format.terms import Atom, Improper
from ..read.metadata import own_name
from .entries import RaftEntry
from .folder import QuorumNode, QuorumQueue, quorum_nodes

_NEW_STREAM = "new_stream"
_WRITER_ENTRY = "mnesia_updated"
_RESOURCE = "resource"


def current_name(node: str, disk: Disk = REAL_DISK) -> str:
    """Return the name of a node, an empty text if nothing shows it.

    A node that began anew with another name has logs of both, and with Khepri no list: the newer ones are its own.
    """
    found = own_name(node, disk)
    systems = quorum_nodes(node, disk, folder="coordination") if not found else []
    times = {}
    for system in systems:
        with system:
            times[system.path.rpartition("/")[2]] = max((_last_time(one) for one in system.queues()), default=0)
    newest = max(times.values(), default=0)
    return found or next((name for name, time_ms in times.items() if time_ms and time_ms == newest), "")


def _last_time(member: QuorumQueue) -> int:
    """Return the time of the last entry of a log in milliseconds, 0 without one."""
    entries = member.entries()
    try:
        term = entries[entries.last].decode() if entries.last else None
    except (StoreCorrupt, KeyError):
        return 0
    found = term[1].get(Atom("ts")) if isinstance(term, tuple) and len(term) > 1 and isinstance(term[1], dict) else None
    return found if isinstance(found, int) else 0


def stream_names(node: str, disk: Disk = REAL_DISK, of: str = "") -> dict[str, tuple[str, str]]:
    """Return virtual host and name by folder of the streams that the coordinator's log or snapshot has.

    A renamed node has logs of both names; `of` is that of the one to read, if not all.
    Damage in these files is not reported: they hold no messages, and a stream without a name is still read.
    """
    path = f"{node}/coordination"
    found: dict[str, tuple[str, str]] = {}
    if disk.stat(path) is None:
        return found
    for folder in disk.list(path):
        if folder.kind is Kind.FOLDER and of in ("", folder.name):
            with QuorumNode(f"{path}/{folder.name}", disk) as log:
                for member in log.queues():
                    found |= _names_in(member)
    return found


def unregistered_streams(node: str, names: dict[str, tuple[str, str]], disk: Disk = REAL_DISK) -> list[Finding]:
    """Return the streams that are not in `names`, those of the coordinator: a server cannot start them.

    A renamed node knows only those that were declared since.
    """
    if disk.stat(f"{node}/stream") is None:
        return []
    logs = disk.list(f"{node}/coordination") if disk.stat(f"{node}/coordination") is not None else []
    if sum("@" in entry.name for entry in logs) > 1:
        names = stream_names(node, disk, current_name(node, disk))
    lost = "none" if logs else "no folder coordination"
    found = f"{lost}; a server cannot serve it, while dump and export read it"
    return [
        Finding(f"stream/{entry.name}", 0, "unregistered_stream", "a stream of the coordinator", found)
        for entry in disk.list(f"{node}/stream")
        if entry.kind is Kind.FOLDER and entry.name not in names
    ]


def is_writer_entry(entry: RaftEntry) -> bool:
    """Return whether the coordinator notes here that the metadata store has a stream's writer of an epoch."""
    if _WRITER_ENTRY.encode() not in bytes(entry.view[entry.at : entry.at + entry.size]):
        return False
    try:
        term = entry.decode()
    except StoreCorrupt:
        return False
    command = term[2] if isinstance(term, tuple) and len(term) == 4 else None
    return isinstance(command, tuple) and command[:1] == (_WRITER_ENTRY,)


def _names_in(member: QuorumQueue) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for snapshot in member.snapshots()[:1]:
        found |= dict(_streams(snapshot.state))
    for entry in member.entries().values():
        if _NEW_STREAM.encode() in bytes(entry.view[entry.at : entry.at + entry.size]):
            found |= _names_of(entry)
    return found


def _names_of(entry: RaftEntry) -> dict[str, tuple[str, str]]:
    try:
        return dict(_streams(entry.decode()))
    except StoreCorrupt:
        return {}


def _streams(term: Any) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield folder and name of each `{new_stream, Folder, ..}` and each entry of a map from folders."""
    for part in _parts(term):
        rows: list[tuple[Any, Any]] = list(part.items()) if isinstance(part, dict) else []
        if isinstance(part, tuple) and len(part) > 2 and part[0] == _NEW_STREAM:
            rows.append((part[1], part[2:]))
        for folder, value in rows:
            name = next(_resources(value), None) if isinstance(folder, bytes) else None
            if name is not None:
                yield folder.decode("utf-8", "replace"), name


def _parts(term: Any) -> Iterator[Any]:
    """Yield a term and every part of it; a decoded term has a limited depth."""
    yield term
    if isinstance(term, Improper):
        term = (*term.items, term.tail)
    for part in [*term.keys(), *term.values()] if isinstance(term, dict) else term if isinstance(term, tuple | list) else ():
        yield from _parts(part)


def _resources(term: Any) -> Iterator[tuple[str, str]]:
    """Yield the names in each `{resource, Vhost, queue, Name}`."""
    for part in _parts(term):
        if not isinstance(part, tuple) or len(part) != 4 or part[0] != _RESOURCE or part[2] != "queue":
            continue
        if isinstance(part[1], bytes) and isinstance(part[3], bytes):
            yield part[1].decode("utf-8", "replace"), part[3].decode("utf-8", "replace")
