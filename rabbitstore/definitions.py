"""The declarations of a node in the form that a server imports (docs/formats/rabbitmq-metadata.md#definitions)."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from storageio import REAL_DISK, Disk, UnknownStore
from storebytes.finding import Finding

from .format.layout import TABLE_ENDINGS
from .format.terms import FALSE, TRUE, CharList, key_term, map_key
from .khepri.store import read_metadata, rows
from .read.metadata import metadata_problems
from .read.mnesia import BAD_METADATA, BINDINGS, EXCHANGES, QUEUES, TAGS, VHOSTS, has_tables, read_tables

MNESIA, KHEPRI = "mnesia", "khepri"
NAMES = (
    "users", "vhosts", "permissions", "topic_permissions", "parameters", "global_parameters", "policies", "queues", "exchanges",
    "bindings",
)  # fmt: skip
COUNTED = ("vhosts", "exchanges", "queues", "bindings", "users", "policies")
_POLICY, _INTERNAL = "policy", "internal"  # components of parameters; names of a cluster's own parameters begin so
_OWN_COMPONENTS = ("exchange-delete-in-progress", "imported_definition_hash_value")
_TYPES = {"rabbit_classic_queue": "classic", "rabbit_quorum_queue": "quorum", "rabbit_stream_queue": "stream"}
_MD5 = "rabbit_password_hashing_md5"
_NOTHING = ("undefined", "null")
_PASSWORD_ALGORITHM = 4
_QUEUE_SIZE_MIN, _QUEUE_WITH_TYPE, _EXCHANGE_SIZE_MIN = 6, 18, 7


@dataclass
class Definitions:
    """What a node declares.

    `content` is what `rabbitmqctl import_definitions` takes.  `problems` has what is damaged, so that declarations may be
    missing; `notes` has what a kill leaves, too.
    """

    content: dict[str, list[dict[str, Any]]]
    metadata: str
    problems: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Return the number of declarations of the usual kinds."""
        return {name: len(self.content[name]) for name in COUNTED}

    def of_vhost(self, vhost: str) -> Definitions:
        """Return those of one virtual host, and the users."""
        content = {
            name: [one for one in each if one.get("name" if name == "vhosts" else "vhost", vhost) == vhost]
            for name, each in self.content.items()
        }
        return Definitions(content | {"global_parameters": []}, self.metadata, self.problems, self.notes)


def read_definitions(path: str, disk: Disk = REAL_DISK) -> Definitions:
    """Return the declarations of a node that is not running, from its data folder.

    Damage is a problem of the result, and does not stop the reading.  Raise `UnknownStore` for a folder without metadata, such
    as that of one virtual host.
    """
    problems: list[Finding] = []
    notes: list[Finding] = []
    names = {entry.name for entry in disk.list(path)}
    if has_tables(names):
        metadata = MNESIA
        found = metadata_problems(path, disk)
        notes = [one for one in found if one.kind == "missing_vhost"]  # a kill while one is deleted leaves its folder
        problems += [
            one for one in found if one not in notes and (one.kind != BAD_METADATA or one.file.endswith(TABLE_ENDINGS))
        ]
        problems += [
            Finding(name, 0, BAD_METADATA, "a file that every server has", "none; its declarations are missing")
            for name in (f"{table}.DCD" for table in TAGS)
            if name not in names and all(name != one.file for one in found)
        ]
        records = [row for rows_of in read_tables(path, disk, problems).values() for row in rows_of.values()]
    else:
        metadata = KHEPRI
        tree = read_metadata(path, problems, disk)
        if tree is None and not problems:
            raise UnknownStore(f"{path}: no metadata; expected the data folder of a node, with its tables or coordination/")
        records = list(rows(tree or []))
    content = _Records(records, problems).content()
    if not content["vhosts"]:
        problems.append(Finding(f"{VHOSTS}.DCD", 0, "missing_vhost", "at least one virtual host", "none"))
    return Definitions(content, metadata, list(dict.fromkeys(problems)), notes)


Convert = Callable[[tuple[Any, ...]], dict[str, Any] | None]


