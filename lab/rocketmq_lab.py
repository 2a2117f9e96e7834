"""Programs on a store over a `ForgettingDisk`; every crash is tried after each step.

    run = Run(seed)
    run.do(("put", "T", 0, 40, 1)); run.do(("flush",)); ...
    assert run.report.images > 0

The store works as usual but without threads: a program runs the work of each thread at a moment that it chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

from commitlog import Message
from messagestore import FlushMode, MessageStore, StoreConfig
from messagestore.engine import Engine
from storageio.testing import ForgettingDisk, Image

from .crashes import Crashes
from .deep import crash_inside
from .report import Report
from .rocketmq_check import check_store, same_again
from .rocketmq_ledger import Ledger

ROOT = "/store"
LOG_SIZE = 8 << 10
Program = list[tuple[Any, ...]]


class StillEngine(Engine):
    """An engine without threads."""

    def _start_threads(self) -> None:
        """Start nothing; a program calls the work itself."""


def lab_config(**changes: Any) -> StoreConfig:
    """Return a configuration with files of a few pages, so that a short program fills several of each kind."""
    sizes: dict[str, Any] = {
        "mapped_file_size_commit_log": LOG_SIZE,
        "mapped_file_size_consume_queue": 100,
        "max_hash_slot_num": 7,
        "max_index_num": 20,
        "max_message_size": 5000,
        "flush_disk_type": FlushMode.ASYNC,
    }
    return StoreConfig(**(sizes | changes))


def open_still(disk: ForgettingDisk, config: StoreConfig, root: str = ROOT) -> MessageStore:
    """Open a writing store without threads; its clock is the disk's."""
    engine = StillEngine(root, config, disk, disk.now_ms, writable=True)
    assert not engine.dispatcher.thread.is_started, "threads would make the programs differ from run to run"
    return MessageStore(engine)


def abandon(store: MessageStore) -> None:
    """Abandon a store as a killed process does: nothing more is written, now or at exit."""
    store._finalizer.detach()
    store.engine.abandon()


