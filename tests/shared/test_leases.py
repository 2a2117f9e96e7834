"""Consumers of other processes take and acknowledge messages of their queues without a request."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import FlushMode, MessageStore, SharedConsumer, SharedStore
from messagestore.broker.config import ack_file
from messagestore.broker.config.ack_file import AckFile, LeasedFile, LeasedWords, read_acks
from messagestore.shared.consumer import _Pace, _Track
from storageio import REAL_DISK, DiskError
from storageio.background import gather
from storageio.local_sockets import LocalSocket
from storageio.real_disk import RealFile
from tests.helpers import bodies, until
from tests.shared.processes import CONFIG, Child, Counters, open_shared, owning_child

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
COUNT = 20
KEY = ("T@G", 0)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedStore]:
    """Open a store that another process owns, with numbered messages in one queue; what follows an answer stays valid."""
    monkeypatch.setattr("messagestore.shared.consumer.AHEAD_S", 600.0)
    owner = owning_child(tmp_path / "s", lambda store: store.create_topic("T", 1))
    with open_shared(tmp_path / "s") as store:
        put(store, 0, COUNT)
        yield store
    owner.kill()


def put(store: SharedStore, start: int, stop: int) -> None:
    for number in range(start, stop):
        store.put(Message("T", b"%d" % number, queue_id=0))


def numbers(messages: list[Any]) -> list[int]:
    return [int(body) for body in bodies(messages)]


def one_by_one(consumer: SharedConsumer, count: int) -> list[Any]:
    return [message for _ in range(count) for message in consumer.poll(1, 5)]


def drained(folder: Path | str) -> list[int]:
    """Return the numbers of all messages that a new consumer of the group gets."""
    with MessageStore.open(folder, config=CONFIG) as store:
        consumer = store.consumer("T", group="G")
        return [number for page in iter(partial(consumer.poll, 1000), []) for number in numbers(page)]


def requests(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that gets every request of this process."""
    sent: list[bytes] = []
    send = LocalSocket.send
    monkeypatch.setattr(LocalSocket, "send", lambda self, data: (sent.append(data), send(self, data))[1])
    return sent


