"""The rules of docs/formats/rabbitmq-quorum.md#replay, command by command."""

from __future__ import annotations

from typing import Any

import pytest

from rabbitstore.format.terms import FALSE, TRUE, UNDEFINED, Atom, CharList, Opaque
from rabbitstore.quorum.machine import Machine
from rabbitstore.quorum.machine_parts import MessageInfo, Settings
from rabbitstore.quorum.state import _strict

NODE, OTHER = b"w\x09a@nowhere", b"w\x09b@nowhere"
SENDER = Opaque(88, NODE + bytes(12))
READER, SECOND = Opaque(88, NODE + b"reader_12345"), Opaque(88, OTHER + b"second_12345")
AUTO = Atom("auto")


class Queue:
    """A machine that numbers its entries; `held` and `ready` show indexes."""

    def __init__(self, version: int = 5, **settings: Any) -> None:
        self.machine = Machine(Settings(**settings), version)
        self.index = self.sent = 0
        self.time = 1000

    def apply(self, *command: Any, reply: Atom | tuple[Any, ...] = UNDEFINED, info: MessageInfo | None = None) -> int:
        self.index += 1
        name, *rest = command
        self.machine.apply(self.index, self.time, (Atom(name), *rest), reply, info or MessageInfo())
        return self.index

    def send(self, count: int = 1, number: int | None = None, **info: Any) -> int:
        for _ in range(count):
            self.sent = self.sent + 1 if number is None else self.sent
            reply = (Atom("notify"), 1, SENDER)
            self.apply("e", number or self.sent, b"body", (0, 10), reply=reply, info=MessageInfo(10, **info))
        return self.index

    def consume(self, prefetch: int = 100, pid: Opaque = READER, tag: bytes = b"tag", priority: int = 0) -> int:
        spec = (AUTO, (Atom("simple_prefetch"), prefetch))
        return self.apply("checkout", (tag, pid), spec, {Atom("priority"): priority})

    @property
    def ready(self) -> list[int]:
        return [message.index for message in self.machine.ready()]

    def held(self, key: int | tuple[bytes, Opaque]) -> dict[int, int]:
        consumer = self.machine.consumers.get(key)
        return {} if consumer is None else {number: message.index for number, message in consumer.held.items()}


def test_an_enqueue_counts_once_and_in_order() -> None:
    """A duplicate and a message ahead of its turn are ignored; another process has its own numbers."""
    queue = Queue()
    queue.send(2)
    queue.send(number=2)
    queue.send(number=5)
    queue.apply("enqueue", SECOND, 1, b"other")
    queue.apply("enqueue", UNDEFINED, UNDEFINED, b"dead-lettered")
    assert queue.ready == [1, 2, 5, 6]


def test_a_lenient_machine_accepts_a_gap_but_no_duplicate() -> None:
    """After damage the messages behind the gap are kept."""
    queue = Queue()
    queue.send()
    queue.machine.is_lenient = True
    queue.send(number=5)
    queue.send(number=5)
    assert queue.ready == [1, 2]


def test_a_process_that_registers_again_keeps_its_number() -> None:
    """Only a process that is not known starts at 1."""
    queue = Queue()
    queue.send()
    queue.apply("register_enqueuer", SENDER)
    queue.send()
    assert queue.ready == [1, 3]


def test_high_priority_messages_are_delivered_first_except_each_third_time() -> None:
    """Three normal messages, then three of high priority."""
    queue = Queue()
    queue.send(3)
    queue.send(3, priority=5)
    assert queue.ready == [4, 5, 1, 6, 2, 3]
    queue = Queue()
    queue.send(2, priority=4)
    queue.send(priority=9)
    assert queue.ready == [3, 1, 2]


def test_prefetch_and_settlement() -> None:
    """A consumer holds its prefetch; each settlement brings the next message; ids may be stored as text."""
    queue = Queue()
    queue.send(5)
    key = queue.consume(2)
    assert queue.held(key) == {0: 1, 1: 2} and queue.ready == [3, 4, 5]
    queue.apply("settle", key, CharList(b"\x00"))
    assert queue.held(key) == {1: 2, 2: 3}
    queue.apply("settle", (b"tag", READER), [1, 2, 77])
    assert queue.held(key) == {3: 4, 4: 5} and queue.ready == []


def test_consumers_take_turns_and_priority_comes_first() -> None:
    """Two of the same priority alternate; one of a higher takes all that it has credit for."""
    queue = Queue()
    first, second = queue.consume(tag=b"1"), queue.consume(tag=b"2")
    queue.send(4)
    assert (list(queue.held(first).values()), list(queue.held(second).values())) == ([3, 5], [4, 6])
    third = queue.consume(1, tag=b"3", priority=7)
    queue.send(2)
    assert list(queue.held(third).values()) == [8] and list(queue.held(first).values()) == [3, 5, 9]


