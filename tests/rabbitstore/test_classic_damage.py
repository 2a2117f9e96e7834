"""Damage to each file and byte class of a version-2 queue: what `verify` reports, and what `recover` keeps."""

from __future__ import annotations

import re
import shutil
import struct
from collections import Counter
from random import Random

import pytest

from rabbitstore import RabbitSettings, RabbitStore, apply_recovery, verify
from rabbitstore.format.index_v2 import V2Entry, encode_chunk, encode_head
from rabbitstore.format.layout import V2_STORE_MAGIC
from rabbitstore.format.names import queue_folder_name
from rabbitstore.read.queue_store import QueueStore
from rabbitstore.repair.recover import RabbitRecovery
from storageio import StoreCorrupt, UnsupportedFormat
from tests.archives import unpack
from tests.faults.golden import DATA

from .classic_damage import DAMAGES

VERSION_2 = RabbitSettings(index_version=2, background=False)
SIZES = (10, 300, 5000, 1200, 9000, 40, 3500, 700)
COUNT, ACKED = 24, (0, 1, 5, 6)
KEPT = [number for number in range(COUNT) if number not in ACKED]
UNSEEN = {  # no problem, at most a note: they look like acknowledgements, or are in unused bytes or in some without a checksum
    "status, bit 0", "size, bit", "index, cut after an entry", "index, second sector of zeros",
    "store, bytes behind", "record, body", "record, annotations", "index, empty",
    "store, a sector of zeros",
}  # fmt: skip
COSTS = {  # the damages that cost messages
    "status, bit 0", "index, cut in an entry", "index, cut after an entry", "index, first sector of zeros",
    "index, second sector of zeros", "index, all zeros", "index, empty", "index, lost", "index, cut in its head",
    "message, first bytes", "message, body",
    "store, first sector of zeros", "store, a sector of zeros", "store, cut", "store, all zeros", "store, empty", "store, lost",
    "record, first byte of the term", "record, start of the term", "record, annotations", "record, a sector of zeros",
}  # fmt: skip
RESTORED = {"index, all zeros", "index, empty", "index, lost", "index, cut in its head"}  # all, acknowledged too, by arrival


def body(number):
    """Return the body of a message; a quarter of them belongs into the shared store."""
    size = SIZES[number % len(SIZES)]
    return (f"{number}:".encode() * size)[:size]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A virtual host with two queues; four messages of each are acknowledged."""
    path = tmp_path_factory.mktemp("classic") / "vhost"
    store = RabbitStore.open(str(path), settings=VERSION_2)
    for name in ("q", "other"):
        store.declare_queue(name)
        for number in range(COUNT):
            store.publish(name, body(number), properties={"message_id": f"m{number}"})
        store.sync()
        held = [store.get(name) for _ in range(7)]
        for number in ACKED:
            store.ack(held[number])
    store.sync()
    store.abandon()
    return path


def read(path, queue="q"):
    """Return the numbers of the messages, whose bodies must be right."""
    with RabbitStore.open(str(path), "r") as store:
        found = [(int(one.properties["message_id"][1:]), one.body) for one in store.folder().messages(queue)]
    return found


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_reported_and_repaired(whole, tmp_path, name, seed):
    """`verify` reports it, `recover` leaves a folder without damage, and no other message is lost or changed."""
    path = tmp_path / "vhost"
    shutil.copytree(whole, path)
    queue = path / "queues" / queue_folder_name("/", b"q")
    assert read(path) == [(number, body(number)) for number in KEPT]
    assert DAMAGES[name](path, queue, Random(seed))
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    problems = verify(str(path)).problems
    assert problems or name in UNSEEN
    apply_recovery(str(path))
    assert verify(str(path)).problems == []
    changed = [file for file, data in before.items() if not file.exists() or file.read_bytes() != data]
    kept_aside = {file.read_bytes() for file in (path / "brokerstore/cut").rglob("*")} if changed else set()
    assert all(before[file] in kept_aside for file in changed if file.suffix in (".qi", ".qs", ".rdq"))
    found = read(path)
    if name == "record, body":  # the shared store has no checksum
        assert [number for number, _body in found] == KEPT
    else:
        assert all(data == body(number) for number, data in found)
        numbers = [number for number, _body in found]
        assert numbers == KEPT or name in COSTS
        assert len(set(numbers)) == len(numbers)
        assert numbers == sorted(numbers) or name in (*RESTORED, "index, cut in an entry")
        assert name not in RESTORED or set(numbers) >= set(KEPT)
    assert read(path, "other") == [(number, body(number)) for number in KEPT]
    with RabbitStore.open(str(path), settings=VERSION_2) as store:
        taken = iter(lambda: store.get("q", auto_ack=True), None)
        assert [(int(one.properties["message_id"][1:]), one.body) for one in taken] == found


@pytest.mark.parametrize(("cut", "kind"), [(0, "unwritten_message"), (9, "message_lost")])
def test_entries_without_the_messages_that_a_killed_server_did_not_write(whole, tmp_path, cut, kind):
    """The server writes entries, then whole messages: a file that ends with a whole message is the work of a kill."""
    path = shutil.copytree(whole, tmp_path / "vhost")
    stored = path / "queues" / queue_folder_name("/", b"q") / "0.qs"
    chunks = whole_chunks(stored.read_bytes())
    stored.write_bytes(stored.read_bytes()[: chunks[-2] - cut])
    found = verify(str(path))
    notes, problems = ([one.kind for one in part] for part in (found.notes, found.problems))
    assert (notes if cut == 0 else problems) == [kind] * (2 if cut == 0 else 3)
    assert found.ok == (cut == 0)


def test_an_index_truncated_between_two_entries_is_reported(whole, tmp_path):
    """A server writes each entry before its message, so a message behind the last entry's has lost its own."""
    path = shutil.copytree(whole, tmp_path / "vhost")
    folder = path / "queues" / queue_folder_name("/", b"q")
    data, chunks = (folder / "0.qi").read_bytes(), whole_chunks((folder / "0.qs").read_bytes())
    assert [one.kind for one in verify(str(path)).notes] == []
    positions = [
        struct.unpack_from(">Q", data, at + 4)[0] if data[at] == 1 and data[at + 3] == 2 else 0
        for at in range(64, len(data), 32)
    ]
    last = [number for number, offset in enumerate(positions) if offset][-5]
    (folder / "0.qi").write_bytes(data[: 64 + 32 * (last + 1)])
    (note,) = verify(str(path)).notes
    behind = [offset for offset in chunks if offset > positions[last]]
    assert (note.kind, note.offset) == ("unindexed_message", behind[0]) and note.found.startswith(f"{len(behind)} ")


