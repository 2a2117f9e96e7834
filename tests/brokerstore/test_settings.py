"""Every field of every settings class: what it accepts and rejects, and `config` arguments of a wrong type."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import brokerstore
from brokerstore import migrate
from brokerstore.file_import import import_file
from commitlog import Message
from messagestore import FlushMode, MessageStore, RetentionPolicy, Role, StoreConfig
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.recover import Recovery
from messagestore.repair.verification import verify_beside_log, verify_store
from rabbitstore import IndexSettings, RabbitSettings, RabbitStore, StoreSettings
from storageio import InvalidSetting, StoreError

INT = (1 << 31) - 1  # Java's `int`, in which RocketMQ keeps its numbers
LONG = (1 << 63) - 1
FLAG, TEXT = "flag", "text"
Kind = Any  # FLAG, TEXT, an enum, a settings class, or (minimum, maximum, other permitted type)
NONE, FRACTION, PAIR, WHOLE = "none", "fraction", "pair", "whole"

STORE_CONFIG: dict[str, Kind] = {
    "mapped_file_size_commit_log": (1, INT, NONE),
    "mapped_file_size_consume_queue": (1, INT, NONE),
    "max_hash_slot_num": (1, INT, NONE),
    "max_index_num": (1, INT, NONE),
    "store_path_commit_log": (TEXT, NONE),
    "max_message_size": (1, INT, WHOLE),
    "enabled_append_prop_crc": FLAG,
    "message_index_enable": FLAG,
    "broker_version": (TEXT, NONE),
    "flush_disk_type": FlushMode,
    "broker_role": Role,
    "store_host": TEXT,
    "default_topic_queue_nums": (1, INT, WHOLE),
    "message_delay_level": (TEXT, NONE),
    "deliver_delayed": FLAG,
    "flush_delay_offset_interval_ms": (1, INT, WHOLE),
    "transaction_timeout_ms": (0, INT, WHOLE),
    "transaction_check_max": (0, INT, WHOLE),
    "enable_lmq": FLAG,
    "enable_multi_dispatch": (FLAG, NONE),
    "max_lmq_consume_queue_num": (0, INT, WHOLE),
    "enable_consume_queue_ext": (FLAG, NONE),
    "mapped_file_size_consume_queue_ext": (1, INT, NONE),
    "mapper_file_size_batch_consume_queue": (1, INT, NONE),
    "mapped_file_size_timer_log": (1, INT, NONE),
    "flush_interval_commit_log_ms": (1, INT, WHOLE),
    "flush_commit_log_least_pages": (0, INT, WHOLE),
    "flush_commit_log_thorough_interval_ms": (0, INT, WHOLE),
    "transient_store_pool_enable": FLAG,
    "transient_store_pool_size": (2, INT, WHOLE),
    "transient_store_ring_size": (1, LONG, WHOLE),
    "sync_flush_through_ring": FLAG,
    "commit_interval_commit_log_ms": (1, INT, WHOLE),
    "commit_commit_log_least_pages": (0, INT, WHOLE),
    "commit_commit_log_thorough_interval_ms": (0, INT, WHOLE),
    "flush_interval_consume_queue_ms": (1, INT, WHOLE),
    "flush_consume_queue_least_pages": (0, INT, WHOLE),
    "flush_consume_queue_thorough_interval_ms": (0, INT, WHOLE),
    "flush_consumer_offset_interval_ms": (1, INT, WHOLE),
    "sync_flush_timeout_ms": (1, INT, WHOLE),
    "os_page_cache_busy_timeout_ms": (1, INT, WHOLE),
    "max_transfer_bytes_on_message_in_memory": (0, INT, WHOLE),
    "max_transfer_count_on_message_in_memory": (1, INT, WHOLE),
    "max_transfer_bytes_on_message_in_disk": (0, INT, WHOLE),
    "max_transfer_count_on_message_in_disk": (1, INT, WHOLE),
    "max_filter_message_size": (0, INT, WHOLE),
    "max_msgs_num_batch": (1, INT, WHOLE),
    "dedup_window_ms": (1, INT, WHOLE),
    "retention": (RetentionPolicy, NONE),
    "retention_of_new_store": RetentionPolicy,
    "max_size_bytes": (1, LONG, NONE),
    "file_reserved_time_hours": (0, INT, WHOLE),
    "delete_when": TEXT,
    "delete_file_batch_max": (1, INT, WHOLE),
    "clean_resource_interval_ms": (1, INT, WHOLE),
    "clean_file_forcibly_enable": FLAG,
    "disk_max_used_space_ratio": (10, 95, WHOLE),
    "disk_space_clean_forcibly_ratio": (30, 85, WHOLE),
    "disk_space_warning_ratio": (35, 90, WHOLE),
}
RABBIT_STORE: dict[str, Kind] = {
    "file_size_limit": (1, LONG, WHOLE),
    "write_buffer_bytes": (0, LONG, WHOLE),
    "garbage_fraction": (0, 1, FRACTION),
    "collect_above_files": (0, LONG, WHOLE),
    "file_garbage_fraction": (0, 1, FRACTION, NONE),
    "open_files_max": (1, LONG, WHOLE),
    "client_credit": (1, LONG, PAIR),
}
RABBIT_INDEX: dict[str, Kind] = {
    "segment_entries": (1, 16384, WHOLE),
    "journal_entries_max": (0, LONG, WHOLE),
    "journal_bytes_max": (0, LONG, WHOLE),
    "embed_below": (0, INT, WHOLE),
}
RABBIT: dict[str, Kind] = {
    "store": StoreSettings,
    "index": IndexSettings,
    "index_version": (1, 2, WHOLE),
    "flush_interval_ms": (1, INT, WHOLE),
    "memory_limit_bytes": (0, LONG, WHOLE),
    "io_batch_size": (1, LONG, WHOLE),
    "publisher_credit": (1, LONG, PAIR),
    "background": FLAG,
}
TABLES: list[tuple[type[Any], dict[str, Kind]]] = [
    (StoreConfig, STORE_CONFIG), (StoreSettings, RABBIT_STORE), (IndexSettings, RABBIT_INDEX), (RabbitSettings, RABBIT),
]  # fmt: skip
ALL_FIELDS = [
    pytest.param(made, name, kind, id=f"{made.__name__}.{name}") for made, table in TABLES for name, kind in table.items()
]
SAMPLES: list[Any] = [
    None, True, False, 1.5, math.nan, math.inf, "1", "true", "", b"1", [], [1, 1], {}, (), (1,), (1, 1, 1), ("1", "1"),
    object(), int, FlushMode.SYNC, Role.SLAVE, StoreConfig(), RabbitSettings(), StoreSettings(), IndexSettings(),
]  # fmt: skip


def _takes(kind: Kind, value: Any) -> bool:
    """Return whether a sample has a field's type; ranges and text values have tests of their own."""
    parts = kind if isinstance(kind, tuple) else (kind,)
    if value is None:
        return NONE in parts
    if isinstance(value, bool):
        return FLAG in parts
    if isinstance(value, str):
        return TEXT in parts
    if isinstance(value, float):
        return False  # the samples are outside of all ranges
    return isinstance(parts[0], type) and isinstance(value, parts[0])


