"""A Hypothesis state machine that compares a store with a plain model, step by step.

    TestStore = machine_for(world).TestCase

The model is a list of messages in log order.  Every expected result is computed from that list alone.
"""

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect_left, bisect_right
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.messagestore.kit import LOG_SIZE, Clock, open_small

TOPICS = ("Orders", "Paid#1", "Ünïcode")
QUEUES = (0, 1, 5)
TAGS = (None, "Aa", "BB", "标签")  # the first two share their Java hash
KEYS = ("k0", "k1", "Aa", "BB", "键")
PAGE = 4096
MATCHES_MAX = 64


class Put(NamedTuple):
    """One message in the model."""

    topic: str
    queue_id: int
    body: bytes
    tags: str | None
    keys: tuple[str, ...]
    queue_offset: int
    physical_offset: int
    end_offset: int
    store_ms: int


messages = st.tuples(
    st.sampled_from(TOPICS),
    st.sampled_from(QUEUES),
    st.binary(max_size=12),
    st.sampled_from((0, 0, 0, 300, 3000, 20_000)),
    st.sampled_from(TAGS),
    st.lists(st.sampled_from(KEYS), max_size=3),
)
waits_ms = st.sampled_from((0, 0, 1, 999, 1000, 5000))


class StoreMachine(RuleBasedStateMachine):
    """The state machine; subclass it with a `world` (see `machine_for`)."""

    world: Any

    @initialize(is_sync=st.booleans(), with_crc=st.booleans())
    def start(self, is_sync: bool, with_crc: bool) -> None:
        self.space = Path(tempfile.mkdtemp(prefix="machine-"))
        self.folder = self.space / "store-0"
        self.copies = 0
        self.clock = Clock()
        self.puts: list[Put] = []
        self.flushed_count = 0
        mode = self.world.messagestore.FlushMode
        self.options = {
            "flush_disk_type": mode.SYNC if is_sync else mode.ASYNC,
            "enabled_append_prop_crc": with_crc,
            "max_hash_slot_num": 20,  # few, so that files roll and slots are shared
            "max_index_num": 100,
            "flush_interval_commit_log_ms": 20,
            "flush_interval_consume_queue_ms": 20,
            "flush_consume_queue_thorough_interval_ms": 60,
            "flush_commit_log_thorough_interval_ms": 60,
        }
        self.is_sync = is_sync
        self.open()

    def open(self, mode: str = "a") -> None:
        self.store = open_small(self.world, self.folder, mode, clock=self.clock, **self.options)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.space)

    # Putting

    def message(self, drawn: Any) -> Any:
        topic, queue_id, head, size, tags, keys = drawn
        body = head + b"." * size
        return self.world.commitlog.Message(topic, body, queue_id=queue_id, tags=tags, keys=keys or None)

    def next_offset(self, topic: str, queue_id: int) -> int:
        return len(self.queue(topic, queue_id))

    def queue(self, topic: str, queue_id: int) -> list[Put]:
        return [put for put in self.puts if (put.topic, put.queue_id) == (topic, queue_id)]

    def remember(self, message: Any, offset: int, physical_offset: int, end_offset: int, store_ms: int) -> None:
        keys = tuple(message.keys or ())
        self.puts.append(
            Put(
                message.topic, message.queue_id, message.body, message.tags, keys, offset, physical_offset, end_offset, store_ms
            )
        )
        if self.is_sync:
            self.flushed_count = len(self.puts)

    def remember_many(self, messages: list[Any], result: Any, expected_at: int) -> None:
        """Add messages; the result gives the offset of the first, and the others follow it, some in the next file."""
        assert result.message_count == len(messages)
        at = result.physical_offset
        assert at >= expected_at
        for message in messages:
            found = self.store.message_at(at)
            if found is None:
                at = (at // LOG_SIZE + 1) * LOG_SIZE
                found = self.store.message_at(at)
            assert (found.topic, found.queue_id, found.body) == (message.topic, message.queue_id, message.body)
            offset = self.next_offset(message.topic, message.queue_id)
            assert (found.queue_offset, found.store_timestamp_ms) == (offset, result.store_timestamp_ms)
            self.remember(message, offset, at, at + found.size, found.store_timestamp_ms)
            at += found.size

    @rule(drawn=messages, wait_ms=waits_ms)
    def put(self, drawn: Any, wait_ms: int) -> None:
        self.clock.now_ms += wait_ms
        message = self.message(drawn)
        offset = self.next_offset(message.topic, message.queue_id)
        result = self.store.put(message)
        assert (result.queue_id, result.queue_offset) == (message.queue_id, offset)
        assert result.store_timestamp_ms == self.clock.now_ms
        end = result.physical_offset + result.size_bytes
        self.remember(message, offset, result.physical_offset, end, result.store_timestamp_ms)

    @rule(drawn=st.lists(messages, min_size=1, max_size=40), wait_ms=waits_ms)
    def put_many(self, drawn: list[Any], wait_ms: int) -> None:
        self.clock.now_ms += wait_ms
        many = [self.message(one) for one in drawn]
        at = self.end()
        self.remember_many(many, self.store.put_many(many), at)

    @rule(drawn=st.lists(messages, min_size=1, max_size=10), topic=st.sampled_from(TOPICS), queue_id=st.sampled_from(QUEUES))
    def put_batch(self, drawn: list[Any], topic: str, queue_id: int) -> None:
        many = [self.message((topic, queue_id, head, min(size, 3000), tags, keys)) for _, _, head, size, tags, keys in drawn]
        at = self.end()
        result = self.store.put_batch(topic, queue_id, many)
        self.remember_many(many, result, at)
        assert self.puts[-1].physical_offset // LOG_SIZE == result.physical_offset // LOG_SIZE

    @rule(drawn=st.lists(messages, min_size=1, max_size=50), topic=st.sampled_from(TOPICS), queue_id=st.sampled_from(QUEUES))
    def append_columns(self, drawn: list[Any], topic: str, queue_id: int) -> None:
        if find_spec("commitlog.columns") is None:
            return
        many = [
            self.message((topic, queue_id, head, min(size, 3000), tags, keys[:1])) for _, _, head, size, tags, keys in drawn
        ]
        at = self.end()
        result = self.store.append_columns(
            topic, queue_id, [one.body for one in many],
            keys=[one.keys[0] if one.keys else "" for one in many], tags=[one.tags or "" for one in many],
        )  # fmt: skip
        self.remember_many(many, result, at)

    def end(self) -> int:
        return self.puts[-1].end_offset if self.puts else 0

    # Reading

    @rule(topic=st.sampled_from(TOPICS), queue_id=st.sampled_from(QUEUES), data=st.data())
    def get(self, topic: str, queue_id: int, data: Any) -> None:
        queue = self.queue(topic, queue_id)
        offset = data.draw(st.integers(-1, len(queue) + 2))
        count = data.draw(st.integers(1, 40))
        tags = data.draw(st.sampled_from((None, {"Aa"}, {"BB", "标签"}, {"none"})))
        page = self.store.get(topic, queue_id, offset, count, tags=tags)
        if not queue:
            assert (page.status.name, page.next_offset) == ("NO_MESSAGE_IN_QUEUE", 0)
        elif offset < 0:
            assert (page.status.name, page.next_offset) == ("OFFSET_TOO_SMALL", 0)
        elif offset == len(queue):
            assert (page.status.name, page.next_offset) == ("OFFSET_OVERFLOW_ONE", offset)
        elif offset > len(queue):
            assert (page.status.name, page.next_offset) == ("OFFSET_OVERFLOW_BADLY", len(queue))
        else:
            examined = queue[offset : page.next_offset]
            expected = [put for put in examined if tags is None or put.tags in tags]
            self.same(page.messages, expected)
            assert offset < page.next_offset <= (offset // 100 + 1) * 100
            assert len(expected) <= min(count, 32)
            assert page.status.name == ("FOUND" if expected else "NO_MATCHED_MESSAGE")

    @rule(topic=st.sampled_from(TOPICS), queue_id=st.sampled_from(QUEUES), data=st.data())
    def read(self, topic: str, queue_id: int, data: Any) -> None:
        queue = self.queue(topic, queue_id)
        start = data.draw(st.integers(0, len(queue) + 1))
        stop = data.draw(st.one_of(st.none(), st.integers(0, len(queue) + 1)))
        self.same(self.messages(topic, queue_id, start, stop), queue[start:stop])

    def messages(self, topic: str, queue_id: int, start: int = 0, stop: int | None = None) -> list[Any]:
        """Return what the store reads; an unknown topic is an error, and has no messages."""
        if topic in self.store.topics():
            return list(self.store.read(topic, queue_id, start, stop))
        with pytest.raises(ValueError, match="no topic"):
            list(self.store.read(topic, queue_id, start, stop))
        return []

    def same(self, found: list[Any], expected: list[Put]) -> None:
        for message, put in zip(found, expected, strict=True):
            assert (message.topic, message.queue_id, message.body) == put[:3]
            assert (message.tags or None, tuple(message.keys)) == (put.tags, put.keys)
            assert (message.queue_offset, message.physical_offset) == (put.queue_offset, put.physical_offset)
            assert message.store_timestamp_ms == put.store_ms

    @rule(
        topic=st.sampled_from(TOPICS), key=st.sampled_from((*KEYS, "none")), count=st.integers(1, 80),
        begin=st.one_of(st.none(), st.integers(-1000, 60_000)), end=st.one_of(st.none(), st.integers(-1000, 60_000)),
    )  # fmt: skip
    def query(self, topic: str, key: str, count: int, begin: int | None, end: int | None) -> None:
        first_ms = self.puts[0].store_ms if self.puts else 0
        begin_ms = None if begin is None else first_ms + begin
        end_ms = None if end is None else first_ms + end
        low, high = begin_ms or 0, 1 << 62 if end_ms is None else end_ms
        hits = [put for put in self.puts if put.topic == topic and key in put.keys and low <= put.store_ms <= high]
        self.same(self.store.query(topic, key, begin_ms, end_ms, count), hits[-min(count, MATCHES_MAX) :])

    @rule(topic=st.sampled_from(TOPICS), queue_id=st.sampled_from(QUEUES), after_ms=st.integers(-1000, 60_000))
    def offset_by_time(self, topic: str, queue_id: int, after_ms: int) -> None:
        boundary = self.world.consumequeue.Boundary
        times = [put.store_ms for put in self.queue(topic, queue_id)]
        at_ms = (times[0] if times else 0) + after_ms
        lower = self.store.offset_by_time(topic, queue_id, at_ms, boundary.LOWER)
        upper = self.store.offset_by_time(topic, queue_id, at_ms, boundary.UPPER)
        nearest = self.store.offset_by_time(topic, queue_id, at_ms, boundary.NEAREST)
        assert lower == bisect_left(times, at_ms)
        assert upper == max(0, bisect_right(times, at_ms) - 1)
        distances = [abs(time - at_ms) for time in times]
        if times:
            assert distances[nearest] == min(distances)

    @rule(data=st.data())
    def message_at(self, data: Any) -> None:
        if self.puts:
            put = data.draw(st.sampled_from(self.puts))
            self.same([self.store.message_at(put.physical_offset)], [put])
            assert self.store.message_at(put.physical_offset + 1) is None

    # Open, close, crash

    @rule()
    def flush(self) -> None:
        assert self.store.flush() >= self.end()
        self.flushed_count = len(self.puts)

    @rule()
    def close_and_reopen(self) -> None:
        self.store.close()
        assert not (self.folder / "abort").exists()
        self.flushed_count = len(self.puts)
        self.open("r+")
        assert self.store.engine.was_clean
        self.check_all()

    @rule()
    def examine_with_a_reader(self) -> None:
        if not self.puts:
            return
        last = self.puts[-1]
        self.store.get(last.topic, last.queue_id, 0)
        with open_small(self.world, self.folder, "r", **self.options) as reader:
            self.same(list(reader.read(last.topic, last.queue_id)), self.queue(last.topic, last.queue_id))

    @rule()
    def kill_the_process(self) -> None:
        """Copy the folder without closing the store: everything written is in the files."""
        self.leave(self.copy())
        self.check_all()

    @rule(data=st.data())
    def kill_the_machine(self, data: Any) -> None:
        """Lose any unsynced pages of the log, even in the middle; queues and index may be ahead."""
        flushed = max(
            self.store.engine.flusher.flushed_offset, self.puts[self.flushed_count - 1].end_offset if self.flushed_count else 0
        )
        target = self.copy()
        pages = range(-(-flushed // PAGE), -(-self.end() // PAGE)) if self.end() > flushed else range(0)
        lost = data.draw(st.sets(st.sampled_from(pages))) if pages else set()
        for page in lost:
            path = target / "commitlog" / f"{page * PAGE // LOG_SIZE * LOG_SIZE:020d}"
            with open(path, "r+b") as file:
                file.seek(page * PAGE % LOG_SIZE)
                file.write(bytes(PAGE))
        self.leave(target)
        end = self.store.engine.log.written_offset
        kept = [put for put in self.puts if put.end_offset <= end]
        assert len(kept) >= self.flushed_count, "flushed messages are gone"
        untouched = min([page * PAGE for page in lost], default=self.end())
        assert end >= max([put.end_offset for put in self.puts if put.end_offset <= untouched], default=0)
        self.puts = kept
        self.flushed_count = len(kept)
        self.check_all()

    def copy(self) -> Path:
        """Copy the folder after settling the index; an index file that is just being created is tested elsewhere."""
        self.copies += 1
        target = self.space / f"store-{self.copies}"
        with self.store.engine.dispatcher._round, self.store.engine.flusher._leader:
            shutil.copytree(self.folder, target)
        return target

    def leave(self, target: Path) -> None:
        self.store.close()
        shutil.rmtree(self.folder)
        self.folder = target
        self.open("r+")
        assert not self.store.engine.was_clean

    def check_all(self) -> None:
        for topic in TOPICS:
            for queue_id in QUEUES:
                queue = self.queue(topic, queue_id)
                self.same(self.messages(topic, queue_id), queue)
                assert self.store.max_offset(topic, queue_id, committed=False) == len(queue)
            for key in KEYS:
                hits = [put for put in self.puts if put.topic == topic and key in put.keys]
                self.same(self.store.query(topic, key, max_count=MATCHES_MAX), hits[-MATCHES_MAX:])

    @invariant()
    def has_no_trouble(self) -> None:
        if hasattr(self, "store"):
            assert self.store.engine.flags.is_writeable
            assert self.store.engine.dispatcher.failure is None


def machine_for(of_world: Any) -> type[StoreMachine]:
    """Return the state machine for one build."""
    return type(f"StoreMachine_{of_world.build}", (StoreMachine,), {"world": property(lambda _self: of_world)})
