"""The operations on a RocketMQ folder: a store, or a commit log alone."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any, ClassVar

import click

from brokerstore.identify import FolderKind
from commitlog import DecodedId, StoredMessage, decode_message_id
from commitlog.layout import FOREVER_MS
from commitlog.walk import Blank, LogFiles, Piece
from storageio import REAL_DISK, InvalidMessage, StoreCorrupt
from storebytes.finding import Finding

from ..escapes import quote
from ..filters import Filters, RecordFilter, queue_number
from ..hints import NoSuchMessage
from ..layout import TableColumn
from ..message_json import line_blocks, message_json, message_line
from ..output import body_text, print_line, time_text
from . import Contents, ExportSource, MessageLookup, MessagePage, PageRequest
from .rocketmq_folder import RocketmqFolder

BODY_SHOWN = 60
BODY_SHOWN_ALONE = 1024
PORT_MAX = 65535


class RocketmqBackend(RocketmqFolder):
    """The operations on a RocketMQ folder."""

    title = "a RocketMQ store"
    other = "a RabbitMQ folder"
    columns: ClassVar[Sequence[TableColumn]] = (
        TableColumn("offset", 12, True), TableColumn("stored", 24), TableColumn("topic/queue", 24),
        TableColumn("number", 8, True),
    )  # fmt: skip
    rest: ClassVar[str] = "body"
    details_of_many = False

    def dump(self, filters: Filters, limit: int | None) -> Iterator[StoredMessage]:
        """Iterate over the records in the order of the log."""
        accepts, files = self.record_filter(filters).accepts, self.files()
        pieces = self.pieces(files, is_whole=limit is None)
        return islice(self.decoded(one for piece in pieces for one in piece.messages() if accepts(one)), limit)

    def dump_json(self, filters: Filters, limit: int | None) -> Iterator[memoryview]:
        """Yield the records as lines of JSON, which a kernel makes from the log's bytes."""
        if self.decodes:
            yield from map(message_line, self.dump(filters, limit))
            return
        record_filter, left, files = self.record_filter(filters), limit, self.files()
        for piece in self.pieces(files, is_whole=left is None) if left != 0 else ():
            positions = record_filter.positions(piece)[:left]
            yield from (block for block, _ in line_blocks(piece, positions))
            if left is not None:
                left -= len(positions)
                if left == 0:
                    return

    def row(self, message: StoredMessage) -> tuple[Sequence[str], str]:
        """Return offset, time, queue and number; then tag, keys and the beginning of the body."""
        words = [f"[{message.tags}]"] if message.tags else []
        words += [f"({' '.join(message.keys)})"] if message.keys else []
        body = " ".join([*words, body_text(message.body, BODY_SHOWN)])
        stored, queue = time_text(message.store_timestamp_ms), f"{message.topic}/{message.queue_id}"
        return (str(message.physical_offset), stored, queue, str(message.queue_offset)), body

    def to_json(self, message: StoredMessage) -> dict[str, Any]:
        """Return every field of a record."""
        return message_json(message)

    def details(self, message: StoredMessage) -> dict[str, object]:
        """Return every field, with readable times and the beginning of the body."""
        shown = message_json(message)
        del shown["body_base64"]
        for name in ("born_timestamp_ms", "store_timestamp_ms"):
            shown[name] = f"{shown[name]} ({time_text(shown[name])})"
        shown |= {"tags": message.tags or "", "keys": " ".join(message.keys)}
        return shown | {"body": f"{len(message.body)} bytes: {body_text(message.body, BODY_SHOWN_ALONE)}"}

    def get(self, lookup: MessageLookup) -> Iterator[StoredMessage]:
        """Return messages by physical offset, by id, or of a queue."""
        if lookup.at is not None:
            return self.decoded([self._message_at(lookup.at)])
        if lookup.message_id is not None:
            return self.decoded([self._message_by_id(lookup.message_id)])
        queue_id = queue_number(lookup.queue)
        if lookup.topic is None or queue_id is None or lookup.offset is None:
            raise click.UsageError("--topic, --queue and --offset go together")
        return self.decoded(self._queue_messages(lookup.topic, queue_id, lookup.offset, lookup.max_count))

    def _queue_messages(self, topic: str, queue_id: int, offset: int, max_count: int) -> Iterator[StoredMessage]:
        """Raise `NoSuchMessage` with the status of the first page if it has no message."""
        from messagestore import GetStatus

        with self.open_store() as store:
            self.incomplete_keys(store)
            count = 0
            while count < max_count:
                page = store.get(topic, queue_id, offset, max_count - count)
                if page.status is GetStatus.NO_MATCHED_MESSAGE and page.next_offset > offset:
                    offset = page.next_offset
                    continue
                if page.status is not GetStatus.FOUND:
                    break
                yield from page.messages
                count += len(page.messages)
                offset = page.next_offset
            if count == 0:
                where = f"queue {queue_id} of {topic} has offsets {page.min_offset} to {page.max_offset}"
                text = f"{page.status.value}: {where}; the next message is at {page.next_offset}"
                raise NoSuchMessage(text, f"run: brokerstore ls {quote(self.target.path)}  (lists queues and offsets)")

    def _message_by_id(self, message_id: str) -> StoredMessage:
        decoded = decode_offset_id(message_id)
        found = self._message_at(decoded.physical_offset)
        if found.message_id != message_id.upper():
            path, here = self.target.path, decode_message_id(found.message_id).store_host
            raise NoSuchMessage(
                f"{path}: {message_id} names the broker {decoded.store_host}; {here} stored the message at its offset",
                f"run: brokerstore get {quote(path)} --at {decoded.physical_offset}  (shows the message at that offset)",
            )
        return found

    def _message_at(self, offset: int) -> StoredMessage:
        """Raise `NoSuchMessage` for an offset inside a good message, `StoreCorrupt` for damage."""
        path, files = self.target.path, self.files()
        found = files.message_at(offset)
        if found is None:
            end = files.end().offset
            first = files.files[0].start_offset if files.files else 0
            raise NoSuchMessage(
                f"{path}: no file holds offset {offset}: expected {first} to {end}, found nothing",
                f"run: brokerstore info {quote(path)}  (shows where the log begins and ends)",
            )
        if isinstance(found, Finding):
            inside = _what_holds(self.files(), offset, quote(path))
            if inside is None:
                raise StoreCorrupt(
                    f"no message begins here ({found.kind})", file=found.file, offset=found.offset, expected=found.expected,
                    found=found.found,
                )  # fmt: skip
            text = f"{path}: no message begins at {offset}: expected the offset of one, found {inside[0]}"
            raise NoSuchMessage(text, f"run: brokerstore {inside[1]}")
        return found

    def page(self, requested: PageRequest) -> MessagePage:
        """Return one page of a queue or of the log."""
        from .rocketmq_page import log_page, queue_page

        return log_page(self, requested) if requested.topic is None else queue_page(self, requested)

    def query(
        self, topic: str, key: str, times: tuple[int | None, int | None], max_count: int, *, is_tag: bool = False
    ) -> Iterator[StoredMessage]:  # fmt: skip
        """Return the messages, oldest first; an empty answer is explained on stderr."""
        from messagestore.read.beside_writer import beside_writer

        self.require_index_layout(has_rocksdb=True)
        path = quote(self.target.path)
        if self.facts.kind is FolderKind.ROCKSDB or self.facts.keeps_no_index:
            return self.decoded(self._query_rocksdb(topic, key, times, max_count, is_tag=is_tag))

        def search() -> tuple[list[StoredMessage], bool, int]:
            with self.open_store() as store:
                store.engine.undispatched.is_reported = True  # no warning about queues: a query searches the log
                found = (store.query_tag if is_tag else store.query)(topic, key, *times, max_count)
                return found, bool(found) or topic in store.topics(), store.unsearched_bytes

        found, is_known, unsearched = beside_writer(REAL_DISK, self.target.path, search)
        if unsearched:
            lacking = f"{unsearched} bytes of the log are not in the index and were not searched"
            print_line(f"brokerstore: incomplete: {lacking}; run: brokerstore rebuild {path} index --apply")
            self.is_incomplete = True
        if not found and is_known:
            self._report_no_match(topic, key, is_tag)
        if not is_known:
            print_line(f"brokerstore: there is no topic {topic!r}; run: brokerstore ls {path}")
        if not self.facts.has("index"):
            print_line("brokerstore: there is no index folder; `brokerstore rebuild DIR index --apply` creates it")
        return self.decoded(found)

    def _query_rocksdb(
        self, topic: str, key: str, times: tuple[int | None, int | None], max_count: int, *, is_tag: bool
    ) -> Iterator[StoredMessage]:  # fmt: skip
        """Search a folder that no engine opens; an empty answer is explained on stderr."""
        from messagestore.read.key_search import search_key

        config = self.facts.with_sizes(self.config(), guesses=True)
        low, high = times[0] or 0, FOREVER_MS if times[1] is None else times[1]
        found = search_key(self.facts, config, self.files(), topic, key, is_tag=is_tag)
        newest = deque((one for one in found if low <= one.store_timestamp_ms <= high), maxlen=max_count)
        if not newest:
            self._report_no_match(topic, key, is_tag)
        return iter(newest)

    def _report_no_match(self, topic: str, key: str, is_tag: bool) -> None:
        has = f"has the {'tag' if is_tag else 'key'} {key!r}"
        print_line(f"brokerstore: no message of topic {topic!r} {has}; run: brokerstore dump {quote(self.target.path)}")

    def tail(self, filters: Filters, lines: int, follow: bool) -> Iterator[StoredMessage]:
        """Return the last records of the log, then with `follow` those that arrive."""
        record_filter = self.record_filter(filters)
        if follow:
            self.require_store()
        files = self.files()
        end_offset = files.end().offset
        last = self._last_records(files, record_filter, lines)
        self.report_fillers()
        return self.decoded(self._with_arrivals(last, record_filter, end_offset) if follow else last)

    def _last_records(self, files: LogFiles, record_filter: RecordFilter, lines: int) -> list[StoredMessage]:
        """Read from the last file backwards."""
        whole = files.files
        found: list[StoredMessage] = []
        for number in reversed(range(len(whole))):
            if len(found) >= lines:
                break
            files.files = whole[number : number + 1]
            found = [*deque(self._accepted(files, record_filter), maxlen=lines), *found]
        return found[max(0, len(found) - lines) :] if lines else []

    def _accepted(self, files: LogFiles, record_filter: RecordFilter) -> Iterator[StoredMessage]:
        for step in files.messages():
            if isinstance(step, Finding):
                self.add(step)
            elif record_filter.accepts(step) and self.accepts(step):
                yield step

    def _with_arrivals(self, last: list[StoredMessage], record_filter: RecordFilter, start: int) -> Iterator[StoredMessage]:
        yield from last
        sys.stdout.flush()
        with self.open_store() as store, store.follow(start) as follower:
            for message in follower:
                if record_filter.accepts(message):
                    yield message
                    sys.stdout.flush()

    def export(self, form: str, filters: Filters, limit: int | None) -> ExportSource:
        """Export the records of the log; the position is a physical offset."""
        from .rocketmq_export import source

        return source(self, form, self.record_filter(filters), limit)

    def contents(self, stack: ExitStack) -> Contents:
        """Compare by queue offset, wherever the records lie."""
        from .rocketmq_export import contents

        return contents(self, stack)

    def unread_keys(self) -> dict[str, Any]:
        """Return no keys: every queue is read."""
        return {}


