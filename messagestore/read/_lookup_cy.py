"""Look up messages by physical offset, key or time: methods of `MessageStore` that are compiled to the record."""

from __future__ import annotations

from array import array
from errno import ENOENT
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from commitlog._append_cy import Appender
from commitlog._find_cy import LogReaders
from commitlog._message_cy import StoredMessage
from commitlog.checks import CHECK_READ
from commitlog.layout import FOREVER_MS
from consumequeue.boundary import Boundary
from indexfile._filter_cy import FilteredFiles
from indexfile._index_cy import IndexBuffer, IndexList, MappedIndex, hash_of_texts
from storageio import DiskError
from storageio.settings import check_type

from ..write._gate_cy import Gate
from ..write._put_cy import PutMethods

if not cython.compiled:
    from indexfile._filter_cy import prefetch_filters, leads_nowhere, mask_of
    from indexfile._index_cy import prefetch_newest, begins_at, ends_at, is_bare, is_unused, key_hash, next_item, walk
    from storebytes._bytes_cy import I32, I64, Bool, I64s, Size, i64s_of, order_loads

HITS_AT_ONCE = 64
TRIES = 10  # attempts of a reader whose files a writer deletes
ITEM_SLACK_MS = 1000  # item times are cut to seconds: the range is extended by one, and the message's own time decides
LOWER = Boundary.LOWER
UNDECODABLE = "\N{REPLACEMENT CHARACTER}"  # invalid UTF-8 decodes to this, so the strings are compared instead of the bytes


