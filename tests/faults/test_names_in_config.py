"""Names in a broker's configuration that are paths, or not valid names: no reader fails on one, and none leaves the store."""

from __future__ import annotations

import inspect
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.broker.config.consumer_offsets import ConsumerOffsets
from messagestore.broker.config.topics import Topics
from storageio import REAL_DISK, InvalidMessage
from tests.brokerstore.tool import run
from tests.faults.test_hostile_folders import made_message
from tests.stores import small_config

pytestmark = pytest.mark.default

NAMES = ["../../precious", "a\0b", "..", ".", "", "a/b", "a\\b", "/etc", "x" * 300, "\ud800", "\u65e5" * 100, "T/0",
         "T/../../config"]  # fmt: skip
READING = ["info", "ls", "offsets show", "verify", "recover", "stats", "dump", "query", "diff", "report", "export"]
WRITING = ["put", "recover --apply", "rebuild --apply", "offsets reset --apply --to earliest", "copy --all"]
SIZES = small_config(max_index_num=200)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Make a store beside files that must stay unchanged."""
    for name in ("precious/0", "above/precious/0", "above/config"):
        (tmp_path / name).mkdir(parents=True)
    folder = tmp_path / "above" / "store"
    with MessageStore.open(folder, "a", SIZES) as made:
        for number in range(5):
            made.put(made_message(number))  # type: ignore[arg-type]
    return folder


@pytest.fixture
def requested(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Collect the paths outside of the store that any call asks the system about."""
    outside: list[str] = []

    def watched(name: str) -> Any:
        real = getattr(REAL_DISK, name)

        def call(*arguments: Any, **options: Any) -> Any:
            for path in (argument for argument in arguments if isinstance(argument, str)):
                lies_in = os.path.normpath(path)
                if path.startswith(f"{store}/") and (lies_in + "/").startswith(f"{store}/") is False:
                    outside.append(path)
                if "/../" in path or path.startswith("/etc"):
                    outside.append(path)
            return real(*arguments, **options)

        return call

    for name, _method in inspect.getmembers(type(REAL_DISK), inspect.isfunction):
        if not name.startswith("_"):
            monkeypatch.setattr(type(REAL_DISK), name, staticmethod(watched(name)))
    yield outside


def write(store: Path, file: str, document: Any) -> None:
    """Write a config file or a sidecar."""
    (store / file).parent.mkdir(exist_ok=True)
    (store / file).write_text(json.dumps(document))


def offset_files(names: list[str]) -> dict[str, Any]:
    """Return documents with these names by file name."""
    topic = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    offsets = {f"{name}@g": {"0": 7, "-5": 1, "4294967296": 2} for name in names} | {"T@g": {"0": 1}}
    batch = {**topic, "attributes": {"queue.type": "BatchCQ"}}
    return {
        "config/consumerOffset.json": {"offsetTable": offsets | {f"T@{name}": {"0": 3} for name in names}},
        "config/lmqConsumerOffset.json": {"offsetTable": offsets,
                                          "lmqOffsetTable": {f"{name}@%LMQ%{name}": 5 for name in names}},
        "config/topics.json": {"topicConfigTable": dict.fromkeys([*names, "T"], topic)},
        "config/topics.json with batches": {"topicConfigTable": {"T": topic, **dict.fromkeys(names, batch)}},
        "config/subscriptionGroup.json": {"subscriptionGroupTable": {name: {"groupName": name} for name in names}},
        "config/consumerFilter.json": {"filterDataByTopic": {name: {"filterDataMap": {}} for name in names}},
        "config/delayOffset.json": {"offsetTable": {"-5": 3, "0": 3, "99": 3, "4294967297": 3}},
        "brokerstore/queues.json": {name: [0, -1, 1 << 40] for name in names},
        "brokerstore/delays.json": {"position": 1, "offsets": {"-5": 3, "0": 3, "4294967297": 1}},
    }  # fmt: skip


def words(command: str, store: Path) -> list[str]:
    """Return the command line of a command."""
    more = {"query": ["T", "key"], "diff": [str(store)], "put": ["T", "body"], "rebuild --apply": ["all"],
            "offsets reset --apply --to earliest": ["--group", "g", "--topic", "T"],
            "copy --all": ["--to", f"{store}-copy"]}  # fmt: skip
    first, *options = command.split()
    if first == "offsets":
        return [first, options[0], str(store), *options[1:], *more.get(command, [])]
    return [first, str(store), *options, *more.get(command, [])]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("file", offset_files([]))