class RocketmqRun(Crashes[int]):
    """One program; the promise is the number of flushed records of the ledger."""

    def __init__(
        self, seed: int = 0, *, config: StoreConfig | None = None, chances: int = 2, limit: int = 0, deep: int = 0,
        report: Report | None = None, tries: bool = True, disk: ForgettingDisk | None = None,
    ) -> None:  # fmt: skip
        """Create a new store; without `tries` no crash is tried."""
        super().__init__(seed, chances, deep, limit, report, tries)
        self.kind_of = kind_of_file
        self.config = config or lab_config()
        self.is_sync = self.config.is_sync_flush
        self.ledger = Ledger()
        self.disk = disk or ForgettingDisk()
        self.disk.watch = self.catch
        self.store = self.open()
        self.judge()

    def open(self) -> MessageStore:
        """Open the store on the disk as it is."""
        return open_still(self.disk, self.config)

    # Crashes

    def promised(self) -> tuple[int, int]:
        """Return the number of flushed records."""
        return self.ledger.flushed, self.ledger.flushed

    def settle(self) -> None:
        """Add every record that was tried, acknowledged or not, to the ledger, because a crash may keep it."""
        store = getattr(self, "store", None)
        if store is not None and not store.engine.is_closed:
            self.ledger.learn(store)

    def judge_image(self, image: Image, flushed: int) -> None:
        """Recover from one crash and check; now and then recover again, or crash inside the recovery."""
        self.report.images += 1
        number = self.report.images
        disk = ForgettingDisk.of(image, self.disk.time_ms)
        count = self.recover(disk, flushed)
        if number % 4 == 0:
            self.recover_again(disk, count)
        if self.deep and number % self.deep == 0:
            found = crash_inside(image, self.disk.time_ms, lambda disk: self.recover(disk, flushed), self.random, depth=1)
            self.report.images += found
            self.report.again += found

    def recover(self, disk: ForgettingDisk, flushed: int) -> int:
        """Open and check; return how many records are left."""
        store = open_still(disk, self.config)
        count = check_store(store, disk, self.ledger, flushed)
        abandon(store)
        return count

    def recover_again(self, disk: ForgettingDisk, count: int) -> None:
        """Check that the recovered records survive the next crash, with equal bytes if only the process died."""
        second = ForgettingDisk.of(disk.after_kill(), disk.time_ms)
        self.recover(second, count)
        same_again(disk.files(), second.files(), ROOT)
        self.recover(ForgettingDisk.of(disk.least(), disk.time_ms), count)
        self.report.images += 2
        self.report.again += 2

    def judge(self) -> None:
        """Check also that a killed process loses nothing of the log, flushed or not."""
        super().judge()
        image, count = self.disk.after_kill(), len(self.ledger.entries)
        if self.tries and self.report.is_new(hash((image.key, "killed", count))):
            self.judge_image(image, count)

    # Operations

    def message(self, topic: str, queue_id: int, size: int, keys: int, tags: str | None = "A") -> Message:
        """Return a new message whose body holds its number."""
        self.number += 1
        body = f"{self.number:08d}".encode().ljust(size, b".")
        self.ledger.bodies.add(body)
        words = [f"k{(self.number + index) % 5}" for index in range(keys)]
        return Message(topic, body, queue_id=queue_id, tags=tags, keys=words or None)

    def safe(self) -> None:
        """Mark every record of the log as promised."""
        self.ledger.flushed = self.ledger.learn(self.store)

    def do_put(self, topic: str, queue_id: int, size: int, keys: int) -> None:
        """Put one message into a queue."""
        self.store.put(self.message(topic, queue_id, size, keys))
        if self.is_sync:
            self.safe()

    def do_put_many(self, topic: str, count: int, size: int) -> None:
        """Put several messages into three queues."""
        self.store.put_many([self.message(topic, number % 3, size, 1) for number in range(count)])
        if self.is_sync:
            self.safe()

    def do_put_batch(self, topic: str, queue_id: int, count: int, size: int) -> None:
        """Put a batch into one queue."""
        self.store.put_batch(topic, queue_id, [self.message(topic, queue_id, size, 1) for _ in range(count)])
        if self.is_sync:
            self.safe()

    def do_flush(self) -> None:
        """Flush the log to the disk."""
        self.store.flush()
        self.safe()

    def do_bring(self) -> None:
        """Commit from the pool's ring to the files, as the committer does."""
        self.store.engine.flusher.commit(0)

    def do_dispatch(self) -> None:
        """Dispatch queues and index up to the log's end."""
        self.store.engine.settle()

    def do_derive(self, thorough: bool) -> None:
        """Run a round of the housekeeper: sync queues and index, write the checkpoint."""
        keeper = self.store.engine.housekeeper
        keeper._try(lambda: keeper.flush_derived(thorough=thorough))  # the housekeeper handles the error

    def do_prepare(self) -> None:
        """Create the next log file ahead of time."""
        self.store.engine.log.queue.prepare_next()

    def do_retain(self, files: int) -> None:
        """Delete the oldest log files."""
        low = max(self.store.engine.log.min_offset, 0) + files * self.config.mapped_file_size_commit_log  # type: ignore[operator]
        self.ledger.low = max(self.ledger.low, low)
        self.store.delete_before(low)

    def do_commit(self, topic: str, queue_id: int) -> None:
        """Commit and persist a consumer group's offset."""
        offsets = self.store.engine.consumer_offsets()
        offsets.commit(topic, "G", queue_id, self.store.max_offset(topic, queue_id))
        self.store.engine.persist_offsets()

    def do_topic(self, topic: str, queues: int) -> None:
        """Create a topic explicitly."""
        self.store.create_topic(topic, queues)

    def do_wait(self, milliseconds: int) -> None:
        """Let some time pass."""
        self.disk.time_ms += milliseconds

    def do_close(self) -> None:
        """Stop cleanly and open the store again."""
        self.ledger.learn(self.store)
        self.store.close()
        assert "/store/abort" not in self.disk.files(), "not a clean stop"
        self.ledger.flushed = len(self.ledger.entries)
        self.judge()
        self.operation = "reopen"
        self.store = self.open()
        assert self.store.engine.was_clean

    def do_crash(self) -> None:
        """Crash, and continue the program on what remains."""
        self.ledger.learn(self.store)
        abandon(self.store)
        self.disk = ForgettingDisk.of(self.disk.any_image(self.random), self.disk.time_ms)
        self.disk.watch = self.catch
        self.operation = "recover"
        self.store = self.open()
        self.ledger.cut(check_store(self.store, self.disk, self.ledger, self.ledger.flushed))


