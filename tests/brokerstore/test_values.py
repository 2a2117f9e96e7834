"""Values of options and arguments: a value that no store can hold is wrong use, never an internal error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from brokerstore.tool.commands import every_command
from brokerstore.tool.hints import after_error
from storageio import DiskFull
from tests.brokerstore.tool import run

NINES = "9" * 23
TOO_LARGE = [
    f"dump P --limit {NINES}",
    f"dump P --begin {NINES}",
    f"dump P --end {NINES}",
    f"dump P --from-offset {NINES}",
    f"dump P --to-offset {NINES}",
    f"dump P --queue {NINES}",
    f"dump P --queue {'9' * 5000}",
    f"tail P -n {NINES}",
    f"query P HotTopic hot-1 --max {NINES}",
    f"query P HotTopic hot-1 --begin {NINES}",
    f"get P --at {NINES}",
    f"get P --topic HotTopic --queue 0 --offset {NINES}",
    "get P --topic HotTopic --queue 0 --offset 0 --count 2147483648",
    f"rebuild P --index-slots {NINES}",
    "rebuild P --index-num 2147483648",
    "recover P --commitlog-size 2147483648",
    f"verify P --cq-size {NINES}",
    f"put P HotTopic x --queue {NINES}",
    "put P HotTopic x --queue 2147483648",
    f"offsets reset P --apply --group g --topic HotTopic --to {NINES}",
    f"offsets reset P --apply --group g --topic HotTopic --to {'9' * 5000}",
    f"offsets reset P --apply --group g --topic HotTopic --to-time {NINES}",
    f"offsets reset P --apply --group g --topic HotTopic --queue {NINES} --to latest",
    f"diff P P --limit {NINES}",
    f"bench NEW --size {NINES}",
    f"bench NEW --messages {NINES}",
    f"copy P --to NEW --all --commitlog-size {NINES}",
    f"export P --to-offset {NINES}",
    f"queryMsgByKey P -t HotTopic -k hot-1 -m {NINES}",
    f"queryMsgByOffset P -t HotTopic -i {NINES} -o 0",
]
NO_UTF8 = [
    "dump P --topic BAD",
    "dump P --key BAD",
    "dump P --tag BAD",
    "dump P --property a=BAD",
    "query P BAD k",
    "query P HotTopic BAD",
    "get P --topic BAD --queue 0 --offset 0",
    "put P BAD x",
    "put P HotTopic x --key BAD",
    "put P HotTopic x --tag BAD",
    "put P HotTopic x --property a=BAD",
    "offsets show P --group BAD",
    "offsets show P --topic BAD",
    "copy P --to NEW --topic BAD",
    "export P --to csv --topic BAD",
    "queryMsgByKey P -t BAD -k x",
    "queryMsgByKey P -t HotTopic -k BAD",
]


@pytest.mark.parametrize("line", TOO_LARGE + NO_UTF8)
def test_a_value_that_no_store_holds_is_wrong_use(fixture_store: Any, tmp_path: Path, line: str) -> None:
    """The error names the option, and nothing is done."""
    words = {"P": str(fixture_store("plain").store), "NEW": str(tmp_path / "new"), "BAD": "\udcff", "a=BAD": "a=\udcff"}
    ran = run(*(words.get(word, word) for word in line.split()))
    assert (ran.code, ran.out) == (2, "")
    assert "internal error" not in ran.talk
    assert not (tmp_path / "new").exists()


def with_subcommands(commands: Iterable[click.Command]) -> Iterator[click.Command]:
    for command in commands:
        yield command
        if isinstance(command, click.Group):
            yield from with_subcommands(command.commands.values())


def test_every_number_of_an_option_has_bounds() -> None:
    """Every number of every command has both bounds, so that it fits a C integer."""
    kinds = [
        (command.name, param.name, param.type)
        for command in with_subcommands(every_command().values())
        for param in command.params
    ]
    unbound = [
        (command, name)
        for command, name, kind in kinds
        if (isinstance(kind, click.IntRange) and (kind.min is None or kind.max is None)) or kind is click.INT
    ]
    assert unbound == []
    assert any(isinstance(kind, click.IntRange) for _, _, kind in kinds)


def test_the_largest_values_do_not_overflow(fixture_store: Any) -> None:
    """Values within the bounds must not overflow either."""
    store, large, top = fixture_store("plain").store, (1 << 63) - 1, (1 << 31) - 1
    for line in (f"--limit {large} --end {large}", f"--from-offset {large}", f"--queue {top}", f"--begin {large}"):
        assert run("dump", "--json", store, *line.split()).code == 0
    assert run("tail", store, "-n", large).code == 0
    assert run("get", store, "--at", large).code == 1
    assert run("get", store, "--topic", "HotTopic", "--queue", top, "--offset", large).code == 1
    assert run("get", store, "--topic", "HotTopic", "--queue", 0, "--offset", 0, "--count", top).code == 0
    assert run("query", store, "HotTopic", "hot-1", "--end", large, "--max", top).code == 0
    assert run("query", store, "HotTopic", "hot-1", "--begin", large).code == 0


def test_the_hint_names_an_existing_folder(tmp_path: Path) -> None:
    """The hint names the nearest existing folder, because `df` fails on a missing file."""
    error = DiskFull("allocate", str(tmp_path / "brokerstore" / "rebuild" / "index" / "0"), 28, "No space left on device")
    assert f"df -h {tmp_path}  " in after_error(error, "rebuild", str(tmp_path))
    assert "ls -ld /proc/nowhere" not in run("bench", "/proc/nowhere/below").talk
    assert "ls -ld /proc;" in run("bench", "/proc/nowhere/below").talk


def test_a_broken_broker_conf_does_not_advise_to_repair_the_store(fixture_store: Any, tmp_path: Path) -> None:
    """The store is healthy, so the hint names the file to correct."""
    conf = tmp_path / "broker.conf"
    conf.write_text(f"maxHashSlotNum={NINES}\n")
    ran = run("info", fixture_store("plain").store, "--config", conf)
    assert (ran.code, f"run: head {conf}" in ran.talk, "verify" in ran.talk) == (1, True, False)
