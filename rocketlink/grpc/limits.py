"""Limits for clients that upload or read slowly: what the grpc library keeps for them cannot be limited in it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import IntEnum
from typing import Any, NamedTuple

UPLOADS_MAX = 24  # requests that arrive at a time; of each the library keeps up to the greatest size
UPLOAD_S = 0.5, 10.0  # for one of them while others wait for their turn: of an unknown connection, of a known one
TURN_S = 0.25
PEERS_MAX = 16_384
UNSENT_MAX = 64 << 20  # bytes of all answers that clients have not read
WRITE_S = 60.0  # for all messages of an answer


class _WaitingUpload(NamedTuple):
    """A request that waits for its turn."""

    peer: str
    turn: asyncio.Future[None]


class Rank(IntEnum):
    """In which order connections have turns."""

    KNOWN = 0  # a request of it was complete in time
    UNKNOWN = 1
    SLOW = 2


class Uploads:
    """The requests that arrive.  Every call is made by the loop's thread.

    The library reads about 64 KiB of a request before it is asked for, and then all of it.  So requests take turns; when others
    wait, a slow one ends, and its connection comes after all others from then on.
    """

    def __init__(self) -> None:
        """Create it without requests."""
        self._arriving: dict[asyncio.Timeout, tuple[str, float]] = {}
        self._count = 0
        self._waiting: dict[Rank, deque[_WaitingUpload]] = {rank: deque() for rank in Rank}
        self._ranks: dict[str, Rank] = {}

    async def complete(self, read: Callable[[], Awaitable[Any]], peer: str) -> Any:
        """Return what `read` returns, the request of a call; raise `TimeoutError` if it is too slow."""
        if self._count < UPLOADS_MAX:
            self._count += 1
        else:
            await self._turn(peer)
        try:
            async with asyncio.timeout(None) as limit:
                self._arriving[limit] = peer, time.monotonic()
                try:
                    request = await read()
                finally:
                    del self._arriving[limit]
        finally:
            self._give_turns()
        if peer not in self._ranks:
            if len(self._ranks) >= PEERS_MAX:
                self._ranks.clear()
            self._ranks[peer] = Rank.KNOWN
        return request

    async def _turn(self, peer: str) -> None:
        waiting = _WaitingUpload(peer, asyncio.get_running_loop().create_future())
        self._waiting[self._ranks.get(peer, Rank.UNKNOWN)].append(waiting)
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if not waiting.turn.cancelled():
                self._give_turns()
            raise

    def _give_turns(self) -> None:
        """Pass on the turn of a request that has ended."""
        self._count -= 1
        while self._count < UPLOADS_MAX and (rank := next((rank for rank in Rank if self._waiting[rank]), None)) is not None:
            one = self._waiting[rank].popleft()
            now = self._ranks.get(one.peer, rank)
            if now > rank:
                self._waiting[now].append(one)
            elif not one.turn.done():
                self._count += 1
                one.turn.set_result(None)

    async def watch(self) -> None:
        """End slow requests while others wait."""
        slow: list[asyncio.Timeout] = []
        while True:
            await asyncio.sleep(TURN_S)
            if any(self._waiting.values()):
                for limit in slow:  # in two turns: that the loop was busy is no fault of a client
                    if limit in self._arriving:
                        self._ranks[self._arriving[limit][0]] = Rank.SLOW
                        limit.reschedule(asyncio.get_running_loop().time())
            else:
                self._ranks = {peer: rank for peer, rank in self._ranks.items() if rank is Rank.KNOWN}
            slow = [limit for limit in self._arriving if self._is_slow(*self._arriving[limit])]

    def _is_slow(self, peer: str, began_s: float) -> bool:
        limit_s = UPLOAD_S[self._ranks.get(peer) is Rank.KNOWN]
        return time.monotonic() - began_s > limit_s - TURN_S


class Unsent:
    """The answers that clients have not read.  Every call is made by the loop's thread."""

    def __init__(self) -> None:
        """Create it without answers."""
        self._waiting: dict[asyncio.Timeout, int] = {}  # the earliest first
        self._size_bytes = 0

    @contextlib.asynccontextmanager
    async def of(self, size_bytes: int) -> AsyncIterator[None]:
        """Write an answer within a time; if all that is not read is too much, the slowest ones end with `TimeoutError`."""
        async with asyncio.timeout(WRITE_S) as limit:
            self._waiting[limit] = size_bytes
            self._size_bytes += size_bytes
            while self._size_bytes > UNSENT_MAX and len(self._waiting) > 1:
                slowest = next(iter(self._waiting))
                self._size_bytes -= self._waiting.pop(slowest)
                slowest.reschedule(asyncio.get_running_loop().time())
            try:
                yield
            finally:
                self._size_bytes -= self._waiting.pop(limit, 0)
