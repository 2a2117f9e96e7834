"""Check the files from which a server of RabbitMQ 3 or 4.0 learns its queues and users (docs/formats/rabbitmq-4.md).

schema.DAT                 a DETS table: which tables there are
NAME.DCD  NAME.DCL         disk logs: the rows of a table, and the changes since they were written
*.LOG                      disk logs of transactions
cluster_nodes.config  nodes_running_at_shutdown    an Erlang term as text; also schema_version up to 3.10, and the feature flags

A disk log begins with 01020304 and 63584d0b, or 06070809 while it is open.  An item is its size:32, "bWLA", of a large one an
MD5:16, and a term.  A server that cannot read one of these files does not start, or knows no queue.  With an older copy of one
it starts, and refuses everybody or a virtual host: users, their permissions and the folders of virtual hosts must fit.
"""

from __future__ import annotations

import os
import struct

from storageio import REAL_DISK, Disk, Kind, StoreCorrupt, UnsupportedFormat, read_head
from storebytes.finding import Finding, finding_of

from ..format.config_text import parse_term
from ..format.dets_table import COOKIE, is_closed, read_dets
from ..format.layout import TABLE_ENDINGS
from ..format.names import vhost_folder_name
from .mnesia import (
    BAD_METADATA,
    ITEM_HEAD,
    ITEM_MAGIC,
    LOG_HEAD,
    MD5_FROM,
    MD5_SIZE,
    OPENED,
    PERMISSIONS,
    QUEUES,
    USERS,
    VHOSTS,
    Tables,
    read_tables,
)
from .vhost_folder import find_vhosts

_SCHEMA, _KHEPRI = "schema.DAT", "rabbitmq_metadata"
_TABLES = tuple(f"{table}.DCD" for table in (QUEUES, USERS, PERMISSIONS, VHOSTS))  # without another one a server starts
_TERMS = ("cluster_nodes.config", "nodes_running_at_shutdown")
_OF_NODE = (_SCHEMA, _TERMS[0])
_VERSION, _WITHOUT_VERSION = "schema_version", "feature_flags_v2"  # a flag of later servers, which need no such file
_SIZE_MAX = 1 << 30
_MAGIC, _CLOSED = b"\1\2\3\4", b"cXM\x0b"


def metadata_problems(node: str, disk: Disk = REAL_DISK) -> list[Finding]:
    """Return what a server could not read of a node's metadata: its feature flags, and Mnesia's files if it has some."""
    if disk.stat(f"{node}/msg_stores") is None:
        return []
    names = {entry.name for entry in disk.list(node)}
    flags, found = feature_flags(node, disk)
    if _KHEPRI in names or not names & {_SCHEMA, "LATEST.LOG", *_TABLES}:
        return found
    if _VERSION not in names and flags is not None and _WITHOUT_VERSION not in flags:
        found.append(Finding(_VERSION, 0, BAD_METADATA, "a list of names, which servers up to 3.10 read", "no file"))
    found += [
        Finding(name, 0, BAD_METADATA, "a file that every server has", "none; without it a server knows none of the queues")
        for name in sorted({_SCHEMA, *_TABLES} - names)
    ]
    own = node_names(node, disk)
    for name in sorted(names):
        if name in (_SCHEMA, _VERSION, *_TERMS) or name.endswith(TABLE_ENDINGS):
            try:
                _check(name, data := read_head(disk, f"{node}/{name}", _SIZE_MAX) or b"")
                _check_node(name, data, own)
            except (StoreCorrupt, UnsupportedFormat) as error:
                found.append(finding_of(error, BAD_METADATA))
    return found or contradictions(node, read_tables(node, disk), disk)


def feature_flags(node: str, disk: Disk) -> tuple[list[str] | None, list[Finding]]:
    """Return the names in the file of feature flags beside a node's folder, None without any; and why it is damaged.

    A server makes a missing one again, and does not start with another damage.
    """
    path = f"{os.path.abspath(node)}-feature_flags"
    data, name = read_head(disk, path, _SIZE_MAX), os.path.basename(path)
    if data is None:
        return None, []
    try:
        found = parse_term(data, name)
        return list(map(str, found)) if isinstance(found, list) else None, []
    except (StoreCorrupt, UnsupportedFormat) as error:
        return None, [finding_of(error, BAD_METADATA)]


