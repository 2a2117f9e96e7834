"""Read the rows of Mnesia's tables: the declarations of RabbitMQ 3 and 4.0 (docs/formats/rabbitmq-metadata.md#mnesia).

The rows are in NAME.DCD, the changes since then in NAME.DCL and in the logs of transactions:

row       a record: {amqqueue, Name, Durable, ..}   {vhost, Name, ..}   {route, {binding, ..}, const}
change    {{Table, Key}, Row, write | delete | delete_object}   {{Table, '_'}, '_', clear_table}
log       {commit, Node, presume_commit | {decision, Transaction, ..}, Changes, ..}
          {decision, Transaction, committed | aborted, ..}
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from storageio import REAL_DISK, Disk, StoreCorrupt, UnsupportedFormat, read_head
from storebytes.finding import Finding, finding_of

from ..format.terms import Opaque, map_key
from ..format.terms_cy import decode

QUEUES, EXCHANGES, BINDINGS, USERS, PERMISSIONS, TOPIC_PERMISSIONS, VHOSTS, PARAMETERS = (
    f"rabbit_{name}"
    for name in (
        "durable_queue", "durable_exchange", "durable_route", "user", "user_permission", "topic_permission", "vhost",
        "runtime_parameters",
    )
)  # fmt: skip
LOG_HEAD, ITEM_HEAD, MD5_FROM, MD5_SIZE = 8, 8, 65528, 16
ITEM_MAGIC = b"bWLA"
OPENED = b"\6\7\x08\x09"  # in the head of a log while it is open
BAD_METADATA = "bad_metadata"
TAGS = {
    QUEUES: "amqqueue", EXCHANGES: "exchange", BINDINGS: "route", USERS: "internal_user", PERMISSIONS: "user_permission",
    TOPIC_PERMISSIONS: "topic_permission", VHOSTS: "vhost", PARAMETERS: "runtime_parameters",
}  # fmt: skip
_SIZE_MAX = 1 << 30
_KEY_TAGS = {
    QUEUES: ("resource", 4), EXCHANGES: ("resource", 4), BINDINGS: ("binding", 5), PERMISSIONS: ("user_vhost", 3),
    TOPIC_PERMISSIONS: ("topic_permission_key", 3),
}  # fmt: skip
_WORDS = (*(word.encode() for pair in TAGS.items() for word in pair), b"decision")
_LOGS = ("PREVIOUS.LOG", "LATEST.LOG")
_DECISIONS = "DECISION_TAB.LOG"
Row = tuple[Any, ...]
Tables = dict[str, dict[Any, Row]]


def has_tables(names: set[str]) -> bool:
    """Return whether the names in a node's folder show tables of Mnesia; a server that changes to Khepri deletes them."""
    return bool(names & {"schema.DAT", *_LOGS, *(f"{table}.DCD" for table in TAGS)})


def read_tables(node: str, disk: Disk = REAL_DISK, problems: list[Finding] | None = None) -> Tables:
    """Return the rows of the tables by key; `problems` gets what could not be read of them.

    Of a damaged item only that item is lost, if the next one can be found.  Missing files are reported by another check.
    """
    found: Tables = {table: {} for table in TAGS}
    problems = [] if problems is None else problems
    for name in (f"{table}.{ending}" for table in TAGS for ending in ("DCD", "DCL")):
        for term in _terms(node, name, disk, problems):
            for change in _stored(term):
                _apply(found, change)
    logs = [list(_terms(node, name, disk, problems)) for name in _LOGS]
    committed = _committed([*logs, list(_terms(node, _DECISIONS, disk, problems))])
    for term in (term for log in logs for term in log):
        if isinstance(term, tuple) and term and term[0] == "commit" and _is_committed(term, committed):
            for change in (change for part in term if isinstance(part, list) for change in part):
                _apply(found, change)
    return found


