"""Settings of a store, named as in RocketMQ with Python's spelling; a comment marks a default that differs from RocketMQ's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Concatenate, ParamSpec

from commitlog import HOST_DEFAULT, encode_host
from commitlog.layout import BODY_SIZE_MAX_DEFAULT, FILE_SIZE_DEFAULT
from storageio import InvalidMessage, InvalidSetting
from storageio.settings import I32_MAX, I64_MAX, Range, check_settings

from .broker_versions import BY_NAME

MIB = 1 << 20
FILES_OF_MAX = 4  # log files that the maximum size of a new store has space for: the last one is never deleted
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
HOURS = 24
LEVEL_SIZE_MAX = 12
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_AT_LEAST_ONE = (
    "mapped_file_size_commit_log", "mapped_file_size_consume_queue", "mapped_file_size_consume_queue_ext",
    "mapper_file_size_batch_consume_queue", "mapped_file_size_timer_log", "max_hash_slot_num", "max_index_num",
    "max_message_size",
    "default_topic_queue_nums", "flush_delay_offset_interval_ms", "flush_interval_commit_log_ms",
    "commit_interval_commit_log_ms", "flush_interval_consume_queue_ms", "flush_consumer_offset_interval_ms",
    "dedup_window_ms", "sync_flush_timeout_ms", "os_page_cache_busy_timeout_ms", "max_transfer_count_on_message_in_memory",
    "max_transfer_count_on_message_in_disk", "max_msgs_num_batch", "delete_file_batch_max", "clean_resource_interval_ms",
)  # fmt: skip
_AT_LEAST_NOTHING = (
    "transaction_timeout_ms", "transaction_check_max", "max_lmq_consume_queue_num", "flush_commit_log_least_pages",
    "flush_commit_log_thorough_interval_ms", "commit_commit_log_least_pages", "commit_commit_log_thorough_interval_ms",
    "flush_consume_queue_least_pages", "flush_consume_queue_thorough_interval_ms",
    "max_transfer_bytes_on_message_in_memory", "max_transfer_bytes_on_message_in_disk", "max_filter_message_size",
    "file_reserved_time_hours",
)  # fmt: skip
_RANGES: dict[str, Range] = {
    **dict.fromkeys(_AT_LEAST_ONE, (1, I32_MAX)),  # RocketMQ stores each of them as an `int`
    **dict.fromkeys(_AT_LEAST_NOTHING, (0, I32_MAX)),
    "disk_max_used_space_ratio": (10, 95),  # RocketMQ's limits, which a broker applies without a word
    "disk_space_clean_forcibly_ratio": (30, 85),
    "disk_space_warning_ratio": (35, 90),
    "max_size_bytes": (1, I64_MAX),
    "transient_store_pool_size": (2, I32_MAX),  # the next file needs a buffer before the last one is written
    "transient_store_ring_size": (1, I64_MAX),
}


_RATIOS = ("disk_max_used_space_ratio", "disk_space_clean_forcibly_ratio", "disk_space_warning_ratio")


class FlushMode(Enum):
    """When a put is acknowledged."""

    ASYNC = "ASYNC_FLUSH"  # after the write; the record survives the process
    SYNC = "SYNC_FLUSH"  # after the sync; the record survives the machine


class RetentionPolicy(Enum):
    """Which log files may be deleted.  A store keeps its policy in `brokerstore/settings.json`."""

    LIMITS = "limits"  # RocketMQ's: by age and disk space, whether anybody has read the messages or not
    CONSUMED = "consumed"  # those whose messages every group has acknowledged; without space puts are refused


class Role(Enum):
    """The role of a store in replication.  A slave refuses puts."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


Fields = ParamSpec("Fields")


