"""Random commands for the queue machine, and what the server's own one makes of them."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from rabbitstore.format.terms import FALSE, TRUE, UNDEFINED, Atom, Opaque, Term, encode
from rabbitstore.format.terms_cy import decode
from rabbitstore.quorum.machine import Machine
from rabbitstore.quorum.message import info_of
from rabbitstore.quorum.snapshot import Snapshot
from rabbitstore.quorum.state import read_state

SCRIPT = Path(__file__).parent / "queue_machine.escript"
HISTORIES = {  # by the release that has the modules: the versions of a queue, one after the other
    "bookworm": [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]],
    "trixie": [[3], [4], [5], [2, 3], [3, 4], [0, 1, 2, 3], [0, 2, 3, 4, 5]],
    "sid": [[7], [8], [7, 8], [0, 2, 3, 5, 7, 8]],
}
AUTO, PREFETCH = Atom("auto"), Atom("simple_prefetch")
STRICT = 8
START_MS = 1_700_000_000_000
_NODE = b"d\x00\x09a@nowhere"
PIDS = [Opaque(88, _NODE + bytes((0, 0, number, 7, 0, 0, 0, 0, 1, 2, 3, 4))) for number in range(4)]
RESOURCE = (Atom("resource"), b"/", Atom("queue"), b"q")
_TTLS = (None, None, None, b"0", b"40", b"100000")

Command = tuple[Any, ...]


class Program(NamedTuple):
    """A queue's configuration and its commands, each with index and time; `(version, N)` is a new leader's."""

    config: dict[Any, Any]
    commands: list[tuple[int, int, Command]]


class Result(NamedTuple):
    """What the server has after a program.

    The last snapshots that it could have made have index, version, the state, and the one after the commands behind it.
    """

    version: int
    state: bytes
    snapshots: list[tuple[int, int, bytes, bytes]]


def config_of(chance: random.Random) -> dict[Any, Any]:
    """Return random settings of a queue."""

    def maybe(rate: float, value: Any) -> Any:
        return value if chance.random() < rate else UNDEFINED

    return {
        Atom("name"): Atom("q"),
        Atom("queue_resource"): RESOURCE,
        Atom("dead_letter_handler"): UNDEFINED,
        Atom("release_cursor_interval"): chance.choice([0, 3, 10]),
        Atom("max_length"): maybe(0.25, chance.randint(3, 12)),
        Atom("max_bytes"): maybe(0.15, chance.randint(50, 300)),
        Atom("overflow_strategy"): Atom(chance.choice(["drop_head", "reject_publish"])),
        Atom("single_active_consumer_on"): TRUE if chance.random() < 0.3 else FALSE,
        Atom("delivery_limit"): maybe(0.4, chance.randint(0, 3)),
        Atom("msg_ttl"): maybe(0.2, 5000),
    }


def _message(chance: random.Random, number: int, version: int) -> Term:
    """Return a message; one for version 8, which has a list for each priority, may have a priority."""
    ttl = chance.choice(_TTLS)
    names = [UNDEFINED] * 14
    names[7] = ttl or UNDEFINED
    properties = (Atom("P_basic"), *names) if ttl else Atom("none")
    body = bytes([97 + number % 26]) * chance.choice([0, 1, 20, 90])
    content = (Atom("content"), 60, properties, b"\0\0", Atom("rabbit_framing_amqp_0_9_1"), [body])
    if version == STRICT and chance.random() < 0.5:
        annotations = {Atom("x"): b"", Atom("rk"): [b"q"], Atom("p"): chance.choice([0, 4, 9, 40])}
        annotations |= {Atom("ttl"): int(ttl)} if ttl else {}
        return (Atom("mc"), Atom("mc_amqpl"), content, annotations)
    return (Atom("basic_message"), (Atom("resource"), b"/", Atom("exchange"), b""), [b"q"], content, b"", TRUE)


class _Maker:
    """Makes the commands of one queue's clients; `held` guesses which message ids a consumer has."""

    def __init__(self, seed: int, versions: list[int]) -> None:
        self.chance = random.Random(seed)
        self.versions = versions
        self.version = 0
        self.sent = dict.fromkeys(range(len(PIDS)), 0)
        self.consumers: dict[tuple[bytes, Opaque], int] = {}
        self.subscribed: set[tuple[bytes, Opaque]] = set()
        self.index, self.time = 1, START_MS
        self.commands: list[tuple[int, int, Command]] = []

    def program(self, steps: int) -> Program:
        """Return a program that takes a new version from time to time."""
        config = config_of(self.chance)
        upgrades = sorted(self.chance.sample(range(1, steps), len(self.versions) - 1)) if len(self.versions) > 1 else []
        self._upgrade(self.versions[0], config)
        self.add((Atom("update_config"), config))
        for step in range(steps):
            if step in upgrades:
                self._upgrade(self.versions[1 + upgrades.index(step)], config)
            self._step(config)
        return Program(config, self.commands)

    def _upgrade(self, version: int, config: dict[Any, Any]) -> None:
        """Take a version; the server cannot convert a consumer of version 0 that waits to be the active one."""
        if self.version == 0 and config[Atom("single_active_consumer_on")] == TRUE:
            for pid in PIDS:
                self._end(pid)
        self.version = version
        if version:
            self.add((Atom("version"), version))

    def add(self, command: Command) -> None:
        self.index += 1
        self.time += self.chance.choice([0, 1, 10, 30])
        self.commands.append((self.index, self.time, command))

    def _step(self, config: dict[Any, Any]) -> None:
        chance, what = self.chance, self.chance.random()
        sender = chance.randrange(len(PIDS))
        if what < 0.42:
            self._send(sender)
        elif what < 0.54:
            self._consume(PIDS[sender])
        elif what < 0.9:
            self._settle()
        elif what < 0.93 and self.consumers:
            key = chance.choice(list(self.consumers))
            if key not in self.subscribed:
                return
            if config[Atom("single_active_consumer_on")] != TRUE:  # version 1 may lose what such a consumer holds
                self.subscribed.discard(key)
            self.add((Atom("checkout"), key, Atom("cancel"), {}))
        elif what < 0.935 and self.version >= 2:
            self.add((Atom("timeout"), Atom("expire_msgs")))
        elif what < 0.945 and self.version == STRICT:
            self._lose(PIDS[sender])
        elif what < 0.95:
            self._end(PIDS[sender])
        elif what < 0.96:
            self.add((Atom("purge"),))
        elif what < 0.97:
            self.add((Atom("nodeup"), Atom("a@nowhere")))
        elif what < 0.98:
            self.add((Atom("update_config"), config | {Atom("max_length"): chance.choice([UNDEFINED, 4, 9])}))
        elif self.version >= 1:
            self.add((Atom("register_enqueuer"), PIDS[sender]))

    def _end(self, pid: Opaque) -> None:
        self.add((Atom("down"), pid, Atom("noproc")))
        self.sent[PIDS.index(pid)] = 0
        self.subscribed -= {key for key in self.subscribed if key[1] == pid}

    def _lose(self, pid: Opaque) -> None:
        """Lose a process's connection, and perhaps give up on a consumer."""
        self.add((Atom("down"), pid, Atom("noconnection")))
        for key in sorted(self.subscribed, key=str):
            if self.chance.random() < 0.3:
                self.add((Atom("timeout"), (Atom("consumer_disconnected_timeout"), key)))

    def _send(self, sender: int) -> None:
        """Send a message, now and then one ahead of its number, with those before it later, or one again."""
        numbers = self.chance.choice([[1]] * 12 + [[2, 1], [3, 1, 2], [1, 1], [2]])
        for number in numbers:
            self.add((Atom("enqueue"), PIDS[sender], self.sent[sender] + number, _message(self.chance, number, self.version)))
        self.sent[sender] += max(numbers) if numbers != [2] else 0
        if self.chance.random() < 0.05:
            self.add((Atom("enqueue"), UNDEFINED, UNDEFINED, _message(self.chance, 3, self.version)))

    def _consume(self, pid: Opaque) -> None:
        chance = self.chance
        key = (chance.choice([b"1", b"2"]), pid)
        if chance.random() < 0.4:
            get = (b"get%d" % self.index, pid)
            self.consumers[get] = 1
            self.add((Atom("checkout"), get, (Atom("dequeue"), Atom(chance.choice(["settled", "unsettled"]))), {}))
            return
        if key in self.subscribed:  # a channel refuses the tag
            return
        self.subscribed.add(key)
        prefetch = chance.choice([1, 2, 3, 50])
        arguments = [(b"x-priority", Atom("long"), chance.randint(0, 3))] if chance.random() < 0.3 else []
        meta = {Atom("ack"): TRUE, Atom("prefetch"): prefetch, Atom("args"): arguments}
        self.consumers[key] = 0
        self.add((Atom("checkout"), key, (AUTO, prefetch, PREFETCH), meta))

    def _settle(self) -> None:
        if not self.consumers:
            return
        chance = self.chance
        key = chance.choice(list(self.consumers))
        highest = self.consumers[key] = self.consumers[key] + chance.randint(0, 2)
        ids = chance.sample(range(highest + 1), min(highest + 1, chance.randint(1, 4)))
        if chance.random() < 0.3:
            ids = list(range(highest + 1))
        self.add((Atom(chance.choice(["settle", "settle", "return", "return", "discard"])), key, ids[:30]))


