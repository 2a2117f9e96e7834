"""`copy`: topics of a RocketMQ store into a new one."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from storageio import REAL_DISK, InvalidMessage, PutRejected

from ..escapes import quote
from ..options import JSON, POSITIVE, QUIET, TEXT, store_command
from ..output import Answer, count_text, print_line, progress, show

if TYPE_CHECKING:
    from messagestore import MessageStore

    from ..backends.rocketmq_folder import RocketmqFolder

WAITING = {
    "delayed": "waiting delayed message",
    "timers": "pending timer",
    "transactions": "undecided transaction",
    "unacknowledged": "unacknowledged message of POP consumers",
}


@store_command(
    "copy",
    "copy orders-store --to copied --topic orders",
    "copy orders-store --to smaller --all --commitlog-size 1048576",
    rocketmq_only=True,
)
@click.option("--to", "new", metavar="NEW_DIR", required=True, type=click.Path(), help="Folder of the new store.")
@click.option("--topic", "topics", type=TEXT, multiple=True, help="A topic to copy; may be repeated.")
@click.option("--all", "every", is_flag=True, help="Copy every topic.")
@click.option("--commitlog-size", "new_mapped_file_size_commit_log", type=POSITIVE, help="Bytes of the new store's log files.")
@click.option("--cq-size", "new_mapped_file_size_consume_queue", type=POSITIVE, help="Bytes of its queue files.")
@click.option("--index-slots", "new_max_hash_slot_num", type=POSITIVE, help="Slots of its index files.")
@click.option("--index-num", "new_max_index_num", type=POSITIVE, help="Items of its index files.")
@JSON
@QUIET
def copy(
    backend: RocketmqFolder, new: str, topics: tuple[str, ...], as_json: bool, quiet: bool, *, every: bool,
    **sizes: int | None,
) -> int:  # fmt: skip
    """Copy topics with their offsets and groups into a new store.

    With --all a broker on the new store delivers nothing twice: delayed messages, timers and transactions go on where they are.
    Times stay the same, and so do sizes that are not given.
    """
    if bool(topics) == every:
        raise click.UsageError("give --topic NAME, which may be repeated, or --all")
    from brokerstore.identify import FolderKind
    from brokerstore.write_target import check_write_target
    from messagestore.compaction import compacted_queues
    from messagestore.rocksdb.database import EXTRA

    backend.require_index_layout(has_rocksdb=True)
    check_write_target(new, FolderKind.ROCKETMQ)
    given: dict[str, Any] = {name.removeprefix("new_"): value for name, value in sizes.items() if value is not None}
    with backend.open_log_reader() as store:
        incomplete = backend.incomplete_keys(store) if backend.facts.is_store else {}  # RocksDB has the queues
        chosen = list(topics) if not every else store.topics()
        config = store.config.but(**given) if given else None
        total = sum(store.max_offset(topic, queue_id) for topic in chosen for queue_id in store.queue_ids(topic))
        with progress("copy", total, quiet=quiet, is_bytes=False) as advance, _named_topic(chosen), _whole_or_nothing(new):
            done = store.copy_topics(new, None if every else chosen, config, progress=advance)
        waiting = _waiting(backend, store, chosen) if not every else dict.fromkeys(WAITING, 0)
    for name in done.unread:
        print_line(f"brokerstore: not copied: {name}, which needs the extra {EXTRA} and tells what POP consumers have in hand")
    if backend.is_in_use and compacted_queues(REAL_DISK, backend.facts.path):
        print_line("brokerstore: not copied: compacted files, which a broker replaces; it makes them again from the copied log")
    facts = {"topics": done.topics, "messages": done.messages, "groups": done.groups, "not_copied": waiting} | incomplete
    topics_text, groups_text = count_text(len(done.topics), "topic"), count_text(len(done.groups), "group")
    text = [f"Copied {count_text(done.messages, 'message')} of {topics_text} and the offsets of {groups_text} to {new}"]
    text += [f"Not copied: {count_text(count, WAITING[name])}" for name, count in waiting.items() if count]
    step = f"run: brokerstore copy {quote(backend.facts.path)} --to OTHER_DIR --all  (copies that as well)"
    return show(Answer(facts, text, next_steps=[step] if len(text) > 1 else ()), as_json)


def _waiting(backend: RocketmqFolder, store: MessageStore, chosen: list[str]) -> dict[str, int | None]:
    """Count what waits for the chosen topics in topics of the broker that are not chosen; None is not known."""
    from commitlog.topic_names import HALF_TOPIC, SCHEDULE_TOPIC
    from messagestore.broker.services.pop_state import REVIVE_PREFIX
    from messagestore.broker.services.waiting_delays import waiting_delays
    from messagestore.rocksdb.database import EXTRA, can_read
    from messagestore.timers.layout import TIMER_TOPIC

    from ..backends.rocketmq_pop import pop_rows
    from ..backends.rocketmq_timers import pending

    if backend.facts.contents.has_rocksdb_rows and not can_read():
        print_line(f"brokerstore: not counted: what waits for these topics, which needs the extra {EXTRA}")
        return dict.fromkeys(WAITING)
    found: dict[str, int | None] = dict.fromkeys(WAITING, 0)
    if SCHEDULE_TOPIC not in chosen:
        found["delayed"] = sum(count for topic, count in waiting_delays(store.engine).items() if topic in chosen)
    timers = pending(backend) if TIMER_TOPIC not in chosen else None
    if timers is not None:
        found["timers"] = sum(one.timers for one in timers.topics if one.topic in chosen)
    if HALF_TOPIC not in chosen:
        found["transactions"] = sum(half.topic in chosen for half in store.undecided_transactions())
    if TIMER_TOPIC not in chosen or not any(topic.startswith(REVIVE_PREFIX) for topic in chosen):
        rows = pop_rows(backend, with_rocksdb=False)  # those in RocksDB need no topic: they were copied
        found["unacknowledged"] = sum(row["unacknowledged"] for row in rows if row["topic"] in chosen)
    return found


@contextlib.contextmanager
def _whole_or_nothing(new: str) -> Iterator[None]:
    """Remove what a failed copy made; a store that was there before stays."""
    before = set(os.listdir(new)) if os.path.isdir(new) else None
    try:
        yield
    except BaseException:
        if before is None:
            shutil.rmtree(new, ignore_errors=True)
        elif not before:
            for name in os.listdir(new):
                shutil.rmtree(os.path.join(new, name), ignore_errors=True)
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(new, name))
        raise


@contextlib.contextmanager
def _named_topic(topics: list[str]) -> Iterator[None]:
    """Name the topic that the new store refuses: an old store may have topics that no broker creates any more."""
    from messagestore.write.admission import folder_problem

    try:
        yield
    except (InvalidMessage, PutRejected) as error:
        refused = next((topic for topic in topics if folder_problem(topic) is not None), None)
        if refused is None:
            raise
        named = InvalidMessage(f"topic {refused[:200]!r}: {error}")
        named.add_note("run the command with --topic NAME for each of the other topics  (nothing was copied)")
        raise named from error
