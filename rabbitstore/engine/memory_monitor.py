"""Memory targets of queues (rabbit_memory_monitor)."""

from __future__ import annotations

from collections.abc import Sequence

from .live_queue import LiveQueue
from .rates_cy import INFINITY
from .variable_queue_cy import VariableQueue


def balance_memory(queues: Sequence[LiveQueue], limit_bytes: int) -> None:
    """Give every queue a target so that all together stay below the limit.

    Below half of the limit no queue has a target.  Above three quarters, a queue with traffic may hold the messages of the
    time that fits, an idle queue its share.
    """
    total = sum(queue.memory_bytes() for queue in queues)
    share = 1.0 if total == 0 else min(1.0, limit_bytes * 0.75 / total)
    for queue in queues:
        with queue.lock:
            for part in queue.parts:
                if total <= limit_bytes * 0.75 and part.target_ram_count == INFINITY:
                    continue
                if total <= limit_bytes * 0.5:
                    part.set_target_ram_count(INFINITY)
                elif share < 1.0:
                    _limit(part, share)


def _limit(part: VariableQueue, share: float) -> None:
    duration_s = part.duration_s()
    if duration_s == INFINITY:
        part.set_target_ram_count(int((part.ram_count + len(part.ram_pending)) * share))
    else:
        part.set_duration_target(duration_s * share)
