"""Compacted topics of a real 5.3.3 broker: the messages that it delivered from the folder, and each damage by name."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consumequeue.layout import BATCH_UNIT
from messagestore import MessageStore, StoreConfig
from messagestore.compaction import UNITS_SIZE_MAX, compacted_queues
from storageio import REAL_DISK, PutRejected
from tests.brokerstore.tool import run
from tests.faults.test_unknown_formats import snapshot
from tests.helpers import overwrite

NAME = "broker-compaction"
LOG, UNITS = "compaction/compactionLog/Compacted/0", "compaction/compactionCq/Compacted/0"
FIRST = "0" * 20
SIZE = 254  # of each record in the queue


@pytest.fixture
def store(fixture_store: Any) -> Path:
    """Return a copy of the broker's folder."""
    folder: Path = fixture_store(NAME, own=True).store
    return folder


def test_the_messages_are_those_that_consumers_got(fixture_store: Any) -> None:
    """Every field of the copies, in order, from the queue's folder; nothing in the store changes."""
    fixture = fixture_store(NAME)
    before = snapshot(fixture.store)
    delivered = fixture.expected("manifest.json")["read"]
    for topic in ("Compacted", "Fresh"):
        found = []
        for queue in compacted_queues(REAL_DISK, str(fixture.store)):
            if queue.topic == topic:
                ran = run("dump", "--json", queue.log_folder)
                assert ran.code == 0
                found += [json.loads(line) for line in ran.out.splitlines()]
        assert len(found) == len(delivered[topic]) == {"Compacted": 32, "Fresh": 5}[topic]
        for own, reported in zip(found, delivered[topic], strict=True):
            for name in ("physical_offset", "size", "queue_id", "queue_offset", "body_crc", "store_timestamp_ms", "flag"):
                assert own[name] == reported[name]
            assert base64.b64decode(own["body_base64"]) == base64.b64decode(reported["body"])
            assert own["properties"].items() <= reported["properties"].items()
    assert snapshot(fixture.store) == before


def test_copies_with_the_checksum_of_their_original_are_read(fixture_store: Any) -> None:
    """With `enabledAppendPropCRC` each record has one over all of it, also over the place that its copy no longer has."""
    fixture = fixture_store("broker-compaction-crc")
    delivered = fixture.expected("manifest.json")["read"]["C"]
    (queue,) = compacted_queues(REAL_DISK, str(fixture.store))
    found = [json.loads(line) for line in run("dump", "--json", queue.log_folder).out.splitlines()]
    names = ("physical_offset", "size", "queue_offset", "body_crc", "store_timestamp_ms")
    assert [[own[name] for name in names] for own in found] == [[reported[name] for name in names] for reported in delivered]
    assert [own["body_base64"] for own in found] == [reported["body"] for reported in delivered] and found
    assert run("verify", fixture.store).code == 0


def test_damaged_body_of_a_compacted_copy_is_detected(fixture_store: Any) -> None:
    """By its own checksum; the copies before it are read."""
    store = fixture_store("broker-compaction-crc", own=True).store
    (queue,) = compacted_queues(REAL_DISK, str(store))
    last = json.loads(run("dump", "--json", queue.log_folder).out.splitlines()[-1])
    path = max(Path(queue.log_folder).glob("0*"))
    data = bytearray(path.read_bytes())
    at = data.rindex(base64.b64decode(last["body_base64"]))
    data[at] ^= 1
    path.write_bytes(data)
    ran = run("verify", "--json", store)
    assert ran.code == 1 and "bad_body_crc" in {problem["kind"] for problem in ran.json["problems"]}


def test_ls_stats_info_and_verify_include_compacted_topics(fixture_store: Any) -> None:
    """The broker told its clients the first offset and the end of each queue."""
    fixture = fixture_store(NAME)
    reported = fixture.expected("manifest.json")["read"]
    ends = {
        (one["topic"], one["queue_id"]): (int(one["properties"]["MIN_OFFSET"]), int(one["properties"]["MAX_OFFSET"]))
        for topic in ("Compacted", "Fresh") for one in reported[topic]
    }  # fmt: skip
    for command in ("ls", "stats"):
        rows = run(command, "--json", fixture.store).json["compacted"]
        assert {(row["topic"], row["queue_id"]): (row["min_offset"], row["max_offset"]) for row in rows} == ends
        assert [row["messages"] for row in rows] == [16, 16, 5]
    assert "Not read" not in run("info", fixture.store).out
    ran = run("verify", fixture.store)
    assert ran.code == 0 and "not read" not in ran.out


def test_ls_of_a_store_without_compacted_topics_has_no_compacted_key(fixture_store: Any) -> None:
    """Every broker makes the folder `compaction`."""
    assert "compacted" not in run("ls", "--json", fixture_store("broker-live").store).json


def spoil_body(store: Path) -> None:
    overwrite(store / LOG / FIRST, SIZE + 90, b"\xee\xee")


def move_queue(store: Path) -> None:
    overwrite(store / LOG / FIRST, SIZE + 12, b"\0\0\0\1")


def lower_offset(store: Path) -> None:
    overwrite(store / LOG / FIRST, SIZE + 20, (68).to_bytes(8, "big"))


def lose_unit(store: Path) -> None:
    overwrite(store / UNITS / FIRST, 6 * BATCH_UNIT.size, bytes(BATCH_UNIT.size))


def change_unit(store: Path) -> None:
    overwrite(store / UNITS / FIRST, BATCH_UNIT.size + 15, b"\7")