def test_a_return_goes_behind_other_returns_and_before_the_rest() -> None:
    """It counts as acquired, not as failed."""
    queue = Queue()
    queue.send(4)
    key = queue.consume(3)
    queue.apply("checkout", (b"tag", READER), Atom("cancel"), {})
    queue.apply("return", key, [2, 0])
    assert queue.ready == [3, 1, 4] and queue.held(key) == {1: 2}
    assert [(one.acquired, one.delivery_count) for one in queue.machine.ready()] == [(1, 0), (1, 0), (0, 0)]


def test_before_version_4_each_return_counts_as_failed() -> None:
    """The two counts were one."""
    queue = Queue(version=3)
    queue.send()
    queue.apply("checkout", (b"tag", READER), (AUTO, 1, Atom("simple_prefetch")), {})
    key = (b"tag", READER)
    assert queue.held(key) == {0: 1}
    queue.apply("checkout", key, Atom("cancel"), {})
    queue.apply("return", key, [0])
    assert [(one.acquired, one.delivery_count) for one in queue.machine.ready()] == [(1, 1)]


def test_above_the_delivery_limit_a_message_is_dead_lettered() -> None:
    """With the limit 2, the third return is the last."""
    queue = Queue(delivery_limit=2, dead_letters="at_least_once")
    queue.send()
    key = queue.consume(1)
    for number in range(3):
        assert queue.held(key) == {number: 1}
        queue.apply("return", key, [number])
    assert queue.held(key) == {} and queue.ready == []
    assert [(reason, one.index) for reason, one in queue.machine.dead.every()] == [("delivery_limit", 1)]


@pytest.mark.parametrize(("version", "ready"), [(5, []), (7, []), (8, [2])])
def test_from_version_8_only_failures_count_for_the_limit(version: int, ready: list[int]) -> None:
    """A client that returns a message is no failure; each earlier version counts every return."""
    queue = Queue(version, delivery_limit=1)
    key = queue.consume(1)
    queue.send()
    for number in range(2):
        queue.apply("return", key, [number])
    queue.apply("checkout", (b"tag", READER), Atom("cancel"), {})
    queue.apply("return", key, [2])
    assert queue.ready == ready


def test_modify_returns_or_discards() -> None:
    """It counts a failed delivery if told so, and keeps annotations."""
    queue = Queue(dead_letters="at_least_once")
    queue.send(2)
    key = queue.consume(2)
    queue.apply("checkout", (b"tag", READER), Atom("cancel"), {})
    queue.apply("modify", key, [0], TRUE, FALSE, {b"x-note": 1})
    (message,) = queue.machine.ready()
    assert (message.index, message.acquired, message.delivery_count, message.annotations) == (1, 1, 1, {b"x-note": 1})
    queue.apply("modify", key, [1], FALSE, TRUE, {})
    assert [(reason, one.index, one.delivery_count) for reason, one in queue.machine.dead.every()] == [("rejected", 2, 0)]


def test_a_process_that_ends_returns_its_messages_as_failed() -> None:
    """They return in order of their ids; the consumer and the enqueuer are forgotten."""
    queue = Queue()
    queue.send(3)
    key = queue.consume(2)
    queue.apply("down", READER, Atom("normal"))
    assert queue.held(key) == {} and queue.ready == [1, 2, 3]
    assert [one.delivery_count for one in queue.machine.ready()] == [1, 1, 0]
    queue.apply("down", SENDER, Atom("normal"))
    queue.send(number=1)
    assert queue.ready == [1, 2, 3, 7]


def test_a_lost_connection_returns_messages_until_the_node_is_back() -> None:
    """Consumers of other nodes go on."""
    queue = Queue()
    near, far = queue.consume(1, tag=b"n"), queue.consume(1, pid=SECOND, tag=b"f")
    queue.send(3)
    queue.apply("down", SECOND, Atom("noconnection"))
    assert queue.held(far) == {} and list(queue.held(near).values()) == [3] and queue.ready == [4, 5]
    queue.apply("nodeup", Atom("b@nowhere"))
    assert list(queue.held(far).values()) == [4]


def test_a_requeue_moves_a_message_to_a_new_index() -> None:
    """It is behind the others then, and its body is in the requeue command."""
    queue = Queue()
    queue.send(2)
    key = queue.consume(1)
    queue.apply("checkout", (b"tag", READER), Atom("cancel"), {})
    for unknown in ((key, 9), (99, 0)):
        queue.apply("requeue", *unknown, 1, 10, b"body")
    at = queue.apply("requeue", key, 0, 1, 10, b"body")
    assert queue.ready == [2, at]
    assert [(one.acquired, one.delivery_count) for one in queue.machine.ready()] == [(0, 0), (1, 0)]


