"""The functions of Khepri that a transaction calls, on a tree (docs/formats/rabbitmq-metadata.md#transactions)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..format.terms import FALSE, TRUE, Atom, map_key
from .execution import Interpreter, Native, RaisedError
from .functions import OK, boolean, library
from .tree import DATA, NO_PAYLOAD, PAYLOAD, Changed, RefusedChangeError, Tree, TreeNode, keep_while_of

_UNDEFINED = Atom("undefined")
_UNIFORM_SINCE = 2  # version of the machine from which a function gets a map from paths for one node, too


class TransactionRunner:
    """Applies transactions to a tree; `machine_version` is the one that is in effect."""

    def __init__(self, tree: Tree) -> None:
        """Start with an empty version of the machine, and load the functions that a transaction may call."""
        self.tree = tree
        self.machine_version = 0
        self._interpreter = Interpreter({})
        self._interpreter.natives = library(self._interpreter) | self._functions()

    def apply(self, function: Any, arguments: list[Any]) -> None:
        """Execute a function; one that fails changes nothing.

        Raise `UnsupportedFormat` for a function that this version cannot execute: it may have had an effect.
        """
        mark = self.tree.mark()
        try:
            self._interpreter.start(function, arguments)
        except RaisedError:
            self.tree.revert(mark)
        except Exception:
            self.tree.revert(mark)
            raise

    def _functions(self) -> dict[tuple[str, str, int], Native]:
        """Return the functions with and without options; those of `khepri_tx` return data, the others properties."""
        found: dict[tuple[str, str, int], Native] = {
            ("khepri_tx", "abort", 1): _abort,
            ("khepri_tx", "is_transaction", 0): lambda: TRUE,
            ("khepri_tx", "does_api_comply_with", 1): lambda _behaviour: boolean(self._is_uniform),
            ("khepri_path", "combine_with_conditions", 2): lambda path, conditions: (
                _with(path, conditions) if conditions else path
            ),
            ("khepri_payload", "no_payload", 0): lambda: NO_PAYLOAD,
            ("khepri_payload", "none", 0): lambda: NO_PAYLOAD,
            ("khepri_payload", "data", 1): lambda data: (DATA, data),
        }
        for name, arity, function, is_plain in self._both():
            for more in (0, 1):  # options
                found["khepri_tx_adv", name, arity + more] = function
                found["khepri_tx", name, arity + more] = _plain(function) if is_plain else function
        reads: list[tuple[str, int, Callable[..., Any]]] = [
            ("get", 1, lambda path, *_: self._read(path, _data)),
            ("get_or", 2, lambda path, default, *_: self._read(path, _data, default)),
            ("exists", 1, lambda path, *_: boolean(next(self.tree.find(path), None) is not None)),
            ("has_data", 1, lambda path, *_: boolean(any(node.data is not None for _path, node in self.tree.find(path)))),
            ("get_many", 1, lambda path, *_: (OK, self._many(path, _data))),
            ("count", 1, lambda path, *_: (OK, sum(1 for _ in self.tree.find(path)))),
            ("foreach", 2, self._each),
            ("fold", 3, lambda path, function, start, *_: self._fold(path, function, start)),
        ]  # fmt: skip
        for name, arity, function in reads:
            for more in (0, 1):
                found["khepri_tx", name, arity + more] = function
        return found

    def _both(self) -> list[tuple[str, int, Callable[..., Any], bool]]:
        """Return name, arguments and function of what both modules have, and whether `khepri_tx` returns `ok` for it."""
        return [
            ("get", 1, lambda path, *_: self._read(path, TreeNode.properties), False),
            ("get_many", 1, lambda path, *_: (OK, self._many(path, TreeNode.properties)), False),
            ("put", 2, lambda path, data, *options: self._put(path, data, options, is_one=True), True),
            ("put_many", 2, lambda path, data, *options: self._put(path, data, options, is_one=False), True),
            (
                "create",
                2,
                lambda path, data, *options: self._put(_with(path, [_exists(FALSE)]), data, options, is_one=True),
                True,
            ),
            (
                "update",
                2,
                lambda path, data, *options: self._put(_with(path, [_exists(TRUE)]), data, options, is_one=True),
                True,
            ),
            ("clear_payload", 1, lambda path, *options: self._put(path, NO_PAYLOAD, options, is_one=True), True),
            ("delete", 1, lambda path, *_: self._delete(path, is_one=True), True),
            ("delete_many", 1, lambda path, *_: self._delete(path, is_one=False), True),
        ]

    @property
    def _is_uniform(self) -> bool:
        return self.machine_version >= _UNIFORM_SINCE

    def _call(self, function: Any, *arguments: Any) -> Any:
        return self._interpreter.call(function, arguments)

    def _read(self, pattern: Any, of: Callable[[TreeNode], Any], default: Any = None) -> Any:
        try:
            path, node = self.tree.get(pattern)
        except RefusedChangeError as error:
            return error.term() if default is None else (OK, default)
        if of is _data:
            return OK, _data(node)
        return OK, {map_key(list(path)): of(node)} if self._is_uniform else of(node)

    def _many(self, pattern: Any, of: Callable[[TreeNode], Any]) -> dict[Any, Any]:
        return {map_key(list(path)): of(node) for path, node in self.tree.find(pattern)}

    def _each(self, pattern: Any, function: Any, *_options: Any) -> Any:
        for path, node in list(self.tree.find(pattern)):
            self._call(function, list(path), node.properties())
        return OK

    def _fold(self, pattern: Any, function: Any, value: Any) -> Any:
        for path, node in list(self.tree.find(pattern)):
            value = self._call(function, list(path), node.properties(), value)
        return OK, value

    def _put(self, pattern: Any, data: Any, options: tuple[Any, ...], *, is_one: bool) -> Any:
        is_payload = data == NO_PAYLOAD or (isinstance(data, tuple) and data[:1] == (DATA,))
        payload = data if is_payload else (DATA, data)
        try:
            return self._answer(self.tree.put(pattern, payload, keep_while_of(options[0]) if options else None), is_one=is_one)
        except RefusedChangeError as error:
            return error.term()

    def _delete(self, pattern: Any, *, is_one: bool) -> Any:
        return self._answer(self.tree.delete(pattern, with_others=self._is_uniform), is_one=is_one)

    def _answer(self, changed: Changed, *, is_one: bool) -> Any:
        """Return the changed nodes as the server's version does: the properties alone if the path is of one node."""
        if is_one and not self._is_uniform:
            return OK, next(iter(changed.values()), {})
        return OK, {map_key(list(path)): properties for path, properties in changed.items()}


def _data(node: TreeNode) -> Any:
    return node.properties().get(PAYLOAD, _UNDEFINED)


def _abort(reason: Any) -> Any:
    raise RaisedError("throw", reason)


def _plain(function: Callable[..., Any]) -> Native:
    """Return a function that returns `ok` for a change, whatever it changed."""

    def change(*arguments: Any) -> Any:
        found = function(*arguments)
        return OK if found[0] == OK else found

    return change


def _with(pattern: Any, conditions: list[Any]) -> list[Any]:
    """Return a path whose last node also has to meet conditions."""
    return [*pattern[:-1], (Atom("if_all"), [pattern[-1], *conditions])]


def _exists(is_there: Atom) -> Any:
    return Atom("if_node_exists"), is_there
