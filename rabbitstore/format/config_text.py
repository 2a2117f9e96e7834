"""Parse and write a queue's `config`: one Erlang term as text (docs/formats/rabbitmq-quorum.md#folder).

The server writes and reads a byte for each character up to U+00FF, and escapes the others.  It breaks long strings into parts.
Maps, tuples, lists, atoms, strings, binaries and numbers become the values of `format.terms`; anything else is kept as text.
"""

from __future__ import annotations

import re
from typing import Any

from storageio import StoreCorrupt

from .terms import Atom, is_damaged_name

# Names that the server writes: of keys, modules, functions and settings
NAMES = {
    "at_least_once", "at_most_once", "await_condition_timeout", "become_leader", "become_leader_handler",
    "broadcast_time", "cluster_name", "dead_letter_handler", "dead_letter_publish", "delivery_limit", "drop_head",
    "exchange", "format_ra_event", "friendly_name", "initial_members", "install_snap_rpc_timeout", "khepri_machine",
    "log_init_args", "max_bytes", "max_checkpoints", "max_length", "membership", "metrics_key",
    "min_checkpoint_interval", "overflow_strategy", "queue_resource", "ra_event_formatter", "rabbit_fifo",
    "rabbit_quorum_queue", "rabbit_stream_coordinator", "rabbitmq_metadata", "reject_publish", "resource",
    "single_active_consumer_on", "snapshot_interval", "store_id", "tick_timeout", "undefined",
}  # fmt: skip
_DEPTH_MAX = 32
_SPACE = re.compile(r"(?:\s+|%[^\n]*)*")
_ATOM = re.compile(r"[a-z][A-Za-z0-9_@]*")
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_PART = r'"((?:[^"\\]|\\.)*)"'
_STRING = re.compile(rf"{_PART}(?:\s*{_PART})*", re.DOTALL)
_PARTS = re.compile(_PART, re.DOTALL)
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+(?:[eE][-+]?[0-9]+)?)?")
_OTHER = re.compile(r"(?:fun\s[^,}\])]*|#?[A-Za-z]*<[^<>]*>)")
_BYTES = re.compile(r"<<\s*([0-9,\s]*)>>")
_ESCAPE = re.compile(r"\\(x\{([0-9a-fA-F]{1,6})\}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "e": "\x1b", "b": "\b", "f": "\f", "v": "\v", "s": " ", "d": "\x7f"}


def parse_config(data: bytes, file: str) -> dict[Any, Any]:
    """Return the map; raise `StoreCorrupt` for other text."""
    term = parse_term(data, file)
    if not isinstance(term, dict):
        raise StoreCorrupt("not a map", file=file, offset=0, expected="a map", found=data[:40].decode("latin-1"))
    return term


def parse_term(data: bytes, file: str) -> Any:
    """Return the term of a text with one; raise `StoreCorrupt` for other text."""
    text = data.decode("latin-1")
    try:
        term, at = _term(text, 0, 0)
        if text[_skip(text, at)] != ".":
            raise ValueError(f"{text[at : at + 20]!r} at character {at}")
    except (ValueError, IndexError) as error:
        found = "a text that ends before it" if isinstance(error, IndexError) else str(error)
        raise StoreCorrupt("not an Erlang term", file=file, offset=0, expected="a map", found=found) from error
    return term


def machine_config(config: dict[Any, Any]) -> dict[Any, Any]:
    """Return the settings at the queue's declaration; an empty map when `config` lacks them."""
    machine = config.get(Atom("machine"))
    found = machine[2] if isinstance(machine, tuple) and len(machine) == 3 else None
    return found if isinstance(found, dict) else {}


def queue_name(config: dict[Any, Any]) -> tuple[str, str] | None:
    """Return the virtual host and the name of the queue; None when `config` lacks them."""
    resource = machine_config(config).get(Atom("queue_resource"))
    if not isinstance(resource, tuple) or len(resource) != 4 or not isinstance(resource[1], bytes):
        return None
    vhost, name = resource[1], resource[3]
    return vhost.decode("utf-8", "replace"), name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def damaged_name(term: Any) -> tuple[str, str] | None:
    """Return the first name in a term that one damaged byte makes of one that the server writes, and that name.

    The byte may be the separator between a name and what follows it.
    """
    if isinstance(term, Atom):
        known = () if term in NAMES else (name for name in NAMES if is_damaged_name(term, name) or term.startswith(name))
        return next(((str(term), name) for name in known), None)
    parts = [*term.keys(), *term.values()] if isinstance(term, dict) else term if isinstance(term, tuple | list) else ()
    return next((found for found in map(damaged_name, parts) if found is not None), None)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _term(text: str, at: int, depth: int) -> tuple[Any, int]:
    at = _skip(text, at)
    if depth > _DEPTH_MAX:
        raise ValueError("nested too deep")
    if text.startswith("#{", at):
        return _map(text, at + 2, depth)
    if text.startswith("<<", at):
        return _binary(text, at)
    if text[at] in "{[":
        values, at = _sequence(text, at + 1, "}" if text[at] == "{" else "]", depth)
        return (tuple(values) if text[at - 1] == "}" else values), at
    return _scalar(text, at)


def _scalar(text: str, at: int) -> tuple[Any, int]:
    for pattern, convert in (
        (_OTHER, lambda match: match[0]),
        (_ATOM, lambda match: Atom(match[0])),
        (_QUOTED, lambda match: Atom(_plain(match[1]))),
        (_STRING, lambda match: _joined(match[0])),
        (_NUMBER, lambda match: float(match[0]) if match[1] else int(match[0])),
    ):
        match = pattern.match(text, at)
        if match is not None:
            return convert(match), match.end()
    raise ValueError(f"{text[at : at + 20]!r} at character {at}")


def _sequence(text: str, at: int, end: str, depth: int) -> tuple[list[Any], int]:
    values: list[Any] = []
    at = _skip(text, at)
    while text[at] != end:
        value, at = _term(text, at, depth + 1)
        values.append(value)
        at = _skip(text, at)
        if text[at] == "," or (text[at] == "|" and end == "]"):
            at = _skip(text, at + 1)
        elif text[at] != end:
            raise ValueError(f"{text[at]!r} at character {at}")
    return values, at + 1


def _map(text: str, at: int, depth: int) -> tuple[dict[Any, Any], int]:
    found: dict[Any, Any] = {}
    at = _skip(text, at)
    while text[at] != "}":
        key, at = _term(text, at, depth + 1)
        at = _skip(text, at)
        if not text.startswith("=>", at):
            raise ValueError(f"{text[at]!r} at character {at}")
        found[repr(key) if isinstance(key, list | dict | tuple) else key], at = _term(text, at + 2, depth + 1)
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
        elif text[at] != "}":
            raise ValueError(f"{text[at]!r} at character {at}")
    return found, at + 1


def _binary(text: str, at: int) -> tuple[bytes, int]:
    numbers = _BYTES.match(text, at)
    if numbers is not None:
        return bytes(int(number) for number in numbers[1].split(",") if number.strip()), numbers.end()
    match = _STRING.match(text, at + 2)
    if match is None:
        raise ValueError(f"{text[at : at + 20]!r} at character {at}")
    end = text.index(">>", match.end())
    kind = text[match.end() : end].strip()
    if kind not in ("", "/utf8"):
        raise ValueError(f"{kind[:20]!r} at character {match.end()}")
    encoding = "utf-8" if kind else "latin-1"
    return _joined(match[0]).encode(encoding, "replace"), end + 2


def _joined(parts: str) -> str:
    """Return the text of adjacent strings."""
    return "".join(_plain(match[1]) for match in _PARTS.finditer(parts))


def _plain(text: str) -> str:
    return _ESCAPE.sub(_unescape, text)


def _unescape(match: re.Match[str]) -> str:
    if match[2]:
        return chr(min(int(match[2], 16), 0x10FFFF))
    return chr(int(match[1], 8)) if match[1][0] in "01234567" else _ESCAPES.get(match[1], match[1])


def format_config(config: dict[Any, Any]) -> bytes:
    """Return the text of a map that `parse_config` returned."""
    return (_text_of(config) + ".\n").encode("ascii")


def _text_of(term: Any) -> str:
    if isinstance(term, Atom):
        return "'" + _escaped(term, "'") + "'"
    if isinstance(term, str):
        return '"' + _escaped(term, '"') + '"'
    if isinstance(term, bytes):
        return "<<" + ",".join(map(str, term)) + ">>"
    if isinstance(term, dict):
        return "#{" + ",".join(f"{_text_of(key)} => {_text_of(value)}" for key, value in term.items()) + "}"
    if isinstance(term, tuple | list):
        start, end = "{}" if isinstance(term, tuple) else "[]"
        return start + ",".join(map(_text_of, term)) + end
    return str(term)


def _escaped(text: str, quote: str) -> str:
    is_plain = {character for character in map(chr, range(32, 127)) if character not in ("\\", quote)}
    return "".join(character if character in is_plain else f"\\x{{{ord(character):X}}}" for character in text)
