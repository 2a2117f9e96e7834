"""The help of each command ends in examples, and each of them runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest

from brokerstore import Message, MessageStore, RabbitStore, StoreConfig
from brokerstore.tool.commands import NAMES, every_command
from tests.archives import unpack
from tests.brokerstore.tool import run
from tests.rabbitstore.conftest import DATA


def examples(commands: Mapping[str, click.Command], above: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the examples of every command that the help shows."""
    for name, command in commands.items():
        if not command.hidden:
            lines = (command.epilog or "").splitlines()
            yield above + name, [line.strip().removeprefix("brokerstore ") for line in lines if line.startswith("  ")]
        if isinstance(command, click.Group):
            yield from examples(command.commands, f"{name} ")


WAITING = ("replicate", "serve", "web")  # for a broker or clients; `tests/rocketlink` runs them
EXAMPLES = dict(examples({name: every_command()[name] for name in NAMES}))


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_help_shows_examples(name: str) -> None:
    """Each example is on a line of its own, as it is typed."""
    shown = [line.strip() for line in run(*name.split(), "--help").out.splitlines()]
    assert EXAMPLES[name]
    for example in EXAMPLES[name]:
        assert f"brokerstore {example}" in shown
        assert example.startswith(f"{name.split()[0]} ") or example == name


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run in order, in a folder with a store, a virtual host, a node, a cluster, a letter and a broker's file."""
    monkeypatch.chdir(tmp_path)
    with MessageStore.open("orders-store", config=StoreConfig.small().but(broker_version="5.4.0")) as store:
        for number in range(20):
            store.put(Message("orders", b"order %d" % number, keys=[f"order-{number}"], tags="paid"))
        with store.consumer("orders", group="billing") as consumer:
            consumer.ack(next(iter(consumer)))
    with RabbitStore.open("vhost") as rabbit:
        rabbit.declare_queue("mail")
        for number in range(10):
            rabbit.publish("mail", b"letter %d" % number)
    unpack(DATA / "definitions" / "3.10.8.tar.xz", tmp_path)
    unpack(DATA / "rabbitmq43-cluster.tar.xz", tmp_path)
    Path("letter.txt").write_text("a letter")
    Path("broker.conf").write_text("mappedFileSizeCommitLog=67108864\n")
    for name, lines in EXAMPLES.items():
        for line in lines if name not in WAITING else []:
            words = shlex.split(line)
            if "-f" in words:
                words.remove("-f")  # it would never end
            ran = run(*words)
            assert ran.code == 0, (name, line, ran.talk)
            assert ran.out or "--out" in words, line
    assert run("dump", "--json", "--limit", 1, "from-rabbit").json["topic"]
    assert Path("orders.parquet").stat().st_size > 1000
