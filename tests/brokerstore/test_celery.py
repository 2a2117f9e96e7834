"""Celery with prefork workers on a folder: no task is lost when pool processes, workers or the owner are killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("kombu", reason="kombu is not installed (extra kombu)")
pytest.importorskip("celery", reason="Celery is not installed")

from messagestore import MessageStore
from tests.brokerstore.celery_site import Site, pool_processes
from tests.faults.small_disk import can_mount, fill_to, mounted
from tests.helpers import until

pytestmark = pytest.mark.deep
APP = """
import os, signal, time
import brokerstore.kombu
from celery import Celery

app = Celery("jobs", broker="brokerstore://" + os.path.abspath("tasks"))
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=2, task_ignore_result=True)

@app.task
def mark(number, pause_s=0.0, is_deadly=False):
    time.sleep(pause_s)
    if is_deadly and not os.path.exists(f"died-{number}"):
        open(f"died-{number}", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    file = os.open("ran.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, b"%d\\n" % number)
    os.close(file)
"""
SEND = """
count, pause_s, deadly = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
for number in range(count):
    jobs.mark.delay(number, pause_s, deadly and number % deadly == deadly - 1)
found = None
"""
PROCESSES = ("--concurrency", "2")


def send(site: Site, count: int, pause_s: float = 0.0, deadly: int = 0) -> None:
    """Send tasks; each `deadly`-th kills the first process that runs it."""
    site.run(SEND, count, pause_s, deadly)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, APP)
    yield made
    made.stop()


def test_workers_run_each_task_once_and_answer(site: Site) -> None:
    """Without a kill no task runs twice; `inspect` finds the workers, and after a warm stop nothing is left."""
    site.start(*PROCESSES)
    until(lambda: "1 node online" in site.invoke("inspect", "ping", "--timeout", "5"), 90)
    send(site, 60)
    until(lambda: len(site.ran()) >= 60, 90)
    assert sorted(site.ran()) == list(range(60))
    assert "jobs.mark" in site.invoke("inspect", "registered", "--timeout", "5")
    assert "'routing_key': 'celery'" in site.invoke("inspect", "active_queues", "--timeout", "5")
    site.stop()
    with MessageStore.open(site.folder / "tasks", "r") as store:
        committed = store.committed_offsets("celery", "kombu")
        assert sum(committed.values()) == sum(store.max_offset("celery", one) for one in store.queue_ids("celery")) == 60


def test_a_stopped_worker_finishes_its_task(site: Site) -> None:
    """After SIGTERM the running task ends and is acknowledged; the next worker runs only what was waiting."""
    worker = site.start("--concurrency", "1")
    send(site, 5, 1.5)
    until(lambda: site.ran(), 90)
    time.sleep(0.5)  # between two tasks Celery itself may start the next one after it looked for those to wait for
    worker.terminate()
    worker.wait(60)
    site.workers.clear()
    finished = site.ran()
    assert 1 <= len(finished) < 5
    site.start(*PROCESSES)
    until(lambda: len(site.ran()) >= 5, 90)
    assert sorted(site.ran()) == list(range(5))


@pytest.mark.timeout(600)
def test_no_task_is_lost_when_workers_and_the_owner_are_killed(site: Site) -> None:
    """The first worker owns the store and is killed first; then others, and processes of pools. Tasks kill their own."""
    chance = random.Random(7)
    site.start(*PROCESSES)
    until(lambda: (site.folder / "tasks" / "lock").exists(), 90)
    site.start(*PROCESSES)
    site.start(*PROCESSES)
    send(site, 600, 0.02, 100)
    until(lambda: len(site.ran()) > 10, 90)
    site.kill(site.workers[0], "group")
    site.start(*PROCESSES)
    for how in ("main", "group", "main"):
        time.sleep(1.5)
        for process_id in pool_processes(chance.choice(site.workers))[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        site.kill(chance.choice(site.workers), how)
        site.start(*PROCESSES)
    until(lambda: len(set(site.ran())) == 600, 300)
    assert len(list(site.folder.glob("died-*"))) == 6


FULL_APP = (
    APP.replace('os.path.abspath("tasks")', 'os.path.abspath("disk/tasks")')
    + """
app.conf.broker_transport_options = {"config": brokerstore.StoreConfig.small(clean_resource_interval_ms=100)}
"""
)
FULL_SEND = """
from brokerstore import StoreFull
try:
    jobs.mark.apply_async((8000,), retry=bool(int(sys.argv[1])))
except jobs.mark.OperationalError as error:
    found = isinstance(error.__cause__, StoreFull)
else:
    found = None
"""
WAITING_SEND = """
while True:
    try:
        jobs.mark.delay(8000)
        break
    except jobs.mark.OperationalError:
        time.sleep(0.2)
found = None
"""


@can_mount
@pytest.mark.timeout(400)
def test_tasks_wait_while_another_program_fills_the_disk(tmp_path: Path) -> None:
    """8,000 tasks stay; another is refused with Celery's own error, and taken when there is space."""
    with mounted("tmpfs", 96 << 10) as disk:
        (tmp_path / "disk").symlink_to(disk)
        site = Site(tmp_path, FULL_APP)
        try:
            send(site, 8000)
            filler = fill_to(disk, 0.99)
            assert site.run(FULL_SEND, 0) is True
            assert site.run(FULL_SEND, 1) is True
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(site.run, WAITING_SEND)
                site.start(*PROCESSES, "--pool", "solo")
                until(lambda: len(site.ran()) > 100, 90)
                assert not waiting.done()
                filler.unlink()
                waiting.result(90)
            until(lambda: len(site.ran()) >= 8001, 200)
            assert sorted(site.ran()) == list(range(8001))
        finally:
            site.stop()
