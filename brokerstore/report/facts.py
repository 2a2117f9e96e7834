"""The facts of a RocketMQ store for a report, gathered in one walk over its log in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from statistics import median_low
from typing import Any

from commitlog import Tally
from commitlog.walk import Blank, LogFiles, Piece
from storebytes.finding import Finding

RESERVED_MS = 72 * 3_600_000  # RocketMQ's fileReservedTime
BUCKETS_MAX = 400  # of the chart over time
WORDS_MAX = 50_000  # keys counted together; beyond that, rare ones are dropped
SHOWN = 20  # rows of the table of frequent keys
SIZE_STEPS = (128, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
BUCKET_MS = (1000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000, 86_400_000, 604_800_000, 31_536_000_000)


@dataclass
class FileMap:
    """The bytes of one file by their use; the rest of its size was never used."""

    name: str
    size_bytes: int
    live: int = 0
    expired: int = 0  # live bytes of a file older than the time that RocketMQ keeps files
    garbage: int = 0  # RabbitMQ: of records that nothing refers to
    blank: int = 0  # RocketMQ: after the last record that fitted
    damaged: int = 0


@dataclass
class Facts:
    """Everything that the page shows; names in it are untrusted."""

    kind: str
    path: str
    cards: list[tuple[str, str]] = field(default_factory=list)
    files: list[FileMap] = field(default_factory=list)
    times: list[tuple[int, int, int]] = field(default_factory=list)  # (from when in ms, messages, bytes)
    bucket_ms: int = BUCKET_MS[0]
    queues: list[dict[str, Any]] = field(default_factory=list)
    sizes: list[tuple[str, int]] = field(default_factory=list)  # (up to, messages)
    keys: list[tuple[str, int]] = field(default_factory=list)  # the most frequent
    lags: list[dict[str, Any]] = field(default_factory=list)
    timers: list[dict[str, Any]] = field(default_factory=list)  # pending ones by topic
    pop: list[dict[str, Any]] = field(default_factory=list)  # lags of groups in POP mode
    problems: list[dict[str, Any]] = field(default_factory=list)
    unread: int = 0  # RabbitMQ: files of an unsupported format


class Times:
    """Messages and bytes by time, in buckets that grow so that there are few."""

    def __init__(self) -> None:
        """Start with the smallest buckets."""
        self.bucket_ms = BUCKET_MS[0]
        self._rows: dict[int, list[int]] = {}

    def add(self, groups: Iterable[tuple[int, int, int]]) -> None:
        """Count groups of messages: their time, their number and their bytes."""
        for timestamp_ms, count, size_bytes in groups:
            row = self._rows.setdefault(timestamp_ms // self.bucket_ms, [0, 0])
            row[0] += count
            row[1] += size_bytes
        while len(self._rows) > BUCKETS_MAX and self.bucket_ms != BUCKET_MS[-1]:
            self._grow()
        if len(self._rows) > 10 * BUCKETS_MAX:  # meaningless times
            self._rows = dict(sorted(self._rows.items(), key=lambda item: -item[1][0])[:BUCKETS_MAX])

    def _grow(self) -> None:
        """Switch to the next larger bucket."""
        before, self.bucket_ms = self.bucket_ms, BUCKET_MS[BUCKET_MS.index(self.bucket_ms) + 1]
        rows: dict[int, list[int]] = {}
        for number, (count, size) in self._rows.items():
            row = rows.setdefault(number * before // self.bucket_ms, [0, 0])
            row[0] += count
            row[1] += size
        self._rows = rows

    def rows(self) -> list[tuple[int, int, int]]:
        """Return the buckets that hold messages, in order of time."""
        return [(number * self.bucket_ms, row[0], row[1]) for number, row in sorted(self._rows.items())]


class Words:
    """The most frequent of any number of words; a rare word may be undercounted."""

    def __init__(self) -> None:
        """Start with no words."""
        self._counts: Counter[str] = Counter()

    def add(self, words: Iterable[str]) -> None:
        """Count the words of a batch."""
        self._counts.update(words)
        if len(self._counts) > WORDS_MAX:
            least = median_low(self._counts.values())
            kept = {word: count for word, count in self._counts.items() if count > least}  # at most half
            ties = (word for word, count in self._counts.items() if count == least)
            self._counts = Counter(kept | dict.fromkeys(islice(ties, WORDS_MAX // 2 - len(kept)), least))

    def most(self) -> list[tuple[str, int]]:
        """Return the most frequent words, with their counts."""
        return self._counts.most_common(SHOWN)


def size_counts(sizes: Counter[int]) -> list[tuple[str, int]]:
    """Return the counts with their labels, from a counter of indexes into `SIZE_STEPS`."""
    names = [
        f"{step} B" if step < 1024 else f"{step >> 10} KiB" if step < 1 << 20 else f"{step >> 20} MiB" for step in SIZE_STEPS
    ]
    return [(f"up to {name}", sizes[index]) for index, name in enumerate(names)] + [("more", sizes[len(names)])]


def size_class(size: int) -> int:
    """Return the index of the step that a size falls under."""
    return next((index for index, step in enumerate(SIZE_STEPS) if size <= step), len(SIZE_STEPS))


class StoreFacts:
    """Turns the steps of a walk over the log into facts."""

    def __init__(self, files: LogFiles) -> None:
        """Start with the files of the log; steps of others are ignored."""
        self._maps = {file.path: FileMap(file.path.rpartition("/")[2], file.size_bytes) for file in files.files}
        self._ends = dict.fromkeys(self._maps, 0)  # after the last step of each file
        self._last_ms: dict[str, int] = {}
        self._times, self._keys = Times(), Words()
        self._sizes: Counter[int] = Counter()
        self._by_queue = Tally()

    def step(self, step: Piece | Blank | Finding) -> None:
        """Count good records and the blank end of a file; anything else shows as the gap that it leaves."""
        if step.file not in self._maps:
            return
        if isinstance(step, Piece):
            found = self._maps[step.file]
            found.damaged += step.start - self._ends[step.file]
            found.live += step.stop - step.start
            self._ends[step.file] = step.stop
            for piece in step.without_fillers():
                self._count(piece)
        elif isinstance(step, Blank):
            found = self._maps[step.file]
            found.damaged += step.offset - self._ends[step.file]
            found.blank += step.size_bytes
            self._ends[step.file] = step.offset + step.size_bytes

    def _count(self, piece: Piece) -> None:
        self._by_queue.add(piece.view, piece.positions)
        by_time = Tally(BUCKET_MS[0], with_topic=False)
        by_time.add(piece.view, piece.positions)
        seconds = list(by_time.rows())
        self._times.add((number * BUCKET_MS[0], count, size_bytes) for _, number, count, size_bytes, _, _ in seconds)
        self._last_ms[piece.file] = max([self._last_ms.get(piece.file, 0), *(row[-1] for row in seconds)])
        for keys, sizes in _keys_and_sizes(piece):
            self._keys.add(keys)
            self._sizes.update(sizes)

    def _queues(self) -> dict[tuple[str, int], list[int]]:
        """Return messages and bytes of each queue."""
        queues: dict[tuple[str, int], list[int]] = {}
        for topic, queue_id, count, size_bytes, _, _ in self._by_queue.rows():
            row = queues.setdefault((topic.decode("utf-8", "replace"), queue_id), [0, 0])
            row[0] += count
            row[1] += size_bytes
        return queues

    def facts(self, path: str, kind: str) -> Facts:
        """Return the facts when the walk is over; the caller adds lag, problems and cards of other parts."""
        newest = max(self._last_ms.values(), default=0)
        for name, found in self._maps.items():
            if newest - self._last_ms.get(name, newest) > RESERVED_MS:
                found.live, found.expired = 0, found.live
        by_queue = self._queues()
        messages = sum(row[0] for row in by_queue.values())
        cards = [("Messages", f"{messages:,}"), ("Topics", str(len({topic for topic, _ in by_queue}))),
                 ("Queues", str(len(by_queue))), ("Log files", str(len(self._maps)))]  # fmt: skip
        ordered = sorted(by_queue.items(), key=lambda item: -item[1][1])
        queues = [{"queue": f"{topic}/{queue_id}", "messages": row[0], "bytes": row[1]} for (topic, queue_id), row in ordered]
        return Facts(
            kind, path, cards, list(self._maps.values()), self._times.rows(), self._times.bucket_ms, queues,
            size_counts(self._sizes), self._keys.most(),
        )  # fmt: skip


def _keys_and_sizes(piece: Piece) -> Iterator[tuple[list[str], dict[int, int]]]:
    """Yield the keys of each batch of records, and how many have a size of each step (see `size_class`)."""
    import numpy as np

    from commitlog.arrow_columns import record_batch
    from commitlog.columns import row_batches

    for rows in row_batches(piece.view, piece.base, piece.positions, piece.stop):
        keys = record_batch(rows, ("keys",)).column("keys")
        counts = np.bincount(np.searchsorted(SIZE_STEPS, rows.sizes))
        yield keys.flatten().to_pylist(), dict(enumerate(counts.tolist()))
