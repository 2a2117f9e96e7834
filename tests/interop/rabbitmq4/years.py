"""What every release of RabbitMQ is asked to store: the features whose messages lie differently in its files.

A folder of it is judged by what the same server delivers after a restart, message by message.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import decimal
import json
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.brokerstore.tool import run

from .judge import Judge
from .programs import body

SUITES = {"bullseye": "3.8.9", "bookworm": "3.10.8", "trixie": "4.0.5", "sid": "4.3.6"}
WITHOUT_STREAMS = ("bullseye",)
LOST_BY_START = ("q.\u00e4", "q.\u00fc")  # by 3.8: it writes these names in a form that it cannot read
DEAD = "dead"
UMLAUT, CYRILLIC, EMOJI = "c.\u00e4\u00fc", "c.\u0416", "c.\U0001f407"
SIZES = (60, 5000, 300, 9000)
COUNT, HELD = 8, 3
PATIENCE_S = 5
COUNTED = {"x-delivery-count", "x-acquired-count"}  # the server adds these to what it gave out before
NAMES_SAVED_S = 7.0  # the server writes the names of new quorum queues and streams after five seconds
HOUR_MS = 3_600_000
DEAD_LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
CLASSIC: dict[str, dict[str, Any]] = {
    DEAD: {}, "blind": {}, "copy": {}, "c.plain": {}, UMLAUT: {}, CYRILLIC: {}, EMOJI: {},
    "c.prio": {"x-max-priority": 3}, "c.ttl": {"x-message-ttl": HOUR_MS}, "c.max": {"x-max-length": 3} | DEAD_LETTERS,
    "c.work": DEAD_LETTERS, "c.expiring": DEAD_LETTERS, "c.lazy": {"x-queue-mode": "lazy"}, "c.held": {},
}  # fmt: skip
LOGGED: dict[str, dict[str, Any]] = {
    name: {"x-queue-type": "quorum"} for name in ("q.plain", "q.\u00e4", "q.\u00fc", "q.\u0416", "q.\U0001f407", "q.held")
} | {
    "q.work": {"x-queue-type": "quorum"} | DEAD_LETTERS,
    "q.max": {"x-queue-type": "quorum", "x-max-length": 3} | DEAD_LETTERS,
    "s.plain": {"x-queue-type": "stream"},
    "s.\u00e4\u0416": {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 20_000},
}
VERSION_2 = {"c.two": {"x-queue-version": 2}, "c.two.work": {"x-queue-version": 2} | DEAD_LETTERS}
HEADERS = {
    "text": "\u00e4\u0416", "number": 42, "long": 2**40, "negative": -5, "yes": True, "none": None, "bytes": b"\0\xff\1",
    "list": [1, "two", {"three": 3}], "table": {"x": {"y": [True, None]}}, "time": datetime.datetime(2024, 1, 2, 3, 4, 5),
}  # fmt: skip
DECIMAL = {"decimal": decimal.Decimal("1.5")}  # 4.0 closes the channel of a stream for it


class Row(NamedTuple):
    """One message of a queue, as the server delivers it or as `dump` lists it."""

    message_id: str
    body: bytes
    redelivered: bool
    exchange: str
    routing_key: str
    properties: str


class Folder(NamedTuple):
    """A saved folder and the queues that its server has."""

    path: Path
    queues: dict[str, dict[str, Any]]


def queues_of(suite: str) -> dict[str, dict[str, Any]]:
    """Return the queues of a release with their arguments."""
    logged = LOGGED
    if suite in WITHOUT_STREAMS:
        logged = {name: found for name, found in LOGGED.items() if name[0] == "q" and name not in LOST_BY_START}
    return CLASSIC | logged | (VERSION_2 if suite == "bookworm" else {})


def make_folders(judge: Judge, suite: str, above: Path) -> dict[str, Folder]:
    """Save the folder of a node that was stopped cleanly, and of the same one killed later."""
    queues = queues_of(suite)
    assert not judge.start(), judge.log()[-2000:]
    connection = judge.connect()
    for name, arguments in queues.items():
        connection.channel().queue_declare(name, durable=True, arguments=arguments)
    connection.close()
    time.sleep(NAMES_SAVED_S)
    found = {}
    for life, how in enumerate((signal.SIGTERM, signal.SIGKILL)):
        if life:
            assert not judge.start(), judge.log()[-2000:]
        connections = [_publish(judge, list(queues), life), _hold(judge, list(queues))]
        time.sleep(1)
        judge.server.end(how)
        for connection in connections:
            with contextlib.suppress(Exception):
                connection.close()
        found[how.name] = Folder(judge.save(above / how.name), queues)
    return found


def _publish(judge: Judge, queues: list[str], life: int) -> Any:
    """Fill every queue, have messages of some dead-lettered, and copy some."""
    import pika

    connection = judge.connect()
    channel = connection.channel()
    channel.confirm_delivery()

    def publish(name: str, number: int, **more: Any) -> None:
        headers = dict(more.pop("headers", {}))
        properties = pika.BasicProperties(
            delivery_mode=2, message_id=f"{name}-{life}-{number}", headers={"n": number} | headers, **more
        )
        with contextlib.suppress(pika.exceptions.NackError):
            channel.basic_publish("", name, body(f"{name}-{life}", number, SIZES[number % len(SIZES)]), properties)

    for name in queues:
        if name not in (DEAD, "blind", "copy"):
            for number in range(COUNT):
                more = {"expiration": "1"} if name == "c.expiring" and number < 3 else {}
                rich = HEADERS if name.startswith("s.") else HEADERS | DECIMAL
                publish(name, number, headers=rich if number == 1 else {}, priority=number % 5, **more)
    publish("c.plain", COUNT, headers={"CC": ["copy"], "BCC": ["blind", "c.\u00e4\u00fc"]})
    publish("c.plain", COUNT + 1, expiration=str(HOUR_MS), content_type="text/plain", correlation_id="\u00e4-1", app_id="lab")
    for name in ("c.work", "q.work", "c.two.work"):
        for _ in range(3 if name in queues else 0):
            channel.basic_reject(channel.basic_get(name)[0].delivery_tag, requeue=False)
    return connection


def _hold(judge: Judge, queues: list[str]) -> Any:
    """Hold deliveries of some queues, and return others to them."""
    connection = judge.connect()
    channel = connection.channel()
    for name in ("c.held", "q.held", "c.two", "c.prio"):
        for number in range(2 * HELD if name in queues else 0):
            tag = channel.basic_get(name)[0].delivery_tag
            if number % 2:
                channel.basic_nack(tag, requeue=True)
    connection.process_data_events(0)
    return connection


def delivered(judge: Judge, queues: dict[str, dict[str, Any]], counts: dict[str, int]) -> dict[str, list[Row] | str]:
    """Return everything that each queue of the running server delivers, or its error; `counts` are those to wait for."""
    with ThreadPoolExecutor(8) as pool:
        return dict(
            zip(queues, pool.map(lambda name: _of(judge, name, queues[name], counts.get(name, 0)), queues), strict=True)
        )


def _of(judge: Judge, name: str, arguments: dict[str, Any], count: int) -> list[Row] | str:
    if arguments.get("x-queue-type") != "stream":
        return _got(judge, name, count)
    got = judge.drain(name, "stream", count)
    return got if isinstance(got, str) else [plain(one.message_id or "", one.body) for one in got]


def _got(judge: Judge, name: str, count: int) -> list[Row] | str:
    """Get messages until there are none, with some patience for those that a restarted server still returns."""
    try:
        connection = judge.connect()
        channel = connection.channel()
        rows: list[Row] = []
        stop = time.monotonic() + PATIENCE_S
        while True:
            method, properties, content = channel.basic_get(name, auto_ack=True)
            if method is not None:
                rows.append(row_of(method, properties, content))
            elif len(rows) >= count or time.monotonic() > stop:
                break
            else:
                time.sleep(0.2)
        connection.close()
    except Exception as error:  # of pika: what the server answered is the result
        return f"{type(error).__name__} {error}"[:160]
    return rows


def row_of(method: Any, properties: Any, content: bytes) -> Row:
    """Return a message as a client gets it."""
    text = _text({name: value for name, value in vars(properties).items() if value is not None})
    return Row(properties.message_id or "", content, method.redelivered, method.exchange, method.routing_key, text)


def _text(properties: dict[str, Any]) -> str:
    """Return properties with the values of headers as a text that `dump` and the client agree on."""
    headers = {name: value for name, value in (properties.get("headers") or {}).items() if name not in COUNTED}
    return json.dumps(properties | {"headers": headers}, default=_json, sort_keys=True)


def _json(value: Any) -> Any:
    """Return the JSON that `dump` writes for a value of a header."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime.datetime):
        return int(value.replace(tzinfo=datetime.UTC).timestamp())
    return str(value)


