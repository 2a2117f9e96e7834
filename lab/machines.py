"""State machines for Hypothesis: both engines on a `ForgettingDisk`, with crash and reopening as rules.

    from lab.machines import RocketMachine
    TestStore = RocketMachine.TestCase

After every step the open store agrees with its ledger; after every crash it holds what it promised.
"""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from . import rabbitmq_lab, rocketmq_lab
from .rocketmq_check import check_store

SEEDS = st.integers(0, (1 << 32) - 1)
TOPICS = st.sampled_from(rocketmq_lab.TOPICS)
QUEUES = st.integers(0, 2)
SIZES = st.sampled_from((10, 60, 300, 1500, 4500))
NAMES = st.sampled_from(rabbitmq_lab.NAMES)
MODES = st.sampled_from(("default", "lazy"))


class RocketMachine(RuleBasedStateMachine):
    """A `MessageStore`: put, flush, dispatch, retention, close and reopen, crash of process and machine."""

    @initialize(seed=SEEDS)
    def start(self, seed: int) -> None:
        """Create a store; sizes and flush mode come from the seed."""
        self.life = rocketmq_lab.RocketmqRun(seed, config=rocketmq_lab.any_config(Random(seed)), tries=False)

    @rule(topic=TOPICS, queue_id=QUEUES, size=SIZES, keys=st.integers(0, 2))
    def put(self, topic: str, queue_id: int, size: int, keys: int) -> None:
        """Put one message into a queue."""
        self.life.do(("put", topic, queue_id, size, keys))

    @rule(topic=TOPICS, count=st.integers(1, 9), size=st.sampled_from((10, 300, 1500)))
    def put_many(self, topic: str, count: int, size: int) -> None:
        """Put several messages with one call."""
        self.life.do(("put_many", topic, count, size))

    @rule(topic=TOPICS, queue_id=QUEUES, count=st.integers(1, 5), size=st.sampled_from((10, 300)))
    def put_batch(self, topic: str, queue_id: int, count: int, size: int) -> None:
        """Put a batch into one queue."""
        self.life.do(("put_batch", topic, queue_id, count, size))

    @rule()
    def flush(self) -> None:
        """Flush the log to the disk."""
        self.life.do(("flush",))

    @rule()
    def dispatch(self) -> None:
        """Dispatch to queues and index, then compare everything."""
        self.life.do(("dispatch",))

    @rule(thorough=st.booleans())
    def derive(self, thorough: bool) -> None:
        """Sync queues, index and checkpoint."""
        self.life.do(("derive", thorough))

    @rule()
    def prepare(self) -> None:
        """Create the next log file."""
        self.life.do(("prepare",))

    @rule(files=st.integers(1, 2))
    def retain(self, files: int) -> None:
        """Delete the oldest log files."""
        self.life.do(("retain", files))

    @rule(topic=TOPICS, queue_id=QUEUES)
    def commit(self, topic: str, queue_id: int) -> None:
        """Commit a consumer's offset."""
        self.life.do(("commit", topic, queue_id))

    @rule(milliseconds=st.sampled_from(rocketmq_lab.WAITS_MS))
    def wait(self, milliseconds: int) -> None:
        """Let some time pass."""
        self.life.do(("wait", milliseconds))

    @rule()
    def close_and_reopen(self) -> None:
        """Stop cleanly and open again."""
        self.life.do(("close",))

    @rule(seed=SEEDS)
    def crash(self, seed: int) -> None:
        """Crash the process or the machine; unsynced pages, sizes and names of every file may be lost."""
        self.life.random = Random(seed)
        self.life.do(("crash",))

    @rule()
    def agrees(self) -> None:
        """Compare log, queues, index and next offsets with the ledger."""
        life = self.life
        life.do(("dispatch",))
        if life.is_sync:
            life.do(("flush",))
            life.do(("dispatch",))
        check_store(life.store, life.disk, life.ledger, len(life.ledger.entries))

    @invariant()
    def has_no_trouble(self) -> None:
        """Check that no background work failed."""
        if hasattr(self, "life"):
            assert self.life.store.engine.flags.is_writeable
            assert self.life.store.engine.dispatcher.failure is None

    def teardown(self) -> None:
        """Abandon the store without closing it."""
        if hasattr(self, "life"):
            rocketmq_lab.abandon(self.life.store)


class RabbitMachine(RuleBasedStateMachine):
    """A `RabbitStore`: declare, publish, get, acknowledge, requeue, purge, delete, collect, reopen, crash."""

    @initialize(seed=SEEDS)
    def start(self, seed: int) -> None:
        """Create a store with two queues."""
        self.life = rabbitmq_lab.RabbitRun(seed, tries=False)
        self.life.do(("declare", "a", "default"))
        self.life.do(("declare", "b", "lazy"))

    @rule(name=NAMES, mode=MODES)
    def declare(self, name: str, mode: str) -> None:
        """Declare a queue if it is new."""
        self.life.do(("declare", name, mode))

    @rule(
        names=st.lists(NAMES, min_size=1, max_size=2, unique=True), size=st.sampled_from((10, 150, 400, 3000)),
        persistent=st.sampled_from((True, True, True, False)),
    )  # fmt: skip
    def publish(self, names: list[str], size: int, persistent: bool) -> None:
        """Publish one message to some queues."""
        self.life.do(("publish", tuple(names), size, persistent))

    @rule(name=NAMES, acknowledges=st.booleans())
    def get(self, name: str, acknowledges: bool) -> None:
        """Get the next message, acknowledged or held."""
        self.life.do(("get", name, acknowledges))

    @rule(acknowledges=st.booleans())
    def settle(self, acknowledges: bool) -> None:
        """Acknowledge or requeue the oldest held message."""
        self.life.do(("settle", acknowledges))

    @rule(what=st.sampled_from(("sync", "sync", "collect", "flush_journals", "balance", "close")))
    def upkeep(self, what: str) -> None:
        """Run background work, or stop cleanly."""
        self.life.do((what,))

    @rule(name=NAMES, mode=MODES)
    def mode(self, name: str, mode: str) -> None:
        """Switch a queue to lazy mode or back."""
        self.life.do(("mode", name, mode))

    @rule(name=NAMES, rare=st.integers(0, 5))
    def take_away(self, name: str, rare: int) -> None:
        """Purge a queue, or rarely delete it."""
        self.life.do(("delete" if rare == 0 else "purge", name))

    @rule(seed=SEEDS)
    def crash(self, seed: int) -> None:
        """Crash, recover and check what was promised."""
        self.life.random = Random(seed)
        self.life.do(("crash",))

    @invariant()
    def is_sound(self) -> None:
        """Check the counts of the message stores."""
        if hasattr(self, "life"):
            for part in (self.life.store.parts.persistent, self.life.store.parts.transient):
                part.process()
                part.check()

    def teardown(self) -> None:
        """Abandon the store without closing it."""
        if hasattr(self, "life"):
            self.life.store.abandon()
