"""Brokers of different versions: their folders and ours go back and forth, and the broker delivers everything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from commitlog.walk import LogFiles
from messagestore import MessageStore, StoreConfig
from messagestore.broker_versions import BROKER_VERSIONS, BY_NAME
from messagestore.checkpoint import read_checkpoint
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK
from tests.archives import unpack
from tests.faults.test_unknown_formats import records

from .folders import ITEMS, JAVA_NAMES, LOG_SIZE, QUEUE_SIZE, SLOTS, Ticking, ours, write_mixed
from .jvm import prepare_or_skip, why_not
from .real_broker import CLUSTER, RealBroker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]
YEARS = Path(__file__).parents[2] / "data" / "years"
VERSIONS = [version.name for version in BROKER_VERSIONS]
FIXTURES = {"4.9.7": "rocket497", "5.4.0": "rocket540", "5.5.0": "rocket550", "5.5.1": "rocket551"}
SMALL = dict(zip(JAVA_NAMES, (65536, 2000, 500, 2000), strict=True)) | {"mappedFileSizeTimerLog": 52_000}
OURS = dict(zip(JAVA_NAMES, (LOG_SIZE, QUEUE_SIZE, SLOTS, ITEMS), strict=True))
READERS = ("topic-0", "topic-1", "batches", "back")
TAG = "A"


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> Iterator[str]:
    prepare_or_skip(request.param)
    yield request.param


def delivered(broker: RealBroker, topics: list[str]) -> dict[str, list[int]]:
    """Return the log offsets of what a real consumer receives of each topic."""
    known = broker.invoke("topics")
    return {
        topic: sorted({one["physical_offset"] for one in broker.invoke("read", topic=topic)}) for topic in topics if topic in known
    }


def of_log(folder: Path, topics: list[str]) -> dict[str, list[int]]:
    """Return the same from the log alone."""
    found: dict[str, list[int]] = {topic: [] for topic in topics}
    for message in LogFiles(REAL_DISK, [str(folder / "commitlog")]).messages():
        if isinstance(message, Message) or getattr(message, "topic", None) in found:
            found[message.topic].append(message.physical_offset)  # type: ignore[union-attr]
    return found


def by_tag(folder: Path, topic: str, tag: str) -> list[int]:
    """Return the log offsets of a topic's messages with a tag, from the log alone."""
    walk = LogFiles(REAL_DISK, [str(folder / "commitlog")]).messages()
    return [one.physical_offset for one in walk if getattr(one, "topic", "") == topic and one.tags == tag]  # type: ignore[union-attr]


def test_our_store_goes_to_the_broker_and_back_three_times(version: str, tmp_path: Path) -> None:
    """Each side delivers what both have written, by queue, key and tag; nothing is wrong with the folder at any step."""
    folder = tmp_path / "store"
    config = ours(broker_version=version)
    for turn in range(3):
        with MessageStore.open(folder, "a", config, clock=Ticking(1_700_000_000_000 + turn * 10**7)) as store:
            write_mixed(store, range(turn * 100, turn * 100 + 100))
            store.put(Message("back", b"ours %d" % turn, queue_id=0, tags=TAG, keys=[f"ours-{turn}"]))
        with RealBroker(folder, tmp_path / f"broker-{turn}", version=version, **OURS) as broker:
            assert delivered(broker, list(READERS)) == of_log(folder, list(READERS))
            keys = [["back", f"ours-{before}"] for before in range(turn + 1)]
            assert [len(found) for found in broker.invoke("query", requested=keys)] == [1] * (turn + 1)
            if BY_NAME[version].has_tag_items:
                found = broker.invoke("query_tags", cluster=CLUSTER, requested=[["back", TAG], ["topic-1", TAG]])
                assert found[0] == by_tag(folder, "back", TAG)
                assert set(found[1]) <= set(by_tag(folder, "topic-1", TAG))
            message = {"topic": "back", "queue_id": 0, "body": "YQ==", "tags": TAG, "keys": [f"broker-{turn}"]}
            broker.invoke("send", messages=[message])
            broker.stop()
        assert verify_store(str(folder)).problems == []
        with MessageStore.open(folder, "r") as store:
            assert [one.physical_offset for one in store.query("back", f"broker-{turn}")]
            assert len(store.query_tag("back", TAG)) == 2 * turn + 2 if BY_NAME[version].has_tag_items else True