class _Records:
    """The records of a node by their tag, those of Mnesia and of Khepri alike."""

    def __init__(self, records: Iterable[tuple[Any, ...]], problems: list[Finding]) -> None:
        self._by_tag: dict[str, list[tuple[Any, ...]]] = {}
        self._problems = problems
        for record in records:
            if record and isinstance(record[0], str):
                row = record[1] if record[0] == "route" else record
                self._by_tag.setdefault(str(row[0]), []).append(row)

    def content(self) -> dict[str, list[dict[str, Any]]]:
        parameters = self._converted("runtime_parameters", _parameter)
        of_vhosts = [one for one in parameters if "component" in one]
        found = {
            "users": self._converted("internal_user", _user),
            "vhosts": self._converted("vhost", _vhost),
            "permissions": self._converted("user_permission", _permission),
            "topic_permissions": self._converted("topic_permission", _topic_permission),
            "parameters": [one for one in of_vhosts if one["component"] not in (_POLICY, *_OWN_COMPONENTS)],
            "global_parameters": [
                one for one in parameters if "component" not in one and not one["name"].startswith(_INTERNAL)
            ],
            "policies": [_policy(one) for one in of_vhosts if one["component"] == _POLICY],
            "queues": self._converted("amqqueue", _queue),
            "exchanges": self._converted("exchange", _exchange),
            "bindings": self._bindings(),
        }
        return {name: sorted(found[name], key=_sort_key) for name in NAMES}

    def _converted(self, tag: str, convert: Convert) -> list[dict[str, Any]]:
        rows_of = self._by_tag.get(tag, [])
        return [made for row in rows_of if (made := self._convert(row, convert)) is not None]

    def _convert(self, row: tuple[Any, ...], convert: Convert) -> dict[str, Any] | None:
        """Convert a record; one of another form is a problem."""
        try:
            return convert(row)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            table = next((table for table, known in TAGS.items() if known == row[0]), BINDINGS)
            found = f"{row!r}"[:80] + f" ({error})"
            self._problems.append(Finding(f"{table}.DCD", 0, BAD_METADATA, f"a row {row[0]}", found))
            return None

    def _bindings(self) -> list[dict[str, Any]]:
        """Return the bindings; without those of queues that a start drops, and of what is no longer declared.

        A server stops an import at a binding whose ends are not there.
        """
        known = {key: self._resources(tag) for key, tag in (("exchange", "exchange"), ("queue", "amqqueue"))}
        queues = [row for row in self._by_tag.get("amqqueue", []) if len(row) >= _QUEUE_SIZE_MIN]
        dropped = {_key(row[1]) for row in queues if not _is_kept(row)}
        found = []
        for row in self._by_tag.get("binding", []):
            made = self._convert(row, _binding)
            if made is None or (row[3][2] == "queue" and _key(row[3]) in dropped):
                continue
            missing = [end for end in (row[1], row[3]) if _key(end) not in known[str(end[2])] and not _is_standard(end)]
            if missing:
                kind, name = str(missing[0][2]), _text(missing[0][3])
                expected = f"{kind} {name!r} of a binding in virtual host {made['vhost']!r}"
                table = QUEUES if kind == "queue" else EXCHANGES
                self._problems.append(
                    Finding(f"{table}.DCD", 0, "missing_declaration", expected, "none; the binding is left out")
                )
            else:
                found.append(made)
        return found

    def _resources(self, tag: str) -> set[Any]:
        return {_key(row[1]) for row in self._by_tag.get(tag, []) if len(row) > 1}


def _sort_key(one: dict[str, Any]) -> str:
    names = ("vhost", "user", "name", "component", "exchange", "source", "destination_type", "destination", "routing_key")
    return repr([one.get(name, "") for name in names] + [repr(one.get("arguments"))])


def _key(resource: Any) -> Any:
    """Return what tells an exchange or a queue from others of its kind; its name may be no text."""
    return map_key(resource[1:]) if isinstance(resource, tuple) else None


def _resource(term: Any) -> tuple[str, str]:
    return _text(term[1]), _text(term[3])


