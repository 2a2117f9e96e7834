"""Programs on a `RabbitStore` over a `ForgettingDisk`; every crash is tried after each step (see `rocketmq_lab`)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from rabbitstore import Delivery, IndexSettings, RabbitSettings, RabbitStore, StoreSettings
from rabbitstore.format.message import Content
from storageio import StoreError
from storageio.testing import ForgettingDisk, Image

from .crashes import Crashes
from .deep import crash_inside
from .rabbitmq_check import Floor, QueueLedger, RabbitLedger, check_folder, check_rabbit
from .report import Report

ROOT = "/vhost"
SETTINGS = RabbitSettings(
    background=False,
    index_version=1,
    store=StoreSettings(file_size_limit=9000, file_garbage_fraction=0.2, write_buffer_bytes=3000),
    index=IndexSettings(segment_entries=8, journal_entries_max=20, embed_below=200),
    memory_limit_bytes=20_000,
    io_batch_size=4,
)


class RabbitRun(Crashes[Floor]):
    """One program, as `rocketmq_lab.Run`."""

    def __init__(
        self, seed: int = 0, *, settings: RabbitSettings = SETTINGS, chances: int = 2, deep: int = 0, limit: int = 0,
        report: Report | None = None, tries: bool = True, disk: ForgettingDisk | None = None,
    ) -> None:  # fmt: skip
        """Create a new store; without `tries` no crash is tried."""
        super().__init__(seed, chances, deep, limit, report, tries)
        self.kind_of = kind_of_file
        self.settings = settings
        self.ledger = RabbitLedger()
        self.held: list[Delivery] = []
        self.limbo: set[str] = set()  # queues with a message that could not be read: out of the queue until the next start
        self.disk = disk or ForgettingDisk()
        self.disk.watch = self.catch
        self.store = self.open(self.disk)
        self.judge()

    def open(self, disk: ForgettingDisk) -> RabbitStore:
        """Open the store on a disk as it is."""
        return RabbitStore.open(ROOT, settings=self.settings, disk=disk)

    def promised(self) -> tuple[Floor, int]:
        """Return what must be kept, and what must be gone."""
        floor = self.ledger.floor()
        return floor, hash((*floor.kept.values(), *floor.gone.values()))

    def judge_image(self, image: Image, floor: Floor) -> None:
        """Recover from one crash and check; now and then recover again, or crash inside the recovery."""
        self.report.images += 1
        number = self.report.images
        disk = ForgettingDisk.of(image, self.disk.time_ms)
        store = self.open(disk)
        again = [disk.after_kill(), disk.least()] if number % 4 == 0 else []
        check_rabbit(store, self.ledger, floor)
        store.abandon()
        for left in again:
            second = ForgettingDisk.of(left, self.disk.time_ms)
            self.recover(second, floor)
            check_folder(ROOT, second)
        found = len(again)
        if self.deep and number % self.deep == 0:
            found += crash_inside(image, self.disk.time_ms, lambda disk: self.recover(disk, floor), self.random, depth=1)
        self.report.images += found
        self.report.again += found

    def recover(self, disk: ForgettingDisk, floor: Floor) -> None:
        """Open the folder and check it."""
        store = self.open(disk)
        check_rabbit(store, self.ledger, floor)
        store.abandon()

    # Operations

    def do_declare(self, name: str, mode: str) -> None:
        """Declare a queue, unless it exists in another mode."""
        if name not in self.store.queue_names():
            self.ledger.queues.setdefault(name, QueueLedger())
            self.store.declare_queue(name, mode=mode)

    def do_publish(self, names: tuple[str, ...], size: int, persistent: bool) -> None:
        """Publish one message to one queue or several."""
        names = tuple(name for name in names if name in self.store.queue_names())
        if not names:
            return
        self.number += 1
        body = b"%08d" % self.number + b"x" * size
        for name in names if persistent else ():
            self.ledger.queues[name].published.append(body)
        ident = b"%08d%08d" % (self.seed % 10**8, self.number)
        content = Content("/", "", names, b"\x10\x00" + (b"\x02" if persistent else b"\x01"), body, ident, persistent)
        self.store.publish_content([self.store.queue(name) for name in names], content)

    def do_get(self, name: str, acknowledges: bool) -> None:
        """Get the next message, acknowledged or held."""
        if name not in self.store.queue_names():
            return
        try:
            delivery = self.store.get(name)
        except StoreError:
            self.limbo.add(name)
            raise
        if delivery is not None:
            self.held.append(delivery)
        if delivery is not None and acknowledges:
            self._acknowledge(delivery)

    def _acknowledge(self, delivery: Delivery) -> None:
        self.held.remove(delivery)
        with self.ledger.queues[delivery.queue].acknowledging({delivery.body}):
            self.store.ack(delivery)

    def do_settle(self, acknowledges: bool) -> None:
        """Acknowledge or requeue the oldest held message."""
        if self.held and acknowledges:
            self._acknowledge(self.held[0])
        elif self.held:
            self.store.requeue(self.held.pop(0))

    def do_sync(self) -> None:
        """Sync, which makes everything so far safe."""
        self.store.sync()
        self.ledger.sync()

    def do_collect(self) -> None:
        """Run the collector until it has nothing to do."""
        self.store.collect()

    def do_flush_journals(self) -> None:
        """Write segments, which syncs first."""
        self.store.flush_journals()
        self.ledger.sync()

    def do_balance(self) -> None:
        """Give queues less memory."""
        self.store.balance_memory()

    def do_mode(self, name: str, mode: str) -> None:
        """Switch a queue to lazy mode or back."""
        if name in self.store.queue_names():
            self.store.set_mode(name, mode)

    def do_purge(self, name: str) -> None:
        """Purge what waits; held messages stay."""
        if name in self.store.queue_names():
            queue = self.ledger.queues[name]
            held = {delivery.body for delivery in self.held if delivery.queue == name}
            waiting = set(queue.published) - held
            if name in self.limbo:
                queue.uncertain |= waiting
                self.store.purge(name)
                return
            with queue.acknowledging(waiting):
                self.store.purge(name)

    def do_delete(self, name: str) -> None:
        """Delete a queue with all its messages."""
        if name in self.store.queue_names():
            self.ledger.deleted.add(name)
            self.held = [delivery for delivery in self.held if delivery.queue != name]
            self.store.delete_queue(name)

    def do_close(self) -> None:
        """Stop cleanly and open the store again."""
        self.store.close()
        self.held = []
        self.ledger.sync()
        self.judge()
        self.operation = "reopen"
        self.store = self.open(self.disk)
        check_folder(ROOT, self.disk)

    def do_crash(self) -> None:
        """Crash, and continue the program on what remains."""
        floor = self.ledger.floor()
        self.store.abandon()
        self.held = []
        image = self.disk.any_image(self.random)
        disk = ForgettingDisk.of(image, self.disk.time_ms)
        store = self.open(disk)
        found = check_rabbit(store, self.ledger, floor)
        store.abandon()
        self.ledger.cut(found)
        self.disk = ForgettingDisk.of(image, self.disk.time_ms)
        self.disk.watch = self.catch
        self.operation = "recover"
        self.store = self.open(self.disk)


def kind_of_file(path: str) -> str:
    """Return the kind of a path in a virtual host's folder."""
    for part, kind in (
        (".rdq", "messages"), (".rdt", "merge"), (".idx", "segment"), ("journal.jif", "journal"), ("queue_name", "queue name"),
        ("/brokerstore", "own"), (".config", "config"), (".vhost", "config"),
    ):  # fmt: skip
        if part in path:
            return kind
    return "folder"