def add_unit(store: Path) -> None:
    overwrite(store / UNITS / FIRST, 7 * BATCH_UNIT.size, BATCH_UNIT.pack(7 * SIZE, SIZE, 65, 1, 76, 1, -1, 0))


def lose_units(store: Path) -> None:
    (store / UNITS / FIRST).unlink()


def lose_log(store: Path) -> None:
    (store / LOG / FIRST).unlink()


def shorten(store: Path) -> None:
    with (store / LOG / FIRST).open("r+b") as file:
        file.truncate(5000)


def spoil_positions(store: Path) -> None:
    (store / "compaction" / "position-checkpoint").write_text('{"queueOffsetMap":[1]}')


DAMAGES = {
    spoil_body: "bad_body_crc",
    move_queue: "compaction_record",
    lower_offset: "compaction_order",
    lose_unit: "compaction_unit",
    change_unit: "compaction_unit",
    add_unit: "compaction_unit",
    lose_units: "missing_file",
    lose_log: "missing_file",
    shorten: "wrong_file_size",
    spoil_positions: "damaged_config",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_is_named(store: Path, damage: Callable[[Path], None]) -> None:
    """`verify` fails with the kind, and the file is below `compaction`."""
    damage(store)
    ran = run("verify", "--json", store)
    assert ran.code == 1
    found = {(one["kind"], Path(one["file"]).relative_to(store).parts[0]) for one in ran.json["problems"]}
    assert (DAMAGES[damage], "compaction") in found
    assert {position for _, position in found} == {"compaction"}


@pytest.mark.parametrize("content", [b"", bytes(40), b'{"queueOffsetMap":[1]}'], ids=["empty", "zeros", "another table"])
def test_a_lost_table_of_positions_is_set_aside(store: Path, content: bytes) -> None:
    """Without it and its backup a broker compacts each topic once more, as in a new store."""
    for name in ("position-checkpoint", "position-checkpoint.bak"):
        (store / "compaction" / name).write_bytes(content)
    assert run("verify", store).code == 1
    assert run("recover", "--apply", store).code == 7
    assert run("verify", store).code == 0


def test_a_file_of_units_over_the_limit_is_named(store: Path) -> None:
    """Its units are not compared, so none of the records counts as one without a unit."""
    with (store / UNITS / FIRST).open("r+b") as file:
        file.truncate(UNITS_SIZE_MAX + 1)
    ran = run("verify", "--json", store)
    assert ran.code == 1
    assert [(one["kind"], one["file"], one["offset"], one["found"]) for one in ran.json["problems"]] == [
        ("compaction_unit", str(store / UNITS / FIRST), UNITS_SIZE_MAX, UNITS_SIZE_MAX + 1)
    ]


def test_dump_continues_after_a_damaged_compacted_record(store: Path) -> None:
    """`dump` reports it and goes on; `ls` counts what is left and exits with 1."""
    spoil_body(store)
    ran = run("dump", "--json", store / LOG)
    assert ran.code == 1 and len(ran.out.splitlines()) == 15
    ran = run("ls", "--json", store)
    assert ran.code == 1 and [row["messages"] for row in ran.json["compacted"]] == [15, 16, 5]


def test_verify_ignores_an_unfinished_compaction(store: Path) -> None:
    """A broker that was killed during a compaction leaves the folder and ignores it."""
    (store / LOG / "compacting").mkdir()
    (store / LOG / "compacting" / FIRST).write_bytes(bytes(10120))
    ran = run("verify", store)
    assert ran.code == 0 and "compacting" in ran.out
    assert len(run("dump", "--json", store / LOG).out.splitlines()) == 16


def test_a_store_in_use_is_not_checked(store: Path) -> None:
    """The broker replaces the files at any time."""
    spoil_body(store)
    lock = REAL_DISK.lock(str(store / "lock"))
    try:
        ran = run("verify", store)
    finally:
        lock.release()
    assert ran.code == 0 and "compaction: not read" in ran.out


def test_put_to_a_compacted_topic_is_rejected(store: Path, tmp_path: Path) -> None:
    """It would have no copy, and the broker's consumers read nothing else. Other topics are not concerned."""
    with MessageStore.open(store, "r+", StoreConfig()) as opened:
        for _ in range(2):
            with pytest.raises(PutRejected, match="Compacted is compacted"):
                opened.put("Compacted", b"new", keys=["k"], queue_id=0)
        with pytest.raises(PutRejected, match="Fresh is compacted"):
            opened.put_many("Fresh", [b"new"])
        assert opened.put("Plain", b"new", queue_id=0).queue_offset == 20
    with MessageStore.open(tmp_path / "own", "x") as made:
        made.create_topic("T", 1, attributes={"cleanup.policy": "COMPACTION"})
        with pytest.raises(PutRejected, match="T is compacted"):
            made.put("T", b"new")


def test_recover_and_a_writer_leave_the_folder_alone(store: Path) -> None:
    """Neither a repair of the log nor new messages change it; a cut needs `--force`."""
    before = snapshot(store / "compaction")
    with MessageStore.open(store, "r+", StoreConfig()) as opened:
        opened.put("Plain", b"new", queue_id=0)
    overwrite(store / "commitlog" / FIRST, 40000, b"\xee" * 600)
    assert run("recover", store, "--truncate", "--apply").code == 1
    assert run("recover", store, "--truncate", "--force", "--apply").code == 6
    assert snapshot(store / "compaction") == before
