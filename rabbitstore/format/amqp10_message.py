"""Messages of AMQP 1.0 and their form in AMQP 0-9-1 (docs/formats/rabbitmq-streams.md#messages).

RabbitMQ converts a message of one protocol for a consumer of the other; `to_content` does the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from storageio import InvalidMessage, StoreCorrupt

from . import properties as blocks
from .amqp10 import Amqp10Reader, Described, Special, Symbol
from .message import Content
from .properties import Typed

_HEADER, _DELIVERY, _ANNOTATIONS, _PROPERTIES, _APPLICATION, _DATA, _SEQUENCE, _VALUE, _FOOTER = range(0x70, 0x79)
_SYMBOLS = {
    "amqp:header:list": _HEADER,
    "amqp:delivery-annotations:map": _DELIVERY,
    "amqp:message-annotations:map": _ANNOTATIONS,
    "amqp:properties:list": _PROPERTIES,
    "amqp:application-properties:map": _APPLICATION,
    "amqp:data:binary": _DATA,
    "amqp:amqp-sequence:list": _SEQUENCE,
    "amqp:amqp-value:*": _VALUE,
    "amqp:footer:map": _FOOTER,
}
_FORMS: dict[int, type] = {
    _HEADER: list,
    _DELIVERY: dict,
    _ANNOTATIONS: dict,
    _PROPERTIES: list,
    _APPLICATION: dict,
    _DATA: bytes,
    _SEQUENCE: list,
    _VALUE: object,
    _FOOTER: dict,
}
_SECTIONS_MAX = 1 << 20
_SHORT_MAX = 255
_QUEUES = "/queues/"
_OTHER_BODY = "amqp-1.0"  # the `type` of a converted message whose body is not binary data
_NOT_HEADERS = ("x-exchange", "x-routing-key")
FILTER_VALUE = "x-stream-filter-value"
_MESSAGE_ID, _USER_ID, _TO, _SUBJECT, _REPLY_TO, _CORRELATION_ID, _CONTENT_TYPE, _CONTENT_ENCODING = range(8)
_CREATION_TIME, _GROUP_ID = 9, 10


@dataclass
class Sections:
    """The sections of one message.  `body` is the joined data, or the encoded sections when they are no data."""

    header: list[Any] = field(default_factory=list)
    annotations: dict[Any, Any] = field(default_factory=dict)
    properties: list[Any] = field(default_factory=list)
    application: dict[Any, Any] = field(default_factory=dict)
    body: bytes = b""
    is_data: bool = True

    def of_header(self, index: int) -> Any:
        """Return a field of the header; None when it is absent."""
        return self.header[index] if index < len(self.header) else None

    def of_properties(self, index: int) -> Any:
        """Return a field of the properties; None when it is absent."""
        return self.properties[index] if index < len(self.properties) else None


def read_sections(data: bytes, *, file: str = "AMQP 1.0 message", base: int = 0) -> Sections:
    """Decode a whole message; raise `StoreCorrupt` for anything else."""
    reader, found = Amqp10Reader(data, file, base), Sections()
    parts: list[bytes] = []
    for _ in range(_SECTIONS_MAX):
        if reader.at == len(data):
            break
        start = reader.at
        section = reader.value()
        code = _code(section)
        value: Any = section.value if code is not None else None
        if code is None or not isinstance(value, _FORMS[code]):
            reader.at = start
            raise reader.bad("not a section", "a section of AMQP 1.0", repr(section)[:60])
        _keep(found, code, section.value, parts, data[start : reader.at])
    found.body = b"".join(parts)
    return found


def _code(section: Any) -> int | None:
    if not isinstance(section, Described):
        return None
    code = section.descriptor
    code = _SYMBOLS.get(code) if isinstance(code, Symbol) else code
    return code if isinstance(code, int) and code in _FORMS else None


def _keep(found: Sections, code: int, value: Any, parts: list[bytes], encoded: bytes) -> None:
    match code:
        case 0x70:
            found.header = value
        case 0x72:
            found.annotations = value
        case 0x73:
            found.properties = value
        case 0x74:
            found.application = value
        case 0x75 | 0x76 | 0x77:
            found.is_data = code == _DATA
            parts.append(value if found.is_data else encoded)
        case 0x78 if parts and not found.is_data:  # the server delivers all bytes from the first of these sections on
            parts.append(encoded)


def to_content(sections: Sections, vhost: str, msg_id: bytes = b"") -> Content:
    """Convert to a message of AMQP 0-9-1; a field that cannot be converted is left out."""
    annotations = sections.annotations
    exchange, key = (annotations.get(Symbol(name)) for name in _NOT_HEADERS)
    keys = (key,) if isinstance(key, str) else ()
    durable = sections.of_header(0)
    properties = _properties(sections) | {"delivery_mode": 2 if durable or durable is None else 1}
    return Content(
        vhost,
        exchange if isinstance(exchange, str) else "",
        keys,
        _block(properties),
        sections.body,
        msg_id,
        durable is not False,
    )


def _block(properties: dict[str, Any]) -> bytes:
    try:
        return blocks.encode(properties)
    except InvalidMessage:
        return blocks.encode({name: value for name, value in properties.items() if _can_encode(name, value)})


def _can_encode(name: str, value: Any) -> bool:
    try:
        blocks.encode({name: value})
    except InvalidMessage:
        return False
    return True


def _properties(sections: Sections) -> dict[str, Any]:
    get = sections.of_properties
    headers: dict[str, Any] = {}
    for name, value in sections.annotations.items():
        if isinstance(name, str) and name.startswith("x-") and not name.startswith("x-basic-") and name not in _NOT_HEADERS:
            headers["CC" if name == "x-cc" else str(name)] = to_header(value)
    for name, value in sections.application.items():
        if isinstance(name, str) and len(name.encode("utf-8", "surrogateescape")) <= _SHORT_MAX:
            headers[str(name)] = to_header(value)
    found: dict[str, Any] = {
        "content_type": _short(get(_CONTENT_TYPE)),
        "content_encoding": _short(get(_CONTENT_ENCODING)),
        "message_id": _identifier(get(_MESSAGE_ID), "x-message-id", headers),
        "correlation_id": _identifier(get(_CORRELATION_ID), "x-correlation-id", headers),
        "reply_to": _reply_to(get(_REPLY_TO)),
        "app_id": _short(get(_GROUP_ID)),
        "user_id": _short(_user(get(_USER_ID))),
        "type": _short(sections.annotations.get(Symbol("x-basic-type"))) if sections.is_data else _OTHER_BODY,
        "timestamp": _seconds(get(_CREATION_TIME)),
        "priority": sections.of_header(1),
        "expiration": None if sections.of_header(2) is None else str(sections.of_header(2)),
    }
    found["headers"] = headers or None
    return {name: value for name, value in found.items() if value is not None}


def _reply_to(value: Any) -> str | None:
    """Return the name of a queue; 4.3 stores the address `/queues/<name>`, percent-encoded."""
    text = _short(value)
    if text is None or not text.startswith(_QUEUES):
        return text
    from urllib.parse import unquote  # 2 ms, and only a few messages have such an address

    return unquote(text.removeprefix(_QUEUES))


def _short(value: Any) -> str | None:
    is_short = isinstance(value, str) and len(value.encode("utf-8", "surrogateescape")) <= _SHORT_MAX
    return str(value) if is_short else None


def _user(value: Any) -> str | None:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else None


def _seconds(value: Any) -> int | None:
    return value.value // 1000 if isinstance(value, Special) and value.name == "timestamp" and value.value >= 0 else None


def _identifier(value: Any, header: str, headers: dict[str, Any]) -> str | None:
    """Return an id as a short string; one that is too long goes into a header."""
    if isinstance(value, Special):
        return f"urn:uuid:{value.value}" if value.name == "uuid" else None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bytes):
        headers[header] = Typed("x", value)
        return None
    if isinstance(value, str) and _short(value) is None:
        headers[header] = str(value)
    return _short(value)


def to_header(value: Any) -> Any:
    """Convert a value to one of a header table."""
    if isinstance(value, Described | Special):
        return to_header(value.value) if isinstance(value, Described) else _special_header(value)
    if isinstance(value, dict):
        return {str(key): to_header(part) for key, part in value.items()}
    if isinstance(value, list):
        return [to_header(part) for part in value]
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 63:
        return value - (1 << 64)
    return str(value) if isinstance(value, str) else value  # a binary is a long string, as the server converts it


def _special_header(value: Special) -> Any:
    if value.name == "timestamp":
        return Typed("T", max(value.value // 1000, 0))
    if value.name == "float":
        return Typed("f", value.value)
    return value.value if isinstance(value.value, str) else Typed("x", value.value)


def try_sections(data: bytes) -> Sections | None:
    """Decode a message; return None for bytes that are not AMQP 1.0."""
    try:
        return read_sections(data)
    except StoreCorrupt:
        return None
