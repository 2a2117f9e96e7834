"""The page; every value goes through a template that escapes it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib import resources

from storageio import needs_extra

from ..tool.escapes import printable
from .facts import SHOWN, Facts
from .pictures import PARTS, pictures

PROBLEMS_SHOWN = 200
QUEUES_SHOWN = 200
PIECE_MAX = 24  # characters without a place to break
NAMES = {
    "rocketmq": "RocketMQ store",
    "rocketmq-commitlog": "RocketMQ commit log",
    "rabbitmq": "RabbitMQ folder",
}  # other kinds are shown by their key
ABOUT = {
    "expired": "bytes of a file whose last message is 72 hours older than the newest one; a broker deletes it by default.",
    "garbage": "records that no queue refers to.",
    "blank": "the end of a file, too small for the next message.",
    "damaged": "bytes that are not valid records; see Problems.",
}


def render(facts: Facts, made_ms: int) -> str:
    """Return the whole page; raise `MissingExtra` without jinja2 or matplotlib."""
    with needs_extra("report"):
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup

    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_plain)
    environment.filters["size"] = _size
    environment.filters["time"] = _time
    environment.filters["count"] = "{:,}".format
    environment.filters["within"] = lambda file, folder: str(file).removeprefix(folder.rstrip("/") + "/")
    environment.filters["breakable"] = lambda value: Markup("<wbr>").join(_pieces(printable(str(value))))
    shown = [(title, what, Markup(svg)) for title, what, svg in pictures(facts)]
    made = datetime.fromtimestamp(made_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return environment.from_string(template).render(
        facts=facts, pictures=shown, made=made, problems_max=PROBLEMS_SHOWN, queues_max=QUEUES_SHOWN, keys_max=SHOWN,
        parts=_parts(facts), about=ABOUT, names=NAMES,
    )  # fmt: skip


def _pieces(text: str) -> list[str]:
    """Split a text where a browser may break it: after punctuation of names, and where a word is longer than a phone is wide.

    >>> _pieces("a/b_c"), _pieces("0" * 50)
    (['a/', 'b_', 'c'], ['000000000000000000000000', '000000000000000000000000', '00'])
    """
    return re.findall(rf"[^/_.:%-]{{1,{PIECE_MAX}}}[/_.:%-]?|[/_.:%-]", text) or [text]


def _parts(facts: Facts) -> list[str]:
    """Return the uses that some file has bytes of, and always the live ones."""
    return [name for name in PARTS if name == "live" or any(getattr(file, name) for file in facts.files)]


def _size(size_bytes: int) -> str:
    from ..tool.output import size_text

    return size_text(size_bytes)


def _time(timestamp_ms: int) -> str:
    from ..tool.output import time_text

    return time_text(timestamp_ms)


def _plain(value: object) -> object:
    """Return charts unchanged, and text without control characters and direction marks."""
    return value if hasattr(value, "__html__") else printable(str(value))