def _is_standard(resource: Any) -> bool:
    """Return whether a resource is an exchange that every server makes itself."""
    return bool(resource[2] == "exchange" and resource[3].startswith(b"amq."))


def _text(term: Any) -> str:
    if not isinstance(term, bytes) or isinstance(term, CharList):
        raise TypeError(f"{term!r} is not text"[:60])
    return term.decode("utf-8")


def _is_true(term: Any) -> bool:
    if term not in (TRUE, FALSE):
        raise ValueError(f"{term!r} is not a boolean"[:60])
    return bool(term == TRUE)


def _user(row: tuple[Any, ...]) -> dict[str, Any]:
    """Convert `{internal_user, Name, Hash, Tags, Algorithm}`, in 3.10 with `Limits`; the tags of 3.8 are a text."""
    tags = [str(tag) for tag in row[3]]
    algorithm = str(row[_PASSWORD_ALGORITHM]) if len(row) > _PASSWORD_ALGORITHM else _MD5
    found = {
        "name": _text(row[1]),
        "password_hash": base64.b64encode(row[2]).decode(),
        "hashing_algorithm": _MD5 if algorithm in _NOTHING else algorithm,
    }
    if len(row) <= _PASSWORD_ALGORITHM + 1:
        return found | {"tags": ",".join(map(_tag_text, tags))}
    return found | {"tags": tags, "limits": _object(row[5])}


def _tag_text(tag: str) -> str:
    """Return a tag as text: the server makes its atom of the bytes of the text."""
    try:
        return tag.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return tag


def _vhost(row: tuple[Any, ...]) -> dict[str, Any]:
    """Convert `{vhost, Name, Limits, Metadata}`; before 3.8 there is no metadata."""
    metadata = _object(row[3]) if len(row) > 3 else {}
    known = {name: value for name, value in metadata.items() if value is not None}
    return {"name": _text(row[1]), "limits": _object(row[2]), "metadata": known}


def _permission(row: tuple[Any, ...]) -> dict[str, Any]:
    """Convert `{user_permission, {user_vhost, User, Vhost}, {permission, Configure, Write, Read}}`."""
    (_tag, user, vhost), (_name, configure, write, read) = row[1], row[2]
    names = ("user", "vhost", "configure", "write", "read")
    return dict(zip(names, map(_text, (user, vhost, configure, write, read)), strict=True))


def _topic_permission(row: tuple[Any, ...]) -> dict[str, Any]:
    """Convert `{topic_permission, {topic_permission_key, UserVhost, Exchange}, {permission, _, Write, Read}}`."""
    (_tag, (_user_vhost, user, vhost), exchange), (_name, _configure, write, read) = row[1], row[2]
    names = ("user", "vhost", "exchange", "write", "read")
    return dict(zip(names, map(_text, (user, vhost, exchange, write, read)), strict=True))


def _parameter(row: tuple[Any, ...]) -> dict[str, Any]:
    """Convert `{runtime_parameters, {Vhost, Component, Name}, Value}`; a key of the cluster is an atom."""
    key, value = row[1], _value(row[2])
    if not isinstance(key, tuple):
        return {"name": str(key), "value": value}
    vhost, component, name = map(_text, key)
    return {"vhost": vhost, "component": component, "name": name, "value": {} if value == [] else value}


def _policy(parameter: dict[str, Any]) -> dict[str, Any]:
    value = parameter["value"]
    return {
        "vhost": parameter["vhost"],
        "name": parameter["name"],
        "pattern": value.get("pattern"),
        "apply-to": value.get("apply-to", "all"),
        "priority": value.get("priority", 0),
        "definition": value.get("definition") or {},
    }


def _queue(row: tuple[Any, ...]) -> dict[str, Any] | None:
    """Convert `{amqqueue, Name, Durable, AutoDelete, Owner, Arguments, ..}`, since 3.8 with the type as the last but one."""
    if len(row) < _QUEUE_SIZE_MIN:
        raise ValueError(f"{len(row)} fields")
    if not _is_kept(row):
        return None
    kind = str(row[-2]) if len(row) >= _QUEUE_WITH_TYPE else "classic"
    return {
        **_name_of(row[1]),
        "type": _TYPES.get(kind, kind) if kind.startswith("rabbit_") else "classic",
        "durable": True,
        "auto_delete": _is_true(row[3]),
        "arguments": _table(row[5]),
    }


