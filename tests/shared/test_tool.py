"""The tool on a store that running processes share, at rest, and held by one process alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from messagestore import MessageStore, SharedStore
from tests.brokerstore.schema import check_schema
from tests.brokerstore.tool import Ran, run
from tests.helpers import bodies
from tests.shared.processes import CONFIG, Child, Counters, open_shared, owning_child

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
OWNERS = ["shared", "at rest"]


def filled(store: SharedStore) -> None:
    """Put 20 messages into T, and make two of group G dead letters."""
    store.create_topic("T", 2)
    for number in range(20):
        store.put("T", b"%d" % number, keys=f"k{number}", tags="odd" if number % 2 else "even", queue_id=number % 2)
    with store.consumer("T", group="G") as consumer:
        for message in consumer.poll(4):
            if message.body in (b"0", b"2"):
                consumer.nack(message, delay_level=-1)
            else:
                consumer.ack(message)


@pytest.fixture(params=OWNERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Return the folder of such a store, which another process owns and shares, or no process has open."""
    if request.param == "shared":
        owner = owning_child(tmp_path / "s", lambda store: (filled(store), store.flush()))
        with open_shared(tmp_path / "s") as store:
            store.reset_offsets("T", "G", 2, queues=[0])  # saves the offsets, which else takes seconds
        yield tmp_path / "s"
        owner.kill()
        return
    with open_shared(tmp_path / "s") as store:
        filled(store)
        store.reset_offsets("T", "G", 2, queues=[0])
    yield tmp_path / "s"


def planned_then_applied(*words: object) -> Ran:
    """Run a command without and with --apply; the first changes nothing and both have the same steps."""
    shown = run(*words, "--json")
    assert (shown.code, shown.json["applied"]) == (0, False), shown.talk
    check_schema("change", shown.json)
    done = run(*words, "--apply", "--json")
    check_schema("change", done.json)
    assert (done.code, done.json["applied"]) == (0, True), done.talk
    plan = done.json["plan"]
    plan["steps"] = [{name: value for name, value in step.items() if name != "result"} for step in plan["steps"]]
    assert plan == shown.json["plan"]
    return done


def test_put(folder: Path) -> None:
    """The message is in the store when the command ends."""
    assert run("put", folder, "T", "from the tool", "--queue", "0").code == 0
    with open_shared(folder) as store:
        assert bodies(store.read("T", 0))[-1] == b"from the tool"


def test_purge(folder: Path) -> None:
    """The plan has the number of messages that the group skips."""
    done = planned_then_applied("purge", folder, "T", "--group", "G")
    assert done.json["plan"]["messages_lost"] > 0
    with open_shared(folder) as store:
        assert store.committed_offsets("T", "G") == {0: 10, 1: 10}
    assert run("purge", folder, "mistyped").code == 2


def test_requeue_puts_each_dead_letter_once(folder: Path) -> None:
    """A filter selects; what was put before is not put again, also when the filter goes."""
    planned_then_applied("requeue", folder, "G", "--key", "k2")
    with open_shared(folder) as store:
        (copied,) = store.query("T", "k2")[1:]
        assert (copied.body, copied.tags, copied.keys, copied.reconsume_times) == (b"2", "even", ["k2"], 0)
        assert len(store.query("T", "k0")) == 1
    done = planned_then_applied("requeue", folder, "G")
    assert [step["kind"] for step in done.json["plan"]["steps"]] == ["requeue", "set_offsets"]
    assert run("requeue", folder, "G", "--apply", "--json").json["plan"]["steps"] == []
    with open_shared(folder) as store:
        assert [len(store.query("T", key)) for key in ("k0", "k2")] == [2, 2]
        assert store.committed_offsets("%DLQ%G", "G") == {0: 2}


