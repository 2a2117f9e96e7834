"""`copy`: chosen topics of a RocketMQ store into a new one."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

from brokerstore.identify import FolderKind
from brokerstore.write_target import check_write_target
from messagestore.broker.services.admission import topic_problem
from storageio import InvalidMessage, PutRejected

from .codes import CLEAN
from .output import emit, emit_json, progress
from .queue_commands import incomplete_keys, open_store
from .target import Target


@contextlib.contextmanager
def _whole_or_nothing(new: str) -> Iterator[None]:
    """A copy that failed half way is taken away again, and only what it made; a store that was there stays."""
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
def _named_topic(wanted: list[str]) -> Iterator[None]:
    """A store that is there may have topics that no broker makes any more: which one is refused is said."""
    try:
        yield
    except (InvalidMessage, PutRejected) as error:
        refused = next((topic for topic in wanted if topic_problem(topic) is not None), None)
        if refused is None:
            raise
        named = InvalidMessage(f"topic {refused[:200]!r}: {error}")
        named.add_note("run it with --topic NAME for each of the other topics  (nothing was copied)")
        raise named from error


def copy_store(
    target: Target, as_json: bool, quiet: bool, new: str, topics: tuple[str, ...], sizes: dict[str, Any], *, every: bool
) -> int:  # fmt: skip
    """Copy and say what went over.  `sizes`: `new_` and a field of `StoreConfig`, None where the old store's value counts."""
    target.need_store()
    target.need_shape()
    check_write_target(new, FolderKind.ROCKETMQ)
    given = {name.removeprefix("new_"): value for name, value in sizes.items() if value is not None}
    with open_store(target) as store:
        incomplete = incomplete_keys(store)
        wanted = list(topics) if not every else store.topics()
        config = store.config.but(**given) if given else None
        total = sum(store.max_offset(topic, queue_id) for topic in wanted for queue_id in store.queue_ids(topic))
        with progress("copy", total, wanted=not quiet, is_bytes=False) as advance, _named_topic(wanted), _whole_or_nothing(new):
            done = store.copy_topics(new, wanted, config, progress=advance)
    if as_json:
        emit_json({"topics": done.topics, "messages": done.messages, "groups": done.groups} | incomplete)
    else:
        emit(f"{done.messages} messages of {len(done.topics)} topics, offsets of {len(done.groups)} groups; now in {new}")
    return CLEAN