def kind_of_file(path: str) -> str:
    """Return the kind of a path in a store: log, queue, index, checkpoint, abort, lock, note, config, or a folder."""
    for part, kind in (
        ("/commitlog", "log"), ("/consumequeue", "queue"), ("/index/", "index"), ("/checkpoint", "checkpoint"),
        ("/abort", "abort"), ("/lock", "lock"), ("/brokerstore/ring", "ring"), ("/brokerstore", "note"), ("/config", "config"),
    ):  # fmt: skip
        if part in path:
            return kind
    return "folder"


WAITS_MS = (0, 1, 400, 2900, 3100, 61_000)
TOPICS = ("T", "Uü")


def any_operation(random: Random) -> tuple[Any, ...]:
    """Return one step of a random program."""
    topic, queue_id = random.choice(TOPICS), random.randrange(3)
    size = random.choice((10, 10, 60, 300, 1500, 4500))
    makers: list[tuple[int, Callable[[], tuple[Any, ...]]]] = [
        (10, lambda: ("put", topic, queue_id, size, random.randrange(3))),
        (4, lambda: ("put_many", topic, random.randrange(1, 9), min(size, 1500))),
        (2, lambda: ("put_batch", topic, queue_id, random.randrange(1, 5), min(size, 300))),
        (3, lambda: ("flush",)),
        (5, lambda: ("dispatch",)),
        (3, lambda: ("derive", random.random() < 0.5)),
        (1, lambda: ("prepare",)),
        (1, lambda: ("retain", random.randrange(1, 3))),
        (1, lambda: ("commit", topic, queue_id)),
        (1, lambda: ("close",)),
        (1, lambda: ("crash",)),
        (5, lambda: ("wait", random.choice(WAITS_MS))),
    ]
    return random.choices([maker for _, maker in makers], [weight for weight, _ in makers])[0]()


OPERATIONS: Program = [
    ("put", "T", 0, 10, 1), ("put", "T", 1, 3000, 2), ("put_many", "T", 3, 10), ("put_batch", "V", 0, 2, 10), ("flush",),
    ("dispatch",), ("derive", True), ("derive", False), ("prepare",), ("retain", 1), ("commit", "T", 0), ("wait", 61_000),
    ("close",),
]  # fmt: skip
BEFORE: Program = [("put", "T", 0, 2500, 1), ("put", "T", 0, 2500, 1), ("put", "T", 1, 2500, 1), ("flush",), ("derive", True)]


def small_scope(programs: Iterable[Program], *, report: Report, limit: int = 1 << 10, **changes: Any) -> None:
    """Run each program on a small synced store, with every combination of lost and kept pages at every moment."""
    for program in programs:
        run = RocketmqRun(config=lab_config(**changes), limit=limit, chances=1, report=report, tries=False)
        for operation in BEFORE:
            run.do(operation)
        run.tries = True
        for operation in program:
            run.do(operation)
        abandon(run.store)


def any_config(random: Random) -> StoreConfig:
    """Return random sizes and modes for one run."""
    return lab_config(
        mapped_file_size_commit_log=random.choice((LOG_SIZE, 2 * LOG_SIZE)),
        mapped_file_size_consume_queue=random.choice((60, 100, 2000, 8000)),
        max_hash_slot_num=random.choice((3, 7, 1200)),
        max_index_num=random.choice((6, 20, 400)),
        flush_disk_type=random.choice((FlushMode.ASYNC, FlushMode.SYNC)),
    )


def random_run(seed: int, steps: int, *, report: Report | None = None, **options: Any) -> RocketmqRun:
    """Run a program that is generated from a seed; two of five write through the pool's ring."""
    random, other = Random(seed), Random(f"ring {seed}")
    config = any_config(random)
    has_ring = other.random() < 0.4
    run = RocketmqRun(seed, config=through_ring(config) if has_ring else config, report=report, **options)
    for _ in range(steps):
        run.do(any_operation(random))
        if has_ring and other.random() < 0.3:
            run.do(("bring",))
    return run


def through_ring(config: StoreConfig) -> StoreConfig:
    """Return the configuration with the smallest possible ring."""
    if config.is_sync_flush:
        return config.but(sync_flush_through_ring=True, transient_store_ring_size=1)
    return config.but(transient_store_pool_enable=True, transient_store_ring_size=1)


def programs(operations: list[tuple[Any, ...]], length: int) -> Iterator[Program]:
    """Yield every program of this length."""
    if length == 0:
        yield []
        return
    for rest in programs(operations, length - 1):
        yield from ([*rest, operation] for operation in operations)
