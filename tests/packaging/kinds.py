"""The kinds of findings and of steps that the code of a package makes, read from its source.

A kind is a literal, a constant, an entry of a table, or a parameter of a function, whose callers are then read in the same way.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FINDINGS = {"Finding": (2, "kind"), "note": (2, "kind"), "finding_of": (1, "kind")}
STEPS = {"Step": (0, "kind"), "add": (0, "kind"), "_change": (0, "kind")}
_ARGUMENTS_MIN = {"add": 3, "_change": 3, "note": 5}  # other functions have these names, too
_SHARED = ("storebytes/finding.py", "storebytes/plan.py")

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Scope(NamedTuple):
    """Where an expression is: its file, the constants of that, and the functions around it, the inner one first."""

    file: str
    names: dict[str, list[ast.expr]]
    functions: tuple[_Function, ...]


class _Call(NamedTuple):
    node: ast.Call
    scope: _Scope


class Kinds:
    """The kinds in the source of some packages; `unresolved` has the calls in which no kind is found."""

    def __init__(self, *packages: str) -> None:
        """Parse every file of the packages."""
        self.unresolved: list[str] = []
        self._locals: dict[int, dict[str, list[ast.expr]]] = {}  # the values of a function's names, by its node
        self._calls: dict[str, list[_Call]] = defaultdict(list)
        self._exported: dict[str, list[ast.expr]] = defaultdict(list)
        self._functions: dict[str, list[tuple[_Function, _Scope]]] = defaultdict(list)
        own = [file for package in packages for file in sorted((ROOT / package).rglob("*.py"))]
        files = [*(ROOT / name for name in _SHARED), *own]
        trees = {file: ast.parse(file.read_text()) for file in files}
        for tree in trees.values():
            for name, values in _constants(tree).items():
                self._exported[name] += values
        for file in files[len(_SHARED) :]:
            self._collect(trees[file], _Scope(_relative(file), _constants(trees[file]), ()))

    def found(self, functions: dict[str, tuple[int, str]]) -> set[str]:
        """Return the kinds that calls of these functions have at the given position or keyword."""
        kinds: set[str] = set()
        for name, (position, keyword) in functions.items():
            for call in list(self._calls[name]):
                if len(call.node.args) + len(call.node.keywords) >= _ARGUMENTS_MIN.get(name, 0):
                    values = self._of_argument(call, position, keyword, ())
                    kinds |= values
                    if not values:
                        self.unresolved.append(f"{call.scope.file}:{call.node.lineno}: {ast.unparse(call.node)[:80]}")
        return kinds - {""}

    def _collect(self, node: ast.AST, scope: _Scope) -> None:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = _Scope(scope.file, scope.names, (child, *scope.functions))
                self._functions[child.name].append((child, inner))
            if isinstance(child, ast.Call):
                self._calls[_name(child.func)].append(_Call(child, scope))
            self._collect(child, inner)

    def _of_argument(self, call: _Call, position: int, keyword: str, above: tuple[str, ...]) -> set[str]:
        given = [one.value for one in call.node.keywords if one.arg == keyword] or call.node.args[position : position + 1]
        if given and isinstance(given[0], ast.Starred):
            given = []
        if not given:
            return set()
        return self._values(given[0], call.scope, above)

    def _values(self, node: ast.expr, scope: _Scope, above: tuple[str, ...]) -> set[str]:
        """Return every string that an expression can have as its value."""
        parts: list[ast.expr] = []
        if isinstance(node, ast.Constant):
            return {node.value} if isinstance(node.value, str) else set()
        if isinstance(node, ast.IfExp):
            parts = [node.body, node.orelse]
        elif isinstance(node, ast.BoolOp):
            parts = node.values
        elif isinstance(node, ast.NamedExpr):
            parts = [node.value]
        elif isinstance(node, ast.Dict):
            parts = node.values
        elif isinstance(node, ast.DictComp):
            parts = [node.value]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            parts = node.elts
        elif isinstance(node, ast.Subscript):
            parts = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            parts = [node.func.value, *node.args[1:]]
        elif isinstance(node, ast.Name):
            return self._of_name(node, scope, above)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._returned(node.func.id, above)
        return {value for part in parts for value in self._values(part, scope, above)}

    def _of_name(self, node: ast.Name, scope: _Scope, above: tuple[str, ...]) -> set[str]:
        for function in scope.functions:
            if id(function) not in self._locals:
                self._locals[id(function)] = _assigned(function.body)
            local = self._locals[id(function)].get(node.id)
            if local:
                return {value for one in local for value in self._values(one, scope, above)}
            names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
            names = names[1:] if names[:1] in (["self"], ["cls"]) else names
            if node.id in names + [one.arg for one in function.args.kwonlyargs]:
                return self._of_parameter(function, node.id, names, above)
        known = scope.names.get(node.id) or self._exported.get(node.id)
        if known:
            return {value for one in known for value in self._values(one, scope, above)}
        return set()

    def _returned(self, name: str, above: tuple[str, ...]) -> set[str]:
        """Return what the functions of this name return."""
        found: set[str] = set()
        for function, scope in self._functions[name] if name not in above else ():
            for node in _statements(function.body):
                if isinstance(node, ast.Return) and node.value is not None:
                    found |= self._values(node.value, scope, (*above, name))
        return found

    def _of_parameter(self, function: _Function, name: str, names: list[str], above: tuple[str, ...]) -> set[str]:
        if function.name in above:
            return set()
        position = names.index(name) if name in names else len(names)
        found = {
            value
            for call in self._calls[function.name]
            for value in self._of_argument(call, position, name, (*above, function.name))
        }
        defaults = dict(zip(names[::-1], function.args.defaults[::-1], strict=False))
        return found | (self._values(defaults[name], _Scope("", {}, ()), above) if name in defaults else set())


def _constants(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """Return the values of a module's constants."""
    return _assigned([node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)], has_loops=False)


def _assigned(body: list[ast.stmt], *, has_loops: bool = True) -> dict[str, list[ast.expr]]:
    """Return the values that names get in a body, its blocks and its loops over literals."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for node in _statements(body):
        if isinstance(node, ast.For | ast.comprehension) and not has_loops:
            continue
        if isinstance(node, ast.Assign):
            for target in node.targets:
                _bind(target, node.value, found)
        elif (isinstance(node, ast.AnnAssign) and node.value is not None) or isinstance(node, ast.NamedExpr):
            _bind(node.target, node.value, found)
        elif isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, ast.Tuple | ast.List | ast.Set):
            for element in node.iter.elts:
                _bind(node.target, element, found)
    return found


def _statements(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield every node of a body, but not those of functions in it."""
    for statement in body:
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement
            for child in ast.iter_child_nodes(statement):
                if isinstance(child, ast.stmt):
                    yield from _statements([child])
                else:
                    yield from ast.walk(child)


def _bind(target: ast.expr, value: ast.expr, found: dict[str, list[ast.expr]]) -> None:
    if isinstance(target, ast.Name):
        found[target.id].append(value)
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, part in zip(target.elts, value.elts, strict=True):
            _bind(one, part, found)
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.IfExp):
        _bind(target, value.body, found)
        _bind(target, value.orelse, found)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _relative(file: Path) -> str:
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else file.name
