"""Filters in SQL92: what RocketMQ's own parser and expressions answer for the same message, and filters of pulls and POP.

The lists were computed with `SelectorParser` of RocketMQ 5.3.3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketlink.remoting import codes
from rocketlink.server.sql_conditions import WrongExpression
from rocketlink.server.sql_filter import DEPTH_MAX, SIZE_MAX, compiled, matches

from .test_server import Served, heartbeat, records

PROPERTIES = {"n": "5", "t": "abc", "e": "", "f": "2.5", "big": "5000000000", "w": " 7", "q": "it's", "b": "true"}
MATCHING = """
n = 5
n = '5'
n <> 6
n > 4.5
n >= 5 AND n <= 5
f = 2.5
big >= 5000000000L
w > 6.5
n = 5 OR t > 1
n >= f
NOT (5 = missing)
missing IS NULL
n IS NOT NULL
missing > 1 OR n = 5
NOT (missing > 1 AND n = 6)
n BETWEEN 1 AND 5
n NOT BETWEEN 1 AND 4
t IN ('abc', 'x')
t NOT IN ('x')
q = 'it''s'
t CONTAINS 'b'
t NOT CONTAINS 'x'
t STARTSWITH 'ab'
b = TRUE
NOT b
TRUE
TRUE = TRUE
n > -5
+5 = n
n = 5 /* five */ AND t = 'abc'
n in ('5')
n = 5.
((n = 5))
"""
OTHERS = """
n = 6
n < 5
f = 2
f > 2
big > 5
big > 5000000000L
w = 7
t > 1
t <> 5
NOT (t > 1)
t > 1 OR n = 5
n > t
missing = 5
NOT (missing = 5)
5 = missing
missing <> 5
n IS NULL
e IS NULL
missing > 1 AND n = 6
missing NOT BETWEEN 1 AND 4
missing NOT IN ('x')
t CONTAINS ''
t NOT CONTAINS ''
missing NOT CONTAINS 'x'
t not endswith 'c'
b
NULL
n = -5
-n = 5
T = 'abc'
n > .5e1
"""
WRONG = """
n =
n = 5 AND
n == 5
n != 6
n = NULL
NULL = n
n > 'a'
n > TRUE
n BETWEEN 5 AND 1
n BETWEEN 'a' AND 'b'
5 IN ('5')
n IN ()
n IN (5)
5
'abc'
n = 9223372036854775808
n = 0.0
TRUE = 5
t CONTAINS n
n = "5"
'open
(n = 5
"""
REFUSED_HERE = ["n = 5 -- five", "a b c = 1", "n LIKE 'a%'", "n = 5 )"]  # RocketMQ ignores what follows an expression


def lines(text: str) -> list[str]:
    return text.strip("\n").split("\n")


@pytest.mark.parametrize("expression", lines(MATCHING))
def test_a_filter_that_matches(expression: str) -> None:
    """Numbers are compared as numbers, and a missing property is null."""
    assert matches(compiled(expression), PROPERTIES)


@pytest.mark.parametrize("expression", lines(OTHERS))
def test_a_filter_that_does_not_match(expression: str) -> None:
    """It is false, or null, or compares a text that is no number of the other side's kind."""
    assert not matches(compiled(expression), PROPERTIES)


@pytest.mark.parametrize(
    "expression",
    [
        *lines(WRONG),
        "",
        *REFUSED_HERE,
        "(" * (DEPTH_MAX + 1) + "n = 1" + ")" * (DEPTH_MAX + 1),
        "-" * 100_000,
        " " * (SIZE_MAX + 1),
    ],
    ids=lambda text: text[:20] or "empty",
)
def test_a_wrong_filter_is_refused(expression: str) -> None:
    """Also one that is too long or too deep."""
    with pytest.raises(WrongExpression):
        compiled(expression)


def test_a_filter_of_many_conditions_is_evaluated() -> None:
    """Their number is limited by the size alone."""
    assert matches(compiled(" OR ".join(["n = 1"] * 5000 + ["n = 5"])), PROPERTIES)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Serve ten messages with a number as a property."""
    found = Served(tmp_path / "s")
    for number in range(10):
        found.send("T", b"%d" % number, e=0, i=f"n\x01{number}\x02")
    yield found
    found.close()


def test_a_pull_gets_what_its_filter_matches_and_goes_on_behind_the_rest(served: Served) -> None:
    """With 20 and the next offset where nothing matches; the filter is that of the request or of the heartbeat."""
    answer = served.pull("T", 0, expressionType="SQL92", subscription="n BETWEEN 3 AND 4 OR n = 8", maxMsgNums=8)
    assert ([one.body for one in records(answer.body)], answer.fields["nextBeginOffset"]) == ([b"3", b"4"], "8")
    answer = served.pull("T", 0, expressionType="SQL92", subscription="n > 100")
    assert (answer.code, answer.body, answer.fields["nextBeginOffset"]) == (20, b"", "10")
    body = heartbeat("c", "g", "n = 7").replace(b'"TAG"', b'"SQL92"')
    served.client.invoke(codes.HEART_BEAT, {}, body)
    assert [one.body for one in records(served.pull("T", 0, sysFlag=0).body)] == [b"7"]


def test_pop_takes_what_its_filter_matches(served: Served) -> None:
    """What does not match is not taken, and nobody waits for its acknowledgement."""
    served.client.invoke(codes.HEART_BEAT, {}, heartbeat("c", "g"))
    fields = {"topic": "T", "consumerGroup": "g", "queueId": "0", "maxMsgNums": "32", "invisibleTime": "60000", "pollTime": "0"}
    answer = served.client.invoke(codes.POP_MESSAGE, {**fields, "expType": "SQL92", "exp": "n IN ('2', '6')"})
    assert answer.fields["msgOffsetInfo"] == "0 0 2,6"
    assert [one.body for one in records(answer.body)] == [b"2", b"6"]
    answer = served.invoke_raw(codes.POP_MESSAGE, {**fields, "expType": "SQL92", "exp": "n > 0"})
    assert answer.code == codes.POLLING_TIMEOUT


@pytest.mark.parametrize(
    ("kind", "text", "code"), [("TAG", "a || b", 0), ("SQL92", "n = 1", 0), ("SQL92", "n =", 23), ("CLASS", "x", 1)]
)
def test_a_wrong_filter_is_refused_before_the_consumer_starts(served: Served, kind: str, text: str, code: int) -> None:
    """Java's asks with 46, and does not start; a pull with the filter has the same answer."""
    data = {"topic": "T", "subString": text, "expressionType": kind}
    body = json.dumps({"clientId": "c", "group": "g", "subscriptionData": data}).encode()
    answer = served.invoke_raw(codes.CHECK_CLIENT_CONFIG, {}, body)
    assert (answer.code, bool(answer.remark)) == (code, code != 0)
    assert served.pull("T", 0, expressionType=kind, subscription=text).code in (code, 20)