def _terms(node: str, name: str, disk: Disk, problems: list[Finding]) -> Iterator[Any]:
    """Yield the items of a disk log that name a table or have a row; others are not decoded."""
    data = read_head(disk, f"{node}/{name}", _SIZE_MAX) or b""
    at = LOG_HEAD
    while at + ITEM_HEAD <= len(data):
        size = struct.unpack_from(">I", data, at)[0]
        start = at + ITEM_HEAD + (MD5_SIZE if size >= MD5_FROM else 0)
        stop = start + size
        if data[at + 4 : at + ITEM_HEAD] != ITEM_MAGIC or stop > len(data):
            following = data.find(ITEM_MAGIC, at + ITEM_HEAD)
            if following < 0 and not _is_damage(data, at):
                return  # the server cuts an unfinished item
            problems.append(Finding(name, at, BAD_METADATA, "an item of a log", repr(data[at : at + ITEM_HEAD])))
            if following < 0:
                return
            at = following - 4
            continue
        item = data[start:stop]
        if any(word in item for word in _WORDS):
            try:
                yield decode(item)
            except (StoreCorrupt, UnsupportedFormat) as error:
                problems.append(finding_of(error, BAD_METADATA)._replace(file=name, offset=start))
        at = stop


def _is_damage(data: bytes, at: int) -> bool:
    """Return whether the end of a log, from an item that cannot be read on, is not what a kill leaves of an open one."""
    is_begun = data[4:LOG_HEAD] == OPENED and data[at + 4 : at + ITEM_HEAD] == ITEM_MAGIC
    return any(data[at:]) and not is_begun


def _stored(term: Any) -> Iterator[Any]:
    """Yield the change that an item of a table's files stands for: a row is written."""
    if isinstance(term, tuple) and len(term) > 1:
        table = next((table for table, tag in TAGS.items() if term[0] == tag), None)
        yield term if table is None else ((table, term[1]), term, "write")


def _committed(logs: list[list[Any]]) -> set[Any]:
    """Return the transactions that a log has as committed."""
    found = set()
    for term in (term for log in logs for term in log):
        if isinstance(term, tuple) and len(term) > 2 and term[0] == "decision" and term[2] == "committed":
            found.add(map_key(term[1]))
    return found


def _is_committed(commit: Row, committed: set[Any]) -> bool:
    """Return whether a start carries out the changes: of a transaction of several tables only with the decision behind it."""
    decision = commit[2] if len(commit) > 2 else None
    if not isinstance(decision, tuple) or len(decision) < 3 or isinstance(decision, Opaque) or decision[0] != "decision":
        return True
    return decision[2] != "presume_abort" or map_key(decision[1]) in committed


def _apply(tables: Tables, change: Any) -> None:
    if not isinstance(change, tuple) or len(change) != 3 or not isinstance(change[0], tuple) or len(change[0]) != 2:
        return
    (table, key), row, action = change
    if table not in tables:
        return
    if action == "clear_table":
        tables[table].clear()
    elif _is_key(table, key):
        if action == "write" and isinstance(row, tuple):
            tables[table][map_key(key)] = row
        else:
            tables[table].pop(map_key(key), None)


def _is_key(table: str, key: Any) -> bool:
    """Return whether a key has the form that the server writes: a name, or for some tables a tuple of names."""
    if table == PARAMETERS:  # of the cluster an atom, of a virtual host three names
        return isinstance(key, str) or (isinstance(key, tuple) and len(key) == 3 and all(isinstance(one, bytes) for one in key))
    if table not in _KEY_TAGS:
        return isinstance(key, bytes)
    tag, size = _KEY_TAGS[table]
    if not isinstance(key, tuple) or len(key) != size or key[0] != tag:
        return False
    if table == BINDINGS:
        return _is_key(EXCHANGES, key[1]) and _is_key(QUEUES, key[3]) and isinstance(key[2], bytes)
    first = key[1] if table != TOPIC_PERMISSIONS else b"" if _is_key(PERMISSIONS, key[1]) else None
    return isinstance(first, bytes) and isinstance(key[-1], bytes)
