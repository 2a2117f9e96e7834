"""State machines for Hypothesis: both engines on a disk that forgets, with crash and reopening as rules.

    from brokerstore.testing.machines import RocketMachine
    TestStore = RocketMachine.TestCase

After every step the open store agrees with its ledger; after every crash what it promised is there.
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
    """A `MessageStore`: put, flush, dispatch, retention, close and open, crash of process and machine."""

    @initialize(seed=SEEDS)
    def start(self, seed: int) -> None:
        """A new store; sizes and flush mode come from the seed."""
        self.life = rocketmq_lab.Run(seed, config=rocketmq_lab.any_config(Random(seed)), tries=False)

    @rule(topic=TOPICS, queue_id=QUEUES, size=SIZES, keys=st.integers(0, 2))
    def put(self, topic: str, queue_id: int, size: int, keys: int) -> None:
        """One message."""
        self.life.do(("put", topic, queue_id, size, keys))

    @rule(topic=TOPICS, count=st.integers(1, 9), size=st.sampled_from((10, 300, 1500)))
    def put_many(self, topic: str, count: int, size: int) -> None:
        """Several."""
        self.life.do(("put_many", topic, count, size))

    @rule(topic=TOPICS, queue_id=QUEUES, count=st.integers(1, 5), size=st.sampled_from((10, 300)))
    def put_batch(self, topic: str, queue_id: int, count: int, size: int) -> None:
        """A batch."""
        self.life.do(("put_batch", topic, queue_id, count, size))

    @rule()
    def flush(self) -> None:
        """The log."""
        self.life.do(("flush",))

    @rule()
    def dispatch(self) -> None:
        """Queues and index; then everything agrees."""
        self.life.do(("dispatch",))

    @rule(thorough=st.booleans())
    def derive(self, thorough: bool) -> None:
        """Queues, index and checkpoint to the disk."""
        self.life.do(("derive", thorough))

    @rule()
    def prepare(self) -> None:
        """The next log file."""
        self.life.do(("prepare",))

    @rule(files=st.integers(1, 2))
    def retain(self, files: int) -> None:
        """The oldest log files go."""
        self.life.do(("retain", files))

    @rule(topic=TOPICS, queue_id=QUEUES)
    def commit(self, topic: str, queue_id: int) -> None:
        """A consumer's offset."""
        self.life.do(("commit", topic, queue_id))

    @rule(milliseconds=st.sampled_from(rocketmq_lab.WAITS_MS))
    def wait(self, milliseconds: int) -> None:
        """Time goes by."""
        self.life.do(("wait", milliseconds))

    @rule()
    def close_and_reopen(self) -> None:
        """A clean stop."""
        self.life.do(("close",))

    @rule(seed=SEEDS)
    def crash(self, seed: int) -> None:
        """Of the process or the machine; unsynced pages, sizes and names of every file may be lost."""
        self.life.random = Random(seed)
        self.life.do(("crash",))

    @rule()
    def agrees(self) -> None:
        """Log, queues, index and next offsets, as the ledger has them."""
        life = self.life
        life.do(("dispatch",))
        if life.is_sync:
            life.do(("flush",))
            life.do(("dispatch",))
        check_store(life.store, life.disk, life.ledger, len(life.ledger.entries))

    @invariant()
    def has_no_trouble(self) -> None:
        """Nothing failed on the way."""
        if hasattr(self, "life"):
            assert self.life.store.engine.flags.is_writeable
            assert self.life.store.engine.dispatcher.failure is None

    def teardown(self) -> None:
        """Let go."""
        if hasattr(self, "life"):
            rocketmq_lab.abandon(self.life.store)


class RabbitMachine(RuleBasedStateMachine):
    """A `RabbitStore`: declare, publish, get, acknowledge, requeue, purge, delete, collect, close and open, crash."""

    @initialize(seed=SEEDS)
    def start(self, seed: int) -> None:
        """A new store with two queues."""
        self.life = rabbitmq_lab.RabbitRun(seed, tries=False)
        self.life.do(("declare", "a", "default"))
        self.life.do(("declare", "b", "lazy"))

    @rule(name=NAMES, mode=MODES)
    def declare(self, name: str, mode: str) -> None:
        """A queue."""
        self.life.do(("declare", name, mode))

    @rule(
        names=st.lists(NAMES, min_size=1, max_size=2, unique=True), size=st.sampled_from((10, 150, 400, 3000)),
        persistent=st.sampled_from((True, True, True, False)),
    )  # fmt: skip
    def publish(self, names: list[str], size: int, persistent: bool) -> None:
        """One message."""
        self.life.do(("publish", tuple(names), size, persistent))

    @rule(name=NAMES, acknowledges=st.booleans())
    def get(self, name: str, acknowledges: bool) -> None:
        """The next one, acknowledged or held."""
        self.life.do(("get", name, acknowledges))

    @rule(acknowledges=st.booleans())
    def settle(self, acknowledges: bool) -> None:
        """The oldest held one, acknowledged or put back."""
        self.life.do(("settle", acknowledges))

    @rule(what=st.sampled_from(("sync", "sync", "collect", "flush_journals", "balance", "close")))
    def upkeep(self, what: str) -> None:
        """What the housekeeper does, or a clean stop."""
        self.life.do((what,))

    @rule(name=NAMES, mode=MODES)
    def mode(self, name: str, mode: str) -> None:
        """Lazy, or not."""
        self.life.do(("mode", name, mode))

    @rule(name=NAMES, rare=st.integers(0, 5))
    def take_away(self, name: str, rare: int) -> None:
        """What waits, and seldom the queue."""
        self.life.do(("delete" if rare == 0 else "purge", name))

    @rule(seed=SEEDS)
    def crash(self, seed: int) -> None:
        """What was promised is there."""
        self.life.random = Random(seed)
        self.life.do(("crash",))

    @invariant()
    def is_sound(self) -> None:
        """The counts of the message stores."""
        if hasattr(self, "life"):
            for part in (self.life.store.parts.persistent, self.life.store.parts.transient):
                part.process()
                part.check()

    def teardown(self) -> None:
        """Let go."""
        if hasattr(self, "life"):
            self.life.store.abandon()
