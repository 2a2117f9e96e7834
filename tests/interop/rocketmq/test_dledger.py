"""A real broker with a DLedger log: what it delivers is what we read; it continues our repair, and an ordinary one a copy."""

from __future__ import annotations

import base64
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from messagestore import MessageStore
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from storageio import UnsupportedFormat
from tests.amounts import amount
from tests.brokerstore.tool import run
from tests.dledger import data_files, entries
from tests.faults.test_dledger_damage import KINDS
from tests.helpers import overwrite
from tests.serving import free_ports

from .folders import SIZES
from .jvm import VERSION, prepare_or_skip, why_not
from .real_broker import NAME, RealBroker, until
from .real_store import RealStore, RealStores

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]
COUNT = 650
DAMAGED = amount(12, 300)  # each kind once; as many as the model judges at night
OPEN_AT_ONCE = 12
SENT = [
    {"topic": "T", "body": base64.b64encode(b"%d " % n + bytes(n % 400)).decode(), "queue_id": n % 2, "keys": [f"k{n}"]}
    for n in range(COUNT)
]


def settings() -> dict[str, Any]:
    """Return the settings of a group of one peer."""
    (port,) = free_ports(1)
    peers = {"dLegerGroup": NAME, "dLegerSelfId": "n0", "dLegerPeers": f"n0-127.0.0.1:{port}"}
    return {**SIZES, "enableDLegerCommitLog": True, **peers}


class Killed(NamedTuple):
    """A store whose broker was killed, what it delivered before, and its version."""

    store: Path
    delivered: list[Any]
    version: str


