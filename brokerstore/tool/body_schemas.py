"""Schemas of message bodies: Avro and Protocol Buffers, by topic or queue."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from storageio import InvalidMessage, needs_extra

Decode = Callable[[bytes], Any]
SOURCES = "ORDERS=order.avsc, or orders=shop.desc:shop.Order; without a name before `=` for every topic"
DESCRIPTORS = "protoc --include_imports --descriptor_set_out=shop.desc shop.proto"


class BodySchemas:
    """The decoders of bodies; a body that does not follow its schema has none."""

    def __init__(self, texts: Sequence[str] = ()) -> None:
        """Read each `[TOPIC=]FILE[:MESSAGE]`; raise `InvalidMessage` for a text, a file or a name that is none."""
        self._decoders = dict(map(_read, texts))

    def decode(self, name: str, body: bytes) -> str | None:
        """Return the body of a message of a topic or queue as JSON; None without a schema.  Raise `InvalidMessage`."""
        decoder = self._decoders.get(name, self._decoders.get(""))
        if decoder is None:
            return None
        try:
            return json.dumps(decoder(body), ensure_ascii=False, default=_text)
        except Exception as error:  # the libraries have no common one, and a body may be anybody's
            raise InvalidMessage(
                f"the body does not follow the schema of {name}: {type(error).__name__}: {error}"[:500]
            ) from error


def _text(value: Any) -> str:
    """Return what JSON has no form of; bytes as letters of their values, as Avro's own JSON has them."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _read(text: str) -> tuple[str, Decode]:
    name, _, source = text.rpartition("=")
    path, _, message = source.partition(":")
    try:
        data = Path(path).read_bytes()
        if path.endswith(".avsc") and not message:
            return name, _avro(data)
        if message:
            return name, _protobuf(data, message)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidMessage(f"--schema {text}: {type(error).__name__}: {error}") from error
    raise InvalidMessage(f"--schema {text}: expected {SOURCES}; {DESCRIPTORS} writes such a file")


def _avro(data: bytes) -> Decode:
    with needs_extra("schemas"):
        from avro.errors import AvroException
        from avro.io import BinaryDecoder, DatumReader
        from avro.schema import parse

    try:
        schema = parse(data.decode())
    except AvroException as error:
        raise ValueError(error) from error

    def decode(body: bytes) -> Any:
        source = io.BytesIO(body)
        found = DatumReader(schema).read(BinaryDecoder(source))
        if source.tell() != len(body):
            raise ValueError(f"{len(body) - source.tell()} bytes are left behind the value")
        return found

    return decode


def _protobuf(data: bytes, message: str) -> Decode:
    with needs_extra("schemas"):
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    try:
        for file in FileDescriptorSet.FromString(data).file:
            pool.Add(file)
    except DecodeError as error:
        raise ValueError(f"{error}; {DESCRIPTORS} writes such a file") from error
    kind = GetMessageClass(pool.FindMessageTypeByName(message))
    return lambda body: MessageToDict(kind.FromString(body), preserving_proto_field_name=True, descriptor_pool=pool)
