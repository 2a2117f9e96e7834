"""Declare everything that a server can, at random too, for tests of what `definitions` reads of its folder."""

from __future__ import annotations

import base64
import contextlib
import datetime
import decimal
import json
import shutil
import signal
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path
from random import Random
from typing import Any

from .server import Server, home_of

PLUGINS = "rabbitmq_management,rabbitmq_federation"
ADVANCED = "{rabbit, [{khepri_snapshot_interval, 60}]}"
SETTINGS = "raft.wal_max_size_bytes = 200000\n"
VHOSTS = ("/", "\u00fcber/\"x'", "\u0416 \U0001f407", "v" * 200)
NAMES = (
    "a",
    "b",
    "\u00e4\u00f6\u00fc",
    "with \"quotes' and / %2F",
    "\U0001f407\u0416",
    "n" * 200,
    "c.d.e",
    "*.#",
    "{}[]<>|^$\\",
)
USERS = ("u1", "\u00fcser", "with space", "guest")
TAGS = ("administrator", "monitoring,policymaker", "", "x y", "\u00e4")
TYPED: dict[str, Any] = {
    "text": "\u00e4\u0416", "empty": "", "number": 42, "long": 2**40, "negative": -5, "yes": True, "none": None,
    "list": [1, "two", {"three": 3}, [True]], "table": {"x": {"y": [None, 2**33]}},
    "time": datetime.datetime(2024, 1, 2, 3, 4, 5),
}  # fmt: skip
DECIMAL = {"decimal": decimal.Decimal("1.5")}
PATIENCE_S = 60


class Declarer:
    """A server of one release, with what its clients declare.  `khepri` asks for Khepri, which 4.0 has as an option."""

    def __init__(self, suite: str, name: str, shift: int, *, khepri: bool = False) -> None:
        """Prepare the node; nothing is started."""
        self.suite = suite
        self.is_khepri = khepri
        self.http = 0
        settings = SETTINGS if suite in ("trixie", "sid") else ""
        self.server = Server(
            name, node_name="declared", shift=shift, plugins=PLUGINS, home=home_of(suite), advanced=ADVANCED, settings=settings
        )
        self.http = self.server.port + 1000
        with (self.server.outside / "rabbitmq.conf").open("a") as file:
            file.write(f"management.tcp.port = {self.http}\nmanagement.tcp.ip = 127.0.0.1\n")

    def start(self) -> None:
        """Start the node and wait until its API answers."""
        is_new = not self.server.node.exists()
        self.server.start()
        limit = time.monotonic() + PATIENCE_S
        while time.monotonic() < limit and not isinstance(self.api("GET", "overview"), dict):
            time.sleep(0.1)
        self.server.control("await_startup")  # the API answers before
        if is_new and self.is_khepri and self.suite == "trixie":
            assert self.server.control("enable_feature_flag", "--experimental", "khepri_db") == ""

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Call the API; return its answer, or the error as text."""
        login = base64.b64encode(b"guest:guest").decode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http}/api/{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"content-type": "application/json", "authorization": f"Basic {login}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                text = answer.read()
                return json.loads(text) if text else None
        except (OSError, ValueError) as error:
            return f"{error}"

    def connect(self, vhost: str) -> Any:
        """Return a connection to a virtual host."""
        import pika

        login = pika.PlainCredentials("guest", "guest")
        return pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self.server.port, vhost, login, heartbeat=0, blocked_connection_timeout=10)
        )

    def export(self) -> dict[str, Any]:
        """Return the server's own account."""
        assert self.server.control("export_definitions", f"{self.server.inside}/export.json") == ""
        found: dict[str, Any] = json.loads((self.server.outside / "export.json").read_text())
        return found

    def load(self, content: dict[str, Any]) -> str:
        """Import definitions; return an empty text, or why the server refused them."""
        (self.server.outside / "import.json").write_text(json.dumps(content))
        return self.server.control("import_definitions", f"{self.server.inside}/import.json")

    def save(self, target: Path) -> Path:
        """Copy the folder of the stopped node, and the feature flags beside it."""
        shutil.copytree(self.server.node, target)
        shutil.copy(f"{self.server.node}-feature_flags", f"{target}-feature_flags")
        return target

    def forget(self) -> None:
        """Let the node begin without anything."""
        shutil.rmtree(self.server.outside / "mnesia")
        (self.server.outside / "mnesia").mkdir()


def quote(name: str) -> str:
    """Return a name as a part of the API's path."""
    return urllib.parse.quote(name, safe="")


