"""A Celery worker whose pool is busy answers remote control, and what Celery does with time and results works on a folder."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kombu", reason="kombu is not installed (extra kombu)")
pytest.importorskip("celery", reason="Celery is not installed")

from tests.brokerstore.celery_site import Site, pool_processes, processor_s
from tests.helpers import until

pytestmark = pytest.mark.deep
APP = """
import os, time
import brokerstore.kombu
from brokerstore import StoreConfig
from celery import Celery, chord

os.makedirs("results", exist_ok=True)
app = Celery("jobs", broker="brokerstore://" + os.path.abspath("tasks"), backend="file://" + os.path.abspath("results"))
app.conf.broker_transport_options = {"config": StoreConfig.small(), "parts": 4}
app.conf.result_chord_retry_interval = 0.2
app.conf.beat_schedule = {"tick": {"task": "jobs.mark", "schedule": 0.5, "args": [7]}}

@app.task
def nap(seconds):
    open("napping", "a").close()
    time.sleep(seconds)

@app.task
def delay_of(sent_s):
    return time.time() - sent_s

@app.task(rate_limit="5/s")
def limited():
    return time.time()

@app.task
def total(numbers):
    return sum(numbers)

@app.task(bind=True, max_retries=3)
def retried(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    return self.request.retries

@app.task(acks_late=True, reject_on_worker_lost=True)
def mark(number, pause_s=0.0):
    open(f"began-{number}", "a").close()
    time.sleep(pause_s)
    file = os.open("ran.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, b"%d\\n" % number)
    os.close(file)
"""
ONE = ("--concurrency", "1")
INSPECT = """
inspect = jobs.app.control.inspect(timeout=2)
found = [inspect.ping(), inspect.active(), inspect.reserved(), inspect.registered(), inspect.stats()]
"""
REVOKE_ALL = """
jobs.app.control.revoke(sys.argv[1:], terminate=True)
deadline = time.time() + 20
results = [jobs.app.AsyncResult(one) for one in sys.argv[1:]]
while {one.state for one in results} != {"REVOKED"} and time.time() < deadline:
    time.sleep(0.05)
found = [one.state for one in results]
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, APP)
    yield made
    made.stop()


def napping(site: Site) -> list[str]:
    """Send three long tasks, wait until one of them runs, and return their ids."""
    ids: list[str] = site.run("found = [jobs.nap.delay(100).id for _ in range(3)]")
    until((site.folder / "napping").exists, 90)
    return ids


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_busy_worker_answers(site: Site, pool: str) -> None:
    """Its one process runs a long task and two more wait; `stats` has the settings of the store as JSON."""
    worker = site.start(*ONE, "--pool", pool)
    napping(site)
    ping, active, reserved, registered, stats = site.run(INSPECT)
    assert ping == {"w1@here": {"ok": "pong"}}
    assert {one["name"] for one in active["w1@here"]} == {"jobs.nap"}
    assert {one["name"] for one in reserved["w1@here"]} <= {"jobs.nap"}
    assert "jobs.total" in registered["w1@here"]
    options = stats["w1@here"]["broker"]["transport_options"]
    assert (options["parts"], options["config"]["mapped_file_size_commit_log"]) == (4, 64 << 20)
    assert options["config"]["flush_disk_type"] == "ASYNC"
    site.kill(worker, "group")


def test_a_running_task_is_terminated_and_an_expired_one_is_revoked(site: Site) -> None:
    """Although each process of the pool is busy."""
    site.start(*ONE)
    ids = napping(site)
    expired = site.run("found = jobs.total.apply_async(([1],), expires=0.5).id")
    began = time.monotonic()
    time.sleep(1)
    assert site.run(REVOKE_ALL, *ids) == ["REVOKED"] * 3
    assert time.monotonic() - began < 20
    assert site.run("found = jobs.total.delay([1, 2]).get(timeout=20)") == 3
    until(lambda: site.run("found = jobs.app.AsyncResult(sys.argv[1]).state", expired) == "REVOKED")


def test_a_task_that_expired_before_a_worker_came_is_revoked(site: Site) -> None:
    """The worker marks it, so nobody waits for it without an end; it does not run."""
    expired = site.run("found = jobs.mark.apply_async((1,), expires=0.2).id")
    time.sleep(0.5)
    site.start(*ONE, "--pool", "solo")
    until(lambda: site.run("found = jobs.app.AsyncResult(sys.argv[1]).state", expired) == "REVOKED", 60)
    assert site.ran() == []


def test_limits_retries_countdowns_and_chords(site: Site) -> None:
    """With one process, which a hard time limit kills."""
    site.start(*ONE)
    program = """
hard = jobs.nap.apply_async((60,), time_limit=1).get(timeout=30, propagate=False)
soft = jobs.nap.apply_async((60,), soft_time_limit=1).get(timeout=30, propagate=False)
times = [one.get(timeout=30) for one in [jobs.limited.delay() for _ in range(6)]]
waited = jobs.delay_of.apply_async((time.time(),), countdown=1).get(timeout=30)
joined = jobs.chord([jobs.total.s([number]) for number in range(10)])(jobs.total.s()).get(timeout=30)
retries = jobs.retried.delay().get(timeout=30)
found = [type(hard).__name__, type(soft).__name__, max(times) - min(times), waited, joined, retries]
"""
    hard, soft, span_s, waited_s, joined, retries = site.run(program)
    assert (hard, soft, joined, retries) == ("TimeLimitExceeded", "SoftTimeLimitExceeded", 45, 2)
    assert span_s > 0.7
    assert 1 <= waited_s < 5


def test_a_task_of_a_killed_process_runs_again(site: Site) -> None:
    """With late acknowledgement; the worker lives on, with another process."""
    worker = site.start(*ONE)
    site.run("found = jobs.mark.delay(1, 2.0).id")
    until((site.folder / "began-1").exists, 90)
    for process_id in pool_processes(worker):
        os.kill(process_id, signal.SIGKILL)
    (site.folder / "began-1").unlink()
    until((site.folder / "began-1").exists, 60)
    until(lambda: site.ran() == [1])
    assert worker.poll() is None


def test_beat_sends_and_events_report(site: Site) -> None:
    """`celery events` prints what a worker does with the tasks of `celery beat`."""
    site.start(*ONE, "--pool", "solo", "--task-events")
    site.start_command("events", "--dump", log="events.log")
    until(lambda: "heartbeat" in (site.folder / "events.log").read_text(), 90)
    site.start_command("beat", log="beat.log")
    until(lambda: "task succeeded" in (site.folder / "events.log").read_text(), 90)
    assert set(site.ran()) == {7}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_idle_worker_does_not_spin(site: Site) -> None:
    """The owner and another worker use less than 50 ms of processor time per second, and a task starts soon."""
    owner = site.start(*ONE)
    until(lambda: "1 node online" in site.invoke("inspect", "ping", "--timeout", "2"), 90)
    workers = [owner, site.start(*ONE)]
    until(lambda: "2 nodes online" in site.invoke("inspect", "ping", "--timeout", "2"), 90)
    time.sleep(1)
    before = [processor_s(one) for one in workers]
    time.sleep(5)
    assert [processor_s(one) - used < 0.25 for one, used in zip(workers, before, strict=True)] == [True, True]
    program = """
found = []
for _ in range(20):
    found.append(jobs.delay_of.delay(time.time()).get(timeout=30, interval=0.01))
    time.sleep(0.05)
"""
    delays_s = sorted(site.run(program))
    assert delays_s[10] < 0.2, json.dumps(delays_s)
