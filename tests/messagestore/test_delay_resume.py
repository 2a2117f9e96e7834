"""Delivered messages are found in the log, wherever it was copied and however a delivery differs from what waited."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.messagestore.kit import Clock, crash_copy, open_idle
from tests.messagestore.test_delays import deliver
from tests.messagestore.test_replication import replicate

WITH_LMQ = {"INNER_MULTI_DISPATCH": "%LMQ%a"}
NO_LMQ = {"INNER_MULTI_DISPATCH": "no such name"}
BATCH = {"INNER_NUM": "3"}
PLAIN: dict[str, str] = {}
LEVELS = 18


def put_waiting(world: Any, store: Any, body: bytes, properties: dict[str, str], **fields: Any) -> None:
    """Put a message as a broker does, without checking whether it can be delivered."""
    sys_flag = 0x80 if properties is BATCH else 0
    message = world.commitlog.Message(
        "T", body, queue_id=0, sys_flag=sys_flag, properties={"DELAY": "1", **properties}, **fields
    )
    scheduled = world.module("messagestore.broker.services.delay_messages").scheduled
    waiting = scheduled(message, world.commitlog.encode_properties(message), 0, 1, LEVELS)
    for topic in ("T", waiting.topic):
        store.engine.admission.admit(topic)
    store.engine.log.appender.append(waiting, waiting.queue_id)
    store.engine.settle()


def bodies(store: Any) -> list[bytes]:
    store.engine.settle()
    return [message.body for message in store.read("T", 0)]


def make_topic(store: Any, is_batch: bool = False) -> None:
    store.create_topic("T", 1, attributes={"queue.type": "BatchCQ"} if is_batch else None)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_delayed_batch_comes_after_a_restart(world: Any, tmp_path: Path, is_killed: bool) -> None:
    """A record of a topic with batch queues is delivered after the next open."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        make_topic(store, is_batch=True)
        put_waiting(world, store, b"three", BATCH)
        folder = crash_copy(tmp_path / "s", tmp_path / "killed") if is_killed else tmp_path / "s"
    clock.now_ms += 1000
    with open_idle(world, folder, clock) as store:
        deliver(store)
        assert bodies(store) == [b"three"]
        assert store.max_offset("T", 0) == 3


def test_delivery_does_not_recreate_a_deleted_topic(world: Any, tmp_path: Path) -> None:
    """The topic was deleted while a message waited; the delivery must not bring it back with its queues."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        make_topic(store)
        put_waiting(world, store, b"late", PLAIN)
    with open_idle(world, tmp_path / "s", clock) as store:
        store.engine.topics.delete("T")
        store.engine.topics.persist()
        clock.now_ms += 1000
        deliver(store)
        assert store.engine.topics.get("T") is None
        assert "T" not in store.topics()


@pytest.mark.parametrize(
    ("is_batch", "properties"),
    [
        (False, [PLAIN, PLAIN]),
        (True, [PLAIN, PLAIN]),
        (True, [BATCH, BATCH]),
        (False, [WITH_LMQ, WITH_LMQ]),
        (False, [NO_LMQ, PLAIN, PLAIN]),
        (False, [PLAIN, NO_LMQ, NO_LMQ, WITH_LMQ, PLAIN]),
        (False, [BATCH, PLAIN]),
    ],
)
def test_delivery_of_any_kind_is_not_repeated_after_a_kill(
    world: Any, tmp_path: Path, is_batch: bool, properties: list[dict[str, str]]
) -> None:
    """Deliveries to batch queues, to LMQs, or behind a message that cannot be put are not repeated."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock, enable_lmq=True) as store:
        make_topic(store, is_batch)
        for number, pairs in enumerate(properties):
            put_waiting(world, store, b"%d" % number, pairs)
        clock.now_ms += 1000
        deliver(store)
        expected = bodies(store)
        put_waiting(world, store, b"later", PLAIN)
        copy = crash_copy(tmp_path / "s", tmp_path / "killed")
    assert len(expected) >= 1
    with open_idle(world, copy, clock, enable_lmq=True) as store:
        deliver(store)
        assert bodies(store) == expected
        clock.now_ms += 1000
        deliver(store)
        assert bodies(store) == [*expected, b"later"]


def test_one_of_several_equal_messages_was_delivered_by_a_broker(world: Any, tmp_path: Path) -> None:
    """Its delivery must not count for another one, which would be skipped with everything before it."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        put_waiting(world, store, b"twin", PLAIN, born_timestamp_ms=5)
        clock.now_ms += 900
        for body in (b"twin", b"other", b"twin"):
            put_waiting(world, store, body, PLAIN, born_timestamp_ms=5)
        clock.now_ms += 100
        deliver(store)
        store.engine.delays.persist()
        copy = crash_copy(tmp_path / "s", tmp_path / "killed")
    (copy / "brokerstore" / "delays.json").unlink()  # no broker writes one
    clock.now_ms += 900
    with open_idle(world, copy, clock) as store:
        deliver(store)
        assert bodies(store) == [b"twin", b"twin", b"other", b"twin"]


def copy_of_master(folder: Path, target: Path) -> None:
    """Copy a running master as an operator does for a new slave."""
    shutil.copytree(folder, target)
    (target / "abort").unlink()


@pytest.mark.parametrize("is_seeded", [False, True])
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_promoted_slave_goes_on_where_its_master_was(world: Any, tmp_path: Path, rounds: int, is_seeded: bool) -> None:
    """After a clean stop it must not repeat its master's deliveries."""
    clock, role = Clock(), world.messagestore.Role
    for number in range(rounds):
        with open_idle(world, tmp_path / "m", clock) as master:
            deliver(master)
            put_waiting(world, master, b"%d" % number, PLAIN)
            clock.now_ms += 1000
            deliver(master)
            if is_seeded and number == 0:
                master.engine.delays.persist()
                copy_of_master(tmp_path / "m", tmp_path / "s")
            put_waiting(world, master, b"late %d" % number, PLAIN)
            clock.now_ms += 1000
            expected = bodies(master)
            with open_idle(world, tmp_path / "s", clock, broker_role=role.SLAVE) as slave:
                replicate(master, slave)
    with open_idle(world, tmp_path / "s", clock) as promoted:
        deliver(promoted)
        assert bodies(promoted) == [*expected, b"late %d" % (rounds - 1)]
