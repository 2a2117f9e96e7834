"""Changes of a RocketMQ store from a page: each is shown first, as the tool's plan, and done with a second request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from commitlog.topic_names import DEAD_PREFIX
from storageio import InvalidMessage

from ..tool.backends import Outgoing, rocketmq_changes, rocketmq_offsets, rocketmq_write
from ..tool.filters import Filters
from ..tool.output import Answer, count_text, time_ms

BODY_MAX = 1 << 20  # of a form
Given = dict[str, str]


class PageChange(NamedTuple):
    """A change: what it is called, its fields with their labels, and the function that plans or does it."""

    title: str
    about: str
    fields: dict[str, str]  # those whose label ends in "(optional)" may be empty
    run: Callable[[Any, Given, bool], Answer]


def _requeue(folder: Any, given: Given, apply: bool) -> Answer:
    return rocketmq_changes.requeue(folder, given["group"], Filters(key=given["key"] or None), apply)


def _delete_dead(folder: Any, given: Given, apply: bool) -> Answer:
    return rocketmq_changes.purge(folder, DEAD_PREFIX + given["group"], given["group"], apply)


def _purge(folder: Any, given: Given, apply: bool) -> Answer:
    return rocketmq_changes.purge(folder, given["topic"], given["group"] or None, apply)


def _reset(folder: Any, given: Given, apply: bool) -> Answer:
    where, what = given["to"], (given["group"], given["topic"], None)
    if where in ("earliest", "latest") or where.isdecimal():
        return rocketmq_offsets.reset(folder, what, where, None, apply)
    try:
        return rocketmq_offsets.reset(folder, what, None, time_ms(where), apply)
    except (ValueError, OverflowError) as error:
        raise InvalidMessage(f"{where!r}: expected earliest, latest, a queue offset or an ISO 8601 time") from error


def _put(folder: Any, given: Given, apply: bool) -> Answer:
    if apply:
        keys, tag = tuple(given["keys"].split()), given["tag"] or None
        return rocketmq_write.put(folder, Outgoing(given["topic"], given["body"], None, keys, tag, (), None))
    folder.require_store()
    text = (
        f"Puts a message of {count_text(len(given['body'].encode()), 'byte')} to topic {given['topic']}. Nothing was changed."
    )
    return Answer({}, [text])


CHANGES = {
    "requeue": PageChange("Requeue dead letters", "Puts dead letters of a group to their topics again, each once.",
                      {"group": "Group", "key": "Key (optional)"}, _requeue),
    "delete-dead-letters": PageChange("Delete dead letters", "Skips every dead letter that the group did not take.",
                                  {"group": "Group"}, _delete_dead),
    "reset": PageChange("Reset a group", "Sets the next offset that a group reads in each queue of a topic.",
                    {"group": "Group", "topic": "Topic", "to": "earliest, latest, an offset or a time"}, _reset),
    "purge": PageChange("Purge a topic", "Skips the messages that a group, or each group, did not acknowledge.",
                    {"topic": "Topic", "group": "Group (optional)"}, _purge),
    "put": PageChange("Put a message", "Puts one message, which is on the disk when the page answers.",
                  {"topic": "Topic", "body": "Body (optional)", "keys": "Keys (optional)", "tag": "Tag (optional)"}, _put),
}  # fmt: skip


def values(change: PageChange, form: Given) -> Given:
    """Return the fields of a form; raise `InvalidMessage` for one that is missing."""
    found = {name: form.get(name, "").replace("\r\n", "\n") for name in change.fields}
    missing = [name for name, label in change.fields.items() if not found[name] and not label.endswith("(optional)")]
    if missing:
        raise InvalidMessage(f"give {' and '.join(missing)}")
    return found
