"""Read the messages of queues up to the first damage, beside a writer too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

from storageio import StoreCorrupt, StoreError
from storebytes.finding import UNSUPPORTED, Finding, unsupported_error

from .stored_message import RabbitMessage
from .vhost_folder import SEQ_ID_MAX, VhostFolder

ATTEMPTS_MAX = 100


def undamaged_messages(
    open_folder: Callable[[], VhostFolder], range_of: Callable[[str], range | None], *, include_acked: bool
) -> Iterator[RabbitMessage]:
    """Yield messages as `VhostFolder.messages` does; raise `StoreCorrupt` or `UnsupportedFormat` at the first problem.

    `range_of` returns the wanted sequence numbers of a queue, None for a queue that is not wanted.

    What looks damaged is read again, because a message may have been acknowledged and deleted since its entry was read.
    """
    done: dict[str, int] = {}  # the next sequence number of each folder of a queue
    suspects: set[Finding] = set()
    for attempt in range(ATTEMPTS_MAX):
        with closing(open_folder()) as folder:
            yield from _before_problem(folder, range_of, done, include_acked)
        found = [problem for problem in folder.problems if problem in suspects or attempt == ATTEMPTS_MAX - 1]
        if found:
            raise _to_error(folder.path, found[0])
        if not folder.problems:
            return
        suspects.update(folder.problems)


def every_message(_queue: str) -> range:
    """Return the sequence numbers of all messages."""
    return range(SEQ_ID_MAX)


def _before_problem(
    folder: VhostFolder, range_of: Callable[[str], range | None], done: dict[str, int], include_acked: bool
) -> Iterator[RabbitMessage]:
    for queue in folder.queue_folders():
        requested = range_of(queue.queue)
        if requested is None:
            continue
        start = done.get(queue.folder, requested.start)
        for message in folder.messages_in(queue, include_acked=include_acked, start=start, stop=requested.stop):
            if folder.problems:
                return
            done[queue.folder] = message.seq_id + 1
            yield message


def _to_error(path: str, problem: Finding) -> StoreError:
    if problem.kind == UNSUPPORTED:
        return unsupported_error(path, problem)
    file, reason = f"{path}/{problem.file}", problem.kind.replace("_", " ")
    return StoreCorrupt(reason, file=file, offset=problem.offset, expected=problem.expected, found=problem.found)
