"""`copy`: topics in a new store, equal to those of the old one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from messagestore import MessageStore
from messagestore.broker.config.delay_offsets import DelayOffsets
from messagestore.broker.config.topics import Topics
from storageio import REAL_DISK
from tests.brokerstore.tool import run
from tests.helpers import contents
from tests.messagestore.kit import Clock
from tests.messagestore.test_delays import deliver
from tests.stores import small_config

SMALL = ("--commitlog-size", 1 << 20, "--cq-size", 4000, "--index-slots", 1000, "--index-num", 4000)
KEPT = (
    "topic", "queue_id", "queue_offset", "body", "flag", "sys_flag", "born_timestamp_ms", "born_host", "store_timestamp_ms",
    "store_host", "reconsume_times", "prepared_transaction_offset", "properties",
)  # fmt: skip


def printed(message: Any) -> dict[str, Any]:
    return {name: getattr(message, name) for name in KEPT}


def check(old: Path, new: Path, topics: set[str]) -> int:
    """Compare every message of the topics by queue offset, key and time; return how many there are."""
    count = 0
    with MessageStore.open(old, "r") as before, MessageStore.open(new, "r") as after:
        assert set(after.topics()) == topics
        for topic in topics:
            assert after.queue_ids(topic) == before.queue_ids(topic)
            for queue_id in after.queue_ids(topic):
                assert after.min_offset(topic, queue_id) == before.min_offset(topic, queue_id)
                assert after.max_offset(topic, queue_id) == before.max_offset(topic, queue_id)
                messages = list(before.read(topic, queue_id))
                assert [printed(one) for one in after.read(topic, queue_id)] == [printed(one) for one in messages]
                count += len(messages)
                for one in messages[::7]:
                    at = one.store_timestamp_ms
                    assert after.offset_by_time(topic, queue_id, at) == before.offset_by_time(topic, queue_id, at)
                    for key in one.keys:
                        assert len(after.query(topic, key)) == len(before.query(topic, key))
    return count


@pytest.mark.parametrize("sizes", [(), SMALL])
@pytest.mark.parametrize(
    ("name", "topics"),
    [
        ("plain", ("HotTopic", "UnicodeTopic", "V6Topic", "TranTopic")),
        ("broker-live", ("LiveNormal", "LiveFail", "%RETRY%G_fail", "LiveTran")),
        ("batchcq", ("BcqTopic",)),
    ],
)
def test_all_messages_of_selected_topics_are_copied(
    fixture_store: Any, tmp_path: Path, name: str, topics: tuple[str, ...], sizes: tuple[Any, ...]
) -> None:
    """The copy verifies with the old file sizes and with others; the old folder is unchanged."""
    fixture = fixture_store(name)
    before = contents(fixture.store)
    chosen = [part for topic in topics for part in ("--topic", topic)]
    ran = run("copy", "--json", fixture.store, "--to", tmp_path / "new", *chosen, *sizes)
    undecided = 3 if "LiveTran" in topics else 0  # its producer did not answer four checks
    assert (ran.code, "--all" in ran.talk) == (0, undecided > 0)
    assert ran.json["not_copied"] == {"delayed": 0, "timers": 0, "transactions": undecided, "unacknowledged": 0}
    assert contents(fixture.store) == before
    count = check(fixture.store, tmp_path / "new", set(topics))
    assert ran.json["topics"] == list(topics)
    assert 0 < count <= ran.json["messages"]
    assert run("verify", tmp_path / "new").code == 0
    log = next((tmp_path / "new" / "commitlog").iterdir())
    assert log.stat().st_size == (1 << 20 if sizes else 65536)


def test_consumer_groups_and_their_offsets_are_copied(fixture_store: Any, tmp_path: Path) -> None:
    """Offsets, lag, topics.json and subscriptionGroup.json are copied."""
    fixture = fixture_store("broker-live")
    ran = run("copy", "--json", fixture.store, "--to", tmp_path / "new", "--topic", "LiveNormal", "--topic", "LiveFail")
    assert ran.json["groups"] == ["G_fail", "G_part"]
    rows = run("offsets", "show", "--json", tmp_path / "new").json["offsets"]
    expected = run("offsets", "show", "--json", fixture.store).json["offsets"]
    assert rows == [row for row in expected if row["topic"] in ("LiveNormal", "LiveFail")]
    old, new = (Topics(REAL_DISK, str(folder / "config")) for folder in (fixture.store, tmp_path / "new"))
    assert new.names() == ["LiveFail", "LiveNormal"]
    assert new.get("LiveNormal") == old.get("LiveNormal")
    with MessageStore.open(tmp_path / "new", "r+") as store:
        assert store.engine.retries.group("G_fail").retry_max_times == 1


def test_puts_into_a_copy_continue_the_queue_offsets(fixture_store: Any, tmp_path: Path) -> None:
    """Puts into the copy get the next queue offsets."""
    from commitlog import Message

    fixture = fixture_store("plain")
    assert run("copy", fixture.store, "--to", tmp_path / "new", "--topic", "HotTopic").code == 0
    with MessageStore.open(tmp_path / "new", "r+") as store:
        assert store.put(Message("HotTopic", b"x", queue_id=0)).queue_offset == 705


def test_copy_all_copies_the_complete_store(fixture_store: Any, tmp_path: Path) -> None:
    """`--all` copies a store whose records are all in queues."""
    fixture = fixture_store("lmq")
    assert run("copy", fixture.store, "--to", tmp_path / "new", "--all").code == 0
    with MessageStore.open(fixture.store, "r") as before, MessageStore.open(tmp_path / "new", "r") as after:
        assert after.topics() == before.topics()
        for topic in before.topics():
            for queue_id in before.queue_ids(topic):
                found = [message.body for message in after.read(topic, queue_id)]
                assert found == [message.body for message in before.read(topic, queue_id)]


def test_invalid_copy_requests_are_refused(fixture_store: Any, tmp_path: Path) -> None:
    """An unknown topic, an existing store and a missing choice are refused, and nothing is created."""
    fixture = fixture_store("plain")
    copy = ("copy", fixture.store, "--to", tmp_path / "new")
    assert run(*copy).code == 2
    assert run(*copy, "--all", "--topic", "HotTopic").code == 2
    ran = run(*copy, "--topic", "Nobody")
    assert ran.code == 2
    assert "Nobody" in ran.talk
    assert not (tmp_path / "new").exists()
    assert run(*copy, "--topic", "HotTopic").code == 0
    ran = run(*copy, "--topic", "HotTopic")
    assert ran.code == 3
    assert "already" in ran.talk


TOO_LONG = ("--topic", "HotTopic", "--topic", "EdgeTopic")  # some of its messages have 64 KiB


@pytest.mark.parametrize("is_there", [False, True])
def test_a_copy_with_too_small_log_files_leaves_no_partial_store(fixture_store: Any, tmp_path: Path, is_there: bool) -> None:
    """Log files smaller than a record are refused, and no partial store remains."""
    new = tmp_path / "new"
    if is_there:
        new.mkdir()
    ran = run("copy", fixture_store("plain").store, "--to", new, *TOO_LONG, "--commitlog-size", 8192)
    assert ran.code == 1
    assert "PutRejected" in ran.talk
    assert list(tmp_path.rglob("*")) == ([new] if is_there else [])
    assert run("copy", fixture_store("plain").store, "--to", new, "--topic", "HotTopic").code == 0


def test_an_interrupted_copy_leaves_nothing(fixture_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy can be run again from the beginning."""

    def stop(*_arguments: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    new = tmp_path / "new"
    with monkeypatch.context() as patch:
        patch.setattr("messagestore.broker.services.copying._copy_groups", stop)
        assert run("copy", fixture_store("plain").store, "--to", new, "--topic", "HotTopic").code == 130
    assert list(tmp_path.iterdir()) == []


def test_a_topic_with_an_invalid_name_fails_the_copy(fixture_store: Any, tmp_path: Path) -> None:
    """The error names the topic, and nothing remains."""
    ran = run("copy", fixture_store("plain").store, "--all", "--to", tmp_path / "new")
    assert (ran.code, "topic 'LongTopic_0123456789" in ran.talk) == (2, True)
    assert "--topic NAME" in ran.talk
    assert not (tmp_path / "new").exists()


def test_delivered_delayed_messages_are_not_delivered_again_from_a_copy(tmp_path: Path) -> None:
    """A copy, once opened, put each delivered delayed message again."""
    from commitlog import Message

    clock = Clock()
    with open_waiting(tmp_path / "old", clock) as store:
        for number in range(3):
            store.put(Message("T", b"%d" % number, queue_id=0, properties={"DELAY": "1"}))
        clock.now_ms += 1000
        deliver(store)
        store.put(Message("T", b"3", queue_id=0, properties={"DELAY": "1"}))
    assert run("copy", tmp_path / "old", "--to", tmp_path / "new", "--all").code == 0
    clock.now_ms += 1000
    with open_waiting(tmp_path / "new", clock) as store:
        deliver(store)
        assert [message.body for message in store.read("T", 0)] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("name", ["broker-live", "broker-timer"])
def test_copy_all_includes_the_delay_offsets_and_timer_progress(fixture_store: Any, tmp_path: Path, name: str) -> None:
    """A real broker would deliver delayed messages and timers again otherwise: it knows only its own files."""
    old, new = fixture_store(name).store, tmp_path / "new"
    assert run("copy", old, "--to", new, "--all").code == 0
    progress = [DelayOffsets(REAL_DISK, str(folder / "config")).levels() for folder in (old, new)]
    assert progress[1] == progress[0]
    timers = [run("verify", folder, "--json").json.get("timers") for folder in (old, new)]
    assert timers[1] == timers[0]
    assert run("verify", new).code == 0


def open_waiting(folder: Path, clock: Clock) -> MessageStore:
    """Open a store whose housekeeper delivers nothing by itself."""
    config = small_config(mapped_file_size_commit_log=1 << 20, deliver_delayed=False)
    return MessageStore.open(folder, config=config, clock=clock)