def test_credit_and_drain() -> None:
    """A credited consumer gets as many messages as its credit; drain takes the rest away."""
    queue = Queue()
    key = queue.apply("checkout", (b"tag", READER), (AUTO, (Atom("credited"), 0)), {})
    queue.send(2)
    assert queue.held(key) == {}
    queue.apply("credit", key, 5, 0, TRUE)
    assert list(queue.held(key).values()) == [2, 3]
    queue.send()
    assert list(queue.held(key).values()) == [2, 3] and queue.ready == [5]


def test_credit_after_a_drain_counts_from_the_drained_deliveries() -> None:
    """A drain counts the credit that it takes away as delivered, and so does the receiver: 2 sent, 3 drained, 4 more wanted."""
    queue = Queue()
    key = queue.apply("checkout", (b"tag", READER), (AUTO, (Atom("credited"), 0)), {})
    queue.send(2)
    queue.apply("credit", key, 5, 0, TRUE)
    queue.apply("credit", key, 4, 5, FALSE)
    queue.send(6)
    assert len(queue.held(key)) == 2 + 4 and len(queue.ready) == 2


def test_basic_get() -> None:
    """One message, settled immediately or held by a consumer that vanishes with it."""
    queue = Queue()
    queue.send(3)
    queue.apply("checkout", (b"get", READER), (Atom("dequeue"), Atom("settled")), {})
    assert queue.ready == [2, 3] and not queue.machine.consumers
    queue.apply("checkout", (b"get", READER), (Atom("dequeue"), Atom("unsettled")), {})
    key = (b"get", READER)
    assert queue.held(key) == {0: 2} and queue.ready == [3]
    queue.apply("settle", key, [0])
    assert not queue.machine.consumers and queue.ready == [3]


def test_expired_messages_are_dropped_at_the_head() -> None:
    """The smaller of both times counts; a message behind one that lives is not looked at."""
    queue = Queue(msg_ttl=500, dead_letters="at_least_once")
    queue.send(ttl_ms=100)
    queue.send()
    queue.send(ttl_ms=1)
    queue.time = 1100
    queue.apply("timeout", Atom("expire_msgs"))
    assert queue.ready == [2, 3]
    queue.time = 1500
    queue.apply("timeout", Atom("expire_msgs"))
    assert queue.ready == [] and {reason for reason, _one in queue.machine.dead.every()} == {"expired"}


@pytest.mark.parametrize(("version", "expected"), [(7, [1, 2, 3, 4, 5]), (8, [1, 4, 5])])
def test_the_timer_of_version_8_drops_the_expired_heads_of_every_list(version: int, expected: list[int]) -> None:
    """Other commands only look at the next message, and so does the timer before."""
    queue = Queue(version, dead_letters="at_least_once")
    queue.send(priority=9)
    queue.send(ttl_ms=100)
    queue.send(priority=0, ttl_ms=100)
    queue.send(priority=0)
    queue.time = 1100
    queue.send(priority=0)
    assert sorted(queue.ready) == [1, 2, 3, 4, 5]
    queue.apply("timeout", Atom("expire_msgs"))
    assert sorted(queue.ready) == expected
    assert [one.index for _reason, one in queue.machine.dead.every()] == [2, 3][: 5 - len(expected)]


def test_version_8_drops_the_expired_heads_of_every_list_with_the_next_message() -> None:
    """Whatever the command; behind a message that lives, none."""
    queue = Queue(8, dead_letters="at_least_once")
    queue.send(priority=0, ttl_ms=100)
    queue.send(ttl_ms=50)
    queue.send()
    queue.send(ttl_ms=50)
    queue.time = 1100
    queue.send(priority=0)
    assert queue.ready == [3, 4, 5] and [one.index for _reason, one in queue.machine.dead.every()] == [2, 1]


def test_version_8_drops_expired_returned_messages_first() -> None:
    """Then those of the lists."""
    queue = Queue(8, dead_letters="at_least_once")
    queue.send(2, ttl_ms=100)
    queue.consume(2)
    last = queue.send(ttl_ms=50)
    queue.apply("down", READER, Atom("noproc"))
    assert queue.ready == [1, 2, last]
    queue.time = 1100
    queue.apply("timeout", Atom("expire_msgs"))
    assert queue.ready == [] and [one.index for _reason, one in queue.machine.dead.every()] == [1, 2, last]


def test_a_time_to_live_of_zero_is_one_millisecond() -> None:
    """The message can still be delivered by the command that brings it."""
    queue = Queue()
    key = queue.consume(1)
    queue.send(2, ttl_ms=0)
    queue.time += 1
    queue.apply("timeout", Atom("expire_msgs"))
    assert list(queue.held(key).values()) == [2] and queue.ready == []