def test_no_command_fails_or_accesses_a_path_outside_of_the_store(store: Path, requested: list[str], file: str) -> None:
    """With all names in one file, no command fails or looks at a path outside of the store."""
    write(store, file.split()[0], offset_files(NAMES)[file])
    before = sorted(str(path) for path in store.parent.parent.rglob("*"))
    for command in (*READING, "abort", *WRITING):
        if command == "abort":  # as after a crash: opening clamps offsets beyond their queues
            (store / "abort").touch()
            continue
        ran = run(*words(command, store))
        assert "internal error" not in ran.talk, (command, ran.talk)
        is_refused = command == "copy --all" and ran.code == 2  # the error names the topic; the others can be copied
        assert ran.code in (0, 1, 6, 7) or is_refused, (command, ran.talk)
        assert requested == [], command
    after = sorted(str(path) for path in store.parent.parent.rglob("*"))
    assert [path for path in after if path not in before and not path.startswith(str(store))] == []


def test_offsets_show_has_every_group_and_topic(store: Path, requested: list[str]) -> None:
    """An impossible topic has no queue, but its offsets are shown."""
    write(store, "config/consumerOffset.json", {"offsetTable": {f"{name}@g": {"0": 7} for name in [*NAMES, "T"]}})
    rows = run("offsets", "show", store, "--json").json["offsets"]
    assert sorted((row["topic"], row["offset"], row["max_offset"]) for row in rows) == sorted(
        [(name, 7, 0) for name in NAMES] + [("T", 7, 5)]
    )
    assert requested == []


@pytest.mark.parametrize("name", NAMES)
def test_offsets_reset_of_a_hostile_topic_name_is_refused(store: Path, requested: list[str], name: str) -> None:
    """The topic has no queue, so the command refuses; other topics' offsets are set."""
    write(store, "config/consumerOffset.json", {"offsetTable": {f"{name}@g": {"0": 7}, "T@g": {"0": 1}}})
    refused = run("offsets", "reset", "--apply", store, "--group", "g", "--topic", name, "--to", "earliest")
    assert refused.code == 2, refused.talk
    done = run("offsets", "reset", "--apply", store, "--group", "g", "--topic", "T", "--to", "latest")
    assert done.code == 0, done.talk
    kept = ConsumerOffsets(REAL_DISK, str(store / "config"))
    assert (kept.offsets_of(name, "g"), kept.offsets_of("T", "g")) == ({0: 7}, {0: 5})
    assert requested == []


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_finds_no_queue_of_a_hostile_name(store: Path, requested: list[str], name: str) -> None:
    """Every reading method finds nothing and asks about no path outside."""
    with MessageStore.open(store, "r", SIZES) as opened:
        assert opened.queue_ids(name) == []
        assert (opened.min_offset(name, 0), opened.max_offset(name, 0)) == (0, 0)
        assert opened.get(name, 0, 0).messages == []
        assert opened.query(name, "key") == []
        with pytest.raises(InvalidMessage, match="no topic"):
            opened.read(name, 0)
        for queue_id in (-1, 1 << 31, 1 << 70):
            assert opened.max_offset("T", queue_id) == 0
    assert requested == []


def test_thousands_of_groups_need_one_scan(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group used to scan all keys, and each pair all folders: 100,000 groups took hours."""
    write(store, "config/consumerOffset.json", {"offsetTable": {f"T@g{number}": {"0": 1} for number in range(300)}})
    reads: list[str] = []
    keys, discover = ConsumerOffsets._keys, MessageStore._discover
    monkeypatch.setattr(ConsumerOffsets, "_keys", lambda table: (reads.append("keys"), keys(table))[1])
    monkeypatch.setattr(MessageStore, "_discover", lambda store: (reads.append("folders"), discover(store))[1])
    rows = run("offsets", "show", store, "--json").json["offsets"]
    assert [(row["group"], row["lag"]) for row in rows] == sorted((f"g{number}", 4) for number in range(300))
    assert len(reads) < 10


def test_a_table_of_topics_is_not_sorted_for_each_record(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ls` asks for each queue of a log whether the table has any topic."""
    with MessageStore.open(store, "a", SIZES) as made:
        for queue_id in range(4):
            made.put(Message("T", b"b", queue_id=queue_id))
    for name in ("consumequeue", "index"):
        shutil.rmtree(store / name)
    sorts: list[int] = []
    names = Topics.names
    monkeypatch.setattr(Topics, "names", lambda table: (sorts.append(1), names(table))[1])
    assert [row["queue_id"] for row in run("ls", store, "--json").json["queues"]] == [0, 1, 2, 3]
    assert len(sorts) == 1
