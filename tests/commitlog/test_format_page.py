"""The format page against the constants, and its example against the kernels."""

from __future__ import annotations

import re
from pathlib import Path

from commitlog import PutStatus, layout
from tests.builds import World

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "commitlog.md").read_text()
ROW = re.compile(r"^\| (\d+) \| (\d+) \| (\w+) \| (.*?) ?\|$", re.M)
LAYOUT_ROW = re.compile(r"^    (\d+) +(\d+) +(\w+)(?: +(.*))?$", re.M)
CONSTANTS = {
    "size": layout.SIZE_AT,
    "magic": layout.MAGIC_AT,
    "body_crc": layout.BODY_CRC_AT,
    "queue_id": layout.QUEUE_ID_AT,
    "flag": layout.FLAG_AT,
    "queue_offset": layout.QUEUE_OFFSET_AT,
    "physical_offset": layout.PHYSICAL_OFFSET_AT,
    "sys_flag": layout.SYS_FLAG_AT,
    "born_timestamp_ms": layout.BORN_TIME_AT,
    "born_host": layout.BORN_HOST_AT,
    "store_timestamp_ms": layout.STORE_TIME_AT,
    "store_host": layout.STORE_HOST_AT,
    "reconsume_times": layout.RECONSUME_AT,
    "prepared_transaction_offset": layout.PREPARED_AT,
    "body_size": layout.BODY_SIZE_AT,
    "topic_size": layout.BODY_AT,
    "properties_size": layout.BODY_AT + layout.TOPIC_SIZE_SIZE,
}


def test_the_tables_of_page_and_module_are_the_same() -> None:
    """Offset, size, name and meaning of each field are equal, and there is no gap."""
    rows = ROW.findall(PAGE)
    in_module = [tuple(part.strip() for part in row) for row in LAYOUT_ROW.findall(layout.__doc__ or "")]
    meant = [(at, size, name, meaning.replace("see below", "see SysFlag")) for at, size, name, meaning in rows]
    assert meant == in_module
    assert {name: int(at) for at, _, name, _ in rows} == CONSTANTS
    ends = [int(at) + int(size) for at, size, _, _ in rows]
    assert ends == [int(at) for at, _, _, _ in rows[1:]] + [layout.RECORD_SIZE_MIN]


def test_the_numbers_in_the_text_are_the_constants() -> None:
    """They are magics, limits and flags."""
    for magic in (layout.MAGIC_V1, layout.MAGIC_V2, layout.MAGIC_BLANK):
        assert f"`{magic & 0xFFFFFFFF:08x}`" in PAGE
    for number in (layout.FILE_SIZE_DEFAULT, layout.BODY_SIZE_MAX_DEFAULT, layout.RECORD_ALLOWANCE, layout.PROPERTIES_SIZE_MAX):
        assert f"{number:,}" in PAGE
    flags = (
        layout.COMPRESSED, layout.MULTI_TAGS, layout.TRANSACTION_MASK, layout.TRANSACTION_PREPARED, layout.TRANSACTION_COMMIT,
        layout.TRANSACTION_ROLLBACK, layout.BORN_HOST_V6, layout.STORE_HOST_V6, layout.NEED_UNWRAP, layout.INNER_BATCH,
        layout.COMPRESSION_MASK,
    )  # fmt: skip
    for flag in flags:
        assert f"{flag:#x} " in PAGE
    assert f"last {layout.CRC_SIZE} bytes" in PAGE
    assert f"Size: {layout.RECORD_SIZE_MIN} and" in PAGE
    assert f"; {layout.HOST_GROWTH} more for each IPv6 host" in PAGE
    assert len(PAGE.splitlines()) <= 120


def test_the_example_is_a_record(world: World) -> None:
    """Its bytes decode to the values on the page."""
    lines = re.findall(r"^    ([0-9a-f ]+?)(?:   .*)?$", PAGE, re.M)
    data = bytes.fromhex("".join(lines).replace(" ", ""))
    assert len(data) == 114
    message = world.module("commitlog._scan_cy").Reader(data).decode(0)
    assert (message.topic, message.body, message.tags, message.queue_id) == ("test-topic", b"body", "abc", 0)
    assert (message.born_host, message.store_host) == ("127.0.0.1:123", "127.0.0.1:124")
    assert (message.born_timestamp_ms, message.store_timestamp_ms) == (1700000000000, 1700000000123)
    assert f"`{message.message_id}`" in PAGE


def test_a_status_is_shown_by_its_name() -> None:
    """The quick start printed "0" for a successful put."""
    assert (str(PutStatus.PUT_OK), f"{PutStatus.MESSAGE_ILLEGAL}") == ("PutStatus.PUT_OK", "PutStatus.MESSAGE_ILLEGAL")
    assert (PutStatus.PUT_OK, PutStatus.MESSAGE_ILLEGAL) == (0, 6), "RocketMQ's numbers"
