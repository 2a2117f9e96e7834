"""Requests for what a healthy store does not hold: the answer says so and names a command that helps."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from messagestore import MessageStore
from rabbitstore import RabbitStore
from tests.brokerstore.damage import Log
from tests.brokerstore.tool import run


@pytest.fixture
def rabbit(fixture_store: Any) -> Path:
    return Path(fixture_store("rabbitmq-clean").folder.parent / "vhost")


def next_command(talk: str) -> list[str]:
    """Return the arguments of the command that the last line names."""
    return talk.splitlines()[-1].partition("run: brokerstore ")[2].partition("  (")[0].split()


def test_an_offset_inside_a_message_does_not_call_the_store_corrupt(tmp_path: Path) -> None:
    """An operator would repair a healthy store; the answer names the message around the offset instead."""
    log = Log(tmp_path)
    for offset, begins in ((1, 0), (log.offsets[3] + 7, log.offsets[3]), (65535, log.in_file(1)[0])):
        ran = run("get", "--at", offset, log.store)
        assert (ran.code, "StoreCorrupt" in ran.talk, "verify" in ran.talk) == (1, False, False)
        assert run(*next_command(ran.talk), "--json").json["physical_offset"] == begins
    ran = run("get", "--at", log.end_offset, log.store)
    assert (ran.code, f"the log ends at {log.end_offset}" in ran.talk) == (1, True)
    log.put(log.offsets[3], "magic", 0)
    ran = run("get", "--at", log.offsets[3] + 7, log.store)
    assert (ran.code, "StoreCorrupt" in ran.talk, "brokerstore verify" in ran.talk) == (1, True, True)


def test_an_offset_past_the_end_of_a_queue_does_not_advise_verify(fixture_store: Any, rabbit: Path) -> None:
    """Nothing is wrong; `ls` shows the offsets that exist."""
    for arguments in (
        ["--topic", "HotTopic", "--queue", 0, "--offset", 10**6, fixture_store("plain").store],
        ["--queue", "q.mixed", "--offset", 10**6, rabbit],
        ["--id", "00" * 16, rabbit],
    ):
        ran = run("get", *arguments)
        assert (ran.code, ran.out, "verify" in ran.talk) == (1, "", False)
        assert run(*next_command(ran.talk)).code == 0


@pytest.mark.parametrize("name", ["IPv4", "IPv6"])
def test_a_unique_key_is_not_taken_for_an_offset(fixture_store: Any, name: str) -> None:
    """A unique key holds no offset; `query` finds the message by it."""
    store = fixture_store("broker-live").store
    rows = run("dump", "--json", "--topic", "LiveTran", store).lines
    key = rows[0]["properties"]["UNIQ_KEY"] if name == "IPv6" else "7F00000177E95FFD2B2765EB73C50000"
    for arguments in (["decode-id", key], ["get", "--id", key, store], ["DecodeMessageId", "-i", key]):
        ran = run(*arguments)
        assert (ran.code, ran.out, "UNIQ_KEY" in ran.talk) == (2, "", True)
        assert f"run: brokerstore query DIR TOPIC {key}" in ran.talk
    if name == "IPv6":
        for command in (["query", store, "LiveTran", key], ["queryMsgByUniqueKey", store, "-t", "LiveTran", "-i", key]):
            assert rows[0] in run(*command, "--json").lines


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_mistyped_name_is_reported(fixture_store: Any, rabbit: Path, as_json: list[str]) -> None:
    """An empty answer looks like an empty topic; stderr reports that nothing matches."""
    store = fixture_store("broker-live").store
    for arguments, shown in (
        (["dump", "--topic", "NoSuch", store], "no message matches"),
        (["dump", "--queue", "nosuch", rabbit], "no message matches"),
        (["query", store, "NoTopic", "x"], "no topic 'NoTopic'"),
        (["query", store, "LiveTran", "nokey"], "no message of topic 'LiveTran' has the key 'nokey'"),
        (["offsets", "show", store, "--group", "nosuch"], "no offsets of group 'nosuch'"),
        (["offsets", "show", store, "--topic", "nosuch"], "no offsets of topic 'nosuch'"),
    ):
        ran = run(*arguments, *as_json)
        assert (ran.code, shown in ran.talk) == (0, True), arguments
        assert run(*ran.talk.partition("run: brokerstore ")[2].partition("  (")[0].split()).code == 0
    for arguments in (["dump", store, "--topic", "LiveTran"], ["dump", store, "--limit", "0"], ["dump", rabbit, "--limit", "0"],
                      ["offsets", "show", store]):  # fmt: skip
        assert run(*arguments, *as_json).talk == ""


@pytest.mark.parametrize(
    "line",
    ["stats R --by hour", "verify R --log-only", "recover R --truncate", "recover R --skip-bad", "recover R --follow-links",
     "dump P --from-offset 9 --to-offset 3", "dump R --from-offset 9 --to-offset 3", "query P T k --begin 9 --end 3",
     "export P --begin 2024-01-02 --end 2024-01-01"],
)  # fmt: skip
def test_an_option_without_effect_is_wrong_use(fixture_store: Any, rabbit: Path, line: str) -> None:
    """An option that has no effect is wrong use, because the answer would be about something else."""
    words = {"P": str(fixture_store("plain").store), "R": str(rabbit)}
    ran = run(*(words.get(word, word) for word in line.split()))
    assert (ran.code, ran.out) == (2, "")
    assert next(word for word in line.split() if word.startswith("--")) in ran.talk


def test_a_log_that_cannot_be_followed_shows_no_rows(fixture_store: Any) -> None:
    """The command is refused before it prints a row."""
    ran = run("tail", "-f", fixture_store("plain").store / "commitlog")
    assert (ran.code, ran.out) == (3, "")


def test_one_of_two_virtual_hosts_must_be_named(tmp_path: Path) -> None:
    """The hint is `--vhost`, which `diff` accepts too."""
    for name, vhost in (("A1", "one"), ("B2", "two")):
        with RabbitStore.open(tmp_path / "node" / "msg_stores" / "vhosts" / name, "a", vhost=vhost) as store:
            store.declare_queue("q")
            store.publish("q", vhost.encode())
            store.sync()
    shutil.copytree(tmp_path / "node", tmp_path / "other")
    for command in (["info"], ["diff", tmp_path / "other"]):
        ran = run(*command, tmp_path / "node")
        assert (ran.code, "--vhost NAME" in ran.talk) == (3, True)
    assert run("diff", "--vhost", "two", tmp_path / "node", tmp_path / "other").code == 0


def test_mqadmin_command_names_give_the_same_output(fixture_store: Any) -> None:
    """The names of `mqadmin` give the same answers."""
    store = fixture_store("plain").store
    for theirs, ours in (
        (["printMsgByQueue", store, "-t", "HotTopic", "-i", 0], ["dump", store, "--topic", "HotTopic", "--queue", 0]),
        (["consumeMessage", store, "-t", "HotTopic", "-i", 0, "-o", 3, "-c", 2],
         ["get", store, "--topic", "HotTopic", "--queue", 0, "--offset", 3, "--count", 2]),
        (["queryCq", store, "-t", "HotTopic", "-q", 0, "-i", 3, "-c", 2],
         ["get", store, "--topic", "HotTopic", "--queue", 0, "--offset", 3, "--count", 2]),
        (["DecodeMessageId", "-i", "0A01020300002A9F0000000000000000"], ["decode-id", "0A01020300002A9F0000000000000000"]),
    ):  # fmt: skip
        ran = run(*theirs)
        assert ran.out
        assert ran == run(*ours)
    rows = run("ls", "--json", store).json["queues"]
    found = run("topicStatus", store, "-t", "SpreadTopic", "--json").json["queues"]
    assert found == [row for row in rows if row["topic"] == "SpreadTopic"] != rows


def test_an_id_of_another_broker_does_not_call_the_store_corrupt(tmp_path: Path) -> None:
    """The id has the address of the broker that stored the message; both addresses are named."""
    with MessageStore.open(tmp_path, "x") as store:
        found = store.put("t", b"one").message_id
    assert run("get", "--id", found, tmp_path).code == 0
    other = "0A0B0C0D00002A9F" + found[16:]
    refused = run("get", "--id", other, tmp_path)
    assert refused.code == 1 and "10.11.12.13:10911" in refused.talk and "orrupt" not in refused.talk
    assert f"run: brokerstore get {tmp_path} --at 0" in refused.talk
    assert run("get", "--at", 0, tmp_path).code == 0
