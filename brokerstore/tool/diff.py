"""`diff`: the messages of two folders of one kind, queue by queue and number by number."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from commitlog import StoredMessage
from rabbitstore import Problem
from storageio import UnknownStore

from .codes import PROBLEM
from .output import emit, emit_json, progress, say
from .queue_commands import incomplete_keys, open_store
from .rabbit_commands import not_read_keys, open_folder, outcome
from .target import Target

CHECKSUM = "__CRC32#"  # says where and how a record was written, not what it holds
Lane = tuple[Any, ...]
Numbered = tuple[int, dict[str, Any]]


class Difference(NamedTuple):
    """One message, or one whole queue, that is not the same on both sides."""

    queue: str
    number: int | None  # queue offset or sequence number; None for a whole queue
    kind: str  # only_in_first, only_in_second, differs
    fields: list[str]


class _Side:
    """One folder: its queues, about how many messages, and those of each in order as (number, what counts)."""

    def __init__(self, target: Target, stack: contextlib.ExitStack, told: list[Problem]) -> None:
        self._rabbit = self._store = None
        self.undispatched: int | None = 0  # messages that its queues lack; None: not known
        if target.is_rabbit:
            self._rabbit = stack.enter_context(open_folder(target, told))
            queues = self._rabbit.queues()
            self.lanes: set[Lane] = {(queue.queue,) for queue in queues}
            self.count = sum(queue.messages for queue in queues)
        else:
            self._store = stored = stack.enter_context(open_store(target))
            self.undispatched = incomplete_keys(stored).get("undispatched_messages", 0)
            self.lanes = {(topic, queue_id) for topic in stored.topics() for queue_id in stored.queue_ids(topic)}
            self.count = sum(stored.max_offset(*lane) - stored.min_offset(*lane) for lane in self.lanes)

    def messages(self, lane: Lane) -> Iterator[Numbered]:
        """In ascending order of their numbers."""
        if self._rabbit is not None:
            for message in self._rabbit.messages(*lane):
                made = message.to_json()
                yield message.seq_id, {name: made[name] for name in _RABBIT_FIELDS}
            return
        assert self._store is not None
        for record in self._store.read(*lane):
            yield record.queue_offset, _content(record)


_RABBIT_FIELDS = ("persistent", "redelivered", "expiry_us", "exchange", "routing_keys", "properties", "body_base64")


def _content(message: StoredMessage) -> dict[str, Any]:
    """What two stores agree in when one is a copy of the other, wherever the records lie."""
    properties = {name: value for name, value in message.all_properties.items() if name != CHECKSUM}
    return {
        "body": message.body, "properties": properties, "flag": message.flag, "sys_flag": message.sys_flag,
        "born_timestamp_ms": message.born_timestamp_ms, "born_host": message.born_host,
        "reconsume_times": message.reconsume_times,
    }  # fmt: skip


def differences(
    first: Target, second: Target, quiet: bool, incomplete: dict[str, Any], told: list[Problem]
) -> Iterator[Difference]:  # fmt: skip
    """Queue by queue, in order; constant memory.  Raises `UnknownStore` for folders of two kinds.

    `incomplete` gets what the answer adds where messages are in a log and in no queue, or queues are not read; `told` what
    could not be compared in a RabbitMQ folder.
    """
    if first.is_rabbit != second.is_rabbit:
        raise UnknownStore(f"{first.path} is a {first.kind.value} folder, {second.path} a {second.kind.value} one")
    found: tuple[list[Problem], list[Problem]] = [], []  # a folder reports its own when it is closed
    with contextlib.ExitStack() as stack:
        sides = _Side(first, stack, found[0]), _Side(second, stack, found[1])
        lacking = {name: side.undispatched for name, side in zip(("first", "second"), sides, strict=True)}
        if set(lacking.values()) != {0}:
            incomplete["undispatched_messages"] = lacking
        not_read = {name: not_read_keys(side.path).get("not_read") for name, side in (("first", first), ("second", second))}
        if first.is_rabbit and any(not_read.values()):
            incomplete["not_read"] = not_read
        total = sum(side.count for side in sides)
        advance = stack.enter_context(progress("diff", total, wanted=not quiet, is_bytes=False))
        for lane in sorted(sides[0].lanes | sides[1].lanes):
            name = "/".join(str(part) for part in lane)
            present = [lane in side.lanes for side in sides]
            if not all(present):
                yield Difference(name, None, "only_in_first" if present[0] else "only_in_second", [])
                continue
            yield from _compare(name, *(_counted(side.messages(lane), advance) for side in sides))
    told += found[0] + found[1]


def _counted(messages: Iterator[Numbered], advance: Callable[[int], None]) -> Iterator[Numbered]:
    for message in messages:
        yield message
        advance(1)


def _compare(name: str, first: Iterator[Numbered], second: Iterator[Numbered]) -> Iterator[Difference]:
    """Two ascending rows of messages, merged."""
    left, right = next(first, None), next(second, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            assert left is not None
            yield Difference(name, left[0], "only_in_first", [])
            left = next(first, None)
        elif left is None or right[0] < left[0]:
            yield Difference(name, right[0], "only_in_second", [])
            right = next(second, None)
        else:
            fields = [field for field in left[1] if left[1][field] != right[1][field]]
            if fields:
                yield Difference(name, left[0], "differs", fields)
            left, right = next(first, None), next(second, None)


def show_differences(first: Target, second: Target, as_json: bool, limit: int, *, quiet: bool = False) -> int:
    """Exit code 1 when there are any, or damage; 3 where a format is not known.

    `limit` differences are shown, in the end, below the bar.
    """
    shown: list[Difference] = []
    count = 0
    more: dict[str, Any] = {}
    told: list[Problem] = []
    for found in differences(first, second, quiet, more, told):
        count += 1
        if len(shown) < limit:
            shown.append(found)
    if not as_json:
        for found in shown:
            emit(_text(found))
    if as_json:
        more |= {"in_use": True} if any(target.is_in_use for target in (first, second)) else {}
        emit_json({"same": count == 0 and not told, "count": count, "differences": [found._asdict() for found in shown]} | more)
    elif count == 0:
        emit("The same messages, of those that could be read" if told or "not_read" in more else "The same messages")
    elif count > limit:
        say(f"brokerstore: {count} differences; the first {limit} were shown, --limit N shows more")
    for target in (first, second):
        if target.is_in_use:
            say(f"brokerstore: {target.path} is in use: messages that come meanwhile are compared or not")
    return PROBLEM if count else outcome(told)


def _text(found: Difference) -> str:
    what = {"only_in_first": "only in the first", "only_in_second": "only in the second"}.get(found.kind)
    place = found.queue if found.number is None else f"{found.queue} {found.number}"
    return f"{place}: {what or 'differs in ' + ', '.join(found.fields)}"
