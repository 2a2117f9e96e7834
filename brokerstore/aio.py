"""A store for asyncio: `async with brokerstore.aio.open(path) as store`.

The store may be open in other processes too, as with `brokerstore.connect`.
"""

from __future__ import annotations

from messagestore.shared.aio import AsyncConsumer, AsyncMessage, AsyncStore, open

__all__ = ["AsyncConsumer", "AsyncMessage", "AsyncStore", "open"]