def _is_kept(row: tuple[Any, ...]) -> bool:
    """Return whether a queue is there after a start: it is durable and no connection owns it."""
    return bool(row[2] == TRUE and row[4] == "none")


def _exchange(row: tuple[Any, ...]) -> dict[str, Any] | None:
    """Convert `{exchange, Name, Type, Durable, AutoDelete, Internal, Arguments, ..}`; a server makes its own itself."""
    if len(row) < _EXCHANGE_SIZE_MIN:
        raise ValueError(f"{len(row)} fields")
    name = _name_of(row[1])
    if _is_true(row[5]) or not name["name"] or name["name"].startswith("amq."):
        return None
    return {
        **name,
        "type": str(row[2]),
        "durable": _is_true(row[3]),
        "auto_delete": _is_true(row[4]),
        "arguments": _table(row[6]),
    }


def _binding(row: tuple[Any, ...]) -> dict[str, Any] | None:
    """Convert `{binding, Source, Key, Destination, Arguments}`; a queue's binding to the default exchange is implied."""
    source, destination = row[1], row[3]
    if not source[3]:
        return None
    return {
        "source": _text(source[3]),
        "vhost": _text(source[1]),
        "destination": _text(destination[3]),
        "destination_type": str(destination[2]),
        "routing_key": _text(row[2]),
        "arguments": _table(row[4]),
    }


def _name_of(resource: Any) -> dict[str, Any]:
    """Convert `{resource, Vhost, Kind, Name}`."""
    vhost, name = _resource(resource)
    return {"name": name, "vhost": vhost}


def _table(table: Any) -> dict[str, Any]:
    """Convert the arguments of AMQP 0-9-1: a list of `{Name, Type, Value}`."""
    return {_text(name): _field(str(kind), value) for name, kind, value in table}


def _field(kind: str, value: Any) -> Any:
    if kind == "array":
        return [_field(str(each), one) for each, one in value]
    if kind == "table":
        return _table(value)
    if kind == "decimal":  # digits behind the point, and the number without it
        digits, number = value
        return float(Decimal(number).scaleb(-digits))
    if kind == "void":
        return _NOTHING[0]  # as servers export it: none imports a null here
    return _value(value)


def _value(term: Any) -> Any:
    """Convert a value of JSON as the server keeps it: objects are maps, or lists of pairs."""
    if isinstance(term, str):
        return {"true": True, "false": False}.get(term, None if term in _NOTHING else str(term))
    if isinstance(term, list | dict | CharList):
        return _parts(term)
    if isinstance(term, bytes):
        return _safe_text(term)
    if not isinstance(term, int | float):
        raise TypeError(f"{term!r} is no value of JSON"[:60])
    return term if isinstance(term, int) or math.isfinite(term) else None


def _parts(term: Any) -> Any:
    """Convert an array, which may be a list of small numbers, or an object."""
    if isinstance(term, dict):
        return {_name(key_term(key)): _value(value) for key, value in term.items()}
    if term and all(isinstance(one, tuple) and len(one) == 2 for one in term):
        return {_name(name): _value(value) for name, value in term}
    return [_value(one) for one in term]


def _object(term: Any) -> dict[str, Any]:
    """Convert an object; an empty one may be an empty list, and a field that is not set an atom."""
    found = _value(term) or {}
    if not isinstance(found, dict):
        raise TypeError(f"{term!r} is no object"[:60])
    return found


def _name(term: Any) -> str:
    return str(term) if isinstance(term, str) else _text(term)


def _safe_text(term: bytes) -> str:
    """Return text; of bytes that are none what the server's own export has."""
    try:
        return term.decode("utf-8")
    except UnicodeDecodeError:
        return "Not UTF-8, base64 is: " + base64.b64encode(term).decode()
