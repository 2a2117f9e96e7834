"""Random programs of dozens of queues in one life of a server, of each release and through upgrades, judged by its restart.

BROKERSTORE_LIVES, which `make rabbit-night` sets, is how many lives each server has: a kill comes at another moment each time.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import time
from collections import Counter

import pytest

from tests.brokerstore.tool import run

from . import many
from .judge import Judge
from .server import home_of
from .test_years import reason
from .years import SUITES

LIVES = int(os.environ.get("BROKERSTORE_LIVES") or 0)  # of a server, killed and stopped in turn
SEED = int(os.environ.get("BROKERSTORE_SEED") or 1)
EACH, LIFE_S = 60, 6.0  # programs of a life
VHOST_DOWN = "vhost '/' is down"  # what 3.8.9 makes of some folders of its own after a kill
ENDS = (signal.SIGKILL, signal.SIGTERM)
KHEPRI = "khepri_db"
# Of messages without a confirm; a segment of 3.8 and 3.10 that was just opened; the folder of an empty queue of 4.3.6.
KILLED = {"message_lost", "lost_index", "missing_queue"}
# What 3.10.8 writes for messages that 3.8.9 left undelivered: it does not start all of these queues before `recover`.
UPGRADED = {"ack_without_delivery", "bad_recovery_terms", "bad_ref_count"}
CHAINS = (("bullseye", "bookworm"), ("trixie", "sid"), ("trixie", KHEPRI, "sid"))  # 3.10.8 must not be followed by 4.0.5
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # connections to a killed server
]


def _parameter(*chain):
    suites = [suite for suite in chain if suite != KHEPRI]
    why = next(filter(None, map(reason, suites)), "")
    name = "-".join(SUITES.get(suite, suite) for suite in chain)
    return pytest.param(chain, marks=pytest.mark.skipif(bool(why), reason=why or "-"), id=name)


@pytest.mark.skipif(not LIVES, reason="set BROKERSTORE_LIVES to judge lives of servers")
@pytest.mark.parametrize("life", range(LIVES))
@pytest.mark.parametrize("chain", [_parameter(suite) for suite in SUITES] + [_parameter(*chain) for chain in CHAINS])
def test_a_restarted_server_delivers_what_is_listed(chain, life, tmp_path):
    """Message by message, with properties, routes and flags, after stops and kills; `recover` changes nothing of that.

    Each server of a chain goes on with the folder of the one before, and adds queues of its own.
    """
    seed, queues, steps, ends = SEED + life, {}, 0, [ENDS[(life >> step) % 2] for step in range(len(chain))]
    node, suite = None, chain[0]
    for step, (name, how) in enumerate(zip(chain, ends, strict=True)):
        suite = suite if name == KHEPRI else name
        judge = Judge(f"many-{os.getpid()}", 60, node_name="many", home=home_of(suite))
        try:
            if node is not None:
                judge.put_back(node)
            assert judge.start() == "", judge.log()[-2000:]
            if step:
                flags = ("--opt-in", KHEPRI) if name == KHEPRI else ("all",)
                assert judge.server.control("enable_feature_flag", *flags) == ""
            names = many.names_of(suite, seed * 10 + step, EACH // len(chain))
            queues |= many.declare(judge, suite, names, random.Random(seed))
            programs = [name for name in queues if name[0] in "cqs" and "." in name]
            made = many.run_and_end(judge, programs, seed * 10 + step, LIFE_S, how)
            ends[step] = how if made else signal.SIGKILL
            steps += made
            node = judge.save(tmp_path / f"node{step}")
            if step == len(chain) - 1:
                allowed = (KILLED if signal.SIGKILL in ends else set()) | (UPGRADED if chain == CHAINS[0] else set())
                found = _judged(judge, node, queues, allowed)
        finally:
            judge.server.close()
            gc.collect()  # connections to the ended server: their warnings belong to this test
    lives = " ".join(f"{SUITES.get(name, name)} {how.name}" for name, how in zip(chain, ends, strict=True))
    print(f"{lives} seed {seed}: {len(queues)} queues, {steps} steps, {found}", flush=True)


def _judged(judge, node, queues, allowed):
    """Compare what is listed with what the server delivers, before and after `recover`; return the numbers of messages."""
    time.sleep(1)  # what expires immediately has expired
    kinds = {one["kind"] for one in run("verify", "--json", node).json["problems"]}
    assert kinds <= allowed
    expected = many.expected(node, queues)
    raw = {"": str(kinds)} if kinds & UPGRADED else _differences(judge, node, queues, expected)
    assert raw == {} or VHOST_DOWN in str(raw) or kinds & UPGRADED
    before = {path: path.read_bytes() for path in node.rglob("*") if path.is_file()}
    assert run("recover", "--apply", node).code in (0, 6, 7)
    before_recover, expected = expected, many.expected(node, queues)
    for name, rows in before_recover.items():  # the start of the server drops a stream's last chunk without its index record
        assert expected[name][: len(rows)] == rows and (name[0] == "s" or len(expected[name]) == len(rows))
    is_changed = {path: path.read_bytes() for path in node.rglob("*") if path.is_file()} != before
    assert not (is_changed or raw) or _differences(judge, node, queues, expected) == {}
    return dict(Counter(name[0] for name, rows in expected.items() for _row in rows)) | {"changed": is_changed}


def _differences(judge, node, queues, expected):
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