def _with_fields(
    _model: Callable[Fields, object],
) -> Callable[[Callable[..., StoreConfig]], Callable[Concatenate[Any, Fields], StoreConfig]]:
    """Let a type checker know that a method takes the fields of a model as keywords."""
    return lambda method: method


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """The fields of `StoreConfig`, whose methods name them for a type checker."""

    mapped_file_size_commit_log: int | None = None
    mapped_file_size_consume_queue: int | None = None
    max_hash_slot_num: int | None = None
    max_index_num: int | None = None
    store_path_commit_log: str | None = None  # several folders, separated by commas
    max_message_size: int = BODY_SIZE_MAX_DEFAULT
    enabled_append_prop_crc: bool = True  # RocketMQ: false.  A checksum over the whole record, not the body alone
    message_index_enable: bool = True
    broker_version: str | None = None  # of a new store: the broker that can take it over; None: that of the store, else 5.3.3
    flush_disk_type: FlushMode = FlushMode.ASYNC
    broker_role: Role = Role.ASYNC_MASTER
    store_host: str = HOST_DEFAULT
    default_topic_queue_nums: int = 8
    message_delay_level: str | None = None  # None: the last writer's, else RocketMQ's `DELAY_LEVELS`
    deliver_delayed: bool = True  # whether this process delivers delayed messages
    flush_delay_offset_interval_ms: int = 5000  # RocketMQ: 10,000
    transaction_timeout_ms: int = 6000  # minimum age of a half message before its producer is asked about it
    transaction_check_max: int = 15
    enable_lmq: bool = False  # whether puts to LMQs (light message queues) get their offsets
    enable_multi_dispatch: bool | None = None  # no effect: the log tells which messages are in LMQs
    max_lmq_consume_queue_num: int = 20_000
    enable_consume_queue_ext: bool | None = None  # whether extended units are written; None: if the folder has some
    mapped_file_size_consume_queue_ext: int | None = None
    mapper_file_size_batch_consume_queue: int | None = None
    mapped_file_size_timer_log: int | None = None

    flush_interval_commit_log_ms: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval_ms: int = 10_000
    transient_store_pool_enable: bool = False
    transient_store_pool_size: int = 5  # RocketMQ's number of buffers; here the ring's size bounds the memory
    transient_store_ring_size: int = 64 * MIB  # RocketMQ has none
    sync_flush_through_ring: bool = False  # RocketMQ has none: use the ring with synchronous flush too
    commit_interval_commit_log_ms: int = 5  # RocketMQ: 200
    commit_commit_log_least_pages: int = 4
    commit_commit_log_thorough_interval_ms: int = 200
    flush_interval_consume_queue_ms: int = 1000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval_ms: int = 3_000  # RocketMQ: 60,000.  Recovery begins at the last complete flush
    flush_consumer_offset_interval_ms: int = 5000
    sync_flush_timeout_ms: int = 5000
    os_page_cache_busy_timeout_ms: int = 1000

    max_transfer_bytes_on_message_in_memory: int = 256 * 1024
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 64 * 1024
    max_transfer_count_on_message_in_disk: int = 8
    max_filter_message_size: int = 16_000
    max_msgs_num_batch: int = 64
    dedup_window_ms: int = 300_000  # RocketMQ has none: how long a `dedup_id` is remembered

    retention: RetentionPolicy | None = None  # None: that of the store
    retention_of_new_store: RetentionPolicy = RetentionPolicy.LIMITS  # RocketMQ has no other
    max_size_bytes: int | None = None  # of the log; RocketMQ has none
    file_reserved_time_hours: int = 72
    delete_when: str = "04"
    delete_file_batch_max: int = 10
    clean_resource_interval_ms: int = 10_000
    clean_file_forcibly_enable: bool = True
    disk_max_used_space_ratio: int = 75
    disk_space_clean_forcibly_ratio: int = 85
    disk_space_warning_ratio: int = 90

    def __post_init__(self) -> None:
        """Check every field.  Raises `InvalidSetting` for a wrong type or value, and takes enum members by their names too."""
        check_settings(self, _RANGES)
        if self.message_delay_level is not None:
            delay_times_ms(self.message_delay_level)
        try:
            encode_host(self.store_host)
        except InvalidMessage as error:
            raise InvalidSetting(f"store_host: {error}") from error
        if self.broker_version not in (None, *BY_NAME):
            raise InvalidSetting(f"broker_version is {self.broker_version!r}; expected one of {', '.join(BY_NAME)}")
        path = self.store_path_commit_log
        if path is not None and ("\0" in path or not path.strip(" ,")):
            raise InvalidSetting(f"store_path_commit_log is {path!r}; expected paths of folders, separated by commas")
        hours = [part.strip() for part in self.delete_when.split(";") if self.delete_when]
        if not all(hour.isascii() and hour.isdecimal() and len(hour) <= 2 and int(hour) < HOURS for hour in hours):
            raise InvalidSetting(f"delete_when is {self.delete_when!r}; expected hours from 00 to 23, separated by semicolons")


