"""Servers of four years: their healthy folders are intact, read as the server delivers them, and come through `recover`.

RabbitMQ 4.0.5 runs everywhere; the others, which take a minute each, with BROKERSTORE_JUDGE=all.
With BROKERSTORE_KEEP=1 folders of 3.8.9 and 3.10.8 replace those of the normal run.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import signal
import tarfile
import time
from collections import Counter

import pytest

from tests.brokerstore.tool import run
from tests.rabbitstore.conftest import DATA

from . import many
from .judge import Judge
from .server import home_of, why_not
from .years import SUITES, delivered, listed, make_folders, served, write_delivered

pytestmark = pytest.mark.slow
IN_CI = ("trixie",)
LIVES = int(os.environ.get("BROKERSTORE_LIVES") or 1)  # of a server, killed and stopped in turn
SEED = int(os.environ.get("BROKERSTORE_SEED") or 1)
EACH, LIFE_S = 60, 6.0  # programs of a life
VHOST_DOWN = "vhost '/' is down"  # what 3.8.9 makes of some folders of its own after a kill


def reason(suite):
    """Return why a release cannot be judged here, or an empty text."""
    if suite not in IN_CI and os.environ.get("BROKERSTORE_JUDGE") != "all":
        return "set BROKERSTORE_JUDGE=all to judge every release"
    return why_not(home_of(suite))


def _parameter(suite):
    return pytest.param(suite, marks=pytest.mark.skipif(bool(reason(suite)), reason=reason(suite) or "-"), id=SUITES[suite])


@pytest.fixture(scope="module", params=[_parameter(suite) for suite in SUITES])
def year(request, tmp_path_factory):
    """Return a release's judge and its folders."""
    judge = Judge(f"years-{request.param}", 40, node_name="years", home=home_of(request.param))
    try:
        yield judge, make_folders(judge, request.param, tmp_path_factory.mktemp(request.param))
    finally:
        judge.server.close()


KEPT = {"bullseye": "rabbitmq38", "bookworm": "rabbitmq310"}
ENDS = {"SIGTERM": "clean", "SIGKILL": "killed"}


@pytest.mark.skipif(os.environ.get("BROKERSTORE_KEEP") != "1", reason="set BROKERSTORE_KEEP=1 to write the archives")
@pytest.mark.parametrize("how", ENDS)
def test_archive_of_the_normal_run_is_written(year, how, tmp_path):
    """The folder, the feature flags and what the server delivers after a start on a copy."""
    judge, folders = year
    suite = next(suite for suite in SUITES if home_of(suite) == judge.server.home)
    if suite not in KEPT:
        pytest.skip("other archives have this release")
    folder = folders[how]
    shutil.copytree(folder.path, tmp_path / "node")
    shutil.copy(f"{folder.path}-feature_flags", tmp_path / "feature_flags")
    judge.put_back(folder.path)
    assert not judge.start()
    try:
        counts = {name: len(rows) for name, rows in listed(folder.path, folder.queues).items()}
        write_delivered(tmp_path / "delivered.json", SUITES[suite], delivered(judge, folder.queues, counts))
    finally:
        judge.kill()
    with tarfile.open(DATA / f"{KEPT[suite]}-{ENDS[how]}.tar.xz", "w:xz") as archive:
        for name in ("node", "feature_flags", "delivered.json"):
            archive.add(tmp_path / name, name)


@pytest.mark.parametrize("how", ENDS)
def test_a_healthy_folder_of_every_release_year_is_served_after_recover(year, how):
    """`verify` is 0, `dump` lists what the server delivers, and after `recover --apply` it delivers the same."""
    judge, folders = year
    folder = folders[how]
    checked = run("verify", folder.path)
    assert checked.code == 0, checked.out
    before = listed(folder.path, folder.queues)
    assert served(judge, folder.path, folder.queues, before) == []
    recovered = run("recover", "--apply", "--json", folder.path)
    assert recovered.json["plan"]["records_dropped"] == 0
    assert run("verify", folder.path).code == 0
    assert listed(folder.path, folder.queues) == before
    assert served(judge, folder.path, folder.queues, before) == []


@pytest.mark.parametrize("life", range(LIVES))
@pytest.mark.parametrize("suite", [_parameter(suite) for suite in SUITES])
def test_random_programs_of_every_release(suite, life, tmp_path):
    """Message by message, with properties, routes and flags, after a stop and a kill; `recover` changes nothing of that."""
    seed, how = SEED + life, (signal.SIGKILL, signal.SIGTERM)[life % 2]
    judge = Judge(f"many-{suite}-{os.getpid()}", 60, node_name="many", home=home_of(suite))
    try:
        assert judge.start() == "", judge.log()[-2000:]
        names = many.names_of(suite, seed, EACH)
        queues = many.declare(judge, suite, names, random.Random(seed))
        steps = many.run_and_end(judge, names, seed, LIFE_S, how)
        node = judge.save(tmp_path / "node")
        time.sleep(1)  # what is to expire at once has expired
        kinds = {one["kind"] for one in run("verify", "--json", node).json["problems"]}
        assert kinds <= ({"message_lost"} if how is signal.SIGKILL else set())  # whose confirm the kill was before
        expected = many.expected(node, queues)
        raw = _served(judge, node, queues, expected)
        assert raw == {} or VHOST_DOWN in str(raw)
        before = {path: path.read_bytes() for path in node.rglob("*") if path.is_file()}
        assert run("recover", "--apply", node).code in (0, 6, 7)
        assert many.expected(node, queues) == expected
        is_changed = {path: path.read_bytes() for path in node.rglob("*") if path.is_file()} != before
        assert not (is_changed or raw) or _served(judge, node, queues, expected) == {}
    finally:
        judge.server.close()
        gc.collect()  # connections to the ended server: their warnings belong to this test
    counts = Counter(name[0] for name, rows in expected.items() for _row in rows)
    print(f"{SUITES[suite]} {how.name} seed {seed}: {EACH} programs, {steps} steps, {dict(counts)}, {is_changed=}", flush=True)


def _served(judge, node, queues, expected):
    """Start the server on a copy of a folder, and return how what it delivers differs from the expected."""
    from pika.exceptions import AMQPError

    judge.put_back(node)
    assert judge.start() == "", judge.log()[-2000:]
    try:
        with contextlib.closing(judge.connect()):
            counts = {name: len(expected[name]) for name in queues}
        found = many.differences(queues, expected, many.delivered(judge, queues, counts))
        for name, difference in found.items():
            print(name, difference)
        return found
    except AMQPError as error:
        return {"": repr(error)}
    finally:
        judge.kill()
