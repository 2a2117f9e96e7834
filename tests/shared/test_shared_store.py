"""A store that several processes have open: roles, calls, errors, closing."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message, PutStatus
from messagestore import FlushMode, MessageStore, SharedStore, StoreConfig
from messagestore.shared.consumer import _Track
from messagestore.shared.news import News
from messagestore.shared.presence import present
from messagestore.shared.store import connect
from storageio import InvalidMessage, InvalidSetting, PutRejected, StoreClosed, StoreLocked
from storageio.local_sockets import PeerGone, connect_local
from tests.helpers import bodies
from tests.shared.processes import CONFIG, Child, Counters, open_shared, owning_child

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[SharedStore]:
    """Open a store that another process owns."""
    owner = owning_child(tmp_path / "s")
    with open_shared(tmp_path / "s") as store:
        assert not store.is_owner
        yield store
    owner.kill()


def test_the_first_process_owns_the_store_and_the_second_is_served(tmp_path: Path) -> None:
    """Both put and read; each reads what the other put before."""
    with open_shared(tmp_path / "s") as first:
        assert first.is_owner
        first.put(Message("T", b"0", queue_id=0))

        def other() -> None:
            with open_shared(tmp_path / "s") as second:
                assert not second.is_owner
                assert bodies(second.read("T", 0)) == [b"0"]
                assert second.put(Message("T", b"1", queue_id=0)).queue_offset == 1
                assert bodies(second.read("T", 0)) == [b"0", b"1"]

        assert Child(other).exit_code() == 0
        assert bodies(first.read("T", 0)) == [b"0", b"1"]


def test_both_processes_query_by_tag(tmp_path: Path) -> None:
    """The one that does not own the store finds what either has put, in a store whose index has tags."""
    config = CONFIG.but(broker_version="5.5.1")
    with open_shared(tmp_path / "s", config=config) as first:
        first.put(Message("T", b"0", queue_id=0, tags="a"))

        def other() -> None:
            with open_shared(tmp_path / "s", config=config) as second:
                assert not second.is_owner
                second.put(Message("T", b"1", queue_id=0, tags="a"))
                second.put(Message("T", b"2", queue_id=0, tags="b"))
                assert bodies(second.query_tag("T", "a")) == [b"0", b"1"]

        assert Child(other).exit_code() == 0
        assert bodies(first.query_tag("T", "b")) == [b"2"]


def test_two_stores_in_one_process_share_one_owner(tmp_path: Path) -> None:
    """The second is served by the first, and takes over when the first is closed."""
    first, second = open_shared(tmp_path / "s"), open_shared(tmp_path / "s")
    assert (first.is_owner, second.is_owner) == (True, False)
    second.put(Message("T", b"0", queue_id=0))
    first.close()
    second.put(Message("T", b"1", queue_id=0))
    assert second.is_owner
    assert bodies(second.read("T", 0)) == [b"0", b"1"]
    second.close()
    assert not (tmp_path / "s" / "abort").exists()
    assert not (tmp_path / "s" / "brokerstore" / "owner.socket").exists()


def test_every_method_has_the_signature_of_the_store_of_one_process() -> None:
    """Parameters, defaults and kinds agree."""
    for name, member in inspect.getmembers(SharedStore, inspect.isfunction):
        if not name.startswith("_"):
            one, other = inspect.signature(member), inspect.signature(getattr(MessageStore, name))
            shape = [[(p.name, p.kind, p.default) for p in found.parameters.values()] for found in (one, other)]
            assert shape[0] == shape[1], name


def test_every_field_of_a_message_arrives(served: SharedStore) -> None:
    """What is read back is what was put; the message has a UNIQ_KEY besides."""
    sent = Message(
        "T", b"body", tags="red", keys=["a", "b"], properties={"colour": "grün"}, queue_id=2, flag=7, born_timestamp_ms=1234,
        born_host="10.0.0.1:99", reconsume_times=3,
    )  # fmt: skip
    found = served.message_at(served.put(sent).physical_offset)
    assert found is not None
    assert (found.topic, found.body, found.tags, found.keys, found.queue_id) == ("T", b"body", "red", ["a", "b"], 2)
    assert (found.flag, found.born_timestamp_ms, found.born_host, found.reconsume_times) == (7, 1234, "10.0.0.1:99", 3)
    assert found.properties["colour"] == "grün"
    assert len(found.properties["UNIQ_KEY"]) == 32
    assert sent.properties == {"colour": "grün"}


def test_encoded_properties_arrive(served: SharedStore) -> None:
    """They keep their order, and a UNIQ_KEY of the program is kept."""
    raw = b"b\x01 2\x02UNIQ_KEY\x01mine\x02a\x011\x02"
    found = served.message_at(served.put(Message("T", b"", properties_raw=raw)).physical_offset)
    assert found is not None and found.properties_raw.startswith(raw)


def test_the_queue_is_chosen_as_in_one_process(served: SharedStore, tmp_path: Path) -> None:
    """The first key decides; messages without a key use each queue in turn."""
    served.create_topic("T", 8)
    with MessageStore.open(tmp_path / "one", config=CONFIG) as one:
        one.create_topic("T", 8)
        for key in ("a", "b", "order-17", ""):
            message = Message("T", b"", keys=key)
            assert key == "" or served.put(message).queue_id == one.put(message).queue_id
            assert key == "" or served.put_many("T", [b""], keys=[key]).queue_id == one.put(message).queue_id
    assert len({served.put(Message("T", b"")).queue_id for _ in range(8)}) == 8


def test_many_messages_go_in_several_requests(served: SharedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result counts all of them and has the offsets of the first."""
    monkeypatch.setattr("messagestore.shared.protocol.BATCH_BYTES", 4 << 20)
    served.put(Message("T", b"before", queue_id=0))
    result = served.put_many([Message("T", bytes(500_000), queue_id=0) for _ in range(20)])
    assert (result.message_count, result.queue_offset) == (20, 1)
    assert served.max_offset("T", 0) == 21


