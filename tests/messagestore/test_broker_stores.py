"""Folders of whole brokers and of rare kinds of queues: read, verified, and rebuilt from the log."""

from __future__ import annotations

import base64
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.verification import verify_store
from tests.helpers import contents
from tests.messagestore.kit import open_small
from tests.messagestore.test_fixtures import check_answers, check_messages

BROKERS = ("broker-live", "broker-ext")
OTHERS = ("lmq", "batchcq", "cqext")
ALL = (*BROKERS, *OTHERS)
EXT_SIZES = {"broker-ext": 4096, "cqext": 2048}


def open_quiet(world: Any, folder: Path, mode: str = "r", **changes: Any) -> Any:
    """Open a store that delivers no delayed message, because these brokers stopped long ago."""
    return open_small(world, folder, mode, deliver_delayed=False, enabled_append_prop_crc=False, **changes)


def check_store(world: Any, store: Any, expected: dict[str, Any]) -> None:
    """Compare every queue, unit, message, query and search by time with the real store's."""
    for queue in expected["queues"]:
        name = queue["topic"], queue["queueId"]
        assert (store.min_offset(*name), store.max_offset(*name)) == (queue["minOffset"], queue["maxOffset"]), name
        assert [message.physical_offset for message in store.read(*name)] == queue["getMessagePhyOffsets"], name
        if "batchCq" in queue:
            found = [tuple(unit)[:7] for unit in store.engine.derived.batch.get(*name).units()]
            assert found == [tuple(unit) for unit in queue["batchCq"]]
        else:
            check_units(store, name, queue)
    check_messages(store, expected)
    for requested in expected["messages"]:
        found = store.message_at(requested["physicalOffset"])
        assert (found.sys_flag, found.reconsume_times) == (requested["sysFlag"], requested["reconsumeTimes"])
        assert found.prepared_transaction_offset == requested["preparedTransactionOffset"]


def check_units(store: Any, name: tuple[str, int], queue: dict[str, Any]) -> None:
    """Compare the units, with the content of extended units in place of their addresses."""
    units = [tuple(unit) for _, unit in store.engine.queues.get(*name).units()]
    reader = store.engine.derived.ext_reader(*name)
    if reader is not None:
        assert [list(reader.unit(code)[1:2]) for _, _, code in units if reader.unit(code)] == [
            unit[1:2] for unit in queue["ext"] if unit
        ]
        bitmaps = [base64.b64decode(unit[2] or "") for unit in queue["ext"] if unit]
        assert [reader.unit(code).bitmap for _, _, code in units if reader.unit(code)] == bitmaps
        units = [(physical, size, reader.tags_code(code)) for physical, size, code in units]
    assert units == [tuple(unit) for unit in queue["cq"]], name


@pytest.mark.parametrize("name", ALL)
def test_reads_of_a_broker_store_are_correct_and_change_no_byte(world: Any, fixture_store: Any, name: str) -> None:
    """The whole store is read; no file changes."""
    fixture = fixture_store(name, own=True)
    before = contents(fixture.store)
    with open_quiet(world, fixture.store) as store:
        check_store(world, store, fixture.expected())
        check_answers(world, store, fixture.expected())
    assert contents(fixture.store) == before


@pytest.mark.parametrize("name", ALL)
def test_broker_stores_verify_without_problems(fixture_store: Any, name: str) -> None:
    """Every record, unit, item and number in config/ is in order."""
    report = verify_store(str(fixture_store(name).store))
    assert report.problems == []
    assert report.units > 0


@pytest.mark.parametrize("name", ALL)
def test_opening_and_closing_a_writer_changes_no_log_or_queue_byte(world: Any, fixture_store: Any, name: str) -> None:
    """Log and queues of every kind are equal byte by byte."""
    fixture = fixture_store(name, own=True)
    parts = ("commitlog", "consumequeue", "batchconsumequeue", "consumequeue_ext", "config")
    before = {part: contents(fixture.store / part) for part in parts if (fixture.store / part).exists()}
    with open_quiet(world, fixture.store, "r+") as store:
        check_store(world, store, fixture.expected())
    assert {part: contents(fixture.store / part) for part in before} == before


