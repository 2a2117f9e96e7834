"""Targets that need files of a store on a disk in memory, or files of rows to import."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

from brokerstore.file_import import _numbered
from consumequeue.batch import batch_offset_by_time
from consumequeue.batch_queues import BatchQueues
from consumequeue.boundary import Boundary
from consumequeue.ext import ConsumeQueueExt
from lab import rocketmq_lab
from messagestore.broker.config.broker_properties import parse_broker_properties
from messagestore.broker.config.consumer_offsets import ConsumerOffsets, LmqConsumerOffsets
from messagestore.broker.config.delay_offsets import DelayOffsets
from messagestore.broker.config.subscription_groups import SubscriptionGroups
from messagestore.broker.config.topics import Topics
from messagestore.broker.services.wire_batch import decode_wire_batch
from messagestore.repair.config_check import ConsumerFilters
from storageio import StoreError
from storageio.testing import ForgettingDisk, Image
from tests.stores import encode_wire_batch

BATCH_UNIT_SIZE = 46
FIRST = f"{0:020d}"
POOL = {"transient_store_pool_enable": True, "transient_store_ring_size": 1}
PUT = ("put", "T", 0, 40, 1)
PATCHED = 160  # bytes of data for the ring's head; the rest overwrites records after the noted position
RING_HEAD = 4096


def _disk_with(path: str, data: bytes) -> ForgettingDisk:
    folders = [str(above) for above in Path(path).parents if str(above) != "/"]
    return ForgettingDisk.of(Image({path: data}, tuple(sorted(folders)), {path: 0}))


def extended_units(data: bytes) -> None:
    """Each unit that a walk finds is found by its address too."""
    files = ConsumeQueueExt(_disk_with(f"/ext/{FIRST}", data), "/ext", max(len(data), 1))
    for address, unit in files.units():
        assert files.unit(address) == unit and files.tags_code(address) == unit.tags_code


def batch_units(data: bytes) -> None:
    """Units with any numbers are counted, read and searched by offset and by time."""
    size = max(len(data) // BATCH_UNIT_SIZE, 1) * BATCH_UNIT_SIZE
    queues = BatchQueues(
        _disk_with(f"/bcq/T/0/{FIRST}", data[:size].ljust(size, b"\0")), "/bcq", writable=False, file_size_bytes=size
    )
    queue = queues.get("T", 0)
    if queue is not None:
        assert len(list(queue.units())) == queue.stop_index - queue.first_index
        for requested in (-1, 0, queue.min_offset, queue.max_offset, 1 << 62):
            assert queue.first_index <= queue.index_of(requested) <= queue.stop_index
        for boundary in Boundary:
            batch_offset_by_time(queue, 1 << 40, boundary)


def wire_batch(data: bytes) -> None:
    """A decoded batch can be encoded and decoded again."""
    messages = decode_wire_batch("T", 0, data, b"")
    again = decode_wire_batch("T", 0, encode_wire_batch(messages), b"")
    assert [(message.body, message.flag) for message in again] == [(message.body, message.flag) for message in messages]


def broker_properties(data: bytes) -> None:
    """Parse a broker's broker.conf."""
    parse_broker_properties(data, file="fuzz")


def config_tables(data: bytes) -> None:
    """Read every table of a broker's configuration from the same JSON, and write it again."""
    for table in (Topics, SubscriptionGroups, ConsumerOffsets, LmqConsumerOffsets, DelayOffsets, ConsumerFilters):
        disk = _disk_with(f"/config/{table.file_name}", data)
        try:
            made = table(disk, "/config")
        except StoreError:
            continue
        made._change()
        made.persist()
        assert table(disk, "/config").damage is None


def json_lines(data: bytes) -> None:
    """Read the rows of a JSON Lines file."""
    _import_rows(data, "jsonl")


def parquet_rows(data: bytes) -> None:
    """Read the rows of a Parquet file."""
    _import_rows(data, "parquet")


def _import_rows(data: bytes, ending: str) -> None:
    path = f"{_scratch()}/rows.{ending}"
    Path(path).write_bytes(data)
    for number, message in _numbered(path):
        assert number > 0 and isinstance(message.body, bytes)


@functools.cache
def _scratch() -> str:
    memory = "/dev/shm"
    folder = tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None)
    _kept.append(folder)
    return folder.name


_kept: list[tempfile.TemporaryDirectory[str]] = []


def pool_ring(data: bytes) -> None:
    """Open the image of a killed process with a changed ring: the log's messages must stay."""
    image, time_ms, path, tail_at = _killed_with_a_ring()
    ring = bytearray(image.files[path])
    head, tail = data[:PATCHED], data[PATCHED:]
    ring[: len(head)] = head
    ring[tail_at : tail_at + len(tail)] = tail[: len(ring) - tail_at]
    disk = ForgettingDisk.of(image._replace(files={**image.files, path: bytes(ring)}), time_ms)
    config = rocketmq_lab.lab_config(**POOL)
    for _ in range(2):
        store = rocketmq_lab.open_still(disk, config)
        found = [message.body for message in store.read("T", 0)]
        rocketmq_lab.abandon(store)
    assert found[:2] == [body_of(1), body_of(2)], "what the log had is there whatever the ring says"


@functools.cache
def _killed_with_a_ring() -> tuple[Image, int, str, int]:
    """Return the image of a killed process, its time, the ring's path, and the offset in it after the noted records."""
    run = rocketmq_lab.RocketmqRun(1, config=rocketmq_lab.lab_config(**POOL), tries=False)
    for operation in (PUT, PUT, ("bring",), ("flush",), PUT, PUT):
        run.do(operation)
        if operation == ("flush",):
            recorded = run.ledger.end_offset
    image = run.disk.after_kill()
    rocketmq_lab.abandon(run.store)
    path = next(name for name in image.files if name.endswith("/brokerstore/ring"))
    return image, run.disk.time_ms, path, RING_HEAD + recorded % int.from_bytes(image.files[path][8:16], "little")


def seeds_of_ring() -> bytes:
    """Return the unchanged ring as a seed for the corpus."""
    image, _time_ms, path, tail_at = _killed_with_a_ring()
    ring = image.files[path]
    return ring[:PATCHED] + ring[tail_at : tail_at + 700]


def body_of(number: int) -> bytes:
    """Return the body of a message of the lab: 1 and 2 are in the log, 3 and 4 only in the ring."""
    return b"%08d" % number + b"." * 32
