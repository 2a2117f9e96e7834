"""The state of POP consumers in a folder of a real 5.3.3 broker, and of messages that vary it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from commitlog.walk import LogFiles
from consumequeue import ConsumeQueues
from messagestore import MessageStore
from messagestore.broker.services.pop_state import PopState, read_pop_state
from storageio import REAL_DISK, StoreCorrupt
from tests.brokerstore.schema import check_schema
from tests.brokerstore.tool import run
from tests.messagestore.support import put_internally
from tests.stores import small_config

REVIVE = "rmq_sys_REVIVE_LOG_peer"
COMMITTED = {0: 2, 1: 1}  # the last finished checkpoints, of the fixture's consumerOffset.json
CONFIG = small_config(max_hash_slot_num=500, max_index_num=2000)


def bodies(expected: dict[str, Any], committed: dict[int, int]) -> list[tuple[str, dict[str, Any]]]:
    """Return tag and body of what the revive service has before it, from the real store's list of messages."""
    rows = expected["messages"]
    arrived = {(row["properties"]["UNIQ_KEY"], row["body"]) for row in rows if row["topic"] == REVIVE}
    found = []
    for row in rows:
        is_due = row["topic"] == REVIVE and row["queueOffset"] > committed.get(row["queueId"], -1)
        waits = row["properties"].get("REAL_TOPIC") == REVIVE and (row["properties"]["UNIQ_KEY"], row["body"]) not in arrived
        if is_due or waits:
            found.append((row["properties"]["TAGS"], json.loads(base64.b64decode(row["body"]))))
    return found


def left_by_the_log(found: list[tuple[str, dict[str, Any]]]) -> dict[str, list[int]]:
    """Return the revive times of messages without acknowledgement, by topic."""
    names = ("t", "c", "q", "so", "pt", "bn")
    acks = {(*(body[name] for name in names), body["ao"]) for tag, body in found if tag == "ack"}
    left: dict[str, list[int]] = {}
    for tag, body in found:
        for one in body["d"] if tag == "ck" else ():
            if (*(body[name] for name in names), body["so"] + one) not in acks:
                left.setdefault(body["t"], []).append(body["reviveTime"])
    return left


@pytest.mark.parametrize("committed", [COMMITTED, {}])
def test_pop_lag_counts_delivered_and_unacknowledged_messages(fixture_store: Any, committed: dict[int, int]) -> None:
    """The group never acknowledged 6 of 60 messages; they were revived, and taken again. One of 12 more is under way.

    If the revive service had committed nothing, it would read the checkpoints of the first 6 again.
    """
    fixture = fixture_store("broker-pop", own=True)
    if not committed:
        path = fixture.store / "config" / "consumerOffset.json"
        path.write_text(path.read_text().replace("CID_RMQ_SYS_REVIVE_GROUP", "another"))
    left = left_by_the_log(bodies(fixture.expected("recovered.json"), committed))
    assert {topic: len(times) for topic, times in left.items()} == {
        "%RETRY%G_pop_PopTopic": 6, "PopTopic": 1 if committed else 7,
    }  # fmt: skip
    expected = [
        {"topic": topic, "group": "G_pop", "ready": 0, "unacknowledged": len(times), "next_revive_ms": min(times)}
        for topic, times in sorted(left.items())
    ]
    for command in ("ls", "stats"):
        ran = run(command, "--json", fixture.store)
        assert (ran.code, ran.json["pop"]) == (0, expected)
        check_schema(command, ran.json)
    assert "POP consumers" in run("report", fixture.store).out


def test_a_store_without_pop_consumers_has_no_such_key(fixture_store: Any) -> None:
    """A broker without POP groups, and a store without a broker."""
    for name in ("plain", "broker-live", "broker-timer"):
        assert "pop" not in run("ls", "--json", fixture_store(name).store).json


def checkpoint(offsets: list[int], **changes: Any) -> tuple[str, dict[str, Any]]:
    own = {
        "t": "T",
        "c": "G",
        "q": 0,
        "so": 10,
        "pt": 5,
        "bn": "b",
        "d": offsets,
        "bm": 0,
        "n": len(offsets),
        "reviveTime": 900,
    }
    return "ck", own | changes


