"""Filler records of a recovery: no reader takes one for a message, and the tool counts what it leaves out."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from commitlog.layout import FILLER_BODY, FILLER_BODY_SIZE_MAX
from messagestore import MessageStore
from messagestore.read.queue_columns import Selection
from messagestore.repair.fillers import Lost, fill, least_size
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from tests.brokerstore.tool import run
from tests.messagestore.test_lost_messages import SMALL, destroy
from tests.stores import log_records

COUNT, LOST = 30, (4, 5, 17)
LEFT = [number for number in range(COUNT) if number not in LOST]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store that lost three messages of its only queue, recovered with `--skip-bad`."""
    root = tmp_path_factory.mktemp("filled") / "store"
    with MessageStore.open(root, config=SMALL) as store:
        for number in range(COUNT):
            store.put(Message("T", b"%03d" % number * (3 + number), queue_id=0, tags="a" if number % 2 else "b"))
    for number, record in enumerate(log_records(root)):
        if number in LOST:
            destroy(root, record)
    Recovery(str(root), Choice.SKIP, SMALL).apply()
    assert not verify_store(str(root)).problems
    return root


def number_of(message: Any) -> int:
    """Return the number that begins the body."""
    return int(message.body[:3])


def test_a_filler_is_a_batch_without_messages() -> None:
    """A client of RocketMQ 5 unpacks its body to nothing; it keeps topic, queue and number of the lost message."""
    data, left_out = fill(0, 400, [Lost("T", 3, 7)], 1, to_file_end=False)
    assert left_out == [] and zlib.decompress(FILLER_BODY) == b""
    flags, body_size = int.from_bytes(data[36:40], "big"), int.from_bytes(data[84:88], "big")
    assert flags & 0xC1 == 0xC1 and body_size == len(FILLER_BODY)
    assert data[88 : 88 + body_size] == FILLER_BODY


def test_no_batch_of_one_message_is_as_short_as_a_filler() -> None:
    """The least message of a batch has 22 bytes: lengths, flag, and no body."""
    least = min(len(zlib.compress(bytes([value]) * 22, 9)) for value in range(256))
    assert least > FILLER_BODY_SIZE_MAX


@pytest.mark.parametrize("extra", range(60))
def test_hole_of_any_size_is_filled_with_filler_records(tmp_path: Path, extra: int) -> None:
    """Each record of it is a filler; only one with no room for a body could be delivered by a real client."""
    size = least_size("T") + extra
    data, left_out = fill(0, size, [Lost("T", 0, 0)], 1, to_file_end=False)
    assert (len(data), left_out) == (size, [])
    flags, body_size = int.from_bytes(data[36:40], "big"), int.from_bytes(data[84:88], "big")
    assert flags & 0xC0 == 0xC0
    assert (body_size >= len(FILLER_BODY)) == (extra >= len(FILLER_BODY)) and body_size <= FILLER_BODY_SIZE_MAX


def test_consumers_and_queue_reads_pass_over_fillers(folder: Path) -> None:
    """Numbers of the messages stay; a page of fillers alone leads on."""
    with MessageStore.open(folder, "r", SMALL) as store:
        assert [number_of(one) for one in store.read("T", 0)] == LEFT
        assert [one.queue_offset for one in store.read("T", 0)] == LEFT
        page = store.get("T", 0, 0, 100)
        assert [number_of(one) for one in page.messages] == LEFT and page.next_offset == COUNT
        with store.consumer("T", group="g", timeout_s=0) as consumer:
            assert [number_of(one) for one in consumer] == LEFT
        with store.follow(0, timeout_s=0) as follower:
            assert [number_of(one) for one in follower] == LEFT


def test_a_writer_s_consumer_acknowledges_past_fillers(tmp_path: Path, folder: Path) -> None:
    """A group ends at the end of the queue, without a lag."""
    root = tmp_path / "store"
    shutil.copytree(folder, root)
    with MessageStore.open(root, "r+", SMALL) as store, store.consumer("T", group="g", timeout_s=0) as consumer:
        for message in consumer:
            consumer.ack(message)
        assert consumer.lag() == 0


def test_columns_have_no_fillers(folder: Path) -> None:
    """With all messages, and with those of a tag."""
    pytest.importorskip("pyarrow")
    with MessageStore.open(folder, "r", SMALL) as store:
        for tags, expected in ((None, LEFT), (frozenset("a"), [number for number in LEFT if number % 2])):
            table = store.read_selection("T", 0, 0, None, Selection(["queue_offset"], tags)).read_all()
            assert table.column("queue_offset").to_pylist() == expected


def test_the_tool_leaves_fillers_out_and_counts_them(folder: Path, tmp_path: Path) -> None:
    """`dump`, `export`, `tail` and `stats`; `--fillers` shows them."""
    ran = run("dump", folder, "--json")
    assert [json.loads(line)["queue_offset"] for line in ran.out.splitlines()] == LEFT
    assert "left out " in ran.talk and "filler record" in ran.talk and ran.code == 0
    assert len(run("dump", folder).out.splitlines()) == len(LEFT) + 1  # a heading
    every = run("dump", folder, "--json", "--fillers")
    assert len(every.out.splitlines()) >= COUNT and "left out" not in every.talk
    ran = run("tail", folder, "-n", "100", "--json")
    assert [json.loads(line)["queue_offset"] for line in ran.out.splitlines()] == LEFT
    ran = run("stats", folder, "--json")
    assert json.loads(ran.out)["total"]["messages"] == len(LEFT) and "left out" in ran.talk
    target = tmp_path / "out.jsonl"
    ran = run("export", folder, "-o", target)
    assert len(target.read_text().splitlines()) == len(LEFT) and "left out" in ran.talk
