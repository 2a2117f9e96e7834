"""A request whose answer was lost comes again, to the next owner or to the same one: it is carried out once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message, PutResult, PutStatus
from messagestore import FlushMode, MessageStore
from messagestore.shared._packing_cy import pack_message
from messagestore.shared.answers import unpack_answer, unpack_packed_result
from messagestore.shared.groups import GroupOpening, Origin, QueueClaim
from messagestore.shared.protocol import NO_CHECK, Operation, marked_again, pack_call, pack_frame, parse_frame
from messagestore.shared.service import Service
from storageio import InvalidMessage, PutRejected, StoreClosed
from tests.messagestore.kit import Clock
from tests.messagestore.support import put_internally
from tests.shared.processes import CONFIG

DAY_MS = 86_400_000
DELAYS: dict[str, dict[str, str]] = {
    "none": {}, "level": {"DELAY": "2"}, "seconds": {"TIMER_DELAY_SEC": "30"}, "milliseconds": {"TIMER_DELAY_MS": "30500"},
    "time": {"TIMER_DELIVER_MS": "1700000900000"}, "rolled": {"TIMER_DELAY_MS": str(3 * DAY_MS)},
}  # fmt: skip
PUTS: dict[str, Operation] = {"put": Operation.PUT, "put_async": Operation.PUT_EACH, "put_many": Operation.PUT_MANY}


class Owner:
    """An owner's service, whose housekeeper does nothing by itself."""

    def __init__(self, folder: Path, clock: Clock, **changes: Any) -> None:
        self.store = MessageStore.open(folder, "a", CONFIG.but(mapped_file_size_timer_log=1000, **changes), clock=clock)
        self.store.engine.housekeeper.thread.stop()
        self.service = Service(self.store)

    def invoke(self, data: bytes) -> Any:
        """Return the answer to a request."""
        found = unpack_answer(parse_frame(self.service.answer(parse_frame(data))))
        return found[0] if isinstance(found, list) and len(found) == 1 else found

    def deliver(self) -> None:
        """Deliver everything that is due."""
        for _ in range(10_000):
            self.store.engine.settle()
            with self.store.engine.housekeeper.guard:
                if self.store.engine.deliver_due():
                    break
        self.store.engine.settle()

    def records(self, key: str) -> list[tuple[str, int]]:
        """Return topic and physical offset of the records of one message."""
        self.store.flush()
        messages = self.store.follow(timeout_s=0)
        return [(one.topic, one.physical_offset) for one in messages if one.all_properties.get("UNIQ_KEY") == key]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Owner]]:
    """Return a function that opens the store in place of an earlier owner."""
    owners: list[Owner] = []
    clock = Clock()

    def open_again(**changes: Any) -> Owner:
        if owners:
            owners[-1].service.end_waits()
            owners[-1].store.close()
        owners.append(Owner(tmp_path / "s", clock, **changes))
        return owners[-1]

    open_again.clock = clock  # type: ignore[attr-defined]
    yield open_again
    for owner in owners[-1:]:
        owner.service.end_waits()
        owner.store.close()


@pytest.mark.parametrize("mode", list(FlushMode))
@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize("way", PUTS)
def test_a_repeated_put_is_stored_and_delivered_once(
    opened: Callable[..., Owner], way: str, delay: str, mode: FlushMode
) -> None:
    """At the same owner, at the next one, after a roll to a later slot, and after the delivery."""
    clock: Clock = opened.clock  # type: ignore[attr-defined]
    owner = opened(flush_disk_type=mode)
    message = Message("T", b"x", queue_id=1, properties={"WAIT": "false"} | DELAYS[delay])
    data = pack_frame(PUTS[way], pack_message(message, "KEY"))
    first: PutResult = owner.invoke(data)
    again = marked_again(data)

    def assert_once(count: int) -> PutResult:
        result: PutResult = owner.invoke(again)
        assert len(owner.records("KEY")) == count
        assert (result.message_count, result.status.name) == (1, "PUT_OK")
        return result

    assert assert_once(1).physical_offset == first.physical_offset
    owner = opened(flush_disk_type=mode)
    assert assert_once(1).physical_offset == first.physical_offset
    if delay == "none":
        return
    for _ in range(4 if delay == "rolled" else 1):
        clock.now_ms += DAY_MS
        owner.deliver()
        assert_once(len(owner.records("KEY")))
    topics = [topic for topic, _ in owner.records("KEY")]
    assert topics.count("T") == 1
    assert len(topics) == (3 if delay == "rolled" else 2)
    owner = opened(flush_disk_type=mode)
    clock.now_ms += DAY_MS
    owner.deliver()
    assert owner.invoke(again).physical_offset == owner.records("KEY")[-1][1]
    owner.deliver()
    assert len(owner.records("KEY")) == len(topics)