class StoreConfig(_Settings):
    """Settings; sizes are bytes, times milliseconds.  A size of None is detected; a new store takes RocketMQ's."""

    __slots__ = ()

    @classmethod
    @_with_fields(_Settings)
    def small(cls, **changes: object) -> StoreConfig:
        """Return settings for an embedded queue: 64 MiB log files and 500,000 index slots.

        A store that is created with them keeps messages until every group has acknowledged them (`RetentionPolicy.CONSUMED`).
        """
        sizes: dict[str, object] = {
            "retention_of_new_store": RetentionPolicy.CONSUMED,
            "mapped_file_size_commit_log": log_file_size(changes.get("max_size_bytes"), 64 * MIB),
            "mapped_file_size_consume_queue": 300_000 * 20,
            "max_hash_slot_num": 500_000,
            "max_index_num": 2_000_000,
        }
        return cls(**(sizes | changes))  # type: ignore[arg-type]

    @_with_fields(_Settings)
    def but(self, **changes: Any) -> StoreConfig:
        """Return a copy with other values."""
        return replace(self, **changes)

    @property
    def keeps_pending(self) -> bool:
        """Whether messages stay until they are acknowledged; known once the store is open."""
        return self.retention is RetentionPolicy.CONSUMED

    @property
    def is_sync_flush(self) -> bool:
        """Whether a put waits for the disk."""
        return self.flush_disk_type is FlushMode.SYNC

    @property
    def uses_ring(self) -> bool:
        """Whether appends go to a ring buffer before the files."""
        return self.uses_pool or (self.is_sync_flush and self.sync_flush_through_ring and self.broker_role is not Role.SLAVE)

    @property
    def uses_pool(self) -> bool:
        """Whether the write pool is used: enabled, not a slave, and with asynchronous flush."""
        return self.transient_store_pool_enable and self.broker_role is not Role.SLAVE and not self.is_sync_flush


def log_file_size(max_size_bytes: object, usual: int = FILE_SIZE_DEFAULT) -> int:
    """Return the size of the log files of a new store: the usual one, or less so that several fit the maximum size.

    >>> log_file_size(100 * MIB) // MIB
    25
    """
    if type(max_size_bytes) is not int:  # a wrong type is refused elsewhere
        return usual
    return max(MIB, min(usual, max_size_bytes // FILES_OF_MAX // MIB * MIB))


def clamped_ratios(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a broker's own file with its ratios clamped, as the broker does."""
    return {
        name: min(max(value, int(_RANGES[name][0])), int(_RANGES[name][1])) if name in _RATIOS else value
        for name, value in settings.items()
    }


def delay_times_ms(levels: str) -> list[int]:
    """Return the times of delay levels in milliseconds, level 1 first.

    >>> delay_times_ms("1s 5m 2h")
    [1000, 300000, 7200000]
    """
    times = []
    for level in levels.split():
        if level[-1] not in _UNITS_MS or not level[:-1].isdecimal() or len(level) > LEVEL_SIZE_MAX:
            raise InvalidSetting(f"delay level {level!r}: a number and one of s, m, h, d wanted")
        times.append(int(level[:-1]) * _UNITS_MS[level[-1]])
    return times
