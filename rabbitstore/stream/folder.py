"""Read a stream's folder (docs/formats/rabbitmq-streams.md#folder)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from storageio import REAL_DISK, Disk, Kind, StoreCorrupt, UnsupportedFormat
from storebytes.finding import Finding, finding_of

from ..files import mapped
from ..format.amqp10_cy import Converter
from ..read.json_cy import LineWriter
from ..read.metadata import feature_flags
from . import layout
from .chunk import Chunk, View, check_file_head, read_records
from .index import IndexRecord, read_index
from .message import StreamMessage, to_message
from .records_cy import SingleMessages, StreamRecord
from .scan import StreamScan

_FILE = re.compile(rf"([0-9]{{{layout.DIGITS}}})\.(segment|index)\Z")
_CREATED = re.compile(r"_[0-9]{16,20}\Z")
_NOT_LATIN_1, _NOT_UTF_8 = re.compile(r"[^\x00-\xff]"), re.compile(r"[\udc80-\udcff]")
_LATER = "message_containers"  # a feature flag of 3.13: before, a server does not start a stream with an index alone
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class OpenSegment(NamedTuple):
    """A mapped segment with the records of its index, which are empty when it is missing or damaged."""

    number: int
    file: str
    view: View
    index_records: list[IndexRecord]


class StreamFolder:
    """One stream.  Damage is added to `problems`, and reading goes on after it."""

    def __init__(
        self, path: str, disk: Disk = REAL_DISK, *, vhost: str = "/", queue: str | None = None, deletes_lone_index: bool = True
    ) -> None:
        """Open nothing yet; `queue` is the name when the caller knows it from elsewhere.

        `deletes_lone_index` tells whether the server starts on an index without segment, which a kill leaves.
        """
        self.path = path
        self.disk = disk
        self.vhost = vhost
        self.folder = path.rstrip("/").rsplit("/", 1)[-1]
        self.relative = f"stream/{self.folder}"
        self.problems: list[Finding] = []
        self._queue = queue
        self.deletes_lone_index = deletes_lone_index

    @property
    def queue(self) -> str:
        """The stream's name: from its messages, else the folder's name, in which other characters are `_`."""
        if self._queue is None:
            self._queue = self._name_in_messages() or _CREATED.sub("", self.folder)
        return self._queue

    def _name_in_messages(self) -> str | None:
        """Return the routing key of the first message that came through the default exchange."""
        prefix = _CREATED.sub("", self.folder)
        for number in self.segments():
            with self.open_segment(number, []) as segment:
                scan = StreamScan(segment.view, segment.file, [])
                for chunk in scan.chunks():
                    if chunk.kind == layout.USER:
                        for record in self._records(segment, chunk, []):
                            content = to_message(record, chunk, "", self.vhost, "", Converter()).content
                            key = "".join(content.routing_keys[:1])
                            if not content.exchange and folder_prefix(self.vhost, key) == prefix:
                                return key
                        break
        return None

    def numbers(self, ending: str) -> list[int]:
        """Return the first offsets in the names of all files `N.segment` or `N.index`, ascending."""
        names = [_FILE.match(entry.name) for entry in self.disk.list(self.path) if entry.kind is Kind.FILE]
        return sorted(int(name[1]) for name in names if name and name[2] == ending)

    def segments(self) -> list[int]:
        """Return the first offset of each segment, ascending."""
        return self.numbers("segment")

    def unreadable_names(self) -> list[str]:
        """Return the names with a character above U+00FF: a server that lists the folder fails, and starts no writer.

        It passes over names that are not UTF-8.
        """
        names = (entry.name for entry in self.disk.list(self.path))
        return sorted(name for name in names if _NOT_LATIN_1.search(name) and not _NOT_UTF_8.search(name))

    def has_empty_index(self, number: int) -> bool:
        """Return whether an index has no records: the server creates it before the segment."""
        return self._has_head_at_most(number, "index")

    def is_unwritten(self, number: int) -> bool:
        """Return whether a pair is the newest and has no more than its heads, as after a kill between both.

        A server that starts deletes it, or writes the heads if it is the only one.
        """
        is_short = self._has_head_at_most(number, "segment") and self.has_empty_index(number)
        return is_short and number == self.segments()[-1]

    def _has_head_at_most(self, number: int, ending: str) -> bool:
        entry = self.disk.stat(f"{self.path}/{number:0{layout.DIGITS}}.{ending}")
        return entry is not None and entry.size_bytes <= layout.FILE_HEAD_SIZE

    def file(self, number: int, ending: str) -> str:
        """Return a file's name from the node's folder on."""
        return f"{self.relative}/{number:0{layout.DIGITS}}.{ending}"

    @contextmanager
    def open_segment(self, number: int, problems: list[Finding]) -> Iterator[OpenSegment]:
        """Map a segment; raise `UnsupportedFormat` for a version that is not known."""
        file = self.file(number, "segment")
        index = self.index_records(number, problems)
        with mapped(self.disk, f"{self.path}/{number:0{layout.DIGITS}}.segment") as view:
            try:
                check_file_head(view, layout.SEGMENT_MAGIC, file)
            except StoreCorrupt as error:
                problems.append(finding_of(error, "bad_segment_head"))
            yield OpenSegment(number, file, view, index)

    def index_records(self, number: int, problems: list[Finding]) -> list[IndexRecord]:
        """Return the records of an index; none, with a problem added, when it is missing or damaged."""
        path, file = f"{self.path}/{number:0{layout.DIGITS}}.index", self.file(number, "index")
        if self.disk.stat(path) is None:
            problems.append(Finding(file, 0, "missing_stream_index", "an index for each segment", "no file"))
            return []
        with mapped(self.disk, path) as view:
            try:
                return read_index(bytes(view), file, problems)
            except (StoreCorrupt, UnsupportedFormat) as error:
                problems.append(finding_of(error, "bad_stream_index"))
                return []

    def chunks(self) -> Iterator[tuple[OpenSegment, Chunk]]:
        """Yield every whole chunk."""
        numbers = self.segments()
        for number in numbers:
            torn = [] if number == numbers[-1] else self.problems
            with self.open_segment(number, [] if self.is_unwritten(number) else self.problems) as segment:
                positions = [record.position for record in segment.index_records]
                for chunk in StreamScan(segment.view, segment.file, self.problems, positions, number, torn=torn).chunks():
                    yield segment, chunk

    def messages(self) -> Iterator[StreamMessage]:
        """Yield messages in order of their offsets."""
        queue, converter = self.queue, Converter()
        for segment, chunk in self.chunks():
            if chunk.kind == layout.USER:
                for record in self._records(segment, chunk, self.problems):
                    yield to_message(record, chunk, queue, self.vhost, segment.file, converter)

    def lines(self, lines: LineWriter, capacity: int) -> Iterator[StreamMessage | None]:
        """Write the JSON of most messages, and yield all others, in the order of `messages`.

        The caller adds those, and takes the lines whenever None is yielded: `capacity` bytes are full.
        """
        queue, converter = self.queue, Converter()
        for segment, chunk in self.chunks():
            if chunk.kind != layout.USER:
                continue
            entries = chunk.entries if chunk.entries == chunk.records else 0
            walk = SingleMessages(memoryview(segment.view), chunk.data_at, chunk.trailer_at, entries, chunk.chunk_id)
            more = StreamMessage.MORE, (chunk.timestamp_ms, chunk.epoch, None)
            for record in () if walk.left else self._records(segment, chunk, self.problems):
                yield to_message(record, chunk, queue, self.vhost, segment.file, converter)
            while walk.left:
                lines.set_shared((queue, self.vhost), segment.file, more, is_embedded=False)
                walk.write_lines(lines, converter, queue, more, capacity)
                if lines.size >= capacity:
                    yield None
                elif walk.left:
                    yield to_message(walk.take(), chunk, queue, self.vhost, segment.file, converter)

    def _records(self, segment: OpenSegment, chunk: Chunk, problems: list[Finding]) -> list[StreamRecord]:
        try:
            return read_records(segment.view, chunk, segment.file)
        except (StoreCorrupt, UnsupportedFormat) as error:
            problems.append(finding_of(error, "bad_chunk"))
            return []


def folder_prefix(vhost: str, queue: str) -> str:
    """Return the start of a folder's name; the time of the declaration follows it.

    A character and the marks that are combined with it become one `_`.
    """
    found = ""
    for character in f"{vhost}_{queue}":
        is_mark = unicodedata.category(character).startswith("M")
        found = found[:-1] + "_" if found and is_mark else found + _UNSAFE.sub("_", character)
    return found


def stream_folders(node: str, disk: Disk = REAL_DISK, *, vhost: str = "/") -> list[StreamFolder]:
    """Return the streams in a node's folder by folder name."""
    path = f"{node}/stream"
    if disk.stat(path) is None:
        return []
    names = sorted(entry.name for entry in disk.list(path) if entry.kind is Kind.FOLDER)
    flags, _damage = feature_flags(node, disk)
    is_later = flags is None or _LATER in flags
    return [StreamFolder(f"{path}/{name}", disk, vhost=vhost, deletes_lone_index=is_later) for name in names]
