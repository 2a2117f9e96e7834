"""The help of each command ends in examples, and every one of them runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from brokerstore import Message, MessageStore, RabbitStore, StoreConfig
from brokerstore.tool.cli import brokerstore as tool
from brokerstore.tool.examples import EXAMPLES
from tests.brokerstore.tool import run


def commands(group: click.Group, above: str = "") -> Iterator[str]:
    """Every command that help shows, those of groups too."""
    for name, command in group.commands.items():
        if not command.hidden:
            yield above + name
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} ")


@pytest.mark.parametrize("name", sorted(commands(tool)))
def test_the_help_shows_examples(name: str) -> None:
    """One or more, each on a line of its own, as it would be typed."""
    shown = [line.strip() for line in run(*name.split(), "--help").out.splitlines()]
    assert EXAMPLES[name]
    for example in EXAMPLES[name]:
        assert f"brokerstore {example}" in shown
        assert example.startswith(f"{name.split()[0]} ") or example == name


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, in a folder with a store, a virtual host, a letter and a broker's file."""
    monkeypatch.chdir(tmp_path)
    with MessageStore.open("orders-store", config=StoreConfig.small()) as store:
        for number in range(20):
            store.put(Message("orders", b"order %d" % number, keys=[f"order-{number}"]))
        with store.consumer("orders", group="billing") as consumer:
            consumer.ack(next(iter(consumer)))
    with RabbitStore.open("vhost") as rabbit:
        rabbit.declare_queue("mail")
        for number in range(10):
            rabbit.publish("mail", b"letter %d" % number)
    Path("letter.txt").write_text("a letter")
    Path("broker.conf").write_text("mappedFileSizeCommitLog=67108864\n")
    for name, lines in EXAMPLES.items():
        for line in lines:
            words = shlex.split(line)
            if "-f" in words:
                words.remove("-f")  # it would wait for ever
            ran = run(*words)
            assert ran.code == 0, (name, line, ran.talk)
            assert ran.out or "--out" in words, line
    assert run("dump", "--json", "--limit", 1, "from-rabbit").json["topic"]
    assert Path("orders.parquet").stat().st_size > 1000
