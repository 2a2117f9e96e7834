"""One message: its fields, its body as JSON, text and hex, where its unit and index items are, and which groups took it."""

from __future__ import annotations

import json
import os
from typing import Any

from storageio import REAL_DISK, InvalidMessage, StoreError

from ..tool.backends import MessageLookup, is_rabbitmq
from ..tool.escapes import printable
from ..tool.hints import NoSuchMessage
from .bytes_view import hex_lines
from .views import Model, Request, View

TEXT_MAX, HEX_MAX, FOLDED_MAX = 64 << 10, 2048, 256 << 10  # bytes of a body that are shown
NODES_MAX, DEPTH_MAX = 2000, 24  # of folded JSON
INDEX_FILES_MAX = 8


def message(request: Request, notices: list[str]) -> View:
    """Show one message: by physical offset, or by queue and number."""
    folder = request.open()
    found = _find(request, folder)
    fields = folder.details(found)
    if fields is None:
        raise StoreError("the properties of this message are damaged; Findings names the bytes")
    headers = fields.pop("properties")
    fields.pop("body")
    body, how = _plain_body(folder, found, notices)
    decoded = None
    try:
        decoded = request.schemas.decode(found.queue if is_rabbitmq(folder) else found.topic, body)
    except InvalidMessage as error:
        notices.append(str(error))
    model = Model(
        fields=fields, headers=_flat(headers), size=len(body), how=how, json=request.link("message.json", **request.given),
        raw=request.link("body", **request.given), bytes=request.link("bytes", **_location(folder, found)),
        node=folded(body if decoded is None else decoded.encode()), node_title="JSON" if decoded is None else "By its schema",
        text=_text(body), lines=list(hex_lines(body[:HEX_MAX], 0, 0)), hex_max=HEX_MAX, text_max=TEXT_MAX,
        references=[], taken=None,
    )  # fmt: skip
    if not is_rabbitmq(folder) and folder.facts.has("consumequeue"):
        try:
            model["references"], model["taken"] = _references(folder, found), _taken(folder, found)
        except StoreError as error:
            notices.append(f"{type(error).__name__}: {error}")
    return View("message.html", "Message", model, folder.to_json(found))


def body(request: Request) -> bytes:
    """Return the body of a message, decompressed if it can be."""
    folder = request.open()
    return _plain_body(folder, _find(request, folder), [])[0]


def _find(request: Request, folder: Any) -> Any:
    at, offset = request.number_of("at"), request.number_of("offset")
    queue = MessageLookup(topic=request.text("topic"), queue=request.text("queue"), offset=offset or 0)
    found = next(folder.get(queue if at is None else MessageLookup(at=at)), None)
    if found is None or (at is None and is_rabbitmq(folder) and found.seq_id != offset):
        raise NoSuchMessage(f"{folder.target.path}: no message has this number", "go back to the page of messages")
    return found


def _location(folder: Any, found: Any) -> Model:
    """Return the file and the offset of a message."""
    if is_rabbitmq(folder):
        return {"file": found.file, "offset": found.offset}
    file = folder.files().find(found.physical_offset)
    path = "" if file is None else file.path
    return {"file": _within(folder, path), "offset": found.physical_offset - (0 if file is None else file.start_offset)}


def _within(folder: Any, path: str) -> str:
    return path.removeprefix(os.path.join(folder.target.path, ""))


