"""A message as JSON; the keys are fixed."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from commitlog import StoredMessage


def message_json(message: StoredMessage) -> dict[str, Any]:
    """Every field; hosts as `ip:port`, IPv6 in brackets; properties with RocketMQ's checksum property."""
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size": message.size,
        "magic": f"{message.magic & 0xFFFFFFFF:08x}",
        "body_crc": message.body_crc,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_timestamp_ms": message.born_timestamp_ms,
        "born_host": message.born_host,
        "store_timestamp_ms": message.store_timestamp_ms,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "message_id": message.message_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.all_properties,
        "body_base64": b64encode(message.body).decode("ascii"),
    }
