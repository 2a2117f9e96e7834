"""The declarations of dead nodes are those that their servers exported: RabbitMQ 3.8 to 4.3, in Mnesia and in Khepri.

Each folder was saved after SIGKILL or a stop; `export.json` is what `rabbitmqctl export_definitions` wrote before.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rabbitstore.definitions import NAMES, _Records, read_definitions
from rabbitstore.format.terms import FALSE, NONE, TRUE, UNDEFINED, Atom, Opaque
from storageio import UnknownStore
from storebytes.finding import Finding
from tests.archives import unpack
from tests.brokerstore.tool import run

from .conftest import DATA
from .exports import differences

MNESIA, KHEPRI = ("3.8.9", "3.10.8", "4.0.5"), ("4.0.5-khepri", "4.3.6", "4.3.6-snapshot")
TABLES = {
    "rabbit_durable_queue": "queues", "rabbit_durable_exchange": "exchanges", "rabbit_durable_route": "bindings",
    "rabbit_user": "users", "rabbit_user_permission": "permissions", "rabbit_topic_permission": "topic_permissions",
    "rabbit_vhost": "vhosts", "rabbit_runtime_parameters": "parameters",
}  # fmt: skip
Node = tuple[Path, dict[str, Any]]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Node]:
    """Return a function that unpacks the folder of a release, once."""
    known: dict[str, Node] = {}

    def open_one(name: str) -> Node:
        if name not in known:
            above = tmp_path_factory.mktemp("declared")
            unpack(DATA / "definitions" / f"{name}.tar.xz", above)
            shutil.move(above / "feature_flags", above / "node-feature_flags")
            known[name] = above / "node", json.loads((above / "export.json").read_text())
        return known[name]

    return open_one


@pytest.fixture
def dead(unpacked: Callable[[str], Node], tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies the folder of a release."""
    return lambda name: Path(shutil.copytree(unpacked(name)[0], tmp_path / "node"))


@pytest.mark.parametrize("name", [*MNESIA, *KHEPRI])
def test_definitions_are_those_that_the_server_exported(name: str, unpacked: Callable[[str], Node]) -> None:
    """Names of any characters, arguments of every type, nested values, deleted things gone; the exit code is 0."""
    node, export = unpacked(name)
    ran = run("definitions", node)
    assert (ran.code, ran.talk) == (0, "")
    assert differences(export, ran.json, suite="bullseye" if name == "3.8.9" else "") == []
    assert list(ran.json) == sorted(NAMES)


@pytest.mark.parametrize("name", ["3.10.8", "4.3.6"])
def test_info_and_ls_count_the_declarations(name: str, unpacked: Callable[[str], Node]) -> None:
    """Both have the same numbers, which are those of the export."""
    node, export = unpacked(name)
    counts = {key: len(export[key]) for key in ("vhosts", "queues", "bindings", "users", "policies")}
    for command in ("info", "ls"):
        declared = run(command, "--json", "--vhost", "/", node).json["declared"]
        assert {key: declared[key] for key in counts} == counts
        assert f"{counts['bindings']} bindings" in run(command, "--vhost", "/", node).out


def test_definitions_of_one_virtual_host(unpacked: Callable[[str], Node]) -> None:
    """`--vhost` leaves what belongs to others out; users belong to none."""
    node, export = unpacked("4.3.6")
    found = run("definitions", "--vhost", "/", node).json
    assert len(found["queues"]) == len([one for one in export["queues"] if one["vhost"] == "/"])
    assert [one["name"] for one in found["vhosts"]] == ["/"] and len(found["users"]) == len(export["users"])


def test_definitions_into_a_file(unpacked: Callable[[str], Node], tmp_path: Path) -> None:
    """The file has what stdout had; stderr counts it."""
    node, _export = unpacked("3.10.8")
    ran = run("definitions", node, "--out", tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text()) == run("definitions", node).json
    assert ran.out == "" and "4 users" in ran.talk


