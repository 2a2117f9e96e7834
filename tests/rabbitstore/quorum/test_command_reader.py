"""The quick reader of enqueue commands gives what decoding the whole term gives, or leaves the entry to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rabbitstore.format.terms import Opaque
from rabbitstore.format.terms_cy import decode
from rabbitstore.quorum.command_cy import CommandReader
from rabbitstore.quorum.folder import QuorumQueue, quorum_nodes
from rabbitstore.quorum.message import info_of, info_of_command, message_term, read_content
from storageio import StoreCorrupt, UnsupportedFormat
from tests.builds import World

TIME_MS = 1_795_665_737_237
NODE = b"rabbit@localhost"
PROCESS = b"Xw" + bytes((len(NODE),)) + NODE + bytes((0, 0, 2, 99, 0, 0, 0, 0, 107, 7, 175, 72))


def binary(data: bytes) -> bytes:
    return b"m" + len(data).to_bytes(4, "big") + data


def sequence(parts: list[bytes]) -> bytes:
    return b"l" + len(parts).to_bytes(4, "big") + b"".join(parts) + b"j" if parts else b"j"


def number(value: int) -> bytes:
    """Encode an integer as Erlang does."""
    if value < 256:
        return bytes((97, value))
    if value < 1 << 31:
        return b"b" + value.to_bytes(4, "big")
    size = (value.bit_length() + 7) // 8
    return bytes((110, size, 0)) + value.to_bytes(size, "little")


def entry(
    *, pairs: list[bytes], fragments: Sequence[bytes] = (b"body",), sequence_number: int = 1, size: int = 4,
    block: bytes = b"\0\0",
) -> bytes:  # fmt: skip
    """Encode an enqueue command of 4.0: docs/formats/rabbitmq-quorum.md#replay."""
    message = b"h\4w\2mcw\x08mc_amqplh\6w\7contenta\x3cw\4none" + binary(block) + b"w\x19rabbit_framing_amqp_0_9_1"
    message += sequence([binary(part) for part in fragments]) + b"t" + len(pairs).to_bytes(4, "big") + b"".join(pairs)
    command = b"h\4w\1e" + number(sequence_number) + message + b"h\2" + number(2) + number(size)
    reply = b"h\3w\6notify" + number(0) + PROCESS
    return b"\x83h\4w\4$usrt\0\0\0\1w\2ts" + number(TIME_MS) + command + reply


def route(exchange: bytes = b"", keys: Sequence[bytes] = (b"q",)) -> list[bytes]:
    return [b"w\1x" + binary(exchange), b"w\2rk" + sequence([binary(key) for key in keys])]


EXTRAS = st.sampled_from([
    b"w\1dw\4true", b"w\1dw\5false", b"w\1pa\5", b"w\3ttlb\0\0\7\xd0", b"w\2ts" + number(TIME_MS), b"w\3rts" + number(TIME_MS),
])  # fmt: skip
ENTRIES = st.builds(
    lambda exchange, keys, extras, **rest: entry(pairs=route(exchange, keys) + extras, **rest),
    st.binary(max_size=4), st.lists(st.binary(max_size=4), max_size=3), st.lists(EXTRAS, max_size=3),
    fragments=st.lists(st.binary(max_size=5), max_size=3), sequence_number=st.integers(0, 1 << 40),
    size=st.integers(0, 1 << 33), block=st.binary(max_size=5),
)  # fmt: skip


def slowly(data: bytes) -> tuple[Any, ...] | None:
    """Return what an entry says by way of its term; None for one that is no enqueue, or damaged."""
    try:
        term: Any = decode(data, improper=True)
        meta, command, reply = term[1:]
        content = read_content(message_term(command), "/", "", 0)
        info = info_of(command)
    except (StoreCorrupt, UnsupportedFormat, TypeError, ValueError, KeyError, IndexError):
        return None
    return meta.get("ts"), reply[2], command[1], info, tuple(content)


def quickly(reader: Any, data: bytes) -> tuple[Any, ...] | None:
    if not reader.read(memoryview(data), 0, len(data)):
        return None
    return reader.time_ms, reader.pid, reader.number, info_of_command(reader), reader.content("/")


@settings(deadline=None)
@given(ENTRIES, st.sampled_from([1, 2, 4, 0x80]))
def test_a_command_is_read_like_its_term(data: bytes, bit: int) -> None:
    """Every command of this form is read, and no changed byte makes both ways read different messages."""
    reader = CommandReader()
    found = quickly(reader, data)
    assert found is not None and found == slowly(data)
    for at in range(len(data)):
        changed = data[:at] + bytes((data[at] ^ bit,)) + data[at + 1 :]
        again = quickly(reader, changed)
        assert again is None or again == slowly(changed), at


def test_a_truncated_command_or_one_with_trailing_bytes_is_left_to_the_term_decoder(world: World) -> None:
    """Whole commands only, and only within the view."""
    reader = world.module("rabbitstore.quorum.command_cy").CommandReader()
    data = entry(pairs=route())
    assert quickly(reader, data) == (
        TIME_MS, Opaque(88, PROCESS[1:]), 1, info_of(decode(data, improper=True)[2]),  # type: ignore[index]
        ("/", "", ("q",), b"\0\0", b"body", b"", True),
    )  # fmt: skip
    for stop in range(len(data)):
        assert quickly(reader, data[:stop]) is None
    assert quickly(reader, data + b"j") is None
    view = memoryview(b"ab" + data)
    assert reader.read(view, 2, len(data)) and not reader.read(view, 2, len(data) + 1)
    assert not reader.read(view, -1, 3) and not reader.read(view, 3, -1)


@pytest.mark.parametrize("pair", [
    b"w\x0edelivery_counta\1", b"w\3ttlw\x09undefined", b"m\0\0\0\3x-aa\1", b"w\6deathsj", b"w\1pn\1\1\1", b"w\1xj",
    b"w\2rka\1",
])  # fmt: skip
def test_a_command_with_an_unknown_annotation_is_left_to_the_term_decoder(world: World, pair: bytes) -> None:
    """These change the message, or have a value of another type."""
    reader = world.module("rabbitstore.quorum.command_cy").CommandReader()
    assert quickly(reader, entry(pairs=[*route(), pair])) is None
    assert quickly(reader, entry(pairs=route()[:1])) is None
    assert quickly(reader, entry(pairs=route()[1:])) is None


def test_entries_of_the_real_servers_are_read(real: Any) -> None:
    """Every enqueue that the quick reader takes from a real log is what its term says, and it takes most of them."""
    node, _manifest = real
    reader = CommandReader()
    taken = left = 0
    for found in quorum_nodes(str(node)):
        with found:
            for queue in found.queues():
                taken, left = (sum(pair) for pair in zip((taken, left), counted(reader, queue), strict=True))
    assert taken > left


def counted(reader: CommandReader, queue: QuorumQueue) -> tuple[int, int]:
    """Count the plain enqueues of a queue that the quick reader takes, and those that it leaves."""
    taken = left = 0
    for one in queue.entries().values():
        data = bytes(one.view[one.at : one.at + one.size])
        found = quickly(reader, data)
        assert found is None or found == slowly(data)
        taken += found is not None
        left += found is None and b"mc_amqpl" in data and b"w\1eh" in data
    return taken, left
