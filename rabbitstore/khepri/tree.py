"""The tree of Khepri (docs/formats/rabbitmq-metadata.md#khepri): paths, payloads, and conditions that keep a node."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from storageio import UnsupportedFormat

from ..format.terms import FALSE, TRUE, Atom, TermKey, key_term, map_key

NO_PAYLOAD, DATA = Atom("$__NO_PAYLOAD__"), Atom("p_data")
PAYLOAD, VERSION, REASON = Atom("data"), Atom("payload_version"), Atom("delete_reason")
_ERROR, _KHEPRI = Atom("error"), Atom("khepri")
_ANY, _IF_ALL, _IF_ANY = "any", "if_all", "if_any"
Path = tuple[Any, ...]
Conditions = dict[Any, Any]  # a condition by the path of the node that it is about
Changed = dict[Path, dict[Any, Any]]


class TreeNode:
    """A node: its payload and how often that changed, and its children by name."""

    __slots__ = ("children", "payload", "version")

    def __init__(self, payload: Any = NO_PAYLOAD, version: int = 1) -> None:
        """Create a node without children."""
        self.payload = payload
        self.version = version
        self.children: dict[Any, TreeNode] = {}

    @property
    def data(self) -> Any:
        """The data; None without any."""
        return self.payload[1] if isinstance(self.payload, tuple) and self.payload[0] == DATA else None

    def properties(self) -> dict[Any, Any]:
        """Return what a function sees of the node."""
        found: dict[Any, Any] = {VERSION: self.version}
        return found if self.data is None else found | {PAYLOAD: self.data}


class RefusedChangeError(Exception):
    """A condition of the path is not met: the tree stays as it was."""

    def __init__(self, reason: str) -> None:
        """Take Khepri's name of the reason."""
        super().__init__(reason)
        self.reason = reason

    def term(self) -> Any:
        """Return the error as a function sees it."""
        return _ERROR, (_KHEPRI, Atom(self.reason), {})