def copied(whole, tmp_path):
    """Return a copy of the folder, and its queue's first index segment."""
    path = shutil.copytree(whole, tmp_path / "vhost")
    return path, path / "queues" / queue_folder_name("/", b"q") / "0.qi"


@pytest.mark.parametrize("size", [1, 40, 63])
def test_an_index_that_is_cut_in_its_head(whole, tmp_path, size):
    """It has lost every entry, so the messages of both stores count as if the file were lost."""
    path, index = copied(whole, tmp_path)
    index.write_bytes(index.read_bytes()[:size])
    found = read(path)
    assert {number for number, _body in found} >= set(KEPT)
    apply_recovery(str(path))
    assert read(path) == found and verify(str(path)).problems == []


@pytest.mark.parametrize("kind", [1, 2], ids=["shared store", "own store"])
def test_an_entry_with_only_its_status_cleared_is_reported(whole, tmp_path, kind):
    """An acknowledgement clears all of an entry, and a server that starts after a kill the status of one without message."""
    path, index = copied(whole, tmp_path)
    data = bytearray(index.read_bytes())
    at = [at for at in range(64, len(data), 32) if data[at] == 1 and data[at + 3] == kind][2]
    data[at] = 0
    index.write_bytes(data)
    found = verify(str(path))
    (note,) = found.notes
    assert found.ok and (note.kind, note.offset) == ("cleared_status", at)
    if kind == 2:  # beyond the end of the file, as a message that was never written
        data[at + 4 : at + 12] = (1 << 20).to_bytes(8, "big")
    else:
        data[at + 4] ^= 1
    index.write_bytes(data)
    assert verify(str(path)).notes == []


def test_an_offset_reused_by_a_later_message_is_not_reported(whole, tmp_path):
    """A server that dropped an entry may write the next message to its place: nothing is noted."""
    path, index = copied(whole, tmp_path)
    data = bytearray(index.read_bytes())
    free = next(at for at in range(64, len(data), 32) if not any(data[at : at + 32]))
    last = max(at for at in range(64, len(data), 32) if data[at] == 1 and data[at + 3] == 2)
    data[free + 1 : free + 32] = data[last + 1 : last + 32]
    index.write_bytes(data)
    assert verify(str(path)).notes == []


