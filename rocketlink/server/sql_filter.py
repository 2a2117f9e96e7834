"""Filters in RocketMQ's SQL92: an expression over the properties of a message, with three values of truth.

The grammar is that of `SelectorParser`.  Operators:

=, <>, <, <=, >, >=, [NOT] BETWEEN .. AND .., [NOT] IN ('a', 'b'), IS [NOT] NULL, [NOT] CONTAINS, STARTSWITH and ENDSWITH, NOT, AND, OR.

A property is a text or null.  Compared with a number it is read as one; if it is none, the message does not match, whatever
the rest of the expression is.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

SIZE_MAX = 1 << 16  # characters
DEPTH_MAX = 64  # of parentheses and signs
CACHED = 1000
INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1
WORDS = "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH".split()
_TOKEN = re.compile(
    r"(?P<skip>[ \t\n\r\f]+|--[^\n\r]*|/\*.*?\*/)|(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<int>0|[1-9][0-9]*)[lL]?(?![0-9])|(?P<text>'(?:''|[^'])*')|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)|(?P<sign><>|<=|>=|[=<>(),+-])",
    re.S,
)
_INTEGER = re.compile(r"[+-]?[0-9]+", re.A)
_FLOAT = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)", re.A)
_ORDER: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains, "STARTSWITH": str.startswith, "ENDSWITH": str.endswith,
}  # fmt: skip
Properties = Mapping[str, str]
Value = bool | int | float | str | None


class WrongExpression(ValueError):
    """An expression that RocketMQ's grammar does not have, or that compares what cannot be compared."""


class _Node(NamedTuple):
    """A part of an expression."""

    evaluate: Callable[[Properties], Any]
    is_constant: bool = False
    is_boolean: bool = False
    is_property: bool = False


class _NoMatch(Exception):
    """A comparison that a broker cannot make with this message."""


def matches(expression: Callable[[Properties], Value], properties: Properties) -> bool:
    """Return whether a message with these properties matches a compiled expression."""
    try:
        return expression(properties) is True
    except _NoMatch:
        return False


@functools.lru_cache(CACHED)
def compiled(text: str) -> Callable[[Properties], Value]:
    """Return a function of a message's properties.  Raises `WrongExpression`."""
    if len(text) > SIZE_MAX:
        raise WrongExpression(f"an expression of {len(text)} characters: at most {SIZE_MAX}")
    return _Parser(text).parse()