def _is_number(kind: Kind) -> bool:
    return isinstance(kind, tuple) and isinstance(kind[0], int)


@pytest.mark.parametrize(("made", "table"), TABLES)
def test_every_field_is_in_the_table(made: type[Any], table: dict[str, Kind]) -> None:
    """A new field of a settings class must be added to this table too."""
    assert [field.name for field in fields(made)] == list(table)


@pytest.mark.parametrize(("made", "name", "kind"), ALL_FIELDS)
def test_a_value_of_a_wrong_type_is_refused_by_the_fields_name(made: type[Any], name: str, kind: Kind) -> None:
    """Every field rejects values of every other type, and NaN and infinity."""
    for value in SAMPLES:
        if not _takes(kind, value):
            with pytest.raises(InvalidSetting, match=f"^{name}\\b"):
                made(**{name: value})


@pytest.mark.parametrize(("made", "name", "kind"), [one for one in ALL_FIELDS if _is_number(one.values[2])])
def test_a_number_out_of_its_range_is_refused(made: type[Any], name: str, kind: Kind) -> None:
    """The minimum and the maximum are accepted, one less and one more are not."""
    least, greatest = kind[:2]

    def value_of(number: int) -> Any:
        return (number, number) if PAIR in kind else number

    for number in (least, greatest):
        assert getattr(made(**{name: value_of(number)}), name) == value_of(number)
    for number in (least - 1, greatest + 1, -(1 << 70), 1 << 70):
        with pytest.raises(InvalidSetting, match=f"^{name} is "):
            made(**{name: value_of(number)})


@pytest.mark.parametrize("mode", list(FlushMode))
def test_a_flush_mode_is_taken_by_its_names(mode: FlushMode) -> None:
    """Python's name, RocketMQ's name and the member are equal; SYNC given as text used to be asynchronous."""
    for given in (mode, mode.name, mode.value):
        config = StoreConfig(flush_disk_type=given)  # type: ignore[arg-type]
        assert config.flush_disk_type is mode
        assert config.is_sync_flush is (mode is FlushMode.SYNC)
        assert StoreConfig().but(flush_disk_type=given).flush_disk_type is mode


@pytest.mark.parametrize("role", list(Role))
def test_a_role_is_taken_by_its_name(role: Role) -> None:
    """A slave that is named by text takes no puts."""
    assert StoreConfig(broker_role=role.value).broker_role is role  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["sync", "SYNC ", "FLUSH", "", "ASYNC_MASTER"])
