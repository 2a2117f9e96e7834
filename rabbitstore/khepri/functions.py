"""The functions of Erlang's library that a transaction calls (docs/formats/rabbitmq-metadata.md#transactions).

A transaction has the code of RabbitMQ's own functions with it.  Those of the library are named only: each that servers use is
here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from ..format.terms import FALSE, TRUE, Atom, key_term, map_key
from .execution import (
    Interpreter,
    Native,
    RaisedError,
    arity_of,
    failed,
    is_function,
    is_list,
    is_number,
    is_tuple,
    order,
    same,
)

OK = Atom("ok")
_BOOLEANS = {True: TRUE, False: FALSE}


def boolean(is_true: bool) -> Atom:
    """Return `true` or `false`."""
    return _BOOLEANS[bool(is_true)]


def library(interpreter: Interpreter) -> dict[tuple[str, str, int], Native]:
    """Return the functions of the library by module, name and arity; some call a function that they get."""

    def call(function: Any, *arguments: Any) -> Any:
        return interpreter.call(function, arguments)

    return _ERLANG | _tests() | _lists(call) | _maps(call) | _sets(call) | _dict(call)


def _raise(kind: str, reason: Any) -> Any:
    raise RaisedError(kind, reason)


def _element(number: int, term: Any) -> Any:
    if not is_tuple(term) or number < 1:
        raise failed("badarg")
    return term[number - 1]


def _numbers(left: Any, right: Any, compute: Callable[[Any, Any], Any]) -> Any:
    if not is_number(left) or not is_number(right):
        raise failed("badarith")
    return compute(left, right)


def _append(left: Any, right: Any) -> Any:
    if not isinstance(left, list) or not isinstance(right, list):
        raise failed("badarg")
    return left + right


def _subtract(left: list[Any], right: list[Any]) -> list[Any]:
    rest = list(left)
    for one in right:
        if (at := _position(one, rest)) is not None:
            del rest[at]
    return rest


def _position(term: Any, terms: list[Any]) -> int | None:
    return next((at for at, one in enumerate(terms) if same(one, term)), None)


def _without(term: Any, terms: list[Any]) -> list[Any]:
    return _subtract(terms, [term])


_ERLANG: dict[tuple[str, str, int], Native] = {
    ("erlang", "error", 1): lambda reason: _raise("error", reason),
    ("erlang", "error", 2): lambda reason, _arguments: _raise("error", reason),
    ("erlang", "exit", 1): lambda reason: _raise("exit", reason),
    ("erlang", "throw", 1): lambda reason: _raise("throw", reason),
    ("erlang", "raise", 3): lambda kind, reason, _trace: _raise(str(kind), reason),
    ("erlang", "+", 2): lambda left, right: _numbers(left, right, lambda a, b: a + b),
    ("erlang", "-", 2): lambda left, right: _numbers(left, right, lambda a, b: a - b),
    ("erlang", "*", 2): lambda left, right: _numbers(left, right, lambda a, b: a * b),
    ("erlang", "min", 2): lambda left, right: min(left, right, key=order),
    ("erlang", "max", 2): lambda left, right: max(left, right, key=order),
    ("erlang", "++", 2): _append,
    ("erlang", "--", 2): _subtract,
    ("erlang", "hd", 1): lambda term: term[0],
    ("erlang", "tl", 1): lambda term: term[1:],
    ("erlang", "length", 1): lambda term: len(term) if isinstance(term, list) else _raise("error", Atom("badarg")),
    ("erlang", "element", 2): _element,
    ("erlang", "setelement", 3): lambda number, term, value: (*term[: number - 1], value, *term[number:]),
    ("erlang", "tuple_size", 1): lambda term: len(term) if is_tuple(term) else _raise("error", Atom("badarg")),
    ("erlang", "map_size", 1): lambda term: len(term) if isinstance(term, dict) else _raise("error", (Atom("badmap"), term)),
    ("erlang", "byte_size", 1): lambda term: len(term) if isinstance(term, bytes) else _raise("error", Atom("badarg")),
    ("erlang", "map_get", 2): lambda key, term: term[map_key(key)],
    ("erlang", "not", 1): lambda term: boolean(term == FALSE),
    ("erlang", "and", 2): lambda left, right: boolean(TRUE == left == right),
    ("erlang", "or", 2): lambda left, right: boolean(TRUE in (left, right)),
    ("erlang", "atom_to_binary", 1): lambda term: str(term).encode(),
    ("erlang", "atom_to_binary", 2): lambda term, _encoding: str(term).encode(),
    ("erlang", "iolist_to_binary", 1): lambda term: _bytes_of(term),
    ("erlang", "list_to_tuple", 1): tuple,
    ("erlang", "tuple_to_list", 1): list,
    ("logger", "allow", 2): lambda _level, _module: FALSE,
    ("logger", "macro_log", 5): lambda *_: OK,
    ("io_lib", "format", 2): lambda _form, _arguments: [],
}  # fmt: skip


def _bytes_of(term: Any) -> bytes:
    if isinstance(term, bytes):
        return term
    return b"".join(bytes([one]) if isinstance(one, int) else _bytes_of(one) for one in term)


def _tests() -> dict[tuple[str, str, int], Native]:
    """Return the built-in functions whose value is a boolean."""
    tests: dict[tuple[str, int], Callable[..., bool]] = {
        ("=:=", 2): same,
        ("=/=", 2): lambda left, right: not same(left, right),
        ("==", 2): lambda left, right: bool(left == right),
        ("/=", 2): lambda left, right: bool(left != right),
        ("<", 2): lambda left, right: order(left) < order(right),
        (">", 2): lambda left, right: order(left) > order(right),
        ("=<", 2): lambda left, right: order(left) <= order(right),
        (">=", 2): lambda left, right: order(left) >= order(right),
        ("is_atom", 1): lambda term: isinstance(term, Atom),
        ("is_binary", 1): lambda term: isinstance(term, bytes),
        ("is_integer", 1): lambda term: isinstance(term, int),
        ("is_list", 1): is_list,
        ("is_map", 1): lambda term: isinstance(term, dict),
        ("is_tuple", 1): is_tuple,
        ("is_map_key", 2): lambda key, term: map_key(key) in term,
        ("is_function", 1): is_function,
        ("is_function", 2): lambda term, arity: is_function(term) and arity_of(term) == arity,
    }
    return {("erlang", name, arity): _as_boolean(test) for (name, arity), test in tests.items()}


def _as_boolean(test: Callable[..., bool]) -> Native:
    return lambda *values: boolean(test(*values))


Call = Callable[..., Any]


def _key_find(key: Any, at: int, terms: list[Any]) -> Any:
    return next((term for term in terms if is_tuple(term) and len(term) >= at and same(term[at - 1], key)), None)


def _key_sort(at: int, terms: list[Any]) -> list[Any]:
    return sorted(terms, key=lambda term: order(term[at - 1]))


def _unique(terms: list[Any]) -> list[Any]:
    found: list[Any] = []
    for term in sorted(terms, key=order):
        if not found or not same(found[-1], term):
            found.append(term)
    return found


def _flatten(term: Any) -> list[Any]:
    return [one for part in term for one in (_flatten(part) if isinstance(part, list) else [part])]


def _key_store(key: Any, at: int, terms: list[Any], new: Any) -> list[Any]:
    old = _key_find(key, at, terms)
    if old is None:
        return [*terms, new]
    position = next(number for number, term in enumerate(terms) if term is old)
    return [*terms[:position], new, *terms[position + 1 :]]


def _lists(call: Call) -> dict[tuple[str, str, int], Native]:
    def is_true(function: Any, *arguments: Any) -> bool:
        return bool(call(function, *arguments) == TRUE)

    found: dict[tuple[str, int], Native] = {
        ("map", 2): lambda function, terms: [call(function, term) for term in terms],
        ("foreach", 2): lambda function, terms: [OK, *(call(function, term) for term in terms)][0],
        ("foldl", 3): lambda function, start, terms: reduce(lambda value, term: call(function, term, value), terms, start),
        ("foldr", 3): lambda function, start, terms: reduce(
            lambda value, term: call(function, term, value), terms[::-1], start
        ),
        ("filter", 2): lambda function, terms: [term for term in terms if is_true(function, term)],
        ("filtermap", 2): lambda function, terms: _filter_map(lambda term: call(function, term), terms),
        ("partition", 2): lambda function, terms: _partition(lambda term: is_true(function, term), terms),
        ("flatmap", 2): lambda function, terms: [one for term in terms for one in call(function, term)],
        ("any", 2): lambda function, terms: boolean(any(is_true(function, term) for term in terms)),
        ("all", 2): lambda function, terms: boolean(all(is_true(function, term) for term in terms)),
        ("append", 1): lambda terms: [one for part in terms for one in part],
        ("append", 2): _append,
        ("subtract", 2): _subtract,
        ("reverse", 1): lambda terms: terms[::-1],
        ("reverse", 2): lambda terms, tail: terms[::-1] + tail,
        ("member", 2): lambda term, terms: boolean(_position(term, terms) is not None),
        ("delete", 2): _without,
        ("sublist", 2): lambda terms, count: terms[:count],
        ("last", 1): lambda terms: terms[-1],
        ("droplast", 1): lambda terms: terms[:-1],
        ("nth", 2): lambda number, terms: terms[number - 1],
        ("prefix", 2): lambda start, terms: boolean(terms[: len(start)] == start),
        ("flatten", 1): _flatten,
        ("sort", 1): lambda terms: sorted(terms, key=order),
        ("usort", 1): _unique,
        ("keysort", 2): _key_sort,
        ("keyfind", 3): lambda key, at, terms: FALSE if (term := _key_find(key, at, terms)) is None else term,
        ("keymember", 3): lambda key, at, terms: boolean(_key_find(key, at, terms) is not None),
        ("keystore", 4): _key_store,
        ("keyreplace", 4): lambda key, at, terms, new: (
            terms if _key_find(key, at, terms) is None else _key_store(key, at, terms, new)
        ),
        ("keydelete", 3): lambda key, at, terms: (
            terms if (term := _key_find(key, at, terms)) is None else [one for one in terms if one is not term]
        ),
        ("zip", 2): lambda left, right: list(zip(left, right, strict=True)),
        ("unzip", 1): lambda pairs: ([left for left, _ in pairs], [right for _, right in pairs]),
        ("zipwith", 3): lambda function, left, right: [call(function, *pair) for pair in zip(left, right, strict=True)],
    }
    return {("lists", name, arity): function for (name, arity), function in found.items()}


def _partition(is_true: Callable[[Any], bool], terms: list[Any]) -> tuple[list[Any], list[Any]]:
    chosen: list[Any] = []
    rest: list[Any] = []
    for term in terms:
        (chosen if is_true(term) else rest).append(term)
    return chosen, rest


def _filter_map(call: Callable[[Any], Any], terms: list[Any]) -> list[Any]:
    """Keep a term for `true`, and take the new one of `{true, Term}`."""
    found = []
    for term in terms:
        answer = call(term)
        if answer != FALSE:
            found.append(answer[1] if isinstance(answer, tuple) else term)
    return found


def _items(term: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Return keys and values of a map."""
    return [(key_term(key), value) for key, value in term.items()]