@pytest.mark.parametrize(("limits", "expected"), [({"max_length": 2}, [4, 5]), ({"max_bytes": 30}, [3, 4, 5])])
def test_limits_drop_the_head(limits: dict[str, int], expected: list[int]) -> None:
    """Five messages of ten bytes."""
    queue = Queue(**limits)
    queue.send(5)
    assert queue.ready == expected
    queue = Queue(**limits, drops_head=False)
    queue.send(5)
    assert queue.ready == [1, 2, 3, 4, 5]


def test_purge_keeps_what_consumers_hold() -> None:
    """Only messages that are ready go."""
    queue = Queue()
    queue.send(4)
    key = queue.consume(1)
    queue.apply("purge")
    assert queue.held(key) == {0: 1} and queue.ready == []


def test_purged_messages_do_not_count_for_a_limit() -> None:
    """Two messages of 10 bytes fit into 25 bytes again after a purge."""
    queue = Queue(max_bytes=25)
    queue.send(2)
    queue.apply("purge")
    queue.send(2)
    assert queue.ready == [4, 5]


def test_purge_keeps_what_waits_for_dead_lettering() -> None:
    """Purged are ready messages only."""
    queue = Queue(dead_letters="at_least_once")
    queue.send(2)
    queue.apply("discard", queue.consume(1), [0])
    queue.apply("purge")
    assert [one.index for _reason, one in queue.machine.dead.every()] == [1]


def process(number: int) -> Opaque:
    """Return the process of this number on the same node."""
    return Opaque(88, NODE + number.to_bytes(4, "big") + bytes(8))


@pytest.mark.parametrize(
    ("credit", "order", "counts"), [(1, [1, 2, 3], [1, 1, 0]), (5, [2, 3, 1], [1, 1, 2])], ids=["without", "with"]
)
def test_a_restart_ends_processes_in_the_order_of_their_numbers(credit: int, order: list[int], counts: list[int]) -> None:
    """What the first process held goes to one with credit that is only found to be down later."""
    queue = Queue()
    queue.send()
    queue.consume(1, process(3), b"early")
    queue.send(1)
    queue.consume(credit, process(9), b"late")
    queue.send(1)
    order = [{1: 1, 2: 3, 3: 5}[number] for number in order]
    found = list(queue.machine.restarted(0).ready())
    assert [message.index for message in found] == order
    assert [message.acquired for message in found] == counts
    assert len(list(queue.machine.held())) == (2 if credit == 1 else 3)


@pytest.mark.parametrize(("is_known", "counts"), [(True, [1, 2]), (False, [1, 1])])
def test_a_restart_ends_first_the_processes_that_a_leader_knows(is_known: bool, counts: list[int]) -> None:
    """Those of entries that are applied after the election follow, whatever their numbers are."""
    queue = Queue()
    queue.send()
    queue.consume(1, process(9), b"late")
    if is_known:
        queue.machine.become_leader()
    queue.send()
    queue.consume(2, process(3), b"early")
    found = list(queue.machine.restarted(0).ready())
    assert [message.index for message in found] == [3, 1]
    assert [message.acquired for message in found] == counts


@pytest.mark.parametrize(("version", "counts"), [(5, [1, 1, 1]), (8, [])])
def test_a_restart_reactivates_the_consumer_that_was_being_replaced(version: int, counts: list[int]) -> None:
    """The start first finds its node up, and before version 8 the consumer gets what is ready before it is found to be down.

    In version 8 it waits again after its last return, though its process has ended, and it alone gets the messages.
    """
    queue = Queue(version, is_single_active=True)
    first = queue.consume(10, process(3), b"1")
    queue.send(2)
    queue.consume(10, process(4), b"2", priority=5)
    last = queue.send()
    queue.apply("down", process(4), Atom("normal"))
    assert queue.ready == [last] and len(queue.held(first)) == 2
    assert [message.acquired for message in queue.machine.restarted(0).ready()] == counts


def test_a_restart_drops_what_is_above_a_limit() -> None:
    """What consumers held counts for the limit when it comes back."""
    queue = Queue(max_length=2)
    queue.send(1)
    queue.consume(3, process(5))
    queue.send(4)
    found = queue.machine.restarted(0)
    assert [message.index for message in found.ready()] and len(found.dropped) == 5 - 2
    assert set(found.dropped.values()) == {"maxlen"}


