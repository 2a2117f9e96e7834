"""The rows against stores that Python programs embed, each with its fastest settings that survive a killed process.

A record is a body and a key on both sides.  With "whole" after the peer's name both have body, topic, tag and key, encoded by
the peer as msgpack.  "decoded" reads all of that; the plain file checks its CRC, and our store all of its checksums.
"""

from __future__ import annotations

import functools
import os
import shutil
import sqlite3
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from .bounds import decoded_in_memory
from .bounds_write import build_keys, built_and_stored, direct_sync
from .codecs import PAIR, Codec, opened, packed, whole_messages
from .own_store import NO_TAGS, TAGS, OwnStore, body_of
from .turns import Row, take_turns

BATCH = 1000
MAP_BYTES = 8 << 30


class Peer(Protocol):
    """The operations of every peer."""

    def put(self, number: int, key: bytes, body: bytes) -> None:
        """Write one record, which other processes see when the call returns."""

    def put_many(self, records: list[tuple[int, bytes, bytes]]) -> None:
        """Write many records in one call."""

    def scan(self) -> int:
        """Read key and body of every record; return the number of records."""

    def close(self) -> None:
        """Close the store and its files."""


class Lmdb:
    """LMDB with append-only integer keys, no sync, and a writable map."""

    def __init__(self, folder: Path, *, is_durable: bool = False, codec: Callable[[], Codec] = lambda: PAIR) -> None:
        import lmdb

        self.pack, self.opened = codec()
        self.env = lmdb.open(str(folder), map_size=MAP_BYTES, sync=is_durable, metasync=is_durable, writemap=not is_durable)

    def put(self, number: int, key: bytes, body: bytes) -> None:
        with self.env.begin(write=True) as transaction:
            transaction.put(number.to_bytes(8, "big"), self.pack(number, key, body), append=True)

    def put_many(self, records: list[tuple[int, bytes, bytes]]) -> None:
        with self.env.begin(write=True) as transaction, transaction.cursor() as cursor:
            pack = self.pack
            cursor.putmulti([(record[0].to_bytes(8, "big"), pack(*record)) for record in records], append=True)

    def scan(self) -> int:
        count, opened = 0, self.opened
        with self.env.begin() as transaction, transaction.cursor() as cursor:
            for value in cursor.iternext(keys=False):
                opened(value)
                count += 1
        return count

    def close(self) -> None:
        self.env.close()


class Rocks:
    """RocksDB through rocksdict: raw bytes, with write-ahead log, without compression."""

    def __init__(self, folder: Path, *, is_durable: bool = False, codec: Callable[[], Codec] = lambda: PAIR) -> None:
        from rocksdict import DBCompressionType, Options, Rdict, WriteOptions

        self.pack, self.opened = codec()
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(DBCompressionType.none())
        self.db = Rdict(str(folder), options)
        how = WriteOptions()
        how.sync = is_durable
        self.db.set_write_options(how)

    def put(self, number: int, key: bytes, body: bytes) -> None:
        self.db[number.to_bytes(8, "big")] = self.pack(number, key, body)

    def put_many(self, records: list[tuple[int, bytes, bytes]]) -> None:
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        for record in records:
            batch.put(record[0].to_bytes(8, "big"), self.pack(*record))
        self.db.write(batch)

    def scan(self) -> int:
        count, opened = 0, self.opened
        for value in self.db.values():
            opened(value)
            count += 1
        return count

    def close(self) -> None:
        self.db.close()


class Sqlite:
    """SQLite with a write-ahead log, synchronous=OFF (FULL when durable), and rows by number."""

    def __init__(self, folder: Path, *, is_durable: bool = False) -> None:
        folder.mkdir()
        self.base = sqlite3.connect(folder / "db", isolation_level=None, check_same_thread=False)
        self.base.execute("pragma journal_mode=wal")
        self.base.execute(f"pragma synchronous={'full' if is_durable else 'off'}")
        self.base.execute("create table records (number integer primary key, key blob, body blob)")

    def put(self, number: int, key: bytes, body: bytes) -> None:
        self.base.execute("insert into records values (?, ?, ?)", (number, key, body))

    def put_many(self, records: list[tuple[int, bytes, bytes]]) -> None:
        self.base.execute("begin")
        self.base.executemany("insert into records values (?, ?, ?)", records)
        self.base.execute("commit")

    def scan(self) -> int:
        count = 0
        for _, key, body in self.base.execute("select number, key, body from records order by number"):
            count += bool(len(key) + len(body))
        return count

    def close(self) -> None:
        self.base.close()


