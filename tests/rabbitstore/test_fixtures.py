"""Every field of the manifests that RabbitMQ's own modules and a restarted broker wrote."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from rabbitstore.format import properties, tables
from rabbitstore.format.content import decode_content, encode_content
from rabbitstore.format.layout import PERSISTENT_FOLDER
from rabbitstore.format.names import queue_folder_name, vhost_folder_name
from rabbitstore.format.rdq import TERM_AT, encode_record, scan_records
from rabbitstore.read.statistics import statistics
from rabbitstore.read.vhost_folder import VhostFolder


def _part(message: Any) -> str:
    return message.queue if message.priority is None else f"{message.queue}#{message.priority}"


def test_every_record_of_every_rdq_file(either: Any) -> None:
    """File sizes, valid ends, record locations, terms, payloads and flags are the server's."""
    records = {(row["store"], row["file"], row["offset"]): row for row in either.manifest["rdq_records"]}
    for row in either.manifest["rdq_files"]:
        data = (either.vhost / row["store"] / row["file"]).read_bytes()
        problems = []
        scan = scan_records(data, row["file"], problems)
        assert (len(scan.records), len(data), scan.valid_end, problems) == (row["records"], row["size"], row["valid_end"], [])
        for record in scan.records:
            expected = records.pop((row["store"], row["file"], record.offset))
            term = data[record.offset + TERM_AT : record.offset + record.total_size - 1]
            content = decode_content(term)
            assert (record.msg_id.hex(), record.total_size) == (expected["msg_id"], expected["total_size"])
            assert hashlib.sha256(term).hexdigest() == expected["term_sha256"]
            assert (content.exchange, list(content.routing_keys)) == (expected["exchange"], expected["routing_keys"])
            assert (len(content.body), hashlib.sha256(content.body).hexdigest()) == (
                expected["size"],
                expected["payload_sha256"],
            )
            assert (content.persistent, content.properties_bin.hex()) == (expected["persistent"], expected["properties_bin"])
            assert properties.decode(content.properties_bin).get("message_id") == expected["message_id"]
    assert records == {}


def test_files_written_from_decoded_values_are_byte_identical(either: Any) -> None:
    """Terms, property blocks and records encode to the server's bytes."""
    for path in sorted(either.vhost.glob("msg_store_*/*.rdq")):
        data = path.read_bytes()
        made = bytearray()
        for record in scan_records(data, path.name).records:
            content = decode_content(data[record.offset + TERM_AT : record.offset + record.total_size - 1])
            block = properties.encode(properties.decode(content.properties_bin))
            made += encode_record(content.msg_id, encode_content(content._replace(properties_bin=block)))
        assert made == data


def test_the_clean_stop_tables(either: Any) -> None:
    """File summaries, locations with reference counts, client references and recovery terms are the server's."""
    for store in ("msg_store_persistent", "msg_store_transient"):
        folder = either.vhost / store
        rows = [row for row in either.manifest["file_summary"] if row["store"] == store]
        found = tables.read_summary((folder / "file_summary.ets").read_bytes(), store)
        assert [{**row._asdict(), "store": store} for row in found] == rows
        rows = [row for row in either.manifest["msg_store_index"] if row["store"] == store]
        found = tables.read_locations((folder / "msg_store_index.ets").read_bytes(), store)
        assert [{**row._asdict(), "store": store, "msg_id": row.msg_id.hex()} for row in found] == rows
        mark = tables.read_clean_mark((folder / "clean.dot").read_bytes(), store)
        expected = next(row for row in either.manifest["clean_dot"] if row["store"] == store)
        assert ([ref.hex() for ref in mark.client_refs], mark.index_module) == (
            expected["client_refs"],
            expected["index_module"],
        )


def test_the_recovery_terms(either: Any) -> None:
    """There is one row per queue, of either index version."""
    found = tables.read_recovery((either.vhost / "recovery.dets").read_bytes(), "recovery.dets")
    assert len(found) == len(either.manifest["recovery_terms"])
    for expected in either.manifest["recovery_terms"]:
        row = found[expected["dir"]]
        assert row.persistent_ref is not None
        for field in ("next_seq_id", "next_deliver_seq_id", "persistent_count", "persistent_bytes"):
            assert getattr(row, field) == expected[field]
        assert row.persistent_ref.hex() == expected["persistent_ref"]
        if "segments" in expected:
            assert row.segments == dict(expected["segments"])
        else:
            text = ",".join(f"{number} => {count}" for number, count in sorted(row.segments.items()))
            assert expected["v2_index_state"] == f"{{2,#{{{text}}}}}"


def test_folder_names(either: Any) -> None:
    """A folder is named after its virtual host and queue."""
    assert vhost_folder_name(either.manifest["vhost"]) == either.manifest["vhost_dir"]
    for name, expected in either.manifest["queues"].items():
        plain, _, priority = name.partition("#")
        whole = plain.encode() + (bytes((0, int(priority))) if priority else b"")
        assert queue_folder_name("/", whole) == expected["dir"]


