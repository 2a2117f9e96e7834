"""`tail`: the last messages, and those that come."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator

from commitlog import StoredMessage
from commitlog.findings import Finding
from commitlog.walk import LogFiles

from .codes import CLEAN, PROBLEM
from .log_commands import show_header, show_row, tell
from .target import Target
from .wanted import Wanted


def show_tail(target: Target, as_json: bool, wanted: Wanted, lines: int, follow: bool) -> int:
    """The last `lines` messages that are wanted; with `follow` on and on, until interrupted."""
    if follow:
        target.need_store()
    told: list[Finding] = []
    last, end_offset = _last(target.files(), wanted, lines, told)
    show_header(as_json)
    for message in last:
        show_row(message, as_json)
    if follow:
        for message in following(target, end_offset):
            if wanted.takes(message):
                show_row(message, as_json)
                sys.stdout.flush()
    return PROBLEM if told else CLEAN


def _last(files: LogFiles, wanted: Wanted, lines: int, told: list[Finding]) -> tuple[list[StoredMessage], int]:
    """The wanted messages at the end, from the last file backwards, and the physical offset behind all."""
    whole, end_offset = files.files, files.end().offset
    found: list[StoredMessage] = []
    for number in reversed(range(len(whole))):
        if len(found) >= lines:
            break
        files.files = whole[number : number + 1]
        found = [*deque(_wanted(files, wanted, told), maxlen=lines), *found]
    return found[max(0, len(found) - lines) :] if lines else [], end_offset


def _wanted(files: LogFiles, wanted: Wanted, told: list[Finding]) -> Iterator[StoredMessage]:
    """The wanted messages of the files; what is wrong is said."""
    for step in files.messages():
        if isinstance(step, Finding):
            tell(step, told)
        elif wanted.takes(step):
            yield step


def following(target: Target, start: int) -> Iterator[StoredMessage]:
    """Messages from a physical offset on, waiting for more."""
    from .queue_commands import open_store

    sys.stdout.flush()
    with open_store(target) as store, store.follow(start) as follower:
        yield from follower
