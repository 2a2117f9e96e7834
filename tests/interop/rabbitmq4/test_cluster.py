"""Three nodes of a real cluster, one killed early, one wiped: the folders that are left list what the survivors deliver."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.brokerstore.tool import run

from . import many
from .judge import Judge
from .programs import DEAD
from .server import MAPPER_PORT, home_of
from .test_years import reason

SUITES = ("sid", "trixie")
NODES = "abc"
COOKIE = "ONECOOKIEOFTHREENODES"
LIFE_S = 4.0
PROGRAMS = 12
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # connections to a killed server
]


def _parameter(suite):
    return pytest.param(suite, marks=pytest.mark.skipif(bool(reason(suite)), reason=reason(suite) or "-"))


@contextlib.contextmanager
def cluster(suite):
    """Start three nodes that are a cluster."""
    judges = {
        name: Judge(f"cluster-{name}-{os.getpid()}", 70 + number, node_name=name, home=home_of(suite))
        for number, name in enumerate(NODES)
    }
    try:
        for judge in judges.values():
            judge.server.mapper_port = MAPPER_PORT + 70
            cookie = judge.server.outside / ".erlang.cookie"
            cookie.write_text(COOKIE)
            cookie.chmod(0o400)
            assert judge.start() == "", judge.log()[-2000:]
        for name in NODES[1:]:
            for words in (("stop_app",), ("join_cluster", "a@localhost"), ("start_app",)):
                assert judges[name].server.control(*words) == ""
        time.sleep(2)
        yield judges
    finally:
        for judge in judges.values():
            judge.server.close()
        gc.collect()


@pytest.mark.parametrize(("early", "wiped"), [("c", "b"), ("b", "a"), ("c", "a")])
@pytest.mark.parametrize("suite", [_parameter(suite) for suite in SUITES])
def test_the_folders_that_are_left_list_what_the_survivors_deliver(suite, early, wiped, tmp_path):
    """The early one is behind; of each replicated queue the newest copy counts, and of the others the only one."""
    client = next(name for name in NODES if name not in (early, wiped))
    with cluster(suite) as judges:
        names = [f"{kind}{number}.\u00e4" for kind in "qs" for number in range(PROGRAMS // 2)] + [f"c.{name}" for name in NODES]
        queues = {DEAD: {}}
        chance = random.Random(1)
        for name in names:
            node = name[2:] if name[0] == "c" else client
            arguments = many.arguments_of(suite, name, chance) if name[0] != "c" else {}
            with contextlib.closing(judges[node].connect()) as connection:
                connection.channel().queue_declare(name, durable=True, arguments=arguments)
            queues[name] = arguments
        with contextlib.closing(judges[client].connect()) as connection:
            connection.channel().queue_declare(DEAD, durable=True)
        time.sleep(many.NAMES_SAVED_S)
        programs = [many.RichProgram(judges[client], name, number) for number, name in enumerate(names) if name != f"c.{early}"]
        for program in programs:
            program.start()
        for name in sorted(judges, key=lambda name: name != early):
            time.sleep(LIFE_S if name in (early, sorted(set(NODES) - {early})[0]) else 0)
            judges[name].server.end(signal.SIGKILL)
        for program in programs:
            program.join(30)
        folders = [judge.save(tmp_path / f"{name}@localhost") for name, judge in judges.items() if name != wiped]
        shutil.rmtree(judges[wiped].node)
        lost = {f"c.{wiped}"} if wiped != client else {f"c.{wiped}", DEAD}
        left = {name: arguments for name, arguments in queues.items() if name not in lost}
        view = {one["queue"]: one for one in run("info", "--json", *folders).json["queues"]}
        replicated = [name for name in left if name[0] in "qs"]
        assert all(view[name]["members"] == 3 and view[name]["has_majority"] for name in replicated)
        assert {view[name]["newest"] for name in replicated} == {str(tmp_path / f"{client}@localhost")}
        assert any(view[name]["alone"] for name in replicated)
        expected = many.expected(folders[0], left, folders[1:])
        survivors = [judges[name] for name in NODES if name != wiped]
        (judges[client].node / "force_load").touch()  # or Mnesia waits for the wiped node
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(Judge.start, survivors)) == ["", ""], survivors[0].log()[-2000:]
        time.sleep(5)
        got = many.delivered(judges[client], left, {name: len(expected[name]) for name in left})
        found = many.differences(left, expected, got)
        for name, difference in found.items():
            print(name, difference)
        assert found == {}
        print(suite, early, wiped, {name: len(rows) for name, rows in expected.items()}, flush=True)
