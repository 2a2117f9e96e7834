"""Messages of many forms in a store, with removed and damaged ones among them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rabbitstore.format.content import decode_content, encode_content
from rabbitstore.format.message import Content
from rabbitstore.format.terms import Atom, encode
from rabbitstore.settings import StoreSettings
from storageio import InvalidMessage, StoreCorrupt, UnsupportedFormat

from .test_msg_store import fresh, ident

FRAGMENT_SIZE = 131064  # of a body in one AMQP frame as RabbitMQ ships
SMALL = StoreSettings(file_size_limit=20_000)


def content(number: int, body: bytes = b"body", keys: tuple[str, ...] = ("key",), **other: Any) -> Content:
    facts = {"vhost": "/", "exchange": "", "routing_keys": keys, "properties_bin": b"\0\0", "persistent": number % 2 == 0}
    return Content(**{**facts, "body": body, "msg_id": ident(number), **other})


MIXED = [
    content(1),
    content(2, b""),
    content(3, b"x" * 7000),
    content(4, b"y" * (2 * FRAGMENT_SIZE + 5)),
    content(5, keys=()),
    content(6, keys=("one", "two", "ä" * 100)),
    content(7, vhost="other", exchange="amq.topic", properties_bin=b"\x10\0\x02"),
    content(8, b"\x83" * 300),
]


def stored(tmp_path: Path) -> tuple[Any, Any]:
    store = fresh(tmp_path, SMALL)
    client = store.client()
    client.write_many((message.msg_id, encode_content(message)) for message in MIXED)
    return store, client


def read(client: Any, msg_ids: Iterable[bytes]) -> list[Content | None]:
    return [None if (term := client.read(msg_id)) is None else decode_content(term) for msg_id in msg_ids]


def test_messages_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Messages come from the cache, the current file, closed files with and without a map, and after a reopening."""
    store, client = stored(tmp_path)
    ids = [message.msg_id for message in MIXED]
    assert read(client, ids) == MIXED
    store.sync()
    assert read(client, reversed(ids)) == MIXED[::-1]
    store.close()
    again = fresh(tmp_path, SMALL, counts=dict.fromkeys(ids, 1))
    client = again.client()
    for _ in range(2):
        assert read(client, ids) == MIXED
    assert again.contains(ids[0]) and not again.contains(ident(99))
    again.close()


def test_a_read_returns_none_for_a_removed_message(tmp_path: Path) -> None:
    """A removed or unknown id gives None and does not affect its neighbours."""
    store, client = stored(tmp_path)
    store.sync()
    client.remove([ident(3)])
    store.sync()
    expected = [ident(2), ident(3), ident(99), ident(4)]
    assert read(client, expected) == [MIXED[1], None, None, MIXED[3]]
    store.close()


def test_a_damaged_message_is_named(tmp_path: Path) -> None:
    """In a closed file a changed record, a term that is not a message, and an unknown record name are errors."""
    store, client = stored(tmp_path)
    client.write(ident(20), encode([b"something", b"else"]))
    client.write(ident(21), encode((Atom("something"), b"else")))
    store.sync()
    with pytest.raises(StoreCorrupt, match="not a message"):
        read(client, [ident(1), ident(20)])
    with pytest.raises(UnsupportedFormat, match="something of 2 fields"):
        read(client, [ident(1), ident(21)])
    store._roll()
    assert read(client, [ident(1)]) == [MIXED[0]]
    path = tmp_path / "msg_store_persistent" / "0.rdq"
    data = bytearray(path.read_bytes())
    data[data.index(ident(1)) + 3] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    with pytest.raises(StoreCorrupt, match="not the expected record"):
        read(client, [ident(1)])
    assert read(client, [ident(2)]) == [MIXED[1]]
    store.close()


@pytest.mark.parametrize("msg_id", [b"", bytes(15), bytes(17)])
def test_a_message_with_an_id_of_another_length_is_written_nowhere(msg_id: bytes) -> None:
    """A record with a wrong id could not be framed."""
    wrong = content(1)._replace(msg_id=msg_id)
    with pytest.raises(InvalidMessage, match="16 bytes"):
        encode_content(wrong)


def test_a_term_with_an_id_of_another_length_is_no_message() -> None:
    """A term of the wrong form, or with an atom in place of the properties, is a whole term that is not understood."""
    resource = (Atom("resource"), b"/", Atom("exchange"), b"")
    body = (Atom("content"), 60, Atom("none"), b"\0\0", Atom("rabbit_framing_amqp_0_9_1"), [b"x"])
    good = (Atom("basic_message"), resource, [b"q"], body, bytes(16), Atom("true"))
    assert decode_content(encode(good)).body == b"x"
    atom = (*body[:3], Atom("none"), *body[4:])
    for wrong in ((*good[:4], bytes(15), good[5]), (*good[:3], atom, *good[4:])):
        with pytest.raises(UnsupportedFormat, match="message term"):
            decode_content(encode(wrong))
