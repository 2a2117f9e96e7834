"""Folders of three nodes of one real cluster of 4.3.6: node c was killed early, a and b 30 messages later.

`delivered.json` has the ids of what a and c delivered when they were started without b.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rabbitstore.cluster import cluster_queues
from tests.archives import unpack
from tests.brokerstore.tool import run

from .conftest import DATA

QUORUM, STREAMS = [f"q{number}.ä" for number in range(6)], [f"s{number}" for number in range(3)]
Folders = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def above(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the folders once."""
    found = tmp_path_factory.mktemp("cluster")
    unpack(DATA / "rabbitmq43-cluster.tar.xz", found)
    return found


@pytest.fixture
def folders(above: Path) -> Folders:
    """Return a function that returns the folders of some nodes."""
    return lambda names: [str(above / f"{name}@localhost") for name in names]


@pytest.mark.parametrize("names", ["ac", "ca"])
def test_the_dump_of_two_folders_is_what_their_servers_deliver(names: str, folders: Folders, above: Path) -> None:
    """In the order of each queue, whatever the order of the folders."""
    found: dict[str, list[str]] = {}
    ran = run("dump", "--json", *folders(names))
    for line in ran.lines:
        found.setdefault(line["queue"], []).append(line["properties"]["message_id"])
    assert found == json.loads((above / "delivered.json").read_text()) and ran.code == 0


def test_each_queue_has_its_newest_copy(folders: Folders) -> None:
    """The copies of a and b are equal; c lacks the last 30 messages, and what acknowledged others."""
    every = cluster_queues(folders("abc"))
    replicated = {one.queue: one for one in every if one.type != "classic"}
    assert sorted(replicated) == sorted(QUORUM + STREAMS)
    a, b, c = folders("abc")
    for one in replicated.values():
        assert ([copy.folder for copy in one.copies], one.members, one.has_majority) == ([a, b, c], 3, True)
        assert one.alone == 0 and one.agreed == one.copies[0].last_index
    left = {one.queue: one for one in cluster_queues([c, a])}
    assert {left[name].copies[0].folder for name in QUORUM + STREAMS} == {a}
    assert {left[name].alone for name in STREAMS} == {30} and all(left[name].has_majority for name in QUORUM)
    assert all(left[name].agreed == left[name].copies[1].last_index for name in QUORUM + STREAMS)
    assert [(one.queue, one.copies[0].folder) for one in every if one.type == "classic"] == [("c.a", a), ("c.b", b), ("c.c", c)]


def test_info_of_several_folders_shows_which_to_keep(folders: Folders) -> None:
    """And of one copy of three, that a newer one may exist."""
    ran = run("info", *folders("ac"))
    assert ran.code == 0 and "11 queues in 2 folders." in ran.out and "keep that folder" in ran.out
    assert "a majority of the copies" not in ran.out
    alone = run("info", *folders("cc"))
    assert "10 queues in 1 folder." in alone.out and "Fewer than a majority of the copies are here" in alone.out
    view = {one["queue"]: one for one in run("info", "--json", *folders("cc")).json["queues"]}
    assert view["q0.ä"]["members"] == 3 and not view["q0.ä"]["has_majority"] and view["q0.ä"]["agreed"] is None


def test_folders_of_another_kind_are_refused(folders: Folders, tmp_path: Path) -> None:
    """Several folders are those of one cluster."""
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    for command in ("info", "dump"):
        for given in ([*folders("a"), tmp_path / "store"], [tmp_path / "store", *folders("a")]):
            ran = run(command, *given)
            assert ran.code == 2 and "one RabbitMQ cluster" in ran.talk


def test_a_limit_counts_the_messages_of_all_folders(folders: Folders) -> None:
    """100 of the two folders together: 70 of c.a are those of the first."""
    found = run("dump", "--json", "--limit", "630", *folders("ac")).lines
    assert len(found) == 630 and found == run("dump", "--json", *folders("ac")).lines[:630]
