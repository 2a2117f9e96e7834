"""The limits of RabbitMQ on declarations and expirations; a value outside of them raises `InvalidMessage`."""

from __future__ import annotations

from typing import Any

from storageio import InvalidMessage

from ..declarations import DEFAULT, LAZY, QueueOptions

TTL_MS_MAX = (1 << 32) - 1  # RabbitMQ's MAX_EXPIRY_TIMER


def check_declaration(name: str, options: QueueOptions) -> None:
    """Check a queue's name and options."""
    if not name or len(name.encode("utf-8", "surrogatepass")) > 255 or "\0" in name:
        raise InvalidMessage(f"a queue's name has 1 to 255 bytes and no NUL, not {name!r}")
    if options.mode not in (DEFAULT, LAZY):
        raise InvalidMessage(f"a queue's mode is default or lazy, not {options.mode!r}")
    if not 0 <= options.max_priority <= 255:
        raise InvalidMessage(f"a queue's highest priority is 0 to 255, not {options.max_priority}")
    check_ttl(options.message_ttl_ms)


def ttl_ms_of(properties: dict[str, Any]) -> int | None:
    """Return the time to live that the property `expiration` sets, or None."""
    text = properties.get("expiration")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise InvalidMessage(f"expiration is milliseconds as decimal text, not {text!r}")
    return int(text)


def check_ttl(ttl_ms: int | None) -> None:
    """Check a time to live."""
    if ttl_ms is not None and not 0 <= ttl_ms <= TTL_MS_MAX:
        raise InvalidMessage(f"a time to live is 0 to {TTL_MS_MAX} ms, as in RabbitMQ, not {ttl_ms}")