def test_a_discard_is_dropped_or_waits() -> None:
    """At-least-once dead-lettering keeps the message until its process settles it."""
    for kind, expected in ((None, []), ("at_most_once", []), ("at_least_once", [1])):
        queue = Queue(dead_letters=kind)
        queue.send()
        queue.apply("discard", queue.consume(1), [0])
        assert [one.index for _reason, one in queue.machine.dead.every()] == expected
    queue.apply("dlx", (Atom("checkout"), READER, 10))
    queue.apply("dlx", (Atom("settle"), [0]))
    assert queue.machine.dead.every() == []


def test_a_new_dead_lettering_process_starts_again() -> None:
    """What the old one held waits first."""
    queue = Queue(dead_letters="at_least_once")
    queue.send(3)
    queue.apply("dlx", (Atom("checkout"), READER, 2))
    queue.apply("discard", queue.consume(3), [0, 1, 2])
    assert [one.index for _reason, one in queue.machine.dead.held.values()] == [1, 2]
    queue.apply("dlx", (Atom("checkout"), SECOND, 1))
    assert [one.index for _reason, one in queue.machine.dead.every()] == [1, 2, 3]


def test_a_single_active_consumer() -> None:
    """The second one waits until the first ends; one of a higher priority takes over from an idle one."""
    queue = Queue(is_single_active=True)
    first, second = queue.consume(tag=b"1"), queue.consume(pid=SECOND, tag=b"2")
    queue.send(2)
    assert list(queue.held(first).values()) == [3, 4] and queue.held(second) == {}
    third = queue.consume(pid=SECOND, tag=b"3", priority=5)
    queue.send()
    assert 6 not in queue.held(first).values() and queue.ready == [6]
    queue.apply("settle", first, [0, 1])
    assert list(queue.held(third).values()) == [6]
    queue.apply("down", SECOND, Atom("normal"))
    assert list(queue.held(first).values()) == [6] and queue.held(second) == {}


def test_the_next_active_consumer_is_the_one_with_most_credit() -> None:
    """Among equal priorities the larger prefetch goes first, then the older consumer; before version 4 the older one."""
    for version, expected in ((3, b"2"), (4, b"4")):
        queue = Queue(version, is_single_active=True)
        queue.consume(1, process(1), b"1")
        for tag, credit in ((b"2", 3), (b"3", 10), (b"4", 50), (b"5", 50)):
            queue.consume(credit, SECOND, tag)
        queue.apply("down", process(1), Atom("normal"))
        assert [consumer.tag for consumer in queue.machine.consumers.values()] == [expected]


@pytest.mark.parametrize("how", ["return", "requeue", "modify"])
def test_a_return_activates_no_consumer_before_version_7(how: str) -> None:
    """An active consumer that gives way to a higher priority and returns its last message leaves the queue without one."""
    for version, expected in ((5, {}), (7, {0: 3})):
        queue = Queue(version, is_single_active=True)
        first = queue.consume(1, tag=b"1")
        queue.send(2)
        second = queue.consume(1, SECOND, b"2", priority=1)
        rest = {"return": ([0],), "requeue": (0, 2, 10, b"body"), "modify": ([0], FALSE, FALSE, {})}[how]
        queue.apply(how, first, *rest)
        assert queue.held(first) == {}
        assert list(queue.held(second)) == list(expected)
        queue.apply("dlx", (Atom("settle"), [0]))
        assert list(queue.held(second)) == list(expected)
        queue.apply("checkout", (b"unknown", SECOND), Atom("cancel"), {})
        queue.apply("down", process(8), Atom("normal"))
        assert len(queue.held(second)) == 1


def test_a_discard_activates_the_next_consumer() -> None:
    """So does a `modify` of a message that cannot be delivered here."""
    for command in (("discard", [0]), ("modify", [0], TRUE, TRUE, {})):
        queue = Queue(is_single_active=True)
        first = queue.consume(1, tag=b"1")
        queue.send(2)
        second = queue.consume(1, SECOND, b"2", priority=1)
        queue.apply(command[0], first, *command[1:])
        assert len(queue.held(second)) == 1


def test_the_waiting_consumer_with_more_credit_becomes_active() -> None:
    """The consumer with more credit becomes active."""
    queue = Queue(is_single_active=True)
    queue.consume(1, process(1), b"1")
    spec = (AUTO, (Atom("credited"), 0))
    keys = [queue.apply("checkout", (tag, SECOND), spec, {}) for tag in (b"2", b"3")]
    queue.apply("credit", keys[1], 5, 0, FALSE)
    queue.apply("down", process(1), Atom("normal"))
    assert list(queue.machine.consumers) == [keys[1]]


def test_a_new_config_counts_at_once() -> None:
    """A smaller limit drops messages."""
    queue = Queue()
    queue.send(4)
    queue.apply("update_config", {Atom("max_length"): 1, Atom("overflow_strategy"): Atom("drop_head")})
    assert queue.ready == [4]


