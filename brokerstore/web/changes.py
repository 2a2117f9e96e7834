"""Changes of a RocketMQ store from a page: each is shown first, as the tool's plan, and done with a second request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from commitlog.topic_names import DEAD_PREFIX
from storageio import InvalidMessage

from ..tool.backends import Outgoing
from ..tool.filters import Filters
from ..tool.output import Answer, time_ms

BODY_MAX = 1 << 20  # of a form


class Change(NamedTuple):
    """A change: what it is called, its fields with their labels, and the function that plans or does it."""

    title: str
    about: str
    fields: dict[str, str]  # those whose label ends in "(optional)" may be empty
    run: Callable[[Any, dict[str, str], bool], Answer]


def _requeue(folder: Any, given: dict[str, str], apply: bool) -> Answer:
    from ..tool.backends.rocketmq_changes import requeue

    return requeue(folder, given["group"], Filters(key=given["key"] or None), apply)


def _delete_dead(folder: Any, given: dict[str, str], apply: bool) -> Answer:
    from ..tool.backends.rocketmq_changes import purge

    return purge(folder, DEAD_PREFIX + given["group"], given["group"], apply)


def _purge(folder: Any, given: dict[str, str], apply: bool) -> Answer:
    from ..tool.backends.rocketmq_changes import purge

    return purge(folder, given["topic"], given["group"] or None, apply)


def _reset(folder: Any, given: dict[str, str], apply: bool) -> Answer:
    from ..tool.backends.rocketmq_offsets import reset

    where: str | None = given["to"]
    moment = None
    if where not in ("earliest", "latest") and not (where or "").isdigit():
        try:
            moment, where = time_ms(where or ""), None
        except (ValueError, OverflowError) as error:
            raise InvalidMessage(f"{where!r}: expected earliest, latest, a queue offset or an ISO 8601 time") from error
    return reset(folder, (given["group"], given["topic"], None), where, moment, apply)


def _put(folder: Any, given: dict[str, str], apply: bool) -> Answer:
    from ..tool.backends.rocketmq_write import put

    keys = tuple(given["keys"].split())
    outgoing = Outgoing(given["topic"], given["body"], None, keys, given["tag"] or None, (), None)
    if apply:
        return put(folder, outgoing)
    folder.require_store()
    size = len(given["body"].encode())
    text = f"Puts one message of {size} bytes to topic {given['topic']}. Nothing was changed."
    return Answer({"applied": False, "topic": given["topic"], "size": size, "keys": list(keys)}, [text])


CHANGES = {
    "requeue": Change("Requeue dead letters", "Puts dead letters of a group to their topics again, each once.",
                      {"group": "Group", "key": "Key (optional)"}, _requeue),
    "delete-dead-letters": Change("Delete dead letters", "Skips every dead letter that the group did not take; none is shown again.",
                                  {"group": "Group"}, _delete_dead),
    "reset": Change("Reset a group", "Sets the next offset that a group reads in each queue of a topic.",
                    {"group": "Group", "topic": "Topic", "to": "earliest, latest, an offset or a time"}, _reset),
    "purge": Change("Purge a topic", "Skips the messages that a group, or each group, did not acknowledge.",
                    {"topic": "Topic", "group": "Group (optional)"}, _purge),
    "put": Change("Put a message", "Puts one message, which is on the disk when the page answers.",
                  {"topic": "Topic", "body": "Body (optional)", "keys": "Keys, with spaces (optional)", "tag": "Tag (optional)"}, _put),
}  # fmt: skip


def values(change: Change, form: dict[str, str]) -> dict[str, str]:
    """Return the fields of a form; raise `InvalidMessage` for one that is missing."""
    found = {name: form.get(name, "").replace("\r\n", "\n") for name in change.fields}
    missing = [name for name, label in change.fields.items() if not found[name] and not label.endswith("(optional)")]
    if missing:
        raise InvalidMessage(f"give {' and '.join(missing)}")
    return found
