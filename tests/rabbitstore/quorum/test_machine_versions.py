"""Each version of the queue machine does what RabbitMQ's own module did with the same commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from rabbitstore.format.terms import UNDEFINED, Atom, Opaque
from rabbitstore.quorum.machine import Machine, MessageInfo, node_of, pid_order, uniform
from rabbitstore.quorum.versions import RULES, VERSIONS, oldest_with
from tests.archives import unpack
from tests.interop.rabbitmq4.queue_machine import HISTORIES, differences
from tests.interop.rabbitmq4.test_queue_machine import ARCHIVE, name_of

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
    asked, answered = ((results / f"{history}.{ending}").read_bytes() for ending in ("programs", "results"))
    found, count, snapshots = differences(asked, answered)
    assert found == [] and count == 6
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
