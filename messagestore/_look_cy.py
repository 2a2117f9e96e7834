"""Look-ups of one message from the store's public call to the record, without leaving compiled code: by physical offset, by
key, by time.
"""

from __future__ import annotations

from array import array
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from commitlog._find_cy import LogReaders
from commitlog._message_cy import StoredMessage
from commitlog.checks import CHECK_READ
from consumequeue._time_cy import offset_by_time
from consumequeue.batch_time import batch_offset_by_time
from consumequeue.boundary import Boundary
from indexfile._index_cy import IndexBuffer, hash_of

from ._put_cy import PutPath

if not cython.compiled:
    from indexfile._index_cy import ask_for_slot, begins_at, ends_at, key_hash, next_item, walk
    from storebytes._bytes_cy import I32, I64, SOURCE_HASH, Bool, I64s, Size, i64s_of

FOR_EVER_MS = (1 << 63) - 1
HITS_AT_ONCE = 64
SLACK_MS = 1000  # item times are cut to seconds, so one more is asked for and the message's own time is looked at
LOWER = Boundary.LOWER
ODD = "\N{REPLACEMENT CHARACTER}"  # what is no UTF-8 reads as this, so its bytes are not compared


class ReadPath(PutPath):
    """What look-ups need at every call.  A store is one of these."""

    __slots__ = ("_engine", "_log_readers", "_reader", "_spare")

    def __init__(self, engine: Any) -> None:
        """`_reader` is set by the store: its `QueueReader`."""
        super().__init__(engine.log.appender, engine.flags.gate, engine.config.is_sync_flush)
        self._engine = engine
        self._log_readers: LogReaders = engine.log.readers
        self._reader: Any = None
        self._spare: Hits | None = None

    def message_at(self, physical_offset: int) -> StoredMessage | None:
        """The message whose record begins there, None when none does."""
        if self._engine.is_closed or self._dispatcher is None:
            self._engine.check_open()
            self._engine.refresh()
        try:
            offset: I64 = physical_offset
        except OverflowError:  # the compiled build's
            return None
        return self._log_readers.message_at(offset, CHECK_READ)

    def query(
        self, topic: str, key: str, begin_ms: int | None = None, end_ms: int | None = None, max_count: Size = 32
    ) -> list[StoredMessage]:
        """Messages of a topic with a key, oldest first; what only shares the hash is left out."""
        if max_count < 0:
            raise ValueError(f"max_count {max_count}: 0 or more")
        index = self._engine.index
        if index is None:
            self._settle()  # also says that the store is closed
            return []
        low: I64 = 0 if begin_ms is None else _within(begin_ms)
        high: I64 = FOR_EVER_MS if end_ms is None else _within(end_ms)
        most: Size = index.max_matches
        asked: Asked = _asked(self._log_readers, topic, key, low, high, min(max_count, most))
        asked.ask_for_slot(index)
        self._settle()
        spare = self._spare  # taken for the time of this call, so that two threads never share it
        self._spare = None
        hits: Hits = Hits() if spare is None else spare
        asked.look(index, hits)
        self._spare = hits
        return asked.in_order()

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = LOWER) -> int:
        """A queue offset from a store time (format page, section 8.3); 0 for an unknown queue."""
        self._settle()
        view = self._engine.view
        queue = (self._engine.queues if view is None else view).get(topic, queue_id)
        time_ms: I64 = _within(timestamp_ms)
        if queue is not None:
            return offset_by_time(queue, time_ms, boundary, self._log_readers, self._log_readers.min_offset())
        batch = self._reader.batch_queue(topic, queue_id)
        return batch_offset_by_time(batch, time_ms, boundary) if batch is not None else 0

    def _settle(self) -> Bool:
        """Wait for the dispatcher to reach what was written, so that what was put is found."""
        dispatcher = self._dispatcher
        is_settled: Bool = dispatcher is not None and not self._engine.is_closed
        if is_settled:
            position: I64 = dispatcher.position
            is_settled = position >= self._appender.base + self._appender.position
        if not is_settled:
            self._engine.settle()
        return True


@cython.cfunc
@cython.exceptval(check=True)
def _within(time_ms: object) -> I64:
    """A time that C can hold."""
    return min(max(time_ms, -FOR_EVER_MS), FOR_EVER_MS)  # type: ignore[no-any-return, call-overload]


class Hits:
    """Room for the hits of a stretch of a chain, and for what the walk says of itself."""

    __slots__ = ("_held", "_held_state", "found", "state")

    def __init__(self) -> None:
        """Used again and again, by one call at a time."""
        self._held = memoryview(array("q", bytes(8 * HITS_AT_ONCE)))
        self._held_state = memoryview(array("q", bytes(16)))
        self.found: I64s = i64s_of(self._held)
        self.state: I64s = i64s_of(self._held_state)


