"""The ledger of a RocketMQ-style store: what it was given and what it promised, kept outside of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from commitlog import CommitLog, Reader, StoredMessage
from messagestore import MessageStore
from messagestore.write.pool import PooledFiles

from .java_hash import java_hash, key_hash


class LedgerEntry(NamedTuple):
    """One record of the log, with what queue and index must hold for it."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    raw: bytes
    tags_code: int
    key_hashes: tuple[int, ...]

    @property
    def end_offset(self) -> int:
        """Return the offset after its last byte."""
        return self.physical_offset + len(self.raw)


class Ledger:
    """Every record in log order.

    The first `flushed` records must survive a crash of the machine.  Records before `low` may be gone, because retention was
    asked to delete them.
    """

    def __init__(self) -> None:
        """Start with a new store."""
        self.entries: list[LedgerEntry] = []
        self.bodies: set[bytes] = set()  # put, or tried
        self.flushed = 0
        self.low = 0
        self.first = 0  # index of the first entry that is still checked

    @property
    def end_offset(self) -> int:
        """Return the offset after the last known record."""
        return self.entries[-1].end_offset if self.entries else 0

    def learn(self, store: MessageStore) -> int:
        """Add what the log received since, acknowledged or not; return the number of records.

        The bytes are taken from the log; body, topic and queue must be ones that were tried.
        """
        for message, raw in _records(store.engine.log, self.end_offset):
            assert bytes(message.body) in self.bodies, f"a record that was never put: {message.body!r}"
            keys = [*message.keys, message.all_properties.get("UNIQ_KEY")]
            hashes = tuple(key_hash(message.topic, key) for key in keys if key)
            tags_code = java_hash(message.tags) if message.tags else 0
            self.entries.append(
                LedgerEntry(
                    message.topic,
                    message.queue_id,
                    message.queue_offset,
                    message.physical_offset,
                    raw,
                    tags_code,
                    hashes,
                )
            )
        return len(self.entries)

    def cut(self, count: int) -> None:
        """After a crash, count what remains as flushed and drop the rest."""
        del self.entries[count:]
        self.flushed = count

    def copy(self) -> Ledger:
        """Return a copy for a branch of the run."""
        twin = Ledger()
        twin.entries, twin.bodies = list(self.entries), set(self.bodies)
        twin.flushed, twin.low = self.flushed, self.low
        return twin


def _records(log: CommitLog, start: int) -> Iterator[tuple[StoredMessage, bytes]]:
    """Yield the records of the files, then those in the pool's ring that are not committed."""
    for message in log.messages(start, log.committed_offset):
        raw = log.select(message.physical_offset, message.size)
        assert raw is not None, "a record that was just read"
        yield message, bytes(raw)
    if isinstance(log.buffers, PooledFiles):
        yield from (found for found in _in_ring(log, log.buffers) if found[0].physical_offset >= start)


def _in_ring(log: CommitLog, buffers: PooledFiles) -> Iterator[tuple[StoredMessage, bytes]]:
    """Yield the records that are not in the files yet."""
    with log.appender.lock:
        _, position = buffers._settle_written()
    for entry in buffers._entries():
        base = entry.file.start_offset + entry.file.committed
        stop = entry.file.start_offset + (position if entry.end is None else entry.end)
        data = b"".join(buffers.ring.pieces(base, stop))
        for message in Reader(data, base).decode_range(0, len(data), len(data))[0]:
            at = message.physical_offset - base
            yield message, data[at : at + message.size]