def declare_everything(node: Declarer) -> None:
    """Declare each kind of thing under each odd name, and delete some again."""
    node.server.control("add_vhost", "")
    for vhost in VHOSTS:
        where = quote(vhost)
        node.api(
            "PUT", f"vhosts/{where}", {"description": f"of {vhost[:9]}", "tags": "one,two", "default_queue_type": "classic"}
        )
        node.api("PUT", f"permissions/{where}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        node.api("PUT", f"policies/{where}/p1", {
            "pattern": "^\u00e4\"'\\\\.", "priority": 3, "apply-to": "queues",
            "definition": {"max-length": 5, "dead-letter-exchange": "\u00e4", "message-ttl": 60000},
        })  # fmt: skip
        node.api(
            "PUT", f"operator-policies/{where}/o1", {"pattern": ".*", "definition": {"max-length": 99}, "apply-to": "queues"}
        )
        node.api("PUT", f"parameters/federation-upstream/{where}/{quote(NAMES[2])}", {
            "value": {"uri": "amqp://localhost/%2f", "expires": 3600000, "ack-mode": "on-confirm"}
        })  # fmt: skip
        node.api("PUT", f"vhost-limits/{where}/max-queues", {"value": 900})
        _declare_in(node, vhost)
    for number, user in enumerate(USERS[:-1]):
        node.api("PUT", f"users/{quote(user)}", {"password": "secret", "tags": TAGS[number]})
        node.api("PUT", f"permissions/%2F/{quote(user)}", {"configure": "^$", "write": '\u00e4|"', "read": ".*"})
        node.api("PUT", f"topic-permissions/%2F/{quote(user)}", {"exchange": "amq.topic", "write": "^a", "read": "b$"})
        node.api("PUT", f"user-limits/{quote(user)}/max-connections", {"value": 7})
    node.api("PUT", "global-parameters/mine", {"value": {"a": [1, 2.5, None, True, {"b": "\u00fc"}], "c": {}}})
    node.api("PUT", "users/gone", {"password": "secret", "tags": ""})
    node.api("DELETE", "users/gone")
    node.api("PUT", "vhosts/gone", {})
    node.api("DELETE", "vhosts/gone")


def _declare_in(node: Declarer, vhost: str) -> None:
    connection = node.connect(vhost)
    channel = connection.channel()
    channel.exchange_declare("alternate", "fanout", durable=True)
    for number, name in enumerate(NAMES):
        kind = ("direct", "fanout", "topic", "headers")[number % 4]
        more = {"alternate-exchange": "alternate"} if number % 2 else {}
        channel.exchange_declare(name, kind, durable=True, auto_delete=number == 3, arguments=more)
        channel.queue_declare(name, durable=True, arguments=TYPED | DECIMAL if number == 1 else {"x-max-length": number + 1})
        channel.queue_bind(name, name, f"key.{name}", {"x-match": "all", "n": number} | (TYPED if number == 2 else {}))
        channel.exchange_bind(name, "alternate", name)
    if node.suite != "bullseye":
        channel.queue_declare("stream", durable=True, arguments={"x-queue-type": "stream", "x-max-age": "1D"})
    channel.queue_declare("quorum", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 3})
    channel.queue_bind("quorum", "amq.topic", "#")
    channel.queue_declare("gone", durable=True)
    channel.queue_bind("gone", "amq.topic", "gone")
    channel.queue_delete("gone")
    channel.exchange_declare("gone", "topic", durable=True)
    channel.exchange_bind("gone", "alternate", "")
    channel.queue_bind("quorum", "gone", "")
    channel.exchange_delete("gone")
    channel.queue_bind("quorum", "amq.direct", "once")
    channel.queue_unbind("quorum", "amq.direct", "once")
    connection.close()