@pytest.mark.parametrize("name", ALL)
def test_lost_queues_are_rebuilt_after_a_kill(world: Any, fixture_store: Any, name: str) -> None:
    """Queues are equal byte by byte, if the log holds their whole content; bitmaps of filters are in no log.

    The queues of a deleted topic are not rebuilt.
    """
    fixture = fixture_store(name, own=True)
    parts = ("consumequeue", "batchconsumequeue")
    before = {part: contents(fixture.store / part) for part in parts if (fixture.store / part).exists()}
    kept_ext = (fixture.store / "consumequeue_ext").exists()
    attributes = {}
    for part in (*parts, "consumequeue_ext"):
        if (fixture.store / part).exists():
            attributes |= {entry.name: part for entry in (fixture.store / part).iterdir()} if part.startswith("batch") else {}
            shutil.rmtree(fixture.store / part)
    (fixture.store / "abort").touch()
    for topic in attributes:
        (fixture.store / "batchconsumequeue" / topic).mkdir(parents=True)  # the only sign of a batch topic without topics.json
    lmq = {"enable_multi_dispatch": True} if name == "lmq" else {}
    with open_quiet(world, fixture.store, "r+", mapper_file_size_batch_consume_queue=920, **lmq) as store:
        assert "LiveGone" not in store.topics()
        for queue in fixture.expected()["queues"]:
            found = [message.physical_offset for message in store.read(queue["topic"], queue["queueId"])]
            assert found == queue["getMessagePhyOffsets"]
    assert any(True for _ in before)
    if not kept_ext:
        assert {part: contents(fixture.store / part) for part in before} == before


@pytest.mark.parametrize("name", ALL)
def test_rebuild_keeps_bitmaps_and_delivery_times_that_are_not_in_the_log(world: Any, fixture_store: Any, name: str) -> None:
    """Addresses of extended units with their bitmaps, and delivery times, are equal byte by byte."""
    fixture = fixture_store(name, own=True)
    before = {part: contents(fixture.store / part) for part in ("consumequeue", "consumequeue_ext")}
    rebuild_store(str(fixture.store))
    assert {part: contents(fixture.store / part) for part in before} == before
    with open_quiet(world, fixture.store) as store:
        check_store(world, store, fixture.expected())


