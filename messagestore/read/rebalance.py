"""Divide the queues of a topic among the consumers of one group in a process."""

from __future__ import annotations

import threading
from typing import NamedTuple


class _Hand(NamedTuple):
    """The consumer that took a queue last, and how often the queue was reassigned."""

    member: object
    turn: int


class QueueSharing:
    """Divides a topic's queues among its consumers as RocketMQ's clients do: evenly, in blocks, in the order they joined.

    The division changes when a consumer joins or leaves and when the queues change.  Other processes are not known: two
    processes that consume with one group read everything twice.
    """

    def __init__(self) -> None:
        """Create it without consumers."""
        self._members: dict[tuple[str, str], list[object]] = {}
        self._queue_ids: dict[tuple[str, str], list[int]] = {}
        self._hands: dict[tuple[str, str], dict[int, _Hand]] = {}
        self._guard = threading.Lock()
        self.changes = 0  # while it stays the same, so does every division

    def join(self, topic: str, group: str, member: object) -> None:
        """Add a consumer to its group."""
        with self._guard:
            self._members.setdefault((topic, group), []).append(member)
            self.changes += 1

    def leave(self, topic: str, group: str, member: object) -> None:
        """Remove a consumer, so that the others get its queues."""
        with self._guard:
            self.changes += 1
            members = self._members.get((topic, group), [])
            if member in members:
                members.remove(member)
            if not members:
                for known in (self._members, self._queue_ids, self._hands):
                    known.pop((topic, group), None)

    def share(self, topic: str, group: str, member: object, queue_ids: list[int] | None) -> dict[int, int]:
        """Return the queues of a member, as a dict from queue id to turn; empty if it did not join.

        If a turn differs from the last call's, another consumer had the queue in between.  With `queue_ids` None the queues
        that any consumer listed last are divided.
        """
        key = topic, group
        with self._guard:
            members = self._members.get(key, [])
            if member not in members:
                return {}
            if queue_ids is not None and queue_ids != self._queue_ids.get(key):
                self._queue_ids[key] = queue_ids
                self.changes += 1
            mine = block(self._queue_ids.get(key, []), members.index(member), len(members))
            hands = self._hands.setdefault(key, {})
            return {queue_id: _take(hands, queue_id, member) for queue_id in mine}


def _take(hands: dict[int, _Hand], queue_id: int, member: object) -> int:
    """Assign a queue to a member and return its turn."""
    hand = hands.get(queue_id)
    if hand is None or hand.member is not member:
        hand = hands[queue_id] = _Hand(member, hand.turn + 1 if hand is not None else 0)
    return hand.turn


def block(items: list[int], number: int, parts: int) -> list[int]:
    """Return part `number` of `parts`; if they cannot be equal, the first parts have one more item.

    >>> [block([0, 1, 2, 3, 4], number, 3) for number in range(3)]
    [[0, 1], [2, 3], [4]]
    """
    size, more = divmod(len(items), parts)
    start = number * size + min(number, more)
    return items[start : start + size + (number < more)]