@pytest.mark.parametrize("command", [("unheard_of", 1), ("settle", 1), ("garbage_collection",), ("checkout", 1, 2, 3)])
def test_other_commands_have_no_effect(command: tuple[Any, ...]) -> None:
    """The server ignores them as well."""
    queue = Queue()
    queue.send(2)
    queue.apply(*command)
    assert queue.ready == [1, 2]


def down(queue: Queue, pid: Opaque) -> None:
    """Lose the connection to a process's node."""
    queue.apply("down", pid, Atom("noconnection"))


def test_version_8_keeps_what_a_lost_consumer_holds_until_a_timeout() -> None:
    """It gets nothing more meanwhile; the timeout of a consumer that is there changes nothing."""
    queue = Queue(8)
    far, near = queue.consume(2, SECOND, b"f"), queue.consume(1, tag=b"n")
    queue.send(2)
    down(queue, SECOND)
    last = queue.send()
    assert queue.held(far) == {0: 3} and queue.held(near) == {0: 4} and queue.ready == [last]
    for key in (near, 99):
        queue.apply("timeout", (Atom("consumer_disconnected_timeout"), key))
    assert queue.held(far) == {0: 3} and queue.held(near) == {0: 4}
    queue.apply("timeout", (Atom("consumer_disconnected_timeout"), far))
    assert queue.held(far) == {} and queue.ready == [3, last]
    assert [(one.acquired, one.delivery_count) for one in queue.machine.ready()] == [(1, 0), (0, 0)]


def test_version_8_goes_on_when_the_node_is_back() -> None:
    """The consumer keeps its messages and gets the next ones; one that was cancelled does not."""
    queue = Queue(8)
    far, ended = queue.consume(2, SECOND, b"f"), queue.consume(1, SECOND, b"e")
    queue.send(2)
    queue.apply("checkout", (b"e", SECOND), Atom("cancel"), {})
    down(queue, SECOND)
    queue.send(2)
    queue.apply("settle", ended, [0])
    assert queue.ready == [7, 8]
    queue.apply("nodeup", Atom("a@nowhere"))
    assert list(queue.held(far).values()) == [3]
    queue.apply("nodeup", Atom("b@nowhere"))
    assert list(queue.held(far).values()) == [3, 7] and queue.ready == [8]


@pytest.mark.parametrize("version", [5, 8])
def test_a_waiting_consumer_of_a_lost_node_becomes_active_when_that_is_back(version: int) -> None:
    """Until then the queue has none."""
    queue = Queue(version, is_single_active=True)
    queue.consume(1)
    second = queue.consume(1, SECOND, b"2")
    last = queue.send()
    down(queue, SECOND)
    queue.apply("down", READER, Atom("normal"))
    assert queue.machine.consumers == {} and queue.ready == [last]
    queue.apply("nodeup", Atom("a@nowhere"))
    assert queue.machine.consumers == {}
    queue.apply("nodeup", Atom("b@nowhere"))
    assert list(queue.held(second).values()) == [last]


def test_a_lost_active_consumer_is_replaced_by_one_of_another_node() -> None:
    """Its messages return as failed to the first consumer of another node; it waits behind, and comes back with its node."""
    queue = Queue(is_single_active=True)
    first, third = queue.consume(2, SECOND, b"1"), queue.consume(9, SECOND, b"3")
    second = queue.consume(1, tag=b"2")
    queue.send(2)
    down(queue, SECOND)
    assert list(queue.machine.consumers) == [second] and list(queue.held(second).values()) == [4] and queue.ready == [5]
    assert [(one.acquired, one.delivery_count) for one in queue.machine.ready()] == [(1, 1)]
    assert {key for key, _one in queue.machine.waiting} == {first, third}
    queue.apply("down", READER, Atom("normal"))
    assert queue.machine.consumers == {}
    queue.apply("nodeup", Atom("b@nowhere"))
    assert list(queue.machine.consumers) == [third] and len(queue.held(third)) == 2


def test_version_8_activates_the_next_one_after_the_timeout_of_the_active() -> None:
    """The lost one waits."""
    queue = Queue(8, is_single_active=True)
    first, second = queue.consume(1, SECOND, b"1"), queue.consume(1, tag=b"2")
    last = queue.send()
    down(queue, SECOND)
    assert list(queue.held(first).values()) == [last]
    queue.apply("timeout", (Atom("consumer_disconnected_timeout"), first))
    assert list(queue.machine.consumers) == [second] and list(queue.held(second).values()) == [last]
    assert [key for key, _one in queue.machine.waiting] == [first]