def test_offsets_reset(folder: Path) -> None:
    """To an offset and to a time, which the answer shows."""
    done = run("offsets", "reset", folder, "--group", "G", "--topic", "T", "--to", "earliest", "--apply", "--json")
    assert [row["offset"] for row in done.json["offsets"]] == [0, 0], done.talk
    words = ("offsets", "reset", folder, "--group", "G", "--topic", "T", "--queue", "1", "--to-time", "1970-01-01")
    assert [row["offset"] for row in run(*words, "--apply", "--json").json["offsets"]] == [0]
    with open_shared(folder) as store:
        assert store.committed_offsets("T", "G") == {0: 0, 1: 0}


def test_topic_and_group_delete(folder: Path) -> None:
    """The plan names what goes; an unknown name is wrong use."""
    assert run("group", "delete", folder, "G").out.count("its settings and its retries") == 1
    planned_then_applied("group", "delete", folder, "G")
    assert planned_then_applied("topic", "delete", folder, "T").json["plan"]["messages_lost"] == 20
    assert (run("topic", "delete", folder, "T").code, run("group", "delete", folder, "G").code) == (2, 2)
    with open_shared(folder) as store:
        assert store.topics() == ["%DLQ%G"]


def test_topic_that_a_worker_uses_is_not_deleted(tmp_path: Path) -> None:
    """The error names group and topic; `top` names the worker's process and what it has."""
    owner, counters = owning_child(tmp_path / "s", filled), Counters(2)

    def work() -> None:
        with open_shared(tmp_path / "s") as store, store.consumer("T", group="G") as consumer:
            counters[0] = len(consumer.poll(3, 5))
            counters.wait_for(1, 1)

    worker = Child(work)
    counters.wait_for(0, 3)
    refused = run("topic", "delete", tmp_path / "s", "T", "--apply")
    assert refused.code == 2 and "in use by open consumers: group 'G' on topic 'T'" in refused.talk
    with open_shared(tmp_path / "s") as store:
        store.reset_offsets("%DLQ%G", "G", 0)
    rows = {row["topic"]: row for row in run("top", tmp_path / "s", "--interval", "0.1", "--json").json["groups"]}
    assert (rows["T"]["processes"], rows["T"]["unacknowledged"]) == ([worker.process_id], 3)
    assert (rows["%DLQ%G"]["lag"], rows["%DLQ%G"]["deliveries"], rows["%DLQ%G"]["processes"]) == (2, 1, [])
    assert rows["%DLQ%G"]["oldest_s"] >= 0
    assert f"process {worker.process_id}" in run("top", tmp_path / "s", "--interval", "0.1").out
    counters[1] = 1
    assert worker.exit_code() == 0
    owner.kill()


COMMANDS = [
    ("put", "T", "body"), ("purge", "T", "--group", "G", "--apply"), ("requeue", "G", "--apply"),
    ("topic delete", "T", "--apply"), ("group delete", "G", "--apply"),
    ("offsets reset", "--group", "G", "--topic", "T", "--to", "latest", "--apply"),
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=[words[0] for words in COMMANDS])
def test_store_of_one_process_is_refused_with_its_name(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Name and id of the process; the next step needs no other program."""
    with open_shared(tmp_path / "s") as store:
        filled(store)
    held = Counters(1)

    def hold() -> None:
        with MessageStore.open(tmp_path / "s", config=CONFIG):
            held[0] = 1
            held.wait_for(0, 2)

    owner = Child(hold)
    held.wait_for(0, 1)
    ran = run(*command[0].split(), tmp_path / "s", *command[1:])
    assert ran.code == 4
    name = Path(f"/proc/{owner.process_id}/comm").read_text().strip()
    assert f"{name}, process {owner.process_id}, has the store open for writing" in ran.talk
    assert f"run: brokerstore info {tmp_path / 's'}" in ran.talk and "fuser" not in ran.talk
    held[0] = 2
    assert owner.exit_code() == 0
    assert os.path.exists(tmp_path / "s" / "commitlog")