class _Parser:
    """Reads one expression, from its lowest operator to the highest."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        self._at = self._depth = 0
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise WrongExpression(f"{text[at : at + 20]!r} at character {at} of the filter")
            kind, token = found.lastgroup or "", found[found.lastgroup or 0]
            if kind == "name" and token.upper() in WORDS:
                kind, token = "word", token.upper()
            if kind != "skip":
                self._tokens.append((kind, token))
            at = found.end()

    def parse(self) -> Callable[[Properties], Value]:
        found = _boolean(self._or())
        if self._at < len(self._tokens):
            raise self._unexpected()
        return found.evaluate

    def _unexpected(self) -> WrongExpression:
        token = self._tokens[self._at][1] if self._at < len(self._tokens) else "its end"
        return WrongExpression(f"the filter has {token[:40]!r} where that is not possible")

    def _take(self, *expected: str) -> str | None:
        """Move behind the words or signs and return the last one, or stay and return None."""
        following = [token for kind, token in self._tokens[self._at : self._at + len(expected)] if kind in ("word", "sign")]
        if following != list(expected):
            return None
        self._at += len(expected)
        return expected[-1]

    def _must_take(self, *expected: str) -> None:
        if self._take(*expected) is None:
            raise self._unexpected()

    def _token(self, kind: str) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at][0] != kind:
            raise self._unexpected()
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _or(self) -> _Node:
        return self._joined("OR", self._and, decides=True)

    def _and(self) -> _Node:
        return self._joined("AND", self._equality, decides=False)

    def _joined(self, word: str, part: Callable[[], _Node], *, decides: bool) -> _Node:
        parts = [part()]
        while self._take(word):
            parts.append(part())
        if len(parts) == 1:
            return parts[0]
        each = [_boolean(one).evaluate for one in parts]

        def evaluate(properties: Properties) -> bool | None:
            found: bool | None = not decides
            for one in each:
                value = one(properties)
                if value is decides:
                    return decides
                found = None if value is None else found
            return found

        return _Node(evaluate, is_boolean=True)

    def _equality(self) -> _Node:
        left = self._comparison()
        while True:
            if sign := self._take("=") or self._take("<>"):
                right = self._comparison()
                _check_equal(left, right)
                left = _negated(_equal(left, right), is_negated=sign == "<>")
            elif self._take("IS", "NULL"):
                left = _equal(left, _constant(None))
            elif self._take("IS", "NOT", "NULL"):
                left = _negated(_equal(left, _constant(None)))
            else:
                return left

    def _comparison(self) -> _Node:
        left = self._unary()
        while True:
            sign = next((one for one in _ORDER if self._take(one)), None)
            word = next((one for one in (*_TEXT_TESTS, "BETWEEN", "IN") if self._take(one) or self._take("NOT", one)), None)
            is_negated = word is not None and self._tokens[self._at - 2][1] == "NOT" and self._tokens[self._at - 2][0] == "word"
            if sign:
                left = _ordered(left, self._unary(), sign)
            elif word in _TEXT_TESTS:
                left = _text_test(left, _unquoted(self._token("text")), _TEXT_TESTS[str(word)], is_negated=is_negated)
            elif word == "BETWEEN":
                left = self._between(left, is_negated=is_negated)
            elif word == "IN":
                left = _in(left, self._texts(), is_negated=is_negated)
            else:
                return left

    def _between(self, value: _Node, *, is_negated: bool) -> _Node:
        low = self._unary()
        self._must_take("AND")
        high = self._unary()
        if low.is_constant and high.is_constant and None not in (bounds := (low.evaluate({}), high.evaluate({}))):
            if _compare(bounds[1], bounds[0]) < 0:
                raise WrongExpression(f"BETWEEN {bounds[0]} AND {bounds[1]}: the first one is greater")
        first = _ordered(value, low, "<" if is_negated else ">=").evaluate
        second = _ordered(value, high, ">" if is_negated else "<=").evaluate

        def evaluate(properties: Properties) -> bool | None:
            found = first(properties)
            return is_negated if found is is_negated else (None if (other := second(properties)) is None or found is None else other)

        return _Node(evaluate, is_boolean=True)

    def _texts(self) -> set[str]:
        self._must_take("(")
        found = {_unquoted(self._token("text"))}
        while self._take(","):
            found.add(_unquoted(self._token("text")))
        self._must_take(")")
        return found

    def _unary(self) -> _Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise WrongExpression(f"a filter with more than {DEPTH_MAX} parentheses or signs in each other")
        if self._take("+"):
            found = self._unary()
        elif self._take("-"):
            found = _minus(self._unary())
        elif self._take("NOT"):
            found = _negated(_boolean(self._unary()))
        elif self._take("("):
            found = self._or()
            self._must_take(")")
        else:
            found = self._primary()
        self._depth -= 1
        return found

    def _primary(self) -> _Node:
        for word, value in (("TRUE", True), ("FALSE", False), ("NULL", None)):
            if self._take(word):
                return _constant(value)
        kind, token = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        self._at += 1
        if kind == "name":
            return _Node(lambda properties: properties.get(token), is_property=True)
        if kind == "text":
            return _constant(_unquoted(token))
        if kind == "int" and int(token[:20]) <= INT64_MAX and len(token) < 20:
            return _constant(int(token))
        if kind == "float" and 0 < float(token) < math.inf:  # RocketMQ refuses 0.0 as well
            return _constant(float(token))
        self._at -= 1
        raise self._unexpected()


def _unquoted(token: str) -> str:
    return token[1:-1].replace("''", "'")


def _constant(value: Value) -> _Node:
    return _Node(lambda _: value, is_constant=True, is_boolean=value is None or isinstance(value, bool))


def _boolean(node: _Node) -> _Node:
    """Return a node that has a truth; a property that is there is false."""
    if node.is_boolean:
        return node
    if not node.is_property:
        raise WrongExpression("the filter has a value where it needs a condition")
    return _Node(lambda properties: None if node.evaluate(properties) is None else False, is_boolean=True)


def _negated(node: _Node, *, is_negated: bool = True) -> _Node:
    def evaluate(properties: Properties) -> bool | None:
        found = node.evaluate(properties)
        return None if found is None else not found

    return _Node(evaluate, is_boolean=True) if is_negated else node


def _minus(node: _Node) -> _Node:
    def evaluate(properties: Properties) -> Value:
        found = node.evaluate(properties)
        return -found if isinstance(found, int | float) and not isinstance(found, bool) else None

    return _Node(evaluate)


def _check_equal(left: _Node, right: _Node) -> None:
    for node in (left, right):
        if node.is_constant and node.evaluate({}) is None:
            raise WrongExpression("NULL cannot be compared: IS NULL is the condition for it")
    if left.is_constant and right.is_constant and left.is_boolean and not right.is_boolean:
        raise WrongExpression("TRUE and FALSE cannot be compared with a number or a text")


def _equal(left: _Node, right: _Node) -> _Node:
    def evaluate(properties: Properties) -> bool | None:
        one, other = left.evaluate(properties), right.evaluate(properties)
        if one is None or other is None:
            return True if one is other else (None if one is None else False)
        return _compare(one, other) == 0

    return _Node(evaluate, is_boolean=True)


def _ordered(left: _Node, right: _Node, sign: str) -> _Node:
    for node in (left, right):
        is_number = node.is_constant and isinstance(node.evaluate({}), int | float)
        if node.is_boolean or (node.is_constant and not is_number):
            raise WrongExpression(f"{sign} compares properties and numbers only")

    def evaluate(properties: Properties) -> bool | None:
        one, other = left.evaluate(properties), right.evaluate(properties)
        if one is None or other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            one, other = _number(one, 0.0), _number(other, 0.0)
        return _ORDER[sign](_compare(one, other), 0)

    return _Node(evaluate, is_boolean=True)


def _text_test(node: _Node, part: str, test: Callable[[str, str], bool], *, is_negated: bool) -> _Node:
    def evaluate(properties: Properties) -> bool:
        found = node.evaluate(properties)
        return bool(part) and isinstance(found, str) and test(found, part) is not is_negated

    return _Node(evaluate, is_boolean=True)


def _in(node: _Node, texts: set[str], *, is_negated: bool) -> _Node:
    if not node.is_property:
        raise WrongExpression("IN follows the name of a property")

    def evaluate(properties: Properties) -> bool | None:
        found = node.evaluate(properties)
        return None if found is None else (found in texts) is not is_negated

    return _Node(evaluate, is_boolean=True)


def _compare(left: Any, right: Any) -> int:
    """Return -1, 0 or 1; -1 also for what is of different kinds."""
    if isinstance(left, bool) and isinstance(right, str):
        raise _NoMatch
    if isinstance(left, str) and not isinstance(right, str):
        left = left.lower() == "true" if isinstance(right, bool) else _number(left, right)
    elif isinstance(right, str) and not isinstance(left, str):
        right = _number(right, left)
    if isinstance(left, bool) is not isinstance(right, bool):
        return -1
    if left != left or right != right:  # NaN is greater than any number, and equal to itself
        return int(left != left) - int(right != right)
    return int(left > right) - int(left < right)


def _number(text: str, like: float) -> float:
    """Read a property as a number of the other side's kind, with the limits of Java's `int`, `long` and `double`."""
    if isinstance(like, float):
        if _FLOAT.fullmatch(text.strip()) is None:
            raise _NoMatch
        return float(text.strip().rstrip("fFdD") if "N" not in text and "I" not in text else text.strip())
    limit = INT32_MAX if -INT32_MAX - 1 <= like <= INT32_MAX else INT64_MAX
    if len(text) > 40 or _INTEGER.fullmatch(text) is None or not -limit - 1 <= (found := int(text)) <= limit:
        raise _NoMatch
    return found
