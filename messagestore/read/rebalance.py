"""Divide the queues of a topic among the consumers of one group in a process."""

from __future__ import annotations

import math
import threading
import time
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, cast


class GroupMember(Protocol):
    """What the rebalance and an operator know of a consumer."""

    topic: str
    group: str

    @property
    def is_away(self) -> bool:
        """Whether it takes no queues: it was stopped, or a visibility time ended and it did not poll since."""

    @property
    def keeps_held(self) -> bool:
        """Whether a queue stays with it while it holds messages of it, however long."""

    def end_expired(self) -> float:
        """End the deliveries whose visibility time is over; return the seconds until the next one is."""

    def restarting(self) -> AbstractContextManager[None]:
        """Begin at the offsets that are set during a `with` block."""

    def holds(self, queue_id: int) -> bool:
        """Return whether it has messages of a queue that are not acknowledged."""


class _Hand(NamedTuple):
    """The consumer that took a queue last, and how often the queue was reassigned."""

    member: object
    turn: int


class QueueSharing:
    """Divides a topic's queues among its consumers as RocketMQ's clients do: evenly, in blocks, in the order they joined.

    The division changes when a consumer joins or leaves and when the queues change.  Other processes are not known: two
    processes that consume with one group read everything twice.

    With `hand_over_s` above 0, a queue is given to another consumer only when its last one holds no message of it any more,
    or after so many seconds; without that limit if the last one keeps what it holds (`GroupMember.keeps_held`).
    """

    def __init__(self) -> None:
        """Create it without consumers."""
        self.hand_over_s = 0.0
        self.is_waited_for = False  # whether a consumer waits for a queue that another one holds
        self._waits: dict[tuple[str, str, int], float] = {}  # queues that a consumer waits for, and since when
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

    def pairs(self) -> list[tuple[str, str]]:
        """Return the (group, topic) of every consumer that shares its queues."""
        with self._guard:
            return [(group, topic) for topic, group in self._members]

    def renew(self, topic: str, group: str) -> None:
        """Count every queue as reassigned to the consumer that has it, which then begins at the committed offset."""
        with self._guard:
            hands = self._hands.get((topic, group), {})
            for queue_id, hand in hands.items():
                hands[queue_id] = hand._replace(turn=hand.turn + 1)
            self.changes += 1

    def share(self, topic: str, group: str, member: object, queue_ids: list[int] | None) -> dict[int, int]:
        """Return the queues of a member, as a dict from queue id to turn; empty if it did not join.

        If a turn differs from the last call's, another consumer had the queue in between.  With `queue_ids` None the queues
        that any consumer listed last are divided.
        """
        key = topic, group
        with self._guard:
            members = [one for one in self._members.get(key, []) if not cast(GroupMember, one).is_away]
            if member not in members:
                return {}
            if queue_ids is not None and queue_ids != self._queue_ids.get(key):
                self._queue_ids[key] = queue_ids
                self.changes += 1
            mine = block(self._queue_ids.get(key, []), members.index(member), len(members))
            hands = self._hands.setdefault(key, {})
            free = [queue_id for queue_id in mine if not self._is_held(key, hands.get(queue_id), queue_id, member)]
            return {queue_id: self._take(hands, queue_id, member) for queue_id in free}

    def _is_held(self, key: tuple[str, str], hand: _Hand | None, queue_id: int, member: object) -> bool:
        """Return whether another member still holds messages of a queue, and may do so for longer."""
        if hand is None or hand.member is member:
            return False
        limit_s = math.inf if cast(GroupMember, hand.member).keeps_held else self.hand_over_s
        if not limit_s:
            return False
        waits = (*key, queue_id)
        now = time.monotonic()
        if self._holds(key, hand, queue_id) and now - self._waits.setdefault(waits, now) < limit_s:
            self.changes += 1  # so that the division is looked at again
            self.is_waited_for = True
            return True
        self._waits.pop(waits, None)
        self.is_waited_for = bool(self._waits)
        return False

    def _holds(self, key: tuple[str, str], hand: _Hand, queue_id: int) -> bool:
        """Return whether a consumer that did not leave holds messages of a queue."""
        return hand.member in self._members.get(key, []) and cast(GroupMember, hand.member).holds(queue_id)

    def _take(self, hands: dict[int, _Hand], queue_id: int, member: object) -> int:
        """Assign a queue to a member and return its turn."""
        hand = hands.get(queue_id)
        if hand is None or hand.member is not member:
            self.changes += 1
            hand = hands[queue_id] = _Hand(member, hand.turn + 1 if hand is not None else 0)
        return hand.turn

    def turn_of(self, topic: str, group: str, queue_id: int, member: object) -> int:
        """Return the turn of a queue that a member took last; -1 if another one did."""
        with self._guard:
            hand = self._hands.get((topic, group), {}).get(queue_id)
            return hand.turn if hand is not None and hand.member is member else -1

    def claim(self, topic: str, group: str, queue_id: int, member: object) -> int:
        """Give a queue to a member that has messages of it, unless another one has some; return its turn or -1."""
        with self._guard:
            hands = self._hands.setdefault((topic, group), {})
            hand = hands.get(queue_id)
            if hand is not None and hand.member is not member and self._holds((topic, group), hand, queue_id):
                return -1
            return self._take(hands, queue_id, member)


def block(items: list[int], number: int, parts: int) -> list[int]:
    """Return part `number` of `parts`; if they cannot be equal, the first parts have one more item.

    >>> [block([0, 1, 2, 3, 4], number, 3) for number in range(3)]
    [[0, 1], [2, 3], [4]]
    """
    size, more = divmod(len(items), parts)
    start = number * size + min(number, more)
    return items[start : start + size + (number < more)]