def test_a_folder_without_metadata_is_refused(unpacked: Callable[[str], Node], tmp_path: Path) -> None:
    """A virtual host's folder has no declarations, and a RocketMQ store none of this kind."""
    (tmp_path / "vhost").mkdir()
    (tmp_path / "vhost" / ".vhost").write_text("/")
    with pytest.raises(UnknownStore, match="no metadata"):
        read_definitions(str(tmp_path / "vhost"))
    assert run("definitions", tmp_path / "vhost").code == 3
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    ran = run("definitions", tmp_path / "store")
    assert ran.code == 2 and "works only on" in ran.talk


@pytest.mark.parametrize("table", sorted(TABLES))
def test_a_missing_table_is_reported_and_the_others_are_read(table: str, dead: Callable[[str], Path]) -> None:
    """The node of 3.10 was started again before it was stopped: it has its rows in the tables' own files."""
    node = dead("3.10.8")
    (node / "LATEST.LOG").write_bytes(b"\1\2\3\4cXM\x0b")
    before = run("definitions", node).json
    for ending in ("DCD", "DCL"):
        (node / f"{table}.{ending}").unlink(missing_ok=True)
    ran = run("definitions", node)
    assert ran.code == 1 and f"{table}.DCD" in ran.talk
    lost = {TABLES[table]} | ({"bindings"} if table in ("rabbit_durable_queue", "rabbit_durable_exchange") else set())
    lost |= {"policies", "global_parameters"} if table == "rabbit_runtime_parameters" else set()
    for name in NAMES:
        assert (ran.json[name] == before[name]) == (name not in lost), name


def test_a_damaged_item_costs_that_item_alone(dead: Callable[[str], Path]) -> None:
    """A byte of one row is changed: it is named, with file and offset, and the other rows are there."""
    node = dead("3.10.8")
    file = node / "rabbit_user.DCD"
    data = bytearray(file.read_bytes())
    at = data.index(b"internal_user") - 3
    data[at] ^= 0xFF  # the tag of the record's name
    file.write_bytes(data)
    ran = run("definitions", node)
    assert ran.code == 1 and f"rabbit_user.DCD at byte {at - 3}" in ran.talk
    assert len(ran.json["users"]) == 3 and len(ran.json["queues"]) == 44


def test_a_damaged_size_costs_that_item_alone(dead: Callable[[str], Path]) -> None:
    """The walk continues at the next item's mark."""
    node = dead("3.10.8")
    file = node / "rabbit_user.DCD"
    data = bytearray(file.read_bytes())
    at = next(start for start, stop in items(bytes(data)) if b"internal_user" in data[start:stop])
    data[at] = 0x7F
    file.write_bytes(data)
    ran = run("definitions", node)
    assert ran.code == 1 and f"rabbit_user.DCD at byte {at}: bad metadata" in ran.talk
    assert len(ran.json["users"]) == 3


def items(data: bytes) -> list[tuple[int, int]]:
    """Return start and end of the items of a log, by its format."""
    found, at = [], 8
    while at + 8 <= len(data) and data[at + 4 : at + 8] == b"bWLA":
        size = struct.unpack_from(">I", data, at)[0]
        stop = at + 8 + size + (16 if size >= 65528 else 0)
        found.append((at, stop))
        at = stop
    return found


def test_a_transaction_without_its_decision_is_not_carried_out(dead: Callable[[str], Path]) -> None:
    """A kill between the two items of a transaction leaves what a start takes back: here a binding that was deleted.

    The killed node of 4.0 has every change in LATEST.LOG.  A cut between those two items leaves the state before them.
    """
    node = dead("4.0.5")
    log = node / "LATEST.LOG"
    data = log.read_bytes()
    every = items(data)
    last = max(
        n for n, (at, stop) in enumerate(every) if b"decision" in data[at:stop] and b"rabbit_durable_route" in data[at:stop]
    )
    cuts = [read_at(node, log, data[: every[number][1]]) for number in (last - 1, last, last + 1)]
    assert cuts[0] == cuts[1] != cuts[2]


def read_at(node: Path, log: Path, data: bytes) -> dict[str, Any]:
    """Return the definitions with this log."""
    log.write_bytes(data)
    found = read_definitions(str(node))
    assert found.problems == []
    return found.content