def test_every_index_entry_of_version_1(clean: Any) -> None:
    """Flags, expiry, location and payload of each unacknowledged entry are right after a replay of the journals."""
    folder = VhostFolder(str(clean.vhost))
    found = {}
    for message in folder.messages():
        found.setdefault(_part(message), []).append(message)
    assert folder.problems == []
    for name, expected in clean.manifest["queues"].items():
        messages = found.get(name, [])
        assert len(messages) == len(expected["messages"]) and not any(row["acked"] for row in expected["messages"])
        for message, row in zip(messages, expected["messages"], strict=True):
            assert (message.seq_id, message.msg_id.hex(), message.embedded) == (row["seq"], row["msg_id"], row["embedded"])
            assert (message.persistent, message.size) == (row["index_persistent"], row["index_size"])
            assert message.expiry_us == (row["expiry"] or 0)
            assert (message.embedded, message.exchange) == (not row["in_store"], row["exchange"])
            assert list(message.routing_keys) == row["routing_keys"]
            assert message.content.properties_bin.hex() == row["properties_bin"]
            assert hashlib.sha256(message.body).hexdigest() == row["payload_sha256"] and len(message.body) == row["size"]
            for field in (
                "message_id",
                "delivery_mode",
                "expiration",
                "priority",
                "content_type",
                "correlation_id",
                "timestamp",
            ):
                assert message.properties.get(field) == row[field]
    folder.close()


def test_messages_equal_those_that_the_restarted_broker_delivered(either: Any) -> None:
    """Both index versions give the same messages in the same order with the same redelivered flags."""
    folder = VhostFolder(str(either.vhost))
    found = {}
    for message in folder.messages():
        if message.persistent:
            found.setdefault(message.queue, []).append(message)
    for name, expected in either.manifest["queues"].items():
        if "after_recovery" not in expected:
            continue
        rows = expected["after_recovery"]
        messages = found.get(name, [])
        assert [hashlib.sha256(message.body).hexdigest() for message in messages] == [row["sha256"] for row in rows]
        assert [message.redelivered for message in messages] == [row["redelivered"] for row in rows]
        assert [message.exchange for message in messages] == [row["exchange"] for row in rows]
        assert [message.routing_keys[0] for message in messages] == [row["routing_key"] for row in rows]
        for field in ("message_id", "delivery_mode", "expiration", "priority"):
            assert [message.properties.get(field) for message in messages] == [row[field] for row in rows]
    folder.close()


def test_the_queue_list(either: Any) -> None:
    """Messages and unacknowledged ones have the manifest's counts."""
    folder = VhostFolder(str(either.vhost))
    rows = {row.queue: row for row in folder.queues()}
    terms = {row["dir"]: row for row in either.manifest["recovery_terms"]}
    for name, expected in either.manifest["queues"].items():
        if "#" in name or not expected["exists"]:
            continue
        assert rows[name].persistent == expected["messages_after_recovery"]
        assert rows[name].persistent == terms[expected["dir"]]["persistent_count"]
        assert rows[name].unacked == sum(row["redelivered"] for row in expected["after_recovery"]) or name == "q.lazy"
    assert folder.is_clean and rows["q.prio"].messages == 9


def test_the_json_object_has_exactly_the_fixed_keys(clean: Any) -> None:
    """The JSON has the documented keys in their order."""
    keys = "queue vhost seq_id msg_id persistent acked redelivered expiry_us size embedded file offset exchange routing_keys"
    folder = VhostFolder(str(clean.vhost))
    message = next(folder.messages("q.props"))
    assert list(message.to_json()) == [*keys.split(), "properties", "body_base64"]
    assert message.to_json()["properties"]["headers"]["d"] == "1.5"
    folder.close()


@pytest.mark.parametrize("store", [PERSISTENT_FOLDER])
def test_reference_counts_agree_with_the_queues(clean: Any, store: str) -> None:
    """The table's counts are the sums over the queues' entries."""
    counts = {}
    folder = VhostFolder(str(clean.vhost))
    for queue in folder.queue_folders():
        for entry in queue.entries([]):
            if entry.persistent and entry.term is None and not entry.acked:
                counts[entry.msg_id.hex()] = counts.get(entry.msg_id.hex(), 0) + 1
    rows = {row["msg_id"]: row["ref_count"] for row in clean.manifest["msg_store_index"] if row["store"] == store}
    assert counts == {msg_id: count for msg_id, count in rows.items() if count}


def test_statistics_of_the_fixture(either: Any) -> None:
    """The sums of all counts are the manifest's."""
    found = statistics(str(either.vhost))
    rows = {row.queue: row for row in found.queues}
    assert found.is_clean and sum(row.messages for row in found.queues) == 3068 == sum(found.sizes.values())
    persistent = next(store for store in found.stores if store.store == PERSISTENT_FOLDER)
    summary = [row for row in either.manifest["file_summary"] if row["store"] == PERSISTENT_FOLDER]
    assert persistent.bytes == sum(row["file_size"] for row in summary)
    assert persistent.live_bytes == sum(row["valid_total_size"] for row in summary)
    locations = [row for row in either.manifest["msg_store_index"] if row["store"] == PERSISTENT_FOLDER]
    assert persistent.references == sum(row["ref_count"] for row in locations)
    assert persistent.records == sum(r["records"] for r in either.manifest["rdq_files"] if r["store"] == PERSISTENT_FOLDER)
    assert (rows["q.gc"].stored, rows["q.deep"].embedded) == (30, 2895)