def test_an_entry_of_a_message_in_memory_is_written_as_one(whole, tmp_path):
    """Found by fuzzing: it became an entry of the shared store with an id of zeros, on which the server's recovery ends."""
    path, index = copied(whole, tmp_path)
    data = bytearray(index.read_bytes())
    at = next(at for at in range(64, len(data), 32) if not data[at])
    data[at : at + 32] = struct.pack(">BBBB16sIq", 8, 0, 0, 0, bytes(16), 7, 0)
    index.write_bytes(data)
    apply_recovery(str(path))
    assert index.read_bytes()[at : at + 32] == struct.pack(">BBBB16sIq", 1, 0, 0, 0, bytes(16), 7, 0)
    assert verify(str(path)).problems == []


def test_verify_handles_a_message_in_memory_in_a_damaged_store(whole, tmp_path):
    """Found by fuzzing: `verify` ended with a KeyError, because the search behind the damage found the entry's empty id."""
    path, index = copied(whole, tmp_path)
    data = bytearray(index.read_bytes())
    at = next(at for at in range(64, len(data), 32) if not data[at])
    data[at : at + 32] = struct.pack(">BBBB16sIq", 1, 1, 0, 0, bytes(16), 7, 0)
    index.write_bytes(data)
    records = path / "msg_store_persistent/0.rdq"
    records.write_bytes(records.read_bytes() + b"damaged" + records.read_bytes())
    assert [(one.kind, one.offset) for one in verify(str(path)).problems if one.file.endswith(".qi")] == [("message_lost", at)]
    apply_recovery(str(path))
    assert verify(str(path)).problems == []


@pytest.mark.parametrize("at", [1, 2])
def test_unused_bits_of_an_acknowledged_entry(whole, tmp_path, at):
    """The server checks them before the status, and ends the queue with an error; after a kill only the status is cleared."""
    path, index = copied(whole, tmp_path)
    data = bytearray(index.read_bytes())
    entry = next(at for at in range(64, len(data), 32) if data[at])
    data[entry] = 0
    index.write_bytes(data)
    left = read(path)
    assert verify(str(path)).problems == []
    data[entry + at] |= 0x40
    index.write_bytes(data)
    assert [one.kind for one in verify(str(path)).problems] == ["bad_index_entry"]
    apply_recovery(str(path))
    assert verify(str(path)).problems == [] and read(path) == left


def whole_chunks(data):
    """Return where each message of `.qs` begins, by the format page."""
    at, found = 64, []
    while at < len(data):
        found.append(at)
        at += 8 + int.from_bytes(data[at : at + 4], "big")
    return found


def test_an_unwritten_message_is_not_mistaken_for_an_acknowledged_one():
    """Offset 576 differs in one byte from that of the acknowledged first message, which is before that of another entry."""
    data = encode_head(V2_STORE_MAGIC, 0) + encode_chunk(b"a" * 248) + encode_chunk(b"b" * 248)
    written, unwritten = (V2Entry(seq_id, True, None, (64 + 256 * seq_id, 248), 1, 0, 0) for seq_id in (1, 2))
    store = QueueStore(data, [written, unwritten], "0.qs")
    assert store.find(written).term == b"b" * 248
    with pytest.raises(StoreCorrupt):
        store.find(unwritten)
    assert store.is_unwritten(unwritten) and not store.is_unwritten(written)


def test_an_empty_name_file_without_an_index_is_not_damage(whole, tmp_path):
    """A kill during a declaration leaves the name's file empty; no message can be lost with it."""
    path = shutil.copytree(whole, tmp_path / "vhost")
    folder = path / "queues" / queue_folder_name("/", b"young")
    folder.mkdir()
    (folder / ".queue_name").touch()
    assert verify(str(path)).problems == []


TERMS = {
    "terms": lambda file: None,
    "terms cut": lambda file: file.write_bytes(file.read_bytes()[:56]),
    "terms of zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "terms empty": lambda file: file.write_bytes(b""),
    "terms lost": lambda file: file.unlink(),
}


def bodies(path):
    """Return how often each body is listed, by queue, except those in a shared store that no name or flag assigns to one."""
    with RabbitStore.open(str(path), "r") as store:
        found = [one for one in store.folder().messages() if one.embedded or (one.persistent and one.queue in one.routing_keys)]
    return Counter((one.queue, one.body) for one in found)


