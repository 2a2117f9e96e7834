"""Commands on queues, index and offsets, compared with the account of a real RocketMQ."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from messagestore import MessageStore
from messagestore.broker.config.topics import Topics
from storageio import REAL_DISK
from tests.brokerstore.schema import check_schema
from tests.brokerstore.test_golden import expected
from tests.brokerstore.tool import run
from tests.helpers import contents
from tests.processes import running
from tests.stores import small_config

STORES = ["plain", "propcrc", "lmq", "broker-live"]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("is_from_log", [False, True], ids=["queues", "log"])
def test_ls_names_every_queue(fixture_store: Any, name: str, is_from_log: bool) -> None:
    """LMQs are listed too, from the queues or, if they are missing, from the log."""
    fixture = fixture_store(name, own=is_from_log)
    if is_from_log:
        shutil.rmtree(fixture.store / "consumequeue")
    found = run("ls", "--json", fixture.store).json["queues"]
    manifest = {
        (queue["topic"], queue["queueId"]): (queue["minOffset"], queue["maxOffset"]) for queue in fixture.expected()["queues"]
    }
    assert {(row["topic"], row["queue_id"]): (row["min_offset"], row["max_offset"]) for row in found} == manifest


def test_ls_names_the_topics_of_the_broker(fixture_store: Any) -> None:
    """The numbers of queues equal those of its admin tool."""
    fixture = fixture_store("broker-live")
    manifest = fixture.expected()["admin"]["topics"]
    topics = run("ls", "--json", fixture.store).json["topics"]
    assert {topic["topic"]: (topic["read_queues"], topic["write_queues"], topic["perm"]) for topic in topics} == {
        name: (topic["readQueueNums"], topic["writeQueueNums"], topic["perm"]) for name, topic in manifest.items()
    }


def test_ls_goes_on_past_a_queue_that_cannot_be_read(fixture_store: Any) -> None:
    """The queue is reported, and the exit code is 1."""
    fixture = fixture_store("plain", own=True)
    (fixture.store / "consumequeue" / "EdgeTopic" / "0" / "notes.txt").write_text("hello")
    ran = run("ls", "--json", fixture.store)
    assert ran.code == 1
    assert "notes.txt" in ran.talk
    assert len(ran.json["queues"]) == len(fixture.expected()["queues"]) - 1


def test_info_describes_queues_index_checkpoint_and_config(fixture_store: Any) -> None:
    """Queues, index, checkpoint and config equal the manifest."""
    fixture = fixture_store("broker-live")
    manifest, facts = fixture.expected(), run("info", "--json", fixture.store).json
    assert facts["consumequeue"]["queues"] == len(manifest["queues"])
    assert facts["consumequeue"]["file_size_bytes"] == manifest["config"]["mappedFileSizeConsumeQueue"]
    assert (facts["index"]["slots"], facts["index"]["items"]) == (500, 2000)
    assert facts["checkpoint"]["physic_msg_timestamp_ms"] == manifest["checkpointInMemory"]["physicMsgTimestamp"]
    assert {"topics.json", "consumerOffset.json", "delayOffset.json"} <= set(facts["config"])


@pytest.mark.parametrize("name", ["plain", "lmq"])
def test_get_by_queue_gives_what_the_real_store_gave(fixture_store: Any, name: str) -> None:
    """Whole queues and parts of them are equal."""
    fixture = fixture_store(name)
    messages = {message["physicalOffset"]: message for message in fixture.expected()["messages"]}
    for queue in fixture.expected()["queues"][::5]:
        where = ("--topic", queue["topic"], "--queue", queue["queueId"])
        requested = [expected(messages[unit[0]]) for unit in queue["cq"]]
        ran = run("get", "--json", *where, "--offset", 0, "--count", 10_000, fixture.store)
        assert (ran.code, ran.lines) == (0, requested)
        middle = len(requested) // 2
        ran = run("get", "--json", *where, "--offset", middle, fixture.store)
        assert (ran.code, ran.json) == (0, requested[middle])


def test_get_outside_of_a_queue_prints_the_status(fixture_store: Any) -> None:
    """The answer has the next offset."""
    store = fixture_store("plain").store
    ran = run("get", "--topic", "HotTopic", "--queue", 0, "--offset", 705, store)
    assert (ran.code, ran.out) == (1, "")
    assert "OFFSET_OVERFLOW_ONE" in ran.talk
    assert "NO_MESSAGE_IN_QUEUE" in run("get", "--topic", "nobody's", "--queue", 0, "--offset", 0, store).talk


def test_get_by_id_gives_the_message_of_that_id(fixture_store: Any) -> None:
    """Another message at its offset is no answer."""
    fixture = fixture_store("plain")
    for manifest in fixture.expected()["messages"][::111]:
        assert run("get", "--json", "--id", manifest["msgId"], fixture.store).json == expected(manifest)
    other = "7F" + fixture.expected()["messages"][0]["msgId"][2:]
    ran = run("get", "--id", other, fixture.store)
    assert ran.code == 1
    assert other in ran.talk


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.deep)])
@pytest.mark.parametrize("name", STORES)
def test_query_answers_as_the_real_store(fixture_store: Any, name: str, step: int) -> None:
    """The queries of the manifest are answered."""
    fixture = fixture_store(name)
    for manifest in fixture.expected()["queries"][::step]:
        options = ["--begin", manifest["begin"], "--end", min(manifest["end"], (1 << 62)), "--max", manifest["maxNum"]]
        ran = run("query", "--json", *options, fixture.store, "--", manifest["topic"], manifest["key"])
        assert ran.code == 0
        found = [line["physical_offset"] for line in ran.lines]
        known = {message["physicalOffset"]: message for message in fixture.expected()["messages"]}
        requested = [offset for offset in sorted(manifest["queryMessagePhyOffsets"]) if _has(known[offset], manifest)]
        assert set(found) <= set(manifest["phyOffsets"])
        assert [offset for offset in found if offset in requested] == requested


def _has(message: dict[str, Any], query: dict[str, Any]) -> bool:
    """RocketMQ also returns messages whose key only shares the hash."""
    words = [*message["properties"].get("KEYS", "").split(), message["properties"].get("UNIQ_KEY")]
    return message["topic"] == query["topic"] and query["key"] in words


def test_query_between_times(fixture_store: Any) -> None:
    """Times are given in milliseconds or as ISO 8601."""
    fixture = fixture_store("plain")
    whole = run("query", "--json", fixture.store, "SpreadTopic", "multi-0").lines
    begin, end = whole[3]["store_timestamp_ms"], whole[7]["store_timestamp_ms"]
    ran = run("query", "--json", "--begin", begin, "--end", end, fixture.store, "SpreadTopic", "multi-0")
    assert ran.lines == whole[3:8]
    assert run("query", "--json", "--begin", "2030-01-01", fixture.store, "SpreadTopic", "multi-0").out == ""


@pytest.mark.parametrize(("count", "topic"), [(0, None), (1, None), (10, None), (200, None), (5, "V6Topic"), (99, "V6Topic")])
def test_tail_gives_the_last_messages(fixture_store: Any, count: int, topic: str | None) -> None:
    """They span several files; there are fewer if the log has fewer."""
    fixture = fixture_store("plain")
    manifest = [expected(message) for message in fixture.expected()["messages"] if topic in (None, message["topic"])]
    options = [] if topic is None else ["--topic", topic]
    ran = run("tail", "--json", "-n", count, *options, fixture.store)
    assert (ran.code, ran.lines) == (0, manifest[-count:] if count else [])


def test_tail_follows_a_writer(tmp_path: Path) -> None:
    """It follows another process over the end of a file."""
    folder = tmp_path / "store"
    config = small_config()
    from commitlog import Message

    with MessageStore.open(folder, "a", config) as store:
        store.put(Message("topic", b"before", queue_id=0))
        command = [sys.executable, "-m", "brokerstore", "tail", "-f", "--json", folder]
        with running(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            for number in range(40):
                store.put(Message("topic", bytes(3000), keys=[str(number)], queue_id=0))
            lines = [process.stdout.readline() for _ in range(40)]
    assert [line.partition(b'"keys":["')[2].partition(b'"')[0] for line in lines] == [str(n).encode() for n in range(40)]


def test_a_store_with_an_empty_index_can_be_followed(tmp_path: Path) -> None:
    """`tail -f` of a store with an unusual index layout ended early, unless a key arrived first."""
    from commitlog import Message

    with MessageStore.open(tmp_path / "store", "a", small_config()) as store:
        store.put(Message("topic", b"no key", queue_id=0))
        store.get("topic", 0, 0)
        assert len(list((tmp_path / "store" / "index").iterdir())) == 1
        folder = tmp_path / "store"
        for name, *more in (
            ["get", "--topic", "topic", "--queue", 0, "--offset", 0], ["query", "topic", "key"], ["diff", folder],
        ):  # fmt: skip
            ran = run(name, folder, *more)
            assert ran.code == 0, (name, ran.talk)


def test_stats_add_up_to_the_manifest(fixture_store: Any) -> None:
    """The sums by queue and by hour are equal."""
    fixture = fixture_store("plain")
    manifest = fixture.expected()["messages"]
    by_queue = run("stats", "--json", fixture.store).json
    assert by_queue["total"] == {"messages": len(manifest), "size_bytes": sum(message["storeSize"] for message in manifest)}
    for row in by_queue["queues"]:
        mine = [message for message in manifest if (message["topic"], message["queueId"]) == (row["topic"], row["queue_id"])]
        times = [message["storeTimestamp"] for message in mine]
        assert (row["messages"], row["size_bytes"]) == (len(mine), sum(message["storeSize"] for message in mine))
        assert (row["first_store_timestamp_ms"], row["last_store_timestamp_ms"]) == (min(times), max(times))
    by_hour = run("stats", "--json", "--by", "hour", fixture.store).json
    assert by_hour["total"] == by_queue["total"]
    assert {row["hour_ms"] % 3_600_000 for row in by_hour["hours"]} == {0}


def test_offsets_show_what_the_broker_kept(fixture_store: Any) -> None:
    """Every group, topic and queue is shown with its lag."""
    fixture = fixture_store("broker-live")
    table = fixture.expected()["configFiles"]["consumerOffset.json"]["offsetTable"]
    ends = {(queue["topic"], queue["queueId"]): queue["maxOffset"] for queue in fixture.expected()["queues"]}
    requested = {
        (key.split("@")[1], key.split("@")[0], int(queue_id), offset)
        for key, offsets in table.items()
        if key.count("@") == 1
        for queue_id, offset in offsets.items()
    }
    rows = run("offsets", "show", "--json", fixture.store).json["offsets"]
    assert {(*list(row.values())[:4],) for row in rows if row["offset"] is not None} == requested
    assert all(row["lag"] == ends[row["topic"], row["queue_id"]] - (row["offset"] or 0) for row in rows)
    stats = fixture.expected()["admin"]["consumeStats"]  # the broker's own, of all queues; those of its own topics are older
    for key, queues in stats.items():
        topic, group = key.split("@")
        for queue_id, stand in queues.items():
            if not topic.startswith("RMQ_SYS") and stand["brokerOffset"]:
                row = next(
                    row for row in rows if (row["group"], row["topic"], row["queue_id"]) == (group, topic, int(queue_id))
                )
                assert (row["offset"] or 0, row["lag"]) == (
                    stand["consumerOffset"],
                    stand["brokerOffset"] - stand["consumerOffset"],
                )
    assert len([row for row in rows if row["offset"] is None]) > 0
    assert {row["group"] for row in run("offsets", "show", "--json", "--group", "G_tag", fixture.store).json["offsets"]} == {
        "G_tag"
    }


def test_offsets_reset_sets_them(fixture_store: Any) -> None:
    """They are set to an offset or a time inside the queue; the rest of the file is unchanged."""
    fixture = fixture_store("broker-live", own=True)
    reset = ("offsets", "reset", "--apply", "--json", fixture.store, "--group", "G_tag", "--topic", "LiveFilter")
    before = run("offsets", "show", "--json", fixture.store).json["offsets"]
    assert {row["offset"] for row in run(*reset, "--to", "earliest").json["offsets"]} == {0}
    assert [row["offset"] for row in run(*reset, "--to", 3, "--queue", 1).json["offsets"]] == [3]
    after = run("offsets", "show", "--json", fixture.store).json["offsets"]
    assert [row for row in after if row["group"] != "G_tag"] == [row for row in before if row["group"] != "G_tag"]
    ran = run(*reset, "--to", 1000)
    assert (ran.code, ran.out) == (2, "")
    assert run(*reset, "--to", "latest", "--queue", 77).code == 2
    queue = next(q for q in fixture.expected()["queues"] if (q["topic"], q["queueId"]) == ("LiveFilter", 0))
    for probe in queue["offsetByTime"]:
        ran = run(*reset, "--to-time", probe["timestamp"], "--queue", 0)
        assert ran.json["offsets"][0]["offset"] == probe["lower"]


def test_offsets_reset_shows_a_plan(fixture_store: Any) -> None:
    """Present and new offsets of each queue are shown, and nothing is changed; a refused offset is refused in the plan, too."""
    fixture = fixture_store("broker-live", own=True)
    reset = ("offsets", "reset", "--json", fixture.store, "--group", "G_tag", "--topic", "LiveFilter")
    present = run("offsets", "show", "--json", fixture.store, "--group", "G_tag", "--topic", "LiveFilter").json["offsets"]
    files = contents(fixture.store)
    ran = run(*reset, "--to", 3, "--plan")
    assert (ran.code, ran.talk) == (0, "")
    assert ran.json == {"offsets": [row | {"new_offset": 3} for row in present], "applied": False}
    check_schema("offsets", ran.json)
    assert run(*reset, "--to", 1000, "--plan").code == 2
    assert contents(fixture.store) == files
    ran = run(*reset, "--to", 3)
    assert ran.talk == "brokerstore: warning: without --apply, the next version only shows the plan\n"
    assert {row["offset"] for row in ran.json["offsets"]} == {3}
    by_name = ("resetOffsetByTime", "--json", fixture.store, "-g", "G_tag", "-t", "LiveFilter", "-s", 0)
    assert run(*by_name, "--plan").json["applied"] is False
    ran = run(*by_name)
    assert (ran.json["applied"], ran.talk) == (True, "")


def test_a_deleted_topic_does_not_come_back(fixture_store: Any) -> None:
    """It is no problem, is not rebuilt, and is not listed from the log."""
    fixture = fixture_store("broker-live", own=True)
    topics = Topics(REAL_DISK, str(fixture.store / "config"))
    assert topics.delete("LiveFilter")
    topics.persist()
    shutil.rmtree(fixture.store / "consumequeue" / "LiveFilter")
    assert [problem["kind"] for problem in run("verify", "--json", fixture.store).json["problems"]] == ["offset_ahead"] * 6
    shutil.rmtree(fixture.store / "consumequeue")
    assert "LiveFilter" not in {row["topic"] for row in run("ls", "--json", fixture.store).json["queues"]}
    assert run("rebuild", "--apply", fixture.store, "--cq-size", 2000).code == 0
    assert not (fixture.store / "consumequeue" / "LiveFilter").exists()
    assert (fixture.store / "consumequeue" / "LiveOrder").exists()


def test_put_prints_the_position_and_get_returns_the_message(fixture_store: Any, tmp_path: Path) -> None:
    """The body comes from an argument or a file, with keys, tag and properties."""
    store = fixture_store("plain", own=True).store
    ran = run("put", "--json", store, "HotTopic", "hello", "--key", "a", "--key", "b", "--tag", "t", "--property", "n=v=w")
    assert (ran.code, ran.json["status"], ran.json["queue_offset"]) == (0, "PUT_OK", 705)
    found = run("get", "--json", "--id", ran.json["message_id"], store).json
    assert (found["topic"], found["keys"], found["tags"], found["properties"]["n"]) == ("HotTopic", ["a", "b"], "t", "v=w")
    assert [line["physical_offset"] for line in run("query", "--json", store, "HotTopic", "b").lines] == [
        found["physical_offset"]
    ]
    body = tmp_path / "body"
    body.write_bytes(bytes(range(256)))
    assert run("put", store, "NewTopic", "--body-file", body, "--queue", 3).code == 0
    assert run("export", store, "--topic", "NewTopic").lines[0]["body_base64"].startswith("AAECAwQ")
    assert run("verify", store).code == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["t", "b", "--property", "novalue"], 2),
        (["t", "--body-file", "/no/such/file"], 2),
        (["a/b", "body"], 1),
        (["x" * 128, "body"], 1),
        (["t", "b", "--property", "a\x01=b"], 2),
    ],
)
def test_put_refuses_an_invalid_message(fixture_store: Any, arguments: list[str], code: int) -> None:
    """Nothing is put into the store."""
    store = fixture_store("plain", own=True).store
    ran = run("put", store, *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert run("info", "--json", store).json["max_offset"] == 1048760


def test_put_makes_no_store(tmp_path: Path) -> None:
    """A mistyped path does not create a store."""
    assert run("put", tmp_path / "nothing", "t", "b").code == 3
    assert list(tmp_path.iterdir()) == []


def test_a_log_in_two_folders_outside_of_the_store_is_read(fixture_store: Any, tmp_path: Path) -> None:
    """They are given with commas, one at a time, or in a broker's properties; one given twice counts once."""
    store = fixture_store("plain", own=True).store
    folders = [tmp_path / "disk1", tmp_path / "disk2"]
    for folder in folders:
        folder.mkdir()
    for number, path in enumerate(sorted((store / "commitlog").iterdir())):
        path.rename(folders[number % 2] / path.name)
    (store / "commitlog").rmdir()
    assert run("ls", store).code == 3
    names = ",".join(map(str, folders))
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerName=b\nstorePathCommitLog={names}\nmappedFileSizeCommitLog=65536\n")
    given = [["--commitlog", str(folder)] for folder in folders]
    for options in (["--commitlog", names], ["--config", conf], given[0] + given[1], given[1] + ["--commitlog", names]):
        assert run("verify", *options, store).code == 0
        assert len(run("dump", "--json", *options, store).lines) == 1093
        assert len(run("query", "--json", *options, store, "SpreadTopic", "multi-0").lines) == 22
    assert run("ls", "--commitlog", tmp_path / "disk3", store).code == 3


def test_a_record_with_mismatched_lmq_lists_is_in_no_lmq(tmp_path: Path) -> None:
    """Such a record is in no LMQ."""
    from commitlog import CommitLog, LogPaths, Message
    from messagestore.derive.kinds import queue_keys_of

    log = CommitLog(LogPaths(REAL_DISK, [str(tmp_path)]), writable=True, file_size_bytes=65536)
    log.attach(0)
    for names, offsets in (("%LMQ%a,%LMQ%b", "1"), ("%LMQ%a", "x"), ("other", "1"), ("%LMQ%a", "7")):
        properties = {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets}
        log.appender.append(Message("t", b"", properties=properties, queue_id=0))
    positions = [list(queue_keys_of(message))[1:] for message in log.messages()]
    log.close()
    assert positions == [[], [], [], [("%LMQ%a", 0, 7)]]
