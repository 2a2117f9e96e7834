"""Conditions on a message's properties, as RocketMQ's classes of expressions evaluate them."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1
DIGITS_MAX = 40
_INTEGER = re.compile(r"[+-]?[0-9]+", re.A)
_FLOAT = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)", re.A)
ORDER: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains, "STARTSWITH": str.startswith, "ENDSWITH": str.endswith,
}  # fmt: skip
Properties = Mapping[str, str]
Value = bool | int | float | str | None


class WrongExpression(ValueError):
    """An expression that RocketMQ's grammar does not have, or that compares what cannot be compared."""


class Expression(NamedTuple):
    """A part of an expression."""

    evaluate: Callable[[Properties], Any]
    is_constant: bool = False
    is_boolean: bool = False
    is_property: bool = False


class NoMatch(Exception):
    """A comparison that a broker cannot make with this message."""


def constant(value: Value) -> Expression:
    """Return a value that no message changes."""
    return Expression(lambda _: value, is_constant=True, is_boolean=value is None or isinstance(value, bool))


def condition(node: Expression) -> Expression:
    """Return a node that has a truth; a property that is there is false."""
    if node.is_boolean:
        return node
    if not node.is_property:
        raise WrongExpression("the filter has a value where it needs a condition")
    return Expression(lambda properties: None if node.evaluate(properties) is None else False, is_boolean=True)


def joined(nodes: list[Expression], *, decides: bool) -> Expression:
    """Return the conditions joined by OR if True decides, or by AND if False does."""

    def evaluate(properties: Properties) -> bool | None:
        found: bool | None = not decides
        for node in nodes:
            value: bool | None = node.evaluate(properties)
            if value is decides:
                return decides
            found = None if value is None else found
        return found

    return nodes[0] if len(nodes) == 1 else Expression(evaluate, is_boolean=True)


def negated(node: Expression, *, is_negated: bool = True) -> Expression:
    """Return the opposite, and null for null."""

    def evaluate(properties: Properties) -> bool | None:
        found = node.evaluate(properties)
        return None if found is None else not found

    return Expression(evaluate, is_boolean=True) if is_negated else node


def minus(node: Expression) -> Expression:
    """Return a number with the other sign; null for what is no number."""

    def evaluate(properties: Properties) -> Value:
        found = node.evaluate(properties)
        return -found if isinstance(found, int | float) and not isinstance(found, bool) else None

    return Expression(evaluate)


def check_equal(left: Expression, right: Expression) -> None:
    """Raise `WrongExpression` for what = and <> do not compare."""
    for node in (left, right):
        if node.is_constant and node.evaluate({}) is None:
            raise WrongExpression("NULL cannot be compared: IS NULL is the condition for it")
    if left.is_constant and right.is_constant and left.is_boolean and not right.is_boolean:
        raise WrongExpression("TRUE and FALSE cannot be compared with a number or a text")


def equal(left: Expression, right: Expression) -> Expression:
    """Return whether two values are equal: a null is only equal to null, and makes what follows it null."""

    def evaluate(properties: Properties) -> bool | None:
        one, other = left.evaluate(properties), right.evaluate(properties)
        if one is None or other is None:
            return True if one is other else (None if one is None else False)
        return compare(one, other) == 0

    return Expression(evaluate, is_boolean=True)


def ordered(left: Expression, right: Expression, sign: str) -> Expression:
    """Return whether two numbers are in an order.  Raises `WrongExpression` for constants that are no numbers."""
    for node in (left, right):
        is_number = node.is_constant and isinstance(node.evaluate({}), int | float)
        if node.is_boolean or (node.is_constant and not is_number):
            raise WrongExpression(f"{sign} compares properties and numbers only")

    def evaluate(properties: Properties) -> bool | None:
        if (one := left.evaluate(properties)) is None or (other := right.evaluate(properties)) is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            one, other = _number(one, 0.0), _number(other, 0.0)
        return ORDER[sign](compare(one, other), 0)

    return Expression(evaluate, is_boolean=True)


def text_test(node: Expression, part: str, test: Callable[[str, str], bool], *, is_negated: bool) -> Expression:
    """Return the condition that a text has a part; what is no text has none, and lacks none either."""

    def evaluate(properties: Properties) -> bool:
        return bool(part) and isinstance(found := node.evaluate(properties), str) and test(found, part) is not is_negated

    return Expression(evaluate, is_boolean=True)


def within(node: Expression, texts: set[str], *, is_negated: bool) -> Expression:
    """Return whether a property is one of some texts."""
    if not node.is_property:
        raise WrongExpression("IN follows the name of a property")

    def evaluate(properties: Properties) -> bool | None:
        found = node.evaluate(properties)
        return None if found is None else (found in texts) is not is_negated

    return Expression(evaluate, is_boolean=True)


def compare(left: Any, right: Any) -> int:
    """Return -1, 0 or 1; -1 also for what is of different kinds."""
    if isinstance(left, bool) and isinstance(right, str):
        raise NoMatch
    if isinstance(left, str) and not isinstance(right, str):
        left = left.lower() == "true" if isinstance(right, bool) else _number(left, right)
    elif isinstance(right, str) and not isinstance(left, str):
        right = _number(right, left)
    if isinstance(left, bool) is not isinstance(right, bool):
        return -1
    if isinstance(left, float) or isinstance(right, float):
        left, right = _sort_key(float(left)), _sort_key(float(right))
    return int(left > right) - int(left < right)


def _sort_key(value: float) -> tuple[bool, float, float]:
    """Return a key in the order of Java's `Double.compareTo`: -0.0 before 0.0, and NaN last."""
    is_number = not math.isnan(value)
    return not is_number, value if is_number else 0.0, math.copysign(1.0, value) if is_number else 0.0


def _number(text: str, like: float) -> float:
    """Read a property as a number of the other side's kind, with the limits of Java's `int`, `long` and `double`."""
    if isinstance(like, float):
        if _FLOAT.fullmatch(text.strip()) is None:
            raise NoMatch
        return float(text.strip().rstrip("fFdD") if "N" not in text and "I" not in text else text.strip())
    limit = INT32_MAX if -INT32_MAX - 1 <= like <= INT32_MAX else INT64_MAX
    if len(text) > DIGITS_MAX or _INTEGER.fullmatch(text) is None or not -limit - 1 <= (found := int(text)) <= limit:
        raise NoMatch
    return found
