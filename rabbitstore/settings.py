"""The settings of a virtual host; the defaults are those of RabbitMQ."""

from __future__ import annotations

from dataclasses import dataclass, field

from storageio import InvalidSetting
from storageio.settings import I32_MAX, I64_MAX, Range, check_settings

from .format import layout
from .format.index_versions import VERSIONS

_STORE_RANGES: dict[str, Range] = {
    "file_size_limit": (1, I64_MAX),
    "garbage_fraction": (0, 1),
    "file_garbage_fraction": (0, 1),
    "open_files_max": (1, I64_MAX),
    "client_credit": (1, I64_MAX),
}
_INDEX_RANGES: dict[str, Range] = {
    "segment_entries": (1, layout.SEGMENT_ENTRIES_MAX),
    "embed_below": (0, I32_MAX),
}
_RANGES: dict[str, Range] = {
    "flush_interval_ms": (1, I32_MAX),
    "io_batch_size": (1, I64_MAX),
    "publisher_credit": (1, I64_MAX),
    "index_version": (1, max(VERSIONS)),
}


@dataclass(frozen=True)
class StoreSettings:
    """Settings of a message store.

    The collector runs when the files exceed `collect_above_files` times the size limit and more than `garbage_fraction` of
    all bytes is garbage.  With this rule of RabbitMQ a store takes up to twice its live bytes.  `file_garbage_fraction` adds
    a rule: a closed file with more garbage than this is rewritten.  With 0.1 a store stays below 1.2 times its live bytes.
    """

    file_size_limit: int = layout.FILE_SIZE_LIMIT
    write_buffer_bytes: int = 1024 * 1024  # 0: every record is written immediately
    garbage_fraction: float = 0.5
    collect_above_files: int = 2
    file_garbage_fraction: float | None = None
    open_files_max: int = 64
    client_credit: tuple[int, int] = (4000, 800)  # of a queue: (initial, more_after), see `engine.credit`

    def __post_init__(self) -> None:
        """Check every field.  Raises `InvalidSetting` for a wrong type or value."""
        check_settings(self, _STORE_RANGES)
        _check_credit("client_credit", self.client_credit)


@dataclass(frozen=True)
class IndexSettings:
    """Settings of a queue index."""

    segment_entries: int = layout.SEGMENT_ENTRIES_NEW
    journal_entries_max: int = layout.JOURNAL_ENTRIES_MAX  # a publish counts twice, as in 3.10
    journal_bytes_max: int = 32 * 1024 * 1024  # of entries held in memory until a flush
    embed_below: int = layout.EMBED_BELOW

    def __post_init__(self) -> None:
        """Check every field before a folder is created.  Raises `InvalidSetting` for a wrong type or value."""
        check_settings(self, _INDEX_RANGES)


@dataclass(frozen=True)
class RabbitSettings:
    """Settings of a virtual host.

    `index_version` is that of a new folder: 2 for RabbitMQ 4, 1 for 3.10 to 3.12.  An existing folder keeps its version.
    """

    store: StoreSettings = field(default_factory=StoreSettings)
    index: IndexSettings = field(default_factory=IndexSettings)
    index_version: int = 2
    flush_interval_ms: int = 25
    memory_limit_bytes: int = 256 * 1024 * 1024  # of message bodies and positions held in memory, over all queues
    io_batch_size: int = 4096  # betas are pushed to delta in batches of at least this many
    publisher_credit: tuple[int, int] = (400, 200)  # of a publisher: (initial, more_after)
    background: bool = True  # sync and collect in a background thread

    def __post_init__(self) -> None:
        """Check every field.  Raises `InvalidSetting` for a wrong type or value."""
        check_settings(self, _RANGES)
        _check_credit("publisher_credit", self.publisher_credit)


def _check_credit(name: str, credit: tuple[int, int]) -> None:
    """Raise `InvalidSetting` for a grant larger than the initial credit: a sender would stay blocked."""
    initial, more_after = credit
    if more_after > initial:
        raise InvalidSetting(f"{name} is {credit}; expected (initial, more_after) with more_after from 1 to initial")
