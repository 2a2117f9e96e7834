"""Decode the state in a snapshot: the record `rabbit_fifo` (docs/formats/rabbitmq-quorum.md#state)."""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any

from storageio import StoreCorrupt, UnsupportedFormat

from ..format.terms import Atom, Improper
from .header_state import FORMS, header_machine
from .machine import Machine
from .machine_parts import DeadLetters, QuorumConsumer, Settings
from .messages import MessageList, QuorumContent
from .processes import uniform
from .state_lists import Part
from .versions import RULES, VERSIONS

_FIELDS = 18
_INFINITE = "infinity"
_DISABLED = "disabled"
_PRIORITY_MAX = 31
_WITHOUT_INDEX = -1  # of a message that only an older version's snapshot had
_INDEX_BITS = 44
_INDEX_MASK = (1 << _INDEX_BITS) - 1


def check_version(version: int, file: str, offset: int = 0) -> None:
    """Raise `UnsupportedFormat` for a version of the queue machine that is not known."""
    if version not in VERSIONS:
        supported = f"{VERSIONS[0]} to {VERSIONS[-1]}"
        raise UnsupportedFormat("queue machine version", file=file, offset=offset, found=version, supported=supported)


def read_state(term: Any, lists: list[list[Part]], version: int, file: str) -> Machine:
    """Return the machine with a state that `split_state` returned; raise `StoreCorrupt` when the record has another form."""
    check_version(version, file)
    rules = RULES[version]
    fields = FORMS[version].fields if rules.keeps_headers else _FIELDS
    if not isinstance(term, tuple) or len(term) != fields or term[0] != "rabbit_fifo":
        found = f"{term[0]} of {len(term)} fields" if isinstance(term, tuple) and term else repr(term)[:40]
        raise UnsupportedFormat("queue state", file=file, found=found, supported=f"rabbit_fifo of {fields} fields")
    try:
        return header_machine(term, version) if rules.keeps_headers else _machine(term, lists, version)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise StoreCorrupt("not a queue state", file=file, offset=0, expected="rabbit_fifo", found=str(error)) from error


def _machine(term: Any, lists: list[list[Part]], version: int) -> Machine:
    rules = RULES[version]
    is_strict = term[2][0] == "pq"
    high, normal, taken = (MessageList(), MessageList(), 0) if is_strict else _messages(term[2], lists)
    machine = Machine(
        settings=_settings(term[1]),
        version=version,
        high=high,
        normal=normal,
        strict=_strict(term[2][1], lists) if is_strict else {},
        taken=taken,
        returns=deque(map(_message, _lqueue(term[4]))),
        enqueuers={uniform(pid): int(row[1]) for pid, row in term[6].items()},
        consumers={uniform(key): _consumer(row) for key, row in term[9].items()},
        service=_service(term[10]),
        dead=_dead_letters(term[11]),
        ready_bytes=int(term[12]),
        waiting=[(uniform(key), _consumer(row)) for key, row in term[14]],
    )
    if is_strict and (term[17][1][0] or term[1][-1] != _DISABLED):
        machine.unknown = "delayed_retry"
    if not rules.counts_failures:
        for message in [*machine.returns, *(one for _tag, one in machine.held())]:
            message.acquired = message.delivery_count
    return machine


def _settings(cfg: Any) -> Settings:
    _name, _own, _resource, _unused, handler, _leader, overflow, length, size, strategy, limit, _expires, ttl, *_rest = cfg
    names = ("dead_letter_handler", "overflow_strategy", "max_length", "max_bytes", "delivery_limit", "msg_ttl")
    values = (handler, overflow, length, size, limit, ttl)
    found = {Atom(name): value for name, value in zip(names, values, strict=True)}
    return Settings.of(found | {Atom("single_active_consumer_on"): Atom("true" if strategy == "single_active" else "false")})


def _messages(term: Any, lists: list[list[Part]]) -> tuple[MessageList, MessageList, int]:
    """Return high and normal messages and the counter; before version 4 there is one list."""
    if term[0] != "rabbit_fifo_q":
        return MessageList(), _list(term[1] if len(term) == 2 else term, lists), 0
    _name, high, normal, _length, counter = term
    return _list(high, lists), _list(normal, lists), int(counter)


