"""Each version of the queue machine does what RabbitMQ's own module did with the same commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from rabbitstore.format.terms import UNDEFINED, Atom, Opaque
from rabbitstore.quorum.machine import Machine
from rabbitstore.quorum.machine_parts import MessageInfo, Settings
from rabbitstore.quorum.processes import node_of, pid_order, uniform
from rabbitstore.quorum.versions import RULES, VERSIONS, oldest_with
from tests.archives import unpack
from tests.builds import World
from tests.interop.rabbitmq4.queue_machine import HISTORIES, differences
from tests.interop.rabbitmq4.test_queue_machine import ARCHIVE, FURTHER, KEPT, name_of

from .test_command_reader import entry, route

OLD = Opaque(88, b"d\x00\x09a@nowhere" + bytes((0, 0, 1, 7, 0, 0, 0, 2, 1, 2, 3, 4)))
NEW = Opaque(88, b"w\x09a@nowhere" + bytes((0, 0, 1, 7, 0, 0, 0, 2, 1, 2, 3, 4)))


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the programs and what the server made of them."""
    folder = tmp_path_factory.mktemp("queue-machine")
    unpack(ARCHIVE, folder)
    return folder


@pytest.mark.parametrize("history", [name_of(found) for every in HISTORIES.values() for found in every])
def test_states_and_snapshots_are_those_of_the_server(history: str, results: Path) -> None:
    """Random commands of clients, with upgrades among them: messages, consumers, limits and the order of delivery are equal."""
    requests, answered = ((results / f"{history}.{ending}").read_bytes() for ending in ("programs", "results"))
    found, count, snapshots = differences(requests, answered)
    assert found == [] and count == KEPT + len(FURTHER.get(tuple(map(int, history.split("-"))), ()))
    assert snapshots or not {0, 1, 2, 3} & set(map(int, history.split("-")))


def test_every_version_has_a_row() -> None:
    """The table begins with version 0 and has no gap."""
    assert list(RULES) == list(VERSIONS) == list(range(9))


def test_one_process_is_the_same_in_the_logs_of_all_servers() -> None:
    """Before OTP 26 a node's name has another tag, before OTP 23 a process has a shorter end."""
    short = Opaque(103, b"d\x00\x09a@nowhere" + bytes((0, 0, 1, 7, 0, 0, 0, 2, 4)))
    assert uniform(OLD) == NEW and uniform((b"tag", OLD)) == (b"tag", NEW)
    assert uniform(short) == NEW._replace(data=NEW.data[:-4] + b"\0\0\0\x04")
    latin = Opaque(88, b"d\x00\x03a@\xe4" + bytes(12))
    assert node_of(uniform(latin)) == "a@\u00e4" and pid_order(uniform(OLD)) == (2, 263)
    assert uniform(UNDEFINED) == UNDEFINED and uniform(Opaque(90, b"d")) == Opaque(90, b"d")


def test_a_publisher_goes_on_after_an_upgrade() -> None:
    """Its number counts on, though the new server writes its process in other bytes."""
    machine = Machine.declared({})
    for index, pid in enumerate((OLD, NEW), 1):
        machine.apply(index, 0, (Atom("enqueue"), pid, index, b""), UNDEFINED, MessageInfo(1))
        machine.set_version(5)
    assert [message.index for message in machine.ready()] == [1, 2]


def test_a_version_never_goes_back() -> None:
    """A leader with an older server changes nothing."""
    machine = Machine.declared({})
    machine.set_version(5)
    machine.set_version(3)
    assert machine.version == 5


def test_the_oldest_possible_version_follows_from_names() -> None:
    """Each name is in settings or commands from one version on."""
    assert oldest_with([]) == oldest_with([b"max_length"]) == 0
    assert oldest_with([b"overflow_strategy"]) == 1 and oldest_with([b"overflow_strategy", b"msg_ttl"]) == 2
    assert oldest_with([b"\x83h\x04w\x04$usr..h\x04w\x01e"]) == 4


@pytest.mark.parametrize(("version", "size"), [(5, 10), (7, 10), (8, 17)])
def test_from_version_8_on_the_properties_count_for_the_byte_limit(version: int, size: int) -> None:
    """Two messages of 17 bytes with their properties, 10 without, and a limit of 30 bytes."""
    machine = Machine(Settings(max_bytes=30), version)
    for index in (1, 2):
        machine.apply(index, 0, (Atom("enqueue"), UNDEFINED, UNDEFINED, b""), UNDEFINED, MessageInfo(10, properties_size=7))
    assert (machine.ready_bytes, machine.count_ready()) == (2 * size, 2) if size == 10 else (size, 1)


def test_messages_that_follow_have_the_sizes_of_the_version(world: World) -> None:
    """The kernel adds the properties when it is told to: two bytes of each here."""
    reader = world.module("rabbitstore.quorum.command_cy").CommandReader()
    entries = [entry(pairs=route(), sequence_number=number, size=10) for number in (1, 2, 3)]
    run = world.module("rabbitstore.quorum.entries_cy").EntryRun(1, 1, memoryview(b"".join(entries)), "file")
    for number, data in enumerate(entries):
        run.append(number * len(data), len(data))
    for counts, size in ((False, 10), (True, 12)):
        reader.counts_properties = counts
        assert reader.read(run.view, run.position(1), run.size(1)) and (reader.size, reader.properties_size) == (10, 2)
        assert [number >> 44 for number in reader.follow(run, 2, 4, 2)] == [size, size]
