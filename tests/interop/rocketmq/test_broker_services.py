"""Transactions, delays and retries begun in our store and continued by a real broker, for real clients."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.repair.verification import verify_store

from .folders import SIZES, ours
from .jvm import prepare_or_skip, why_not
from .real_broker import RealBroker, until
from .test_broker_config import QUICK_LEVELS, bodies, text

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]
CONFIG = ours(message_delay_level=QUICK_LEVELS, deliver_delayed=False)
PRODUCERS = "interop-transactions"  # the real producer's group
SETTINGS: dict[str, Any] = SIZES | {
    "messageDelayLevel": QUICK_LEVELS,
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 5000,
    "transactionOpBatchInterval": 50,
}


class Passed:
    """Our folder after a real broker continued it and was killed, and what its clients received."""

    def __init__(self, folder: Path) -> None:
        self.store = folder
        self.facts: dict[str, Any] = {}


def begin_here(folder: Path) -> None:
    """Write delayed messages, transactions and sent-back messages; some stay undue or undecided."""
    with MessageStore.open(folder, config=CONFIG) as store:
        for number in range(5):
            store.put(Message("later", b"later %d" % number, queue_id=1, keys=[f"l{number}"], properties={"DELAY": "1"}))
        for number in (5, 6):
            store.put(Message("later", b"later %d" % number, queue_id=0, properties={"DELAY": "18"}))
        for number in range(6):
            answer = {"answer": "COMMIT_MESSAGE" if number < 5 else "ROLLBACK_MESSAGE"}
            half = Message(
                "decided", b"decided %d" % number, queue_id=number % 2, keys=[f"d{number}"], tags="t", properties=answer
            )
            transaction = store.begin_transaction(half, producer_group=PRODUCERS)
            if number in (0, 1):
                transaction.commit()
            elif number == 2:
                transaction.rollback()
        assert [half.message.body for half in store.undecided_transactions()] == [
            b"decided %d" % number for number in (3, 4, 5)
        ]
        store.put_many([Message("failing", b"failing %d" % number, queue_id=0) for number in range(3)])
        with store.consumer("failing", group="G_here", timeout_s=5) as consumer:
            first, second, third = (next(consumer) for _ in range(3))
            assert consumer.nack(first) is not None
            assert consumer.nack(second, delay_level=-1) is not None
            consumer.ack(third)


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Passed]:
    prepare_or_skip()
    root = tmp_path_factory.mktemp("passed")
    made = Passed(root / "store")
    begin_here(made.store)
    with RealBroker(made.store, root / "broker", **SETTINGS) as broker:
        broker.invoke("send_transaction", messages=[text("decided", 99, 0, decision="COMMIT_MESSAGE")])
        until(lambda: len(broker.invoke("read", topic="later")) >= 5, "what waited here is delivered")
        until(lambda: len(set(bodies(broker.invoke("read", topic="decided")))) >= 5, "what was undecided here is decided")
        made.facts["retried"] = broker.invoke("subscribe", topic="failing", group="G_here", count=1, patience_ms=60_000)
        for topic in ("later", "decided", "%DLQ%G_here"):
            made.facts[topic] = broker.invoke("read", topic=topic)
        made.facts["query"] = broker.invoke("query", requested=[["decided", "d0"], ["decided", "d2"], ["later", "l3"]])
        broker.kill()
    yield made
    shutil.rmtree(root)


def test_a_real_broker_delivers_the_delayed_messages_of_our_store(passed: Passed) -> None:
    """Each message comes once, in its topic and queue; those not due do not come."""
    assert bodies(passed.facts["later"]) == [f"later {number}" for number in range(5)]
    assert {one["queue_id"] for one in passed.facts["later"]} == {1}


def test_a_real_broker_checks_the_pending_transactions_of_our_store(passed: Passed) -> None:
    """It checks them with the producer group, some twice if its own op records come late, but never those decided before."""
    found = bodies(passed.facts["decided"])
    assert set(found) == {f"decided {number}" for number in (0, 1, 3, 4, 99)}
    assert [found.count(f"decided {number}") for number in (0, 1, 99)] == [1, 1, 1]
    assert [len(offsets) for offsets in passed.facts["query"]] == [1, 0, 1]


def test_a_real_consumer_gets_what_was_sent_back_in_our_store(passed: Passed) -> None:
    """One of three messages comes again with its count, one is a dead letter, one is done."""
    assert bodies(passed.facts["retried"]) == ["failing 0"]
    assert [one["reconsume_times"] for one in passed.facts["retried"]] == [1]
    assert bodies(passed.facts["%DLQ%G_here"]) == ["failing 1"]


def test_our_store_continues_after_a_killed_broker(passed: Passed, tmp_path: Path) -> None:
    """Nothing is delivered twice, no decision is lost, and undue messages still wait."""
    folder = tmp_path / "store"
    shutil.copytree(passed.store, folder)
    with MessageStore.open(folder, "r+", CONFIG.but(deliver_delayed=True)) as store:
        undecided = {half.message.body for half in store.undecided_transactions()}  # the last op records may come late
        assert undecided <= {b"decided %d" % number for number in (3, 4, 5)}
        store.put(Message("later", b"later 7", queue_id=1, properties={"DELAY": "1"}))
        until(lambda: b"later 7" in [message.body for message in store.read("later", 1)], "our own is delivered")
        came = [message.body for queue_id in store.queue_ids("later") for message in store.read("later", queue_id)]
        assert came == [b"later %d" % number for number in (0, 1, 2, 3, 4, 7)]
        waiting = [message.body for message in store.read("SCHEDULE_TOPIC_XXXX", 17)]
        assert waiting == [b"later 5", b"later 6"]
    assert not verify_store(str(folder), CONFIG).problems