@pytest.mark.parametrize("options", [{"flush_disk_type": FlushMode.SYNC}, {"transient_store_pool_enable": True}])
def test_a_put_that_is_not_durable_yet_is_found_and_made_durable(opened: Callable[..., Owner], options: dict[str, Any]) -> None:
    """Its record is not in a queue yet: it waits for a sync, or is in the pool's memory."""
    owner = opened(**options)
    for thread in owner.store.engine.flusher.threads:
        thread.stop()
    data = pack_frame(Operation.PUT, pack_message(Message("T", b"x", properties={"WAIT": "false"}), "KEY"))
    first = owner.invoke(data)
    end = first.physical_offset + first.size_bytes
    assert owner.store.engine.flusher.flushed_offset < end
    assert owner.invoke(marked_again(data)).physical_offset == first.physical_offset
    assert owner.store.engine.flusher.flushed_offset >= end
    assert len(owner.records("KEY")) == 1


@pytest.mark.parametrize("way", PUTS)
def test_a_different_message_with_the_same_key_is_not_a_duplicate(opened: Callable[..., Owner], way: str) -> None:
    """Its KEYS have what is the UNIQ_KEY of the message that an earlier owner did not store."""
    owner = opened()
    for topic in ("T", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"):
        put_internally(owner.store, Message(topic, b"other", keys="KEY"))
    owner.invoke(marked_again(pack_frame(PUTS[way], pack_message(Message("T", b"x", queue_id=0), "KEY"))))
    assert [message.body for message in owner.store.read("T", 0)] == [b"other", b"x"]


def test_a_repeated_batch_puts_only_the_missing_messages(opened: Callable[..., Owner]) -> None:
    """The owner ended between two; the result is that of the first, and counts all."""
    owner = opened()
    packed = [pack_message(Message("T", b"%d" % number, queue_id=0), f"KEY{number}") for number in range(4)]
    first = owner.invoke(pack_frame(Operation.PUT_MANY, b"".join(packed[:2])))
    result = owner.invoke(marked_again(pack_frame(Operation.PUT_MANY, b"".join(packed))))
    assert (result.physical_offset, result.message_count) == (first.physical_offset, 4)
    result = owner.invoke(marked_again(pack_frame(Operation.PUT_MANY, b"".join(packed))))
    assert (result.physical_offset, result.message_count) == (first.physical_offset, 4)
    assert [message.body for message in owner.store.read("T", 0)] == [b"0", b"1", b"2", b"3"]


def test_a_repeated_commit_names_the_committed_message(opened: Callable[..., Owner]) -> None:
    """Other messages of the topic have its key: two that were put, and the one of another transaction."""
    owner = opened()
    owner.store.put(Message("T", b"before", keys="KEY", queue_id=0))
    owner.store.put(Message("T", b"same", properties={"UNIQ_KEY": "KEY"}, queue_id=0))
    owner.store.begin_transaction(Message("T", b"other", keys="KEY", queue_id=0)).commit()
    begin = pack_call("begin", "producers", messages=pack_message(Message("T", b"x", queue_id=0), "KEY"))
    half, key = owner.invoke(begin)
    assert owner.invoke(marked_again(begin)) == [half, key] == [half, "KEY"]
    commit = pack_call("commit", unpack_packed_result(half).queue_offset, "T", "KEY")
    first = unpack_packed_result(owner.invoke(commit))
    owner = opened()
    again = unpack_packed_result(owner.invoke(marked_again(commit)))
    assert again.physical_offset == first.physical_offset
    assert [message.body for message in owner.store.read("T", 0)] == [b"before", b"same", b"other", b"x"]
    found = owner.store.message_at(again.physical_offset)
    assert found is not None and found.body == b"x"


def test_a_repeated_begin_is_not_matched_with_another_transaction(opened: Callable[..., Owner]) -> None:
    """A half message whose KEYS have the same text was there before."""
    owner = opened()
    other = owner.store.begin_transaction(Message("T", b"other", keys="KEY", queue_id=0))
    begin = pack_call("begin", "producers", messages=pack_message(Message("T", b"x", queue_id=0), "KEY"))
    half = unpack_packed_result(owner.invoke(marked_again(begin))[0])
    assert half.physical_offset != other.half.physical_offset
    assert len(owner.store.undecided_transactions()) == 2


def test_a_refused_put_of_the_missing_messages_is_the_result(opened: Callable[..., Owner]) -> None:
    """Although the first was stored by an earlier owner."""
    owner = opened()
    good, bad = pack_message(Message("T", b"0"), "KEY0"), pack_message(Message("a b", b"1"), "KEY1")
    owner.invoke(pack_frame(Operation.PUT_MANY, good))
    result = owner.invoke(marked_again(pack_frame(Operation.PUT_MANY, good + bad, NO_CHECK)))
    assert result.status is PutStatus.MESSAGE_ILLEGAL


@pytest.mark.parametrize("mode", list(FlushMode))
def test_each_of_several_pipelined_puts_has_its_own_outcome(opened: Callable[..., Owner], mode: FlushMode) -> None:
    """A refusal between them is an error of that one."""
    owner = opened(flush_disk_type=mode)
    messages = [Message("T", b"0"), Message("a b", b"1"), Message("T", b"2")]
    packed = [pack_message(message, f"KEY{number}") for number, message in enumerate(messages)]
    first, refused, last = owner.invoke(pack_frame(Operation.PUT_EACH, b"".join(packed)))
    assert isinstance(refused, PutRejected)
    assert (first.status, last.status) == (PutStatus.PUT_OK, PutStatus.PUT_OK)


def test_a_message_is_sent_back_by_its_offset(opened: Callable[..., Owner]) -> None:
    """An offset without a record sends nothing; an unknown consumer has to open again."""
    owner = opened()
    owner.store.put("T", b"x", queue_id=0)
    groups = owner.service.groups
    groups.open("id", GroupOpening("T", "G", None, None, "first", "wait", 0), [], Origin("", None))
    (position,), *_ = groups.poll("id", 1, False, Origin("", None))  # type: ignore[misc]
    assert owner.service._nack("id", position + 1, 0) == [None]
    (packed,) = owner.service._nack("id", position, 18)  # type: ignore[misc]
    assert unpack_packed_result(packed).status is PutStatus.PUT_OK  # type: ignore[arg-type]
    assert owner.service._nack("other", position, 0) is None


def test_claims_move_the_offsets_of_ordinary_topics_forward(opened: Callable[..., Owner]) -> None:
    """Not back, not after a seek, and not those of retry topics, which are counted elsewhere."""
    owner = opened()
    owner.store.create_topic("T", 1)
    offsets = owner.store.engine.consumer_offsets()
    for topic, done, expected in (("T", 5, 5), ("T", 3, 5), ("T", -1, 5), ("%RETRY%G", 7, None)):
        owner.service.groups._commit("G", QueueClaim(topic, 0, 9, [], done, False))
        assert offsets.get(topic, "G", 0) == expected


def test_a_pipelined_put_interrupted_by_the_end_of_the_owner_has_no_outcome(
    opened: Callable[..., Owner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends instead, so that the put is repeated at the next owner."""
    owner = opened(flush_disk_type=FlushMode.SYNC)
    interrupted: Future[PutResult] = Future()
    interrupted.set_exception(StoreClosed("closed meanwhile"))
    monkeypatch.setattr(MessageStore, "put_async", lambda *_: interrupted)
    with pytest.raises(StoreClosed):
        owner.invoke(pack_frame(Operation.PUT_EACH, pack_message(Message("T", b"x"), "KEY")))


def test_a_roll_back_of_an_unknown_message_is_refused_unless_it_is_repeated(opened: Callable[..., Owner]) -> None:
    """The earlier owner had rolled it back then, and the mark of it is all that is left."""
    owner = opened()
    data = pack_call("roll_back", 7)
    with pytest.raises(InvalidMessage):
        owner.invoke(data)
    assert owner.invoke(marked_again(data)) is None
