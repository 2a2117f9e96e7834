"""Files of a classic queue that contradict each other: marks of a journal, segments of zeros, message files that are gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rabbitstore import RabbitSettings, RabbitStore, apply_recovery, plan_recovery, verify
from rabbitstore.format.layout import (
    JOURNAL_ACKNOWLEDGED,
    JOURNAL_DELIVERED,
    JOURNAL_HEAD,
    JOURNAL_PUBLISH_PERSISTENT,
    PUBLISH_BODY,
)
from rabbitstore.read.vhost_folder import VhostFolder
from tests.brokerstore.tool import run

COUNT = 5


def store_at(path: Path, version: int) -> Path:
    """Make a cleanly stopped store with one queue of small messages; return the queue's folder."""
    with RabbitStore.open(str(path), settings=RabbitSettings(background=False, index_version=version)) as store:
        store.declare_queue("orders")
        for number in range(COUNT):
            store.publish("orders", b"body %d" % number)
    (queue,) = (path / "queues").iterdir()
    return queue


def kill(path: Path) -> None:
    """Remove the files of the clean stop, as a running server does."""
    for name in ("msg_store_persistent/clean.dot", "recovery.dets"):
        (path / name).unlink()


def numbers(path: Path) -> list[bytes]:
    """Return the bodies that `dump` lists."""
    return [message.body for message in VhostFolder(str(path)).messages()]


def publish(seq_id: int, msg_id: bytes, term: bytes) -> bytes:
    return JOURNAL_HEAD.pack(JOURNAL_PUBLISH_PERSISTENT << 62 | seq_id) + PUBLISH_BODY.pack(msg_id, 0, 6, len(term)) + term


def delivered(seq_id: int) -> bytes:
    return JOURNAL_HEAD.pack(JOURNAL_DELIVERED << 62 | seq_id)


def acknowledged(seq_id: int) -> bytes:
    return JOURNAL_HEAD.pack(JOURNAL_ACKNOWLEDGED << 62 | seq_id)


@pytest.mark.parametrize(
    ("order", "kind", "is_kept"),
    [
        ("PP", "published_twice", True),
        ("PDP", "published_twice", True),
        ("AP", "published_twice", True),
        ("DP", "published_twice", True),
        ("PDD", "mark_too_many", True),
        ("PDAA", "mark_too_many", False),
        ("PDAD", "mark_too_many", False),
        ("PDAP", "published_twice", False),
        ("PA", "ack_without_delivery", False),
    ],
)
def test_contradictory_marks_of_a_journal_are_damage(tmp_path: Path, order: str, kind: str, is_kept: bool) -> None:
    """The server does not start on such a journal: `verify` reports it, and `recover` writes the entries to the segments.

    A message is dropped only after a publish, a delivery and an acknowledgement in this order.
    """
    queue = store_at(tmp_path, 1)
    kill(tmp_path)
    (entry,) = [one for one in RabbitStore.open(str(tmp_path), "r").messages() if one.seq_id == 0]
    data = (queue / "0.idx").read_bytes()
    term_at = data.index(b"\x83h")
    size = int.from_bytes(data[term_at - 4 : term_at], "big")
    parts = {"P": publish(9, entry.msg_id, data[term_at : term_at + size]), "D": delivered(9), "A": acknowledged(9)}
    (queue / "journal.jif").write_bytes(b"".join(parts[letter] for letter in order))
    listed = numbers(tmp_path)
    assert len(listed) == COUNT + is_kept
    assert {problem.kind for problem in verify(str(tmp_path)).problems} == {kind}
    plan = apply_recovery(str(tmp_path))
    assert (plan.messages_lost, numbers(tmp_path)) == (0, listed)
    assert verify(str(tmp_path)).problems == []


def test_a_message_that_a_journal_publishes_and_acknowledges_beside_its_segment_is_listed(tmp_path: Path) -> None:
    """3.8.9 and 3.10.8 start, count these marks of a journal as none, and deliver the message of the segment again."""
    queue = store_at(tmp_path, 1)
    kill(tmp_path)
    listed = numbers(tmp_path)
    (entry,) = [one for one in RabbitStore.open(str(tmp_path), "r").messages() if one.seq_id == 0]
    data = (queue / "0.idx").read_bytes()
    term_at = data.index(b"\x83h")
    term = data[term_at : term_at + int.from_bytes(data[term_at - 4 : term_at], "big")]
    (queue / "journal.jif").write_bytes(publish(0, entry.msg_id, term) + delivered(0) + acknowledged(0))
    assert (numbers(tmp_path), verify(str(tmp_path)).problems) == (listed, [])


def test_acknowledgement_without_a_publish_after_an_interrupted_flush_is_not_damage(tmp_path: Path) -> None:
    """The flush deletes a segment before it empties the journal, so that its marks may be all that is left."""
    queue = store_at(tmp_path, 1)
    kill(tmp_path)
    (queue / "journal.jif").write_bytes(delivered(9) + acknowledged(9) + acknowledged(10))
    assert verify(str(tmp_path)).problems == []


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("is_empty", [True, False])
def test_segment_without_entries_is_damage_and_its_messages_are_counted(tmp_path: Path, is_clean: bool, is_empty: bool) -> None:
    """The terms of the clean stop count what is lost; without them the loss is reported and cannot be counted."""
    queue = store_at(tmp_path, 1)
    if not is_clean:
        kill(tmp_path)
    (queue / "0.idx").write_bytes(bytes(0 if is_empty else (queue / "0.idx").stat().st_size))
    assert "lost_index" in {problem.kind for problem in verify(str(tmp_path)).problems}
    plan = plan_recovery(str(tmp_path))
    assert plan.lost_by_queue == ({"orders": COUNT} if is_clean else {})
    apply_recovery(str(tmp_path))
    assert verify(str(tmp_path)).problems == []
    assert list((tmp_path / "brokerstore/cut").glob("*0.idx"))


