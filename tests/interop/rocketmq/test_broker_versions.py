"""Brokers of different versions: their folders and ours go back and forth, and the broker delivers everything."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.broker_versions import BROKER_VERSIONS, BY_NAME, BrokerVersion
from messagestore.checkpoint import read_checkpoint
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK
from tests.faults.test_unknown_formats import records
from tests.stores import problem_kinds

from .folders import LONG_TOPIC, Ticking, mixed, ours, write_hidden, write_mixed
from .jvm import prepare_or_skip, why_not
from .programs import FIXTURES, HIDDEN, OURS, SMALL, TOPIC, Program, by_tag, fixture, of_log
from .real_broker import CLUSTER, RealBroker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]
VERSIONS = [version.name for version in BROKER_VERSIONS]
READERS = ("topic-0", "topic-1", "batches", "back")
TAG = "A"
PROGRAMS = int(os.environ.get("BROKERSTORE_PROGRAMS", "1"))
SEED = int(os.environ.get("BROKERSTORE_SEED", "1"))


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> Iterator[str]:
    prepare_or_skip(request.param)
    yield request.param


def delivered(broker: RealBroker, topics: list[str]) -> dict[str, list[int]]:
    """Return the log offsets of what a real consumer receives of each topic."""
    known = broker.invoke("topics")
    return {
        topic: sorted({one["physical_offset"] for one in broker.invoke("read", topic=topic)})
        for topic in topics
        if topic in known
    }


def write(store: MessageStore, numbers: range, version: BrokerVersion) -> None:
    """Write messages of every form that a broker of the version reads."""
    if version.has_long_topics:
        write_mixed(store, numbers)
        return
    for message in map(mixed, numbers):
        if message.topic != LONG_TOPIC:
            store.put(message)
    store.put_batch("batches", 0, [Message("batches", b"%d" % number) for number in numbers[:5]])
    write_hidden(store, numbers.start)


def test_our_store_goes_to_the_broker_and_back_three_times(version: str, tmp_path: Path) -> None:
    """Each side delivers what both have written, by queue, key and tag; nothing is wrong with the folder at any step."""
    folder = tmp_path / "store"
    config = ours(broker_version=version)
    for turn in range(3):
        with MessageStore.open(folder, "a", config, clock=Ticking(1_700_000_000_000 + turn * 10**7)) as store:
            write(store, range(turn * 100, turn * 100 + 100), BY_NAME[version])
            store.put(Message("back", b"ours %d" % turn, queue_id=0, tags=TAG, keys=[f"ours-{turn}"]))
        with RealBroker(folder, tmp_path / f"broker-{turn}", version=version, **OURS) as broker:
            assert delivered(broker, list(READERS)) == {topic: of_log(folder).get(topic, []) for topic in READERS}
            keys = [["back", f"ours-{before}"] for before in range(turn + 1)]
            assert [len(found) for found in broker.invoke("query", requested=keys)] == [1] * (turn + 1)
            if BY_NAME[version].has_tag_items:
                found = broker.invoke("query_tags", cluster=CLUSTER, requested=[["back", TAG], ["topic-1", TAG]])
                assert found[0] == by_tag(folder, "back", TAG)
                assert set(found[1]) <= set(by_tag(folder, "topic-1", TAG))
            message = {"topic": "back", "queue_id": 0, "body": "YQ==", "tags": TAG, "keys": [f"broker-{turn}"]}
            broker.invoke("send", messages=[message])
            broker.stop()
        assert verify_store(str(folder)).problems == []
        with MessageStore.open(folder, "r") as store:
            assert [one.physical_offset for one in store.query("back", f"broker-{turn}")]
            assert len(store.query_tag("back", TAG)) == 2 * turn + 2 if BY_NAME[version].has_tag_items else True


def visible(manifest: dict[str, Any]) -> dict[str, list[int]]:
    """Return the log offsets of the messages of each ordinary topic, as the broker delivered them."""
    found: dict[str, list[int]] = {}
    for one in manifest["messages"]:
        if not one["topic"].startswith(HIDDEN):
            found.setdefault(one["topic"], []).append(one["commitLogOffset"])
    return {topic: sorted(offsets) for topic, offsets in found.items()}


@pytest.mark.parametrize("name", sorted(FIXTURES))
def test_the_broker_delivers_its_own_store_after_each_of_our_changes(name: str, tmp_path: Path) -> None:
    """A put, a rebuild of queues and index, and a recovery that cut the log: everything before the cut is delivered."""
    prepare_or_skip(name)
    folder, manifest = fixture(name, tmp_path)
    expected = visible(manifest)
    assert verify_store(str(folder)).problems == []
    with MessageStore.open(folder, "a") as store:
        added = store.put("MixPlain", b"ours", queue_id=0, tags="ours", keys=["ours"]).physical_offset
    expected["MixPlain"].append(added)
    rebuild_store(str(folder))
    assert verify_store(str(folder)).problems == []
    with RealBroker(folder, tmp_path / "first", version=name, **SMALL) as broker:
        first = delivered(broker, list(expected))
        assert {topic: sorted(set(found) & set(expected[topic])) for topic, found in first.items()} == expected
        assert broker.invoke("query", requested=[["MixPlain", "ours"]]) == [[added]]
        if BY_NAME[name].has_tag_items:
            tags = sorted({tag for one in manifest["messages"] if (tag := one.get("tags")) and one["topic"] == "MixPlain"})
            found = broker.invoke("query_tags", cluster=CLUSTER, requested=[["MixPlain", tag] for tag in [*tags, "ours"]])
            assert found == [by_tag(folder, "MixPlain", tag) for tag in [*tags, "ours"]]
        broker.stop()
    cut = records(folder)[-10]
    with cut[0].open("r+b") as file:
        file.seek(cut[1] + 8)
        file.write(b"\xee" * 40)
    assert Recovery(str(folder), Choice.TRUNCATE, force=True).apply().is_damaged
    end = int(cut[0].name) + cut[1]
    assert verify_store(str(folder)).problems == []
    assert read_checkpoint(REAL_DISK, str(folder / "checkpoint")).values.logics_physical_offset < end
    with RealBroker(folder, tmp_path / "second", version=name, **SMALL) as broker:
        kept = {topic: [at for at in offsets if at < end] for topic, offsets in expected.items()}
        again = delivered(broker, list(expected))
        assert {topic: sorted(set(found) & set(kept[topic])) for topic, found in again.items()} == kept
        broker.stop()
    assert verify_store(str(folder)).problems == []


def test_accelerated_recovery_starts_after_our_cut_and_a_kill(tmp_path: Path) -> None:
    """The offset in the checkpoint would be behind the end of the log, which such a broker refuses to start with."""
    name = "5.5.1"
    prepare_or_skip(name)
    folder, manifest = fixture(name, tmp_path)
    accelerated = SMALL | {"enableAcceleratedRecovery": True}
    cut = records(folder)[-20]
    with (folder / "checkpoint").open("r+b") as file:
        file.seek(40)
        file.write((max(one["commitLogOffset"] for one in manifest["messages"])).to_bytes(8, "big"))
    with cut[0].open("r+b") as file:
        file.seek(cut[1] + 8)
        file.write(b"\xee" * 40)
    Recovery(str(folder), Choice.TRUNCATE, force=True).apply()
    end = int(cut[0].name) + cut[1]
    (folder / "abort").write_text("1")  # as after a kill
    kept = {topic: [at for at in offsets if at < end] for topic, offsets in visible(manifest).items()}
    for turn in range(2):
        with RealBroker(folder, tmp_path / f"broker-{turn}", version=name, **accelerated) as broker:
            found = delivered(broker, list(kept))
            assert {topic: sorted(set(offsets) & set(kept[topic])) for topic, offsets in found.items()} == kept
            broker.kill()
    assert problem_kinds(folder) <= {"missing_item"}  # a killed broker deletes the index, and indexes only what it recovers
    Recovery(str(folder)).apply()
    assert problem_kinds(folder) == set()


class BrokerProgram(Program):
    """Each step of the real system is a broker that starts, gets messages, and stops or is killed."""

    def send(self) -> None:
        """Send messages to a broker that stops cleanly."""
        with self.broker() as broker:
            self._send_some(broker)
            broker.stop()

    def send_and_kill(self) -> None:
        """Send messages to a broker that is killed."""
        self.kills += 1
        with self.broker() as broker:
            self._send_some(broker)
            broker.kill()

    def broker(self) -> RealBroker:
        self.starts += 1
        settings = dict(self.settings)
        if BY_NAME[self.version].has_logics_offset and self.random.random() < 0.3:
            settings |= {"timerWheelSnapshotFlush": True}
        return RealBroker(self.folder, self.root / f"broker-{self.starts}", version=self.version, **settings)

    def _send_some(self, broker: RealBroker) -> None:
        broker.invoke("topic", topic=TOPIC, queues=8)
        broker.invoke("send", messages=self.messages())


def test_broker_delivers_what_random_programs_left(version: str, tmp_path: Path) -> None:
    """BROKERSTORE_PROGRAMS sets how many; the broker delivers at the end what the log has, by tag as well."""
    for seed in range(SEED, SEED + PROGRAMS):
        root = tmp_path / str(seed)
        root.mkdir()
        program = BrokerProgram(seed, version, root)
        for step in program.steps:
            step()
            program.repair(step.__name__)
        with program.broker() as broker:
            assert delivered(broker, [TOPIC]) == {TOPIC: of_log(program.folder)[TOPIC]}, str(program)
            if BY_NAME[version].has_tag_items:
                (found,) = broker.invoke("query_tags", cluster=CLUSTER, requested=[[TOPIC, "b"]])
                assert found == by_tag(program.folder, TOPIC, "b")[-64:], str(program)
            broker.stop()
        assert problem_kinds(program.folder) == set(), str(program)
        print(program)
        shutil.rmtree(root)
