"""Whatever happens to an index of version 1, RabbitMQ 3.8 and 3.10 start its queue, judged by a plain model of their reader."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rabbitstore import RabbitSettings, RabbitStore, apply_recovery, verify
from rabbitstore.engine.queue_index_cy import QueueIndex
from rabbitstore.read.vhost_folder import VhostFolder
from storageio import DiskError
from storageio.testing import FailingDisk
from tests.amounts import amount
from tests.faults.golden import fast_folder
from tests.rabbitstore import server_index
from tests.rabbitstore.test_queue_index import SETTINGS, ident, publish

NEVER = 1 << 40
NUMBERS = 40
SEGMENT_STATES = ("", "p", "pd", "pda")
REFUSED = {("p", "pd"), ("p", "pda"), ("pd", "pda"), ("d", ""), ("d", "pda"), ("a", "p")}


@pytest.fixture
def folder() -> Iterator[Path]:
    with fast_folder() as above:
        yield above


def write_index(folder: Path, states: list[tuple[str, str]], chance: random.Random) -> None:
    """Write a folder as 3.8 may leave it; `states` are those of each message in the journal and in its segment."""
    folder.mkdir(parents=True)
    segments: dict[int, bytes] = {}
    journal = b""
    for number, (logged, written) in enumerate(states):
        is_persistent = chance.random() < 0.7
        term = b"term%d" % number if number % 3 else b""
        body = server_index.PUBLISH.pack(ident(number), number * 7, 10 + number, len(term)) + term
        data = server_index.journal_bytes(number, logged, body, is_persistent=is_persistent)
        journal += data
        part = server_index.segment_bytes(number % SETTINGS.segment_entries, written, body, is_persistent=is_persistent)
        segments[number // SETTINGS.segment_entries] = segments.get(number // SETTINGS.segment_entries, b"") + part
    for number, data in segments.items():
        if data:
            (folder / f"{number}.idx").write_bytes(data)
    (folder / "journal.jif").write_bytes(journal)


def loadable_states(chance: random.Random) -> list[tuple[str, str]]:
    pairs = [("", state) for state in SEGMENT_STATES]
    pairs += [(logged, state) for logged, others in server_index.TOGETHER.items() for state in others]
    return [chance.choice(pairs) for _ in range(NUMBERS)]


def work(index: QueueIndex, alive: set[int], chance: random.Random) -> None:
    """Publish and acknowledge, in any order, with syncs and flushes between."""
    seq_id = index.next_seq_id
    for _ in range(chance.randrange(60)):
        if chance.random() < 0.6 or not alive:
            publish(index, seq_id, chance.random() < 0.7)
            alive.add(seq_id)
            seq_id += 1
        else:
            gone = chance.sample(sorted(alive), min(len(alive), chance.randrange(1, 4)))
            index.acknowledge(gone)
            alive -= set(gone)
        if chance.random() < 0.2:
            index.sync()
        if chance.random() < 0.08:
            index.flush()


@pytest.mark.parametrize("seed", range(amount(3, 40)))
def test_the_server_reads_an_index_after_a_kill_at_any_call(folder: Path, seed: int) -> None:
    """Before each call of the disk the files are ones that the server joins, also those that 3.8 left."""
    write_index(folder / "old", loadable_states(random.Random(seed)), random.Random(seed))
    server_index.load(folder / "old")
    fail_at, is_done = 0, False
    while not is_done:
        fail_at += 1
        path = Path(shutil.copytree(folder / "old", folder / "new"))
        for disk in (FailingDisk(fail_at, for_ever=True), FailingDisk(NEVER)):
            index, chance = QueueIndex(disk, str(path), SETTINGS), random.Random(seed)
            try:
                work(index, {entry.seq_id for entry in index.load(lambda entry: entry.persistent)}, chance)
                is_done = disk.fail_at < NEVER
            except DiskError:
                is_done = False
            index.abandon()
            server_index.load(path)
            if is_done:
                break
        shutil.rmtree(path)


def test_verify_reports_the_states_that_the_server_does_not_join(tmp_path: Path) -> None:
    """`verify` reports exactly those; after `recover` the server joins the files, and no message is lost.

    3.8.9 and 3.10.8 start on each of the other pairs, and on none of these.
    """
    pairs = [(logged, written) for logged in ("", *server_index.TOGETHER) for written in SEGMENT_STATES]
    settings = RabbitSettings(background=False, index_version=1)
    with RabbitStore.open(str(tmp_path), settings=settings) as store:
        for logged, written in pairs:
            store.declare_queue(f"{logged}-{written}")
            store.publish(f"{logged}-{written}", b"first")
    for name in ("msg_store_persistent/clean.dot", "recovery.dets"):
        (tmp_path / name).unlink()
    queues = {}
    for queue in VhostFolder(str(tmp_path)).queue_folders():
        logged, _, written = queue.queue.partition("-")
        queues[queue.relative] = logged, written
        publish_size = len(data := Path(queue.path, "0.idx").read_bytes()) - 2
        body = data[2:publish_size]
        Path(queue.path, "0.idx").write_bytes(server_index.segment_bytes(0, written, body) or b"")
        if not written:
            Path(queue.path, "0.idx").unlink()
        Path(queue.path, "journal.jif").write_bytes(server_index.journal_bytes(0, logged, body))
    reported = {queues[problem.file.rpartition("/")[0]] for problem in verify(str(tmp_path)).problems}
    assert len(queues) == len(pairs) and reported == REFUSED == refused_by_the_server(tmp_path, queues)
    assert apply_recovery(str(tmp_path)).messages_lost == 0
    assert verify(str(tmp_path)).problems == [] and refused_by_the_server(tmp_path, queues) == set()


def refused_by_the_server(vhost: Path, queues: dict[str, tuple[str, str]]) -> set[tuple[str, str]]:
    found = set()
    for folder, states in queues.items():
        try:
            server_index.load(vhost / folder, 16384)
        except server_index.RefusedError:
            found.add(states)
    return found


@pytest.mark.parametrize("seed", range(amount(4, 60)))
def test_the_server_reads_an_index_after_recover(tmp_path: Path, seed: int) -> None:
    """Whatever marks journal and segments have, and if segments are damaged too."""
    chance = random.Random(seed)
    with RabbitStore.open(str(tmp_path), settings=RabbitSettings(background=False, index=SETTINGS, index_version=1)) as store:
        store.declare_queue("q")
        for number in range(NUMBERS):
            store.publish("q", b"body %d" % number, persistent=True)
    for name in ("msg_store_persistent/clean.dot", "recovery.dets"):
        (tmp_path / name).unlink()
    (queue,) = (tmp_path / "queues").iterdir()
    bodies = {}
    for file in sorted(queue.glob("*.idx")):
        for number, body in server_index.publishes(file.read_bytes()).items():
            bodies[int(file.stem) * SETTINGS.segment_entries + number] = body
        file.unlink()
    journal, segments = b"", dict.fromkeys(range(NUMBERS // SETTINGS.segment_entries + 1), b"")
    any_states = [(logged, written) for logged in ("", *server_index.TOGETHER) for written in SEGMENT_STATES]
    states = loadable_states(chance) if seed % 2 else chance.choices(any_states, k=NUMBERS)
    for (number, body), (logged, written) in zip(sorted(bodies.items()), states, strict=True):
        segments[number // SETTINGS.segment_entries] += server_index.segment_bytes(
            number % SETTINGS.segment_entries, written, body
        )
        journal += server_index.journal_bytes(number, logged, body)
    for number, data in segments.items():
        if data:
            (queue / f"{number}.idx").write_bytes(data[: len(data) - chance.choice([0, 0, 1, 5])])
    (queue / "journal.jif").write_bytes(journal)
    apply_recovery(str(tmp_path))
    assert verify(str(tmp_path)).problems == []
    server_index.load(queue)
