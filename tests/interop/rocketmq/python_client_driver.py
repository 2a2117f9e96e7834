"""Programs with the unmodified official Python client, each a process of its own: `driver.py SCENARIO ADDRESS [ARGUMENT ...]`.

Each prints JSON lines.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

IDLE_POLLS = 2
REQUEST_S = 30  # of a busy machine; the default is 3
POLL_S = 2
INVISIBLE_S = 10  # the least that a proxy allows


def show(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def message(topic: str, body: bytes, **fields: Any) -> Message:
    found = Message()
    found.topic, found.body = topic, body
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def producer(configuration: ClientConfiguration, *topics: str, checker: Any = None) -> Producer:
    found = Producer(configuration, topics, checker=checker)
    found.startup()
    return found


def simple(configuration: ClientConfiguration, group: str, topic: str, tag: str = "*") -> SimpleConsumer:
    found = SimpleConsumer(configuration, group, {topic: FilterExpression(tag)}, await_duration=POLL_S)
    found.startup()
    return found


def send(configuration: ClientConfiguration, topic: str, begin: str, end: str) -> None:
    """Send numbers one after the other, and print each that is acknowledged."""
    one = producer(configuration, topic)
    for number in range(int(begin), int(end)):
        while True:
            try:
                one.send(message(topic, b"%d" % number, tag="even" if number % 2 == 0 else "odd"))
            except Exception as error:
                show(failed=str(error)[:200])
                time.sleep(0.2)
            else:
                break
        show(sent=number)
    one.shutdown()


def send_many(configuration: ClientConfiguration, topic: str, count: str) -> None:
    """Send with the asynchronous call, as long as fewer than 256 are unanswered."""
    one = producer(configuration, topic)
    one.send(message(topic, b"first"))
    window = threading.Semaphore(256)
    futures = []
    for number in range(int(count)):
        window.acquire()
        future = one.send_async(message(topic, b"%d" % number))
        future.add_done_callback(lambda _: window.release())
        futures.append(future)
    for future in futures:
        future.result()
    one.shutdown()


def receive(configuration: ClientConfiguration, topic: str, group: str, tag: str = "*", invisible_s: str = "60") -> None:
    """Receive and acknowledge until nothing comes for a while."""
    one, idle = simple(configuration, group, topic, tag), 0
    while idle < IDLE_POLLS:
        try:
            found = one.receive(32, int(invisible_s))
        except Exception as error:
            show(failed=str(error)[:200])
            time.sleep(0.2)
            continue
        idle = 0 if found else idle + 1
        acknowledge(one, found)
    one.shutdown()


def acknowledge(one: SimpleConsumer, found: list[Any]) -> None:
    """Acknowledge what was received, and show what that was; what failed comes again."""
    for each in found:
        try:
            one.ack(each)
        except Exception as error:
            show(failed=str(error)[:200])
        else:
            show(body=each.body.decode(), attempt=each.delivery_attempt)


def hold(configuration: ClientConfiguration, topic: str, group: str, invisible_s: str) -> None:
    """Receive without an acknowledgement, and receive again."""
    one = simple(configuration, group, topic)
    taken_s = 0.0
    for _ in range(2):
        found = []
        while not found:
            found = one.receive(32, int(invisible_s))
        now_s = time.monotonic()
        show(attempts=[each.delivery_attempt for each in found], after_s=now_s - taken_s if taken_s else 0.0)
        taken_s = now_s
    one.change_invisible_duration(found[0], 30)
    for each in found:
        one.ack(each)
    one.shutdown()


class Listener(MessageListener):
    """Prints what it gets; fails the bodies for which `fails` is true, each time."""

    def __init__(self, fails: Callable[[str], bool]) -> None:
        self.fails = fails
        self.last_s = time.monotonic()
        self._guard = threading.Lock()

    def consume(self, message: Message) -> ConsumeResult:
        body = message.body.decode()
        with self._guard:
            self.last_s = time.monotonic()
            show(body=body, group=message.message_group, attempt=message.delivery_attempt, now_s=time.time())
        return ConsumeResult.FAILURE if self.fails(body) else ConsumeResult.SUCCESS


def push(configuration: ClientConfiguration, topic: str, group: str, idle_s: str, fails: str = "") -> None:
    """Consume until nothing comes for a while."""
    listener = Listener(lambda body: body == fails)
    one = PushConsumer(configuration, group, listener, {topic: FilterExpression()})
    one.startup()
    while time.monotonic() - listener.last_s < float(idle_s):
        time.sleep(0.05)
    one.shutdown()


def fifo(configuration: ClientConfiguration, topic: str, groups: str, count: str) -> None:
    """Send messages of several groups in turn."""
    one = producer(configuration, topic)
    for number in range(int(count)):
        for group in groups.split(","):
            one.send(message(topic, f"{group}-{number}".encode(), message_group=group))
    one.shutdown()


def delay(configuration: ClientConfiguration, topic: str, group: str, seconds: str) -> None:
    """Print how long a delayed message took."""
    consumer = simple(configuration, group, topic)
    one = producer(configuration, topic)
    due_s = int(time.time()) + int(seconds)
    one.send(message(topic, b"later", delivery_timestamp=due_s))
    found = []
    while not found:
        found = consumer.receive(32, 60)
    show(body=found[0].body.decode(), late_s=time.time() - due_s, due_ms=found[0].delivery_timestamp)
    consumer.ack(found[0])
    one.shutdown()
    consumer.shutdown()


class Checker(TransactionChecker):
    """Commits what the server checks, except `rolled back`."""

    def check(self, message: Message) -> Any:
        show(checked=message.body.decode())
        is_rolled_back = message.body == b"rolled back" or message.body.endswith(b"R")
        return TransactionResolution.ROLLBACK if is_rolled_back else TransactionResolution.COMMIT


def transact(configuration: ClientConfiguration, topic: str, wait_s: str) -> None:
    """Commit one message, roll one back, and leave two to the checker."""
    one = producer(configuration, topic, checker=Checker())
    for body, decide in (("commit", "commit"), ("rollback", "rollback"), ("checked", ""), ("rolled back", "")):
        transaction = one.begin_transaction()
        one.send(message(topic, body.encode()), transaction)
        if decide:
            getattr(transaction, decide)()
    time.sleep(float(wait_s))
    one.shutdown()


def retried(do: Any) -> Any:
    """Return what a call returns in the end, while a server is killed and started again."""
    while True:
        try:
            return do()
        except Exception as error:
            show(failed=str(error)[:200])
            time.sleep(0.2)


def produce(configuration: ClientConfiguration, topic: str, kind: str, count: str) -> None:
    """Send numbers, each until it is acknowledged; `R` behind a number is rolled back."""
    one = producer(configuration, topic, checker=Checker() if kind == "transaction" else None)
    for number in range(int(count)):
        if kind == "transaction":
            _transact_one(one, topic, number)
        elif kind == "fifo":
            retried(lambda number=number: one.send(message(topic, b"%d" % number, message_group=f"group-{number % 5}")))
        elif kind == "delay":
            due_s = int(time.time()) + 3
            body = b"%d %d" % (number, due_s)
            retried(lambda body=body, due_s=due_s: one.send(message(topic, body, delivery_timestamp=due_s)))
        else:
            retried(lambda number=number: one.send(message(topic, b"%d" % number, tag="even" if number % 2 == 0 else "odd")))
        show(sent=number)
    if kind == "transaction":
        sys.stdin.read()  # the server asks as long as the test waits
    one.shutdown()


def _transact_one(one: Producer, topic: str, number: int) -> None:
    """Commit two of four messages, roll one back, and leave one to the checker, as those whose decision is lost."""
    body = b"%d%s" % (number, b"R" if number % 4 == 1 else b"")

    def send_half() -> Any:
        transaction = one.begin_transaction()
        one.send(message(topic, body), transaction)
        return transaction

    transaction = retried(send_half)
    try:
        if number % 4 != 3:
            (transaction.rollback if number % 4 == 1 else transaction.commit)()
    except Exception as error:
        show(failed=str(error)[:200])


def consume(configuration: ClientConfiguration, topic: str, group: str, tag: str, fails: str) -> None:
    """Consume until the input ends, with the time of each delivery; what ends as `fails` fails each time."""
    one = PushConsumer(configuration, group, Listener(lambda body: body.endswith(fails)), {topic: FilterExpression(tag)})
    retried(one.startup)
    sys.stdin.read()
    one.shutdown()


def consume_simple(configuration: ClientConfiguration, topic: str, group: str, tag: str, _fails: str) -> None:
    """Receive with a simple consumer until the input ends, and show what is acknowledged; what failed comes again."""
    one = retried(lambda: simple(configuration, group, topic, tag))
    is_over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    while not is_over.is_set():
        acknowledge(one, retried(lambda: one.receive(32, INVISIBLE_S)))
    one.shutdown()


def dump(configuration: ClientConfiguration, topic: str) -> None:
    """Send messages with all fields and print what arrives."""
    one, consumer = producer(configuration, topic), simple(configuration, "dump", topic)
    sent = message(topic, "körper".encode(), tag="t", keys="key-1")
    sent.add_property("colour", "grün")
    receipt = one.send(sent)
    (found,) = consumer.receive(32, 60)
    facts: dict[str, Any] = defaultdict(str)
    for name in ("topic", "tag", "properties", "message_type", "delivery_attempt", "corrupted", "born_host"):
        facts[name] = getattr(found, name)
    show(body=found.body.decode(), keys=sorted(found.keys), same_id=found.message_id == receipt.message_id, **facts)
    consumer.ack(found)
    one.shutdown()
    consumer.shutdown()


SCENARIOS = {
    one.__name__: one
    for one in (send, send_many, receive, hold, push, fifo, delay, transact, produce, consume, consume_simple, dump)
}

if __name__ == "__main__":
    key, _, secret = sys.argv[2].rpartition("@")[0].partition("/")
    SCENARIOS[sys.argv[1]](
        ClientConfiguration(sys.argv[2].rpartition("@")[2], Credentials(key, secret), request_timeout=REQUEST_S), *sys.argv[3:]
    )
