"""Decode the state in a snapshot of machine versions 0 and 1 (docs/formats/rabbitmq-quorum.md#state-of-versions-0-and-1).

Such a snapshot is written when the entries behind it settle all of its messages, and it has only their headers.  They get
negative indexes here: no entry has their content.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from ..format.terms import Atom, Improper
from .machine import Machine
from .machine_parts import QuorumConsumer, Settings
from .messages import MessageList, QuorumContent
from .processes import uniform

_HEADERS = ("$prefix_msg", "$empty_msg")


class _Form(NamedTuple):
    """The places of the fields in the records of a version, where they differ."""

    fields: int
    returns: int
    enqueuers: int
    consumers: int
    service: int
    headers: int
    ready_bytes: int
    waiting: int
    limits: tuple[str, ...]


_LIMITS = ("max_length", "max_bytes", "single_active_consumer_on", "delivery_limit")
FORMS = {
    0: _Form(18, 5, 7, 10, 11, 12, 13, 15, ("dead_letter_handler", "", *_LIMITS)),
    1: _Form(20, 4, 6, 9, 10, 11, 12, 14, ("dead_letter_handler", "", "overflow_strategy", *_LIMITS)),
}
_MESSAGES = 2
_LIMITS_AT = 4  # in the settings


def header_machine(term: Any, version: int) -> Machine:
    """Return the machine with a decoded state; raise one of several errors when it has another form."""
    form = FORMS[version]
    indexes = count(-1, -1)
    headers = term[form.headers]
    returned, ready = headers if len(headers) == 2 else headers[1::2]
    return Machine(
        settings=_settings(term[1], form),
        version=version,
        normal=MessageList([*(_header(row, indexes) for row in ready), *_messages(term[_MESSAGES], indexes)]),
        returns=deque([*(_header(row, indexes) for row in returned), *_messages(term[form.returns], indexes)]),
        enqueuers={uniform(pid): int(row[1]) for pid, row in term[form.enqueuers].items()},
        early={uniform(pid): _early(row[2]) for pid, row in term[form.enqueuers].items() if row[2]},
        consumers={uniform(key): _consumer(key, row, indexes) for key, row in term[form.consumers].items()},
        service=_service(term[form.service]),
        ready_bytes=int(term[form.ready_bytes]),
        waiting=[(uniform(key), _consumer(key, row, indexes)) for key, row in term[form.waiting]],
    )


def _settings(cfg: Any, form: _Form) -> Settings:
    found = {Atom(name): value for name, value in zip(form.limits, cfg[_LIMITS_AT:], strict=False)}
    is_single = found[Atom("single_active_consumer_on")] == "single_active"
    return Settings.of(found | {Atom("single_active_consumer_on"): Atom("true" if is_single else "false")})


def _messages(term: Any, indexes: Iterator[int]) -> list[QuorumContent]:
    """Return the messages of a map by number, or of a queue."""
    if isinstance(term, dict):
        return [_message(row, indexes) for _number, row in sorted(term.items())]
    rear, front = term[-1] if len(term) == 2 else term[1:]
    return [_message(row, indexes) for row in (*front, *reversed(rear))]


def _message(term: Any, indexes: Iterator[int]) -> QuorumContent:
    """Decode `{$prefix_msg, Header}`, `{Number, {Index, {Header, Message}}}`, or the latter without its number."""
    if term[0] in _HEADERS:
        return _header(term[1], indexes)
    is_numbered = isinstance(term[1][1], tuple) and len(term[1][1]) == len(term)
    index, (header, _content) = term[1] if is_numbered else term
    return _of(int(index), header)


def _header(term: Any, indexes: Iterator[int]) -> QuorumContent:
    """Decode a header, `{Header, empty}` or `{$empty_msg, Header}`: the last two are of messages that are not in memory."""
    if isinstance(term, tuple) and not isinstance(term, Improper):
        term = term[1] if term[0] in _HEADERS else term[0]
    return _of(next(indexes), term)


def _of(index: int, header: Any) -> QuorumContent:
    if not isinstance(header, dict):
        return QuorumContent(index, int(header))
    returns = int(header.get(Atom("delivery_count"), 0))
    return QuorumContent(index, int(header[Atom("size")]), returns, returns)


def _early(rows: Any) -> list[tuple[int, QuorumContent]]:
    """Return what a publisher sent ahead of its number; no queue in use has that in a snapshot, so its size is not needed."""
    return [(int(number), QuorumContent(int(index), 0)) for number, index, _content in rows]


def _consumer(key: Any, term: Any, indexes: Iterator[int]) -> QuorumConsumer:
    _name, meta, held, next_id, credit, delivery_count, mode, lifetime, status, *priority = term
    prefetch = meta.get(Atom("prefetch"), 0) if isinstance(meta, dict) else 0
    return QuorumConsumer(
        key[0],
        uniform(key[1]),
        (mode, prefetch if isinstance(prefetch, int) else 0),
        lifetime == "once",
        int(priority[0]) if priority else 0,
        int(credit),
        str(status),
        "",
        int(next_id),
        {int(number): _message(message, indexes) for number, message in sorted(held.items())},
        int(delivery_count),
    )


def _service(term: Any) -> dict[int, deque[Any]]:
    """Return the consumers with credit by priority: in version 0 OTP's queue, and in version 1 RabbitMQ's priority queue."""
    if len(term) == 2 and term[0] != "pqueue":
        return {0: deque(map(uniform, [*term[1], *reversed(term[0])]))}
    if term[0] == "queue":
        return {0: deque(map(uniform, [*term[2], *reversed(term[1])]))}
    return {
        -int(number): deque(map(uniform, [*part[2], *reversed(part[1])])) for number, part in term[1] if number != "infinity"
    }