def test_a_torn_end_of_the_log_is_no_damage(dead: Callable[[str], Path]) -> None:
    """A server cuts an unfinished item, too."""
    node = dead("4.0.5")
    log = node / "LATEST.LOG"
    data = log.read_bytes()
    start, stop = items(data)[-1]
    assert read_at(node, log, data[: stop - 3]) == read_at(node, log, data[:start])


@pytest.mark.parametrize("name", ["4.0.5-khepri", "4.3.6"])
def test_a_damaged_log_of_khepri_is_reported_and_the_rest_is_read(name: str, dead: Callable[[str], Path]) -> None:
    """One bad record in the middle: it is named, and what does not depend on it is there."""
    node = dead(name)
    log = next((node / "coordination").glob("*/*.wal"))
    data = bytearray(log.read_bytes())
    at = data.index(b"p_data", len(data.rstrip(b"\0")) // 2)
    data[at] ^= 0xFF
    log.write_bytes(data)
    ran = run("definitions", node)
    assert ran.code == 1 and f"{log.name} at byte" in ran.talk
    assert len(ran.json["vhosts"]) >= 2 and ran.json["users"]


def test_a_lost_snapshot_of_khepri_is_reported(dead: Callable[[str], Path]) -> None:
    """The log begins behind the snapshot, so most declarations are gone, and the exit code tells it."""
    node = dead("4.3.6-snapshot")
    states = list((node / "coordination").glob("*/*/snapshots/*/snapshot.dat"))
    assert states
    for state in states:
        state.write_bytes(state.read_bytes()[:-5])
    ran = run("definitions", node)
    assert ran.code == 1 and "bad snapshot" in ran.talk


def test_bindings_of_what_is_not_declared_are_left_out_and_reported(dead: Callable[[str], Path]) -> None:
    """An import would stop at them."""
    node = dead("3.10.8")
    for ending in ("DCD", "DCL"):
        (node / f"rabbit_durable_exchange.{ending}").unlink(missing_ok=True)
    found = read_definitions(str(node))
    assert found.content["exchanges"] == []
    assert {one["source"] for one in found.content["bindings"]} <= {"amq.topic", "amq.direct"}
    assert "missing_declaration" in {problem.kind for problem in found.problems}


def test_queues_that_a_start_drops_are_left_out_with_their_bindings() -> None:
    """Khepri has them, too; nothing is reported, and other values of records keep their meaning."""

    def resource(kind: str, name: bytes) -> Any:
        return Atom("resource"), b"/", Atom(kind), name

    def queue(name: bytes, durable: Atom, owner: Any) -> Any:
        arguments = [(b"d", Atom("decimal"), (1, 15)), (b"v", Atom("void"), UNDEFINED), (b"x", Atom("binary"), b"\xff")]
        rest = [UNDEFINED] * 12
        return (
            Atom("amqqueue"),
            resource("queue", name),
            durable,
            FALSE,
            owner,
            arguments,
            *rest,
            Atom("rabbit_quorum_queue"),
            {},
        )

    def binding(name: bytes) -> Any:
        return Atom("binding"), resource("exchange", b"amq.topic"), b"k", resource("queue", name), []

    names = {b"kept": (TRUE, NONE), b"transient": (FALSE, NONE), b"owned": (TRUE, Opaque(88, b""))}
    records = [*(queue(name, *row) for name, row in names.items()), *map(binding, names), binding(b"unknown")]
    records += [(Atom("internal_user"), b"u", b"\1\2", [Atom("\u00c3\u00a4")], UNDEFINED), (Atom("vhost"), b"", [], {})]
    records += [(Atom("exchange"), resource("exchange", b"\xff"), Atom("fanout"), TRUE, FALSE, FALSE, [])]
    problems: list[Finding] = []
    found = _Records(records, problems).content()
    arguments = {"d": 1.5, "v": "undefined", "x": "Not UTF-8, base64 is: /w=="}
    assert [(one["name"], one["type"], one["arguments"]) for one in found["queues"]] == [("kept", "quorum", arguments)]
    assert [one["destination"] for one in found["bindings"]] == ["kept"]
    assert [(one["tags"], one["hashing_algorithm"]) for one in found["users"]] == [("\u00e4", "rabbit_password_hashing_md5")]
    assert [one.kind for one in problems] == ["bad_metadata", "missing_declaration"]
