"""A kombu transport, so that Celery runs on a folder: `brokerstore:///data/tasks` (extra `kombu`).

    import brokerstore.kombu                         # makes the scheme known to kombu
    app = Celery("shop", broker="brokerstore:///data/tasks")

Every process of the user's machine opens the same store with `brokerstore.connect`. A queue is a topic; its workers are one
consumer group, and an acknowledgement is the group's. Queues that live only as long as a process (replies, remote control,
events) share one topic, and each process reads it with a position of its own.

- `transport`: transport, channel and acknowledgements for kombu
- `loop_reader`: delivery in kombu's event loop
- `queues`: the two kinds of queues on a store
- `bindings`: exchanges' bindings, which all processes share
- `base`: kombu's classes, or what stands for them without kombu
"""

from __future__ import annotations

from .base import register
from .transport import Channel, Transport

__all__ = ["Channel", "Transport"]

register()
