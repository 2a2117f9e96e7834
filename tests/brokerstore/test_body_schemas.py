"""`web --schema`: bodies in Avro and Protocol Buffers, and files and bodies that are neither."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from brokerstore.tool.body_schemas import BodySchemas
from messagestore import MessageStore
from storageio import InvalidMessage
from tests.brokerstore.tool import run
from tests.brokerstore.web_client import Client
from tests.stores import small_config

avro_io = pytest.importorskip("avro.io")
pytest.importorskip("google.protobuf")

ORDER: dict[str, Any] = {"id": 5, "items": ["Tür", "<b>"], "sum": 2.5}
AVRO = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"}, {"name": "items", "type": {"type": "array", "items": "string"}},
        {"name": "sum", "type": "double"}, {"name": "next", "type": ["null", "Order"], "default": None},
    ],
}  # fmt: skip


def avro_body(value: Any) -> bytes:
    """Return what Avro's own library writes."""
    from avro.schema import parse

    out = io.BytesIO()
    avro_io.DatumWriter(parse(json.dumps(AVRO))).write(value, avro_io.BinaryEncoder(out))
    return out.getvalue()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write the schema of an order in both forms."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    found = FileDescriptorSet()
    file = found.file.add(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    one, many, kind = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED, FieldDescriptorProto
    message.field.add(name="id", number=1, type=kind.TYPE_INT32, label=one)
    message.field.add(name="items", number=2, type=kind.TYPE_STRING, label=many)
    message.field.add(name="sum", number=3, type=kind.TYPE_DOUBLE, label=one)
    (tmp_path / "shop.desc").write_bytes(found.SerializeToString())
    return tmp_path


PROTOBUF = b"\x08\x05\x12\x04T\xc3\xbcr\x12\x03<b>\x19\x00\x00\x00\x00\x00\x00\x04@"  # by hand: docs of its wire format


def test_both_formats_give_the_value(files: Path) -> None:
    """A schema without a name is for every topic that has none of its own."""
    schemas = BodySchemas([f"{files}/order.avsc", f"other={files}/shop.desc:shop.Order"])
    assert json.loads(schemas.decode("orders", avro_body(ORDER)) or "") == ORDER | {"next": None}
    assert json.loads(schemas.decode("other", PROTOBUF) or "") == ORDER
    assert BodySchemas([f"other={files}/shop.desc:shop.Order"]).decode("orders", PROTOBUF) is None


HOSTILE = (b"", b"\xff" * 20, b"\x0a\x02\x7f", b"\x0a" + b"\xfe" * 8 + b"\x0f", b"\x0a\x00" + bytes(8) + b"\x02" * 200_000)


@pytest.mark.parametrize("body", [*HOSTILE, avro_body(ORDER) + b"\0"])
def test_a_body_of_another_form_is_a_named_error(files: Path, body: bytes) -> None:
    """Lengths past the end, endless numbers, bytes behind the value, and nesting as deep as the body is long."""
    with pytest.raises(InvalidMessage, match="does not follow the schema of orders"):
        BodySchemas([f"{files}/order.avsc"]).decode("orders", body)


@pytest.mark.parametrize(
    "text",
    ["nothing.avsc", "{}/order.avsc:Order", "{}/shop.desc", "{}/shop.desc:shop.None", "a={}/order.txt", "{}/order.avsc="],
)
def test_a_schema_that_is_none_is_refused_before_anything_is_served(files: Path, text: str) -> None:
    """The error names the text, and what was expected there."""
    ran = run("web", files, "--schema", text.format(files))
    assert ran.code == 2 and "--schema" in ran.talk and ran.out == ""


def test_a_page_shows_the_value_and_of_another_body_the_reason(files: Path, tmp_path: Path) -> None:
    """Markup in a value is text."""
    with MessageStore.open(tmp_path / "store", config=small_config()) as store:
        store.put("orders", avro_body(ORDER), queue_id=0)
        store.put("orders", b"plain", queue_id=0)
    client = Client(tmp_path / "store", schemas=[f"{files}/order.avsc"])
    shown = client.get("/0/message?topic=orders&queue=0&offset=0").text
    assert "By its schema" in shown and "&lt;b&gt;" in shown and "<b>" not in shown
    other = client.get("/0/message?topic=orders&queue=0&offset=1")
    assert other.status == 200 and "does not follow the schema of orders" in other.text and "plain" in other.text
