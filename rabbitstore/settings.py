"""What may be set, with RabbitMQ's own values as the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field

from storageio import InvalidMessage

from . import layout


@dataclass(frozen=True)
class StoreSettings:
    """Of a message store.

    The collector runs when the files hold more than `collect_above_files` times the limit and more than
    `garbage_fraction` of all bytes is garbage (RabbitMQ's rule; a store idles at up to twice its live bytes).
    `file_garbage_fraction` is the stricter rule: any closed file with more garbage than this is rewritten on its own;
    with 0.1 a store stays below 1.2 times its live bytes.
    """

    file_size_limit: int = layout.FILE_SIZE_LIMIT
    write_buffer_bytes: int = 1024 * 1024  # 0: every record is written at once
    garbage_fraction: float = 0.5
    collect_above_files: int = 2
    file_garbage_fraction: float | None = None
    open_files_max: int = 64
    client_credit: tuple[int, int] = (4000, 800)  # of a queue towards the store: {initial, more_after}, see `credit`


@dataclass(frozen=True)
class IndexSettings:
    """Of a queue index."""

    segment_entries: int = layout.SEGMENT_ENTRIES_NEW
    journal_entries_max: int = layout.JOURNAL_ENTRIES_MAX  # a publish counts twice, as in 3.10
    journal_bytes_max: int = 32 * 1024 * 1024  # of entries held in memory until a flush
    embed_below: int = layout.EMBED_BELOW

    def __post_init__(self) -> None:
        """`InvalidMessage` for a number that no `.config` may say: an opening would refuse it, with the folder made already."""
        if not 1 <= self.segment_entries <= layout.SEGMENT_ENTRIES_MAX:
            raise InvalidMessage(f"segment_entries is 1 to {layout.SEGMENT_ENTRIES_MAX}, not {self.segment_entries}")


@dataclass(frozen=True)
class RabbitSettings:
    """Of a virtual host."""

    store: StoreSettings = field(default_factory=StoreSettings)
    index: IndexSettings = field(default_factory=IndexSettings)
    flush_interval_ms: int = 25
    memory_limit_bytes: int = 256 * 1024 * 1024  # of message bodies and positions held in memory, over all queues
    io_batch_size: int = 4096  # betas are pushed to delta in batches of at least this many
    publisher_credit: tuple[int, int] = (400, 200)  # of a publisher towards its queues: {initial, more_after}
    background: bool = True  # flush and collect on a thread of our own
