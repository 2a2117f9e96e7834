"""`--decode`: bodies as their producers passed them, and the messages of batches, the same from every command."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from storageio import StoreCorrupt
from tests.brokerstore.tool import run
from tests.stores import encode_wire_batch, small_config

ZLIB = 0x1 | 3 << 8
BATCH = 0x80 | 0x40
TEXT = "größer ".encode() * 50


def append(store: MessageStore, message: Message) -> None:
    """Append a record to queue 0 whatever it holds; a put would refuse a batch here."""
    store.engine.admission.admit(message.topic)
    store.engine.log.appender.append(message, 0)
    store.engine.settle()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with a compressed body, a compressed batch of two messages, and a plain one."""
    folder = tmp_path / "store"
    members = [Message("T", b"first", flag=1, tags="a"), Message("T", b"second", flag=2, keys=["k2"])]
    batch = zlib.compress(encode_wire_batch(members))
    with MessageStore.open(folder, config=small_config()) as opened:
        opened.put(Message("T", zlib.compress(TEXT), sys_flag=ZLIB, keys=["k"], tags="t", queue_id=0))
        append(opened, Message("T", batch, sys_flag=ZLIB | BATCH, properties={"INNER_BASE": "7", "KEYS": "k"}))
        opened.put(Message("T", b"plain", keys=["k"], queue_id=0))
    return folder


def shown(line: dict[str, Any]) -> tuple[Any, ...]:
    """Return what decoding may change."""
    body = b64decode(line["body_base64"])
    return body, line["sys_flag"], line["flag"], line["queue_offset"], line["tags"], line["keys"]


EXPECTED = [
    (TEXT, 0, 0, 0, "t", ["k"]),
    (b"first", 0, 1, 7, "a", []),
    (b"second", 0, 2, 8, None, ["k2"]),
    (b"plain", 0, 0, 2, None, ["k"]),
]


@pytest.mark.parametrize(
    "command",
    [
        "dump STORE --json", "get STORE --topic T --queue 0 --offset 0 --count 3 --json", "query STORE T k --json",
        "tail STORE --json", "export STORE",
    ],
)  # fmt: skip
def test_every_command_shows_the_same_decoded_messages(store: Path, command: str) -> None:
    """Batches are unpacked; the bits that told of the encoding are cleared, so that an import puts what is shown."""
    words = [str(store) if word == "STORE" else word for word in command.split()]
    ran = run(*words, "--decode")
    assert ran.code == 0
    assert [shown(json.loads(line)) for line in ran.out.splitlines()] == EXPECTED
    assert len(run(*words).out.splitlines()) == 3


@pytest.mark.parametrize("form", ["parquet", "arrow", "csv"])
def test_exported_columns_are_decoded(store: Path, tmp_path: Path, form: str) -> None:
    """Rows, their limit and their types are those of the JSON lines; a file of the other kind is not continued."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.csv
    import pyarrow.parquet

    for limit, count in ((), 4), (("--limit", 2), 2):
        out = tmp_path / f"rows-{count}"
        assert run("export", store, "--to", form, "-o", out, "--decode", *limit).code == 0
        if form == "csv":
            bodies = [b64decode(body) for body in pyarrow.csv.read_csv(out).column("body_base64").to_pylist()]
        else:
            table = pyarrow.parquet.read_table(out) if form == "parquet" else pa.ipc.open_file(out).read_all()
            assert run("export", store, "--to", form, "-o", tmp_path / "stored").code == 0
            read = pyarrow.parquet.read_table if form == "parquet" else lambda path: pa.ipc.open_file(path).read_all()
            assert table.schema == read(tmp_path / "stored").schema
            bodies = table.column("body").to_pylist()
        assert bodies == [row[0] for row in EXPECTED][:count]


def test_bodies_of_a_real_client_are_decoded(fixture_store: Any) -> None:
    """Every compression type of a real producer; size and checksum are those that it reported."""
    fixture = fixture_store("broker-live")
    sent = {ack["msgId"]: (ack["bodyLength"], ack["bodyCrc32"]) for ack in fixture.expected()["acks"] if ack.get("compression")}
    found = {}
    for line in run("dump", fixture.store, "--json", "--decode").lines:
        unique = line["properties"].get("UNIQ_KEY")
        if unique in sent and line["topic"].startswith("Live"):
            body = b64decode(line["body_base64"])
            found[unique] = (len(body), zlib.crc32(body))
    assert len(sent) >= 3
    assert found == sent


@pytest.mark.parametrize(
    ("body", "sys_flag", "reason"),
    [
        (b"no zlib", ZLIB, "body cannot be unpacked"),
        (zlib.compress(bytes(65 << 20), 9), ZLIB, "body too long when unpacked"),
        (b"\0\0\0\x09short".ljust(40), BATCH, "batch cannot be unpacked"),
    ],
)
def test_a_body_that_cannot_be_decoded_is_a_problem_and_shown_as_stored(
    tmp_path: Path, body: bytes, sys_flag: int, reason: str
) -> None:  # fmt: skip
    """Damaged, longer than 64 MiB, or a batch with wrong sizes; the messages after it follow."""
    config = small_config(mapped_file_size_commit_log=1 << 20)
    with MessageStore.open(tmp_path / "s", config=config) as store:
        append(store, Message("T", body, sys_flag=sys_flag))
        store.put(Message("T", b"next", queue_id=0))
    ran = run("dump", tmp_path / "s", "--json", "--decode")
    assert ran.code == 1
    assert reason in ran.talk
    assert [line["body_base64"] for line in ran.lines] == [b64encode(one).decode() for one in (body, b"next")]


def test_python_gives_the_decoded_body(store: Path) -> None:
    """The same as `plain_body` of the store; a body that is not compressed is the same object."""
    with MessageStore.open(store, "r") as opened:
        first, _, last = opened.read("T", 0)
        assert first.decoded_body() == opened.plain_body(first) == TEXT
        assert last.decoded_body() is last.body
    with MessageStore.open(store) as opened:
        at = opened.put(Message("T", b"damaged", sys_flag=ZLIB)).physical_offset
        message = opened.message_at(at)
        assert message is not None
        with pytest.raises(StoreCorrupt, match=f"at byte {at}"):
            message.decoded_body()