class Tree:
    """The nodes, and for some the conditions under which they stay.

    Changes are taken back with `revert`, to the number that `mark` returned: a transaction takes effect as a whole.
    """

    def __init__(self) -> None:
        """Begin with an empty root."""
        self.root = TreeNode()
        self._conditions: dict[Path, Conditions] = {}
        self._watchers: dict[Path, dict[Path, None]] = {}
        self._journal: list[Callable[[], object]] = []

    def mark(self) -> int:
        """Return where the journal of changes ends."""
        return len(self._journal)

    def revert(self, mark: int) -> None:
        """Take back every change since a mark."""
        while len(self._journal) > mark:
            self._journal.pop()()

    def commit(self) -> None:
        """Forget how to take back changes."""
        self._journal.clear()

    def walk(self) -> Iterator[tuple[Path, TreeNode]]:
        """Yield every node with its path."""
        pending: list[tuple[Path, TreeNode]] = [((), self.root)]
        while pending:
            path, node = pending.pop()
            yield path, node
            pending += [((*path, name), child) for name, child in node.children.items()]

    def find(self, pattern: Any) -> Iterator[tuple[Path, TreeNode]]:
        """Yield the nodes that a pattern matches."""
        yield from _matches((), self.root, tuple(pattern))

    def get(self, pattern: Any) -> tuple[Path, TreeNode]:
        """Return the node of a path; raise `RefusedChangeError` if it is not there."""
        node = self.root
        path: Path = ()
        for part in pattern:
            name = _name_of(part)
            child = node.children.get(name)
            if child is None or not is_met(part, name, child):
                raise RefusedChangeError("node_not_found" if child is None else "mismatching_node")
            node, path = child, (*path, name)
        return path, node

    def put(self, pattern: Any, payload: Any, conditions: Conditions | None = None) -> Changed:
        """Set the payload of a node, or of each node that a pattern matches, and return what it was.

        A node that is not there is made, with those above it.  Raise `RefusedChangeError`.
        """
        mark = self.mark()
        try:
            if any(_name_of(part) is None for part in pattern):
                found = [path for path, _node in self.find(pattern)]
            else:
                found = [self._reach(tuple(pattern))]
            return {path: self._set(path, payload, conditions) for path in found}
        except RefusedChangeError:
            self.revert(mark)
            raise

    def delete(self, pattern: Any, *, with_others: bool = True) -> Changed:
        """Delete the nodes that a pattern matches, and those that go with them; return what all of them, or the first, were."""
        changed: Changed = {}
        found = sorted((path for path, _node in self.find(pattern)), key=len)
        for path in found:
            self._remove(path, Atom("explicit"), changed)
        return changed if with_others else {path: changed[path] for path in found}

    def restore(self, node: TreeNode, conditions: dict[Path, Conditions]) -> None:
        """Take over a tree from a snapshot."""
        self.root = node
        for path, each in conditions.items():
            self._keep_while(path, each)
        self.commit()

    def _reach(self, pattern: Path) -> Path:
        """Return the path of the node that a pattern is about; make what is not there."""
        node = self.root
        path: Path = ()
        for part in pattern:
            name = _name_of(part)
            path = (*path, name)
            child = node.children.get(name)
            if child is None:
                if not _may_create(part):
                    raise RefusedChangeError("node_not_found")
                child = TreeNode()
                self._attach(node, name, child)
                if len(path) < len(pattern):
                    self._keep_while(path, {path: _FILLED})
            elif not is_met(part, name, child):
                raise RefusedChangeError("mismatching_node")
            node = child
        return path

    def _set(self, path: Path, payload: Any, conditions: Conditions | None) -> dict[Any, Any]:
        _path, node = self.get(path)
        before = node.properties()
        is_new = node.payload == NO_PAYLOAD and not node.children and path not in self._conditions
        if conditions is not None:
            others = {where: condition for where, condition in conditions.items() if not is_new or where[: len(path)] != path}
            if not self._are_met(others):
                raise RefusedChangeError("keep_while_conditions_not_met")
        if node.payload != payload:
            old = node.payload, node.version
            self._journal.append(lambda: _restore(node, *old))
            node.payload, node.version = payload, 1 if is_new else node.version + 1
        if conditions is not None:
            self._keep_while(path, conditions)
        self._expire(list(self._watchers.get(path, ())), {})
        return before

    def _attach(self, parent: TreeNode, name: Any, child: TreeNode) -> None:
        parent.children[name] = child
        self._journal.append(lambda: parent.children.pop(name))

    def _keep_while(self, path: Path, conditions: Conditions) -> None:
        """Set the conditions under which a node stays; without any it stays always."""
        old = self._conditions.pop(path, {})
        for where in old:
            self._watchers.get(_fixed(where), {}).pop(path, None)
        if conditions:
            self._conditions[path] = conditions
        for where in conditions:
            self._watchers.setdefault(_fixed(where), {})[path] = None
        self._journal.append(lambda: self._take_back_conditions(path, old))

    def _take_back_conditions(self, path: Path, old: Conditions) -> None:
        self._keep_while(path, old)
        self._journal.pop()

    def _are_met(self, conditions: Conditions) -> bool:
        return all(self._is_met(where, condition) for where, condition in conditions.items())

    def _is_met(self, where: Path, condition: Any) -> bool:
        found = list(self.find(where))
        if not found:
            return bool(condition == ("if_node_exists", FALSE))
        return all(is_met(condition, path[-1] if path else "", node) for path, node in found)

    def _remove(self, path: Path, reason: Atom, changed: Changed) -> None:
        """Remove a node with everything below, and whatever only stays while it is there."""
        above: TreeNode | None = self.root
        for name in path[:-1]:
            above = None if above is None else above.children.get(name)
        parent = above
        node = parent.children.pop(path[-1], None) if parent is not None and path else None
        if parent is None or node is None:
            return
        self._journal.append(lambda: parent.children.__setitem__(path[-1], node))
        removed = list(_below(path, node))
        watchers: dict[Path, None] = {}
        for each, old in removed:
            changed.setdefault(each, old.properties() | {REASON: reason})
            watchers |= self._watchers.get(each, {})
            self._keep_while(each, {})
        own = self._conditions.get(path[:-1], {}).get(path[:-1])
        if own is not None and not self._is_met(path[:-1], own):
            self._remove(path[:-1], Atom("keep_while"), changed)
        self._expire(list(watchers), changed)

    def _expire(self, paths: list[Path], changed: Changed) -> None:
        """Remove those of some nodes whose conditions are no longer met."""
        for path in paths:
            if path in self._conditions and not self._are_met(self._conditions[path]):
                self._remove(path, Atom("keep_while"), changed)


def _restore(node: TreeNode, payload: Any, version: int) -> None:
    node.payload, node.version = payload, version


def _below(path: Path, node: TreeNode) -> Iterator[tuple[Path, TreeNode]]:
    yield path, node
    for name, child in node.children.items():
        yield from _below((*path, name), child)


def _fixed(where: Path) -> Path:
    """Return the names before the first condition of a path."""
    is_name = (isinstance(part, Atom | bytes) and not isinstance(part, TermKey) for part in where)
    stop = next((at for at, is_one in enumerate(is_name) if not is_one), len(where))
    return where[:stop]


_FILLED = (Atom(_IF_ANY), [(Atom("if_child_list_length"), (Atom("gt"), 0)), (Atom("if_has_payload"), TRUE)])


def keep_while_of(options: Any) -> Conditions | None:
    """Return the conditions in the options of a put; None without any.

    A key of the result is a path; one with conditions in it cannot be hashed as it is.
    """
    found = options.get(Atom("keep_while")) if isinstance(options, dict) else None
    return None if found is None else conditions_of(found)


def conditions_of(term: dict[Any, Any]) -> Conditions:
    """Return the conditions of a map from paths."""
    return {path_of(key_term(path)): condition for path, condition in term.items()}


def path_of(path: list[Any]) -> Path:
    """Return a path that can be a key."""
    return tuple(map_key(part) for part in path)