def test_an_idle_active_consumer_gives_way_to_a_higher_priority() -> None:
    """It waits then, and is active again after the other one ends."""
    queue = Queue(is_single_active=True)
    first = queue.consume(1, tag=b"1")
    second = queue.consume(1, SECOND, b"2", priority=1)
    assert list(queue.machine.consumers) == [second] and [key for key, _one in queue.machine.waiting] == [first]
    queue.apply("down", SECOND, Atom("normal"))
    assert list(queue.machine.consumers) == [first] and queue.machine.waiting == []


def test_processes_of_removed_nodes_are_removed() -> None:
    """Messages return as failed, and are delivered by the next command; publishers of the node are forgotten."""
    queue = Queue()
    far, near = queue.consume(1, SECOND, b"f"), queue.consume(2, tag=b"n")
    queue.apply("enqueue", SECOND, 1, b"other")
    at = queue.send()
    queue.apply("purge_nodes", UNDEFINED)
    assert queue.held(far) == {0: 3}
    queue.apply("purge_nodes", [Atom("b@nowhere"), Atom("c@nowhere")])
    assert far not in queue.machine.consumers and list(queue.held(near).values()) == [at] and queue.ready == [3]
    queue.apply("timeout", Atom("expire_msgs"))
    assert list(queue.held(near).values()) == [at, 3]
    assert [one.delivery_count for _tag, one in queue.machine.held()] == [0, 1]
    last = queue.apply("enqueue", SECOND, 1, b"other")
    assert queue.ready == [last]


def test_waiting_consumers_of_removed_nodes_are_removed() -> None:
    """None of them becomes active."""
    queue = Queue(is_single_active=True)
    first = queue.consume(1, tag=b"1")
    queue.consume(1, SECOND, b"2")
    queue.apply("purge_nodes", [Atom("b@nowhere")])
    assert list(queue.machine.consumers) == [first] and queue.machine.waiting == []


def test_a_priority_in_the_arguments() -> None:
    """Servers before 4.0 have it there, in a row of name, type and value."""
    queue = Queue()
    spec = (AUTO, (Atom("simple_prefetch"), 1))
    long = Atom("long")
    rows = [(b"x-other", long, 9), (b"x-priority", long, b"8"), (b"x-priority", 7), (b"x-priority", long, 6)]
    every = [{}, UNDEFINED, {Atom("args"): 5}, {Atom("args"): rows[:3]}, {Atom("args"): rows}]
    keys = [queue.apply("checkout", (bytes((tag,)), READER), spec, meta) for tag, meta in enumerate(every)]
    assert [queue.machine.consumers[key].priority for key in keys] == [0, 0, 0, 0, 6]
    last = queue.send()
    assert list(queue.held(keys[-1]).values()) == [last]


def test_a_removed_consumer_returns_what_it_holds() -> None:
    """That is no failure; a cancelled one keeps it, and one that waits is forgotten in both ways."""
    queue = Queue()
    queue.send(2)
    key = queue.consume(1)
    queue.apply("checkout", (b"tag", READER), Atom("remove"), {})
    assert queue.machine.consumers == {} and queue.ready == [1, 2]
    assert [(one.acquired, one.delivery_count) for one in queue.machine.ready()] == [(1, 0), (0, 0)]
    for word in ("remove", "cancel"):
        queue = Queue(is_single_active=True)
        key = queue.consume(1)
        queue.consume(1, SECOND, b"2")
        queue.apply("checkout", (b"2", SECOND), Atom(word), {})
        assert list(queue.machine.consumers) == [key] and queue.machine.waiting == []


def test_a_consumer_that_attaches_again_has_its_new_prefetch() -> None:
    """What it holds counts against it, and a cancelled one is up again."""
    queue = Queue()
    queue.send(6)
    key = queue.consume(2)
    assert queue.consume(3) != key and list(queue.held(key).values()) == [1, 2, 3]
    queue.apply("checkout", (b"tag", READER), Atom("cancel"), {})
    queue.consume(1)
    assert list(queue.held(key).values()) == [1, 2, 3]
    queue.apply("settle", key, [0, 1, 2])
    assert list(queue.held(key).values()) == [4]


def test_a_get_from_a_queue_with_only_expired_messages() -> None:
    """The consumer vanishes, and the messages do."""
    queue = Queue()
    queue.send(2, ttl_ms=5)
    queue.time += 5
    queue.apply("checkout", (b"get", READER), (Atom("dequeue"), Atom("unsettled")), {})
    assert queue.machine.consumers == {} and queue.ready == []


def test_a_get_leaves_what_expires_behind_its_message() -> None:
    """Only a command that gives messages to consumers looks at the next one."""
    queue = Queue()
    queue.send()
    queue.send(ttl_ms=5)
    queue.time += 5
    queue.apply("checkout", (b"get", READER), (Atom("dequeue"), Atom("unsettled")), {})
    assert queue.held((b"get", READER)) == {0: 1} and queue.ready == [2]
    queue.apply("timeout", Atom("expire_msgs"))
    assert queue.ready == []


