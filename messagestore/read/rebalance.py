"""Which consumer reads which queues, when several of one group are open in a process."""

from __future__ import annotations

import threading
from typing import NamedTuple


class _Hand(NamedTuple):
    """Who took a queue last, and how often it changed hands."""

    member: object
    turn: int


class QueueSharing:
    """Consumers of one topic and group divide its queues as RocketMQ's clients do: evenly, in blocks, in the order they came.

    The division changes when a consumer comes or goes and when a queue does.  Other processes are not seen: two processes
    that consume with one group read everything twice.
    """

    def __init__(self) -> None:
        """Nobody consumes."""
        self._members: dict[tuple[str, str], list[object]] = {}
        self._queue_ids: dict[tuple[str, str], list[int]] = {}
        self._hands: dict[tuple[str, str], dict[int, _Hand]] = {}
        self._guard = threading.Lock()

    def join(self, topic: str, group: str, member: object) -> None:
        """Take part from now on."""
        with self._guard:
            self._members.setdefault((topic, group), []).append(member)

    def leave(self, topic: str, group: str, member: object) -> None:
        """Leave one's queues to the others."""
        with self._guard:
            members = self._members.get((topic, group), [])
            if member in members:
                members.remove(member)
            if not members:
                for known in (self._members, self._queue_ids, self._hands):
                    known.pop((topic, group), None)

    def share(self, topic: str, group: str, member: object, queue_ids: list[int] | None) -> dict[int, int]:
        """A member's part, none for who does not take part: queue id to turn.

        A turn that is not the one of the last call says that the queue was in another hand meanwhile.  `queue_ids`: None from
        who did not look for queues now; then what anybody saw last is divided.
        """
        key = topic, group
        with self._guard:
            members = self._members.get(key, [])
            if member not in members:
                return {}
            if queue_ids is not None:
                self._queue_ids[key] = queue_ids
            mine = block(self._queue_ids.get(key, []), members.index(member), len(members))
            hands = self._hands.setdefault(key, {})
            return {queue_id: _take(hands, queue_id, member) for queue_id in mine}


def _take(hands: dict[int, _Hand], queue_id: int, member: object) -> int:
    """Have a queue; its turn."""
    hand = hands.get(queue_id)
    if hand is None or hand.member is not member:
        hand = hands[queue_id] = _Hand(member, hand.turn + 1 if hand is not None else 0)
    return hand.turn


def block(items: list[int], number: int, parts: int) -> list[int]:
    """Part `number` of `parts`; the first ones have one more where they cannot be equal.

    >>> [block([0, 1, 2, 3, 4], number, 3) for number in range(3)]
    [[0, 1], [2, 3], [4]]
    """
    size, more = divmod(len(items), parts)
    start = number * size + min(number, more)
    return items[start : start + size + (number < more)]
