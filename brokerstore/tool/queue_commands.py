"""`get` by queue and `query`: through the store opened for reading."""

from __future__ import annotations

from typing import Any

from messagestore import GetStatus, MessageStore

from .absent import NoSuchMessage
from .codes import CLEAN
from .escapes import quote
from .log_commands import show_header, show_row, show_whole
from .output import say
from .target import Target


def open_store(target: Target) -> MessageStore:
    """For reading; changes nothing and needs no lock."""
    target.need_store()
    return MessageStore.open(target.path, "r", target.config())


def incomplete_keys(store: MessageStore) -> dict[str, Any]:
    """Report on stderr what the queues of a killed writer's store lack; return what a JSON answer adds for it."""
    undispatched = store.engine.undispatched
    undispatched.is_reported = True
    problem = undispatched.problem()
    if not problem:
        return {}
    say(f"brokerstore: incomplete: {problem}; run: brokerstore rebuild {quote(store.path)}")
    return {"undispatched_messages": store.undispatched_messages}


def get_messages(target: Target, as_json: bool, topic: str, queue_id: int, offset: int, count: int) -> int:
    """Messages of one queue from an offset on; `NoSuchMessage` says the status of a page without any."""
    with open_store(target) as store:
        incomplete_keys(store)
        shown = 0
        while shown < count:
            page = store.get(topic, queue_id, offset, count - shown)
            if page.status is GetStatus.NO_MATCHED_MESSAGE and page.next_offset > offset:
                offset = page.next_offset
                continue
            if page.status is not GetStatus.FOUND:
                break
            for message in page.messages:
                if count == 1:
                    show_whole(message, as_json)
                else:
                    show_row(message, as_json)
            shown += len(page.messages)
            offset = page.next_offset
        if shown == 0:
            where = f"queue {queue_id} of {topic} has offsets {page.min_offset} to {page.max_offset}"
            text = f"{page.status.value}: {where}; go on at {page.next_offset}"
            raise NoSuchMessage(text, f"run: brokerstore ls {quote(target.path)}  (topics, queues and their offsets)")
    return CLEAN


def query_messages(
    target: Target, as_json: bool, topic: str, key: str, times: tuple[int | None, int | None], max_count: int
) -> int:  # fmt: skip
    """Oldest first; none found is an answer too, and is said."""
    target.need_shape()
    with open_store(target) as store:
        store.engine.undispatched.is_reported = True  # no warning of the queues: a query searches the log
        found = store.query(topic, key, *times, max_count)
        is_known = bool(found) or topic in store.topics()
        unsearched = store.unsearched_bytes
    if unsearched:
        say(f"brokerstore: incomplete: the last {unsearched} bytes of the log are not in the index yet and were not searched")
    if not found and is_known:
        say(f"brokerstore: no message of topic {topic!r} has the key {key!r}; run: brokerstore dump {quote(target.path)}")
    if not is_known:
        say(f"brokerstore: there is no topic {topic!r}; run: brokerstore ls {quote(target.path)}")
    if not target.has("index"):
        say("brokerstore: there is no index folder; `brokerstore rebuild DIR index` makes one")
    if found:
        show_header(as_json)
    for message in found:
        show_row(message, as_json)
    return CLEAN