def _map_of(items: Any) -> dict[Any, Any]:
    return {map_key(key): value for key, value in items}


def _absent(*keys: Any) -> Callable[[Any], bool]:
    known = {map_key(key) for key in keys}
    return lambda key: key not in known


def _update_with(call: Call, key: Any, function: Any, term: dict[Any, Any], *start: Any) -> dict[Any, Any]:
    name = map_key(key)
    if name not in term and not start:
        raise failed("badkey", key)
    return term | {name: call(function, term[name]) if name in term else start[0]}


def _merge_with(call: Call, combine: Any, left: dict[Any, Any], right: dict[Any, Any]) -> dict[Any, Any]:
    both = {key: call(combine, key_term(key), left[key], right[key]) for key in left.keys() & right.keys()}
    return left | right | both


def _maps(call: Call) -> dict[tuple[str, str, int], Native]:
    found: dict[tuple[str, int], Native] = {
        ("new", 0): dict,
        ("get", 2): lambda key, term: term[map_key(key)],
        ("get", 3): lambda key, term, default: term.get(map_key(key), default),
        ("find", 2): lambda key, term: (OK, term[map_key(key)]) if map_key(key) in term else Atom("error"),
        ("is_key", 2): lambda key, term: boolean(map_key(key) in term),
        ("put", 3): lambda key, value, term: term | {map_key(key): value},
        ("remove", 2): lambda key, term: {one: value for one, value in term.items() if _absent(key)(one)},
        ("without", 2): lambda keys, term: {one: value for one, value in term.items() if _absent(*keys)(one)},
        ("with", 2): lambda keys, term: {one: value for one, value in term.items() if not _absent(*keys)(one)},
        ("keys", 1): lambda term: [key for key, _ in _items(term)],
        ("values", 1): lambda term: list(term.values()),
        ("size", 1): len,
        ("to_list", 1): _items,
        ("from_list", 1): _map_of,
        ("merge", 2): lambda left, right: left | right,
        ("merge_with", 3): lambda combine, left, right: _merge_with(call, combine, left, right),
        ("map", 2): lambda function, term: {key: call(function, key_term(key), value) for key, value in term.items()},
        ("fold", 3): lambda function, start, term: reduce(
            lambda value, item: call(function, *item, value), _items(term), start
        ),
        ("foreach", 2): lambda function, term: [OK, *(call(function, *item) for item in _items(term))][0],
        ("filter", 2): lambda function, term: {
            key: value for key, value in term.items() if call(function, key_term(key), value) == TRUE
        },
        ("update_with", 3): lambda key, function, term: _update_with(call, key, function, term),
        ("update_with", 4): lambda key, function, start, term: _update_with(call, key, function, term, start),
    }
    return {("maps", name, arity): function for (name, arity), function in found.items()}


