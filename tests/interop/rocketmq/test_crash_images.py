"""RocketMQ's own store started on crash images of the lab, for comparison with our recovery.

The test requires nothing of RocketMQ: it counts and prints what happens.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lab import rocketmq_lab
from messagestore import FlushMode
from storageio.testing import ForgettingDisk, Image
from tests.amounts import amount

from .folders import JAVA_NAMES
from .jvm import Refused, prepare_or_skip, why_not
from .real_store import RealStores

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]
IMAGES = amount(8, 48)
SIZES = (8192, 2000, 7, 400)
CONFIG = rocketmq_lab.lab_config(
    mapped_file_size_consume_queue=2000, max_index_num=400, flush_disk_type=FlushMode.SYNC, message_index_enable=True
)
Caught = tuple[Image, list[Any], int, int]  # image, messages put, number flushed, time


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealStores]:
    prepare_or_skip()
    made = RealStores(tmp_path_factory.mktemp("jvm") / "stderr")
    yield made
    made.end()


def images() -> Iterator[Caught]:
    """Yield crash images of random programs: one after every third step."""
    for seed in range(1000):
        random = Random(seed)
        run = rocketmq_lab.RocketmqRun(seed, config=CONFIG, tries=False)
        for step in range(12):
            operation = rocketmq_lab.any_operation(random)
            if operation[0] in ("crash", "close", "retain"):
                continue
            before = run.ledger.flushed
            run.do(operation)
            if step % 3 == 2:
                yield run.disk.any_image(random), list(run.ledger.entries), before, run.disk.time_ms
        rocketmq_lab.abandon(run.store)


def written(image: Image, folder: Path) -> Path:
    """Write an image as real files and return the store's folder."""
    for position in image.folders:
        (folder / position[1:]).mkdir(parents=True, exist_ok=True)
    for position, data in image.files.items():
        path = folder / position[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder / "store"


def in_java(jvm: RealStores, folder: Path, entries: list[Any], flushed: int, found: Counter[str]) -> None:
    """Count what RocketMQ's store has after its own recovery."""
    try:
        real = jvm.open(folder, **dict(zip(JAVA_NAMES, SIZES, strict=True)), flushDiskType="SYNC_FLUSH")
    except (Refused, RuntimeError) as error:
        found["RocketMQ does not start"] += 1
        print(f"does not start: {str(error)[:150]}")
        return
    try:
        reported = {one["physical_offset"]: base64.b64decode(one["body"]) for one in real.invoke("messages")["messages"]}
        expected = {entry.physical_offset: entry.raw for entry in entries}
        lost = [entry for entry in entries[:flushed] if entry.physical_offset not in reported]
        strange = [at for at, body in reported.items() if at not in expected or body not in expected[at]]
        units = {unit[0] for queue in real.invoke("queues") for unit in queue["units"]}
        found["RocketMQ: flushed messages gone from the log"] += bool(lost)
        found["RocketMQ: messages that nobody put"] += bool(strange)
        found["RocketMQ: flushed messages in no queue"] += bool(
            [entry for entry in entries[:flushed] if entry.physical_offset in reported and entry.physical_offset not in units]
        )
        found["RocketMQ starts"] += 1
    except (Refused, RuntimeError) as error:
        found["RocketMQ starts, and its log or queues cannot be read"] += 1
        print(f"cannot be read: {str(error)[:150]}")
    finally:
        real.close()


def test_the_real_store_opens_crash_images(jvm: RealStores, tmp_path: Path) -> None:
    """Our recovery keeps every promise on each image; the real store's results are printed."""
    found: Counter[str] = Counter()
    for number, (image, entries, flushed, time_ms) in enumerate(images()):
        if number == IMAGES:
            break
        run = rocketmq_lab.RocketmqRun(config=CONFIG, tries=False)
        run.ledger.entries, run.ledger.bodies = entries, set()
        run.recover(ForgettingDisk.of(image, time_ms), flushed)
        found["images, every promise held by ours"] += 1
        in_java(jvm, written(image, tmp_path / str(number)), entries, flushed, found)
    for name, count in sorted(found.items()):
        print(f"{name}: {count}")
    assert found["images, every promise held by ours"] == IMAGES
