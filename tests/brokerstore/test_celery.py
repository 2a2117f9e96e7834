"""Celery with prefork workers on a folder: no task is lost when pool processes, workers or the owner are killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kombu", reason="kombu is not installed (extra kombu)")
pytest.importorskip("celery", reason="Celery is not installed")

from messagestore import MessageStore
from tests.helpers import until

pytestmark = pytest.mark.deep
ROOT = Path(__file__).resolve().parents[2]
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
import sys, jobs
count, pause_s, deadly = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
for number in range(count):
    jobs.mark.delay(number, pause_s, deadly and number % deadly == deadly - 1)
"""


class Site:
    """A folder with the application, its store and its workers, each in a process group of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self._environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
        (folder / "jobs.py").write_text(APP)

    def send(self, count: int, pause_s: float = 0.0, deadly: int = 0) -> None:
        """Send tasks; each `deadly`-th kills the first process that runs it."""
        subprocess.run(
            [sys.executable, "-c", SEND, str(count), str(pause_s), str(deadly)],
            cwd=self.folder,
            env=self._environment,
            check=True,
            timeout=120,
        )

    def start(self) -> subprocess.Popen[bytes]:
        self._started += 1
        words = ["worker", "--concurrency", "2", "--loglevel", "warning", "--hostname", f"w{self._started}@here"]
        with (self.folder / f"w{self._started}.log").open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "celery", "--app", "jobs", *words], cwd=self.folder, env=self._environment,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.workers.append(worker)
        return worker

    def invoke(self, *words: str) -> str:
        """Return what `celery WORDS` prints."""
        return self._run([sys.executable, "-m", "celery", "--app", "jobs", *words]).stdout

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=120, check=False
        )

    def ran(self) -> list[int]:
        with contextlib.suppress(FileNotFoundError):
            return [int(line) for line in (self.folder / "ran.txt").read_text().split()]
        return []

    def kill(self, worker: subprocess.Popen[bytes], how: str) -> None:
        """Kill a worker's main process, or its whole group."""
        with contextlib.suppress(ProcessLookupError):
            if how == "main":
                os.kill(worker.pid, signal.SIGKILL)
            else:
                os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(20)
        self.workers.remove(worker)

    def stop(self) -> None:
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            try:
                worker.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait(20)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.stop()


def test_workers_run_each_task_once_and_answer(site: Site) -> None:
    """Without a kill no task runs twice; `inspect` finds the workers, and after a warm stop nothing is left."""
    site.start()
    until(lambda: "1 node online" in site.invoke("inspect", "ping", "--timeout", "5"), 90)
    site.send(60)
    until(lambda: len(site.ran()) >= 60, 90)
    assert sorted(site.ran()) == list(range(60))
    assert "jobs.mark" in site.invoke("inspect", "registered", "--timeout", "5")
    assert "'routing_key': 'celery'" in site.invoke("inspect", "active_queues", "--timeout", "5")
    site.stop()
    with MessageStore.open(site.folder / "tasks", "r") as store:
        committed = store.committed_offsets("celery", "kombu")
        assert sum(committed.values()) == sum(store.max_offset("celery", one) for one in store.queue_ids("celery")) == 60


@pytest.mark.timeout(600)
def test_no_task_is_lost_when_workers_and_the_owner_are_killed(site: Site) -> None:
    """The first worker owns the store and is killed first; then others. Tasks kill processes of the pools.

    A pool process that is killed from outside may hold the lock of its pool's queue, and then the pool hangs: a limit of
    Celery with transports that are not asynchronous.
    """
    chance = random.Random(7)
    site.start()
    until(lambda: (site.folder / "tasks" / "lock").exists(), 90)
    site.start()
    site.start()
    site.send(600, 0.02, 100)
    until(lambda: len(site.ran()) > 10, 90)
    site.kill(site.workers[0], "group")
    site.start()
    for how in ("main", "group", "main"):
        time.sleep(1.5)
        site.kill(chance.choice(site.workers), how)
        site.start()
    until(lambda: len(set(site.ran())) == 600, 300)
    assert len(list(site.folder.glob("died-*"))) == 6
