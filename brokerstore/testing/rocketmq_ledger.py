"""What a RocketMQ-style store was given and what it promised, kept outside of it."""

from __future__ import annotations

from typing import NamedTuple

from messagestore import MessageStore

from .java_hash import java_hash, key_hash


class Entry(NamedTuple):
    """One record of the log, and what queue and index have to say of it."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    raw: bytes
    tags_code: int
    key_hashes: tuple[int, ...]

    @property
    def end_offset(self) -> int:
        """Behind its last byte."""
        return self.physical_offset + len(self.raw)


class Ledger:
    """Every record in log order.

    `flushed`: so many of the first ones must survive the machine; `written`: so many were acknowledged.  Records before
    `low` may be gone: retention was asked to delete them.
    """

    def __init__(self) -> None:
        """Of a new store."""
        self.entries: list[Entry] = []
        self.bodies: set[bytes] = set()  # that were put, or tried
        self.flushed = 0
        self.low = 0
        self.first = 0  # of the entries that are still looked at

    @property
    def end_offset(self) -> int:
        """Behind the last record that is known."""
        return self.entries[-1].end_offset if self.entries else 0

    def learn(self, store: MessageStore) -> int:
        """Take in what the live log has got since, acknowledged or not; how many records there are now.

        The bytes are taken as the log has them; body, topic and queue must be ones that were tried.
        """
        log = store.engine.log
        for message in log.messages(self.end_offset, log.written_offset):
            assert bytes(message.body) in self.bodies, f"a record that nobody put: {message.body!r}"
            raw = log.select(message.physical_offset, message.size)
            assert raw is not None, "a record that was just read"
            keys = [*message.keys, message.all_properties.get("UNIQ_KEY")]
            hashes = tuple(key_hash(message.topic, key) for key in keys if key)
            tags_code = java_hash(message.tags) if message.tags else 0
            self.entries.append(
                Entry(
                    message.topic,
                    message.queue_id,
                    message.queue_offset,
                    message.physical_offset,
                    bytes(raw),
                    tags_code,
                    hashes,
                )
            )
        return len(self.entries)

    def cut(self, count: int) -> None:
        """After a crash: what is left counts as flushed, the rest never was."""
        del self.entries[count:]
        self.flushed = count

    def copy(self) -> Ledger:
        """For a branch of the run."""
        twin = Ledger()
        twin.entries, twin.bodies = list(self.entries), set(self.bodies)
        twin.flushed, twin.low = self.flushed, self.low
        return twin
