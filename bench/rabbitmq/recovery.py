"""Time to open a folder after a kill: the server's recovery and ours, on the same files, in turn.

    BROKERSTORE_INTEROP=1 python -m bench.rabbitmq.recovery [rounds [stored|embedded|all [3|4]]]

The last argument is the server's release: 3 (with index version 1, the default) or 4 (with version 2).
The server's time is taken from its log: from the line that starts the virtual host's message stores to the one that reports
the recovered queues.  Ours is `RabbitStore.open`, after which every message can be fetched.  The page cache is warm for both.
The last column is our time after a clean stop, when no message file is read.
"""

from __future__ import annotations

import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from rabbitstore import RabbitSettings, RabbitStore
from tests.interop.rabbitmq.broker import Broker, why_not
from tests.interop.rabbitmq.test_real_server import declare
from tests.interop.rabbitmq4.server import Server
from tests.interop.rabbitmq4.server import why_not as why_not_4
from tests.interop.rabbitmq4.workload import connect

CASES = (("stored", 125_000, 8192), ("embedded", 1_000_000, 1024))
QUEUE = "bench.recovery"
START = re.compile(r"^(\S+ \S+?)\+00:00 .*(?:Running boot step recovery|Starting message stores for vhost)", re.MULTILINE)
STOP = re.compile(r"^(\S+ \S+?)\+00:00 .*Recovering 1 queues of type rabbit_classic_queue took", re.MULTILINE)


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def server_seconds(broker: Broker | Broker4) -> float:
    """Start the server, wait for the line of its log, and kill it; return the time of the recovery."""
    known = len(STOP.findall(broker.log()))
    broker.start()
    while len(STOP.findall(log := broker.log())) == known:
        time.sleep(0.2)
    broker.kill()
    stop = STOP.findall(log)[-1]
    start = [moment for moment in START.findall(log) if moment <= stop][-1]
    return _moment(stop) - _moment(start)


class Broker4:
    """A RabbitMQ 4 in its chroot, with what `main` needs of a broker."""

    def __init__(self) -> None:
        """Prepare a node with an empty folder."""
        self.server = Server("recovery")
        self.vhost = self.server.node / "msg_stores/vhosts/628WB79CIFDYO9LJI6DKMI09L"

    def start(self) -> None:
        """Start the node and wait for it."""
        self.server.start()

    def declare(self) -> None:
        """Declare the queue of the benchmark."""
        connection, channel = connect()
        channel.queue_declare(QUEUE, durable=True)
        connection.close()

    def stop(self) -> None:
        """Stop the node cleanly."""
        self.server.end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the node without a stop."""
        self.server.end(signal.SIGKILL)

    def log(self) -> str:
        """Return the node's log."""
        return "".join(file.read_text() for file in (self.server.outside / "log").glob("*@localhost.log"))

    def end(self) -> None:
        """Kill the node and delete its folder."""
        self.server.close()


def fill(path: Path, count: int, size: int, version: int) -> None:
    """Write one lazy queue of persistent messages, and abandon the store as a kill does."""
    store = RabbitStore.open(str(path), settings=RabbitSettings(memory_limit_bytes=64 << 20, index_version=version))
    store.declare_queue(QUEUE, mode="lazy" if version == 1 else "default")
    body = b"x" * size
    for _ in range(count):
        store.publish(QUEUE, body)
    store.sync()
    store.abandon()


def our_seconds(path: Path, count: int) -> float:
    """Open the store, check the number of messages, and abandon it."""
    begin = time.perf_counter()
    store = RabbitStore.open(str(path), "r+", settings=RabbitSettings(background=False))
    taken = time.perf_counter() - begin
    assert len(store.queue(QUEUE)) == count
    store.abandon()
    return taken


def clean_seconds(path: Path, count: int) -> float:
    """Stop the store cleanly, then measure an opening."""
    RabbitStore.open(str(path), "r+", settings=RabbitSettings(background=False)).close()
    return our_seconds(path, count)


def main() -> None:
    """Measure and print the table."""
    rounds, chosen, release = [*sys.argv[1:], *("3", "all", "3")[len(sys.argv) - 1 :]]
    reason = why_not() if release == "3" else why_not_4()
    if reason:
        sys.exit(reason)
    print("| backlog | RabbitMQ s | rabbitstore s | ratio: median (least .. greatest) | clean s |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as base:
        broker = Broker(Path(base) / "broker") if release == "3" else Broker4()
        try:
            broker.start()
            if isinstance(broker, Broker4):
                broker.declare()
            else:
                declare([QUEUE], bench_recovery={"x-queue-mode": "lazy"})
            broker.stop()
            for name, count, size in (case for case in CASES if chosen in (case[0], "all")):
                shutil.rmtree(broker.vhost)
                fill(broker.vhost, count, size, 1 if release == "3" else 2)
                pairs = []
                for _ in range(int(rounds)):
                    pairs.append((server_seconds(broker), our_seconds(broker.vhost, count)))
                ratios = sorted(theirs / mine for theirs, mine in pairs)
                theirs, mine = (statistics.median(column) for column in zip(*pairs, strict=True))
                spread = f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} .. {ratios[-1]:.1f})"
                clean = statistics.median(clean_seconds(broker.vhost, count) for _ in range(int(rounds)))
                print(f"| {name}, {count:,} x {size} B | {theirs:.2f} | {mine:.2f} | {spread} | {clean:.2f} |", flush=True)
        finally:
            broker.end()


if __name__ == "__main__":
    main()