@pytest.mark.deep
def test_pipelined_puts_keep_their_order(served: SharedStore) -> None:
    """A put and a put_many that follow them keep it too."""
    futures = [served.put_async(Message("T", b"%d" % number, queue_id=0)) for number in range(3000)]
    served.put(Message("T", b"3000", queue_id=0))
    futures += [served.put_async(Message("T", b"%d" % number, queue_id=0)) for number in range(3001, 3100)]
    served.put_many([Message("T", b"3100", queue_id=0)])
    assert [future.result().queue_offset for future in futures] == [n for n in range(3100) if n != 3000]
    assert bodies(served.read("T", 0)) == [b"%d" % number for number in range(3101)]


REFUSED: dict[str, Callable[[Any], object]] = {
    "topic": lambda store: store.put(Message("T" * 300, b"")),
    "size": lambda store: store.put(Message("T", bytes(5 << 20))),
    "several": lambda store: store.put_many([Message("T", b""), Message("T", bytes(5 << 20))]),
    "none": lambda store: store.put_many([]),
    "no bodies": lambda store: store.put_many("T", []),
    "body": lambda store: store.put_many("T", [b"", "text"]),
    "rows": lambda store: store.put_many("T", [b""], keys=["k", "l"]),
    "fields": lambda store: store.put_many([Message("T", b"")], tags=["t"]),
    "future": lambda store: store.put_async(Message("T" * 300, b"")).result(),
    "property": lambda store: store.put(Message("T", b"", properties={"a": "\x01"})),
    "kind": lambda store: store.put("text"),
    "number": lambda store: store.put(Message("T", b"", properties={"a": 5})),  # type: ignore[dict-item]
    "surrogate": lambda store: store.put(Message("T", b"", tags="\ud800")),
    "twice": lambda store: store.put(Message("T", b"", tags="t", properties_raw=b"a\x01b\x02")),
    "delay": lambda store: store.begin_transaction(Message("T", b"", properties={"DELAY": "1"})),
    "queues": lambda store: store.create_topic("T", -1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_keep_their_types_across_processes(name: str, served: SharedStore, tmp_path: Path) -> None:
    """Type, text and fields are those of the error that the store of one process raises."""
    raised = []
    with MessageStore.open(tmp_path / "one", config=CONFIG) as one:
        for store in (one, served):
            with contextlib.suppress(AssertionError), pytest.raises(Exception) as caught:
                REFUSED[name](store)
            raised.append(caught.value)
    expected, found = raised
    assert type(found) is type(expected)
    assert name == "kind" or str(found) == str(expected)  # a compiled class has another message
    if isinstance(expected, PutRejected):
        assert isinstance(found, PutRejected) and isinstance(found.status, PutStatus)
        assert (found.status, found.reason, found.message_count) == (expected.status, expected.reason, expected.message_count)


def test_a_refused_put_among_pipelined_ones(tmp_path: Path) -> None:
    """With synchronous flush too, where puts that arrive together share a sync: each future has its own outcome."""
    config = CONFIG.but(flush_disk_type=FlushMode.SYNC)
    with open_shared(tmp_path / "s", config=config), open_shared(tmp_path / "s", config=config) as store:
        messages = [Message("T", b"", properties={"a": "\x01"} if number % 3 == 1 else None) for number in range(90)]
        futures = [store.put_async(message) for message in messages]
        for number, future in enumerate(futures):
            if number % 3 == 1:
                with pytest.raises(InvalidMessage):
                    future.result(10)
            else:
                assert future.result(10).status is PutStatus.PUT_OK


def test_a_status_instead_of_an_error(served: SharedStore) -> None:
    """`check=False` works as in one process."""
    result = served.put(Message("T" * 300, b""), check=False)
    assert result.status is PutStatus.MESSAGE_ILLEGAL and result.reason
    assert served.put_many([Message("T" * 300, b"")], check=False).status is PutStatus.MESSAGE_ILLEGAL


def test_transactions(served: SharedStore) -> None:
    """A committed message is in its queue, a rolled back one is not, an undecided one is listed."""
    with served.begin_transaction(Message("T", b"yes", queue_id=0)) as transaction:
        assert bodies(served.read("T", 0)) == []
    assert transaction.committed is not None and transaction.committed.queue_offset == 0
    with pytest.raises(KeyError), served.begin_transaction(Message("T", b"no", queue_id=0)):
        raise KeyError
    served.begin_transaction(Message("T", b"late", queue_id=0))
    (half,) = served.undecided_transactions()
    assert (half.topic, half.message.body) == ("T", b"late")
    served.commit_transaction(half)
    assert served.undecided_transactions() == []
    assert bodies(served.read("T", 0)) == [b"yes", b"late"]


def test_reading_calls(served: SharedStore) -> None:
    """Each finds what was put before it."""
    result = served.put(Message("T", b"0", keys="k", queue_id=1))
    assert served.topics() == ["T"]
    assert served.queue_ids("T") == list(range(8))
    assert [message.body for message in served.get("T", 1, 0).messages] == [b"0"]
    assert [message.body for message in served.query("T", "k")] == [b"0"]
    assert (served.min_offset("T", 1), served.max_offset("T", 1), served.max_offset("T", 1, committed=False)) == (0, 1, 1)
    assert served.store_time("T", 1, 0) == served.earliest_time() == result.store_timestamp_ms
    assert served.offset_by_time("T", 1, result.store_timestamp_ms) == 0
    assert next(bytes(view) for views in served.read_raw("T", 1) for view in views)[:4] == result.size_bytes.to_bytes(4, "big")
    with served.follow(timeout_s=0) as follower:
        assert [message.body for message in follower] == [b"0"]
    assert served.committed_offsets("T", "G") == {}
    assert served.flush() == result.physical_offset + result.size_bytes


def test_a_long_path(tmp_path: Path) -> None:
    """A Unix address has 108 bytes; the store may be deeper."""
    deep = tmp_path / ("d" * 200) / "s"
    with open_shared(deep) as first, open_shared(deep) as second:
        assert first.is_owner and not second.is_owner
        second.put(Message("T", b""))


def test_only_the_user_of_the_store_can_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket has the mode 0600, and an owner or a client of another user is refused."""
    with open_shared(tmp_path / "s"):
        address = tmp_path / "s" / "brokerstore" / "owner.socket"
        assert address.stat().st_mode & 0o777 == 0o600
        monkeypatch.setattr("storageio.local_sockets.os.geteuid", lambda: os.getuid() + 1)
        with pytest.raises(PeerGone, match="another user"):
            connect_local(str(address), 1.0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_even_if_the_socket_mode_permits_it(tmp_path: Path) -> None:
    """The owner closes the connection."""
    for folder in (tmp_path, *tmp_path.parents[:3]):  # pytest's own folders have mode 700
        if folder.stat().st_mode & 0o077 == 0:
            folder.chmod(0o711)
    with open_shared(tmp_path / "s"):
        address = tmp_path / "s" / "brokerstore" / "owner.socket"
        address.chmod(0o666)

        def intrude() -> None:
            import socket

            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as intruder:
                intruder.connect(str(address))
                intruder.settimeout(10)
                with contextlib.suppress(ConnectionError):
                    assert intruder.recv(1) == b""

        assert Child(intrude).exit_code() == 0


def test_a_store_with_an_exclusive_writer_cannot_be_shared(tmp_path: Path) -> None:
    """Another process that has the store open alone is an error, after the time to wait."""
    with MessageStore.open(tmp_path / "s", config=CONFIG), pytest.raises(StoreLocked):
        open_shared(tmp_path / "s", wait_s=0.05)
    open_shared(tmp_path / "s").close()


def test_without_the_key_index(tmp_path: Path) -> None:
    """A repeated put could not be found, so the setting is refused."""
    with pytest.raises(InvalidSetting, match="message_index_enable"):
        open_shared(tmp_path / "s", config=StoreConfig(message_index_enable=False))


def test_a_closed_store(served: SharedStore) -> None:
    """Every call raises; a second close does nothing."""
    served.close()
    served.close()
    for call in (
        lambda: served.put(Message("T", b"")),
        lambda: served.put_async(Message("T", b"")),
        lambda: served.get("T", 0, 0),
        lambda: served.topics(),
    ):
        with pytest.raises(StoreClosed):
            call()


@pytest.mark.parametrize("role", ["owner", "served"])
def test_in_a_forked_child_the_store_is_closed(role: str, tmp_path: Path) -> None:
    """The child's calls raise, its close touches nothing, and the parent goes on."""
    with contextlib.ExitStack() as stack:
        if role == "served":
            stack.callback(owning_child(tmp_path / "s").kill)
        store = stack.enter_context(open_shared(tmp_path / "s"))
        store.put(Message("T", b"0", queue_id=0))

        def use() -> None:
            for call in (lambda: store.put(Message("T", b"1")), lambda: store.get("T", 0, 0), lambda: store.flush()):
                with pytest.raises(StoreClosed):
                    call()
            store.close()

        assert Child(use).exit_code() == 0
        assert store.put(Message("T", b"2", queue_id=0)).queue_offset == 1
        with open_shared(tmp_path / "s") as third:
            assert bodies(third.read("T", 0)) == [b"0", b"2"]


def test_a_child_of_the_owner_does_not_hide_its_end(tmp_path: Path) -> None:
    """The child inherits copies of the owner's sockets, but the others still notice the owner's end."""
    child_id = Counters(1)
    gate = Counters(1)

    def own_and_fork() -> None:
        open_shared(tmp_path / "s").put(Message("T", b""))
        gate[0] = 1
        gate.wait_for(0, 2)
        child_id[0] = Child(lambda: time.sleep(30)).process_id
        gate[0] = 3
        time.sleep(30)

    owner = Child(own_and_fork)
    gate.wait_for(0, 1)
    with open_shared(tmp_path / "s") as other:
        gate[0] = 2
        gate.wait_for(0, 3)
        owner.kill()
        try:
            other.put(Message("T", b""))
            assert other.is_owner
        finally:
            os.kill(child_id[0], signal.SIGKILL)


def test_a_path_of_bytes_is_refused() -> None:
    """The error is that of `MessageStore.open`."""
    with pytest.raises(ValueError, match="the path is text"):
        connect(b"store")  # type: ignore[arg-type]


def test_a_process_that_leaves_is_not_waited_for(tmp_path: Path) -> None:
    """The file that shows its consumers is gone."""
    with open_shared(tmp_path / "s") as store:
        store.create_topic("T", 1)
        store.consumer("T", group="G").close()
        own = str(tmp_path / "s" / "brokerstore")
        assert len(present(own)) == 1
    assert present(own) == set()


def test_messages_of_a_queue_are_done_before_the_first_held_one() -> None:
    """Until a message is held, or the position was chosen by a seek."""
    track = _Track(1, 7)
    assert track.done_before == 7
    track.held[5] = None
    assert track.done_before == 5


def test_a_connection_shows_that_the_owner_ended(tmp_path: Path) -> None:
    """So that its consumer is opened at the next owner, even if no thread uses it then."""
    owner = owning_child(tmp_path / "s")
    with open_shared(tmp_path / "s") as store:
        channel = store._member.new_channel()
        assert not channel.is_ended
        owner.kill()
        assert channel.is_ended
        channel.close()


def test_the_thread_of_a_connection_ends_with_it(tmp_path: Path) -> None:
    """The owner has no thread for a process that left."""
    with open_shared(tmp_path / "s"):
        before = set(threading.enumerate())

        def sessions() -> set[threading.Thread]:
            return {thread for thread in threading.enumerate() if thread.name == "brokerstore-session"} - before

        with open_shared(tmp_path / "s") as second:
            second.put(Message("T", b"x"))
            assert sessions()
        deadline = time.monotonic() + 20
        while sessions():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_forked_child_does_not_wait_for_its_parents_puts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer to them comes to the child: its own put says immediately that the store is closed."""
    owner = owning_child(tmp_path / "s")
    with open_shared(tmp_path / "s", wait_s=2.0) as store:
        store.put(Message("T", b"0", queue_id=0))
        owner.stop()
        future = store.put_async(Message("T", b"1", queue_id=0))
        with monkeypatch.context() as patched:
            patched.setattr(store._member, "_process_id", -1)  # as if it was connected by another process
            with pytest.raises(StoreClosed):
                store.put(Message("T", b"2", queue_id=0))
        os.kill(owner.process_id, signal.SIGCONT)
        assert future.result(20).queue_offset == 1
        owner.kill()


def test_a_wait_for_messages_ends_with_the_next_message(tmp_path: Path) -> None:
    """So that the caller need not ask again and again."""
    with open_shared(tmp_path / "s") as store:
        store.put(Message("T", b"0"))
        local = store._member.local
        assert local is not None
        local.engine.settle()
        seen = local.engine.progress.count
        timer = threading.Timer(0.1, store.put, (Message("T", b"1"),))
        timer.start()
        assert News(store._member).wait(seen, 20.0) != seen
        timer.join()