def _flat(headers: Any, above: str = "") -> list[list[str]]:
    """Return names and values; the headers of AMQP are a table in the properties."""
    rows = []
    for name, value in headers.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{above}{name}.")
        else:
            rows.append([f"{above}{name}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)])
    return rows


def _plain_body(folder: Any, found: Any, notices: list[str]) -> tuple[bytes, str]:
    """Return the body, decompressed where a client compressed it, and how it is shown."""
    if is_rabbitmq(folder) or not found.sys_flag & 1:
        return found.body, "as stored"
    from commitlog.compression import decompress

    try:
        plain = decompress(found.body, found.sys_flag, file=folder.target.path, offset=found.physical_offset)
    except (StoreError, ImportError) as error:
        notices.append(f"{type(error).__name__}: {error}")
        return found.body, "as stored: it could not be decompressed"
    return plain, f"decompressed from {len(found.body)} bytes"


def _text(data: bytes) -> str | None:
    """Return the beginning of a body as text; None if it is no UTF-8."""
    try:
        return data[:TEXT_MAX].decode("utf-8")
    except UnicodeDecodeError as error:
        is_cut = len(data) > TEXT_MAX and error.start >= TEXT_MAX - 3
        return data[: error.start].decode("utf-8") if is_cut else None


class _Number(str):  # of JSON, as it is written
    __slots__ = ()


def folded(data: bytes) -> Model | None:
    """Return a JSON body as nodes with a label and children; None for other bodies, and for ones too large or too deep."""
    if len(data) > FOLDED_MAX or data[:1] not in (b"{", b"["):
        return None
    try:
        found = json.loads(data, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
        return _Folding().node("", found, 0)
    except (ValueError, RecursionError, OverflowError):
        return None


class _Folding:
    """Makes a bounded number of nodes."""

    left = NODES_MAX

    def node(self, name: str, value: Any, depth: int) -> Model:
        self.left -= 1
        if not isinstance(value, (dict, list)):
            text = value if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)
            return {"label": f"{name}{printable(text)}", "children": []}
        pairs = value.items() if isinstance(value, dict) else ((str(at), one) for at, one in enumerate(value))
        kept = pairs if depth < DEPTH_MAX else ()
        children = [self.node(f"{key}: ", one, depth + 1) for key, one in kept if self.left > 0]
        more = "" if len(children) == len(value) else f", {len(value) - len(children)} not shown"
        what = f"{{{len(value)} keys{more}}}" if isinstance(value, dict) else f"[{len(value)} items{more}]"
        return {"label": f"{name}{what}", "children": children}


def _references(folder: Any, found: Any) -> list[list[Any]]:
    """Return what refers to a message, with the file and the byte: its unit, and files with an item of a key."""
    from consumequeue.layout import UNIT_SIZE
    from indexfile import IndexFile, index_paths, item_hash

    rows: list[list[Any]] = []
    with folder.queues() as queues:
        queue, size = queues.get(found.topic, found.queue_id), queues.file_size_bytes
        if queue is not None and found.queue_offset < queue.max_offset:
            at = found.queue_offset * UNIT_SIZE
            rows.append(["unit of the queue", f"{_within(folder, queue.folder)}/{at // size * size:020d}", at % size])
    shape: Any = folder.facts.index_shape((0,)) if folder.facts.has("index") else None
    for path in () if shape is None else reversed(index_paths(REAL_DISK, folder.facts.paths.index)[0]):
        file = IndexFile(REAL_DISK, path, shape.slots, shape.items, writable=False)
        begin, end = file.header.begin_physical_offset, file.header.end_physical_offset
        if begin <= found.physical_offset <= end and len(rows) <= INDEX_FILES_MAX:
            for key in found.keys:
                hits = file.hits(item_hash(found.topic, key), 0, (1 << 63) - 1)
                if any(found.physical_offset == one for _, one in zip(range(10_000), hits, strict=False)):
                    rows.append([f"index item of key {key}", _within(folder, path), 0])
        file.close()
    return rows


def _taken(folder: Any, found: Any) -> list[list[Any]]:
    """Return each group of the topic, its next offset, and whether it acknowledged the message."""
    from ..tool.backends.rocketmq_offsets import show

    rows = [row for row in show(folder, None, found.topic).facts["offsets"] if row["queue_id"] == found.queue_id]
    return [
        [row["group"], "none" if row["offset"] is None else row["offset"],
         "acknowledged" if (row["offset"] or 0) > found.queue_offset else "not acknowledged"] for row in rows
    ]  # fmt: skip
