"""A real broker recovers and continues a folder with our key filters (docs/formats/indexfile.md#key-filters)."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.repair.verification import verify_store

from .folders import JAVA_NAMES, LOG_SIZE, START_MS, Ticking, ours
from .jvm import prepare_or_skip, why_not
from .real_broker import RealBroker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]
QUEUE_SIZE, SLOTS, ITEMS = 200_000, 250, 1000
CONFIG = ours(mapped_file_size_consume_queue=QUEUE_SIZE, max_hash_slot_num=SLOTS, max_index_num=ITEMS)
SIZES = dict(zip(JAVA_NAMES, (LOG_SIZE, QUEUE_SIZE, SLOTS, ITEMS), strict=True))
HERE, KEPT, THERE = 7500, 3, 800  # messages of ours, index files that the broker keeps, messages of its producer


def build_filters(store: MessageStore) -> None:
    """Do in a moment what the housekeeper does in short steps."""
    engine = store.engine
    assert engine.key_filters is not None
    with engine.housekeeper.guard:
        for _ in range(2):  # the first one may end what the housekeeper began with fewer files
            engine.key_filters.step(lambda: 0.0)


def live(store: MessageStore) -> list[tuple[int, int]]:
    """Return width and used bits of each filter."""
    assert store.engine.index is not None
    return [(len(one.files), one.live) for one in store.engine.index.searched if hasattr(one, "live")]


def check_answers(store: MessageStore) -> None:
    """Ask for every key, and for some that nobody has."""
    for topic, count in (("here", HERE), ("there", THERE)):
        for number in range(count):
            assert [one.body for one in store.query(topic, f"{topic}-{number}")] == [b"%d" % number], (topic, number)
        assert not [number for number in range(count, count + 500) if store.query(topic, f"{topic}-{number}")]


def die(folder: Path) -> list[str]:
    """Make the folder that of a process that was killed after it had synced the first index files; return their names."""
    paths = sorted((folder / "index").iterdir())
    (end_ms,) = struct.unpack(">q", paths[KEPT - 1].read_bytes()[8:16])
    (folder / "checkpoint").write_bytes(struct.pack(">qqq", end_ms, end_ms, end_ms).ljust(4096, b"\0"))
    (folder / "abort").write_bytes(b"1")
    return [path.name for path in paths]


def test_a_real_broker_continues_a_folder_with_key_filters(tmp_path: Path) -> None:
    """It deletes index files and builds others: filters of deleted ones are not used, and the next writer makes new ones."""
    prepare_or_skip()
    folder, keys = tmp_path / "store", tmp_path / "store/brokerstore/keys"
    with MessageStore.open(folder, config=CONFIG, clock=Ticking(START_MS)) as store:
        store.create_topic("there", 1)
        for start in range(0, HERE, 10):  # of one store time: 40 ms after that of the ten before
            store.put_many([Message("here", b"%d" % n, queue_id=0, keys=[f"here-{n}"]) for n in range(start, start + 10)])
        store.get("here", 0, 0)  # waits for the dispatcher
        build_filters(store)
        assert live(store) == [(4, 0b1111), (2, 0b11), (1, 1)]
    names = die(folder)
    filters = {path.name: path.read_bytes() for path in keys.iterdir()}
    with RealBroker(folder, tmp_path / "broker", **SIZES) as broker:
        sent: list[dict[str, Any]] = [
            {"topic": "there", "body": base64.b64encode(b"%d" % number).decode(), "keys": [f"there-{number}"], "queue_id": 0}
            for number in range(THERE)
        ]
        broker.invoke("send", messages=sent)
        requested = [["here", f"here-{number}"] for number in range(0, HERE, 500)] + [["there", "there-5"], ["there", "here-5"]]
        hits = broker.invoke("query", requested=requested)
        broker.stop()
    assert {path.name: path.read_bytes() for path in keys.iterdir()} == filters
    after = sorted(path.name for path in (folder / "index").iterdir())
    assert after[:KEPT] == names[:KEPT] and not set(after[KEPT:]) & set(names[KEPT:]) and len(after) > len(names)
    with MessageStore.open(folder, "r", CONFIG) as store:
        assert [[one.physical_offset for one in store.query(topic, key)] for topic, key in requested] == hits
        check_answers(store)
        assert live(store) == [(4, 0b111)]
    with MessageStore.open(folder, "r+", CONFIG) as store:
        build_filters(store)
        assert store.engine.index is not None
        assert sum(bits.bit_count() for _, bits in live(store)) == len(after) - 1  # all but the newest
        check_answers(store)
        assert {path.name for path in keys.iterdir()} == {Path(one.path).name for one in store.engine.index.filters}
    assert not verify_store(str(folder), CONFIG).problems
