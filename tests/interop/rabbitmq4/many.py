"""Random programs for many queues of one server of any release, and all of what it delivers after its restart.

A start takes longer than everything else, so each life of a server has dozens of programs.  All queues are consumed on a few
channels together.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from rabbitstore.cluster import cluster_queues
from rabbitstore.node_folder import NodeFolder

from .judge import Judge, end_of_index
from .programs import DEAD, NAMES_SAVED_S, REFUSED, Program, classic_arguments, quorum_arguments, stream_arguments
from .years import DECIMAL, HEADERS, HOUR_MS, LOST_BY_START, WITHOUT_STREAMS, Row, dated, plain, row_of

QUEUES_OF_A_CHANNEL, CONNECTIONS = 12, 8
SUFFIXES = ("", ".\u00e4\u00fc", ".\u0416", ".\U0001f407", " %2F/..")
SIDES = ("side", "s\u00efde")  # get copies of CC and BCC
_LATIN = {chr(code) for name in LOST_BY_START for code in map(ord, name) if code > 127}
_QUIET_S, _PATIENCE_S = 2.0, 25.0
Arguments = dict[str, dict[str, Any]]


def names_of(suite: str, seed: int, count: int) -> list[str]:
    """Return names for programs: of classic and quorum queues alike, and of some streams."""
    kinds = "cqcqcqcqcs" if suite not in WITHOUT_STREAMS else "cq"
    found = []
    for number in range(count):
        kind, suffix = kinds[number % len(kinds)], SUFFIXES[number % len(SUFFIXES)]
        if suite in WITHOUT_STREAMS and kind == "q" and _LATIN & set(suffix):
            suffix = ""
        found.append(f"{kind}{seed}.{number}{suffix}")
    return found


def arguments_of(suite: str, name: str, chance: random.Random) -> dict[str, Any]:
    """Return random arguments for a queue that the server of a release accepts."""
    make = {"c": classic_arguments, "q": quorum_arguments, "s": stream_arguments}[name[0]]
    found = make(chance)
    if name[0] == "c":
        if chance.random() < 0.2 and suite in ("bullseye", "bookworm"):
            found["x-queue-mode"] = "lazy"
        if chance.random() < 0.4 and suite == "bookworm":
            found["x-queue-version"] = 2
    elif name[0] == "q":
        found.pop("x-single-active-consumer", None)  # such a queue refuses `basic.get`, with which programs read
        if chance.random() < 0.2 and suite != "bullseye":
            found["x-message-ttl"] = HOUR_MS
        for unknown in REFUSED.get(suite, ()):
            found.pop(unknown, None)
    return found


class RichProgram(Program):
    """A program whose messages have properties and headers of every type, copies, and times to live."""

    def message(self) -> Any:
        """Return the properties of the next message."""
        import pika

        chance = self.chance
        headers: dict[str, Any] = {"n": self.number}
        if chance.random() < 0.2:
            headers |= HEADERS | (DECIMAL if self.queue[0] != "s" else {})
        if chance.random() < 0.1 and self.queue[0] != "s":
            headers |= {chance.choice(["CC", "BCC"]): [chance.choice(SIDES)]}
        more: dict[str, Any] = {}
        if chance.random() < 0.3:
            more |= {"content_type": "text/plain", "correlation_id": "\u00e4-1", "type": "t", "timestamp": 1_700_000_000}
        if chance.random() < 0.1 and self.queue[0] != "s":
            more["expiration"] = chance.choice(["1", str(HOUR_MS)])
        return pika.BasicProperties(
            message_id=f"{self.queue}-{self.number}",
            delivery_mode=1 if chance.random() < self.transient else 2,
            priority=chance.choice([None, 0, 1, 4, 5, 9]),
            headers=headers,
            **more,
        )


def declare(judge: Judge, suite: str, names: list[str], chance: random.Random) -> Arguments:
    """Declare a queue for each name, and those of dead letters and copies; return the arguments of all."""
    found: Arguments = {DEAD: {}, **{name: {} for name in SIDES}}
    with closing(judge.connect()) as connection:
        for name in names:
            found[name] = arguments_of(suite, name, chance)
        for name, arguments in found.items():
            connection.channel().queue_declare(name, durable=True, arguments=arguments)
    time.sleep(NAMES_SAVED_S)
    return found


def run_and_end(judge: Judge, names: list[str], seed: int, duration_s: float, how: signal.Signals) -> int:
    """Run a program for each queue, end the server meanwhile, and return the number of steps; 0 if it did not stop."""
    programs = [RichProgram(judge, name, seed * 1000 + number) for number, name in enumerate(names)]
    for program in programs:
        program.start()
    time.sleep(duration_s)
    has_stopped = True
    try:
        judge.server.end(how)
    except TimeoutExpired:
        has_stopped = False
    for program in programs:
        program.join(30)
    return sum(program.steps for program in programs) * has_stopped


def delivered(judge: Judge, queues: Arguments, counts: dict[str, int]) -> dict[str, list[Row] | str]:
    """Return everything that the running server delivers of each queue, or its error; `counts` are those to wait for."""
    streams = [name for name, arguments in queues.items() if arguments.get("x-queue-type") == "stream"]
    others = [name for name in queues if name not in streams]
    parts = [others[start : start + QUEUES_OF_A_CHANNEL] for start in range(0, len(others), QUEUES_OF_A_CHANNEL)]
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        drained = pool.map(lambda name: judge.drain(name, "stream", counts[name]), streams)
        consumed = list(pool.map(lambda part: _consumed(judge, part, counts), parts))
        found: dict[str, list[Row] | str] = {}
        for name, got in zip(streams, drained, strict=True):
            found[name] = got if isinstance(got, str) else [plain(one.message_id or "", one.body) for one in got]
    return found | {name: rows for part in consumed for name, rows in part.items()}


def _consumed(judge: Judge, names: list[str], counts: dict[str, int]) -> dict[str, list[Row] | str]:
    """Consume some queues on one connection until nothing comes any more."""
    found: dict[str, list[Row] | str] = {}
    with closing(judge.connect()) as connection:
        for name in names:
            try:
                _wait_for_returns(connection, name, counts[name])
            except Exception as error:  # of pika: what the server answered is the result
                found[name] = f"{type(error).__name__} {error}"[:160]
        rows: dict[str, list[Row]] = {name: [] for name in names if name not in found}
        channel, last = connection.channel(), time.monotonic()

        def take(name: str, method: Any, properties: Any, content: bytes) -> None:
            nonlocal last
            last = time.monotonic()
            rows[name].append(row_of(method, properties, content))

        for name in rows:
            channel.basic_consume(name, lambda _own, *got, name=name: take(name, *got))  # type: ignore[misc]
        count = sum(counts[name] for name in rows)
        while time.monotonic() - last < (_QUIET_S if sum(map(len, rows.values())) >= count else _PATIENCE_S):
            connection.process_data_events(0.1)
    return found | rows


def _wait_for_returns(connection: Any, name: str, count: int) -> None:
    """Wait until the server has returned what consumers held, or a number that stays as it is."""
    channel, stop = connection.channel(), time.monotonic() + _PATIENCE_S
    seen, since = -1, time.monotonic()
    while time.monotonic() < stop:
        ready = channel.queue_declare(name, passive=True).method.message_count
        if ready != seen:
            seen, since = ready, time.monotonic()
        if ready == count or time.monotonic() - since > 3 * _QUIET_S:
            return
        connection.process_data_events(0.2)


def differences(queues: Arguments, expected: dict[str, list[Row]], got: dict[str, list[Row] | str]) -> dict[str, Any]:
    """Return what each queue delivers if it is not the expected: both numbers, and the first rows that differ.

    The start itself may add dead letters behind the expected ones.
    """
    found: dict[str, Any] = {
        name: (len(rows), "no such queue") for name, rows in expected.items() if rows and name not in queues
    }
    for name in queues:
        rows, other = expected.get(name, []), got[name]
        if isinstance(other, str):
            found[name] = len(rows), other
        elif rows != (other[: len(rows)] if name == DEAD else other):
            pairs = ((one, two) for one, two in zip(rows, other, strict=False) if one != two)
            fields = [
                (field, a, b) for field, a, b in zip(Row._fields, *next(pairs, (Row(*[""] * 6),) * 2), strict=True) if a != b
            ]  # type: ignore[arg-type]
            found[name] = len(rows), len(other), [tuple(str(one)[:300] for one in each) for each in fields], queues[name]
    return found


def expected(node: Path, queues: Arguments, others: Sequence[Path] = ()) -> dict[str, list[Row]]:
    """Return what a restarted server, or those of a cluster, should deliver of each queue, by what `dump` lists."""
    rows = {}
    for name, each in dated(
        node, queues, others=others
    ).items():  # a start drops the first ones of a classic queue above its limit
        limit = queues.get(name, {}).get("x-max-length", 0) if name[0] == "c" else 0
        rows[name] = [row for row, is_expired in each[-limit:] if not is_expired]
    newest = {one.queue: one.copies[0].folder for one in cluster_queues([str(path) for path in (node, *others)], "/")}
    for path in (node, *others):
        with closing(NodeFolder(str(path), "/")) as folder:
            streams = [stream for stream in folder.streams if newest[stream.queue] == str(path)]
        for stream in streams:
            stop = end_of_index(stream)
            ids = ((one.properties.get("message_id") or "", one.body) for one in stream.messages() if one.seq_id < stop)
            rows[stream.queue] = [plain(*one) for one in ids]
    return rows
