"""Readers of a killed writer's folder report the messages that no consume queue has yet."""

from __future__ import annotations

import logging
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.derive import walk
from messagestore.read import undispatched
from tests.brokerstore.schema import check_schema
from tests.brokerstore.tool import run
from tests.messagestore.writers import LOG_SIZE, Writer, log_files, open_store, put_all

COUNT = 700
DISPATCHED = 250
PROGRAM = f"""
store = open_store(root)
put_all(store, 0, {DISPATCHED})
store.get("t", 0, 0)
store.engine.dispatcher._round.acquire()
put_all(store, {DISPATCHED}, {COUNT})
said("done")
told()
"""
UNITS = {"consumequeue": 20, "batchconsumequeue": 46}
Lacking = dict[tuple[str, int], set[int]]
DISPATCHED_FLAGS = (0, 8)  # transaction bits: none, committed


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a killed writer's folder whose messages from number 250 on are in no queue."""
    root = tmp_path_factory.mktemp("killed") / "store"
    with Writer(root, PROGRAM) as writer:
        assert writer.hear() == "done"
        writer.kill()
    return root


def unit_positions(root: Path) -> dict[tuple[str, int], list[tuple[Path, int, int]]]:
    """Return (file, position, physical offset) of the units of each queue, read without the product's code."""
    found: dict[tuple[str, int], list[tuple[Path, int, int]]] = {}
    for folder, size in UNITS.items():
        for path in sorted((root / folder).glob("*/*/*")):
            queue_key = found.setdefault((path.parents[1].name, int(path.parent.name)), [])
            data = path.read_bytes()
            for at in range(0, len(data) // size * size, size):
                physical, length = struct.unpack_from(">qi", data, at)
                if length > 0:
                    queue_key.append((path, at, physical))
    return found


def lacking(root: Path) -> Lacking:
    """Return, by a plain model, the physical offsets of the messages that each queue lacks."""
    known = {queue_key: {physical for _, _, physical in units} for queue_key, units in unit_positions(root).items()}
    found: Lacking = {}
    for message in run("dump", root, "--json").lines:
        if message["sys_flag"] & 12 not in DISPATCHED_FLAGS:
            continue
        names = message["properties"].get("INNER_MULTI_DISPATCH", "")
        queue_keys = [
            (message["topic"], message["queue_id"]),
            *((name, 0) for name in names.split(",") if name.startswith("%LMQ%")),
        ]
        for queue_key in queue_keys:
            if message["physical_offset"] not in known.get(queue_key, ()):
                found.setdefault(queue_key, set()).add(message["physical_offset"])
    return found


def forget_units(root: Path, count: int) -> None:
    """Remove the last `count` units, as if a killed writer's dispatcher was that far behind."""
    (root / "abort").touch()
    units = unit_positions(root)
    border = sorted({unit[2] for queue_key in units.values() for unit in queue_key})[-count]
    for positions in units.values():
        for path, at, physical in positions:
            if physical >= border:
                size = UNITS[path.parents[2].name]
                data = bytearray(path.read_bytes())
                data[at : at + size] = bytes(size)
                path.write_bytes(data)


def check_model(root: Path, before: Lacking | None = None) -> int:
    """Compare a reader's count with the model and return it; `before` is what the real system gave no unit at all."""
    known = before or {}
    expected = {
        queue_key: found - known.get(queue_key, set())
        for queue_key, found in lacking(root).items()
        if found != known.get(queue_key)
    }
    with MessageStore.open(root, "r") as store:
        assert store.undispatched_messages == len(set().union(*expected.values()))
        assert store.engine.undispatched.by_queue == {queue_key: len(offsets) for queue_key, offsets in expected.items()}
        return store.undispatched_messages


@pytest.mark.parametrize("name", ["crash-torn", "broker-live", "lmq", "batchcq", "propcrc"])
@pytest.mark.parametrize("count", [1, 60])
def test_undispatched_count_equals_a_linear_model(fixture_store: Any, name: str, count: int) -> None:
    """Real systems' folders, whose queues lack their last units as after a kill, include LMQs and batch queues."""
    root = fixture_store(name, own=True).store
    before = lacking(root)
    forget_units(root, count)
    assert check_model(root, before) >= count - (name == "crash-torn")  # one of its units points behind the torn end


def test_all_messages_count_where_the_queues_are_gone(fixture_store: Any) -> None:
    """A killed broker's folder is counted without queues, and with complete ones."""
    assert check_model(fixture_store("crash-lost-cq").store) > 200
    assert check_model(fixture_store("crash-torn").store) == 0


def test_a_queue_that_lacks_older_units_has_the_whole_log_counted(fixture_store: Any) -> None:
    """The checkpoint covers what one lost queue held: the queue offsets in the log show it."""
    root = fixture_store("crash-torn", own=True).store
    shutil.rmtree(root / "consumequeue" / "HotTopic")
    assert check_model(root) > 100


READS: dict[str, Callable[[MessageStore], object]] = {
    "get": lambda store: store.get("t", 0, 0),
    "read": lambda store: list(store.read("t", 0)),
    "read_raw": lambda store: list(store.read_raw("t", 0)),
    "read_columns": lambda store: store.read_columns("t", 0, columns=["queue_offset"]).read_all(),
    "offset_by_time": lambda store: store.offset_by_time("t", 0, 1),
    "max_offset": lambda store: store.max_offset("t", 0),
    "store_time": lambda store: store.store_time("t", 0, 0),
    "topics": lambda store: store.topics(),
    "consumer": lambda store: store.consumer("t", group="g").poll(),
}


@pytest.mark.parametrize("name", READS)
def test_the_first_read_of_a_queue_logs_a_warning(killed: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """It is logged once, with the count, the queues and the next command."""
    with open_store(killed, "r") as store, caplog.at_level(logging.WARNING):
        READS[name](store)
        READS[name](store)
        store.get("t", 1, 0)
    texts = [record.getMessage() for record in caplog.records if "in the log and not in the queues" in record.getMessage()]
    assert len(texts) == 1, caplog.text
    assert f"{COUNT - DISPATCHED} messages" in texts[0] and "(t-0, t-1, t-2)" in texts[0] and "brokerstore rebuild" in texts[0]


def test_lookups_that_use_no_queue_log_no_warning(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A query and a lookup by physical offset miss no message."""
    with open_store(killed, "r") as store, caplog.at_level(logging.WARNING):
        assert store.query("t", f"k{COUNT - 1}") and store.message_at(0) is not None
        assert caplog.text == ""
        assert store.undispatched_messages == COUNT - DISPATCHED


def test_open_for_writing_dispatches_the_counted_messages(killed: Path, tmp_path: Path) -> None:
    """The messages get their units, and a reader that stayed open counts none."""
    root = shutil.copytree(killed, tmp_path / "store")
    with open_store(root, "r") as reader:
        assert reader.undispatched_messages == COUNT - DISPATCHED
        with open_store(root) as writer:
            assert writer.undispatched_messages == 0
            assert reader.undispatched_messages is None  # a writer is dispatching
        assert reader.undispatched_messages == 0
        assert sum(reader.max_offset("t", queue_id) for queue_id in range(3)) == COUNT


def test_undispatched_messages_of_a_second_kill_are_counted(killed: Path, tmp_path: Path) -> None:
    """A reader that stayed open counts them."""
    root = shutil.copytree(killed, tmp_path / "store")
    again = "store = open_store(root)\nstore.engine.dispatcher._round.acquire()\nput_all(store, 0, 30)\nsaid('done')\ntold()"
    with open_store(root, "r") as reader:
        assert reader.undispatched_messages == COUNT - DISPATCHED
        with Writer(root, again) as writer:
            assert writer.hear() == "done"
            writer.kill()
        assert reader.undispatched_messages == 30


def test_undispatched_count_of_a_clean_or_live_store_reads_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No log is read, and nothing is logged."""
    monkeypatch.setattr(undispatched.Undispatched, "_count", lambda _self: pytest.fail("the log was walked"))
    with open_store(tmp_path) as store, caplog.at_level(logging.WARNING):
        put_all(store, 0, 9)
        store.get("t", 0, 0)
        with open_store(tmp_path, "r") as reader:
            assert len(reader.get("t", 0, 0).messages) == 3 and reader.undispatched_messages is None
    with open_store(tmp_path, "r") as reader:
        assert len(reader.get("t", 0, 0).messages) == 3 and reader.undispatched_messages == 0
    assert caplog.text == ""


def snapshot(tmp_path: Path, covered: int, behind: int) -> Path:
    """Copy a running store with `covered` messages, 10 s apart, that the checkpoint covers, and `behind` in no queue."""
    now = [1_700_000_000_000]
    with open_store(tmp_path / "live", clock=lambda: now[0]) as store:
        for number in range(covered):
            now[0] += 10_000
            store.put(Message("t", b"%d" % number, queue_id=0))
        store.flush()
        store.get("t", 0, 0)
        store.engine.housekeeper.flush_derived(thorough=True)
        with store.engine.dispatcher._round:
            for number in range(behind):
                now[0] += 10_000
                store.put(Message("t", b"%d" % number, queue_id=0))
            shutil.copytree(tmp_path / "live", tmp_path / "copy")
    return tmp_path / "copy"


def test_a_long_log_is_counted_from_the_last_record_that_the_checkpoint_covers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is longer than the limit."""
    root = snapshot(tmp_path, 400, 20)
    monkeypatch.setattr(undispatched, "SEARCHED_MAX", LOG_SIZE // 8)
    monkeypatch.setattr(walk, "BATCH_SIZE_BYTES", LOG_SIZE // 64)
    with open_store(root, "r") as store:
        assert store.undispatched_messages == 20


def test_what_was_not_compared_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Behind the limit the number is unknown, and the warning and the tool report that."""
    root = snapshot(tmp_path, 4, 400)
    monkeypatch.setattr(undispatched, "SEARCHED_MAX", LOG_SIZE // 8)
    monkeypatch.setattr(walk, "BATCH_SIZE_BYTES", LOG_SIZE // 64)
    with open_store(root, "r") as store, caplog.at_level(logging.WARNING):
        assert store.undispatched_messages is None
        store.get("t", 0, 0)
    assert "at least" in caplog.text and "was not compared with the queues" in caplog.text
    ran = run("get", root, "--topic", "t", "--queue", 0, "--offset", 0, "--json")
    assert ran.code == 0 and "brokerstore: incomplete: at least" in ran.talk


def test_damage_before_messages_makes_the_number_unknown(killed: Path, tmp_path: Path) -> None:
    """A record inside the undispatched range has a wrong magic, and whole records follow it."""
    root = shutil.copytree(killed, tmp_path / "store")
    with open_store(root, "r") as store:
        number = [message.physical_offset for message in store.engine.log.messages()][DISPATCHED + 40]
    path = log_files(root)[number // LOG_SIZE]
    data = bytearray(path.read_bytes())
    data[number % LOG_SIZE + 4] ^= 1
    path.write_bytes(data)
    with open_store(root, "r") as store:
        assert store.undispatched_messages is None
        assert "at least 40 messages" in store.engine.undispatched.problem()


def test_a_log_that_cannot_be_read_ends_no_read_of_a_queue(killed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is unknown then, and the page is read as before."""

    def fail(_self: object) -> int:
        raise undispatched.StoreError("not readable")

    monkeypatch.setattr(undispatched.Undispatched, "_covered", fail)
    monkeypatch.setattr(undispatched, "SEARCHED_MAX", 0)
    with open_store(killed, "r") as store:
        assert len(store.get("t", 0, 0).messages) == 32 and store.undispatched_messages is None
        assert "not readable" in store.engine.undispatched.problem()


COMMANDS = {
    "ls": lambda root, new: ["ls", root],
    "get": lambda root, new: ["get", root, "--topic", "t", "--queue", 0, "--offset", 0, "--count", 2],
    "offsets": lambda root, new: ["offsets", "show", root],
    "diff": lambda root, new: ["diff", root, root],
    "copy": lambda root, new: ["copy", root, "--to", new, "--topic", "t"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_tool_reports_messages_missing_from_the_queues(killed: Path, tmp_path: Path, name: str) -> None:
    """It is on stderr with the next command, and in a JSON object under its own key; not for a clean store."""
    ran = run(*COMMANDS[name](killed, tmp_path / "new"), "--json")
    count = COUNT - DISPATCHED
    assert f"brokerstore: incomplete: {count} messages are in the log" in ran.talk and "run: brokerstore rebuild" in ran.talk
    assert ran.code == 0 and ran.talk.count("in the log and not in the queues") == (2 if name == "diff" else 1)
    if name != "get":
        expected = {"first": count, "second": count} if name == "diff" else count
        assert ran.json["undispatched_messages"] == expected
    answer = None if name == "get" else ran.json
    root = shutil.copytree(killed, tmp_path / "store")
    assert run("rebuild", "--apply", root).code == 0
    with open_store(root):
        pass
    ran = run(*COMMANDS[name](root, tmp_path / "other"), "--json")
    assert ran.code == 0 and "incomplete" not in ran.talk and "undispatched" not in ran.out
    if answer is not None:
        check_schema(name, answer)


def test_get_after_the_end_of_a_queue_reports_undispatched_messages(killed: Path) -> None:
    """`get` is called at a message that is only in the log."""
    ran = run("get", killed, "--topic", "t", "--queue", 0, "--offset", COUNT // 3 - 1)
    assert ran.code == 1 and "OFFSET_OVERFLOW_BADLY" in ran.talk and "brokerstore: incomplete:" in ran.talk
