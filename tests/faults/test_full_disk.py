"""A small real file system filled to its last block: ENOSPC in files and maps, no SIGBUS, and nothing lost.

A write through the map of a sparse file kills the process if no block is left, so every file must be allocated before it is
mapped.  Each run is in a child process, so that the test notices a death by a signal.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commitlog import Message
from messagestore import FlushMode, MessageStore, SharedStore
from messagestore.repair.verification import verify_store
from messagestore.shared.store import connect
from rabbitstore import RabbitStore
from storageio import StoreError, StoreFull
from tests.faults.small_disk import can_mount, fill, fill_to, mounted
from tests.faults.store_damage import messages_of
from tests.helpers import until
from tests.shared.processes import CONFIG as SHARED
from tests.shared.processes import owning_child
from tests.stores import small_config

SIZE_KIB = 3072
COUNT = struct.Struct("<q")
CONFIG = small_config(flush_disk_type=FlushMode.SYNC, mapped_file_size_consume_queue=20_000, max_index_num=4000)

pytestmark = [pytest.mark.default, can_mount]


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Mount an empty file system of 3 MiB."""
    with mounted(request.param, SIZE_KIB) as folder:
        yield folder


def lived(do: Callable[[mmap.mmap], None]) -> int:
    """Run in a child, which must end with a `StoreError`; return the number of acknowledged messages."""
    shared = mmap.mmap(-1, COUNT.size)
    child = os.fork()
    if child == 0:
        code = 3
        try:
            do(shared)
            code = 4  # the disk was never full
        except StoreError:
            code = 0
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"the process ended with {code}; -7 is SIGBUS: a page of a map without a block"
    return int(COUNT.unpack(shared[:])[0])


def body_of(number: int) -> bytes:
    return b"%08d" % number + bytes(number % 700)


def put_until_full(folder: Path, first: int) -> Callable[[mmap.mmap], None]:
    """Return a function that puts until the disk is full, with new topics: files other than the log must grow as well."""

    def do(shared: mmap.mmap) -> None:
        store = MessageStore.open(folder, "a", CONFIG)
        for number in itertools.count(first):
            result = store.put(Message(f"T{number // 40 % 20}", body_of(number), keys=[f"k{number}"], queue_id=0))
            if result.status.name != "PUT_OK":
                store.close()
                raise StoreError(result.reason or result.status.name)
            COUNT.pack_into(shared, 0, number + 1)

    return do


@pytest.mark.parametrize("leave_kib", [0, 20, 70, 140, 300, 700, 1200])
def test_a_full_disk_loses_nothing_that_was_acknowledged(small_disk: Path, leave_kib: int) -> None:
    """The disk is full at different moments; with free space the store continues."""
    folder = small_disk / "store"
    with MessageStore.open(folder, "a", CONFIG) as store:
        for number in range(10):
            store.put(Message("T0", body_of(number), keys=[f"k{number}"], queue_id=0))
    filler = fill(small_disk, leave_kib * 1024)
    count = max(lived(put_until_full(folder, 10)), 10)
    in_log = {int(message.body[:8]) for message in messages_of(folder)}  # a queue may not have been written yet
    assert in_log >= set(range(count)), "acknowledged, and not there on the full disk"
    with MessageStore.open(folder, "r") as reader:
        assert b"00000000" in next(iter(reader.read("T0", 0))).body
    filler.unlink()
    with MessageStore.open(folder, "a", CONFIG) as store:
        assert _numbers(store) >= set(range(count)), "acknowledged and lost"
        assert store.put(Message("T0", b"%08d" % 10**7, queue_id=0)).status.name == "PUT_OK"
    assert verify_store(str(folder)).problems == []


def _numbers(store: MessageStore) -> set[int]:
    return {int(message.body[:8]) for topic in store.topics() for message in store.read(topic, 0)}


@pytest.mark.parametrize("leave_kib", [0, 9, 40, 300])
def test_a_full_disk_loses_nothing_that_rabbitmqs_store_confirmed(small_disk: Path, leave_kib: int) -> None:
    """The full disk affects messages, journals and segments."""
    folder = small_disk / "vhost"
    RabbitStore.open(str(folder)).close()
    filler = fill(small_disk, leave_kib * 1024)

    def do(shared: mmap.mmap) -> None:
        store = RabbitStore.open(str(folder))
        store.declare_queue("q")
        for number in itertools.count():
            store.publish("q", body_of(number) + bytes(5000 * (number % 2)), persistent=True)
            if number % 5 == 0:
                store.sync()
                COUNT.pack_into(shared, 0, number + 1)

    count = lived(do)
    filler.unlink()
    with RabbitStore.open(str(folder)) as store:
        found = set()
        while "q" in store.queue_names() and (delivery := store.get("q")) is not None:
            found.add(int(delivery.body[:8]))
    assert found >= set(range(count)), "confirmed and lost"


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_jobs_wait_while_another_program_fills_the_disk(kind: str) -> None:
    """8,000 jobs survive a killed owner as well; the next one refuses its first put, and takes it when there is space."""
    with mounted(kind, 96 << 10) as disk:
        config, numbers = SHARED.but(clean_resource_interval_ms=100), [*range(8000)]

        def put_jobs(store: SharedStore) -> None:
            store.create_topic("jobs", 1)
            for number in numbers:
                store.put("jobs", body_of(number))

        owner = owning_child(disk / "s", put_jobs)
        filler = fill_to(disk, 0.99)
        owner.kill()
        with connect(disk / "s", config) as store, store.consumer("jobs", group="g") as consumer:
            with pytest.raises(StoreFull, match="DISK_FULL"):
                store.put("jobs", body_of(0))
            taken = consumer.poll(1000)
            assert all(consumer.ack(message) for message in taken)
            filler.unlink()
            store.put("jobs", body_of(8000), block_s=30)
            while found := consumer.poll(1000):
                taken += found
            assert [int(message.body[:8]) for message in taken] == [*numbers, 8000]
            assert until(lambda: store.put("jobs", b"", check=False).status.name == "PUT_OK")
        assert verify_store(str(disk / "s")).problems == []
