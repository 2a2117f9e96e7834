"""Encode and decode the frames of the request protocol (docs/formats/rocketmq-remoting.md#frames)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import OtherProtocol, WrongFrame

FRAME_SIZE_MAX = 16_777_216  # bytes after the length
OTHER_PROTOCOLS = {  # by the bytes that a client begins with; read as a length, each is above the limit
    b"PRI ": "gRPC; start the server with --grpc HOST:PORT, and give the client that address",
    b"GET ": "HTTP", b"POST": "HTTP",
    b"\x16\x03\x01": "TLS; start the server with --tls-cert and --tls-key, or turn it off in the client (tls.enable)",
}  # fmt: skip
HEADER_SIZE_MAX = 1 << 20  # bytes; properties of a message, escaped, take a part of it
JSON_ENCODING, BINARY_ENCODING = 0, 1
IS_ANSWER, IS_ONE_WAY = 1, 2  # bits of a flag
PYTHON = 3  # a language
LANGUAGES = ("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST")
VERSION = 479  # of RocketMQ 5.3.3
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # json.dumps makes an encoder for each call
_decode = json.JSONDecoder().decode
_WORD = struct.Struct(">i")
_FIXED = struct.Struct(">hbhii")
_SHORT = struct.Struct(">h")
_LENGTHS = struct.Struct(">iI")


@dataclass(slots=True)
class Command:
    """A request or an answer.  `code` is the kind of a request, or the result of an answer."""

    code: int
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    encoding: int = JSON_ENCODING
    language: str = LANGUAGES[PYTHON]  # of the program that sent it
    version: int = VERSION  # of RocketMQ, as that program states it

    @property
    def is_answer(self) -> bool:
        """Whether it answers a request of this side."""
        return bool(self.flag & IS_ANSWER)

    @property
    def is_one_way(self) -> bool:
        """Whether nobody waits for an answer."""
        return bool(self.flag & IS_ONE_WAY)

    def answer(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", remark: str | None = None) -> Command:
        """Return an answer to this request, in its encoding."""
        return Command(code, fields or {}, body, self.opaque, IS_ANSWER, remark, self.encoding)


def encode(command: Command) -> bytes:
    """Return the frame of a command."""
    header = _binary_header(command) if command.encoding == BINARY_ENCODING else _json_header(command)
    size = 4 + len(header) + len(command.body)
    if size > FRAME_SIZE_MAX or len(header) > HEADER_SIZE_MAX:
        raise WrongFrame(
            f"a frame of {size} bytes with a header of {len(header)}: at most {FRAME_SIZE_MAX} and {HEADER_SIZE_MAX}"
        )
    return b"".join((_LENGTHS.pack(size, command.encoding << 24 | len(header)), header, command.body))


class Pairs(NamedTuple):
    """A map whose keys are objects."""

    pairs: list[tuple[Any, Any]]


class RemotingFrameReader:
    """Joins what arrives on one connection to frames."""

    def __init__(self) -> None:
        """Create it for a new connection."""
        self._waiting = bytearray()
        self._at = 0

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes that arrived and were not returned yet."""
        return len(self._waiting) - self._at

    def add(self, data: bytes) -> None:
        """Take the bytes that arrived."""
        if self._at:
            del self._waiting[: self._at]
            self._at = 0
        self._waiting += data

    def next(self) -> Command | None:
        """Return the next command that is complete; None until more arrives.  Raises `WrongFrame`."""
        begin = self._at + _WORD.size
        if len(self._waiting) < begin:
            return None
        (size,) = _WORD.unpack_from(self._waiting, self._at)
        if not 4 <= size <= FRAME_SIZE_MAX:
            for head, name in OTHER_PROTOCOLS.items():
                if self._waiting.startswith(head, self._at):
                    raise OtherProtocol(f"it speaks {name}")
            raise WrongFrame(f"a frame of {size} bytes: 4 to {FRAME_SIZE_MAX}")
        if len(self._waiting) - begin < size:
            return None
        self._at = begin + size
        with memoryview(self._waiting) as waiting, waiting[begin : self._at] as frame:
            return decode(frame)

    def feed(self, data: bytes) -> Iterator[Command]:
        """Take what arrived, and yield the commands that are complete now.  Raises `WrongFrame`."""
        self.add(data)
        while (found := self.next()) is not None:
            yield found


def decode(frame: bytes | memoryview) -> Command:
    """Return the command of a frame without its length.  Raises `WrongFrame`."""
    if len(frame) < 4:
        raise WrongFrame(f"a frame of {len(frame)} bytes: at least 4")
    encoding, size = frame[0], int.from_bytes(frame[1:4], "big")
    if size > min(len(frame) - 4, HEADER_SIZE_MAX):
        raise WrongFrame(f"a header of {size} bytes in a frame of {len(frame)}")
    header, body = bytes(frame[4 : 4 + size]), bytes(frame[4 + size :])
    if encoding == JSON_ENCODING:
        return _from_json(header, body)
    if encoding == BINARY_ENCODING:
        return _from_binary(header, body)
    raise WrongFrame(f"header encoding {encoding}: 0 (JSON) or 1 (binary)")