def plain(message_id: str, content: bytes) -> Row:
    """Return a message of a stream, whose place and headers other tests compare."""
    return Row(message_id, content, False, "", "", "")


def listed(node: Path, queues: dict[str, dict[str, Any]], now_us: int = 0) -> dict[str, list[Row]]:
    """Return what `dump` lists of each queue, without what a start at a time drops or passes on."""
    return {name: [row for row, _is_expired in rows if not _is_expired] for name, rows in dated(node, queues, now_us).items()}


def dated(
    node: Path, queues: dict[str, dict[str, Any]], now_us: int = 0, others: Sequence[Path] = ()
) -> dict[str, list[tuple[Row, bool]]]:
    """Return what `listed` does, with expired messages, and whether each is; of a cluster with the folders of other nodes."""
    found: dict[str, list[tuple[Row, bool]]] = {name: [] for name in queues}
    now_us = now_us or time.time_ns() // 1000
    for one in run("dump", "--json", node, *others).lines:
        is_kept = one.get("persistent", True) or "state" in one  # by quorum queues, whatever the mode
        if one.get("acked") or one.get("reason") or not is_kept:
            continue
        properties, content = one["properties"], base64.b64decode(one["body_base64"])
        message_id = properties.get("message_id", "")
        row = Row(message_id, content, one["redelivered"], one["exchange"], (one["routing_keys"] or [""])[0], _text(properties))
        is_stream = queues.get(one["queue"], {}).get("x-queue-type") == "stream"
        is_expired = 0 < (one.get("expiry_us") or 0) < now_us
        found.setdefault(one["queue"], []).append((plain(message_id, content) if is_stream else row, is_expired))
    return found


