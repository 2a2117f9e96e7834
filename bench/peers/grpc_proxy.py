"""The official Python client at a served store's gRPC port and at RocketMQ's real proxy in local mode, in turn.

Both servers are processes of their own and stay for all rounds, and so do both clients (`python -m bench.peers.grpc_proxy
ADDRESS` is one), so that the Java compiler is done.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from messagestore import MessageStore
from tests.interop.rocketmq.jvm import LineProcess, jars_of, why_not
from tests.interop.rocketmq.real_broker import CLUSTER, NAME, until
from tests.serving import free_ports

from .turns import Row, take_turns

POM = Path(__file__).parent / "proxy" / "pom.xml"
TOPIC, GROUP = "jobs", "workers"
BODY = bytes(100)
QUEUES = 8
UNANSWERED = 256
RECEIVED = 32  # messages of one request
INVISIBLE_S = 60
PATIENCE_S = 600
SERVER = """
import sys
from messagestore import MessageStore
from rocketlink import BrokerServer
folder, port, grpc_port = sys.argv[1:]
with MessageStore.open(folder) as store, BrokerServer(store, port=int(port), grpc_port=int(grpc_port)):
    sys.stdin.read()
"""
MEASURES = (
    ("grpc: sends, one after another, 100 B", "send", 1000, 1.0),
    ("grpc: sends, 256 unanswered, 100 B", "send_ahead", 4000, 1.0),
    ("grpc: received and acknowledged one by one, 100 B", "receive", 3000, 1.0),
)


def _proxy(folder: Path, grpc_port: int) -> list[subprocess.Popen[bytes]]:
    """Start a name server, and a proxy with a broker that has the topic."""
    names_port, port, remoting_port, _unused, _fast, replica_port = free_ports(6)
    (folder / "config").mkdir(parents=True)
    topic = {"topicName": TOPIC, "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6, "topicFilterType": "SINGLE_TAG"}
    (folder / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {TOPIC: topic}, "dataVersion": {}}))
    names = f"127.0.0.1:{names_port}"
    broker = {
        "brokerClusterName": CLUSTER, "brokerName": NAME, "brokerId": 0, "brokerIP1": "127.0.0.1", "listenPort": port,
        "haListenPort": replica_port, "storePathRootDir": folder, "storePathCommitLog": folder / "commitlog",
        "flushDiskType": "ASYNC_FLUSH", "namesrvAddr": names,
    }  # fmt: skip
    ports = {"grpcServerPort": grpc_port, "remotingListenPort": remoting_port}
    (folder / "proxy.json").write_text(json.dumps({"rocketMQClusterName": CLUSTER, "namesrvAddr": names, **ports}))
    (folder / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in broker.items()))
    (folder / "names.conf").write_text(f"listenPort={names_port}\nbindAddress=127.0.0.1\n")
    java = ["java", f"-Duser.home={folder}", f"-Drocketmq.home.dir={folder}", "-cp", f"{jars_of(POM)}/*"]
    proxy = ["-pm", "local", "-n", names, "-bc", str(folder / "broker.conf"), "-pc", str(folder / "proxy.json")]
    commands = (
        [*java, "-Xmx256m", "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(folder / "names.conf")],
        [*java, "-Xmx2g", "-XX:+UseG1GC", "org.apache.rocketmq.proxy.ProxyStartup", *proxy],
    )
    with (folder / "output").open("wb") as output:
        return [subprocess.Popen(command, stdout=output, stderr=output) for command in commands]


def _own(folder: Path, grpc_port: int) -> list[subprocess.Popen[bytes]]:
    """Start a server of ours on a store with RocketMQ's sizes that has the topic."""
    with MessageStore.open(folder) as store:
        store.create_topic(TOPIC, QUEUES)
    command = [sys.executable, "-c", SERVER, str(folder), str(free_ports(1)[0]), str(grpc_port)]
    return [subprocess.Popen(command, stdin=subprocess.PIPE)]


def _is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _client(stack: ExitStack, start: Callable[[Path, int], list[subprocess.Popen[bytes]]], folder: Path) -> LineProcess:
    """Start a server and a client of it; both end with the stack."""
    port = free_ports(1)[0]
    for process in start(folder, port):
        stack.callback(process.wait)
        stack.callback(process.kill)
    until(lambda: _is_open(port), f"a server on port {port}")
    found = LineProcess([sys.executable, "-m", __name__, f"127.0.0.1:{port}"], folder / "client.stderr")
    stack.callback(found.process.kill)
    found.answer()
    return found


def _rate(client: LineProcess, what: str, count: int) -> float:
    client.tell(what, count=count)
    return count / float(client.answer(PATIENCE_S)["seconds"])


def rows(folder: Path, rounds: int, scale: float, is_selected: Callable[[str], bool]) -> Iterator[Row]:
    """Yield a row for sends and for messages that are received and acknowledged."""
    reason = why_not()
    if reason:
        print(f"no rows of gRPC: {reason}")
        return
    with ExitStack() as stack:
        ours, theirs = _client(stack, _own, folder / "ours"), _client(stack, _proxy, folder / "theirs")
        for name, what, messages, target in MEASURES:
            if is_selected(name):
                count = max(100, int(messages * scale))
                for client in (ours, theirs):  # for the compiler; and what is received was sent
                    _rate(client, what if what != "receive" else "send_ahead", count * (rounds if what == "receive" else 1))
                yield take_turns(
                    Row(name, "proxy", "msg/s", target),
                    lambda what=what, count=count: _rate(ours, what, count),  # type: ignore[misc]
                    lambda what=what, count=count: _rate(theirs, what, count),  # type: ignore[misc]
                    rounds,
                )


def main(address: str) -> None:
    """Serve commands with the official client."""
    from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer
    from rocketmq.v5.exception import BadRequestException

    configuration = ClientConfiguration(address, Credentials())

    def message() -> Message:
        made = Message()
        made.topic, made.body = TOPIC, BODY
        return made

    found: list[Producer] = []

    def starts() -> bool:
        with suppress(Exception):  # the client's own class: the proxy has no route before its broker registers
            found.append(Producer(configuration, (TOPIC,)))
            found[-1].startup()
            found[-1].send(message())
            return True
        return False

    until(starts, "a route")
    producer = found[-1]
    consumer = SimpleConsumer(configuration, GROUP, {TOPIC: FilterExpression("*")}, await_duration=2)

    def send(count: int) -> None:
        for _ in range(count):
            producer.send(message())

    def send_ahead(count: int) -> None:
        left, sent = threading.Semaphore(UNANSWERED), []
        for _ in range(count):
            left.acquire()
            sent.append(producer.send_async(message()))
            sent[-1].add_done_callback(lambda _: left.release())
        for one in sent:
            one.result()

    def receive(count: int) -> None:
        while count > 0:
            messages: list[Message] = []
            with suppress(BadRequestException):  # the proxy refuses to wait for a queue that has nothing at the moment
                messages = consumer.receive(RECEIVED, INVISIBLE_S)
            for one in messages:
                consumer.ack(one)
                count -= 1

    consumer.startup()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        began_s = time.perf_counter()
        {"send": send, "send_ahead": send_ahead, "receive": receive}[command["do"]](command["count"])
        print(json.dumps({"seconds": time.perf_counter() - began_s}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
