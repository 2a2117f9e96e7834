"""Files of full size whose blocks are allocated in steps: disk space of a new store, and a full disk at each step."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerstore import DiskFull, Message, MessageStore, PutRejected, PutStatus, StoreConfig
from commitlog import CommitLog, mapped_file
from commitlog.log_paths import LogPaths
from indexfile import index_file
from storageio.testing import FailingDisk, ForgettingDisk

MIB = 1 << 20
FILE_SIZE = 1 << 19
STEP = 1 << 14
BODY = bytes(range(250)) * 4


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make steps of four pages in the log and of 64 items in the index."""
    monkeypatch.setattr(mapped_file, "STEP_BYTES", STEP)
    monkeypatch.setattr(mapped_file, "SMALL_STEP_BYTES", 4096)
    monkeypatch.setattr(mapped_file, "LARGE_STEP_BYTES", 4 * STEP)
    monkeypatch.setattr(index_file, "ITEMS_STEP", 64)


def used_bytes(folder: Path) -> int:
    """Return the bytes that `du` counts."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))


def test_store_of_default_sizes_uses_less_than_100_mib(tmp_path: Path) -> None:
    """Sixty messages take under 100 MiB, before and after the store is opened again; the sizes are RocketMQ's."""
    for number in range(2):
        with MessageStore.open(tmp_path / "s") as store:
            for key in range(30):
                store.put("orders", b"order", keys=f"{number}-{key}")
            assert len(store.query("orders", f"{number}-7")) == 1
            assert used_bytes(tmp_path / "s") < 100 * MIB
        assert used_bytes(tmp_path / "s") < 100 * MIB
    log, index = (tmp_path / "s" / "commitlog" / ("0" * 20)), next((tmp_path / "s" / "index").iterdir())
    assert (log.stat().st_size, index.stat().st_size) == (1 << 30, 40 + 4 * 5_000_000 + 20 * 20_000_000)


def test_blocks_are_allocated_before_a_write_through_the_map(small_steps: None) -> None:
    """The disk in memory raises for a store to a page without a block, in log and index, over files and openings."""
    disk = ForgettingDisk()
    config = StoreConfig.small(
        mapped_file_size_commit_log=FILE_SIZE, max_hash_slot_num=500, max_index_num=2000, mapped_file_size_consume_queue=20_000
    )
    for opened in range(2):
        with MessageStore.open("/s", config=config, disk=disk) as store:
            for number in range(600):
                store.put("T", BODY, queue_id=0, keys=[f"{opened}", f"k{number}"])
                if number % 20 == 0:
                    disk.examine()
            assert store.max_offset("T", 0) == 600 * (opened + 1)
            disk.examine()
    disk = ForgettingDisk.of(disk.least())
    with MessageStore.open("/s", config=config, disk=disk) as store:
        store.put("T", BODY, queue_id=0)
        disk.examine()


@pytest.mark.parametrize("fail_at", range(1, 12))
def test_append_on_a_full_disk_is_rejected_once_at_each_allocation_step(
    small_steps: None, tmp_path: Path, fail_at: int
) -> None:
    """The put that needs the step is refused with the cause, and leaves no byte; the next one succeeds."""
    disk = FailingDisk(fail_at, errno=28, only="allocate")
    log = CommitLog(LogPaths.parse(disk, str(tmp_path / "log")), disk=disk, file_size_bytes=FILE_SIZE // 4, writable=True)
    log.attach(0)
    refused, ends = 0, []
    for number in range(300):
        before = log.written_offset
        result = log.appender.append(Message("T", BODY + b"%d" % number, queue_id=0))
        if result.status is not PutStatus.PUT_OK:
            refused += 1
            assert isinstance(result.cause, DiskFull) and log.written_offset == before
            result = log.appender.append(Message("T", BODY + b"%d" % number, queue_id=0))
            assert result.status is PutStatus.PUT_OK
        ends.append(result.physical_offset)
    log.update_written()
    assert refused == 1
    assert [message.physical_offset for message in log.messages()] == ends
    log.close()


def test_put_on_a_full_disk_reports_the_cause_and_succeeds_later(small_steps: None, tmp_path: Path) -> None:
    """The store goes on when there is space again."""
    disk = FailingDisk(4, errno=28, only="allocate", for_ever=True)
    config = StoreConfig.small(mapped_file_size_commit_log=FILE_SIZE, message_index_enable=False)
    with MessageStore.open(tmp_path / "s", config=config, disk=disk) as store:
        with pytest.raises(PutRejected) as caught:
            for _ in range(200):
                store.put("T", BODY, queue_id=0)
        assert isinstance(caught.value.__cause__, DiskFull)
        count = store.max_offset("T", 0)
        disk.for_ever = False
        assert store.put("T", BODY, queue_id=0).queue_offset == count
