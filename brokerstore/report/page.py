"""The templates, which escape every value, and the page of one moment that `report` writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from storageio import needs_extra

from ..tool.escapes import printable, printable_lines
from ..tool.output import size_text, time_text
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
_FINDING = re.compile(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+) \|$")


class Meaning(NamedTuple):
    """What the page of findings tells about a kind: its meaning, what the broker does with it, and what to do."""

    broker: str
    meaning: str
    effect: str
    advice: str


@cache
def _meanings() -> dict[str, dict[str, Meaning]]:
    """Read the tables of the page of findings, by broker and kind."""
    found: dict[str, dict[str, Meaning]] = {}
    broker = ""
    for line in resources.files(__package__).joinpath("findings.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            broker = line[3:]
        elif (row := _FINDING.match(line)) is not None:
            cells = (re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", cell) for cell in row.groups()[1:])
            found.setdefault(broker, {})[row[1]] = Meaning(broker, *cells)
    return found


def meanings(folder_kind: str) -> Callable[[str], list[Meaning]]:
    """Return a function that finds what a kind of finding means in this kind of folder: one meaning, or none."""
    of_broker = _meanings().get("RabbitMQ" if folder_kind == "rabbitmq" else "RocketMQ", {})
    return lambda kind: [of_broker[kind]] if kind in of_broker else []


@cache
def environment() -> Any:
    """Return the environment of all templates; raise `MissingExtra` without jinja2."""
    with needs_extra("report"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup, escape

    made = Environment(
        loader=PackageLoader("brokerstore.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_plain,
    )  # fmt: skip
    made.filters |= {
        "size": size_text, "time": time_text, "plain": str,
        "within": lambda file, folder: str(file).removeprefix(folder.rstrip("/") + "/"),
        "breakable": lambda value: Markup(" ").join(map(Markup("<wbr>").join, map(_pieces, printable(str(value)).split(" ")))),
        "cells": lambda row: list(row.values()),
        "exact": lambda text: Markup("".join(map(_exact, str(escape(text))))),
        "lines": lambda text: Markup(escape(printable_lines(text))),
    }  # fmt: skip
    made.globals["kind_text"] = lambda kind: NAMES.get(kind, f"{kind} folder")
    return made


def render(facts: Facts, made_ms: int) -> str:
    """Return the whole page; raise `MissingExtra` without jinja2."""
    template = environment().get_template("report.html")
    made = datetime.fromtimestamp(made_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    uses = [name for name in PARTS if name == "live" or any(getattr(file, name) for file in facts.files)]
    text: str = template.render(
        facts=facts, pictures=list(pictures(facts)), made=made, problems_max=PROBLEMS_SHOWN, queues_max=QUEUES_SHOWN,
        tables=_tables(facts, uses), uses=uses, about=ABOUT, meanings=meanings(facts.kind),
    )  # fmt: skip
    return text


def _tables(facts: Facts, uses: list[str]) -> list[tuple[str, str, list[str], list[list[Any]]]]:
    """Return the key, title, headers and rows of each table."""
    lags = [[one["group"], f"{one['topic']}/{one['queue_id']}", "none" if one["offset"] is None else one["offset"],
             one["max_offset"], one["lag"]] for one in facts.lags]  # fmt: skip
    pop = [[*(one[name] for name in ("group", "topic", "ready", "unacknowledged")),
            time_text(one["next_revive_ms"]) if one["next_revive_ms"] else ""] for one in facts.pop]  # fmt: skip
    dues = ("next_due_ms", "last_due_ms")
    timers = [[one["topic"], one["timers"], *(time_text(one[due]) for due in dues)] for one in facts.timers]
    queues = [[one["queue"], f"{one['messages']:,}", size_text(one["bytes"])] for one in facts.queues]
    files = [[one.name, *(size_text(getattr(one, use)) for use in ("size_bytes", *uses))] for one in facts.files]
    return [
        ("groups", "Next offset and lag of each consumer group", ["Group", "Queue", "Next", "End", "Lag"], lags),
        ("pop", "POP consumers: messages before groups", ["Group", "Topic", "Ready", "Unacknowledged", "Next revived"], pop),
        ("timers", "Pending timers of each topic", ["Topic", "Timers", "Next due (UTC)", "Last due (UTC)"], timers),
        ("queues", "Messages and size of each queue, largest first", ["Queue", "Messages", "Size"], queues),
        ("files", "Use of each file", ["File", "Size", *(use.capitalize() for use in uses)], files),
        (
            "keys",
            "Most frequent keys of messages",
            ["Key", "Messages"],
            [[key, f"{count:,}"] for key, count in facts.keys[:SHOWN]],
        ),
    ]


def _pieces(text: str) -> list[str]:
    """Split a text where a browser may break it: after punctuation of names, and where a word is longer than a phone is wide.

    >>> _pieces("a/b_c"), _pieces("0" * 50)
    (['a/', 'b_', 'c'], ['000000000000000000000000', '000000000000000000000000', '00'])
    """
    return re.findall(rf"[^/_.:%-]{{1,{PIECE_MAX}}}[/_.:%-]?|[/_.:%-]", text) or [text]


def _exact(character: str) -> str:
    """Return a character of a form's value as itself, or as a reference, so that a form sends back what it was given."""
    if character.isprintable() or not character.isascii():
        return character if character.isprintable() or character.isspace() else printable(character)
    return f"&#{ord(character)};" if ord(character) and ord(character) != 127 else printable(character)


def _plain(value: object) -> object:
    """Return charts unchanged, and text without control characters and direction marks."""
    return value if hasattr(value, "__html__") else printable(str(value))