def write_delivered(file: Path, release: str, found: dict[str, list[Row] | str]) -> None:
    """Save what a server delivered of each queue, and when."""
    rows = {
        name: got if isinstance(got, str) else [row._asdict() | {"body": row.body.hex()} for row in got]
        for name, got in found.items()
    }
    text = {"release": release, "made_us": time.time_ns() // 1000, "queues": rows}
    file.write_text(json.dumps(text, ensure_ascii=False))


def read_delivered(file: Path) -> tuple[int, dict[str, list[Row]]]:
    """Return when a server delivered what."""
    found = json.loads(file.read_text())
    rows = found["queues"].items()
    return found["made_us"], {name: [Row(**row | {"body": bytes.fromhex(row["body"])}) for row in got] for name, got in rows}


def served(
    judge: Judge, node: Path, queues: dict[str, dict[str, Any]], expected: dict[str, list[Row]], *, exact: bool = True
) -> list[str]:
    """Start the server on a copy of a folder and describe how what it delivers differs from the expected.

    The start itself may add dead letters behind the expected ones.  If not `exact`, only ids and bodies count.
    """
    judge.put_back(node)
    if why := judge.start():
        return [f"the server does not start: {why[-300:]}"]
    try:
        got = delivered(judge, queues, {name: len(rows) for name, rows in expected.items()})
    finally:
        judge.kill()
    nameless = [f"{name}: {len(rows)} listed, no such queue" for name, rows in expected.items() if rows and name not in queues]
    differences = (_difference(name, queues[name], expected.get(name, []), got[name], exact=exact) for name in queues)
    return nameless + [text for text in differences if text]


def _difference(name: str, arguments: dict[str, Any], expected: list[Row], got: list[Row] | str, *, exact: bool) -> str:
    if isinstance(got, str):
        return f"{name}: {len(expected)} listed, {got}" if expected else ""
    if name == DEAD:
        got = got[: len(expected)]
    if not exact:
        if arguments.get("x-queue-type") != "quorum":  # a start removes those above the limit
            expected = expected[-arguments.get("x-max-length", len(expected) + 1) :]
        expected, got = ([plain(*row[:2]) for row in rows] for rows in (expected, got))
    if expected == got:
        return ""
    first = next(((one, other) for one, other in zip(expected, got, strict=False) if one != other), None)
    fields = [f"{field} {a!r} {b!r}"[:300] for field, a, b in zip(Row._fields, *first, strict=True) if a != b] if first else []
    return f"{name}: {len(expected)} listed, {len(got)} delivered {'; '.join(fields)}"
