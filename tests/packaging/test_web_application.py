"""The programs of the page "Web application", with real servers, workers and schedulers."""

from __future__ import annotations

import configparser
import importlib.util
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import brokerstore
from brokerstore import StoreConfig
from tests.packaging.pages import DOCS, ROOT, files_of

PAGE = DOCS / "howto" / "web-application.md"
UNITS = re.findall(r'^```ini title="([^"]+)"\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL)
LIMIT_S = 60
FULL = """
from brokerstore import PutRejected, PutStatus, SharedStore
from brokerstore.aio import AsyncStore

def put(*_arguments, **_options):
    raise PutRejected(PutStatus.SERVICE_NOT_AVAILABLE, "the disk is full")

async def awaited_put(*_arguments, **_options):
    put()

SharedStore.put, AsyncStore.put = put, awaited_put
from {module} import app
"""
pytestmark = pytest.mark.deep

Start = Callable[..., subprocess.Popen[bytes]]


def command_of(unit: str) -> list[str]:
    """Return the arguments of a service's program."""
    (source,) = [source for path, source in UNITS if path.endswith(f"/{unit}")]
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(source)
    return shlex.split(parser["Service"]["ExecStart"])[1:]


def uvicorn_command() -> list[str]:
    (found,) = re.findall(r"`uvicorn (.*?)`", PAGE.read_text())
    return shlex.split(found)


SERVERS = {
    "flask": ("gunicorn", command_of("shop-web.service"), "app"),
    "fastapi": ("uvicorn", uvicorn_command(), "api"),
}


def needs(*packages: str) -> None:
    """Skip the test without these packages."""
    missing = [name for name in packages if name not in sys.modules and importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Write the page's programs to a folder."""
    for name, source in files_of(PAGE).items():
        (tmp_path / name).write_text(source)
    return tmp_path


@pytest.fixture
def start(shop: Path) -> Iterator[Start]:
    """Return a function that starts a Python program in the folder; at the end all of them and their workers are killed."""
    started: list[subprocess.Popen[bytes]] = []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}

    def started_process(*arguments: str, log: str) -> subprocess.Popen[bytes]:
        with open(shop / log, "ab") as output:
            streams = {"stdout": output, "stderr": output}
            command = [sys.executable, *arguments]
            started.append(subprocess.Popen(command, cwd=shop, env=environment, start_new_session=True, **streams))
        return started[-1]

    yield started_process
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(condition: Callable[[], object], log: Path) -> None:
    """Wait until the condition holds; the log has the reason if it never does."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)


def serve(start: Start, shop: Path, kind: str, module: str | None = None) -> tuple[subprocess.Popen[bytes], str]:
    """Start the web server of the page on a free port; return it and its address."""
    server, arguments, application = SERVERS[kind]
    free = [argument.replace(":8000", ":0") if ":" in argument else argument for argument in arguments[:-1]]
    free = ["0" if argument == "8000" else argument for argument in free]
    process = start("-m", server, *free, f"{module or application}:app", log="web.log")
    log = shop / "web.log"
    address = re.compile(r"(?:Listening at|running on).*?(http://127\.0\.0\.1:[1-9]\d*)")
    wait_for(lambda: process.poll() is not None or address.search(log.read_text()), log)
    found = address.search(log.read_text())
    assert found, log.read_text()
    wait_for(lambda: is_listening(found[1]), log)
    return process, found[1]


def is_listening(address: str) -> bool:
    """Return whether a worker of the server takes connections; uvicorn prints the address before that."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) == 0


def post(address: str) -> tuple[int, dict[str, str], str]:
    """Send a request without a body; return status, headers and body."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="POST"), timeout=LIMIT_S) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read().decode()


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=LIMIT_S) as answer:
        found: str = answer.read().decode()
    return found


def invoices(shop: Path) -> set[int]:
    """Return the orders whose invoices are written."""
    return {int(file.stem) for file in shop.glob("invoices/*.txt") if file.read_text()}


@pytest.mark.parametrize("kind", SERVERS)
def test_each_accepted_request_becomes_an_invoice(shop: Path, start: Start, kind: str) -> None:
    """Four processes of the server and two workers; one worker is killed and started again; SIGTERM ends all of them."""
    needs(kind, SERVERS[kind][0])
    web, address = serve(start, shop, kind)
    workers = [start(*command_of("shop-worker@.service"), log="workers.log") for _ in range(2)]
    for order in range(60):
        status, _, body = post(f"{address}/invoices/{order}")
        assert (status, set(json.loads(body))) == (202, {"id"})
        if order == 30:
            workers[0].kill()
            workers[0].wait()
            workers[0] = start(*command_of("shop-worker@.service"), log="workers.log")
    wait_for(lambda: invoices(shop) == set(range(60)), shop / "workers.log")
    if kind == "flask":
        wait_for(
            lambda: re.search(r'group_lag_messages\{.*group="workers".*\} 0$', get(f"{address}/metrics"), re.M),
            shop / "web.log",
        )
    for process in (*workers, web):
        process.terminate()
        assert process.wait(LIMIT_S) in (0, -signal.SIGTERM)  # uvicorn raises the signal again after its shutdown
    for log in ("workers.log", "web.log"):
        assert "Traceback" not in (shop / log).read_text()


@pytest.mark.parametrize("kind", SERVERS)
def test_a_refused_put_is_answered_with_503(shop: Path, start: Start, kind: str) -> None:
    """The client reads when to try again."""
    needs(kind, SERVERS[kind][0])
    (shop / "full.py").write_text(FULL.format(module=SERVERS[kind][2]))
    _, address = serve(start, shop, kind, "full")
    status, headers, body = post(f"{address}/invoices/1")
    assert (status, {name.lower(): value for name, value in headers.items()}["retry-after"]) == (503, "30")
    assert "the disk is full" in body


def test_sigterm_ends_a_worker_after_the_job_in_hand(shop: Path, start: Start) -> None:
    """What is done is acknowledged: the next consumer gets exactly the jobs that have no invoice."""
    with brokerstore.connect(str(shop / "jobs"), StoreConfig.small()) as store:
        store.put_many("invoices", [b"%d" % order for order in range(3000)])
        worker = start(*command_of("shop-worker@.service"), log="workers.log")
        wait_for(lambda: len(invoices(shop)) > 20, shop / "workers.log")
        worker.terminate()
        assert worker.wait(LIMIT_S) == 0
        done = invoices(shop)
        with store.consumer("invoices", group="workers", timeout_s=1) as consumer:
            rest = [int(message.body) for message in consumer]
    assert 0 < len(done) < 3000
    assert sorted([*done, *rest]) == list(range(3000))
    assert (shop / "workers.log").read_text() == ""


def test_a_failed_job_is_logged_and_comes_again(shop: Path, start: Start) -> None:
    """The worker goes on with the next job."""
    with brokerstore.connect(str(shop / "jobs"), StoreConfig.small()) as store:
        store.put_many("invoices", [b"no number", b"1"])
        start(*command_of("shop-worker@.service"), log="workers.log")
        wait_for(lambda: invoices(shop) == {1}, shop / "workers.log")
        log = shop / "workers.log"
        wait_for(lambda: "failed" in log.read_text(), log)
        wait_for(lambda: "SCHEDULE_TOPIC_XXXX" in store.topics(), log)
    assert "ValueError" in log.read_text()


def test_apscheduler_puts_a_message_at_each_time(shop: Path, start: Start) -> None:
    """The program of the page, every second."""
    needs("apscheduler")
    start("schedule.py", log="schedule.log")
    connected = brokerstore.connect(str(shop / "jobs"), StoreConfig.small())
    with connected as store, store.consumer("invoices", group="workers", timeout_s=LIMIT_S) as consumer:
        assert [next(consumer).body for _ in range(2)] == [b"0", b"0"]


def test_celery_beat_puts_a_task_at_each_time(shop: Path, start: Start) -> None:
    """One process of beat and one worker."""
    needs("celery", "kombu")
    start("-m", "celery", "--app", "beat", "beat", log="beat.log")
    start("-m", "celery", "--app", "beat", "worker", "--pool", "solo", log="beat.log")
    wait_for((shop / "ordered.txt").exists, shop / "beat.log")


def test_the_units_start_the_programs_of_the_page() -> None:
    """The file or module of each command is on the page."""
    programs = files_of(PAGE)
    assert f"{command_of('shop-web.service')[-1].partition(':')[0]}.py" in programs
    assert command_of("shop-worker@.service") == ["worker.py"]
    assert f"{uvicorn_command()[-1].partition(':')[0]}.py" in programs
