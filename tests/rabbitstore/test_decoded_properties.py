"""Messages whose properties the server stored decoded: dead letters, BCC, and every type that a header can have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rabbitstore import RabbitSettings, RabbitStore
from rabbitstore.format.content import decode_content
from rabbitstore.format.properties import Typed, decode
from rabbitstore.format.terms import FALSE, NONE, TRUE, UNDEFINED, Atom, CharList, encode
from rabbitstore.read.vhost_folder import find_vhosts
from rabbitstore.repair.check import verify
from rabbitstore.repair.recover import apply_recovery
from storageio import StoreCorrupt, UnsupportedFormat
from tests.brokerstore.tool import run
from tests.cases import unpack_case
from tests.rabbitstore.delivered import delivered

CASES = ("rabbit-dlx-3.10.8", "rabbit-bcc-3.10.8")
MSG_ID = bytes(range(16))
NOTHING = (UNDEFINED,) * 14
HEADERS: list[tuple[str, Any, Any]] = [  # type in Erlang, value in Erlang, value of the decoded block
    ("longstr", b"text", "text"),
    ("longstr", CharList(b"text"), "text"),
    ("longstr", [], ""),
    ("longstr", b"\xff", b"\xff"),
    ("signedint", -2, -2),
    ("unsignedint", 4_000_000_000, Typed("i", 4_000_000_000)),
    ("decimal", (1, 15), Typed("D", (1, 15))),
    ("timestamp", 1_700_000_000, Typed("T", 1_700_000_000)),
    ("table", [(b"in", Atom("longstr"), b"side")], {"in": "side"}),
    ("table", [], {}),
    ("array", [(Atom("long"), 7), (Atom("void"), UNDEFINED)], [Typed("l", 7), None]),
    ("byte", -1, Typed("b", -1)),
    ("unsignedbyte", 255, Typed("B", 255)),
    ("short", -300, Typed("s", -300)),
    ("unsignedshort", 60_000, Typed("u", 60_000)),
    ("long", -(1 << 40), -(1 << 40)),
    ("float", 0.5, Typed("f", 0.5)),
    ("double", 1.25, 1.25),
    ("bool", TRUE, True),
    ("bool", FALSE, False),
    ("binary", b"\0\1", Typed("x", b"\0\1")),
    ("void", UNDEFINED, None),
]


def content(decoded: Any) -> Any:
    """Return the record of a message of two fragments with these decoded properties."""
    return Atom("content"), 60, decoded, NONE, NONE, [b"second", b"first "]


def message(decoded: Any) -> bytes:
    """Return the term of RabbitMQ 3.10."""
    route = (Atom("resource"), b"/", Atom("exchange"), b"x")
    return encode((Atom("basic_message"), route, [b"key"], content(decoded), MSG_ID, TRUE))


def container(decoded: Any) -> bytes:
    """Return the container that 3.13 and later make of it."""
    facts = {Atom("x"): b"x", Atom("rk"): [b"key"], Atom("id"): MSG_ID, Atom("d"): TRUE}
    return encode((Atom("mc"), Atom("mc_amqpl"), content(decoded), facts))


def with_field(number: int, value: Any) -> tuple[Any, ...]:
    return (Atom("P_basic"), *NOTHING[:number], value, *NOTHING[number + 1 :])


@pytest.mark.parametrize("name", CASES)
def test_undamaged_folder_with_changed_headers_reads_as_the_server_delivered_it(name: str, tmp_path: Path) -> None:
    """Every dead letter and every BCC copy is read with the properties that the restarted server delivered."""
    case = unpack_case(name, tmp_path)
    (vhost,) = find_vhosts(str(case.folder))
    expected = {queue: messages for queue, messages in case.expected["delivered"].items() if messages}
    assert delivered(RabbitStore.open(vhost, "r").messages()) == expected
    assert verify(vhost).problems == []


@pytest.mark.parametrize("name", CASES)
def test_recover_drops_no_message_with_changed_headers(name: str, tmp_path: Path) -> None:
    """An undamaged folder has nothing to repair, and the applied plan changes no message."""
    case = unpack_case(name, tmp_path)
    (vhost,) = find_vhosts(str(case.folder))
    plan = apply_recovery(vhost)
    assert (plan.steps, plan.messages_lost) == ([], 0)
    assert sum(map(len, delivered(RabbitStore.open(vhost, "r").messages()).values())) == plan.messages_kept


@pytest.mark.parametrize("name", CASES)
def test_opening_for_writing_keeps_messages_with_changed_headers(name: str, tmp_path: Path) -> None:
    """The engine loads, stores and stops with every one of them: the same bodies and properties are read afterwards."""
    case = unpack_case(name, tmp_path)
    (vhost,) = find_vhosts(str(case.folder))
    with RabbitStore.open(vhost, "r+") as store:
        assert store.lost == []
    found = delivered(RabbitStore.open(vhost, "r").messages())
    expected = {queue: messages for queue, messages in case.expected["delivered"].items() if messages}
    for rows in (*found.values(), *expected.values()):
        for row in rows:
            del row["redelivered"]
    assert found == expected


@pytest.mark.parametrize("form", [message, container])
@pytest.mark.parametrize(("kind", "value", "expected"), HEADERS, ids=lambda value: str(value)[:20])
def test_every_header_type_of_a_decoded_record_is_read(form: Any, kind: str, value: Any, expected: Any) -> None:
    """A header in Erlang's form becomes the same block as one that a client sent, in either kind of message term."""
    found = decode_content(form(with_field(2, [(b"h", Atom(kind), value)])), vhost="/")
    assert (found.vhost, found.exchange, found.routing_keys) == ("/", "x", ("key",))
    assert (found.body, found.msg_id, found.persistent) == (b"first second", MSG_ID, True)
    assert decode(found.properties_bin) == {"headers": {"h": expected}}


