"""All types of queues of a real RabbitMQ: what a folder lists is what the restarted server delivers.

These take long and depend on the times at which a loaded machine kills the server, so they run only with BROKERSTORE_JUDGE=all.
BROKERSTORE_ROUNDS sets the number of rounds of random programs, BROKERSTORE_SEED the first seed, BROKERSTORE_SUITE the release
(4.0.5 without it).
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import time
from collections import Counter

import pytest

from rabbitstore.node_folder import NodeFolder
from tests.brokerstore.tool import run

from .damages import AFTER_A_RESTART, CLASSES, DAMAGES, FILES, MissingFileError, Node, damage_any
from .judge import Judge, listed, removed
from .programs import DEAD, declare, run_and_kill
from .server import home_of, why_not
from .years import WITHOUT_STREAMS

SUITE = os.environ.get("BROKERSTORE_SUITE") or "trixie"
HOME = home_of(SUITE)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not(HOME)), reason=why_not(HOME) or "-"),
    pytest.mark.skipif(os.environ.get("BROKERSTORE_JUDGE") != "all", reason="set BROKERSTORE_JUDGE=all to judge for minutes"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # connections to a killed server
]
ROUNDS, SEED = int(os.environ.get("BROKERSTORE_ROUNDS") or 1), int(os.environ.get("BROKERSTORE_SEED") or 1)
NO_LIMIT = 1 << 40
EACH = 40  # programs of each type in one life of the server
STEPS_EACH = 30  # at least, on average
LIFE_S, LIVES_MAX = 5, 6  # of the server that the damaged folders are of, until it has segments and snapshots


def names(seed, **counts):
    """Return so many names of each type that the release has."""
    known = {kind: count for kind, count in counts.items() if kind != "s" or SUITE not in WITHOUT_STREAMS}
    return [f"{kind}{seed}.{number}" for kind, count in known.items() for number in range(count)]


def limits_of(arguments):
    """Return the greatest number of messages of each classic queue."""
    return {DEAD: NO_LIMIT} | {name: found.get("x-max-length", NO_LIMIT) for name, found in arguments.items() if name[0] == "c"}


@contextlib.contextmanager
def judging(name, shift):
    judge = Judge(name, shift, home=HOME)
    try:
        yield judge
    finally:
        judge.server.close()


def differences(judge, expected, growing=""):
    """Start the server, and return what each queue delivers if it is not the expected."""
    assert judge.start() == "", judge.log()[-2000:]
    return judge.differences(expected, growing)


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_random_programs_until_a_kill(seed, tmp_path):
    """After a kill in the middle of publishes, deliveries, returns and dead letters every queue delivers what was listed."""
    chance = random.Random(seed)
    queues = names(seed, c=EACH, q=EACH, s=EACH)
    with judging("programs", 10) as judge:
        assert judge.start() == ""
        arguments = declare(judge, queues, chance, SUITE)
        steps = run_and_kill(judge, queues, seed, chance.uniform(2, 6), STEPS_EACH * len(queues))
        expected = listed(judge.save(tmp_path / "node"), limits_of(arguments))
        assert set(expected) == {*queues, DEAD}
        assert differences(judge, expected, growing=DEAD) == {}
    counts = Counter(kind for kind, rows in expected.values() for _row in rows)
    gc.collect()  # connections to the killed server: their warnings belong to this test
    print(f"seed {seed}: {EACH} programs of each type, {steps} steps, {dict(counts)}", flush=True)


@pytest.fixture(scope="module")
def damaged():
    """Return the judge of the damaged folders."""
    with judging("damaged", 20) as judge:
        yield judge


@pytest.fixture(scope="module")
def base(damaged, tmp_path_factory):
    """Return the folder of a killed node with queues of all types and several files of each kind, and the limits in it."""
    queues = names(SEED, c=2, q=3, s=2)
    assert damaged.start() == ""
    limits = limits_of(declare(damaged, queues, random.Random(SEED), SUITE))
    for life in range(LIVES_MAX):
        assert not life or damaged.start() == ""
        run_and_kill(damaged, queues, SEED + life, LIFE_S)
        if all(list(damaged.node.glob(pattern)) for pattern in FILES.values()):
            break
    return damaged.save(tmp_path_factory.mktemp("base") / "node"), limits


@pytest.fixture
def folder(base, tmp_path):
    """Return a copy of the folder."""
    shutil.copy(f"{base[0]}-feature_flags", f"{tmp_path}/node-feature_flags")
    return shutil.copytree(base[0], tmp_path / "node")


@pytest.mark.parametrize("name", [name for name in DAMAGES if not name.startswith("classic") and name not in AFTER_A_RESTART])
def test_a_recovered_folder_is_served(name, base, folder, damaged):
    """After a damage to a field and `recover` the server starts and delivers every message that was listed before."""
    try:
        DAMAGES[name](Node(folder, SEED))
    except MissingFileError as error:
        pytest.skip(f"no {error} in a folder of {SUITE}")
    _recovered(folder, base[1], damaged)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("change", CLASSES)
@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_a_file_with_one_damaged_byte_is_recovered(kind, change, seed, base, folder, damaged):
    """The same for any byte of any file."""
    try:
        file = damage_any(Node(folder, f"{seed} {kind} {change}"), kind, change)
    except MissingFileError as error:
        pytest.skip(f"no {error} in a folder of {SUITE}")
    started = time.monotonic()
    found = _recovered(folder, base[1], damaged)
    print(kind, change, file, *found, f"{time.monotonic() - started:.1f} s", flush=True)


def _recovered(folder, limits, judge):
    """Recover a damaged folder and compare it with what the server delivers; return the numbers of messages.

    A queue with a new log has those again that a start would have removed.  One whose limit was unknown loses those above it.
    A stream that its coordinator no longer knows is reported, and cannot be served.
    """
    before, gone = _contents(listed(folder, limits)), removed(folder, limits)
    left = {one["file"]: one["kind"] for one in run("recover", "--apply", "--json", folder).json["node"]["unrepaired"]}
    after = listed(folder, limits)
    assert {body for _id, body in before - _contents(after)} <= removed(folder, limits)
    assert {body for _id, body in _contents(after) - before} <= gone
    with contextlib.closing(NodeFolder(str(folder), "/")) as node:
        assert {problem.file for problem in node.check().problems} <= set(left)
        unknown = [stream.queue for stream in node.streams if left.get(stream.relative) == "unregistered_stream"]
    judge.put_back(folder)
    try:
        found = differences(judge, {name: rows for name, rows in after.items() if name not in unknown}, growing=DEAD)
        assert found == {}, found
    finally:
        judge.kill()
        gc.collect()
    return before.total(), _contents(after).total()


def _contents(listing):
    """Count the messages, whose ids name their queues: a queue without a `config` is listed by its folder."""
    return Counter((row.message_id, row.body) for _kind, rows in listing.values() for row in rows)