def test_a_queue_upgraded_to_version_8_keeps_the_order_of_its_two_lists() -> None:
    """Those of high priority become 9, all others 4; later ones have lists of their own."""
    queue = Queue(7)
    queue.send(2)
    queue.send(priority=5)
    assert queue.ready == [3, 1, 2]
    queue.machine.set_version(8)
    queue.send(priority=7)
    queue.send(priority=3)
    assert queue.ready == [3, 4, 1, 2, 5] and queue.machine.version == 8
    queue.machine.set_version(8)
    assert queue.ready == [3, 4, 1, 2, 5]


def test_unknown_commands_of_version_8_are_reported() -> None:
    """A command or timeout of another name, and delayed returns; before, the server ignores them."""
    others = [
        (("unheard_of", 1), "unheard_of"),
        (("timeout", Atom("other")), "timeout other"),
        (("update_config", {Atom("delayed_retry"): (Atom("linear"), 5)}), "delayed_retry"),
        (("update_config", {Atom("delayed_retry"): Atom("disabled")}), ""),
        (("garbage_collection",), ""),
        (("nodedown", Atom("b@nowhere")), ""),
        (("timeout", Atom("expire_msgs")), ""),
    ]
    for command, expected in others:
        for version in (7, 8):
            queue = Queue(version)
            queue.apply(*command)
            assert queue.machine.unknown == (expected if version == 8 or expected == "delayed_retry" else "")


def test_a_change_of_the_dead_lettering_drops_what_waits_for_it() -> None:
    """Unless it stays at-least-once."""
    for handler, expected in ((Atom("at_least_once"), [1]), (UNDEFINED, [])):
        queue = Queue(dead_letters="at_least_once")
        queue.send()
        queue.apply("discard", queue.consume(1), [0])
        queue.apply("update_config", {Atom("dead_letter_handler"): handler})
        assert [one.index for _reason, one in queue.machine.dead.every()] == expected


@pytest.mark.parametrize("reply", [Atom("noreply"), (Atom("await"), {}), (Atom("other"), 1, SENDER), (Atom("notify"), 1)])
def test_an_enqueue_without_a_reply_process_has_no_sequence_number(reply: Atom | tuple[Any, ...]) -> None:
    """Each of them counts."""
    queue = Queue()
    for _ in range(2):
        queue.apply("e", 5, b"body", (0, 10), reply=reply)
    assert queue.ready == [1, 2]


@pytest.mark.parametrize("identity", [b"tag", (b"tag",), (b"tag", READER, 1)])
def test_a_checkout_of_another_form_has_no_effect(identity: bytes | tuple[Any, ...]) -> None:
    """So has one whose second part is a number."""
    queue = Queue()
    queue.send()
    queue.apply("checkout", identity, (AUTO, (Atom("simple_prefetch"), 1)), {})
    queue.apply("checkout", (b"tag", READER), 5, {})
    assert queue.machine.consumers == {} and queue.ready == [1]


@pytest.mark.parametrize("how", ["checkout", "register", "enqueue", "get"])
def test_a_leader_watches_a_process_from_its_first_command_on(how: str) -> None:
    """Process 9 comes before process 3, so what it holds goes to that one first."""
    queue = Queue()
    queue.machine.become_leader()
    early, late = process(9), process(3)
    if how == "register":
        queue.apply("register_enqueuer", early)
    elif how == "enqueue":
        queue.apply("enqueue", early, 1, b"first")
        queue.apply("purge")
    elif how == "get":
        queue.apply("enqueue", UNDEFINED, UNDEFINED, b"first")
        queue.apply("checkout", (b"get", early), (Atom("dequeue"), Atom("unsettled")), {})
        queue.apply("settle", (b"get", early), [0])
    if how == "checkout":
        queue.consume(1, early, b"early")
        queue.consume(2, late, b"late")
    else:
        queue.consume(2, late, b"late")
        queue.consume(1, early, b"early")
    for _ in range(2):
        queue.apply("enqueue", UNDEFINED, UNDEFINED, b"body")
    assert sorted(message.acquired for message in queue.machine.restarted(0).ready()) == [1, 2]


def test_the_lists_of_version_8_are_read_with_their_length() -> None:
    """As a snapshot of 4.3.6 has them: priority 31 - 22, rear and front, each message an index with its size above 44 bits."""
    (message,) = _strict({22: (1, [], [(5 << 44) + 9])}, [])[9]
    assert (message.index, message.size) == (9, 5)
    assert [one.index for one in _strict({31: (2, [8], [7])}, [])[0]] == [7, 8]