def _sets(call: Call) -> dict[tuple[str, str, int], Native]:
    """Return the functions of sets of version 2, which are maps from each element to an empty list."""

    def set_of(terms: list[Any]) -> dict[Any, Any]:
        return {map_key(term): [] for term in terms}

    found: dict[tuple[str, int], Native] = {
        ("new", 0): dict,
        ("new", 1): lambda _version: {},
        ("from_list", 1): set_of,
        ("from_list", 2): lambda terms, _version: set_of(terms),
        ("add_element", 2): lambda term, terms: terms | set_of([term]),
        ("del_element", 2): lambda term, terms: {one: [] for one in terms if _absent(term)(one)},
        ("is_element", 2): lambda term, terms: boolean(map_key(term) in terms),
        ("is_empty", 1): lambda terms: boolean(not terms),
        ("size", 1): len,
        ("to_list", 1): lambda terms: [key_term(one) for one in terms],
        ("union", 2): lambda left, right: left | right,
        ("union", 1): lambda sets: reduce(lambda left, right: left | right, sets, {}),
        ("subtract", 2): lambda left, right: {one: [] for one in left if one not in right},
        ("intersection", 2): lambda left, right: {one: [] for one in left if one in right},
        ("fold", 3): lambda function, start, terms: reduce(
            lambda value, one: call(function, key_term(one), value), terms, start
        ),
        ("filter", 2): lambda function, terms: {one: [] for one in terms if call(function, key_term(one)) == TRUE},
    }
    return {("sets", name, arity): function for (name, arity), function in found.items()}


def _dict(call: Call) -> dict[tuple[str, str, int], Native]:
    """Return the functions of dictionaries, which no row of the tree has: a map stands for one."""
    found: dict[tuple[str, int], Native] = {
        ("new", 0): dict,
        ("merge", 3): lambda combine, left, right: _merge_with(call, combine, left, right),
        ("update", 4): lambda key, function, start, term: _update_with(call, key, function, term, start),
        ("store", 3): lambda key, value, term: term | {map_key(key): value},
        ("find", 2): lambda key, term: (OK, term[map_key(key)]) if map_key(key) in term else Atom("error"),
        ("to_list", 1): _items,
        ("from_list", 1): _map_of,
        ("fold", 3): lambda function, start, term: reduce(
            lambda value, item: call(function, *item, value), _items(term), start
        ),
    }
    return {("dict", name, arity): function for (name, arity), function in found.items()}
