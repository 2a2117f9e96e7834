"""Read the tree from the log of `rabbitmq_metadata` (docs/formats/rabbitmq-metadata.md#khepri)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from storageio import REAL_DISK, Disk, StoreCorrupt, UnsupportedFormat
from storebytes.finding import Finding, finding_of

from ..format.terms import Atom, key_term, map_key
from ..quorum.coordinator import current_name
from ..quorum.entries import RaftEntry
from ..quorum.folder import QuorumQueue, quorum_nodes
from ..quorum.snapshot import Snapshot
from ..read.mnesia import TAGS, Tables
from .transaction import TransactionRunner
from .tree import Conditions, Path, RefusedChangeError, Tree, TreeNode, conditions_of, keep_while_of, path_of

STORE = "rabbitmq_metadata"
_KIND = "bad_metadata"
_MACHINE = "khepri_machine"
_IGNORED = (
    "register_trigger", "ack_triggered", "register_projection", "unregister_projection", "unregister_projections",
    "drop_dedups", "machine_version",
)  # fmt: skip


def read_metadata(node: str, problems: list[Finding], disk: Disk = REAL_DISK) -> list[tuple[Path, Any]] | None:
    """Return path and data of every node of the tree; None for a folder without Khepri's log.

    What is damaged or not known is added to `problems`: the result may then lack declarations, or have deleted ones.
    """
    systems = quorum_nodes(node, disk, folder="coordination")
    own = current_name(node, disk) if len(systems) > 1 else ""
    for system in systems:
        if own not in ("", system.path.rpartition("/")[2]):  # of a former name
            continue
        with system:
            members = system.queues()
            member = next((one for one in members if one.registered_name == STORE), None)
            if member is None:
                problems += system.problems
                continue
            found = _Reader(member).read()
            system.check_end(member)
            problems += dict.fromkeys(system.problems)
            return found
    return None


def read_khepri_tables(node: str, problems: list[Finding], disk: Disk = REAL_DISK) -> Tables | None:
    """Return the records of the tree by the table that Mnesia has for them, and by their key; see `read_metadata`."""
    tree = read_metadata(node, problems, disk)
    if tree is None:
        return None
    found: Tables = {table: {} for table in TAGS}
    tables = {tag: rows_of for table, tag in TAGS.items() for rows_of in [found[table]]}
    for row in rows(tree):
        if len(row) > 1 and row[0] in tables:
            tables[row[0]][map_key(row[1])] = row
    return found


class _Reader:
    """Applies the commands of one log to a tree."""

    def __init__(self, member: QuorumQueue) -> None:
        self._member = member
        self._problems = member.node.problems
        self._transactions = TransactionRunner(Tree())
        self._applied: set[Any] = set()  # references of commands that a client may send again

    def read(self) -> list[tuple[Path, Any]]:
        entries, before = self._member.entries(), len(self._problems)
        first = self._start()
        if first or len(self._problems) == before:
            self._member.check_start(first)
        else:
            first = next(iter(entries), 0)  # what is missing before is in a damaged snapshot
        expected = first
        for index in entries.since(first):
            if index > expected and index > 1:
                found = f"entry {index}"
                self._problems.append(Finding(self._member.relative, 0, "missing_entries", f"entry {expected}", found))
            self._apply_entry(entries[index])
            expected = index + 1
        return [(path, node.data) for path, node in self._transactions.tree.walk() if node.data is not None]

    def _start(self) -> int:
        """Restore the newest snapshot that can be decoded, and return the index of the entry after it."""
        for snapshot in self._member.snapshots():
            try:
                self._restore(snapshot)
            except (StoreCorrupt, UnsupportedFormat) as error:
                self._problems.append(finding_of(error, "bad_snapshot"))
                continue
            return snapshot.index + 1
        return 0

    def _restore(self, snapshot: Snapshot) -> None:
        state: Any = snapshot.state
        tree = state[2] if isinstance(state, tuple) and len(state) > 2 and state[0] == _MACHINE else None
        if not isinstance(tree, tuple) or len(tree) != 4 or tree[0] != "tree" or not isinstance(tree[2], dict):
            expected = "a tree of Khepri"
            raise StoreCorrupt("not a state", file=snapshot.file, offset=snapshot.at, expected=expected, found=repr(tree)[:40])
        try:
            conditions: dict[Path, Conditions] = {path_of(key_term(key)): conditions_of(each) for key, each in tree[2].items()}
            self._transactions.tree.restore(_tree_node(tree[1]), conditions)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise StoreCorrupt(
                "not a tree", file=snapshot.file, offset=snapshot.at, expected="nodes", found=repr(error)[:60]
            ) from error
        self._transactions.machine_version = snapshot.machine_version

    def _apply_entry(self, entry: RaftEntry) -> None:
        try:
            term = entry.decode()
            if isinstance(term, tuple) and len(term) == 3 and term[0] == "noop" and isinstance(term[2], int):
                self._transactions.machine_version = term[2]
            elif isinstance(term, tuple) and len(term) == 4 and term[0] == "$usr":
                self._apply(term[2])
        except (StoreCorrupt, UnsupportedFormat) as error:
            self._problems.append(_problem(error, entry))
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            self._problems.append(Finding(entry.file, entry.at, "bad_entry", "a command of Khepri", repr(error)[:60]))
        self._transactions.tree.commit()

    def _apply(self, command: Any) -> None:
        """Apply a command; raise `UnsupportedFormat` for one that is not known."""
        tree = self._transactions.tree
        name = str(command[0])
        if name == "dedup" and len(command) == 4:
            if command[1] not in self._applied:
                self._applied.add(command[1])
                self._apply(command[3])
        elif name == "dedup_ack":
            self._applied.discard(command[1])
        elif name == "put" and len(command) == 4:
            try:
                tree.put(command[1], command[2], keep_while_of(command[3]))
            except RefusedChangeError:
                return  # the client got an error
        elif name == "delete" and len(command) == 3:
            tree.delete(command[1])
        elif name == "tx" and len(command) == 3:
            self._transactions.apply(self._function(command[1]), command[2])
        elif name not in _IGNORED:
            raise UnsupportedFormat("command", file="", offset=0, found=name, supported="those of RabbitMQ 4.0 to 4.3")

    def _function(self, function: Any) -> Any:
        """Return the function of a transaction: itself, or the one that is stored under a path."""
        return self._transactions.tree.get(function)[1].payload[1] if isinstance(function, list) else function


def _problem(error: StoreCorrupt | UnsupportedFormat, entry: RaftEntry) -> Finding:
    """Return a problem at the place of the entry, which an error of its parts does not know."""
    return finding_of(error, "bad_entry")._replace(file=entry.file, offset=entry.at)


def _tree_node(record: Any) -> TreeNode:
    """Return a node of a snapshot: `{node, #{payload_version => N, ..}, Payload, Children}`."""
    _name, properties, payload, children = record
    node = TreeNode(payload, int(properties[Atom("payload_version")]))
    node.children = {name: _tree_node(child) for name, child in children.items()}
    return node


def rows(found: list[tuple[Path, Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield the records of a tree; bindings are the elements of sets."""
    for _path, data in found:
        if isinstance(data, dict):
            yield from (term for key in data if isinstance(term := key_term(key), tuple))
        elif isinstance(data, tuple):
            yield data
