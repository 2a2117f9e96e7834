"""Classic queues of RabbitMQ 4.0.5 and 4.3.6, compared with the restarted servers; whole node folders."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from rabbitstore import RabbitStore, verify
from rabbitstore.folder import RabbitmqFacts
from rabbitstore.format.layout import RECORD_HEAD
from rabbitstore.format.rdq import encode_record, scan_records
from rabbitstore.format.terms import FALSE, NONE, Atom
from storageio import StoreCorrupt
from storebytes.finding import UNSUPPORTED
from tests.archives import unpack
from tests.brokerstore.schema import check_schema
from tests.brokerstore.tool import run
from tests.rabbitstore.stream.test_stream_fixtures import plain

from .conftest import DATA
from .later import VHOST, make_later_machine, node_of

KINDS = ("rabbitmq4-clean", "rabbitmq4-killed", "rabbitmq43-clean")
UNREAD = 3
MARKED = b"\x83h\x04w\x02mc"


@pytest.fixture(scope="module", params=KINDS)
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the node's folder and the manifest of one fixture."""
    above = tmp_path_factory.mktemp(request.param)
    unpack(DATA / f"{request.param}.tar.xz", above / "source")
    node_of(request.param, above / "source", above / "node")
    return above / "node", json.loads((above / "source" / "manifest.json").read_text())


