"""Targets for what a network peer sends: frames of requests, frames of replication, and requests to a served store."""

from __future__ import annotations

import asyncio
import functools
import json
import random
from dataclasses import replace
from typing import Any, cast

from commitlog import Message
from messagestore import MessageStore, StoreConfig
from rocketlink.ha.frames import HaFrameReader as ReplicationReader
from rocketlink.ha.frames import ReportReader
from rocketlink.remoting.frames import IS_ONE_WAY, Command, RemotingFrameReader, encode
from rocketlink.server.connections import NAMED, Connection, Connections
from rocketlink.server.requests import AdmittedHosts, Requests
from rocketlink.server.tables import Identity
from storageio.testing import ForgettingDisk

from .mutate import NUMBERS, mutated

REQUESTS_MAX = 500  # of one store, whose log grows
_CODES = (
    10, 11, 12, 14, 15, 17, 21, 26, 28, 29, 30, 31, 33, 34, 35, 36, 37, 38, 41, 42, 43, 45, 60, 61, 103, 104, 105, 106, 201,
    206, 310, 320, 361, 400, 401, 402, 904, 200050, 200051, 200053,
)  # fmt: skip
TEXTS = 300  # changed texts of one sender: a server keeps each topic and group that a request names
UNUSUAL: tuple[Any, ...] = ([], {}, None, -1, "x", 1 << 63, True, "", 0.5, ["x"], {"a": 1}, [[]], [None], "0")
_used = 0


def remoting_frames(data: bytes) -> None:
    """A decoded command is encoded to a frame that decodes to the same command."""
    for command in RemotingFrameReader().feed(data):
        if all(value.isascii() for pair in command.fields.items() for value in pair) and (command.remark or "").isascii():
            (again,) = RemotingFrameReader().feed(encode(command))
            command.remark = command.remark or again.remark
            assert again == command


def replication_frames(data: bytes) -> None:
    """No frame is longer than what arrived, and a report is eight bytes of it."""
    assert sum(len(found) for _, found in ReplicationReader().feed(data)) <= len(data)
    report = ReportReader().feed(data)
    assert report is None or len(data) >= 8


def served_requests(data: bytes) -> None:
    """Send a frame to a served store as one client; it is answered or ends the connection."""
    global _used
    _used += 1
    if _used % REQUESTS_MAX == 0:
        _served()[1].close()
        _served.cache_clear()
    connections, _ = _served()
    connection = Connection(connections)
    connection.connection_made(cast(asyncio.Transport, _Sink()))
    connection.data_received(len(data).to_bytes(4, "big") + data)
    connection.connection_lost(None)
    assert connections.waiting_bytes == 0


class Unnamed(BaseException):
    """An error that a client would be told nothing about; the connection catches every `Exception`."""


def memory_store() -> MessageStore:
    """Return a small store in memory, with one message."""
    config = StoreConfig(
        mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=2000, max_hash_slot_num=100, max_index_num=400
    )  # fmt: skip
    store = MessageStore.open("/store", "a", config, disk=ForgettingDisk())
    store.put(Message("T", b"body", keys=["k"], queue_id=0))
    return store


@functools.cache
def _served() -> tuple[Connections, MessageStore]:
    """Return a store in memory behind connections without sockets."""
    store = memory_store()
    identity = Identity("c", "b", "127.0.0.1:10911", 10912)
    requests = Requests(store, identity, lambda function: function(), AdmittedHosts(None), lambda: None)

    def handle(connection: Connection, request: Command) -> Command | None:
        try:
            return requests.handle(connection, request)
        except NAMED:
            raise
        except Exception as error:
            raise Unnamed from error

    connections = Connections()
    connections.serve(handle, requests.closed)
    return connections, store


class _Sink(asyncio.Transport):
    """A transport that counts what is written, and never gives back-pressure."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.size_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:  # type: ignore[override]
        self.size_bytes += len(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass


def requests() -> list[Command]:
    """Return a request of each kind, with fields and bodies that it uses."""
    fields = {
        "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "subscription": "*", "key": "k",
        "consumerGroup": "g", "group": "g", "offset": "0", "timestamp": "0", "commitOffset": "1", "a": "g", "b": "T",
        "c": "TBW102", "d": "4", "e": "0", "f": "4", "i": "KEYS\x01k\x02PGROUP\x01g\x02", "commitLogOffset": "0",
        "commitOrRollback": "8", "tranStateTableOffset": "0", "producerGroup": "g", "clientID": "c", "readQueueNums": "1",
        "writeQueueNums": "1", "perm": "6", "invisibleTime": "1000", "pollTime": "0", "bornTime": "0", "initMode": "0",
        "expType": "TAG", "exp": "*", "extraInfo": "0 0 1000 0 0 b 0 0",
    }  # fmt: skip
    client: dict[str, Any] = {"clientID": "c", "clientId": "c", "consumerGroup": "g", "mqSet": [{"topic": "T", "queueId": 0}]}
    client |= {"topic": "T", "strategyName": "AVG", "messageModel": "CLUSTERING", "mode": "POP", "popShareQueueNum": 1}
    data = [{"groupName": "g", "messageModel": "CLUSTERING", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}]
    body = json.dumps({**client, "consumerDataSet": data, "producerDataSet": [{"groupName": "p"}]}).encode()
    return [Command(code, fields, body, code, encoding=code % 2) for code in _CODES]


def seeds_of_requests() -> list[bytes]:
    """Return the frame of each request, without its length."""
    return [encode(request)[4:] for request in requests()]


class ChangedRequests:
    """Requests with changed fields and bodies in whole frames: of frames with changed bytes a server decodes one in 40."""

    def __init__(self, chance: random.Random) -> None:
        """Make the texts, so that a server is told a bounded number of names."""
        self._chance = chance
        self._requests = requests()
        known = [text.encode() for text in {text for one in self._requests for text in one.fields.values()}]
        self._texts = [mutated(chance, known).decode("latin-1") for _ in range(TEXTS)] + [str(number) for number in NUMBERS]

    def next(self) -> bytes:
        """Return the next frame, without its length."""
        chance, request = self._chance, self._chance.choice(self._requests)
        fields = dict(request.fields)
        for _ in range(chance.randint(0, 3)):
            name = chance.choice(list(fields))
            if chance.random() < 0.1:
                del fields[name]
            else:
                fields[name] = chance.choice(self._texts)
        way = chance.random()
        body = (
            mutated(chance, [request.body]) if way < 0.3 else _unusual_body(chance, request.body) if way < 0.6 else request.body
        )
        flag = IS_ONE_WAY if chance.random() < 0.1 else 0
        return encode(replace(request, fields=fields, body=body, flag=flag, encoding=chance.randrange(2)))[4:]


def _unusual_body(chance: random.Random, body: bytes) -> bytes:
    """Return a JSON body with one value of another type or size."""
    return json.dumps(_unusual(chance, json.loads(body))).encode()


def _unusual(chance: random.Random, value: Any) -> Any:
    if value and isinstance(value, dict) and chance.random() < 0.8:
        name = chance.choice(list(value))
        return value | {name: _unusual(chance, value[name])}
    if value and isinstance(value, list) and chance.random() < 0.8:
        return [_unusual(chance, value[0]), *value[1:]]
    return chance.choice(UNUSUAL)