class PersistQueue:
    """persist-queue's file queue, with pickled items and no sync."""

    def __init__(self, folder: Path, *, is_durable: bool = False) -> None:
        import persistqueue

        self.queue: Any = persistqueue.Queue(str(folder), autosave=True)
        self.count = 0

    def put(self, number: int, key: bytes, body: bytes) -> None:
        self.queue.put((key, body))
        self.count += 1

    def put_many(self, records: list[tuple[int, bytes, bytes]]) -> None:
        for record in records:
            self.put(*record)

    def scan(self) -> int:
        for _ in range(self.count):
            self.queue.get()
        return self.count

    def close(self) -> None:
        del self.queue


class PlainFile:
    """Length, CRC, key and body in one `write` a call: the smallest possible log in plain Python."""

    def __init__(self, folder: Path, *, is_durable: bool = False) -> None:
        folder.mkdir()
        self.path = folder / "log"
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT)
        self.is_durable = is_durable

    def _record(self, key: bytes, body: bytes) -> bytes:
        value = packed(key, body)
        return struct.pack(">II", len(value), zlib.crc32(value)) + value

    def put(self, number: int, key: bytes, body: bytes) -> None:
        os.write(self.file, self._record(key, body))
        if self.is_durable:
            os.fdatasync(self.file)

    def put_many(self, records: list[tuple[int, bytes, bytes]]) -> None:
        os.write(self.file, b"".join([self._record(key, body) for _, key, body in records]))

    def scan(self) -> int:
        count, data, at = 0, self.path.read_bytes(), 0
        while at < len(data):
            size, crc = struct.unpack_from(">II", data, at)
            value = data[at + 8 : at + 8 + size]
            if zlib.crc32(value) != crc:
                raise ValueError(f"damage at {at}")
            opened(value)
            at += 8 + size
            count += 1
        return count

    def close(self) -> None:
        os.close(self.file)


PEERS: dict[str, Callable[..., Peer]] = {
    "lmdb": Lmdb, "lmdb, whole": functools.partial(Lmdb, codec=whole_messages),
    "rocksdb": Rocks, "rocksdb, whole": functools.partial(Rocks, codec=whole_messages),
    "sqlite": Sqlite, "persist-queue": PersistQueue, "plain file": PlainFile,
}  # fmt: skip
WHOLE = ", whole"
COMPARED = ("lmdb", "lmdb, whole", "rocksdb", "rocksdb, whole", "sqlite")  # the others have no target
SLOW = {"persist-queue": 0.01}  # share of the number of records


def seconds(call: Callable[[], Any]) -> float:
    """Return the duration of one call in seconds."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


class _Peer:
    """One peer's store and its measurements; every round appends."""

    def __init__(self, kind: Callable[..., Peer], folder: Path, body: int, *, is_durable: bool = False) -> None:
        self.store = kind(folder, is_durable=is_durable)
        self.body = body_of(body)
        self.number = 0

    def put(self, count: int) -> float:
        """Return records per second, with one record a call and keys made in the loop."""
        put, body, first = self.store.put, self.body, self.number
        self.number += count

        def work() -> None:
            for i in range(first, first + count):
                put(i, b"key-0-%d" % i, body)

        return count / seconds(work)

    def put_many(self, count: int) -> float:
        """Return records per second, with a thousand records a call."""
        put_many, body, first = self.store.put_many, self.body, self.number
        self.number += count

        def work() -> None:
            for start in range(first, first + count, BATCH):
                put_many([(i, b"key-0-%d" % i, body) for i in range(start, start + BATCH)])

        return count / seconds(work)

    def scan(self) -> float:
        """Return records per second of a scan."""
        found = [0]
        took = seconds(lambda: found.__setitem__(0, self.store.scan()))
        return found[0] / took