NAMES = ("a", "b", "c")


def any_operation(random: Random) -> tuple[Any, ...]:
    """Return one step of a random program."""
    name = random.choice(NAMES)
    some = tuple(random.sample(NAMES, random.randrange(1, 3)))
    makers: list[tuple[float, Callable[[], tuple[Any, ...]]]] = [
        (4, lambda: ("declare", name, random.choice(("default", "lazy")))),
        (14, lambda: ("publish", some, random.choice((10, 10, 150, 400, 3000)), random.random() < 0.9)),
        (7, lambda: ("get", name, random.random() < 0.7)),
        (3, lambda: ("settle", random.random() < 0.5)),
        (5, lambda: ("sync",)),
        (2, lambda: ("collect",)),
        (2, lambda: ("flush_journals",)),
        (1, lambda: ("balance",)),
        (1, lambda: ("mode", name, random.choice(("default", "lazy")))),
        (1, lambda: ("purge", name)),
        (0.3, lambda: ("delete", name)),
        (1, lambda: ("close",)),
        (1, lambda: ("crash",)),
    ]
    return random.choices([maker for _, maker in makers], [weight for weight, _ in makers])[0]()


def random_run(seed: int, steps: int, *, report: Report | None = None, **options: Any) -> RabbitRun:
    """Run a program that is generated from a seed."""
    random = Random(seed)
    run = RabbitRun(seed, report=report, **options)
    run.do(("declare", "a", "default"))
    run.do(("declare", "b", "lazy"))
    for _ in range(steps):
        run.do(any_operation(random))
    return run