@cython.freelist(8)
@cython.cclass
class Asked:
    """One question for a key, and what was found.  Made by `_asked`."""

    __slots__ = (
        "_code",
        "_found",
        "_high",
        "_is_odd",
        "_key",
        "_key_text",
        "_low",
        "_most",
        "_readers",
        "_topic",
        "_topic_text",
    )

    _readers: LogReaders
    _topic_text: str
    _key_text: str
    _topic: bytes
    _key: bytes
    _is_odd: Bool
    _low: I64
    _high: I64
    _most: Size
    _code: I32  # the hash of topic and key
    _found: dict[int, StoredMessage]  # none before the first hit: most of what misses never needs it

    def ask_for_slot(self, index: Any) -> Bool:
        """Of the newest file, the only one of most stores: its memory is on its way while the caller does other things."""
        files: list[Any] = index.listed
        if files:
            buffer: IndexBuffer | None = files[len(files) - 1].mapped
            if buffer is not None:
                ask_for_slot(buffer, key_hash(self._code))
        return True

    def look(self, index: Any, hits: Hits) -> Bool:
        """Through all files, newest first and newest item first (section 3.6)."""
        begin_ms: I64 = max(0, self._low - SLACK_MS) if self._low > 0 else 0
        code: I32 = self._code
        files: list[Any] = index.listed
        place: Size = len(files)
        is_newest: Bool = True
        while place > 0 and _wants_more(self):
            place -= 1
            file = files[place]
            buffer: IndexBuffer | None = file.mapped
            first_ms: I64
            last_ms: I64
            if buffer is None:
                header = file.header
                first_ms, last_ms = header.begin_timestamp_ms, header.end_timestamp_ms
            else:
                first_ms, last_ms = begins_at(buffer), ends_at(buffer)
            if begin_ms <= last_ms and first_ms <= self._high and begin_ms <= self._high:
                if not is_newest:
                    index.touch(file)
                self._follow(file.buffer if buffer is None else buffer, code, begin_ms, hits)
            if first_ms < begin_ms:
                break
            is_newest = False
        return True

    def _follow(self, buffer: IndexBuffer, code: I32, begin_ms: I64, hits: Hits) -> Bool:
        """One file's chain.  It gives no more hits than the file has items, so a loop of items ends."""
        left: Size = next_item(buffer) - 1
        at: I32 = 0
        row: Size
        while left > 0 and _wants_more(self):
            walk(buffer, key_hash(code), at, begin_ms, self._high, hits.found, HITS_AT_ONCE, hits.state)
            count: Size = min(hits.state[0], left)
            at = hits.state[1]
            for row in range(count):
                if _wants_more(self):
                    self._keep(hits.found[row])
            left -= count
            if at == 0:
                break
        return True

    def _keep(self, offset: I64) -> Bool:
        """A hit that is no stranger of the same hash and of the time asked for."""
        if self._found is not None and offset in self._found:
            return False
        message: StoredMessage | None
        reader = self._readers.reader_of(offset)
        if reader is None:
            return False
        reader.ask_for_record(offset - reader.base)
        if self._is_odd:
            message = reader.decode(offset - reader.base, CHECK_READ)
            if message is None or not has_key(message, self._topic_text, self._key_text):
                return False
        else:
            message = reader.decode_keyed(offset - reader.base, self._topic, self._key, CHECK_READ)
            if message is None:
                return False
        if message.store_timestamp_ms < self._low or message.store_timestamp_ms > self._high:
            return False
        if self._found is None:
            self._found = {}
        self._found[offset] = message
        return True

    def in_order(self) -> list[StoredMessage]:
        """What was found, oldest first."""
        if self._found is None:
            return []
        return [self._found[offset] for offset in sorted(self._found)]


@cython.cfunc
def _asked(readers: LogReaders, topic: str, key: str, low: I64, high: I64, most: Size) -> Asked:
    """A question for at most so many messages whose store time lies between `low` and `high`."""
    asked: Asked = Asked.__new__(Asked)
    asked._readers = readers
    asked._topic_text = topic
    asked._key_text = key
    asked._topic = _encoded(topic)
    asked._key = _encoded(key)
    asked._code = hash_of(asked._topic, asked._key)
    is_ascii: Bool = len(asked._topic) == len(topic) and len(asked._key) == len(key)
    asked._is_odd = not is_ascii and (ODD in topic or ODD in key)
    asked._low = low
    asked._high = high
    asked._most = most
    asked._found = None  # type: ignore[assignment]
    return asked


@cython.cfunc
@cython.exceptval(check=False)
def _wants_more(asked: Asked) -> Bool:
    """Whether fewer were found than are wanted."""
    return asked._most > 0 if asked._found is None else len(asked._found) < asked._most


@cython.cfunc
def _encoded(text: str) -> bytes:
    """As UTF-8; half a character becomes a question mark, as in Java."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def has_key(message: StoredMessage, topic: str, key: str) -> bool:
    """Whether an index hit is no stranger that only shares the hash."""
    return message.topic == topic and (key in message.keys or message.properties.get("UNIQ_KEY") == key)


def is_compiled() -> bool:
    """Which build runs."""
    return cython.compiled


def source_hash() -> int:
    """Of the source this was built from; 0 when plain."""
    return SOURCE_HASH