def ack(tag: str = "ack", **changes: Any) -> tuple[str, dict[str, Any]]:
    return tag, {"t": "T", "c": "G", "q": 0, "so": 10, "pt": 5, "bn": "b"} | changes


def state(folder: Path, messages: list[tuple[str, Any]], committed: int | None = None) -> PopState:
    """Write these messages into the revive topic, commit an offset of its reader, and read their state."""
    with MessageStore.open(folder, "a", CONFIG) as store:
        store.put_many([Message("T", b"x", queue_id=0) for _ in range(20)])
        for tag, body in messages:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            put_internally(store, Message(REVIVE, data, tags=tag))
    if committed is not None:
        table = {"offsetTable": {f"{REVIVE}@CID_RMQ_SYS_REVIVE_GROUP": {"0": committed}}}
        (folder / "config" / "consumerOffset.json").write_text(json.dumps(table))
    queues = ConsumeQueues(REAL_DISK, str(folder / "consumequeue"), writable=False, file_size_bytes=2000)
    try:
        return read_pop_state(REAL_DISK, str(folder), LogFiles(REAL_DISK, [str(folder / "commitlog")]), queues)
    finally:
        queues.close()


def test_acknowledgements_count_for_their_checkpoint_only(tmp_path: Path) -> None:
    """In any order, one by one or several; bits of the checkpoint count too; another queue or time does not."""
    found = state(
        tmp_path,
        [
            ack(ao=10),
            checkpoint([0, 1, 2, 3, 4, 5, 6], bm=0b10),
            ack("bAck", aol=[12, 13]),
            ack(ao=14, q=1),
            ack(ao=15, pt=6),
            ack(ao=99),
            checkpoint([0], so=30, reviveTime=800),
        ],
    )
    assert found.unreadable == 0
    assert found.lags == [("T", "G", 20, 4, 800)]  # 14, 15, 16 and 30


def test_the_committed_offset_is_that_of_the_last_finished_checkpoint(tmp_path: Path) -> None:
    """The real broker's reader continues one after it (PopReviveService)."""
    messages = [checkpoint([0, 1]), checkpoint([0], so=20)]
    assert state(tmp_path / "none", messages).lags == [("T", "G", 20, 3, 900)]
    assert state(tmp_path / "first", messages, 0).lags == [("T", "G", 20, 1, 900)]
    assert state(tmp_path / "all", messages, 1).lags == []


@pytest.mark.parametrize(
    "message",
    [
        ("ck", b"{"), ("ck", b"\xff"), ("ck", b"[]"), ("ck", b"[" * 60_000), ("other", checkpoint([0])[1]),
        checkpoint([0], q="0"), checkpoint(["0"]), checkpoint([True]), checkpoint([0], so=1 << 63), checkpoint([0] * 1025),  # type: ignore[list-item]
        checkpoint([0], reviveTime=None), ack(), ack("bAck", aol=5), ack(ao=1.5),
    ],
)  # fmt: skip
def test_unreadable_pop_state_bodies_are_counted(tmp_path: Path, message: tuple[str, Any]) -> None:
    """A body that cannot be understood is no lag and no traceback."""
    found = state(tmp_path, [message, checkpoint([0])])
    assert found == ([("T", "G", 20, 1, 900)], 1)


@pytest.mark.parametrize("text", ['{"messageRequestModeMap":{"T":5}}', '{"messageRequestModeMap":{"T":{"G":{"mode":5}}}}'])
def test_a_damaged_table_of_modes_is_a_problem(tmp_path: Path, text: str) -> None:
    """The file is named, by the library and the tool."""
    state(tmp_path, [checkpoint([0])])
    (tmp_path / "config" / "messageRequestMode.json").write_text(text)
    with pytest.raises(StoreCorrupt, match=r"messageRequestMode\.json"):
        read_pop_state(REAL_DISK, str(tmp_path), LogFiles(REAL_DISK, [str(tmp_path / "commitlog")]), None)  # type: ignore[arg-type]
    ran = run("ls", tmp_path)
    assert ran.code == 1 and "messageRequestMode.json" in ran.talk
