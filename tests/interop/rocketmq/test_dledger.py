"""A real broker with a DLedger log: what it delivers is what we read; it continues our repair, and an ordinary one a copy."""

from __future__ import annotations

import base64
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

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

from .folders import SIZES
from .jvm import prepare_or_skip, why_not
from .real_broker import NAME, RealBroker, free_ports, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]
COUNT = 650
SENT = [
    {"topic": "T", "body": base64.b64encode(b"%d " % n + bytes(n % 400)).decode(), "queue_id": n % 2, "keys": [f"k{n}"]}
    for n in range(COUNT)
]


def settings() -> dict[str, Any]:
    """Return the settings of a group of one peer."""
    (port,) = free_ports(1)
    peers = {"dLegerGroup": NAME, "dLegerSelfId": "n0", "dLegerPeers": f"n0-127.0.0.1:{port}"}
    return {**SIZES, "enableDLegerCommitLog": True, **peers}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A store whose broker was killed, and what it delivered before."""
    prepare_or_skip()
    folder = tmp_path_factory.mktemp("killed")
    with RealBroker(folder / "store", folder / "broker", **settings()) as broker:
        broker.invoke("topic", topic="T", queues=2)
        assert {result[0] for result in broker.invoke("send", messages=SENT)} == {"SEND_OK"}
        delivered = broker.invoke("read", topic="T", brief=True)
        broker.kill()
    assert len(delivered) == COUNT
    return folder / "store", delivered


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


def test_a_killed_broker_delivered_what_we_read(killed: tuple[Path, list[Any]]) -> None:
    """Bodies, queue offsets and physical offsets; nothing is wrong with the folder."""
    store, delivered = killed
    assert sorted(ours(store)) == sorted(delivered)
    assert not verify_store(str(store)).problems


def test_a_broker_continues_after_our_recovery_of_a_torn_end(killed: tuple[Path, list[Any]], tmp_path: Path) -> None:
    """It delivers every entry before the cut, and numbers new messages from there."""
    store = copied(killed[0], tmp_path / "torn")
    entry, path = entries(store)[600], data_files(store)[-1]
    at = entry.position - int(path.name) + 60
    overwrite(path, max(at, 0), bytes(path.stat().st_size - max(at, 0)))
    assert Recovery(str(store), Choice.TRUNCATE).apply().is_applied
    kept = ours(store)
    assert 0 < len(kept) < COUNT
    with RealBroker(store, tmp_path / "broker", **settings()) as broker:
        assert delivered_by(broker, len(kept)) == sorted(kept)
        assert [result[0] for result in broker.invoke("send", messages=SENT[:2])] == ["SEND_OK"] * 2
        assert len(delivered_by(broker, len(kept) + 2)) == len(kept) + 2
        broker.stop()
    assert not verify_store(str(store)).problems


def test_an_ordinary_broker_delivers_a_copy(killed: tuple[Path, list[Any]], tmp_path: Path) -> None:
    """The way out of DLedger: the same bodies at the same queue offsets."""
    assert run("copy", killed[0], "--to", tmp_path / "store", "--all").code == 0
    with RealBroker(tmp_path / "store", tmp_path / "broker", **SIZES) as broker:
        found = [[row[0], row[1], row[3]] for row in delivered_by(broker, COUNT)]
        assert found == sorted([row[0], row[1], row[3]] for row in killed[1])
        broker.kill()


@pytest.mark.parametrize("number", range(amount(2, 24)))
def test_a_broker_delivers_what_is_left_of_a_damaged_folder(
    killed: tuple[Path, list[Any]], number: int, tmp_path: Path
) -> None:  # fmt: skip
    """After our recovery of one damage, of each kind in turn, broker and reader have the same messages."""
    store = copied(killed[0], tmp_path / "damaged")
    chance = random.Random(f"broker {number}")
    kind: Callable[[Path, random.Random], None] = KINDS[(5 * number + 1) % len(KINDS)]
    kind(store, chance)
    try:
        Recovery(str(store), Choice.TRUNCATE).apply()
    except UnsupportedFormat:  # a damaged magic may be one of a newer version
        Recovery(str(store), Choice.TRUNCATE, force=True).apply()
    kept = ours(store)
    with RealBroker(store, tmp_path / "broker", **settings()) as broker:
        assert delivered_by(broker, len(kept)) == sorted(kept), kind.__name__
        broker.kill()
    shutil.rmtree(store)
