"""`diff`: the messages of two folders of one kind, queue by queue and number by number."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import click

from storageio import UnknownStore
from storebytes.folder_kind import FolderKind

from ..backends import QueueKey
from ..backends.opening import Backend, open_backend
from ..codes import PROBLEM
from ..options import JSON, OFFSET, QUIET, plain_command
from ..output import emit, emit_json, print_line, progress

Numbered = tuple[int, dict[str, Any]]


class MessageDifference(NamedTuple):
    """A message, or a whole queue, that is not the same on both sides."""

    queue: str
    number: int | None  # queue offset or sequence number; None for a whole queue
    kind: str  # only_in_first, only_in_second, differs
    fields: list[str]


@plain_command("diff", "diff orders-store copied", "diff vhost vhost --json")
@click.argument("first", metavar="DIR", type=click.Path())
@click.argument("second", metavar="OTHER_DIR", type=click.Path())
@JSON
@click.option("--vhost", metavar="NAME", help="Virtual host on both sides, for RabbitMQ nodes with several.")
@click.option("--limit", type=OFFSET, default=100, show_default=True, help="Number of differences to show.")
@QUIET
def diff(first: str, second: str, as_json: bool, vhost: str | None, limit: int, quiet: bool) -> int:
    """Compare the messages of two folders.

    Each difference is reported by queue and number.
    """
    from ..backends.rocketmq_dledger import compared_entries, entries_text
    from ..target import find_target

    targets = [find_target(folder, {"vhost": vhost}) for folder in (first, second)]
    sides = open_backend(targets[0]), open_backend(targets[1])
    shown: list[MessageDifference] = []
    count = 0
    more: dict[str, Any] = {}
    for found in differences(*sides, quiet, more):
        count += 1
        if len(shown) < limit:
            shown.append(found)
    if all(target.kind is FolderKind.DLEDGER for target in targets):
        more["dledger"] = compared_entries(*targets)
    in_use = [side.target.path for side in sides if side.is_in_use]
    problems = [problem for side in sides for problem in side.problems]  # a RabbitMQ folder reports its own
    if as_json:
        more |= {"in_use": True} if in_use else {}
        emit_json(
            {"same": count == 0 and not problems, "count": count, "differences": [found._asdict() for found in shown]} | more
        )
    else:
        for found in shown:
            emit(_text(found))
        if "dledger" in more:
            emit(entries_text(more["dledger"]))
        if count == 0:
            emit("The readable messages are the same." if problems or "not_read" in more else "The messages are the same.")
        elif count > limit:
            print_line(f"brokerstore: {count} differences, of which {limit} are shown; --limit N shows more")
    for path in in_use:
        print_line(f"brokerstore: {path} is in use: messages that arrive meanwhile may be missing from the comparison")
    codes = [side.code for side in sides]
    return PROBLEM if count or PROBLEM in codes else max(codes)


def differences(first: Backend, second: Backend, quiet: bool, incomplete: dict[str, Any]) -> Iterator[MessageDifference]:
    """Compare queue by queue, in constant memory; raise `UnknownStore` for folders of two kinds.

    `incomplete` gets the JSON keys for a log with messages that no queue has yet, and for queues that are not read.
    """
    if first.title != second.title:
        kinds = [f"{side.target.path} is a {side.target.kind.value} folder" for side in (first, second)]
        raise UnknownStore(", ".join(kinds))
    with contextlib.ExitStack() as stack:
        sides = first.contents(stack), second.contents(stack)
        lacking = {name: side.undispatched for name, side in zip(("first", "second"), sides, strict=True)}
        if set(lacking.values()) != {0}:
            incomplete["undispatched_messages"] = lacking
        not_read = {name: side.unread_keys().get("not_read") for name, side in (("first", first), ("second", second))}
        if any(not_read.values()):
            incomplete["not_read"] = not_read
        counts = [side.message_count for side in sides]
        total = sum(counts) if all(counts) else 0
        advance = stack.enter_context(progress("diff", total, quiet=quiet, is_bytes=False))
        for queue in sorted(sides[0].queues | sides[1].queues):
            name = "/".join(str(part) for part in queue)
            present = [queue in side.queues for side in sides]
            if not all(present):
                yield MessageDifference(name, None, "only_in_first" if present[0] else "only_in_second", [])
                continue
            yield from _compare(name, *(_counted(side.messages, queue, advance) for side in sides))


def _counted(
    messages: Callable[[QueueKey], Iterator[Numbered]], queue: QueueKey, advance: Callable[[int], None]
) -> Iterator[Numbered]:  # fmt: skip
    for message in messages(queue):
        yield message
        advance(1)


def _compare(name: str, first: Iterator[Numbered], second: Iterator[Numbered]) -> Iterator[MessageDifference]:
    """Merge two ascending sequences of messages."""
    left, right = next(first, None), next(second, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            assert left is not None
            yield MessageDifference(name, left[0], "only_in_first", [])
            left = next(first, None)
        elif left is None or right[0] < left[0]:
            yield MessageDifference(name, right[0], "only_in_second", [])
            right = next(second, None)
        else:
            fields = [field for field in left[1] if left[1][field] != right[1][field]]
            if fields:
                yield MessageDifference(name, left[0], "differs", fields)
            left, right = next(first, None), next(second, None)


def _text(found: MessageDifference) -> str:
    what = {"only_in_first": "only in the first", "only_in_second": "only in the second"}.get(found.kind)
    location = found.queue if found.number is None else f"{found.queue} {found.number}"
    return f"{location}: {what or 'differs in ' + ', '.join(found.fields)}"
