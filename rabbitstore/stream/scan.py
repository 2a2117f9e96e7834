"""Walk the chunks of a segment and continue after damage (docs/formats/rabbitmq-streams.md#damage)."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from storageio import StoreCorrupt, UnsupportedFormat
from storebytes.finding import UNSUPPORTED, Finding, finding_of

from .chunk import Chunk, View, check_crc, read_head
from .layout import CHUNK_HEAD, FILE_HEAD_SIZE

_HEAD = re.compile(rb"\x50[\x00-\x02].{43}\x00\x00\x00", re.DOTALL)
_SEARCH_FACTOR = 4  # bytes whose CRC a search may compute, in sizes of the segment


@dataclass
class StreamScan:
    """One walk over a segment: what it expects next, and what was wrong.

    `chunk_id` is the id of the next chunk, None when it is not known.  `positions` are those of an index, where a search
    for the next chunk looks first.  `torn` gets a torn end that the index does not have yet; without it, `problems` does.
    """

    view: View
    file: str
    problems: list[Finding]
    positions: Iterable[int] = ()
    chunk_id: int | None = None
    epoch: int = 0
    position: int = FILE_HEAD_SIZE
    torn: list[Finding] | None = None
    last: int = 0
    budget: int = field(init=False)
    known: list[int] = field(init=False)

    def __post_init__(self) -> None:
        """Limit the work of searches: a hostile file may have a head at each byte."""
        self.budget = _SEARCH_FACTOR * len(self.view)
        self.known = sorted(self.positions)

    def chunks(self) -> Iterator[Chunk]:
        """Yield every whole chunk; each has at least 52 bytes, so the walk ends."""
        read_one = False
        while self.position < len(self.view):
            try:
                chunk = self._read(self.position)
            except (StoreCorrupt, UnsupportedFormat) as error:
                if not self._continue_after(error, is_other_version=not read_one):
                    return
                continue
            read_one = True
            if chunk.epoch < self.epoch:  # one of the two is wrong, but the id shows that the chunk belongs here
                fallen = self._misplaced(chunk.position + 16, "epoch", self.epoch, chunk.epoch)
                self.problems.append(finding_of(fallen, "bad_chunk"))
            self.position, self.chunk_id, self.epoch = chunk.stop, chunk.next_id, chunk.epoch
            self.last = chunk.position
            yield chunk

    def _read(self, position: int) -> Chunk:
        chunk = read_head(self.view, position, self.file)
        if self.chunk_id is not None and chunk.chunk_id != self.chunk_id:
            raise self._misplaced(position + 24, "chunk id", self.chunk_id, chunk.chunk_id)
        check_crc(self.view, chunk, self.file)
        return chunk

    def _misplaced(self, offset: int, name: str, expected: int, found: int) -> StoreCorrupt:
        return StoreCorrupt(f"wrong {name} of a chunk", file=self.file, offset=offset, expected=expected, found=found)

    def _continue_after(self, error: StoreCorrupt | UnsupportedFormat, *, is_other_version: bool) -> bool:
        """Report a bad chunk and move to the next good one; return whether there is one.

        Another version is an unsupported format only when no chunk before it has the known one.
        """
        found = self._next_chunk()
        kind = _kind(error, is_end=found is None)
        problem = finding_of(error, kind)
        if problem.kind == UNSUPPORTED and not is_other_version:
            problem = problem._replace(kind="bad_chunk")
        is_unindexed = kind == "torn_chunk" and self.known[-1:] == [self.last]  # the server cuts such an end when it starts
        target = self.torn if is_unindexed and self.torn is not None else self.problems
        target.append(problem)
        if found is None:
            return False
        if self.chunk_id is not None and found.chunk_id != self.chunk_id:
            lost = Finding(self.file, found.position, "lost_offsets", f"offset {self.chunk_id}", f"offset {found.chunk_id}")
            self.problems.append(lost)
        self.position, self.chunk_id = found.position, found.chunk_id
        return True

    def _next_chunk(self) -> Chunk | None:
        """Return the first good chunk after the current position; the index shows where, if it is right."""
        for number in range(bisect_right(self.known, self.position), len(self.known)):
            found = self._candidate(self.known[number])
            if found is not None or self.budget <= 0:
                return found
        at = self.position + 1
        while self.budget > 0:
            match = _HEAD.search(self.view, at)
            if match is None:
                return None
            found = self._candidate(match.start())
            if found is not None:
                return found
            at = match.start() + 1
        self.problems.append(Finding(self.file, at, "bad_chunk", "a chunk", "search limit reached"))
        return None

    def _candidate(self, position: int) -> Chunk | None:
        self.budget -= CHUNK_HEAD.size
        try:
            chunk = read_head(self.view, position, self.file)
            is_next = chunk.chunk_id == self.chunk_id
            if not is_next and (chunk.epoch < self.epoch or chunk.chunk_id < (self.chunk_id or 0)):
                return None
            if chunk.trailer_at - chunk.data_at > self.budget:
                return None
            self.budget -= chunk.trailer_at - chunk.data_at
            check_crc(self.view, chunk, self.file)
        except (StoreCorrupt, UnsupportedFormat):
            return None
        return chunk


def _kind(error: StoreCorrupt | UnsupportedFormat, *, is_end: bool) -> str:
    return "torn_chunk" if is_end and isinstance(error, StoreCorrupt) else "bad_chunk"
