"""The files of a clean stop: the server's bytes, true at every moment, named when they are not."""

import contextlib

import pytest

from rabbitstore import RabbitSettings, RabbitStore, StoreSettings, tables, verify
from rabbitstore.clean_stop import CLEAN_FILES
from rabbitstore.dets_table import SLOTS, phash2, read_dets, write_dets
from rabbitstore.ets_table import CHUNK, HEAD, read_ets
from rabbitstore.terms import CharList
from storageio import DiskError, StoreCorrupt

from .conftest import ChangesFail

STORE = "msg_store_persistent"
QUIET = RabbitSettings(background=False, store=StoreSettings(file_size_limit=20_000))


def rows_of(data):
    """An ets file without its head and first chunk, which tells of a table in the memory of one server."""
    return data[len(HEAD) + CHUNK.size + CHUNK.unpack_from(data, len(HEAD))[0] :]


def test_what_is_written_is_what_the_server_wrote(clean):
    """Mark and terms byte for byte; both tables but for the properties that only a running server has."""
    data = (clean.vhost / "recovery.dets").read_bytes()
    assert tables.write_recovery(tables.read_recovery(data, "").values()) == data
    for store in (STORE, "msg_store_transient"):
        folder = clean.vhost / store
        data = (folder / "clean.dot").read_bytes()
        assert tables.write_clean_mark(tables.read_clean_mark(data, "").client_refs) == data
        data = (folder / "file_summary.ets").read_bytes()
        assert rows_of(tables.write_summary(tables.read_summary(data, ""))) == rows_of(data)
        data = (folder / "msg_store_index.ets").read_bytes()
        in_order = [tables.LocationRow(*row[1:]) for row in read_ets(data, "")]
        assert rows_of(tables.write_locations(in_order)) == rows_of(data)


def test_the_hash_is_erlangs():
    """Values of `erlang:phash2/1` of OTP 25."""
    known = {b"a": 49011133, b"628WB79CIFDYO9LJI6DKMI09L": 110563360}
    assert {text: phash2(text) for text in known} == known


def test_queues_that_share_a_slot(tmp_path):
    """More queues than slots: each chain is read whole."""
    rows = [(CharList(b"queue %d" % number), [b"x" * (number % 700), number]) for number in range(5 * SLOTS)]
    assert sorted(read_dets(write_dets(rows), "")) == sorted(rows)
    assert read_dets(write_dets([]), "") == []


@pytest.mark.parametrize("keep", [0, 100, 312, 5431, 6000, -1])
def test_a_torn_dets_file_is_named(keep):
    """Wherever it ends."""
    data = write_dets([(CharList(b"key"), [b"x" * 900]), (CharList(b"other"), [])])
    with pytest.raises(StoreCorrupt):
        read_dets(data[:keep], "recovery.dets")


def fill(store):
    """Queues of every kind, with holes, garbage, unacknowledged and transient messages; {queue: [(body, redelivered)]}."""
    for name, options in (("a", {}), ("b", {"mode": "lazy"}), ("c", {"max_priority": 2}), ("d", {"durable": False})):
        store.declare_queue(name, **options)
        for number in range(40):
            store.publish(name, b"%d" % number + b"x" * (number % 4 * 2000), properties={"priority": number % 3})
        store.publish(name, b"gone after a stop", persistent=False)
    store.publish(["a", "b"], b"both" * 2000)
    for name in "abc":
        held = [store.get(name) for _ in range(12)]
        for delivery in held[::2]:
            store.ack(delivery)
    store.flush_journals()


def left(path):
    """{queue: [(body, redelivered)]} as read from the files."""
    found = {}
    for message in RabbitStore.open(path, "r").messages():
        if message.persistent:
            found.setdefault(message.queue, []).append((message.body, message.redelivered))
    return found


def test_our_stop_agrees_with_itself_and_survives_the_next_start(tmp_path):
    """verify finds nothing; flags are of what was delivered; a second stop says the same."""
    path = str(tmp_path / "vhost")
    with RabbitStore.open(path, settings=QUIET) as store:
        fill(store)
    found = left(path)
    assert {name: len(rows) for name, rows in found.items()} == {"a": 35, "b": 35, "c": 34}
    assert [flag for _, flag in found["a"]] == [True] * 6 + [False] * 29
    for _ in range(2):
        assert verify(path).problems == [] and RabbitStore.open(path, "r").folder().is_clean
        with RabbitStore.open(path, "r+", settings=QUIET) as store:
            assert not any((tmp_path / "vhost" / name).exists() for name in CLEAN_FILES), "gone while the store is open"
        assert left(path) == found


@pytest.mark.parametrize("moment", ["stop", "start"])
def test_a_stop_or_start_killed_at_every_change(tmp_path, moment):
    """Never a mark beside tables or terms that are not true; every message is there; flags are never missing."""
    fail_at, is_done = 0, False
    while not is_done:
        fail_at += 1
        path = str(tmp_path / str(fail_at))
        disk = ChangesFail(1 << 40, for_ever=True)
        store = RabbitStore.open(path, settings=QUIET, disk=disk)
        fill(store)
        store.sync()
        if moment == "start":
            store.close()
        known = {name: [body for body, _ in rows] for name, rows in left(path).items() if name != "d"}
        disk.fail_at = len(disk.calls) + fail_at
        with contextlib.suppress(DiskError):
            if moment == "start":
                store = RabbitStore.open(path, settings=QUIET, disk=disk)
            else:
                store.close()
            is_done = len(disk.calls) < disk.fail_at
        store.abandon()
        crash_tails = {"torn_segment", "torn_journal"}  # what they lost the other of the two still has
        assert {problem.kind for problem in verify(path).problems} <= crash_tails
        found = left(path)
        assert {name: [body for body, _ in rows] for name, rows in found.items() if name != "d"} == known
        assert [flag for _, flag in found["a"]][:6] == [True] * 6
        with RabbitStore.open(path, "r+", settings=QUIET) as again:
            assert again.lost == [] and all(again.get("a").redelivered for _ in range(6))
    assert fail_at > (20 if moment == "stop" else 6)
