"""Read and write `config/subscriptionGroup.json`: consumer groups and their settings, such as the number of retries."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from storageio import InvalidMessage

from .config_files import Document
from .config_table import KeyedTable
from .consumer_offsets import JOINT

INT32_MAX = (1 << 31) - 1
RETRY_MAX_TIMES = 16
CONSUME_TIMEOUT_MINUTES = 15

# Attribute here -> field in the file: integers and flags.
_NUMBERS = {
    "broker_id": "brokerId",
    "consume_timeout_minutes": "consumeTimeoutMinute",
    "sys_flag": "groupSysFlag",
    "retry_max_times": "retryMaxTimes",
    "retry_queues": "retryQueueNums",
    "broker_when_slow": "whichBrokerWhenConsumeSlowly",
}
_FLAGS = {
    "is_broadcast_enabled": "consumeBroadcastEnable",
    "is_enabled": "consumeEnable",
    "is_from_min_enabled": "consumeFromMinEnable",
    "is_ordered": "consumeMessageOrderly",
    "notifies_changes": "notifyConsumerIdsChangedEnable",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroup:
    """One consumer group. The defaults apply to fields that the file omits."""

    name: str
    is_enabled: bool = True
    is_from_min_enabled: bool = True
    is_broadcast_enabled: bool = True
    is_ordered: bool = False
    retry_queues: int = 1
    retry_max_times: int = RETRY_MAX_TIMES
    retry_policy: Document = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    broker_when_slow: int = 1
    notifies_changes: bool = True
    sys_flag: int = 0
    consume_timeout_minutes: int = CONSUME_TIMEOUT_MINUTES
    attributes: Document = field(default_factory=dict)

    def but(self, **changes: Any) -> SubscriptionGroup:
        """Return a copy with other values."""
        return replace(self, **changes)


class SubscriptionGroups(KeyedTable[SubscriptionGroup]):
    """All consumer groups of a store."""

    file_name = "subscriptionGroup.json"
    table_name = "subscriptionGroupTable"
    rocksdb_name = "groups"

    def parse(self, name: str, raw: Document) -> SubscriptionGroup:
        """Return the group of a document in RocketMQ's form.  Raises `StoreCorrupt` for a field of another type."""
        plain = SubscriptionGroup(name=name)
        numbers = {
            here: self.number(raw, there, getattr(plain, here), where=name, maximum=INT32_MAX)
            for here, there in _NUMBERS.items()
        }
        flags = {here: self.flag(raw, there, getattr(plain, here), where=name) for here, there in _FLAGS.items()}
        maps = {"retry_policy": raw.get("groupRetryPolicy"), "attributes": raw.get("attributes")}
        for there, value in maps.items():
            if value is not None and not isinstance(value, dict):
                raise self.corrupt(f"{name}.{there}", "a map", value)
        return plain.but(**numbers, **flags, **{here: value for here, value in maps.items() if value is not None})

    def _fill(self, document: Document) -> None:
        document.setdefault("forbiddenTable", {})
        super()._fill(document)

    def create(self, name: str, **changes: Any) -> SubscriptionGroup:
        """Create a group, or change an existing one."""
        with self._lock:
            before = self._entries.get(name)
            group = (before or SubscriptionGroup(name=name)).but(**changes)
            if group != before:
                self.put(group)
            return group

    def put(self, group: SubscriptionGroup) -> None:
        """Set all known fields of a group; unknown fields of the file stay."""
        check_group(group)
        known: Document = {there: getattr(group, here) for here, there in (_NUMBERS | _FLAGS).items()}
        known |= {
            "attributes": dict(group.attributes),
            "groupName": group.name,
            "groupRetryPolicy": dict(group.retry_policy),
        }
        self._put(group.name, group, known)


def check_group(group: SubscriptionGroup) -> None:
    """Raise `InvalidMessage` for a name or number that no store can hold."""
    if not group.name or JOINT in group.name or "/" in group.name or "\0" in group.name:
        raise InvalidMessage(f"a group named {group.name!r}: a name without {JOINT}, / and NUL wanted")
    for here in _NUMBERS:
        least = -1 if here in ("retry_queues", "retry_max_times") else -INT32_MAX
        if not least <= getattr(group, here) <= INT32_MAX:
            raise InvalidMessage(f"group {group.name}: {here} is {getattr(group, here)}")
