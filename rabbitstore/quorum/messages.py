"""The messages of a queue as its machine keeps them, without their bodies."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from .command_cy import INDEX_BITS, SIZE_MAX

_INDEX_MASK = (1 << INDEX_BITS) - 1
_BLOCK = 4096


@dataclass(slots=True)
class QuorumContent:
    """A message in the queue: `index` is that of the entry that has its body."""

    index: int
    size: int
    acquired: int = 0
    delivery_count: int = 0
    expiry_ms: int | None = None
    annotations: dict[Any, Any] = field(default_factory=dict)

    def is_expired(self, time_ms: int) -> bool:
        """Return whether the message's time to live is over."""
        return self.expiry_ms is not None and time_ms >= self.expiry_ms


class MessageList:
    """Messages in the order of their delivery.

    One that has only an index and a size takes eight bytes, and is made when it is taken.
    Copies share all blocks but the last.
    """

    def __init__(self, messages: Iterable[QuorumContent] = ()) -> None:
        """Start with some messages."""
        self._blocks: deque[array[int]] = deque()
        self._at = 0  # of the first message in the first block
        self._count = 0
        self._others: dict[int, QuorumContent] = {}
        self._made = 0
        for message in messages:
            self.append(message)

    def __len__(self) -> int:
        """Return the number of messages."""
        return self._count

    def __iter__(self) -> Iterator[QuorumContent]:
        """Yield the messages; those of a number are new objects."""
        for block in self.blocks():
            yield from map(self.of, block)

    def blocks(self) -> Iterator[array[int]]:
        """Yield the numbers in parts: size and index of a message as one, or a negative one that `of` takes."""
        start = self._at
        for block in self._blocks:
            yield block[start:] if start else block
            start = 0

    @property
    def first(self) -> QuorumContent | None:
        """The message that `popleft` would return."""
        if not self._count:
            return None
        return self.of(self._blocks[0][self._at])

    def of(self, number: int) -> QuorumContent:
        """Return the message of a number."""
        return self._others[number] if number < 0 else QuorumContent(number & _INDEX_MASK, number >> INDEX_BITS)

    def append(self, message: QuorumContent) -> None:
        """Add a message as the last one."""
        if message.expiry_ms is None and not (message.acquired or message.delivery_count or message.annotations):
            self.add(message.index, message.size)
        else:
            self._add_other(message)

    def add(self, index: int, size: int) -> None:
        """Add a message that has only an index and a size."""
        if 0 <= index <= _INDEX_MASK and 0 <= size < SIZE_MAX:
            self._add_number(size << INDEX_BITS | index)
        else:
            self._add_other(QuorumContent(index, size))

    def _add_other(self, message: QuorumContent) -> None:
        self._made -= 1
        self._others[self._made] = message
        self._add_number(self._made)

    def _add_number(self, number: int) -> None:
        if not self._blocks or len(self._blocks[-1]) >= _BLOCK:
            self._blocks.append(array("q"))
        self._blocks[-1].append(number)
        self._count += 1

    def extend(self, numbers: array[int]) -> None:
        """Add messages of an index and a size, as `CommandReader.follow` returns them."""
        self._count += len(numbers)
        if self._blocks and len(self._blocks[-1]) + len(numbers) <= _BLOCK:
            self._blocks[-1].extend(numbers)
        else:
            self._blocks.append(numbers)

    def popleft(self) -> QuorumContent:
        """Remove and return the first message; raise `IndexError` without one."""
        block = self._blocks[0]
        number = block[self._at]
        message = self.of(number)
        self._others.pop(number, None)
        self._at += 1
        self._count -= 1
        if self._at == len(block):
            self._blocks.popleft()
            self._at = 0
        return message

    def clear(self) -> None:
        """Remove all of the messages."""
        self.__init__()  # type: ignore[misc]

    def copy(self) -> MessageList:
        """Return a list with copies of the messages."""
        found = MessageList()
        found._blocks = self._blocks.copy()
        if found._blocks:
            found._blocks[-1] = found._blocks[-1][:]
        found._at, found._count, found._made = self._at, self._count, self._made
        found._others = {number: replace(message) for number, message in self._others.items()}
        return found
