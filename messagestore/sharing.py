"""Which consumer reads which queues, when several of one group are open in a process."""

from __future__ import annotations

import threading


class QueueSharing:
    """Consumers of one topic and group divide its queues as RocketMQ's clients do: evenly, in blocks, in the order they came.

    The division changes when a consumer comes or goes and when a queue does.  Other processes are not seen: two processes
    that consume with one group read everything twice.
    """

    def __init__(self) -> None:
        """Nobody consumes."""
        self._members: dict[tuple[str, str], list[object]] = {}
        self._changes: dict[tuple[str, str], int] = {}
        self._guard = threading.Lock()

    def changes(self, topic: str, group: str) -> int:
        """How often somebody came or went: between two looks one apart, no queue can have gone and come back."""
        return self._changes.get((topic, group), 0)

    def join(self, topic: str, group: str, member: object) -> None:
        """Take part from now on."""
        with self._guard:
            self._members.setdefault((topic, group), []).append(member)
            self._changes[topic, group] = self.changes(topic, group) + 1

    def leave(self, topic: str, group: str, member: object) -> None:
        """Leave one's queues to the others."""
        with self._guard:
            members = self._members.get((topic, group), [])
            if member in members:
                members.remove(member)
                self._changes[topic, group] = self.changes(topic, group) + 1
            if not members:
                self._members.pop((topic, group), None)

    def share(self, topic: str, group: str, member: object, queue_ids: list[int]) -> list[int]:
        """A member's part; none for who does not take part."""
        with self._guard:
            members = self._members.get((topic, group), [])
            return block(queue_ids, members.index(member), len(members)) if member in members else []


def block(items: list[int], number: int, parts: int) -> list[int]:
    """Part `number` of `parts`; the first ones have one more where they cannot be equal.

    >>> [block([0, 1, 2, 3, 4], number, 3) for number in range(3)]
    [[0, 1], [2, 3], [4]]
    """
    size, more = divmod(len(items), parts)
    start = number * size + min(number, more)
    return items[start : start + size + (number < more)]
