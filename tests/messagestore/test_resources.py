"""Memory, descriptors and idle time of an open store."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.messagestore.kit import message, open_small, put_numbers

ROOT = Path(__file__).parents[2]

MANY_QUEUES = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from commitlog import Message
from consumequeue.layout import UNIT
from messagestore import MessageStore, StoreConfig
folder, queues, units = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

config = StoreConfig(mapped_file_size_commit_log=1 << 20, max_hash_slot_num=500, max_index_num=2000)
with MessageStore.open(folder, config=config) as store:
    for number in range(100):
        store.put(Message(f"T{number}", b"x", queue_id=0))
size = 300_000 * 20
last = units * 20 // size * size
files = [os.path.join(folder, "consumequeue", f"T{number // 100}", str(number % 100)) for number in range(queues)]
for place in files:  # the last of four files, sparse but for its first units
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, f"{last:020d}"), "wb") as file:
        file.truncate(size)
        file.write(UNIT.pack(0, 91, 0) * (units - last // 20))
with MessageStore.open(folder, config=config) as store:
    total = sum(store.max_offset(f"T{number // 100}", number % 100) for number in range(queues))
    assert total == queues * units, total
    for number in range(0, queues, 7):
        store.engine.queues.get(f"T{number // 100}", number % 100).index_buffer(units - 10)
    store.put(Message("T1", b"x", queue_id=1))
    print(resident_bytes(), len(os.listdir("/proc/self/fd")))
"""


@pytest.mark.deep
@pytest.mark.slow
def test_ten_thousand_queues_of_near_a_million_messages(tmp_path: Path) -> None:
    """Opening it, reading every maximum and every seventh queue stays within 300 MB resident and 1,024 descriptors."""
    units, queues = 300_000 * 3 + 200, 10_000
    done = subprocess.run(
        [sys.executable, "-c", MANY_QUEUES, str(tmp_path / "s"), str(queues), str(units)],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    resident, descriptors = map(int, done.stdout.split())
    assert resident < 300e6
    assert descriptors < 1000


@pytest.mark.deep
def test_a_thousand_log_files_within_the_descriptors(tmp_path: Path) -> None:
    """Each file is read once, under `ulimit -n 256`."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(
            """
            import os, resource, sys
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
            from commitlog import Message
            from messagestore import MessageStore, StoreConfig
            config = StoreConfig(mapped_file_size_commit_log=4096, max_hash_slot_num=500, max_index_num=2000)
            for _ in range(2):
                with MessageStore.open(sys.argv[1], config=config) as store:
                    for number in range(500):
                        store.put(Message("T", b"x" * 3500, queue_id=0))
                        if number % 50 == 0:
                            store.flush()  # a file keeps its descriptor until it is full and on the disk
                    found = [message.queue_offset for message in store.read("T", 0)]
                    assert found == list(range(len(found))), found
            print(len(found), len(os.listdir(sys.argv[1] + "/commitlog")))
            """
        ), str(tmp_path / "s")],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout == "1000 1000\n", done.stderr[-2000:]


def cpu_time_s(threads: set[threading.Thread]) -> float:
    """Return the processor time of these threads alone: other tests leave threads in the process."""
    return sum(time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) for thread in threads if thread.ident)


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="the system has no clock for a thread")
def test_an_idle_store_sleeps(world: Any, tmp_path: Path) -> None:
    """Its threads use less than 1 % of a core some time after the last put."""
    others = set(threading.enumerate())
    with open_small(world, tmp_path / "s") as store:
        threads = set(threading.enumerate()) - others
        assert len(threads) >= 3
        put_numbers(world, store, range(20), keys=["k"])
        store.get("T", 0, 0)
        time.sleep(0.5)
        before, start = cpu_time_s(threads), time.monotonic()
        time.sleep(2)
        share = (cpu_time_s(threads) - before) / (time.monotonic() - start)
        assert share < 0.01
        assert store.put(message(world, 20)).queue_offset == 20
        assert len(store.get("T", 0, 0).messages) == 21


def test_a_clean_store_opens_without_reading_its_log(world: Any, tmp_path: Path) -> None:
    """Only the last of many files is read: a broken record in an old one is not noticed."""
    with open_small(world, tmp_path / "s") as store:
        put_numbers(world, store, range(12), size=20_000)
    path = tmp_path / "s" / "commitlog" / f"{0:020d}"
    path.write_bytes(b"\xff" * path.stat().st_size)
    with open_small(world, tmp_path / "s") as store:
        assert store.put(message(world, 12)).queue_offset == 12
        assert store.max_offset("T", 0, committed=False) == 13
