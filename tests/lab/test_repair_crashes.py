"""`recover --apply` and `import` on a disk that drops unsynced changes: crashed at every call, the next run completes them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from storageio.testing import ForgettingDisk, Image
from tests.lab.counted import Counted


def damaged(lab: Any) -> tuple[Any, Image]:
    """Return a stopped store and its image with a flipped bit in a body and without one topic's queue folders."""
    run = lab.RocketmqRun(2, tries=False)
    for operation in (("put_many", "T", 12, 600), ("put", "T", 1, 3000, 2), ("put_many", "V", 9, 60), ("flush",), ("close",)):
        run.do(operation)
    run.store.close()
    image = run.disk.after_kill()
    first = f"{lab.ROOT}/commitlog/{0:020d}"
    data = bytearray(image.files[first])
    data[run.ledger.entries[2].physical_offset + 200] ^= 4
    gone = f"{lab.ROOT}/consumequeue/V/"
    files = {path: bytes(data) if path == first else found for path, found in image.files.items() if not path.startswith(gone)}
    return run, image._replace(files=files)


def content(disk: ForgettingDisk) -> dict[str, bytes]:
    """Return the files of log and queues; leftovers of an interrupted rebuild stay beside them until the next one."""
    parts = ("/store/commitlog/", "/store/consumequeue/")
    return {path: data for path, data in disk.files().items() if path.startswith(parts)}


@pytest.mark.parametrize("choice", ["SKIP", "TRUNCATE"])
def test_recover_apply_crashed_at_every_call_reaches_the_same_bytes(
    world: Any, choice: str, monkeypatch: pytest.MonkeyPatch, counted: Counted
) -> None:
    """Every call crashes, with all, none or some of the unsynced changes kept; then `recover` runs again."""
    lab, deep = world.module("lab.rocketmq_lab"), world.module("lab.deep")
    repairing = world.module("messagestore.repair.recover")
    monkeypatch.setattr(world.module("messagestore.repair.store_queues"), "Engine", lab.StillEngine)
    run, image = damaged(lab)

    def apply(disk: ForgettingDisk) -> None:
        repairing.Recovery(lab.ROOT, repairing.Choice[choice], run.config, disk).apply()

    undisturbed = ForgettingDisk.of(image, run.disk.time_ms)
    apply(undisturbed)
    expected = content(undisturbed)
    assert expected != {path: data for path, data in image.files.items() if path in expected}, "nothing was to be mended"

    def apply_and_compare(disk: ForgettingDisk) -> None:
        apply(disk)
        disk.watch = None
        found = content(disk)
        differing = [path for path in expected.keys() | found.keys() if expected.get(path) != found.get(path)]
        assert not differing, f"other bytes in {differing}"

    chances = 1 if world.build == "compiled" else 0
    tried = deep.crash_inside(image, run.disk.time_ms, apply_and_compare, Random(5), depth=1, chances=chances)
    report = counted.report(world.build, "crashes inside recover --apply")
    report.images += tried
    report.again += tried
    assert tried > 40


def test_an_import_crashed_at_every_call_and_run_again_moves_each_message_once(
    world: Any, monkeypatch: pytest.MonkeyPatch, counted: Counted
) -> None:
    """The import moves a virtual host's folder into a commit log."""
    lab, rabbit = world.module("lab.rocketmq_lab"), world.module("lab.rabbitmq_lab")
    deep, migrate = world.module("lab.deep"), world.module("brokerstore.migrate")
    config = lab.lab_config(mapped_file_size_commit_log=32 << 10, max_index_num=20, mapped_file_size_consume_queue=100)
    source = rabbit.RabbitRun(4, tries=False)
    source.do(("declare", "a", "default"))
    source.do(("declare", "b", "lazy"))
    for number in range(9):
        source.do(("publish", ("a", "b") if number % 3 else ("a",), (10, 400, 3000)[number % 3], True))
    source.do(("close",))
    source.store.close()
    image = source.disk.after_kill()
    disks: list[ForgettingDisk] = []

    class Rabbit:
        @staticmethod
        def open(path: str, mode: str, **options: Any) -> Any:
            return world.rabbitstore.RabbitStore.open(path, mode, disk=disks[-1], **options)

    class Rocket:
        @staticmethod
        def open(path: str, _mode: str, settings: Any) -> Any:
            return lab.open_still(disks[-1], config.but(max_message_size=settings.max_message_size), path)

    monkeypatch.setattr(migrate, "RabbitStore", Rabbit)
    monkeypatch.setattr(migrate, "MessageStore", Rocket)

    def move(disk: ForgettingDisk) -> None:
        disks.append(disk)
        migrate.import_rabbit(rabbit.ROOT, "/moved", config=config)
        disk.watch = None
        store = lab.open_still(disk, config, "/moved")
        for name, count in (("a", 9), ("b", 6)):
            numbers = [int(message.properties["AMQP_SEQ_ID"]) for message in store.read(name, 0)]
            assert numbers == sorted(set(numbers)), f"{name}: {numbers}"
            assert len(numbers) == count
        lab.abandon(store)

    chances = 1 if world.build == "compiled" else 0
    tried = deep.crash_inside(image, source.disk.time_ms, move, Random(5), depth=1, chances=chances)
    report = counted.report(world.build, "crashes inside import")
    report.images += tried
    report.again += tried
    assert tried > 40
