"""Folders of whole RabbitMQ nodes: classic queues, quorum queues and streams in every job."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from sparkstore import BadOption, UnknownColumn, message_schema
from sparkstore.jobs import export, stats
from sparkstore.schema import RABBIT_COLUMNS
from storageio import StoreCorrupt
from tests.archives import unpack
from tests.brokerstore.tool import run
from tests.rabbitstore.conftest import DATA
from tests.rabbitstore.later import make_later_machine, node_of

from .local import audited, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
KINDS = ("rabbitmq4-clean", "rabbitmq4-killed", "rabbitmq4-streams", "rabbitmq43-clean")


def unpacked(kind: str, above: Path) -> tuple[Path, dict[str, Any]]:
    """Return a node's folder and the server's own account of it."""
    unpack(DATA / f"{kind}.tar.xz", above / "source")
    node_of(kind, above / "source", above / "node")
    return above / "node", json.loads((above / "source" / "manifest.json").read_text())


def in_spark(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line of the tool's dump in the form of a row without its type."""
    row = dict.fromkeys(RABBIT_COLUMNS) | line
    row["body"] = base64.b64decode(row.pop("body_base64"))
    del row["type"]
    return row


def parsed(row: dict[str, Any]) -> dict[str, Any]:
    made = row | {"properties": json.loads(row["properties"])}
    del made["type"]
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_rows_equal_the_dump_of_every_type_of_queue(tmp_path: Path, kind: str) -> None:
    """One schema for all; the columns of quorum queues and streams are null for others."""
    path, manifest = unpacked(kind, tmp_path)
    found = rows(path)
    assert [parsed(row) for row in found] == [in_spark(line) for line in run("dump", "--json", path).lines]
    types = {row["queue"]: row["type"] for row in found}
    reported = {name: row["type"] for name, row in manifest["queues"].items()}
    assert {name: reported[name] for name in types if name in reported} == {
        name: types[name] for name in types if name in reported
    }
    assert len(set(types.values())) > 1


def test_one_queue_of_each_type(tmp_path: Path) -> None:
    """The option queue selects, and no other queue is planned."""
    path, _ = unpacked("rabbitmq4-streams", tmp_path)
    every = rows(path)
    for kind in {row["type"] for row in every}:
        name = next(row["queue"] for row in every if row["type"] == kind)
        assert rows(path, queue=name) == [row for row in every if row["queue"] == name] != []


def test_a_format_of_a_later_version_is_an_error_unless_it_is_skipped(tmp_path: Path) -> None:
    """The queue is named."""
    path, _ = unpacked("rabbitmq43-clean", tmp_path)
    make_later_machine(path)
    with pytest.raises(StoreCorrupt, match="unsupported"):
        rows(path)


def test_a_damaged_stream_names_the_file_of_the_node(tmp_path: Path) -> None:
    """The message has the whole path, so that somebody can look at it."""
    path, _ = unpacked("rabbitmq4-streams", tmp_path)
    file = max((path / "stream").rglob("*.segment"), key=lambda one: one.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 255
    file.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=str(file)):
        rows(path)
    assert len(rows(path, badRecords="skip")) > 0


@pytest.mark.parametrize("kind", KINDS[:3])
def test_an_audit_counts_what_verify_counts(tmp_path: Path, kind: str) -> None:
    """The labels are those of a RabbitMQ folder."""
    path, _ = unpacked(kind, tmp_path)
    report, reported = audited(path), run("verify", "--json", path).json
    names = ("queues", "messages", "records", "files")
    assert report.is_ok == reported["ok"]
    assert list(report.counts) == ["stores", *names]
    assert {name: report.counts[name] for name in names} == {name: reported["counts"][name] for name in names}
    assert report.lines()[-1].startswith("OK: 1 stores, ")


def test_columns_of_the_other_kind_are_refused_by_name(tmp_path: Path) -> None:
    """The error says which kind of folder it is."""
    path, _ = unpacked("rabbitmq4-clean", tmp_path)
    with pytest.raises(UnknownColumn, match="unknown column 'topic' of a RabbitMQ folder; the columns are queue"):
        rows(path, message_schema(["topic"]))


@pytest.mark.spark
def test_statistics_and_export_of_a_node(spark: SparkSession, tmp_path: Path) -> None:
    """`stats --by queue` used to end with "no column 'topic'"; the counts are the tool's."""
    path, _ = unpacked("rabbitmq4-streams", tmp_path)
    expected = rows(path)
    reported = {row["queue"]: row for row in run("stats", "--json", path).json["queues"] if row["messages"]}
    found = [row.asDict() for row in stats(spark, str(path)).collect()]
    assert {row["queue"]: (row["messages"], row["size_bytes"], row["persistent"], row["redelivered"]) for row in found} == {
        name: (row["messages"], row["size_bytes"], row["persistent"], row["redelivered"]) for name, row in reported.items()
    }
    assert {(row["queue"], row["type"]) for row in found} == {(row["queue"], row["type"]) for row in expected}
    keys = {row["key"]: row["messages"] for row in stats(spark, str(path), "key").collect()}
    assert keys == Counter(key for row in expected for key in row["routing_keys"])
    assert sum(row["messages"] for row in stats(spark, str(path), "size").collect()) == len(expected)
    with pytest.raises(BadOption, match="counted by queue, size, key, found 'topic'"):
        stats(spark, str(path), "topic")
    export_reported = export(spark, str(path), str(tmp_path / "out"))
    assert export_reported.messages == len(expected)
    assert (tmp_path / "out" / f"queue={expected[0]['queue']}").is_dir()