def _what_holds(files: LogFiles, offset: int, folder: str) -> tuple[str, str] | None:
    """Return what an offset lies in, if that is no damage, and the command that shows what is there."""
    end = files.end().offset
    files.files = [file for file in files.files if file.start_offset <= offset < file.start_offset + file.size_bytes]
    first = files.files[0].start_offset
    for step in files.walk():
        if isinstance(step, Piece) and step.base + step.start <= offset < step.base + step.stop:
            row = bisect_right(step.positions, offset - step.base)
            if row < len(step.positions) and files.step_offset(step.base + step.positions[row]) <= offset:
                at = step.base + step.positions[row]
                return f"the header of the entry of the message at {at}", f"get {folder} --at {at}"
            at = step.base + step.positions[row - 1]
            return f"the inside of the message at {at}", f"get {folder} --at {at}"
        if isinstance(step, Blank) and first + step.offset <= offset:
            return "the blank end of a file", f"get {folder} --at {first + step.offset + step.size_bytes}"
    return (f"what was never written: the log ends at {end}", f"tail {folder}") if offset >= end else None


def decode_offset_id(message_id: str) -> DecodedId:
    """Decode an id; raise `InvalidMessage` for a unique key, which has a process id where an offset id has a port."""
    decoded = decode_message_id(message_id)
    if int(decoded.store_host.rpartition(":")[2]) <= PORT_MAX:
        return decoded
    error = InvalidMessage(f"{message_id}: a client's unique key (UNIQ_KEY); expected an id of the store, with an offset in it")
    error.add_note(f"run: brokerstore query DIR TOPIC {quote(message_id)}  (finds a message by its unique key)")
    raise error
