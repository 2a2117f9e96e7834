"""What RabbitMQ 3.8 and 3.10 accept when they load a version-1 index after a kill: a plain model of `rabbit_queue_index`.

It shares no code with the product.  A state has a letter for each change of a message that a file has: `p` published, `d`
delivered, `a` acknowledged.  The server has no clause for any other state than these, and its queue does not start.
"""

from __future__ import annotations

import struct
from pathlib import Path

PUBLISH = struct.Struct(">16sqII")
ENTRIES = 16
JOURNAL_KINDS = ("p", "p", "d", "a")
# `action_to_entry`: the state of a journal's message before and after a change; an acknowledged one that it published is gone
JOURNAL_STEPS = {
    ("", "p"): "p", ("", "d"): "d", ("", "a"): "a", ("p", "d"): "pd", ("d", "a"): "da", ("pd", "a"): ""
}  # fmt: skip
# `add_segment_relseq_entry`
MARKS = {"p": "pd", "pd": "pda"}
# `journal_minus_segment1`: the states that a segment may have beside that of the journal
TOGETHER = {
    "p": ("", "p"), "pd": ("", "p", "pd"), "d": ("p", "pd"), "a": ("", "pd", "pda"), "da": ("", "p", "pd", "pda")
}  # fmt: skip


def journal_bytes(number: int, state: str, body: bytes, *, is_persistent: bool = True) -> bytes:
    """Return the entries of a journal that bring a message to a state."""
    kinds = {"p": 0 if is_persistent else 1, "d": 2, "a": 3}
    return b"".join(struct.pack(">Q", kinds[one] << 62 | number) + (body if one == "p" else b"") for one in state)


def segment_bytes(relative: int, state: str, body: bytes, *, is_persistent: bool = True) -> bytes:
    """Return the entries of a segment that bring a message to a state."""
    publish = 0xC000 if is_persistent else 0x8000
    heads = {"p": publish, "d": 0x4000, "a": 0x4000}
    return b"".join(struct.pack(">H", heads[one] | relative) + (body if one == "p" else b"") for one in state)


def publishes(data: bytes) -> dict[int, bytes]:
    """Return the bodies of the publishes of an undamaged segment by relative number."""
    bodies: dict[int, bytes] = {}
    _segment(data, 0, {}, bodies, "")
    return {number: body[1:] for number, body in bodies.items()}


class RefusedError(Exception):
    """The server would not start the queue."""


def load(folder: Path, entries: int = ENTRIES) -> set[int]:
    """Return the sequence numbers that the server has after a start, transient ones too."""
    states: dict[int, str] = {}
    bodies: dict[int, bytes] = {}
    for file in sorted(folder.glob("*.idx")):
        _segment(file.read_bytes(), int(file.stem) * entries, states, bodies, file.name)
    file = folder / "journal.jif"
    journal = _journal(file.read_bytes() if file.exists() else b"", bodies)
    for number, state in journal.items():
        if states.get(number, "") not in TOGETHER.get(state, ()):
            raise RefusedError(f"message {number}: journal {state}, segment {states.get(number)}")
    marks = {number: states.get(number, "") + journal.get(number, "") for number in {*states, *journal}}
    return {number for number, found in marks.items() if "p" in found and "a" not in found}


def _segment(data: bytes, first: int, states: dict[int, str], bodies: dict[int, bytes], name: str) -> None:
    at = 0
    while at < len(data):
        if len(data) - at < 2 or not data[at] & 0xC0:
            raise RefusedError(f"{name}: not an entry at {at}")
        head = struct.unpack_from(">H", data, at)[0]
        number = first + (head & 0x3FFF)
        at += 2
        if head & 0x8000:
            if len(data) - at < PUBLISH.size:
                raise RefusedError(f"{name}: cut at {at}")
            stop = at + PUBLISH.size + PUBLISH.unpack_from(data, at)[3]
            if stop > len(data) or number in states:
                raise RefusedError(f"{name}: cut or a second publish at {at}")
            states[number], bodies[number], at = "p", bytes([head >> 14 & 1]) + data[at:stop], stop
        elif states.get(number) in MARKS:
            states[number] = MARKS[states[number]]
        else:
            raise RefusedError(f"{name}: a mark of message {number}, which is {states.get(number)}")


def _journal(data: bytes, bodies: dict[int, bytes]) -> dict[int, str]:
    found: dict[int, str] = {}
    at = 0
    while len(data) - at >= 8:
        head = struct.unpack_from(">Q", data, at)[0]
        kind, number = JOURNAL_KINDS[head >> 62], head & (1 << 62) - 1
        stop = at + 8
        if kind == "p":
            if len(data) - stop < PUBLISH.size or not any(data[at : stop + PUBLISH.size]):
                break
            stop += PUBLISH.size + PUBLISH.unpack_from(data, stop)[3]
            if stop > len(data):
                break
            body = bytes([not head >> 62]) + data[at + 8 : stop]
            if bodies.setdefault(number, body) != body:
                raise RefusedError(f"journal: another message {number}")
        step = (found.get(number, ""), kind)
        if step not in JOURNAL_STEPS:
            raise RefusedError(f"journal: message {number}, which is {step[0]!r}, then {kind} at {at}")
        found[number] = JOURNAL_STEPS[step]
        at = stop
    return {number: state for number, state in found.items() if state}