@pytest.mark.parametrize("damage", ["gone", "time", "noise"])
def test_rebuild_reports_lost_extended_units(
    world: Any, fixture_store: Any, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If extended units are missing or of another record, units get their tags codes; the others keep their addresses."""
    fixture = fixture_store("cqext", own=True)
    folder = next(path for path in sorted((fixture.store / "consumequeue_ext").rglob("*")) if path.is_file()).parent
    name = folder.parent.name, int(folder.name)
    queue = next(one for one in fixture.expected()["queues"] if (one["topic"], one["queueId"]) == name)
    first = min(folder.iterdir())
    if damage == "gone":
        shutil.rmtree(folder)
    else:
        with first.open("r+b") as file:
            file.seek(10 if damage == "time" else 0)  # size 2, tags code 8, store time 8
            file.write(b"\x7f" * 8)
    with caplog.at_level(logging.WARNING):
        rebuild_store(str(fixture.store))
    lost = len([unit for unit in queue["ext"] if unit]) if damage == "gone" else 1
    assert f"{lost} units have no extended unit any more" in caplog.text
    with open_quiet(world, fixture.store) as store:
        units = [tuple(unit) for _, unit in store.engine.queues.get(*name).units()]
        plain = sum(unit == tuple(expected) for unit, expected in zip(units, queue["cq"], strict=True))
        assert plain == lost + sum(not unit for unit in queue["ext"])
        assert [message.physical_offset for message in store.read(*name)] == queue["getMessagePhyOffsets"]


@pytest.mark.parametrize("name", sorted(EXT_SIZES))
def test_extended_units_are_made_again_with_the_queues(world: Any, fixture_store: Any, name: str) -> None:
    """Tags codes and times are restored; the bitmap stays empty, which a broker takes for an unknown match."""
    fixture = fixture_store(name, own=True)
    for part in ("consumequeue", "consumequeue_ext"):
        shutil.rmtree(fixture.store / part)
    (fixture.store / "abort").touch()
    size = EXT_SIZES[name]
    changes = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": size}
    with open_quiet(world, fixture.store, "r+", **changes) as store:
        for queue in fixture.expected()["queues"]:
            key = queue["topic"], queue["queueId"]
            if not queue["cq"]:
                continue
            reader = store.engine.derived.ext_reader(*key)
            units = [tuple(unit) for _, unit in store.engine.queues.get(*key).units()]
            found = [(physical, position, reader.unit(code).tags_code) for physical, position, code in units]
            assert found == [tuple(unit) for unit in queue["cq"]]
            assert [reader.unit(code).store_timestamp_ms for _, _, code in units] == [
                unit[1] for unit in queue["ext"] if unit
            ] or name == "cqext"
    assert {path.stat().st_size for path in (fixture.store / "consumequeue_ext").rglob("0*") if path.is_file()} == {size}


@pytest.mark.parametrize("name", sorted(EXT_SIZES))
def test_tags_are_found_through_extended_units(world: Any, fixture_store: Any, name: str) -> None:
    """A filter by tag uses the tags code of the extended unit."""
    fixture = fixture_store(name)
    with open_quiet(world, fixture.store) as store:
        for queue in fixture.expected()["queues"]:
            expected: dict[str, list[int]] = {}
            for message in store.read(queue["topic"], queue["queueId"]):
                if message.tags and queue["topic"] != "SCHEDULE_TOPIC_XXXX":  # its units hold times
                    expected.setdefault(message.tags, []).append(message.physical_offset)
            for tag, offsets in expected.items():
                got, at = [], 0
                while at < queue["maxOffset"]:
                    page = store.get(queue["topic"], queue["queueId"], at, tags={tag})
                    got += [message.physical_offset for message in page.messages]
                    at = page.next_offset
                assert got == offsets


def test_a_brokers_folder_with_extended_units_goes_on_with_them(world: Any, fixture_store: Any) -> None:
    """New messages get extended units after the broker's, in the next files too, killed or not."""
    fixture = fixture_store("cqext", own=True)
    with open_quiet(world, fixture.store, "r+") as store:
        for number in range(200):
            store.put(world.commitlog.Message("ExtTopic", b"%d" % number, queue_id=0, tags="paid"))
        store.engine.settle()
        copy = fixture.folder / "killed"
        shutil.copytree(fixture.store, copy)
    for folder in (fixture.store, copy):
        with open_quiet(world, folder, "r+") as store:
            reader = store.engine.derived.ext_reader("ExtTopic", 0)
            units = [unit for _, unit in store.engine.queues.get("ExtTopic", 0).units(130)]
            assert len(units) == 200
            assert {reader.tags_code(unit.tags_code) for unit in units} == {3433164}
            assert len({unit.tags_code for unit in units}) == 200
            assert len(store.get("ExtTopic", 0, 130, tags={"paid"}).messages) > 0


@pytest.mark.parametrize("lost", [1, 30, 2048])
def test_extended_units_lost_with_the_machine(world: Any, fixture_store: Any, lost: int) -> None:
    """A queue whose addresses point nowhere is rebuilt together with its extended units."""
    fixture = fixture_store("cqext", own=True)
    with open_quiet(world, fixture.store, "r+") as store:
        for number in range(50):
            store.put(world.commitlog.Message("ExtTopic", b"%d" % number, queue_id=0, tags="paid"))
        store.engine.settle()
        copy = fixture.folder / "killed"
        shutil.copytree(fixture.store, copy)
    last = sorted((copy / "consumequeue_ext" / "ExtTopic" / "0").iterdir())[-1]
    used = len(last.read_bytes().rstrip(b"\0"))
    last.write_bytes(last.read_bytes()[: max(0, used - lost)].ljust(2048, b"\0"))
    with open_quiet(world, copy, "r+") as store:
        reader = store.engine.derived.ext_reader("ExtTopic", 0)
        units = [unit for _, unit in store.engine.queues.get("ExtTopic", 0).units()]
        expected = next(
            queue for queue in fixture.expected()["queues"] if (queue["topic"], queue["queueId"]) == ("ExtTopic", 0)
        )
        codes = [unit[2] for unit in expected["cq"]] + [3433164] * 50
        assert [reader.tags_code(unit.tags_code) for unit in units] == codes
        assert len(store.get("ExtTopic", 0, 130, tags={"paid"}).messages) > 0


@pytest.mark.parametrize("name", BROKERS)
def test_consumer_offsets_and_lags_equal_those_of_the_broker(world: Any, fixture_store: Any, name: str) -> None:
    """Offset and lag of every group and queue are those in the broker's own statistics."""
    fixture = fixture_store(name)
    expected = fixture.expected()
    with open_quiet(world, fixture.store) as store:
        table = expected["configFiles"]["consumerOffset.json"]["offsetTable"]
        for key, offsets in table.items():
            parts = key.split("@")
            if len(parts) == 2:
                found = store.committed_offsets(*parts)
                assert {str(queue_id): offset for queue_id, offset in found.items()} == offsets
