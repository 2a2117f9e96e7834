"""Filters in RocketMQ's SQL92: an expression over the properties of a message, with three values of truth.

The grammar is that of RocketMQ's `SelectorParser`, but nothing may follow the expression.  A property is a text or null.
Compared with a number it is read as one; if it is none, the message does not match, whatever the rest of the expression is.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable

from . import sql_conditions as sql
from .sql_conditions import Expression, NoMatch, Properties, Value, WrongExpression

SQL92 = "SQL92"
SIZE_MAX = 1 << 16  # characters
DEPTH_MAX = 64  # of parentheses and signs
CACHED = 1000
INT64_MAX = (1 << 63) - 1
WORDS = {"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", *sql.TEXT_TESTS}
_TOKEN = re.compile(
    r"""(?P<skip>[ \t\n\r\f]+ | --[^\n\r]*[\n\r] | /\*.*?\*/)
      | (?P<float>(?:[0-9]+\.[0-9]* | \.[0-9]+)(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+)
      | (?P<int>0 | [1-9][0-9]*)[lL]?
      | (?P<text>'(?:'' | [^'])*') | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*) | (?P<sign><> | <= | >= | [=<>(),+-])""",
    re.S | re.X,
)


def matches(expression: Callable[[Properties], Value], properties: Properties) -> bool:
    """Return whether a message with these properties matches a compiled expression."""
    try:
        return expression(properties) is True
    except NoMatch:
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
        found = sql.condition(self._or())
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

    def _or(self) -> Expression:
        return self._joined("OR", self._and, decides=True)

    def _and(self) -> Expression:
        return self._joined("AND", self._equality, decides=False)

    def _joined(self, word: str, part: Callable[[], Expression], *, decides: bool) -> Expression:
        parts = [part()]
        while self._take(word):
            parts.append(part())
        if len(parts) == 1:
            return parts[0]
        return sql.joined([sql.condition(one) for one in parts], decides=decides)

    def _equality(self) -> Expression:
        left = self._comparison()
        while True:
            if sign := self._take("=") or self._take("<>"):
                right = self._comparison()
                sql.check_equal(left, right)
                left = sql.negated(sql.equal(left, right), is_negated=sign == "<>")
            elif self._take("IS", "NULL"):
                left = sql.equal(left, sql.constant(None))
            elif self._take("IS", "NOT", "NULL"):
                left = sql.negated(sql.equal(left, sql.constant(None)))
            else:
                return left

    def _comparison(self) -> Expression:
        left = self._unary()
        while True:
            sign = next((one for one in sql.ORDER if self._take(one)), None)
            word = next((one for one in (*sql.TEXT_TESTS, "BETWEEN", "IN") if self._take(one) or self._take("NOT", one)), None)
            is_negated = word is not None and self._tokens[self._at - 2][1] == "NOT" and self._tokens[self._at - 2][0] == "word"
            if sign:
                left = sql.ordered(left, self._unary(), sign)
            elif word in sql.TEXT_TESTS:
                left = sql.text_test(left, _unquoted(self._token("text")), sql.TEXT_TESTS[str(word)], is_negated=is_negated)
            elif word == "BETWEEN":
                left = self._between(left, is_negated=is_negated)
            elif word == "IN":
                left = sql.within(left, self._texts(), is_negated=is_negated)
            else:
                return left

    def _between(self, value: Expression, *, is_negated: bool) -> Expression:
        low = self._unary()
        self._must_take("AND")
        high = self._unary()
        first = sql.ordered(value, low, "<" if is_negated else ">=")
        second = sql.ordered(value, high, ">" if is_negated else "<=")
        if not is_negated and low.is_constant and high.is_constant and low.evaluate({}) > high.evaluate({}):
            raise WrongExpression("BETWEEN: the first number is greater than the second one")
        return sql.joined([first, second], decides=is_negated)

    def _texts(self) -> set[str]:
        self._must_take("(")
        found = {_unquoted(self._token("text"))}
        while self._take(","):
            found.add(_unquoted(self._token("text")))
        self._must_take(")")
        return found

    def _unary(self) -> Expression:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise WrongExpression(f"a filter with more than {DEPTH_MAX} parentheses or signs in each other")
        if self._take("+"):
            found = self._unary()
        elif self._take("-"):
            found = sql.minus(self._unary())
        elif self._take("NOT"):
            found = sql.negated(sql.condition(self._unary()))
        elif self._take("("):
            found = self._or()
            self._must_take(")")
        else:
            found = self._primary()
        self._depth -= 1
        return found

    def _primary(self) -> Expression:
        for word, value in (("TRUE", True), ("FALSE", False), ("NULL", None)):
            if self._take(word):
                return sql.constant(value)
        kind, token = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        self._at += 1
        if kind == "name":
            return Expression(lambda properties: properties.get(token), is_property=True)
        if kind == "text":
            return sql.constant(_unquoted(token))
        if kind == "int" and int(token[:20]) <= INT64_MAX and len(token) < 20:
            return sql.constant(int(token))
        if kind == "float" and 0 < float(token) < math.inf:  # RocketMQ refuses 0.0 as well
            return sql.constant(float(token))
        self._at -= 1
        raise self._unexpected()


def _unquoted(token: str) -> str:
    return token[1:-1].replace("''", "'")
