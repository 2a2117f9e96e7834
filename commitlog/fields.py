"""The fields of a stored message: their names, types and order in the tool's JSON, in columns, in row filters and in Spark.

A field that is a number needs only a row here.  One of another kind also needs its kind in `_rows_cy` and `_json_cy`, and an
attribute of `StoredMessage` if it has none.
"""

from __future__ import annotations

from typing import NamedTuple

from .layout import (
    BODY_CRC_AT,
    BORN_HOST_AT,
    BORN_TIME_AT,
    FLAG_AT,
    MAGIC_AT,
    PHYSICAL_OFFSET_AT,
    PREPARED_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECONSUME_AT,
    SIZE_AT,
    STORE_HOST_AT,
    STORE_TIME_AT,
    SYS_FLAG_AT,
)

# The kinds of fields; a kernel writes each in its way.
INT = 0  # 4 bytes
LONG = 1  # 8 bytes
HEX = 2  # 4 bytes, shown as 8 hex digits
HOST = 3  # address and port
ID = 4  # store host and physical offset in hex
TOPIC = 5
TAGS = 6  # the property TAGS, missing if there is none
KEYS = 7  # the words of the property KEYS
PROPERTIES = 8
BODY = 9
NUMBER_KINDS = (INT, LONG, HEX)


class Field(NamedTuple):
    """One field; `at` is the offset of a number or host in a record with IPv4 hosts."""

    name: str
    kind: int
    at: int = -1

    @property
    def json_name(self) -> str:
        """The key in JSON, where a body is base64 text."""
        return f"{self.name}_base64" if self.kind == BODY else self.name


FIELDS = (
    Field("topic", TOPIC),
    Field("queue_id", INT, QUEUE_ID_AT),
    Field("queue_offset", LONG, QUEUE_OFFSET_AT),
    Field("physical_offset", LONG, PHYSICAL_OFFSET_AT),
    Field("size", INT, SIZE_AT),
    Field("magic", HEX, MAGIC_AT),
    Field("body_crc", INT, BODY_CRC_AT),
    Field("flag", INT, FLAG_AT),
    Field("sys_flag", INT, SYS_FLAG_AT),
    Field("born_timestamp_ms", LONG, BORN_TIME_AT),
    Field("born_host", HOST, BORN_HOST_AT),
    Field("store_timestamp_ms", LONG, STORE_TIME_AT),
    Field("store_host", HOST, STORE_HOST_AT),
    Field("reconsume_times", INT, RECONSUME_AT),
    Field("prepared_transaction_offset", LONG, PREPARED_AT),
    Field("message_id", ID),
    Field("tags", TAGS),
    Field("keys", KEYS),
    Field("properties", PROPERTIES),
    Field("body", BODY),
)
COLUMNS = tuple(field.name for field in FIELDS)
NUMBERS = tuple(sorted((field for field in FIELDS if field.kind in NUMBER_KINDS), key=lambda field: field.at))