def test_every_property_of_a_decoded_record_is_read() -> None:
    """All fourteen properties have their place; `undefined` means that a property is missing."""
    values = (b"a", b"b", [], 2, 9, b"c", b"d", b"1000", b"e", 1_700_000_000, b"f", b"g", b"h", b"i")
    found = decode(decode_content(message((Atom("P_basic"), *values))).properties_bin)
    names = (
        "content_type content_encoding headers delivery_mode priority correlation_id reply_to expiration message_id timestamp"
    )
    assert list(found) == [*names.split(), "type", "user_id", "app_id", "cluster_id"]
    assert list(found.values()) == ["a", "b", {}, 2, 9, "c", "d", "1000", "e", 1_700_000_000, "f", "g", "h", "i"]
    assert decode(decode_content(message((Atom("P_basic"), *NOTHING))).properties_bin) == {}


@pytest.mark.parametrize("form", [message, container])
@pytest.mark.parametrize(
    "decoded",
    [
        (Atom("P_basic"), *NOTHING, UNDEFINED),
        (Atom("P_other"), *NOTHING),
        with_field(2, [(b"h", Atom("quadruple"), 1.0)]),
        with_field(2, [(b"h", Atom("signedint"), 1 << 40)]),
        with_field(2, [(b"h", b"no type")]),
        with_field(3, 1000),
    ],
    ids=["more fields", "other record", "other type", "number too large", "other header", "octet too large"],
)
def test_unknown_properties_are_not_damage(form: Any, decoded: Any) -> None:
    """A whole term of another form is an unsupported format, never a damaged message."""
    with pytest.raises(UnsupportedFormat):
        decode_content(form(decoded), vhost="/")


def changed(term: bytes, old: bytes, new: bytes) -> bytes:
    assert old in term
    return term.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "is_damage"),
    [
        (b"content", b"comtent", True),
        (b"content", b"co\0\0ent", True),
        (b"content", b"payload", False),
        (b"a<", b"a=", True),
        (b"a<", b"aZ", False),
        (b"P_basic", b"P_basis", False),
        (b"P_basic", b"P_queue", False),
    ],
)
def test_intact_record_of_an_unknown_form_is_not_damage(old: bytes, new: bytes, is_damage: bool) -> None:
    """One changed character of a name, or one bit of the class, is damage; other forms and unknown properties are not."""
    with pytest.raises(StoreCorrupt if is_damage else UnsupportedFormat):
        decode_content(changed(message((Atom("P_basic"), *NOTHING)), old, new))


@pytest.mark.parametrize("form", ["in the index", "in the store"])
def test_message_in_an_unknown_form_is_reported_and_not_changed(form: str, tmp_path: Path) -> None:
    """`dump` and `verify` report it with code 3; `recover` and an opening for writing keep its bytes."""
    with RabbitStore.open(str(tmp_path), settings=RabbitSettings(background=False, index_version=1)) as store:
        store.declare_queue("q")
        for _ in range(3):
            store.publish("q", b"body" * (2 if form == "in the index" else 2000))
    (file,) = tmp_path.glob("queues/*/0.idx" if form == "in the index" else "msg_store_persistent/0.rdq")
    data = file.read_bytes()
    at = data.index(b"content", data.index(b"content") + 1)
    file.write_bytes(data[:at] + b"payload" + data[at + 7 :])
    term = data[at - 40 : at] + b"payload" + data[at + 7 : at + 60]
    for command in (["verify"], ["dump"], ["export"], ["recover"], ["recover", "--apply"]):
        assert (command, run(*command, tmp_path).code) == (command, 3)
    shown = run("dump", "--json", tmp_path)
    assert len(shown.lines) == 2 and "message term" in shown.talk
    assert term in file.read_bytes()
    with RabbitStore.open(str(tmp_path), "r+", settings=RabbitSettings(background=False)) as store:
        assert store.lost == []
    assert term in file.read_bytes() and verify(str(tmp_path)).problems == []