class LookupMethods(PutMethods):
    """Base of `MessageStore` with its methods for single messages.

    It extends the methods that put because a class can have only one compiled base with fields.
    """

    __slots__ = ("_deleted", "_index", "_is_reader", "_is_whole", "_log_readers", "_parts", "_spare")

    def __init__(self, parts: Any, rules: Any) -> None:
        """Create it for the parts of an open store and the rules for its puts."""
        PutMethods.__init__(self, parts, rules)
        self._parts = parts
        self._is_reader: Bool = not parts.writable
        self._index: IndexList | None = parts.index
        self._log_readers: LogReaders = parts.log.readers
        self._deleted: dict[str, Any] = parts.deleted.entries
        self._spare: KeyQuery | None = None
        self._is_whole: Bool = False  # a query found that the index of a store opened for writing lacks nothing

    def message_at(self, physical_offset: int) -> StoredMessage | None:
        """Return the message whose record begins at a physical offset; None if none does."""
        if self._gate.is_closed or self._is_reader:
            self._parts.check_open()
            self._parts.refresh()
        try:
            offset: I64 = physical_offset
        except OverflowError:  # in the compiled build
            return None
        return self._log_readers.message_at(offset, CHECK_READ)

    def query(
        self, topic: str, key: str, begin_ms: int | None = None, end_ms: int | None = None, max_count: int = 32
    ) -> list[StoredMessage]:
        """Return messages of a topic with a key, oldest first, without messages that only share the key's hash.

        Messages that the index does not have are found in the log, up to a limit: see `unsearched_bytes`.
        """
        found: list[StoredMessage] = self._found(topic, key, begin_ms, end_ms, max_count)
        if found:
            if self._is_reader:
                self._parts.deleted.refresh()
            if self._deleted:
                return self._parts.deleted.kept(topic, found)  # type: ignore[no-any-return]
        return found

    def _found(self, topic: str, key: str, begin_ms: Any, end_ms: Any, max_count: Any) -> list[StoredMessage]:
        if max_count < 0:
            raise ValueError(f"max_count {max_count}: 0 or more")
        if not cython.compiled:
            check_type("topic", topic, str)
            check_type("key", key, str)
        index: IndexList | None = self._index
        if index is None:
            self._settle()  # raises if the store is closed
            return []
        low: I64 = 0 if begin_ms is None else _within(begin_ms)
        high: I64 = FOREVER_MS if end_ms is None else _within(end_ms)
        code: I32 = hash_of_texts(topic, key)
        prefetch_newest(index, key_hash(code))
        prefetch_filters(index, key_hash(code))
        most: Size = min(max_count, index.max_matches)
        if self._is_reader:
            return self._query_beside_writer(index, topic, key, code, low, high, most)
        if not self._settle() or not self._is_whole:
            return self._query_log_too(index, topic, key, code, low, high, most)
        if leads_nowhere(index, key_hash(code)):
            return []
        with cython.critical_section(self):
            spare: KeyQuery | None = self._spare  # taken for this call, so that two threads never share it
            self._spare = None
        query: KeyQuery = KeyQuery(self._log_readers) if spare is None else spare
        query.begin(topic, key, code, low, high, most)
        query.search(index)
        if query.damaged is not None:
            self._is_whole = False
            return self._query_log_too(index, topic, key, code, low, high, most)
        found = query.take_results()
        with cython.critical_section(self):
            self._spare = query
        return found

    def _query_beside_writer(
        self, index: IndexList, topic: str, key: str, code: I32, low: I64, high: I64, most: Size
    ) -> list[StoredMessage]:
        """Query as a reader; retry if a writer deletes a file in the meantime."""
        tries: Size = 0
        if self._gate.is_closed:
            self._parts.check_open()
        while True:
            try:
                return self._query_log_too(index, topic, key, code, low, high, most, tries > 0)
            except DiskError as error:
                tries += 1
                if error.errno != ENOENT or tries == TRIES:
                    raise

    def _query_log_too(
        self, index: IndexList, topic: str, key: str, code: I32, low: I64, high: I64, most: Size, is_repeated: bool = False
    ) -> list[StoredMessage]:
        """Query the index, and the log where the index does not cover it."""
        unindexed = self._parts.unindexed
        if is_repeated:  # the writer may delete another file in each attempt
            self._parts.refresh(again=True)
        while True:
            fresh: list[int] = unindexed.offsets(_encoded(topic), _encoded(key))
            if len(fresh) == 0 and leads_nowhere(index, key_hash(code)):
                found: list[StoredMessage] = []
                break
            query: KeyQuery = KeyQuery(self._log_readers)
            query.begin(topic, key, code, low, high, most)
            query.search(index)
            if query.damaged is not None and unindexed.exclude(query.damaged):
                continue
            found = query.take_results()
            if len(fresh):
                query.begin(topic, key, code, low, high, most)
                query.keep_all(fresh)
                found = _newest(found, query.take_results(), most)
            break
        self._is_whole = unindexed.is_whole
        return found

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = LOWER) -> int:
        """Return the queue offset for a store time (`docs/formats/read-rules.md#offset-by-time`); 0 for an unknown queue."""
        self._parts.settle()
        queue = self._parts.lookup.get(topic, queue_id)
        if queue is None:
            return 0
        time_ms: I64 = _within(timestamp_ms)
        found: int = queue.offset_by_time(time_ms, boundary, self._log_readers, self._log_readers.min_offset())
        return found

    def _settle(self) -> Bool:
        """Wait for the dispatcher to reach the end of the log; return False if it cannot."""
        gate: Gate = self._gate
        log: Appender = self._appender
        position: I64 = log.position  # in this order for the reason in `Appender.end_offset`
        order_loads()
        if gate.is_closed or gate.dispatched < log.base + position:
            return bool(self._parts.has_settled())
        return True


@cython.cfunc
@cython.exceptval(check=True)
def _within(time_ms: object) -> I64:
    """Clamp a time to what a C integer can hold."""
    return min(max(time_ms, -FOREVER_MS), FOREVER_MS)  # type: ignore[no-any-return, call-overload]