class Program:
    """Declares and deletes at random until the server is gone; `steps` counts what it asked for."""

    def __init__(self, node: Declarer, seed: int) -> None:
        """Take the seed of all choices."""
        self._node = node
        self._random = Random(seed)
        self._connections: dict[str, Any] = {}
        self.steps = 0
        self.is_ended = False

    def run(self) -> None:
        """Ask for one thing after the other."""
        for vhost in VHOSTS[1:]:  # those that no earlier life left
            self._node.api("PUT", f"vhosts/{quote(vhost)}", {})
            self._node.api("PUT", f"permissions/{quote(vhost)}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        while not self.is_ended:
            step = self._random.choice(
                (self._exchange, self._exchange, self._queue, self._queue, self._bind, self._bind, self._bind, self._unbind,
                 self._delete, self._user, self._policy, self._parameter, self._vhost)
            )  # fmt: skip
            try:
                step()
                self.steps += 1
            except Exception:  # what the server refuses closes the channel
                for connection in self._connections.values():
                    with contextlib.suppress(Exception):
                        connection.close()
                self._connections.clear()

    def _pick(self, names: tuple[str, ...]) -> str:
        return self._random.choice(names)

    def _channel(self) -> Any:
        vhost = self._pick(VHOSTS[:2] + VHOSTS[:1])
        if vhost not in self._connections:
            self._connections[vhost] = self._node.connect(vhost)
        return self._connections[vhost].channel()

    def _exchange(self) -> None:
        kind = self._pick(("direct", "fanout", "topic", "headers"))
        durable = self._random.random() < 0.8
        more = {"alternate-exchange": self._pick(NAMES)} if self._random.random() < 0.3 else {}
        auto_delete = self._random.random() < 0.2
        self._channel().exchange_declare(self._pick(NAMES), kind, durable=durable, auto_delete=auto_delete, arguments=more)

    def _queue(self) -> None:
        kind = self._random.random()
        more: dict[str, Any] = {"x-queue-type": "quorum"} if kind < 0.1 else TYPED if kind < 0.3 else {}
        durable = kind < 0.1 or self._random.random() < 0.8
        exclusive = kind > 0.9
        auto_delete = kind > 0.3 and self._random.random() < 0.2
        self._channel().queue_declare(
            self._pick(NAMES), durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=more
        )

    def _bind(self) -> None:
        channel, more = self._channel(), {"n": self._random.randrange(2)} if self._random.random() < 0.3 else {}
        source, destination, key = self._pick((*NAMES, "amq.topic")), self._pick(NAMES), self._pick(NAMES)
        bind = channel.queue_bind if self._random.random() < 0.7 else channel.exchange_bind
        bind(destination, source, key, more)

    def _unbind(self) -> None:
        channel = self._channel()
        source, destination, key = self._pick((*NAMES, "amq.topic")), self._pick(NAMES), self._pick(NAMES)
        (channel.queue_unbind if self._random.random() < 0.7 else channel.exchange_unbind)(destination, source, key)

    def _delete(self) -> None:
        channel = self._channel()
        if self._random.random() < 0.5:
            channel.queue_delete(self._pick(NAMES), if_empty=self._random.random() < 0.2)
        else:
            channel.exchange_delete(self._pick(NAMES), if_unused=self._random.random() < 0.3)

    def _user(self) -> None:
        user, vhost = quote(self._pick(USERS[:-1])), quote(self._pick(VHOSTS))
        self._random.choice((
            lambda: self._node.api("PUT", f"users/{user}", {"password": str(self.steps), "tags": self._pick(TAGS)}),
            lambda: self._node.api("DELETE", f"users/{user}"),
            lambda: self._node.api("PUT", f"permissions/{vhost}/{user}", {"configure": "c", "write": "w", "read": ""}),
            lambda: self._node.api("DELETE", f"permissions/{vhost}/{user}"),
            lambda: self._node.api(
                "PUT",
                f"topic-permissions/{vhost}/{user}",
                {"exchange": self._pick(("amq.topic", "a")), "write": "w", "read": "r"},
            ),
            lambda: self._node.api("DELETE", f"topic-permissions/{vhost}/{user}"),
            lambda: self._node.api("PUT", f"user-limits/{user}/max-channels", {"value": self.steps}),
        ))()  # fmt: skip

    def _policy(self) -> None:
        vhost, name, kind = quote(self._pick(VHOSTS)), quote(self._pick(NAMES)), self._pick(("policies", "operator-policies"))
        if self._random.random() < 0.3:
            self._node.api("DELETE", f"{kind}/{vhost}/{name}")
        else:
            body = {"pattern": f"^{self.steps}", "definition": {"max-length": self.steps}, "apply-to": "queues", "priority": 1}
            self._node.api("PUT", f"{kind}/{vhost}/{name}", body)

    def _parameter(self) -> None:
        vhost, name = quote(self._pick(VHOSTS)), quote(self._pick(NAMES))
        upstream = f"parameters/federation-upstream/{vhost}/{name}"
        self._random.choice((
            lambda: self._node.api("PUT", upstream, {"value": {"uri": "amqp://", "expires": 1 + self.steps}}),
            lambda: self._node.api("DELETE", upstream),
            lambda: self._node.api("PUT", f"global-parameters/{name}", {"value": {"a": self.steps}}),
            lambda: self._node.api("DELETE", f"global-parameters/{name}"),
            lambda: self._node.api("PUT", f"vhost-limits/{vhost}/max-queues", {"value": 100 + self.steps}),
            lambda: self._node.api("DELETE", f"vhost-limits/{vhost}/max-queues"),
        ))()  # fmt: skip

    def _vhost(self) -> None:
        vhost = self._pick(VHOSTS[2:])
        if self._random.random() < 0.5:
            self._node.api("DELETE", f"vhosts/{quote(vhost)}")
        else:
            self._node.api("PUT", f"vhosts/{quote(vhost)}", {"description": str(self.steps)})


def run_and_kill(node: Declarer, seed: int, seconds: float) -> int:
    """Run a program and kill the server meanwhile; return the number of its steps."""
    program = Program(node, seed)
    thread = threading.Thread(target=program.run, daemon=True)
    thread.start()
    time.sleep(seconds)
    node.server.end(signal.SIGKILL)
    program.is_ended = True
    thread.join(PATIENCE_S)
    return program.steps


def definitions(folder: Path) -> dict[str, Any]:
    """Return what the tool writes of a folder; it must find nothing wrong."""
    from tests.brokerstore.tool import run

    ran = run("definitions", folder)
    assert ran.code == 0, ran.talk[:2000]
    assert all(": note: " in line for line in ran.talk.splitlines()), ran.talk[:2000]
    found: dict[str, Any] = ran.json
    return found
