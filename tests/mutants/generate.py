"""Small changes to a source file, each of which some test should notice.

A mutant changes one expression or statement inside a function and keeps every line number, so that the code object of the
changed function can take the place of the original in a running process.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from typing import NamedTuple

COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
SILENT = ("LOG", "logging", "warnings")  # calls that only report
NEVER_RUN = ("__repr__", "__str__", "__del__")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Mutant(NamedTuple):
    """A change of a file: bytes `start`..`end` become `text`."""

    file: str
    function: str  # qualified
    line: int
    kind: str
    start: int
    end: int
    before: str
    text: str
    ordinal: int = 0  # among equal changes of the function

    @property
    def key(self) -> str:
        """Return a key that stays the same while file, function and changed text do, even if lines move."""
        parts = [self.file, self.function, self.kind, self.before, self.text]
        if self.ordinal:
            parts.append(str(self.ordinal))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


class _Finder:
    """Collects the mutants of one file."""

    def __init__(self, file: str, source: str) -> None:
        self.file = file
        self.source = source
        self.function = ""
        self.found: list[Mutant] = []
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line.encode()))
        self._bytes = source.encode()

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _text(self, start: int, end: int) -> str:
        return self._bytes[start:end].decode()

    def _add(self, node: ast.expr | ast.stmt, kind: str, text: str, span: tuple[int, int] | None = None) -> None:
        start, end = span or self._span(node)
        before = self._text(start, end)
        lines = before.count("\n") - text.count("\n")
        padded = text + "\n" * lines if kind.startswith("drop") else f"({text}{chr(10) * lines})" if lines else text
        self.found.append(Mutant(self.file, self.function, node.lineno, kind, start, end, before, padded))

    def visit(self, node: ast.AST, names: tuple[str, ...] = ()) -> None:
        """Visit functions and their contents, but nothing that runs at import."""
        if isinstance(node, ast.ClassDef):
            names = (*names, node.name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name in NEVER_RUN:
                return
            if not self.function:
                self.function = ".".join((*names, node.name))
                for statement in node.body:
                    self._inside(statement)
                self.function = ""
                return
        for child in ast.iter_child_nodes(node):
            self.visit(child, names)

    def _inside(self, node: ast.AST) -> None:
        if _is_silent(node):
            return
        self._change(node)
        if isinstance(node, ast.Raise):  # other tests check messages
            return
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_comment"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self._inside(child)

    def _change(self, node: ast.AST) -> None:
        match node:
            case ast.Compare(ops=[operator], left=left, comparators=[right]):
                self._between(node, left, right, f" {COMPARISONS[type(operator)]} ", "compare")
            case ast.BoolOp(op=operator, values=values):
                word = " or " if isinstance(operator, ast.And) else " and "
                parts = [self._text(*self._span(value)) for value in values]
                self._add(node, "and/or", "(" + word.join(f"({part})" for part in parts) + ")")
            case ast.If(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.UnaryOp):
                self._add(test, "negate", f"not ({self._text(*self._span(test))})")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._add(node, "not", self._text(*self._span(operand)))
            case ast.BinOp(left=left, right=right, op=ast.Add() | ast.Sub()) if not _is_text(left) and not _is_text(right):
                sign = " - " if isinstance(node.op, ast.Add) else " + "
                self._between(node, left, right, sign, "plus/minus")
            case ast.Constant(value=bool(value)):
                self._add(node, "constant", str(not value))
            case ast.Constant(value=int(value)):
                self._add(node, "constant", str(value + 1))
            case ast.AugAssign(target=target, value=value, op=ast.Add() | ast.Sub()):
                self._between(node, target, value, " -= " if isinstance(node.op, ast.Add) else " += ", "plus/minus")
            case ast.Call(func=ast.Name(id="max" | "min" as name) as called):
                self._add(called, "max/min", "min" if name == "max" else "max")
            case ast.Expr(value=ast.Call()):
                self._add(node, "drop call", "pass")
            case ast.Raise():
                self._add(node, "drop raise", "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) if not self.function.endswith("__init__"):
                self._add(node, "drop assignment", "pass")
            case ast.Return(value=ast.expr()) if self._returns_a_result(node.value):
                self._add(node, "return nothing", "return None")
            case ast.Continue():
                self._add(node, "continue/break", "break")
            case _:
                pass

    def _returns_a_result(self, value: ast.expr | None) -> bool:
        """Return False for constants, which have a mutant of their own."""
        return not isinstance(value, ast.Constant)

    def _between(self, node: ast.expr | ast.stmt, left: ast.expr, right: ast.expr, text: str, kind: str) -> None:
        """Replace an operator; parentheses of the operands between them are kept."""
        start, end = self._span(left)[1], self._span(right)[0]
        between = self._text(start, end)
        closing, opening = between.count(")"), between.count("(")
        if "\n" not in between and "#" not in between:
            self._add(node, kind, ")" * closing + text + "(" * opening, (start, end))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _is_silent(node: ast.AST) -> bool:
    """Return whether a statement has no effect to test: docstrings, strings, log calls, assertions."""
    match node:
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr() | ast.AnnAssign(value=None) | ast.Assert():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in SILENT
        case _:
            return False


def mutants(file: str, source: str) -> list[Mutant]:
    """Return every mutant of a file, in the order of lines."""
    finder = _Finder(file, source)
    finder.visit(ast.parse(source))
    seen: Counter[str] = Counter()
    found = []
    for mutant in sorted(finder.found, key=lambda mutant: mutant.start):
        found.append(mutant._replace(ordinal=seen[mutant.key]))
        seen[mutant.key] += 1
    return found


def changed(mutant: Mutant, source: str) -> str:
    """Return the file's source with the mutant in it."""
    data = source.encode()
    return (data[: mutant.start] + mutant.text.encode() + data[mutant.end :]).decode()


def compiles(mutant: Mutant, source: str) -> bool:
    """Return whether the changed source compiles and has the same number of lines."""
    try:
        text = changed(mutant, source)
        compile(text, mutant.file, "exec")
    except SyntaxError:
        return False
    return text.count("\n") == source.count("\n") and text != source


def lines_of(mutant: Mutant, source: str) -> tuple[str, str]:
    """Return the changed lines before and after, for a report."""
    number = source.encode()[: mutant.start].count(b"\n")
    last = source.encode()[: mutant.end].count(b"\n")
    before, after = source.splitlines()[number : last + 1], changed(mutant, source).splitlines()[number : last + 1]
    return " ".join(line.strip() for line in before), " ".join(line.strip() for line in after if line.strip())
