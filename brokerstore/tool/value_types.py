"""What an option's value may be: numbers that the formats have room for, times, and texts that a store can hold."""

from __future__ import annotations

import click

from .output import time_ms

I32_MAX = (1 << 31) - 1
I64_MAX = (1 << 63) - 1

OFFSET = click.IntRange(0, I64_MAX)  # physical offsets, queue offsets, sequence numbers
POSITIVE = click.IntRange(1, I32_MAX)  # file sizes, slots and items too: Java's int
QUEUE_ID = click.IntRange(0, I32_MAX)


def MOMENT(text: str) -> int:  # noqa: N802  (an option's type, like the others)
    """Milliseconds since 1970, or an ISO 8601 time, which is UTC unless it says otherwise; within 64 bits."""
    try:
        found = time_ms(text)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(f"{text!r} is neither milliseconds nor an ISO 8601 time") from error
    if found > I64_MAX:
        raise click.BadParameter(f"{text!r} is beyond 64 bits")
    return found


def TEXT(text: str) -> str:  # noqa: N802
    """What UTF-8 can write: a topic, a key, a property."""
    if not is_utf8(text):
        raise click.BadParameter(f"{text!r} is not UTF-8")
    return text


def is_utf8(text: str) -> bool:
    """Whether no byte of the command line had to be escaped.

    >>> is_utf8("тема"), is_utf8("\\udcff")
    (True, False)
    """
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
