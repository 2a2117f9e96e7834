"""Logs in memory for tests of the kernels, and the messages of the fixtures as a put would take them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import Any

from tests.builds import World

HOST = "127.0.0.1:124"
FIXTURES = ("plain", "propcrc", "lmq", "batchcq", "cqext", "broker-live", "broker-ext")


class MemoryLog:
    """An appender whose files are bytearrays; `fail` makes the next file fail."""

    def __init__(
        self,
        world: World,
        size: int = 65536,
        *,
        with_crc: bool = False,
        clock: Callable[[], int] | None = lambda: 1700000000123,
        host: str = HOST,
        first: int = 0,
        **options: Any,
    ) -> None:
        self.files: list[bytearray] = []
        self.first = first
        self.size = size
        self.fail: Exception | None = None
        self.offsets = world.commitlog.QueueOffsets()
        encode_host = world.module("commitlog.hosts").encode_host
        self.appender = world.commitlog.Appender(
            self.next_file, size, self.offsets, encode_host(host), with_crc, clock, **options
        )

    def next_file(self) -> tuple[memoryview, int]:
        if self.fail is not None:
            raise self.fail
        self.files.append(bytearray(self.size))
        return memoryview(self.files[-1]), self.first + (len(self.files) - 1) * self.size

    @property
    def bytes(self) -> bytes:
        return b"".join(self.files)


def host_text(manifest_host: str) -> str:
    """Convert `ip|port` of a manifest to `ip:port`, IPv6 in brackets."""
    address, _, port = manifest_host.rpartition("|")
    parsed = ip_address(address.partition("%")[0])
    return f"[{parsed}]:{port}" if parsed.version == 6 else f"{parsed}:{port}"


def message_of(world: World, expected: dict[str, Any]) -> Any:
    """Return the message that was put, with its properties string from the log, without the checksum."""
    return world.commitlog.Message(
        expected["topic"],
        base64.b64decode(expected["body"] or ""),
        queue_id=expected["queueId"],
        flag=expected["flag"],
        sys_flag=expected["sysFlag"],
        born_timestamp_ms=expected["bornTimestamp"],
        born_host=host_text(expected["bornHost"]),
        store_host=host_text(expected["storeHost"]),
        reconsume_times=expected["reconsumeTimes"],
        prepared_transaction_offset=expected["preparedTransactionOffset"],
        properties_raw=expected["propertiesString"].encode(),
    )


def log_bytes(fixture: Any) -> bytes:
    """Return all files of a fixture's log joined; the log begins at offset 0."""
    folder = fixture.store / "commitlog"
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def records(log: bytes, file_size: int = 65536) -> Iterator[tuple[int, int, bytes]]:
    """Yield (offset, magic, bytes) of records and blanks, by an independent walk that trusts the size field."""
    at = 0
    while at < len(log):
        size = int.from_bytes(log[at : at + 4], "big")
        magic = int.from_bytes(log[at + 4 : at + 8], "big")
        if size == 0:
            at += file_size - at % file_size
            continue
        yield at, magic, log[at : at + size]
        at += size