def _strict(term: Any, lists: list[list[Part]]) -> dict[int, MessageList]:
    """Return the messages by priority, which the record counts down from 31."""
    return {_PRIORITY_MAX - int(number): _list(part, lists) for number, part in term.items()}


def _queue(term: Any) -> list[Any]:
    """Return the elements of OTP's queue, front first; the server's own queues have their length before it."""
    rear, front = term[-2:]
    return [*front, *reversed(rear)]


def _lqueue(term: Any) -> list[Any]:
    """Return the elements of a queue with its length, in either form."""
    return _queue(term[1]) if len(term) == 2 else _queue(term[1:])


def _list(term: Any, lists: list[list[Part]]) -> MessageList:
    """Return the messages of OTP's queue; a binary is the number of one of `lists`."""
    rear, front = (lists[int.from_bytes(part, "big")] if type(part) is bytes else list(part) for part in term[-2:])
    found = MessageList()
    for part in front:
        _add(found, part)
    for part in reversed(rear):
        if isinstance(part, array):
            part.reverse()
        _add(found, part)
    return found


def _add(found: MessageList, part: Part) -> None:
    if isinstance(part, array):
        found.extend(part)
    else:
        found.append(_message(part))


def _message(term: Any) -> QuorumContent:
    """Decode `[Index | Header]`, or a number with index and size; a consumer may have its timeout before it."""
    if isinstance(term, tuple) and not isinstance(term, Improper) and len(term) == 2:
        term = term[1]
    if isinstance(term, int):
        return QuorumContent(term & _INDEX_MASK, term >> _INDEX_BITS)
    if not isinstance(term, Improper):
        raise TypeError(f"message {term!r:.40}")
    return _of(term.items, term.tail)


def _of(items: tuple[Any, ...], tail: Any) -> QuorumContent:
    if len(items) == 2:
        return QuorumContent(int(items[0]), int(items[1]), expiry_ms=int(tail))
    index = _WITHOUT_INDEX if items[0] == "undefined" else int(*items)
    if isinstance(tail, int):
        return QuorumContent(index, tail)
    get = {str(name): value for name, value in tail.items()}.get
    annotations, expiry = get("anns"), get("expiry")
    return QuorumContent(
        index,
        int(tail[Atom("size")]),
        int(get("acquired_count") or 0),
        int(get("delivery_count") or 0),
        expiry if isinstance(expiry, int) else None,
        dict(annotations) if isinstance(annotations, dict) else {},
    )


def _consumer(term: Any) -> QuorumConsumer:
    _name, cfg, status, next_id, held, credit, delivery_count, *_rest = term
    _cfg, meta, pid, tag, mode, lifetime, priority, *_rest = cfg
    prefetch = meta.get(Atom("prefetch"), 0) if isinstance(meta, dict) else 0
    return QuorumConsumer(
        tag,
        uniform(pid),
        mode if isinstance(mode, tuple) else (mode, prefetch),
        lifetime == "once",
        int(priority),
        int(credit),
        str(status[0] if isinstance(status, tuple) else status),
        str(status[1]) if isinstance(status, tuple) else "",
        int(next_id),
        {int(number): _message(message) for number, message in held.items()},
        int(delivery_count),
    )


def _service(term: Any) -> dict[int, deque[Any]]:
    """Return the consumers with credit by priority; the record negates priorities."""
    if term[0] == "queue":
        return {0: deque(map(uniform, _queue(term[1:3])))}
    return {-int(priority): deque(map(uniform, _queue(part[1:3]))) for priority, part in term[1] if priority != _INFINITE}


def _dead_letters(term: Any) -> DeadLetters:
    _name, consumer, waiting, *_rest = term
    found = DeadLetters(deque(map(_dead_letter, _lqueue(waiting))))
    if isinstance(consumer, tuple):
        _consumer_name, found.pid, prefetch, held, next_id = consumer
        found.prefetch, found.next_id = int(prefetch), int(next_id)
        found.held = {int(number): _dead_letter(row) for number, row in sorted(held.items())}
    return found


def _dead_letter(term: Any) -> tuple[str, QuorumContent]:
    """Decode `[Reason | Message]`; a message may be a number."""
    if len(term.items) == 1 and isinstance(term.tail, int):
        return str(term.items[0]), _message(term.tail)
    return str(term.items[0]), _of(term.items[1:], term.tail)