def json_object(data: bytes, what: str) -> dict[str, Any]:
    """Return the JSON object of a part of a frame, which `what` names in an error.  Raises `WrongFrame`."""
    try:
        found = _decode(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise WrongFrame(f"a {what} that is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise WrongFrame(f"a {what} that is no JSON object but {type(found).__name__}")
    return found


def json_body(document: Mapping[Any, Any]) -> bytes:
    """Return the body of an answer, as RocketMQ writes JSON.

    Without spaces: the Go client takes the addresses of a route out of the raw text, and dials what is behind the colon.
    """
    return _encode(document).encode("utf-8", "replace")


def keyed_body(document: Any) -> bytes:
    """Return the body of an answer that has `Pairs`: RocketMQ writes an object as a key without quoting it."""
    return _keyed(document).encode("utf-8", "replace")


def _keyed(value: Any) -> str:
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{_keyed(key)}:{_keyed(each)}" for key, each in value.pairs) + "}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_encode(str(key))}:{_keyed(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_keyed, value)) + "]"
    return _encode(value)


def _json_header(command: Command) -> bytes:
    remark = "" if command.remark is None else f',"remark":{_encode(command.remark)}'
    header = (
        f'{{"code":{command.code},"extFields":{_encode(command.fields)},"flag":{command.flag},"language":"{command.language}",'
        f'"opaque":{command.opaque},"serializeTypeCurrentRPC":"JSON","version":{command.version}{remark}}}'
    )
    return header.encode("utf-8", "replace")


def _from_json(header: bytes, body: bytes) -> Command:
    document = json_object(header, "header")
    fields = document.get("extFields") or {}
    remark = document.get("remark")
    if not isinstance(fields, dict) or not (remark is None or isinstance(remark, str)):
        raise WrongFrame("extFields that are no object, or a remark that is no text")
    numbers = [document.get(name, 0) for name in ("code", "opaque", "flag")]
    if not all(type(number) is int and -(1 << 31) <= number < 1 << 31 for number in numbers):
        raise WrongFrame(f"code, opaque and flag {numbers}: numbers of 32 bits")
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in fields.items() if value is not None}
    language, version = document.get("language"), document.get("version")
    language = language if language in LANGUAGES else "OTHER"
    version = version if type(version) is int and -(1 << 15) <= version < 1 << 15 else 0  # a binary header has 16 bits for it
    return Command(numbers[0], texts, body, numbers[1], numbers[2], remark, JSON_ENCODING, language, version)


def _binary_header(command: Command) -> bytes:
    remark = (command.remark or "").encode("utf-8", "replace")
    entries = bytearray()
    for key, value in command.fields.items():
        packed_key, packed_value = key.encode("utf-8", "replace"), value.encode("utf-8", "replace")
        entries += _SHORT.pack(len(packed_key)) + packed_key + _WORD.pack(len(packed_value)) + packed_value
    code = (command.code + 0x8000) % 0x10000 - 0x8000  # RocketMQ keeps 16 bits of it
    fixed = _FIXED.pack(code, LANGUAGES.index(command.language), command.version, command.opaque, command.flag)
    return b"".join((fixed, _WORD.pack(len(remark)), remark, _WORD.pack(len(entries)), bytes(entries)))


def _from_binary(header: bytes, body: bytes) -> Command:
    try:
        code, language, version, opaque, flag = _FIXED.unpack_from(header)
        remark, at = _text(header, _FIXED.size, _WORD)
        (left,) = _WORD.unpack_from(header, at)
        at += _WORD.size
        if left != len(header) - at:
            raise WrongFrame(f"a header with {len(header) - at} bytes of fields: {left} are announced")
        fields = {}
        while at < len(header):
            key, at = _text(header, at, _SHORT)
            fields[key], at = _text(header, at, _WORD)
    except (struct.error, UnicodeDecodeError) as error:
        raise WrongFrame(f"a binary header that ends early or is no text: {error}") from error
    name = LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER"
    return Command(code, fields, body, opaque, flag, remark or None, BINARY_ENCODING, name, version)


def _text(header: bytes, at: int, length: struct.Struct) -> tuple[str, int]:
    """Return a text behind its length, and where it ends."""
    (size,) = length.unpack_from(header, at)
    at += length.size
    if not 0 <= size <= len(header) - at:
        raise WrongFrame(f"a text of {size} bytes in a header with {len(header) - at} left")
    return header[at : at + size].decode(), at + size