def contradictions(node: str, tables: Tables, disk: Disk) -> list[Finding]:
    """Return why a server that reads all tables would refuse everybody, or all clients of a virtual host."""
    users, permissions = tables[USERS], tables[PERMISSIONS]
    folders = {vhost_folder_name(name.decode("utf-8", "replace")) for name in tables[VHOSTS]}
    found = [
        Finding(path.removeprefix(f"{node}/"), 0, "missing_vhost", f"a row in {VHOSTS}", "none; a server refuses its clients")
        for path in find_vhosts(node, disk)
        if path.rpartition("/")[2] not in folders
    ]
    named = sorted({str(key[1], "utf-8", "replace") for key in permissions if key[1] not in users})
    if named:
        expected = f"the users that {PERMISSIONS} names: {', '.join(named)}"
        found.append(Finding(f"{USERS}.DCD", 0, "missing_user", expected, "none of them; a server refuses them"))
    return found + [
        Finding(f"{table}.DCD", 0, kind, "at least one row", "none; a server refuses everybody whom no other service admits")
        for table, kind in ((USERS, "missing_user"), (PERMISSIONS, "missing_permission"))
        if not tables[table] and not named
    ]


def _check(name: str, data: bytes) -> None:
    """Raise `StoreCorrupt` for a file that the server would not read."""
    if name in (_VERSION, *_TERMS):
        parse_term(data, name)
    elif name != _SCHEMA:
        _check_log(name, data)
    elif data[4:8] != COOKIE or is_closed(data):  # the server repairs an open one
        read_dets(data, name)


def node_names(node: str, disk: Disk) -> list[str]:
    """Return the names of the folders of Raft logs, which are those of the node; a renamed one may have an old one, too."""
    above = [f"{node}/{name}" for name in ("quorum", "coordination") if disk.stat(f"{node}/{name}") is not None]
    folders = (entry for path in above for entry in disk.list(path) if entry.kind is Kind.FOLDER)
    return list(dict.fromkeys(entry.name for entry in folders if "@" in entry.name))


def own_name(node: str, disk: Disk) -> str:
    """Return the name of a node: that of its only folder of Raft logs, or the only one in its list; else an empty text."""
    for folder in ("quorum", "coordination"):
        entries = disk.list(f"{node}/{folder}") if disk.stat(f"{node}/{folder}") is not None else []
        if len(found := [entry.name for entry in entries if entry.kind is Kind.FOLDER and "@" in entry.name]) == 1:
            return found[0]
    try:
        known = parse_term(read_head(disk, f"{node}/{_TERMS[0]}", _SIZE_MAX) or b"", _TERMS[0])
    except (StoreCorrupt, UnsupportedFormat):  # reported by `metadata_problems`
        return ""
    nodes = known[0] if isinstance(known, tuple) and known and isinstance(known[0], list) else []
    return str(nodes[0]) if len(nodes) == 1 else ""


def _check_node(name: str, data: bytes, own: list[str]) -> None:
    """Raise `StoreCorrupt` for a file of another node: with it a server waits for that node, or does not start."""
    if own and data and name in _OF_NODE and not any(os.fsencode(one) in data for one in own):
        raise StoreCorrupt("a file of another node", file=name, offset=0, expected=f"the name {own[0]}", found="none")


def _check_log(name: str, data: bytes) -> None:
    """Walk the items of a closed log; the server cuts an open one where it ends, and makes an empty one again."""
    if not data and not name.endswith(".DCD"):
        return
    if data[:4] != _MAGIC or data[4:LOG_HEAD] not in (_CLOSED, OPENED):
        raise StoreCorrupt("not a disk log", file=name, offset=0, expected=_MAGIC + _CLOSED, found=data[:LOG_HEAD])
    at = LOG_HEAD
    while at < len(data) and data[4:LOG_HEAD] == _CLOSED:
        size = struct.unpack_from(">I", data.ljust(at + 4, b"\0"), at)[0]
        stop = at + ITEM_HEAD + size + (MD5_SIZE if size >= MD5_FROM else 0)
        if data[at + 4 : at + ITEM_HEAD] != ITEM_MAGIC or stop > len(data):
            raise StoreCorrupt("disk log item", file=name, offset=at, expected=ITEM_MAGIC, found=data[at : at + ITEM_HEAD])
        at = stop