COUNTED = {"rabbitmq-v2": 15, "rabbitmq4-clean": 6, "rabbitmq43-clean": 6}  # of the shared store: by the terms alone


@pytest.fixture(scope="module", params=COUNTED)
def stopped(request, tmp_path_factory):
    """The virtual host of a real server, 3.10, 4.0 or 4.3, that was stopped."""
    path = tmp_path_factory.mktemp("stopped") / request.param
    unpack(DATA / f"{request.param}.tar.xz", path)
    return next(one.parent for one in sorted(path.rglob("queues")) if (one.parent / "recovery.dets").exists())


@pytest.mark.parametrize("terms", TERMS)
def test_an_index_cut_to_its_head_after_a_clean_stop_is_made_from_its_messages(stopped, tmp_path, terms):
    """A stop deletes a segment without entries, so one that has none is cut; 3.10.8, 4.0.5 and 4.3.6 deliver nothing of it."""
    path = shutil.copytree(stopped, tmp_path / stopped.name)
    TERMS[terms](path / "recovery.dets")
    assert not any(one.kind == "unindexed_message" for one in verify(str(path)).problems)
    indexes, listed = sorted(path.glob("queues/*/*.qi")), bodies(path)
    assert indexes
    for index in indexes:
        index.write_bytes(index.read_bytes()[:64])
    reported = {one.file: one.found for one in verify(str(path)).problems if one.kind == "unindexed_message"}
    assert set(reported) == {str(index.relative_to(path)) for index in indexes}
    assert all(re.match(r"none for [1-9]", found) for found in reported.values())
    assert bodies(path) >= listed
    error = (UnsupportedFormat, "index version 2") if "rabbitmq-v2" in stopped.parts else (StoreCorrupt, "run recover")
    with pytest.raises(error[0], match=error[1]):  # an opening would delete the messages
        RabbitStore.open(str(path), settings=RabbitSettings(background=False))
    with RabbitRecovery(str(path)) as recovery:  # interrupted after the first index
        recovery.locked_plan().steps[0].run()
    plan = apply_recovery(str(path))
    lost = next(count for name, count in COUNTED.items() if name in stopped.parts)
    assert (plan.messages_lost, verify(str(path)).problems) == (lost if terms == "terms" else 0, [])
    assert bodies(path) >= listed


@pytest.mark.parametrize("terms", TERMS)
def test_messages_cut_off_after_a_clean_stop_are_lost(stopped, tmp_path, terms):
    """A server that stops has written the message of every entry; only a kill comes between the two."""
    path = shutil.copytree(stopped, tmp_path / stopped.name)
    stored = max(path.glob("queues/*/*.qs"), key=lambda one: len(whole_chunks(one.read_bytes())))
    data = stored.with_suffix(".qi").read_bytes()
    own = sum(data[at] == 1 and data[at + 3] == 2 for at in range(64, len(data), 32))
    TERMS[terms](path / "recovery.dets")
    stored.write_bytes(stored.read_bytes()[:64])
    found = verify(str(path))
    assert [one.kind for one in found.problems].count("message_lost") == own > 0
    assert not [one for one in found.notes if one.kind == "unwritten_message"]
    assert apply_recovery(str(path)).messages_lost == own
    assert verify(str(path)).problems == []


def test_entries_missing_behind_others_are_made_as_far_as_the_terms_count_them(stopped, tmp_path):
    """Without the terms a message behind the last entry may be one that was acknowledged before its entry was written."""
    path = shutil.copytree(stopped, tmp_path / stopped.name)
    indexes = sorted(one for one in path.glob("queues/*/*.qi") if one.with_suffix(".qs").exists())
    index = max(indexes, key=lambda one: len(whole_chunks(one.with_suffix(".qs").read_bytes())))
    data, listed = index.read_bytes(), bodies(path)
    own = [at for at in range(64, len(data), 32) if data[at] == 1 and data[at + 3] == 2]
    index.write_bytes(data[: own[-2]])
    shared = sum(data[at] == 1 and data[at + 3] == 1 for at in range(own[-2], len(data), 32))
    found = verify(str(path))
    assert [one.file for one in found.problems if one.kind == "unindexed_message"] == [str(index.relative_to(path))]
    assert (listed - bodies(path)).total() <= sum(found.lost_by_queue().values()) == shared
    (path / "recovery.dets").unlink()
    found = verify(str(path))
    assert [one.kind for one in found.notes] == ["unindexed_message"]
    assert not [one for one in found.problems if one.kind == "unindexed_message"]
