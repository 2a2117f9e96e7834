"""Terms of commands: processes of clients, with their nodes, order and one form, and message ids."""

from __future__ import annotations

from typing import Any

from ..format.terms import Opaque

_PROCESS, _PID_TAIL = 88, 12  # the tag of a process, and its bytes behind its node's name
_OLDER_PROCESS, _OLDER_TAIL = 103, 9


def node_of(pid: Any) -> str:
    """Return the name of a process's node; an empty one for anything else."""
    if not isinstance(pid, Opaque):
        return ""
    name = pid.data[:-_PID_TAIL]
    return name[2 if name[:1] == b"w" else 3 :].decode("utf-8", "replace")


def pid_order(pid: Any) -> tuple[int, ...]:
    """Order processes of one node as Erlang does: by serial and number."""
    if not isinstance(pid, Opaque) or len(pid.data) < _PID_TAIL:
        return (0, 0)
    return int.from_bytes(pid.data[-8:-4], "big"), int.from_bytes(pid.data[-12:-8], "big")


def uniform(term: Any) -> Any:
    """Return a process, or a tuple with one, in the form of OTP 26: older servers of the same queue wrote other bytes."""
    if isinstance(term, tuple) and not isinstance(term, Opaque):
        return tuple(map(uniform, term))
    if not isinstance(term, Opaque) or term.tag not in (_PROCESS, _OLDER_PROCESS):
        return term
    data = term.data if term.tag == _PROCESS else term.data[:-1] + bytes(_PID_TAIL - _OLDER_TAIL) + term.data[-1:]
    if data[:1] != b"d":
        return Opaque(_PROCESS, data)
    name = data[3:-_PID_TAIL].decode("latin-1").encode()
    return Opaque(_PROCESS, b"w" + len(name).to_bytes(1, "big") + name + data[-_PID_TAIL:])


def key_order(key: Any) -> tuple[int, Any, tuple[int, ...]]:
    """Order consumer keys as Erlang does: numbers before tuples of tag and process."""
    if isinstance(key, int):
        return 0, key, ()
    is_pair = isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], bytes)
    return (1, bytes(key[0]), pid_order(key[1])) if is_pair else (2, repr(key), ())


def message_ids(term: Any) -> list[int]:
    """Return message ids: a list of numbers, which the term format may store as bytes."""
    return [number for number in term if isinstance(number, int)] if isinstance(term, list | bytes) else []