def test_an_unknown_flush_mode_is_refused(wrong: str) -> None:
    """Nothing is guessed; the error lists the valid names."""
    with pytest.raises(InvalidSetting, match=r"^flush_disk_type is .*FlushMode\.ASYNC or FlushMode\.SYNC"):
        StoreConfig(flush_disk_type=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("store_host", "localhost:10911"),
        ("store_host", "127.0.0.1"),
        ("store_path_commit_log", ""),
        ("store_path_commit_log", " , "),
        ("store_path_commit_log", "/a\0b"),
        ("delete_when", "24"),
        ("delete_when", "4;"),
        ("delete_when", "x;7"),
        ("delete_when", "-1"),
    ],
)
def test_an_invalid_string_value_is_refused(name: str, wrong: str) -> None:
    """Hosts, paths and hours are checked when they are set."""
    with pytest.raises(InvalidSetting, match=f"^{name}"):
        StoreConfig(**{name: wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("made", [one for one, _ in TABLES])
def test_an_unknown_setting_is_refused_by_name(made: type[Any]) -> None:
    """RocketMQ's own spelling is unknown too."""
    for name in ("flushDiskType", "no_such_setting"):
        with pytest.raises(TypeError, match=name):
            made(**{name: 1})


@pytest.mark.parametrize(("made", "name"), [(StoreSettings, "client_credit"), (RabbitSettings, "publisher_credit")])
def test_a_credit_that_would_block_for_ever_is_refused(made: type[Any], name: str) -> None:
    """A receiver that grants more at a time than a sender's initial credit would never grant any."""
    with pytest.raises(InvalidSetting, match=name):
        made(**{name: (2, 3)})


def test_a_wrong_setting_is_caught_as_any_of_three_errors() -> None:
    """It is a TypeError, a ValueError and an error of this library."""
    for kind in (TypeError, ValueError, StoreError):
        with pytest.raises(kind):
            StoreConfig(max_index_num="3")  # type: ignore[arg-type]


@cache
def _a_store(path: Path) -> str:
    """Return a small store, made once per path, which no call may change."""
    with MessageStore.open(path, config=StoreConfig.small(max_hash_slot_num=100, max_index_num=100)) as store:
        store.put(Message("T", b"x", queue_id=0))
    return str(path)


def _copy(path: Path, config: Any) -> None:
    with MessageStore.open(_a_store(path.parent / "store"), "r") as store:
        store.copy_topics(path / "made", ["T"], config)


def _rows(path: Path) -> str:
    (path / "rows.jsonl").write_text('{"topic": "T", "body": "x"}\n')
    return str(path / "rows.jsonl")


ENTRANCES: dict[str, Callable[[Path, Any], object]] = {
    "MessageStore.open": lambda path, config: MessageStore.open(path / "made", config=config),
    "brokerstore.open": lambda path, config: brokerstore.open(_a_store(path.parent / "store"), config=config),
    "copy_topics": _copy,
    "import_file": lambda path, config: import_file(_rows(path), str(path / "made"), config=config),
    "import_rabbit": lambda path, config: migrate.import_rabbit(str(path), str(path / "made"), config=config),
    "export_to_rabbit": lambda path, config: migrate.export_to_rabbit(
        _a_store(path.parent / "store"), str(path / "made"), config=config
    ),
    "verify_store": lambda path, config: verify_store(_a_store(path.parent / "store"), config),
    "verify_beside_log": lambda path, config: verify_beside_log(_a_store(path.parent / "store"), config),
    "rebuild_store": lambda path, config: rebuild_store(_a_store(path.parent / "store"), config=config),
    "Recovery": lambda path, config: Recovery(_a_store(path.parent / "store"), config=config),
    "RabbitStore.open": lambda path, config: RabbitStore.open(path / "made", settings=config),
}


@pytest.mark.parametrize(
    ("entrance", "config", "call"),
    [
        (MessageStore.open, StoreConfig.small(), "config=config"),
        (brokerstore.open, StoreConfig.small(), "config=config"),
        (RabbitStore.open, RabbitSettings(), "settings=settings"),
    ],
)
def test_settings_given_as_the_mode_are_refused_in_one_line(tmp_path: Path, entrance: Any, config: Any, call: str) -> None:
    """The error has the right call, and no settings."""
    path = tmp_path / "made"
    if entrance is brokerstore.open:
        _a_store(path)
    with pytest.raises(InvalidSetting) as raised:
        entrance(path, config)
    assert str(raised.value) == f"the second argument is the mode, not a {type(config).__name__}; call open(path, {call})"
    with pytest.raises(ValueError, match=r"^mode 'w' is not one of a, r, r\+, x$"):
        entrance(path, "w")


@pytest.mark.parametrize("wrong", [{}, "SYNC", StoreConfig], ids=["dictionary", "text", "class"])
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_a_config_of_a_wrong_type_is_refused_before_a_folder_is_made(tmp_path: Path, entrance: str, wrong: Any) -> None:
    """An empty dictionary is not a configuration, so nothing is created or changed."""
    with pytest.raises(InvalidSetting, match=r"^(config|settings) is "):
        ENTRANCES[entrance](tmp_path, wrong)
    assert not (tmp_path / "made").exists()
