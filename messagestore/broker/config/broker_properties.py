"""Read a broker's own properties file (`broker.conf`), so that a store is opened with the sizes it was written with.

The format is that of Java's `Properties.load`. Keys that matter to a store are returned under their names in `StoreConfig`, as
numbers, flags or text; all others as text under their own names (`docs/formats/config.md#brokerconf`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from storageio import Disk, Mode, StoreCorrupt

SIZE_MAX = 1 << 20
Value = int | bool | str

NUMBERS = {
    "mappedFileSizeCommitLog": "mapped_file_size_commit_log",
    "mappedFileSizeConsumeQueue": "mapped_file_size_consume_queue",
    "mappedFileSizeConsumeQueueExt": "mapped_file_size_consume_queue_ext",
    "mapperFileSizeBatchConsumeQueue": "mapper_file_size_batch_consume_queue",
    "mappedFileSizeTimerLog": "mapped_file_size_timer_log",
    "maxHashSlotNum": "max_hash_slot_num",
    "maxIndexNum": "max_index_num",
    "maxMessageSize": "max_message_size",
    "defaultTopicQueueNums": "default_topic_queue_nums",
    "flushIntervalCommitLog": "flush_interval_commit_log_ms",
    "flushCommitLogLeastPages": "flush_commit_log_least_pages",
    "flushCommitLogThoroughInterval": "flush_commit_log_thorough_interval_ms",
    "transientStorePoolSize": "transient_store_pool_size",
    "commitIntervalCommitLog": "commit_interval_commit_log_ms",
    "commitCommitLogLeastPages": "commit_commit_log_least_pages",
    "commitCommitLogThoroughInterval": "commit_commit_log_thorough_interval_ms",
    "flushIntervalConsumeQueue": "flush_interval_consume_queue_ms",
    "flushConsumeQueueLeastPages": "flush_consume_queue_least_pages",
    "flushConsumeQueueThoroughInterval": "flush_consume_queue_thorough_interval_ms",
    "syncFlushTimeout": "sync_flush_timeout_ms",
    "osPageCacheBusyTimeOutMills": "os_page_cache_busy_timeout_ms",
    "maxTransferBytesOnMessageInMemory": "max_transfer_bytes_on_message_in_memory",
    "maxTransferCountOnMessageInMemory": "max_transfer_count_on_message_in_memory",
    "maxTransferBytesOnMessageInDisk": "max_transfer_bytes_on_message_in_disk",
    "maxTransferCountOnMessageInDisk": "max_transfer_count_on_message_in_disk",
    "maxFilterMessageSize": "max_filter_message_size",
    "maxMsgsNumBatch": "max_msgs_num_batch",
    "fileReservedTime": "file_reserved_time_hours",
    "deleteFileBatchMax": "delete_file_batch_max",
    "cleanResourceInterval": "clean_resource_interval_ms",
    "diskMaxUsedSpaceRatio": "disk_max_used_space_ratio",
    "listenPort": "listen_port",
}
FLAGS = {
    "enabledAppendPropCRC": "enabled_append_prop_crc",
    "forceVerifyPropCRC": "force_verify_prop_crc",
    "messageIndexEnable": "message_index_enable",
    "messageIndexSafe": "message_index_safe",
    "transientStorePoolEnable": "transient_store_pool_enable",
    "cleanFileForciblyEnable": "clean_file_forcibly_enable",
    "checkCRCOnRecover": "check_crc_on_recover",
    "duplicationEnable": "duplication_enable",
    "enableConsumeQueueExt": "enable_consume_queue_ext",
    "enableLmq": "enable_lmq",
    "enableMultiDispatch": "enable_multi_dispatch",
    "autoCreateTopicEnable": "auto_create_topic_enable",
    "enableDLegerCommitLog": "enable_dledger_commit_log",
}
TEXTS = {
    "storePathRootDir": "store_path_root_dir",
    "storePathCommitLog": "store_path_commit_log",
    "messageDelayLevel": "message_delay_level",
    "deleteWhen": "delete_when",
    "storeType": "store_type",
    "brokerIP1": "broker_ip1",
    "brokerName": "broker_name",
    "brokerClusterName": "broker_cluster_name",
}
CHOICES = {
    "flushDiskType": ("flush_disk_type", ("ASYNC_FLUSH", "SYNC_FLUSH")),
    "brokerRole": ("broker_role", ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")),
}

_KEY = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.DOTALL)
_JOINT = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.|$)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


class _Line(NamedTuple):
    """A logical line and the byte offset where it begins."""

    text: str
    offset: int


def read_broker_properties(disk: Disk, path: str) -> dict[str, Value]:
    """Return the values of a file. Raises `StoreCorrupt` for a known key whose value has the wrong type."""
    with disk.open(path, Mode.READ) as file:
        data = file.read(0, SIZE_MAX + 1)
    if len(data) > SIZE_MAX:
        raise StoreCorrupt("no properties", file=path, offset=SIZE_MAX, expected=f"at most {SIZE_MAX} bytes", found="more")
    return parse_broker_properties(data, file=path)


def parse_broker_properties(data: bytes, *, file: str) -> dict[str, Value]:
    """Return the values in `data`; the last occurrence of a key counts.

    Raises `StoreCorrupt` for a known key whose value has the wrong type.
    """
    found: dict[str, Value] = {}
    for line in _lines(data):
        key, value = _pair(line.text)
        if key:
            name, typed = _typed(key, value, file, line.offset)
            found[name] = typed
    return found


def _lines(data: bytes) -> Iterator[_Line]:
    """Yield logical lines without comments and blank lines.

    A line that ends in an odd number of backslashes continues in the next one.
    """
    text = data.decode("latin-1")  # Java reads one character per byte
    offset = begin = 0
    pending = ""
    for part in re.split(r"(\r\n|\r|\n)", text):
        if part not in ("\r\n", "\r", "\n"):
            stripped = part.lstrip(" \t\f")
            is_skipped = not pending and (not stripped or stripped[0] in "#!")
            if not is_skipped:
                begin = begin if pending else offset
                goes_on = (len(stripped) - len(stripped.rstrip("\\"))) % 2 == 1
                pending += stripped[:-1] if goes_on else stripped
                if not goes_on:
                    yield _Line(pending, begin)
                    pending = ""
        offset += len(part)
    if pending:
        yield _Line(pending, begin)


def _pair(line: str) -> tuple[str, str]:
    """Return key and value. Blanks after a value, which Java keeps and then fails to parse, are dropped."""
    key = _KEY.match(line)
    assert key is not None  # the pattern also matches an empty string
    joint = _JOINT.match(line, key.end())
    assert joint is not None
    return _unescaped(key[0]), _unescaped(line[joint.end() :]).strip()


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_letter, text)


def _letter(found: re.Match[str]) -> str:
    letter = found[1]
    return chr(int(letter[1:], 16)) if len(letter) == 5 else _LETTERS.get(letter, letter)


def _typed(key: str, value: str, file: str, offset: int) -> tuple[str, Value]:
    """Return the `StoreConfig` name of a key and its typed value."""

    def refuse(expected: str) -> NoReturn:
        raise StoreCorrupt(f"property {key}", file=file, offset=offset, expected=expected, found=repr(value))

    if key in NUMBERS:
        if not _NUMBER.fullmatch(value):
            refuse("a whole number")
        return NUMBERS[key], int(value)
    if key in FLAGS:
        if value.lower() not in ("true", "false"):
            refuse("true or false")
        return FLAGS[key], value.lower() == "true"
    if key in CHOICES:
        name, choices = CHOICES[key]
        if value not in choices:
            refuse(" or ".join(choices))
        return name, value
    return TEXTS.get(key, key), value
