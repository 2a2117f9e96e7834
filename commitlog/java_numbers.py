"""Properties that RocketMQ parses as numbers while it checks a record.

RocketMQ treats a record with other text as invalid, and its recovery would end the log there.  Such a message is rejected
before it is written (docs/formats/put-rules.md#number-properties).
"""

from __future__ import annotations

import re

from storageio import InvalidMessage

from .topic_names import SCHEDULE_TOPIC

_NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)


def is_java_number(text: str, bits: int) -> bool:
    """Return whether Java's parser accepts `text` as an integer of that many bits.

    >>> is_java_number("+7", 32), is_java_number(" 7", 32), is_java_number("40000", 16)
    (True, False, False)
    """
    if len(text) > 24 or not _NUMBER.fullmatch(text):
        return False
    return -(1 << bits - 1) <= int(text) < 1 << bits - 1


def check_number_properties(topic: str, properties: bytes) -> None:
    """Raise `InvalidMessage` if a number property has other text (docs/formats/put-rules.md#number-properties)."""
    is_scheduled = topic == SCHEDULE_TOPIC and b"DELAY" in properties
    if not is_scheduled and b"INNER_" not in properties:
        return
    from ._message_cy import decode_properties  # the kernel imports this module

    pairs = decode_properties(properties)
    expected = {"DELAY": 32} if is_scheduled else {}
    if "INNER_BASE" in pairs and "INNER_NUM" in pairs:
        expected |= {"INNER_BASE": 64, "INNER_NUM": 16}
    for name, bits in expected.items():
        if name in pairs and not is_java_number(pairs[name], bits):
            raise InvalidMessage(f"property {name} is {pairs[name]!r}: a number of {bits} bits wanted")
