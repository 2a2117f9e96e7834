"""Checks of the settings classes: each field is checked against its annotation and its range when an object is made.

A settings class is a frozen dataclass whose `__post_init__` calls `check_settings`.  A field is annotated as `bool`, `int`,
`float`, `str`, an enum, a tuple of numbers or another settings class, each optionally `| None`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from .errors import InvalidSetting

I32_MAX = (1 << 31) - 1
I64_MAX = (1 << 63) - 1
Range = tuple[float, float]
_ANY: Range = (0, I64_MAX)
_WORDS = {bool: "True or False", str: "text", NoneType: "None"}
_Settings = TypeVar("_Settings")


def check_settings(settings: Any, ranges: Mapping[str, Range]) -> None:
    """Check every field of a settings object that is being made, and convert the names of enum members to the members.

    `ranges` has the minimum and maximum of numbers; the default is 0 to 2**63 - 1.  Raises `InvalidSetting`, which names the
    field, its value and the expected values.
    """
    for name, kinds in _kinds(type(settings)).items():  # type: ignore[arg-type]  # mypy: a class has no hash
        value, allowed = getattr(settings, name), ranges.get(name, _ANY)
        found = NotImplemented
        for kind in kinds:
            found = _fit(value, kind, allowed) if found is NotImplemented else found
        if found is NotImplemented:
            raise InvalidSetting(f"{name} is {value!r}; expected {' or '.join(_expected(kind, allowed) for kind in kinds)}")
        if found is not value:
            object.__setattr__(settings, name, found)


def settings_or_default(given: _Settings | None, kind: type[_Settings], name: str) -> _Settings:
    """Return the given settings, or the defaults for None.  Raises `InvalidSetting` for an object of another type."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise InvalidSetting(f"{name} is {given!r}; expected a {kind.__name__} or None")
    return given


def check_mode(mode: object, modes: Sequence[str], call: str) -> None:
    """Raise an error unless `mode` is one of `modes`: `InvalidSetting` with the right `call` for an object that is not text."""
    if not isinstance(mode, str):
        raise InvalidSetting(f"the second argument is the mode, not a {type(mode).__name__}; call {call}")
    if mode not in modes:
        raise ValueError(f"mode {mode!r} is not one of {', '.join(modes)}")


@cache
def _kinds(settings: type[Any]) -> dict[str, tuple[Any, ...]]:
    """Return the types that each field may have."""
    hints = get_type_hints(settings, settings.__post_init__.__globals__)
    kinds = {field.name: hints[field.name] for field in fields(settings)}
    return {name: (kind,) if get_origin(kind) is tuple else get_args(kind) or (kind,) for name, kind in kinds.items()}


def _fit(value: Any, kind: Any, allowed: Range) -> Any:
    """Return the value as a field of this type stores it; NotImplemented if it does not fit."""
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        is_tuple = isinstance(value, tuple) and len(value) == len(parts)
        fits = is_tuple and all(_fit(*one, allowed) is not NotImplemented for one in zip(value, parts, strict=True))
    elif kind in (int, float):
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        is_number = is_whole or (kind is float and isinstance(value, float) and math.isfinite(value))
        fits = is_number and allowed[0] <= value <= allowed[1]
    elif issubclass(kind, Enum) and isinstance(value, str):
        return next((member for member in kind if value in (member.name, member.value)), NotImplemented)
    else:
        fits = isinstance(value, kind)
    return value if fits else NotImplemented


def _expected(kind: Any, allowed: Range) -> str:
    """Describe the values that a field of this type accepts."""
    numbers = f"from {allowed[0]} to {allowed[1]}"
    if get_origin(kind) is tuple:
        return f"a tuple of {len(get_args(kind))} numbers {numbers}"
    if kind in (int, float):
        return f"a {'whole ' if kind is int else ''}number {numbers}"
    if issubclass(kind, Enum):
        return " or ".join(f"{kind.__name__}.{member.name}" for member in kind)
    return _WORDS.get(kind, f"a {kind.__name__}")


def check_type(name: str, value: object, kind: type) -> None:
    """Raise `TypeError` with the name of an argument that has another type."""
    if not isinstance(value, kind):
        raise TypeError(f"{name}: expected {kind.__name__}, got {type(value).__name__}")


def check_names(name: str, values: Any) -> None:
    """Raise `TypeError` unless an argument is None or a collection of text; text itself would be one of its letters."""
    if values is None:
        return
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{name}: expected a set of str")
