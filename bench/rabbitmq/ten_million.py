"""Memory of a queue of ten million messages while it grows, is opened again and is consumed.

    python -m bench.rabbitmq.ten_million [messages [default|lazy]]

Prints the peak resident memory of the process after each step, and the store's own count.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time

from rabbitstore import RabbitSettings, RabbitStore

LIMIT_BYTES = 256 << 20
BATCH = 20_000
BODY_SIZE = 100


def printed(step: str, store: RabbitStore, begin: float) -> None:
    """Print a line with seconds, peak memory and the store's own count."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    held = store.queue("q").memory_bytes() >> 20
    print(f"{step}: {time.perf_counter() - begin:.0f} s, peak {peak} MiB, store counts {held} MiB", flush=True)


def main() -> None:
    """Measure and print each step."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    mode = sys.argv[2] if len(sys.argv) > 2 else "default"
    settings = RabbitSettings(background=False, memory_limit_bytes=LIMIT_BYTES, index_version=1)
    body = b"x" * BODY_SIZE
    with tempfile.TemporaryDirectory() as folder:
        store = RabbitStore.open(f"{folder}/vhost", settings=settings)
        store.declare_queue("q", mode=mode)
        begin = time.perf_counter()
        highest = 0
        for number in range(1, count + 1):
            store.publish("q", body)
            if number % BATCH == 0:
                store.sync()
                highest = max(highest, store.queue("q").memory_bytes())
        printed("published", store, begin)
        assert highest <= LIMIT_BYTES, f"{highest} bytes counted at once"
        store.close()
        begin = time.perf_counter()
        store = RabbitStore.open(f"{folder}/vhost", "r+", settings=settings)
        printed("opened again", store, begin)
        begin = time.perf_counter()
        for _ in range(count):
            delivery = store.get("q")
            assert delivery is not None
            store.ack(delivery)
        assert store.get("q") is None
        printed("consumed", store, begin)
        store.close()


if __name__ == "__main__":
    main()