def test_one_request_is_enough_for_many_messages(served: SharedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken one by one in the order of the queue, and acknowledged; the owner and readers know each acknowledgement."""
    with served.consumer("T", group="G") as consumer:
        first = one_by_one(consumer, 1)
        assert consumer.ack(first[0])
        sent = requests(monkeypatch)
        for number in range(1, COUNT):
            (message,) = consumer.poll(1, 5)
            assert int(message.body) == number
            assert consumer.ack(message)
        assert sent == []
        with MessageStore.open(served.path, "r", config=CONFIG) as reader:
            assert reader.committed_offsets("T", "G") == {0: COUNT}
        assert served.committed_offsets("T", "G") == {0: COUNT}
        assert (consumer.lag(), consumer.position(0)) == (0, COUNT)
        assert served.put(Message("T", b"20", queue_id=0)).queue_offset == COUNT
        assert numbers(consumer.poll(5, 5)) == [COUNT]


@pytest.mark.parametrize("done", [0, 1, 7])
def test_a_kill_of_owner_and_worker_repeats_only_what_was_not_acknowledged(tmp_path: Path, done: int) -> None:
    """The acknowledgement is in the file of the store, whoever is killed before the owner looks there."""
    owner = owning_child(tmp_path / "s", lambda store: store.create_topic("T", 1))
    reached = Counters(1)

    def work() -> None:
        with open_shared(tmp_path / "s") as store:
            put(store, 0, COUNT)
            consumer = store.consumer("T", group="G")
            for message in one_by_one(consumer, 10)[:done]:
                assert consumer.ack(message)
            reached[0] = 1
            time.sleep(60)

    worker = Child(work)
    reached.wait_for(0, 1)
    owner.stop()  # so that it does not take over what the worker stored when that ends
    worker.kill()
    owner.kill()
    assert drained(tmp_path / "s") == list(range(done, COUNT))


def test_under_synchronous_flush_a_process_syncs_what_it_acknowledges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before `ack` returns; an error of the sync is the error of the acknowledgement."""
    config = CONFIG.but(flush_disk_type=FlushMode.SYNC)
    ready = Counters(1)

    def own() -> None:
        with open_shared(tmp_path / "s", config=config) as store:
            store.create_topic("T", 1)
            ready[0] = 1
            time.sleep(60)

    owner = Child(own)
    ready.wait_for(0, 1)
    synced: list[list[int]] = []

    def sync(file: RealFile) -> None:
        assert file.path.endswith("acks")
        found = read_acks(REAL_DISK, str(tmp_path / "s" / "brokerstore"), owner.process_id)
        synced.append([queue.next_offset for queue in found])
        if len(synced) == 3:
            raise DiskError("sync", file.path, 5, "broken")

    with open_shared(tmp_path / "s", config=config) as store:
        put(store, 0, COUNT)
        monkeypatch.setattr(RealFile, "sync", sync)
        with store.consumer("T", group="G") as consumer:
            found = one_by_one(consumer, 3)
            sent = requests(monkeypatch)
            assert consumer.ack(found[0])
            assert consumer.ack(found[1])
            with pytest.raises(DiskError, match="broken"):
                consumer.ack(found[2])
            assert synced == [[1], [2], [3]] and sent == []
    owner.kill()


def test_an_acknowledgement_between_two_owners_is_not_lost(tmp_path: Path) -> None:
    """The consumer claims it at the next owner, and its lease of the one before ends."""
    owner = owning_child(tmp_path / "s", lambda store: store.create_topic("T", 1))
    with open_shared(tmp_path / "s") as store:
        put(store, 0, COUNT)
        with store.consumer("T", group="G") as consumer:
            found = one_by_one(consumer, 10)
            owner.kill()
            for message in found:
                assert consumer.ack(message)
            assert numbers(one_by_one(consumer, 5)) == list(range(10, 15))
            assert until(lambda: store.is_owner) and consumer.lag() == 10
    assert drained(tmp_path / "s") == list(range(10, COUNT))


@pytest.mark.parametrize("held", [0, 3])
def test_a_consumer_that_joins_gets_what_was_not_taken(served: SharedStore, held: int) -> None:
    """When the first one holds nothing of the queue any more, though the last answer showed it all messages."""
    served.create_topic("U", 2)
    for number in range(COUNT + 1):
        served.put(Message("U", b"%d" % (number - 1), queue_id=int(number > 0)))
    with served.consumer("U", group="G") as first:
        taken = one_by_one(first, 4)
        assert numbers(taken) == [-1, 0, 1, 2]
        for message in taken[: 4 - held]:
            assert first.ack(message)
        with served.consumer("U", group="G") as second:
            assert numbers(second.poll(1, 0.2)) == [3] * (not held)
            for message in taken[4 - held :]:
                assert first.ack(message)
            assert first.poll(1, 0.05) == []
            start = 3 if held else 4
            assert numbers(one_by_one(second, COUNT - start)) == list(range(start, COUNT))
            assert (first.queues, second.queues) == ([0], [1])


def test_a_message_that_is_taken_while_its_queue_is_given_away_goes_to_the_other(
    served: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """The owner saw that it was taken, but the lease was over before the first consumer delivered it."""
    served.create_topic("U", 2)
    for number in range(4):
        served.put(Message("U", b"%d" % number, queue_id=int(number > 0)))
    store_position = LeasedWords.store_position
    others: list[SharedConsumer] = []

    def store_and_join(words: LeasedWords, offset: int) -> None:
        store_position(words, offset)
        others.append(served.consumer("U", group="G"))
        assert others[0].poll(1, 0.1) == []

    with served.consumer("U", group="G") as first:
        for message in one_by_one(first, 2):
            assert first.ack(message)
        with monkeypatch.context() as patched:
            patched.setattr(LeasedWords, "store_position", store_and_join)
            assert first.poll(1, 0.05) == []
        with others[0] as second:
            assert numbers(one_by_one(second, 2)) == [2, 3]


def test_what_is_taken_back_is_not_delivered(served: SharedStore) -> None:
    """Offsets that are set end leases: nothing of before comes, and an acknowledgement of before returns False."""
    with served.consumer("T", group="G") as consumer:
        found = one_by_one(consumer, 2)
        served.reset_offsets("T", "G", 15)
        assert not consumer.ack(found[0])
        assert numbers(one_by_one(consumer, 1)) == [15]
        assert served.purge("T", "G") == 5
        assert consumer.poll(1, 0.05) == []
        assert served.committed_offsets("T", "G") == {0: COUNT}


def test_seeks_and_giving_back_begin_at_their_offset(served: SharedStore) -> None:
    """Backward too, where the group is ahead: an acknowledgement then moves its offset back, and a lease begins after it."""
    with served.consumer("T", group="G") as consumer:
        for message in one_by_one(consumer, 10):
            assert consumer.ack(message)
        consumer.seek(0, 4)
        found = one_by_one(consumer, 3)
        assert numbers(found) == [4, 5, 6]
        assert consumer.ack(found[0])
        assert served.committed_offsets("T", "G") == {0: 5}
        consumer.give_back("T", 0, 6)
        assert numbers(one_by_one(consumer, 2)) == [6, 7]
        assert consumer.ack(found[1])
        assert served.committed_offsets("T", "G") == {0: 6}


def test_a_seek_forward_acknowledges_nothing(served: SharedStore) -> None:
    """Not in the file either, whatever is taken behind it; the first acknowledgement there moves the offset."""
    with served.consumer("T", group="G") as consumer:
        for message in one_by_one(consumer, 2):
            assert consumer.ack(message)
        consumer.seek(0, 10)
        found = one_by_one(consumer, 3)
        assert numbers(found) == [10, 11, 12]
        with MessageStore.open(served.path, "r", config=CONFIG) as reader:
            assert reader.committed_offsets("T", "G") == served.committed_offsets("T", "G") == {0: 2}
            assert consumer.lag() == COUNT - 10
            assert reader.committed_offsets("T", "G") == served.committed_offsets("T", "G") == {0: 2}
            assert consumer.ack(found[0])
            assert reader.committed_offsets("T", "G") == served.committed_offsets("T", "G") == {0: 11}


def test_a_poll_alone_gives_a_group_no_offset(served: SharedStore) -> None:
    """Its messages are handed out, and nothing is acknowledged."""
    with served.consumer("T", group="G") as consumer:
        assert len(one_by_one(consumer, 3)) == 3
        assert consumer.lag() == COUNT
        assert served.committed_offsets("T", "G") == {}


def test_acknowledgements_out_of_order_are_exact(served: SharedStore) -> None:
    """They need a request; those in order around them do not, and move over them."""
    with served.consumer("T", group="G") as consumer:
        found = one_by_one(consumer, 6)
        for position, committed in ((3, 0), (0, 1), (2, 1), (1, 4), (5, 4), (4, 6)):
            assert consumer.ack(found[position])
            assert served.committed_offsets("T", "G") == {0: committed}
            assert not consumer.ack(found[position])
        assert consumer.lag() == COUNT - 6


def test_lag_does_not_count_what_an_earlier_consumer_acknowledged_out_of_order(served: SharedStore) -> None:
    """Only the first of ten delivered ones and the ten that were not delivered count."""
    with served.consumer("T", group="G") as consumer:
        for message in one_by_one(consumer, 10)[1:]:
            assert consumer.ack(message)
        assert consumer.lag() == 11
    with served.consumer("T", group="G") as consumer:
        assert consumer.lag() == 11
        assert numbers(one_by_one(consumer, 11)) == [0, *range(10, COUNT)]


def test_a_commit_covers_what_was_taken_without_a_request(served: SharedStore) -> None:
    """And a consumer that closes gives back the rest."""
    with served.consumer("T", group="G") as consumer:
        assert len(one_by_one(consumer, 5)) == 5
        consumer.commit()
        assert len(one_by_one(consumer, 5)) == 5
        assert [worker.unacknowledged for worker in workers_of(served)] == [5]
    assert served.committed_offsets("T", "G") == {0: 5}
    with served.consumer("T", group="G") as consumer:
        assert numbers(one_by_one(consumer, 1)) == [5]


def workers_of(store: SharedStore) -> list[Any]:
    from messagestore.shared.store import workers

    return workers(store.path)


def test_a_message_that_was_sent_back_does_not_wait_for_those_that_follow(
    served: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """After a moment the owner is asked, who has retries too."""
    monkeypatch.setattr("messagestore.shared.consumer.AHEAD_S", 0.0)
    with served.consumer("T", group="G") as consumer:
        (first,) = one_by_one(consumer, 1)
        assert consumer.nack(first, delay_level=1) is not None
        assert until(lambda: served.max_offset("%RETRY%G", 0) == 1)
        assert numbers(consumer.poll(1, 5)) == [0]


@pytest.mark.parametrize("kind", ["visibility", "priorities", "ttl"])
def test_deliveries_that_depend_on_the_time_need_a_request(
    served: SharedStore, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:  # fmt: skip
    """Each message of a consumer with a visibility time, of a topic with priorities, and beside one that may expire."""
    from datetime import timedelta

    served.create_topic("P", 2, attributes={"message.type": "PRIORITY"} if kind == "priorities" else None)
    for number in range(3):
        ttl = timedelta(hours=1) if kind == "ttl" else None
        served.put("P", b"%d" % number, priority=1 if kind == "priorities" else None, ttl=ttl, queue_id=-1)
    with served.consumer("P", group="G", visibility_s=60 if kind == "visibility" else None) as consumer:
        assert len(one_by_one(consumer, 1)) == 1
        sent = requests(monkeypatch)
        assert len(one_by_one(consumer, 2)) == 2
        assert len(sent) >= 2


# The file


def leased(folder: Path) -> tuple[AckFile, Any, Any]:
    """Return a file with a lease of a queue that was acknowledged up to 5, and the words of the other process."""
    acks = AckFile(REAL_DISK, str(folder), 1)
    acks.record(KEY, 5)
    lease = acks.lease(KEY, 5)
    assert lease is not None
    words = LeasedFile(REAL_DISK, str(folder)).find(lease.id, lease.at)
    assert words is not None
    return acks, lease, words


def offsets_in(folder: Path) -> list[int]:
    return [queue.next_offset for queue in read_acks(REAL_DISK, str(folder), 1)]


def test_what_another_process_stored_counts_at_once(tmp_path: Path) -> None:
    """In the file, and for the owner when it looks; rows behind that of the lease count too."""
    acks, lease, words = leased(tmp_path)
    acks.record(("U@G", 0), 3)
    words.store_next_offset(8)
    words.store_position(11)
    assert words.is_open and offsets_in(tmp_path) == [8, 3]
    assert acks.leases() == [lease] and (lease.next_offset, lease.position) == (8, 11)


def test_what_is_stored_after_the_end_of_a_lease_does_not_count(tmp_path: Path) -> None:
    """And the other process sees that."""
    acks, lease, words = leased(tmp_path)
    words.store_next_offset(8)
    assert words.counts(8)
    acks.end_lease(lease)
    words.store_next_offset(9)
    assert not words.is_open and acks.leases() == []
    assert words.counts(8) and not words.counts(9)
    assert (lease.next_offset, offsets_in(tmp_path)) == (8, [8])


def test_whoever_stores_while_a_lease_ends_waits_for_what_counts(tmp_path: Path) -> None:
    """The owner has written that it is over, and reads the offset; if it is killed there, the offset counts."""
    _, lease, words = leased(tmp_path)
    words._words[lease.at] = 0
    words.store_next_offset(8)
    assert offsets_in(tmp_path) == [8]
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(words.counts(8)))
    waiting.start()
    words._words[lease.at] = -1 - 8
    waiting.join(20)
    assert found == [True] and offsets_in(tmp_path) == [8]


def test_a_queue_that_is_set_back_forgets_its_leases(tmp_path: Path) -> None:
    """Those that are over too."""
    acks, lease, words = leased(tmp_path)
    words.store_next_offset(8)
    acks.end_lease(lease)
    acks.record(KEY, 3)
    assert offsets_in(tmp_path) == [3]


@pytest.mark.parametrize("way", ["full", "dropped", "back", "closed", "next owner"])
def test_a_lease_ends_with_its_file_and_its_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """What was stored before counts, except where the queue itself is gone or was set back."""
    monkeypatch.setattr(ack_file, "SIZE_MIN", 4096)
    acks, _, words = leased(tmp_path)
    words.store_next_offset(8)
    if way == "full":
        for offset in range(1000, 1000 + 4096 // ack_file.DONE.size):
            acks.add_done(KEY, offset)
    elif way == "dropped":
        acks.drop(["T@G"])
    elif way == "back":
        acks.record(KEY, 2)
    elif way == "closed":
        acks.close(is_clean=False)
    else:
        ack_file.end_leases(REAL_DISK, str(tmp_path), read_acks(REAL_DISK, str(tmp_path), 1))
    assert not words.is_open and words.counts(8)
    words.store_next_offset(9)
    assert not words.counts(9)
    assert offsets_in(tmp_path) == {"dropped": [], "back": [2]}.get(way, [8])


def test_a_lease_is_found_in_the_file_that_has_it(tmp_path: Path) -> None:
    """A process that mapped an earlier file maps the next one; without the lease there it has none."""
    acks, lease, _ = leased(tmp_path)
    other = LeasedFile(REAL_DISK, str(tmp_path))
    assert other.find(lease.id, lease.at) is not None
    acks.drop(["T@G"])
    again = acks.lease(KEY, 0)
    assert again is not None
    assert other.find(lease.id, lease.at) is None
    assert other.find(again.id, again.at) is not None
    assert LeasedFile(REAL_DISK, str(tmp_path / "none")).find(1, 0) is None


def test_the_next_owner_ends_the_leases_of_the_one_before(tmp_path: Path) -> None:
    """Before it looks how far they are: the file that it makes then is another one."""
    made = Counters(3)

    def own() -> None:
        store = MessageStore.open(tmp_path / "s", config=CONFIG)
        store.create_topic("T", 1)
        store.put("T", b"0")
        consumer = store.consumer("T", group="G")
        consumer.lend()
        made[0], made[1] = consumer.in_hand()[0][4:]
        made[2] = 1
        time.sleep(60)

    owner = Child(own)
    made.wait_for(2, 1)
    words = LeasedFile(REAL_DISK, str(tmp_path / "s" / "brokerstore")).find(made[0], made[1])
    assert words is not None
    owner.kill()
    words.store_next_offset(1)
    assert words.is_open
    with MessageStore.open(tmp_path / "s", config=CONFIG) as store:
        assert not words.is_open
        assert store.committed_offsets("T", "G") == {0: 1}


# How often


def test_a_poll_waits_only_where_that_gives_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so for a dense stream; not after an answer that took long, and not for long where messages come one by one."""
    slept: list[float] = []
    now = [0.0]
    monkeypatch.setattr("messagestore.shared.consumer.time", type("Clock", (), {
        "sleep": staticmethod(slept.append), "monotonic": staticmethod(lambda: now[0])}))  # fmt: skip
    pace = _Pace()

    def poll(count: int, took_s: float = 0.0) -> float:
        slept.clear()
        pace.begin(1.0)
        now[0] += took_s
        pace.end(count)
        return sum(slept)

    assert [poll(1, 0.01) for _ in range(3)] == [0, 0, 0]
    assert poll(1) == 0 and 0 < poll(2) < poll(2) < poll(20)
    longest = poll(20)
    assert [poll(20) for _ in range(3)] == [longest] * 3
    assert poll(1) == longest  # it stays alone
    assert [poll(1) for _ in range(32)] == [0] * 32


def test_a_sync_waits_for_as_many_callers_as_the_last_one_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until they are there, and no longer than a sync; not at all where a sync takes no time."""
    monkeypatch.setattr("storageio.background.GATHER_MAX_S", 600.0)
    came = threading.Event()
    calls = []

    def is_gathered() -> bool:
        calls.append(1)
        return len(calls) > 2 or came.is_set()

    gather(is_gathered, 600.0)
    assert len(calls) == 3
    came.set()
    gather(is_gathered, 600.0)
    assert len(calls) == 4
    came.clear()
    calls.clear()
    gather(is_gathered, 0.0)
    assert calls == []
    gather(lambda: False, 0.001)  # ends by its time


def test_a_message_that_comes_again_before_a_later_one_is_not_passed_over() -> None:
    """A new owner hands out again what it had not dispatched, though the consumer holds a later message of the queue."""
    stored: list[int] = []
    track = _Track(0, 7)
    track.lease = type("Lease", (), {"store_next_offset": lambda self, offset: stored.append(offset)})()
    for offset in (7, 9):
        track.hold(offset, 0)
    track.position = 8
    assert track.done_before == 7
    assert track.acknowledge(7) == 8
    del track.held[7]
    assert track.done_before == 8
    track.hold(8, 0)
    track.position = 9
    assert not track.acknowledge(9)
    assert track.acknowledge(8) == 9
    assert stored == [8, 9]