def body_of(published: dict[Any, Any]) -> bytes:
    """Return the body that the fixtures' rule gives."""
    digest = hashlib.sha256(f"{published['tag']}:{published['n']}".encode()).hexdigest()
    return (digest * (published["size"] // len(digest) + 1))[: published["size"]].encode()


def digest_of(row: dict[str, Any], sent: dict[Any, Any]) -> str:
    """Return the SHA-256 of a delivered body, which the manifest has where it is not that of the rule."""
    return row.get("sha256", hashlib.sha256(body_of(sent)).hexdigest())


def _persistent(store: RabbitStore, queue: str) -> list[Any]:
    return [message for message in store.messages(queue) if message.persistent]


def _alive(found: list[Any], delivered: list[dict[str, Any]]) -> list[Any]:
    """Drop the messages that had expired when the restarted server delivered, as the server does."""
    names = [row["message_id"] for row in delivered]
    gone = [message for message in found if message.properties.get("message_id") not in names]
    assert all(message.expiry_us for message in gone)
    return [message for message in found if message not in gone]


def test_classic_queues_are_what_the_restarted_server_delivered(real: tuple[Path, dict[str, Any]]) -> None:
    """Order, id, body, route, properties and redelivered flag of every persistent message are the server's."""
    node, manifest = real
    published = {f"m{row['n']}": row for row in manifest["published"]}
    queues = {name: row for name, row in manifest["queues"].items() if row["type"] == "classic"}
    with RabbitStore.open(str(node), "r") as store:
        assert {row.queue for row in store.queues()} >= queues.keys()
        for name, expected in queues.items():
            delivered = expected["delivered"]
            found = _alive(_persistent(store, name), delivered)
            assert len(found) == len(delivered), name
            for message, row in zip(found, delivered, strict=True):
                sent = published[row["message_id"]]
                assert (message.properties["message_id"], len(message.body)) == (row["message_id"], row["size"])
                assert hashlib.sha256(message.body).hexdigest() == digest_of(row, sent) and message.vhost == manifest["vhost"]
                assert (message.exchange, message.routing_keys[0]) == (row["exchange"], row["routing_key"])
                properties = row.get("properties", sent["properties"])
                found_here = {field: plain(value) for field, value in message.properties.items() if field != "message_id"}
                assert found_here == plain(properties), name
                assert message.redelivered == row["redelivered"] or manifest["end"] != "stop"


def test_a_healthy_folder_has_no_problem(real: tuple[Path, dict[str, Any]]) -> None:
    """Nothing is reported as damage, and every message is read."""
    node, _manifest = real
    found = verify(str(node / VHOST))
    assert found.problems == [] and found.lost == []
    assert [note for note in found.notes if note.kind == UNSUPPORTED] == []


def test_info_lists_the_parts_that_are_not_read(real: tuple[Path, dict[str, Any]]) -> None:
    """The survey lists quorum queues, streams, metadata and the version with its evidence."""
    node, manifest = real
    kinds = {kind: {name for name, row in manifest["queues"].items() if row["type"] == kind} for kind in ("quorum", "stream")}
    found = RabbitmqFacts(str(node)).node
    assert set(found.quorum_queues) == kinds["quorum"] and len(found.streams) == len(kinds["stream"])
    facts = run("info", "--json", node).json
    assert set(facts["quorum_queues"]) == kinds["quorum"]
    assert facts["classic_queues"] == {"index_version_1": 0, "index_version_2": facts["queues"]}
    later = manifest["server"] == "RabbitMQ 4.3.6"
    assert (facts["server_version"], facts["metadata"]) == (
        ("4.3.0 or later", ["khepri"]) if later else ("4.0.0 or later", ["mnesia"])
    )
    text = run("info", node).out
    assert "not checked" in text and re.search(rf"quorum_queues\W+{len(kinds['quorum'])}\n", text)
    check_schema("rabbit_info", facts)


def test_output_about_a_node_lists_the_skipped_queues(real: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Quorum queues of a later version are named on stderr with it, and in JSON where the answer is one object."""
    node, manifest = real
    quorum = {name for name, row in manifest["queues"].items() if row["type"] == "quorum"}
    assert "not_read" not in run("ls", "--json", node).json
    is_later = manifest["server"] == "RabbitMQ 4.3.6"
    if is_later:
        node = shutil.copytree(node, tmp_path / "later")
        make_later_machine(node)
    answers = {command: run(command, "--json", node) for command in ("ls", "stats", "verify")}
    for command in ("ls", "stats"):
        left_out = answers[command].json.get("not_read", {"quorum_queues": [], "streams": []})
        assert (set(left_out["quorum_queues"]), left_out["streams"]) == (quorum if is_later else set(), [])
        assert (f"not read: {len(quorum)} quorum queues of an unsupported format" in answers[command].talk) == is_later
        assert ("queue machine version 9" in answers[command].talk) == is_later
        assert answers[command].code == (UNREAD if is_later else 0)
    machines = [note for note in answers["verify"].json["notes"] if "queue machine version 9" in note["found"]]
    assert len(machines) == (len(quorum) if is_later else 0)
    for command, ran in answers.items():
        check_schema("verify" if command == "verify" else f"rabbit_{command}", ran.json)


def test_a_folder_without_evidence_has_an_unknown_version(real: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Without the file of feature flags the version is unknown."""
    node, _manifest = real
    bare = shutil.copytree(node, tmp_path / "bare")
    assert RabbitmqFacts(str(bare)).node.server_version == "unknown" and RabbitmqFacts(str(bare / VHOST)).node is None


def container(body: bytes, protocol: str = "mc_amqpl") -> bytes:
    """Encode a message term as the server does, with UTF-8 atoms, which `terms.encode` does not write."""

    def put(term: Any) -> bytes:
        if isinstance(term, Atom):
            return b"w" + bytes((len(term),)) + term.encode()
        if isinstance(term, tuple):
            return b"h" + bytes((len(term),)) + b"".join(map(put, term))
        if isinstance(term, list):
            return b"l" + len(term).to_bytes(4, "big") + b"".join(map(put, term)) + b"j" if term else b"j"
        if isinstance(term, dict):
            return b"t" + len(term).to_bytes(4, "big") + b"".join(put(key) + put(value) for key, value in term.items())
        return bytes((97, term)) if isinstance(term, int) else b"m" + len(term).to_bytes(4, "big") + term

    content = (Atom("content"), 60, NONE, b"\0\0", Atom("rabbit_framing_amqp_0_9_1"), [body])
    annotations = {Atom("id"): b"i" * 16, Atom("x"): b"", Atom("rk"): [b"q"], Atom("d"): FALSE}
    return b"\x83" + put((Atom("mc"), Atom(protocol), content, annotations))


@pytest.mark.parametrize("hole", [1, 2, 7, 8, 9, 24, 25, 26, 100, 2695, 70_000])
def test_zeros_between_records_are_skipped(hole: int) -> None:
    """A compaction of RabbitMQ 4 leaves holes of any size between records and at the end."""
    sizes = 5000, 4100, 70_000, 9
    records = [encode_record(bytes((number,)) * 16, container(b"x" * size)) for number, size in enumerate(sizes)]
    data = bytes(hole) + records[0] + records[1] + bytes(hole) + records[2] + bytes(hole) + records[3] + bytes(hole)
    problems = []
    found = scan_records(data, "0.rdq", problems)
    assert [record.msg_id[0] for record in found.records] == [0, 1, 2, 3] and problems == []
    for record, whole in zip(found.records, records, strict=True):
        assert data[record.offset : record.offset + record.total_size] == whole


def test_zeroes_in_a_file_of_3_10_are_damage() -> None:
    """The compaction of 3.10 leaves no holes, so a lost sector is reported."""
    old = encode_record(b"a" * 16, b"\x83h\x06d\x00\x0dbasic_message")
    problems = []
    assert len(scan_records(old + bytes(512) + old, "0.rdq", problems).records) == 1
    assert [problem.kind for problem in problems] == ["torn_record"]


def test_a_torn_record_after_a_hole_is_damage() -> None:
    """Bytes that are neither a record nor zeros are reported."""
    record = encode_record(b"a" * 16, container(b"body"))
    problems = []
    found = scan_records(record + bytes(30) + RECORD_HEAD.pack(900, b"b" * 16) + b"torn", "0.rdq", problems)
    assert len(found.records) == 1 and [problem.kind for problem in problems] == ["torn_record"]


def test_a_damaged_container_is_damage(tmp_path: Path) -> None:
    """A cut term, or one without its id, is damage and not an unsupported format."""
    from rabbitstore.format.content import decode_content

    whole = container(b"body")
    assert decode_content(whole).body == b"body" and not decode_content(whole).persistent
    for damaged in (whole[:-9], whole.replace(b"i" * 16, b"i" * 15), whole.replace(b"w\x02id", b"w\x02ix")):
        with pytest.raises(StoreCorrupt):
            decode_content(damaged)
