"""What each version of the queue machine does (docs/formats/rabbitmq-quorum.md#versions).

A version is one of RabbitMQ's module `rabbit_fifo`.  A row names what it does differently from the one before.
"""

from __future__ import annotations

from typing import NamedTuple

AT_REMOVAL = "removal"  # not a command: the active consumer was cancelled, or its process ended


class Rules(NamedTuple):
    """What one version does.  `first_name` is in the entries and settings of this version, and in none before it."""

    first_name: bytes = b""
    keeps_headers: bool = True  # a snapshot has headers of messages without indexes: the entries behind it settle all of them
    waits_for_earlier: bool = True  # an enqueue ahead of its number waits for those before it, and later versions ignore it
    replaces_consumers: bool = False  # a consumer that is declared again becomes a new one with a priority and a status
    has_consumer_priority: bool = False
    can_reject: bool = False  # knows the overflow strategy `reject_publish`
    can_expire: bool = False
    caps_credit: bool = False  # a consumer never has more credit than it was declared with
    credits_dropped_twice: bool = True  # for a return that exceeds the delivery limit
    keeps_return_order: bool = False  # returns come back in the order of the command, before in that of their ids
    expires_every_list: bool = False  # drops the expired at the head of each list, by a timer or when the next one is expired
    lists: int = 1  # of messages by priority: one, two, or 32
    is_active_by_priority: bool = False  # before, consumers that wait become active in the order of their arrival
    activated_by: frozenset[str] = frozenset({"nodeup", AT_REMOVAL})  # what gives a queue its single active consumer
    counts_failures: bool = False  # a return that is no failure does not count as a failed delivery
    updates_each_return: bool = False  # of a consumer, before the next one, also when its process has ended
    counts_properties: bool = False  # in the size of a message
    limits_failures: bool = False  # the delivery limit counts only failed deliveries
    keeps_after_disconnect: bool = False  # a lost connection alone returns nothing
    reads_utf8_config: bool = True  # and no other, though the server writes Latin-1
    finds_node_up: bool = False  # a start applies `nodeup` for the server's own node


LISTS_STRICT = 32
_SUBSCRIBED = frozenset({"checkout", "nodeup", AT_REMOVAL})
_SETTLED = frozenset({"checkout", "cancel", "nodeup", "settle", "discard", "down"})
_RETURNS = frozenset({"return", "modify", "requeue"})
_V0 = Rules()
_V1 = _V0._replace(
    first_name=b"overflow_strategy", has_consumer_priority=True, can_reject=True, finds_node_up=True, reads_utf8_config=False
)
_V2 = _V1._replace(
    first_name=b"msg_ttl", keeps_headers=False, waits_for_earlier=False, replaces_consumers=True, can_expire=True,
    activated_by=_SUBSCRIBED,
)  # fmt: skip
_V3 = _V2._replace(first_name=b"", caps_credit=True, credits_dropped_twice=False)
_V4 = _V3._replace(
    first_name=b"w\x01e", keeps_return_order=True, lists=2, is_active_by_priority=True, counts_failures=True,
    activated_by=_SETTLED,
)  # fmt: skip
_V5 = _V4._replace(first_name=b"")
_V7 = _V5._replace(activated_by=_SETTLED | _RETURNS)
_V8 = _V7._replace(
    expires_every_list=True, lists=LISTS_STRICT, updates_each_return=True, counts_properties=True, limits_failures=True,
    keeps_after_disconnect=True,
)  # fmt: skip
RULES = dict(enumerate((_V0, _V1, _V2, _V3, _V4, _V5, _V5, _V7, _V8)))
VERSIONS = range(len(RULES))


def oldest_with(heads: list[bytes]) -> int:
    """Return the oldest version that can have made the beginnings of some entries, or of a `config`."""
    names = ((version, rules.first_name) for version, rules in RULES.items() if rules.first_name)
    return max((version for version, name in names if any(name in head for head in heads)), default=0)