def test_journal_of_zeros_is_damage(tmp_path: Path) -> None:
    """The entries that it had are lost. A journal that is missing may have had none: its name is synced with the first."""
    queue = store_at(tmp_path, 1)
    kill(tmp_path)
    (queue / "journal.jif").write_bytes(bytes(400))
    listed = numbers(tmp_path)
    assert [problem.kind for problem in verify(str(tmp_path)).problems] == ["lost_journal"]
    apply_recovery(str(tmp_path))
    assert verify(str(tmp_path)).problems == [] and numbers(tmp_path) == listed


def test_queue_without_messages_may_have_no_journal(tmp_path: Path) -> None:
    """A server of 3.8 makes the folder's files when it writes them."""
    queue = store_at(tmp_path, 1)
    kill(tmp_path)
    (queue / "0.idx").unlink()
    (queue / "journal.jif").unlink()
    assert verify(str(tmp_path)).problems == []


@pytest.mark.parametrize("damage", ["missing", "empty", "older"])
def test_messages_counted_only_by_the_recovery_terms_are_lost(tmp_path: Path, damage: str) -> None:
    """A segment that is gone, empty or older than the clean stop has fewer entries than its terms: the rest is counted."""
    queue = store_at(tmp_path, 1)
    data = (queue / "0.idx").read_bytes()
    (queue / "0.idx").unlink()
    if damage != "missing":
        (queue / "0.idx").write_bytes(data[: len(data) // COUNT] if damage == "older" else b"")
    assert not verify(str(tmp_path)).ok
    plan = plan_recovery(str(tmp_path))
    assert plan.lost_by_queue == {"orders": COUNT - (damage == "older")}
    apply_recovery(str(tmp_path))
    assert verify(str(tmp_path)).problems == [] and len(numbers(tmp_path)) == (damage == "older")


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("damage", ["missing", "empty", "zeros"])
def test_messages_of_a_missing_message_file_are_counted_as_lost(tmp_path: Path, damage: str, is_clean: bool) -> None:
    """Every entry whose message is gone with `N.qs` is lost by name, whether the file is missing, empty or of zeros."""
    queue = store_at(tmp_path, 2)
    if not is_clean:
        kill(tmp_path)
    size = (queue / "0.qs").stat().st_size
    (queue / "0.qs").unlink()
    if damage != "missing":
        (queue / "0.qs").write_bytes(bytes(size if damage == "zeros" else 0))
    assert not verify(str(tmp_path)).ok
    shown = run("recover", "--json", tmp_path).json["plan"]
    assert (shown["records_dropped"], shown["dropped_by_queue"]) == (COUNT, {"orders": COUNT})
    assert "queue orders: 5 messages lost" in run("recover", tmp_path).out
    assert run("recover", "--apply", tmp_path).code == 6
    assert verify(str(tmp_path)).problems == []


def test_missing_messages_of_a_damaged_message_file_are_counted_as_lost(tmp_path: Path) -> None:
    """Cut behind a message it looks like one that a kill left; a damaged message in front of the cut shows that it is not."""
    queue = store_at(tmp_path, 2)
    kill(tmp_path)
    data = bytearray((queue / "0.qs").read_bytes())
    stop = 64
    for _ in range(2):
        stop += 8 + int.from_bytes(data[stop : stop + 4], "big")
    (queue / "0.qs").write_bytes(data[:stop])
    assert verify(str(tmp_path)).problems == []
    data[64 + 8 + 40] ^= 0xFF
    (queue / "0.qs").write_bytes(data[:stop])
    assert plan_recovery(str(tmp_path)).lost_by_queue == {"orders": COUNT - 1}


def test_zeros_behind_the_entries_of_a_segment_are_damage(tmp_path: Path) -> None:
    """A real 3.8.9 closes the whole virtual host over them; a power failure leaves them, and `recover` removes them."""
    queue = store_at(tmp_path, 1)
    kill(tmp_path)
    data = (queue / "0.idx").read_bytes()
    (queue / "0.idx").write_bytes(data + bytes(600))
    assert [problem.kind for problem in verify(str(tmp_path)).problems] == ["torn_segment"]
    listed = numbers(tmp_path)
    apply_recovery(str(tmp_path))
    assert (numbers(tmp_path), (queue / "0.idx").stat().st_size) == (listed, len(data))
    assert verify(str(tmp_path)).problems == []


@pytest.mark.parametrize("version", [1, 2])
def test_messages_of_a_missing_queue_folder_are_counted_by_the_recovery_terms(tmp_path: Path, version: int) -> None:
    """`recovery.dets` has the folder's name and its messages."""
    queue = store_at(tmp_path, version)
    shutil.rmtree(queue)
    assert not verify(str(tmp_path)).ok
    plan = plan_recovery(str(tmp_path))
    assert plan.lost_by_queue == {queue.name: COUNT}
    apply_recovery(str(tmp_path))
    assert verify(str(tmp_path)).problems == []