@pytest.fixture(scope="module", params=("4.9.7", "5.5.1", VERSION)[: amount(2, 3)])
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Start a broker, send messages and kill it."""
    prepare_or_skip(request.param)
    folder = tmp_path_factory.mktemp("killed")
    with RealBroker(folder / "store", folder / "broker", version=request.param, **settings()) as broker:
        broker.invoke("topic", topic="T", queues=2)
        assert {result[0] for result in broker.invoke("send", messages=SENT)} == {"SEND_OK"}
        delivered = broker.invoke("read", topic="T", brief=True)
        broker.kill()
    assert len(delivered) == COUNT
    return Killed(folder / "store", delivered, request.param)


def copied(store: Path, target: Path) -> Path:
    """Copy a store with the holes of its index."""
    target.mkdir(parents=True)
    subprocess.run(["cp", "-r", "--sparse=always", str(store), str(target)], check=True)
    return target / store.name


def ours(store: Path) -> list[list[Any]]:
    """Return what we read of the topic, in the form of the client."""
    with MessageStore.open(store, "r") as opened:
        return [
            [queue_id, m.queue_offset, m.physical_offset, base64.b64encode(m.body).decode()]
            for queue_id in opened.queue_ids("T")
            for m in opened.read("T", queue_id)
        ]


def delivered_by(broker: RealBroker, count: int) -> list[Any]:
    """Return what a broker delivers once it is the leader and has built its queues."""
    found: list[Any] = []

    def is_all() -> bool:
        found[:] = broker.invoke("read", topic="T", brief=True)
        return len(found) >= count

    until(is_all, f"{count} messages are delivered")
    return sorted(found)


def test_a_killed_broker_delivered_what_we_read(killed: Killed) -> None:
    """Bodies, queue offsets and physical offsets; nothing is wrong with the folder."""
    assert sorted(ours(killed.store)) == sorted(killed.delivered)
    assert not verify_store(str(killed.store)).problems


def test_a_broker_continues_after_our_recovery_of_a_torn_end(killed: Killed, tmp_path: Path) -> None:
    """It delivers every entry before the cut, and numbers new messages from there."""
    store = copied(killed.store, tmp_path / "torn")
    entry, path = entries(store)[600], data_files(store)[-1]
    at = entry.position - int(path.name) + 60
    overwrite(path, max(at, 0), bytes(path.stat().st_size - max(at, 0)))
    assert Recovery(str(store), Choice.TRUNCATE).apply().is_applied
    kept = ours(store)
    assert 0 < len(kept) < COUNT
    with RealBroker(store, tmp_path / "broker", version=killed.version, **settings()) as broker:
        assert delivered_by(broker, len(kept)) == sorted(kept)
        assert [result[0] for result in broker.invoke("send", messages=SENT[:2])] == ["SEND_OK"] * 2
        assert len(delivered_by(broker, len(kept) + 2)) == len(kept) + 2
        broker.stop()
    assert not verify_store(str(store)).problems


def test_an_ordinary_broker_delivers_a_copy(killed: Killed, tmp_path: Path) -> None:
    """The way out of DLedger: the same bodies at the same queue offsets."""
    assert run("copy", killed.store, "--to", tmp_path / "store", "--all").code == 0
    with RealBroker(tmp_path / "store", tmp_path / "broker", version=killed.version, **SIZES) as broker:
        found = [[row[0], row[1], row[3]] for row in delivered_by(broker, COUNT)]
        assert found == sorted([row[0], row[1], row[3]] for row in killed.delivered)
        broker.kill()


def test_tail_follows_a_broker_that_runs(killed: Killed, tmp_path: Path) -> None:
    """It prints each message in the order of the log as the broker stores it, and ends with what the broker delivers."""
    store, more = copied(killed.store, tmp_path / "live"), SENT[:200]
    with RealBroker(store, tmp_path / "broker", version=killed.version, **settings()) as broker:
        assert len(delivered_by(broker, COUNT)) == COUNT
        command = [sys.executable, "-m", "brokerstore", "tail", "-f", "-n", str(COUNT), "--json", "--topic", "T", str(store)]
        printed, errors = tmp_path / "printed", tmp_path / "errors"
        with printed.open("wb") as out, errors.open("wb") as talk:
            tail = subprocess.Popen(command, stdout=out, stderr=talk)
        try:
            until(lambda: printed.read_bytes().count(b"\n") == COUNT, "what was there is printed")
            for first in range(0, len(more), 20):
                assert {result[0] for result in broker.invoke("send", messages=more[first : first + 20])} == {"SEND_OK"}
            until(lambda: printed.read_bytes().count(b"\n") >= COUNT + len(more), "what was sent is printed")
            assert tail.poll() is None
        finally:
            tail.kill()
            tail.wait()
        delivered = delivered_by(broker, COUNT + len(more))
        broker.kill()
    found = [json.loads(line) for line in printed.read_bytes().splitlines()]
    assert [one["physical_offset"] for one in found] == sorted(row[2] for row in delivered)
    assert sorted([one["queue_id"], one["queue_offset"], one["physical_offset"]] for one in found) == [
        row[:3] for row in delivered
    ]
    assert errors.read_bytes() == b""


def damaged_and_recovered(killed: Killed, number: int, root: Path) -> tuple[Path, str]:
    """Damage a copy, each kind in turn, and recover it; return it with what was done."""
    store = copied(killed.store, root)
    kind: Callable[[Path, random.Random], None] = KINDS[number % len(KINDS)]
    kind(store, random.Random(f"broker {number}"))
    try:
        Recovery(str(store), Choice.TRUNCATE).apply()
    except UnsupportedFormat:  # a damaged magic may be one of a newer version
        Recovery(str(store), Choice.TRUNCATE, force=True).apply()
    return store, f"{kind.__name__} {number}"


@pytest.mark.timeout(3600)
def test_the_store_of_the_version_delivers_what_is_left_of_damaged_folders(killed: Killed, tmp_path: Path) -> None:
    """After our recovery of one damage, the broker's store elects itself and delivers the bytes that the reader has."""
    jvm = RealStores(tmp_path / "stderr", main="Stores", version=killed.version, heap="1g")
    try:
        for first in range(0, DAMAGED, OPEN_AT_ONCE):
            made = [
                damaged_and_recovered(killed, number, tmp_path / str(number))
                for number in range(first, min(first + OPEN_AT_ONCE, DAMAGED))
            ]
            kept = [sorted(ours(store)) for store, _ in made]
            opened = [jvm.open(store, **settings()) for store, _ in made]
            for real, (_, name), expected in zip(opened, made, kept, strict=True):
                found: list[Any] = []

                def is_all(real: RealStore = real, found: list[Any] = found, count: int = len(expected)) -> bool:
                    found[:] = real.invoke("bodies", requested=["T"])
                    return len(found) >= count

                until(is_all, f"{name}: {len(expected)} messages are delivered", 120)
                assert sorted(found) == expected, name
            jvm.close(opened)
            for store, _ in made:
                shutil.rmtree(store)
            print(
                f"{killed.version}: {len(made)} damaged folders, {min(map(len, kept))} to {max(map(len, kept))} messages left"
            )
    finally:
        jvm.end()