def program(seed: int, versions: list[int], steps: int = 60) -> Program:
    """Return a random program for a queue of these versions, one after the other."""
    return _Maker(seed, versions).program(steps)


def run_server(home: Path, programs: list[Program]) -> tuple[bytes, bytes]:
    """Run programs on the queue machine of an installed server; return both as terms, for `read_results`."""
    folder = home / "root" / "srv" / "queue-machine"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script").write_bytes(SCRIPT.read_bytes())
    rows = [(one.config, [(index, time, command) for index, time, command in one.commands]) for one in programs]
    requests = encode(rows)
    (folder / "in").write_bytes(requests)
    release = (home / "version").read_text().strip()
    libraries = f"/usr/lib/rabbitmq/lib/rabbitmq_server-{release}/plugins"
    environment = {
        "ERL_LIBS": libraries,
        "HOME": "/tmp",
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "ERL_CRASH_DUMP": "/dev/null",
    }
    command = ["escript", "/srv/queue-machine/script", "/srv/queue-machine/in", "/srv/queue-machine/out"]
    words = ["chroot", str(home / "root"), "env", "-i", *(f"{name}={value}" for name, value in environment.items()), *command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    answered = (folder / "out").read_bytes()
    shutil.rmtree(folder)
    return requests, answered


def read_results(requests: bytes, answered: bytes) -> list[tuple[Program, Result]]:
    """Return the programs and what the server made of them."""
    programs: Any = decode(requests, improper=True)
    results: Any = decode(answered, improper=True)
    return [
        (Program(config, list(commands)), Result(version, state, list(snapshots)))
        for (config, commands), (version, state, snapshots) in zip(programs, results, strict=True)
    ]


def differences(requests: bytes, answered: bytes) -> tuple[list[str], int, int]:
    """Return how the library's states differ from the server's, and the numbers of programs and snapshots.

    A snapshot with an enqueue that waits for an earlier one is left out: a queue in use has none.
    """
    found, count = [], 0
    rows = read_results(requests, answered)
    for number, (one, result) in enumerate(rows):
        got, expected = facts(replay(fresh(one.config), one.commands)), facts(decoded(result.state, result.version))
        found += [f"{number}: {name}: {got[name]} {expected[name]}"[:600] for name in got if got[name] != expected[name]]
        for index, version, state, after in result.snapshots:
            start = decoded(state, version)
            if any(start.early.values()):
                continue
            count += 1
            got = facts(replay(start, [row for row in one.commands if row[0] > index]))
            expected = facts(decoded(after, result.version))
            names = [name for name in got if got[name] != expected[name]]
            found += [f"{number} from {index}: {name}: {got[name]} {expected[name]}"[:600] for name in names]
    return found, len(rows), count


def replay(machine: Machine, commands: list[tuple[int, int, Command]]) -> Machine:
    """Apply commands to the library's machine."""
    for index, time, command in commands:
        if command[0] == "version":
            machine.set_version(command[1])
        else:
            machine.apply(index, time, command, UNDEFINED, info_of(command))
    return machine


def fresh(config: dict[Any, Any]) -> Machine:
    """Return the library's machine of a new queue."""
    return Machine.declared(config)


def decoded(state: bytes, version: int) -> Machine:
    """Return the library's machine with a state of the server."""
    snapshot = Snapshot(0, 0, version, 1, memoryview(state), "state", 0)
    return read_state(*snapshot.split(), version, snapshot.file)


def facts(machine: Machine) -> dict[str, Any]:
    """Return what matters of a machine, without what no command can show."""

    def row(message: Any) -> tuple[int, int, int | None]:
        return message.index, message.acquired, message.expiry_ms

    def consumer(one: Any) -> tuple[Any, ...]:
        held = {number: row(message) for number, message in one.held.items()}
        return one.status, one.before, one.credit, one.next_id, one.priority, one.is_once, held

    known = {key for key, one in machine.consumers.items() if one.credit > 0 and one.status == "up"}
    return {
        "returns": [row(one) for one in machine.returns],
        "ready": [row(one) for one in machine.ready()],
        "bytes": machine.ready_bytes,
        "enqueuers": machine.enqueuers,
        "early": {pid: [(number, one.index) for number, one in rows] for pid, rows in machine.early.items() if rows},
        "consumers": {key: consumer(one) for key, one in machine.consumers.items()},
        "waiting": [(key, consumer(one)) for key, one in machine.waiting],
        "service": {
            priority: [key for key in keys if key in known]
            for priority, keys in sorted(machine.service.items())
            if any(key in known for key in keys)
        },
        "limits": (
            machine.settings.max_length,
            machine.rules.can_expire and machine.settings.msg_ttl,
            machine.settings.drops_head,
        ),
    }
