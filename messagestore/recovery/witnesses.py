"""What the parts of a folder say about how far its log reaches.

Queue units, index items, timers, `clean.json`, the checkpoint and the offsets of consumers each name messages, or the time of
one.  If one of them names a message behind the last record, the log has lost its end: a file was removed, is an older copy, or
is on a disk that is not mounted.  The positions behind the end must not be used again while such a part is there: it would
lead to other messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from commitlog import CommitLog
from commitlog.checks import EMPTY
from storageio import StoreCorrupt

from ..checkpoint import CheckpointValues, times_ahead
from ..clean_stop import CleanStop, clean_path
from ..folder import FolderFacts
from .clamp_offsets import clamped
from .log_end import LogEnd, refuse_hole, used_behind
from .named_messages import EndClaim, NamedMessages, by_queue

FILES_WITH_TIMES = 2  # files at the end of the log in which a record as new as the checkpoint is looked for


class UnplacedClaim(NamedTuple):
    """A part of the folder that shows that messages were lost, but not where they were in the log."""

    file: str
    names: str
    lost_by_queue: dict[str, int]  # the least numbers, by `topic/queue`
    offsets: int  # how many offsets lead to them


def claims(root: str, named: NamedMessages | None, last_offset: int, clean_stop: CleanStop | None) -> Iterator[EndClaim]:
    """Yield how far the log reached by each part that tells an offset; `last_offset` is where its last record begins.

    A part that cannot be read says nothing here; it is reported and repaired as damage of its own.
    """
    with suppress(StoreCorrupt):
        if named is not None:
            yield from named.claims(last_offset)
    if clean_stop is not None:
        yield EndClaim(clean_path(root), clean_stop.end_offset - 1, clean_stop.end_offset)


def unplaced_claims(
    facts: FolderFacts, named: NamedMessages | None, log: CommitLog, end: LogEnd
) -> Iterator[UnplacedClaim]:  # fmt: skip
    """Yield the parts that show, after a clean stop, a loss at an offset that is unknown or not believed.

    Offsets of consumers and delay levels count only if the log has no record at all: else `recover` and an opening clamp them.
    """
    checkpoint = facts.checkpoint.values
    if lacks_synced_records(log, end, checkpoint):
        yield UnplacedClaim(facts.checkpoint_path, f"a record stored after {checkpoint.log_timestamp_ms}", {}, 0)
    behind = [part for part in claims(facts.path, named, end.last_offset, None) if part.start >= end.offset]
    if named is not None and behind:
        stop = max(part.start for part in behind) + 1
        yield UnplacedClaim(
            behind[0].file, f"a log that ended at {behind[0].end}", by_queue(named.between(end.offset, stop)), 0
        )
    if end.last_offset >= 0 or end.offset > 0 or named is None:
        return
    ends = named.ends_at(0)
    for table, changed in clamped(
        facts.disk, facts.paths.config, lambda topic, queue_id: ends.get((topic, queue_id), (0, 0))[1]
    ):
        lost: dict[str, int] = {}
        beyond = [one for one in changed if one.before > one.after]
        for one in beyond:
            queue = f"{one.key.split('@')[0]}/{one.queue_id}"
            lost[queue] = max(lost.get(queue, 0), one.before - one.after)
        if beyond:
            yield UnplacedClaim(table.path, f"offset {beyond[0].before} of {beyond[0].key}", lost, len(beyond))


def refuse_lost_end(facts: FolderFacts, named: NamedMessages | None, log: CommitLog, end: LogEnd, *, was_clean: bool) -> None:
    """Raise `StoreCorrupt` if the log has lost its end, so that the next messages would get the positions of lost ones.

    After a clean stop everything that a part of the folder names was in the log.  After a crash these parts may be newer than
    the log, and are cut, unless the checkpoint says that newer records than the last one were synced.
    """
    if not was_clean and not lacks_synced_records(log, end, facts.checkpoint.values):
        return
    parts = claims(facts.path, named, end.last_offset, facts.clean_stop)
    lost = next(((part.file, f"a log that ended at {part.end} or later") for part in parts if part.start >= end.offset), None)
    if lost is None and was_clean:
        lost = next(((part.file, part.names) for part in unplaced_claims(facts, named, log, end)), None)
    if lost is None:
        return
    refuse_hole(log, end)
    raise StoreCorrupt(
        "the log has lost its end; see `brokerstore recover`", file=lost[0], offset=0, expected=lost[1],
        found=f"a log that ends at {end.offset}, last record stored at {end.store_timestamp_ms}",
    )  # fmt: skip


def is_cut_tail(facts: FolderFacts, named: NamedMessages | None, log: CommitLog, end: LogEnd) -> bool:
    """Return whether a recovery cut what lies behind the end, and the store was stopped cleanly after it.

    RocketMQ leaves the bytes of a torn record in the log, and may leave its unit.  Then the checkpoint is that of the record
    before, and nothing names a record that is neither there nor torn.  `docs/explanation/torn-tail-and-damage.md` has the rule.
    """
    checkpoint = facts.checkpoint
    is_ahead = bool(times_ahead(checkpoint.values, end.store_timestamp_ms))  # of queues or index: they had the record
    covers_end = checkpoint.values.physic_msg_timestamp_ms > 0 and not is_ahead and not checkpoint.is_damaged
    clean_stop, used = facts.clean_stop, list(used_behind(log, end.offset))
    names_more = clean_stop is not None and clean_stop.end_offset > end.offset
    if named is None or names_more or not covers_end or len(used) != 1 or log.check(end.offset) == EMPTY:
        return False
    file, torn_from, torn_to = used[0]
    size = int.from_bytes(file.view[torn_from : torn_from + 4], "big")
    return (
        file.start_offset + torn_from == end.offset
        and torn_to < torn_from + size  # the end of the record was never written; any other change of its bytes is damage
        and all(part.end <= file.end_offset for part in named.claims(end.last_offset))
        and all(unit.physical_offset < file.start_offset + torn_to for unit in named.between(end.offset, file.end_offset))
    )


def lacks_synced_records(log: CommitLog, end: LogEnd, checkpoint: CheckpointValues) -> bool:
    """Return whether the checkpoint says that a record was synced which is newer than all that are left.

    Times may go back when a clock is set, so every record of the last files is looked at before the checkpoint is believed.
    """
    synced_ms = checkpoint.log_timestamp_ms
    if synced_ms <= end.store_timestamp_ms:
        return False
    files = [file for file in log.queue.files if file.start_offset < end.offset][-FILES_WITH_TIMES:]
    at = files[0].start_offset if files else end.offset
    while 0 <= (at := log.find_record(at)) < end.offset:
        message = log.message_at(at)
        if message is not None and message.store_timestamp_ms >= synced_ms:
            return False
        at += message.size if message is not None else 1
    return True
