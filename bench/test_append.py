"""Appends and scans of the commit log, for bodies of 100 bytes and 1 KiB, with and without the whole-record checksum."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from bench.conftest import PROPERTIES, TOPIC, Duel
from tests.builds import World

SIZES = pytest.mark.parametrize("body_size", [100, 1024])
CRC = pytest.mark.parametrize("with_crc", [True, False], ids=["crc", "no-crc"])


class Ours:
    """An appender over one map, reset before each round."""

    def __init__(self, world: World, view: memoryview, with_crc: bool) -> None:
        self.view = view
        host = world.module("commitlog.hosts").encode_host("127.0.0.1:124")
        offsets = world.commitlog.QueueOffsets()
        self.appender = world.commitlog.Appender(self._full, len(view), offsets, host, with_crc)
        self.reset()

    def _full(self) -> tuple[memoryview, int]:
        raise AssertionError("the map is too small for a round")

    def reset(self) -> None:
        self.appender.attach(self.view, 0, 0)


@pytest.fixture
def ours(maps: tuple[memoryview, memoryview]) -> Callable[[World, bool], Ours]:
    """Return a function that makes an appender for a build and a checksum setting."""
    return lambda world, with_crc: Ours(world, maps[0], with_crc)


@CRC
@SIZES
def test_append_encoded(duel: Duel, ours: Any, world: World, body_size: int, with_crc: bool) -> None:
    """It gets body, topic and encoded properties, as the baseline does."""
    log, body = ours(world, with_crc), b"b" * body_size
    count = duel.count(body_size, plain=str(world) == "plain")

    def run() -> None:
        append = log.appender.append_encoded
        for _ in range(count):
            append(TOPIC, 0, body, PROPERTIES)

    duel.run("append encoded", world, body_size, with_crc, count, run, log.reset)
    assert log.appender.position > count * body_size


@SIZES
@pytest.mark.parametrize("kind", ["raw message", "message", "message made"])
def test_append_message(duel: Duel, ours: Any, world: World, body_size: int, kind: str) -> None:
    """Messages have raw properties, or tags, keys and properties, or are made in the loop."""
    log, body, make = ours(world, True), b"b" * body_size, world.commitlog.Message
    count = duel.count(body_size, plain=str(world) == "plain")
    ready = make(TOPIC, body, queue_id=0, properties_raw=PROPERTIES)
    if kind == "message":
        ready = make(TOPIC, body, queue_id=0, tags="paid", keys=["order-17"], properties={"k": "v"})

    def run() -> None:
        append = log.appender.append
        for _ in range(count):
            append(ready)

    def run_made() -> None:
        append = log.appender.append
        for _ in range(count):
            append(make(TOPIC, body, queue_id=0, tags="paid", keys=["order-17"]))

    duel.run(f"append {kind}", world, body_size, True, count, run_made if kind == "message made" else run, log.reset)
    assert log.appender.position > count * body_size


@CRC
@SIZES
def test_append_many(duel: Duel, ours: Any, world: World, body_size: int, with_crc: bool) -> None:
    """A call gets a thousand prepared messages."""
    log, body = ours(world, with_crc), b"b" * body_size
    count = duel.count(body_size, plain=str(world) == "plain")
    group = min(1000, count)
    messages = [world.commitlog.Message(TOPIC, body, queue_id=0, properties_raw=PROPERTIES) for _ in range(group)]

    def run() -> None:
        for _ in range(count // group):
            log.appender.append_many(messages)

    duel.run("many", world, body_size, with_crc, count, run, log.reset)
    assert log.appender.position > count * body_size


@CRC
@SIZES
def test_append_columns(duel: Duel, ours: Any, world: World, body_size: int, with_crc: bool) -> None:
    """A call gets ten thousand bodies in one buffer."""
    log = ours(world, with_crc)
    count = duel.count(body_size, plain=str(world) == "plain")
    group = min(10_000, count)
    bodies, offsets = b"b" * body_size * group, array("q", range(0, body_size * group + 1, body_size))

    def run() -> None:
        for _ in range(count // group):
            log.appender.append_columns(TOPIC, 0, offsets, bodies, properties=PROPERTIES)

    duel.run("columns", world, body_size, with_crc, count, run, log.reset)
    assert log.appender.position > count * body_size


@CRC
@SIZES
def test_scan(duel: Duel, ours: Any, world: World, body_size: int, with_crc: bool) -> None:
    """Every length and checksum of every record is checked; the baseline checks only the body's."""
    log = ours(world, with_crc)
    count = duel.count(body_size, plain=str(world) == "plain")
    for _ in range(count):
        log.appender.append_encoded(TOPIC, 0, b"b" * body_size, PROPERTIES)
    walk, stop = world.module("commitlog._scan_cy").scan, log.appender.position
    assert walk(log.view, 0, stop)[2] == count
    duel.run("scan", world, body_size, with_crc, count, lambda: walk(log.view, 0, stop), lambda: None, is_scan=True)


@SIZES
def test_read_objects(duel: Duel, ours: Any, world: World, body_size: int) -> None:
    """Message objects are read with all checks."""
    log = ours(world, True)
    count = duel.count(body_size, plain=str(world) == "plain")
    for _ in range(count):
        log.appender.append_encoded(TOPIC, 0, b"b" * body_size, PROPERTIES)
    reader, stop = world.module("commitlog._scan_cy").Reader(log.view), log.appender.position

    def run() -> None:
        at = 0
        while at < stop:
            _, at, _ = reader.decode_range(at, stop, 256)

    duel.run("read objects", world, body_size, True, count, run, lambda: None, is_scan=True)


@SIZES
def test_read_arrow(duel: Duel, ours: Any, world: World, body_size: int) -> None:
    """Every column is read as Arrow batches with all checks."""
    pytest.importorskip("pyarrow")
    log = ours(world, True)
    count = duel.count(body_size, plain=str(world) == "plain")
    for _ in range(count):
        log.appender.append_encoded(TOPIC, 0, b"b" * body_size, PROPERTIES)
    read, stop = world.commitlog.read_columns, log.appender.position
    rows = [0]

    def run() -> None:
        rows[0] = sum(batch.num_rows for batch in read(log.view, 0, stop))

    duel.run("read arrow", world, body_size, True, count, run, lambda: None, is_scan=True)
    assert rows[0] == count