def rows(folder: Path, rounds: int, scale: float, is_selected: Callable[[str], bool]) -> Iterator[Row]:
    """Yield the rows of every peer for bodies of 100 B and 1 KiB; report peers that are not installed."""
    for name, kind in PEERS.items():
        for body, messages in ((100, 200_000), (1024, 100_000)):
            count = max(BATCH, int(messages * scale * SLOW.get(name, 1)) // BATCH * BATCH)
            if not is_selected(f"{name} {body} B"):
                continue
            try:
                peer = _Peer(kind, folder / f"peer-{body}", body)
            except ImportError as error:
                print(f"no rows against {name}: {error}")
                break
            own = OwnStore(folder / f"own-{body}")
            is_whole = name.endswith(WHOLE)
            tags, read, codec = (TAGS, "decoded", whole_messages) if is_whole else (NO_TAGS, "pairs", lambda: PAIR)
            own.put("T", 4000, body, tags=tags)
            plain_rounds = 0 if name == "persist-queue" else rounds  # it is slow, and a read removes what it returns
            stored = functools.partial(built_and_stored, folder, count, body, tags)
            targets = (3.0, 1.7 if body == 100 else 1.5, 1.0) if name in COMPARED else (None, None, None)
            yield take_turns(Row(f"single put, {body} B", name, "msg/s", targets[0]),
                lambda own=own, count=count, body=body, tags=tags: count / own.put("T", count, body, tags=tags)["put_seconds"],  # type: ignore[misc]
                lambda peer=peer, count=count: peer.put(count), rounds,  # type: ignore[misc]
                stored(), plain_rounds=plain_rounds)  # fmt: skip
            yield take_turns(Row(f"puts in batches of 1,000, {body} B", name, "msg/s", targets[1]),
                lambda own=own, count=count, body=body, tags=tags: (  # type: ignore[misc]
                    count / own.put_bodies("T", count, body, BATCH, tags=tags)["put_seconds"]),
                lambda peer=peer, count=count: peer.put_many(count), rounds, stored(build_keys),  # type: ignore[misc]
                plain_rounds=plain_rounds)  # fmt: skip
            yield take_turns(Row(f"sequential read, decoded, {body} B", name, "msg/s", targets[2]),
                lambda own=own, read=read: _rate(own.scan("T", read)),  # type: ignore[misc]
                lambda peer=peer: peer.scan(), 1 if name == "persist-queue" else rounds,  # type: ignore[misc]
                decoded_in_memory(codec, body), plain_rounds=plain_rounds)  # fmt: skip
            own.close()
            peer.store.close()
            for left in folder.iterdir():
                shutil.rmtree(left)
    if is_selected("durable single put"):
        yield from _durable(folder, rounds, max(200, int(2000 * scale)))


def _rate(measured: dict[str, Any]) -> float:
    return float(measured["count"] / measured["seconds"])


def _durable(folder: Path, rounds: int, count: int) -> Iterator[Row]:
    """Yield the rows of 1 KiB puts that are durable before the next one."""
    own = OwnStore(folder / "own-sync", "sync-ring")
    own.put("T", 200, 1024)
    for name, target in (("plain file", 0.9), ("lmdb", None), ("rocksdb", 1), ("sqlite", 1)):
        try:
            peer = _Peer(PEERS[name], folder / f"durable-{name}", 1024, is_durable=True)
        except ImportError:
            continue
        yield take_turns(Row("durable single put, 1024 B", name, "msg/s", target),
            lambda: count / own.put("T", count, 1024)["put_seconds"],
            lambda peer=peer: peer.put(count), rounds, direct_sync(folder, count, 1024),  # type: ignore[misc]
            plain_rounds=rounds)  # fmt: skip
        peer.store.close()
    own.close()
    for left in folder.iterdir():
        shutil.rmtree(left)
