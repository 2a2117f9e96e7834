"""The page: everything is put in through a template that escapes it."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import resources

from storageio import MissingExtra

from .facts import SHOWN, Facts
from .pictures import pictures

PROBLEMS_SHOWN = 200
QUEUES_SHOWN = 200


def render(facts: Facts, made_ms: int) -> str:
    """The whole page.  Raises `MissingExtra` without jinja2 or matplotlib."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ModuleNotFoundError as error:
        raise MissingExtra("this needs the 'report' extra: pip install 'brokerstore[report]'") from error
    from markupsafe import Markup

    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["size"] = _size
    environment.filters["plain"] = _plain
    shown = [(title, what, Markup(svg)) for title, what, svg in pictures(facts)]
    made = datetime.fromtimestamp(made_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return environment.from_string(template).render(
        facts=facts, pictures=shown, made=made, problems_max=PROBLEMS_SHOWN, queues_max=QUEUES_SHOWN, keys_max=SHOWN
    )


def _size(size_bytes: int) -> str:
    from ..tool.output import size_text

    return size_text(size_bytes)


def _plain(text: object) -> str:
    """Without characters that change direction or control anything."""
    from ..tool.output import printable

    return printable(str(text))
