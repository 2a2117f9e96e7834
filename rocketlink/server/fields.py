"""Fields of requests, which are texts, and the error for what they ask in vain."""

from __future__ import annotations

from messagestore.write.admission import CLIENT_NAME

DIGITS_MAX = 20
GROUP_SIZE_MAX = 255
KEPT_MAX = 64 << 20  # bytes of requests that wait for a message
KEPT_OVERHEAD = 600  # bytes of a request beside its fields


class Refused(Exception):
    """A request that is answered with an error code."""

    def __init__(self, code: int, remark: str) -> None:
        """Create it with the answer's code and text."""
        super().__init__(remark)
        self.code = code


class WrongField(ValueError):
    """A field of a request that is missing or no number."""


def number(fields: dict[str, str], name: str, default: int | None = 0) -> int:
    """Return a number; `default` if the field is absent or empty, which None does not allow."""
    text = fields.get(name)
    if (text is None or text == "") and default is not None:
        return default
    try:
        if text is None or len(text) > DIGITS_MAX:
            raise ValueError
        return int(text)
    except ValueError as error:
        raise WrongField(f"{name}: {(text or '')[:40]!r} is no number") from error


def kept_size(fields: dict[str, str]) -> int:
    """Return about how many bytes a request without its body takes while it waits."""
    return KEPT_OVERHEAD + sum(len(name) + len(text) for name, text in fields.items())


def is_group_name(name: str) -> bool:
    """Return whether a broker would make a group of this name."""
    return len(name) <= GROUP_SIZE_MAX and CLIENT_NAME.fullmatch(name) is not None