@cython.cclass
class KeyQuery:
    """A query for a key and its results.  It is reused, by one call at a time, to save the allocation of its buffers."""

    __slots__ = (
        "_code", "_count", "_first", "_found", "_held", "_held_state", "_high", "_hits", "_is_encoded", "_is_unusual", "_key",
        "_key_text", "_low", "_most", "_readers", "_state", "_topic", "_topic_text", "damaged",
    )  # fmt: skip

    def __init__(self, readers: LogReaders) -> None:
        """Allocate the buffers without a query."""
        self._readers = readers
        self._held = memoryview(array("q", bytes(8 * HITS_AT_ONCE)))
        self._held_state = memoryview(array("q", bytes(24)))
        self._hits: I64s = i64s_of(self._held)  # of a part of a chain
        self._state: I64s = i64s_of(self._held_state)  # number of hits, where to continue, and whether the chain is damaged
        self._first: StoredMessage | None = None  # the first result, usually the only one
        self._found: dict[int, StoredMessage] | None = None  # from the second result on, all by physical offset
        self.damaged: list[Any] | None = None  # index files that are damaged where they were searched
        self._is_encoded: Bool = False  # done at the first hit, because most queries without a hit do not need it

    def begin(self, topic: str, key: str, code: I32, low: I64, high: I64, most: Size) -> Bool:
        """Start a query for at most `most` messages with store times from `low` to `high`.

        `code` is the result of `hash_of_texts`.
        """
        self._topic_text = topic
        self._key_text = key
        self._low = low
        self._high = high
        self._code = code
        self._most = most
        self._count: Size = 0
        self._is_encoded = False
        self.damaged = None
        return True

    def keep_all(self, offsets: list[int]) -> Bool:
        """Add the records at these offsets, newest first, as far as they match."""
        for offset in offsets:
            if self._count < self._most:
                self._keep(offset)
        return True

    def search(self, index: IndexList) -> Bool:
        """Search all files, newest file and newest item first (docs/formats/indexfile.md#querying-a-key)."""
        begin_ms: I64 = max(0, self._low - ITEM_SLACK_MS) if self._low > 0 else 0
        searched: list[Any]
        with cython.critical_section(index):
            searched = index._searched
        position: Size = len(searched)
        while position > 0 and self._count < self._most:
            position -= 1
            if isinstance(searched[position], FilteredFiles):
                is_done: Bool = self._search_filtered(index, cython.cast(FilteredFiles, searched[position]), begin_ms)
            else:
                is_done = self._search_file(index, cython.cast(MappedIndex, searched[position]), begin_ms)
            if is_done:
                break
        return True

    def _search_filtered(self, index: IndexList, filtered: FilteredFiles, begin_ms: I64) -> Bool:
        """Search the files that may hold the key; return True if older files are too old."""
        bits: I64 = mask_of(filtered.buffer, key_hash(self._code)) & filtered.live
        column: Size = len(filtered.files)
        while bits != 0 and column > 0 and self._count < self._most:
            column -= 1
            if (bits >> column) & 1:
                bits &= ~(cython.cast(I64, -1) << column)
                if self._search_file(index, cython.cast(MappedIndex, filtered.files[column]), begin_ms):
                    return True
        return False

    def _search_file(self, index: IndexList, file: MappedIndex, begin_ms: I64) -> Bool:
        """Search one file; return True if older files are too old."""
        buffer: IndexBuffer | None
        with cython.critical_section(file):
            buffer = file._mapped
        if begin_ms == 0 and buffer is not None and is_unused(buffer, key_hash(self._code)):
            if is_bare(buffer, key_hash(self._code)) and not buffer.has_all_slots():
                self._add_damaged(file)
            return False
        first_ms: I64
        last_ms: I64
        if buffer is None:
            header = file.header  # type: ignore[attr-defined]
            first_ms, last_ms = header.begin_timestamp_ms, header.end_timestamp_ms
        else:
            first_ms, last_ms = begins_at(buffer), ends_at(buffer)
        if begin_ms <= last_ms and first_ms <= self._high and begin_ms <= self._high:
            if buffer is None:
                buffer = file.buffer  # type: ignore[attr-defined]
                index.keep_open(file)  # type: ignore[attr-defined]
            if not self._follow(buffer, begin_ms):
                self._add_damaged(file)
        return first_ms < begin_ms

    def _add_damaged(self, file: MappedIndex) -> Bool:
        """Remember that a file is damaged."""
        if self.damaged is None:
            self.damaged = []
        self.damaged.append(file)
        return True

    def _follow(self, buffer: IndexBuffer, begin_ms: I64) -> Bool:
        """Follow the chain in one file, for no more hits than it has items, so that a loop of items ends.

        Returns False if the chain is damaged.
        """
        if is_unused(buffer, key_hash(self._code)):
            return not is_bare(buffer, key_hash(self._code)) or buffer.has_all_slots()
        left: Size = next_item(buffer) - 1
        at: I32 = 0
        row: Size
        while left > 0 and self._count < self._most:
            walk(buffer, key_hash(self._code), at, begin_ms, self._high, self._hits, HITS_AT_ONCE, self._state)
            count: Size = min(self._state[0], left)
            at = self._state[1]
            for row in range(count):
                if self._count < self._most:
                    self._keep(self._hits[row])
            left -= count
            if self._state[2]:
                return False
            if at == 0:
                break
        return True

    def _keep(self, offset: I64) -> Bool:
        """Add the record of a hit if topic, key and store time match."""
        if self._is_known(offset):
            return False
        message: StoredMessage | None
        reader = self._readers.reader_of(offset)
        if reader is None:
            return False
        reader.prefetch_record(offset - reader.base)
        if not self._is_encoded:
            self._encode()
        if self._is_unusual:
            message = self._readers.for_record(reader, offset - reader.base).decode(offset - reader.base, CHECK_READ)
            if message is None or not has_key(message, self._topic_text, self._key_text):
                return False
        else:
            reader = self._readers.for_record(reader, offset - reader.base)
            message = reader.decode_keyed(offset - reader.base, self._topic, self._key, CHECK_READ)
            if message is None:
                return False
        if message.store_timestamp_ms < self._low or message.store_timestamp_ms > self._high:
            return False
        self._add(message)
        return True

    def _encode(self) -> Bool:
        """Encode topic and key for the comparison with records."""
        topic, key = self._topic_text, self._key_text
        self._topic: bytes = _encoded(topic)
        self._key: bytes = _encoded(key)
        is_ascii: Bool = len(self._topic) == len(topic) and len(self._key) == len(key)
        self._is_unusual: Bool = not is_ascii and (UNDECODABLE in topic or UNDECODABLE in key)
        self._is_encoded = True
        return True

    def _is_known(self, offset: I64) -> Bool:
        """Return whether the record is already found; it may have the key twice."""
        first: StoredMessage | None = self._first
        if first is None:
            return False
        return first.physical_offset == offset if self._found is None else offset in self._found

    def _add(self, message: StoredMessage) -> Bool:
        """Add a message to the results."""
        self._count += 1
        first: StoredMessage | None = self._first
        if first is None:
            self._first = message
            return True
        if self._found is None:
            self._found = {first.physical_offset: first}
        self._found[message.physical_offset] = message
        return True

    def take_results(self) -> list[StoredMessage]:
        """Return the results, oldest first, and forget them, so that the object can be reused."""
        first: StoredMessage | None = self._first
        found = self._found
        self._first = self._found = None
        if first is None:
            return []
        return [first] if found is None else [found[offset] for offset in sorted(found)]


@cython.cfunc
def _encoded(text: str) -> bytes:
    """Encode a string as UTF-8, a lone surrogate as a question mark, as in Java."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _newest(some: list[StoredMessage], others: list[StoredMessage], most: int) -> list[StoredMessage]:
    """Return the newest messages of two lists, oldest first."""
    found = {message.physical_offset: message for message in (*some, *others)}
    return [found[offset] for offset in sorted(found)[max(0, len(found) - most) :]]


def has_key(message: StoredMessage, topic: str, key: str) -> bool:
    """Return whether a message has the topic and key, rather than only the same hash."""
    return message.topic == topic and (key in message.keys or message.properties.get("UNIQ_KEY") == key)