def _name_of(part: Any) -> Any:
    """Return the name that a part of a pattern is about; None if it may be about several."""
    if isinstance(part, Atom | bytes):
        return part
    if _tag(part) == _IF_ALL:
        return next((name for name in map(_name_of, part[1]) if name is not None), None)
    if not isinstance(part, tuple):
        raise UnsupportedFormat("part of a path", file="", offset=0, found=repr(part)[:40], supported="names and conditions")
    return None


def _tag(part: Any) -> str:
    return str(part[0]) if isinstance(part, tuple) and part else ""


def _may_create(part: Any) -> bool:
    """Return whether a condition lets a node be made."""
    if isinstance(part, Atom | bytes) or part == ("if_node_exists", FALSE):
        return True
    if _tag(part) in (_IF_ALL, _IF_ANY):
        return (all if _tag(part) == _IF_ALL else any)(map(_may_create, part[1]))
    return False


def _matches(path: Path, node: TreeNode, pattern: Path) -> Iterator[tuple[Path, TreeNode]]:
    if not pattern:
        yield path, node
        return
    part = key_term(pattern[0])
    name = _name_of(part)
    children = (
        [(name, node.children[name])] if name in node.children else [] if name is not None else list(node.children.items())
    )
    for each, child in children:
        if is_met(part, each, child):
            yield from _matches((*path, each), child, pattern[1:])
            if _is_for_every_depth(part):
                yield from _matches((*path, each), child, pattern)


def _is_for_every_depth(part: Any) -> bool:
    if _tag(part) in (_IF_ALL, _IF_ANY):
        return any(map(_is_for_every_depth, part[1]))
    return _tag(part) == "if_path_matches"


def is_met(condition: Any, name: Any, node: TreeNode) -> bool:
    """Return whether a node meets a condition; raise `UnsupportedFormat` for one that is not known."""
    if isinstance(condition, Atom | bytes):
        return bool(condition == name)
    test = _TESTS.get(_tag(condition))
    if test is None:
        raise UnsupportedFormat("condition", file="", offset=0, found=repr(condition)[:60], supported=", ".join(_TESTS))
    return test(condition, name, node)


def _matches_name(condition: Any, name: Any, _node: TreeNode) -> bool:
    if condition[1] == _ANY and isinstance(condition[1], Atom):
        return True
    pattern = bytes(condition[1]).decode("utf-8", "replace")
    return re.search(pattern, name if isinstance(name, str) else name.decode("utf-8", "replace")) is not None


def _matches_data(condition: Any, _name: Any, node: TreeNode) -> bool:
    if condition[2]:
        raise UnsupportedFormat("condition", file="", offset=0, found=repr(condition)[:60], supported="patterns alone")
    return node.data is not None and _fits(node.data, condition[1], {})


def _fits(term: Any, pattern: Any, bound: dict[str, Any]) -> bool:
    """Return whether a term fits a pattern: `_` is anything, and `$1` the same thing everywhere."""
    if isinstance(pattern, Atom) and pattern == "_":
        return True
    if isinstance(pattern, Atom) and re.fullmatch(r"\$\d+", pattern):
        return bool(bound.setdefault(str(pattern), term) == term)
    if isinstance(pattern, dict) and isinstance(term, dict):
        return all(key in term and _fits(term[key], value, bound) for key, value in pattern.items())
    if isinstance(pattern, tuple | list) and type(pattern) is type(term) and len(pattern) == len(term):
        return all(_fits(one, other, bound) for one, other in zip(term, pattern, strict=True))
    return bool(term == pattern)


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda left, right: left == right,
    "ne": lambda left, right: left != right,
    "lt": lambda left, right: left < right,
    "le": lambda left, right: left <= right,
    "gt": lambda left, right: left > right,
    "ge": lambda left, right: left >= right,
}


def _compare(found: int, expected: Any) -> bool:
    if isinstance(expected, tuple):
        return _COMPARISONS[str(expected[0])](found, expected[1])
    return bool(found == expected)


_TESTS: dict[str, Callable[[Any, Any, TreeNode], bool]] = {
    "if_name_matches": _matches_name,
    "if_path_matches": _matches_name,
    "if_has_payload": lambda condition, _name, node: (condition[1] == TRUE) == (node.payload != NO_PAYLOAD),
    "if_has_data": lambda condition, _name, node: (condition[1] == TRUE) == (node.data is not None),
    "if_data_matches": _matches_data,
    "if_node_exists": lambda condition, _name, _node: bool(condition[1] == TRUE),
    "if_payload_version": lambda condition, _name, node: _compare(node.version, condition[1]),
    "if_child_list_length": lambda condition, _name, node: _compare(len(node.children), condition[1]),
    "if_not": lambda condition, name, node: not is_met(condition[1], name, node),
    _IF_ALL: lambda condition, name, node: all(is_met(one, name, node) for one in condition[1]),
    _IF_ANY: lambda condition, name, node: any(is_met(one, name, node) for one in condition[1]),
}
