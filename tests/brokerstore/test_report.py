"""`report`: the page agrees with the real store's account, and untrusted names stay text."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from brokerstore.report import StoreFacts, rabbit_facts
from brokerstore.report.facts import BUCKETS_MAX, FileMap, Times, Words
from brokerstore.report.pictures import FILES_SHOWN, grouped
from commitlog import Message
from commitlog.walk import LogFiles, Piece
from messagestore import MessageStore
from rabbitstore.read.store_folder import StoreFolder
from storageio import REAL_DISK
from tests.brokerstore.tool import Ran, run
from tests.stores import small_config

SMALL = small_config()
EVIL = '</td><script>alert(1)</script><img src="x" onerror=alert(1)>\x1b[31m\u202e'


@cache
def page_of(folder: Path) -> Ran:
    """Return the report of a folder that no test changes; its pictures take long to draw."""
    return run("report", folder)


def facts_of(store: Path) -> Any:
    """Return the facts of a store's log, from a walk over it."""
    files = LogFiles(REAL_DISK, [str(store / "commitlog")])
    facts = StoreFacts(files)
    for step in files.walk():
        facts.step(step)
    return facts.facts(str(store), "rocketmq")


@pytest.mark.parametrize("name", ["plain", "propcrc"])
def test_figures_are_those_of_the_real_store(fixture_store: Any, name: str) -> None:
    """Messages by queue, size and time match, and every byte of every file is accounted for."""
    fixture = fixture_store(name)
    expected, facts = fixture.expected()["messages"], facts_of(fixture.store)
    requested: dict[str, list[int]] = {}
    for message in expected:
        row = requested.setdefault(f"{message['topic']}/{message['queueId']}", [0, 0])
        row[0] += 1
        row[1] += message["storeSize"]
    assert {row["queue"]: [row["messages"], row["bytes"]] for row in facts.queues} == requested
    assert sum(row[1] for row in facts.times) == sum(count for _, count in facts.sizes) == len(expected)
    assert sum(row[2] for row in facts.times) == sum(message["storeSize"] for message in expected)
    assert sum(one.live + one.expired for one in facts.files) == sum(message["storeSize"] for message in expected)
    assert sum(one.blank for one in facts.files) == sum(size for _, size in fixture.expected()["blankRecords"])
    assert all(one.damaged == 0 for one in facts.files)


def test_a_damaged_range_is_on_the_map_and_in_the_list(fixture_store: Any) -> None:
    """The damaged bytes are as many as were lost."""
    store = fixture_store("plain", own=True).store
    first = sorted((store / "commitlog").iterdir())[0]
    data = bytearray(first.read_bytes())
    victim = run("dump", "--json", "--limit", 5, store).lines[3]
    data[victim["physical_offset"] + 8] ^= 0xFF
    first.write_bytes(data)
    assert facts_of(store).files[0].damaged == victim["size"]
    ran = run("report", store)
    assert ran.code == 1
    assert "bad body crc" in ran.out


def test_untrusted_names_are_escaped_in_the_page(tmp_path: Path) -> None:
    """A key, topic or path yields no element, attribute or control character."""
    folder = tmp_path / "<b>store"
    with MessageStore.open(folder, config=SMALL) as store:
        for _ in range(3):
            store.put(Message("T", b"x", keys=[EVIL.replace(" ", "_")], queue_id=0))
    ran = run("report", folder)
    assert ran.code == 0

    class Elements(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.found: set[str] = set()

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found.add(tag)
            assert not any(name.startswith("on") for name, _ in attrs)

    parser = Elements()
    parser.feed(ran.out)
    assert not parser.found & {"script", "img", "b", "iframe", "object", "embed", "link2"}
    assert "alert(1)" in ran.out
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", ran.out)


def test_the_page_fetches_nothing(fixture_store: Any) -> None:
    """The page holds no address but namespace names."""
    page = page_of(fixture_store("plain").store).out
    assert not re.search(r"(src|href)=\"(?!#|data:,)", page)
    assert not re.search(r"url\((?!#)", page)
    assert "http" not in page.replace("http-equiv", "")


def test_a_rabbit_folder_has_its_garbage_per_file(fixture_store: Any, tmp_path: Path) -> None:
    """Garbage is shown per file, and problems of a damaged folder."""
    folder = fixture_store("rabbitmq-clean").folder.parent / "vhost"
    ran = page_of(folder)
    assert ran.code == 0
    assert "msg_store_persistent" in ran.out
    assert "garbage" in ran.out
    shutil.copytree(folder, tmp_path / "vhost")
    for path in (tmp_path / "vhost").rglob("0.rdq"):
        path.write_bytes(path.read_bytes()[:-7])
    assert run("report", tmp_path / "vhost").code == 1


def test_damage_of_a_rabbit_file_is_shown_as_garbage(fixture_store: Any, tmp_path: Path) -> None:
    """The bytes of a broken record count as damaged, and the records after it as good."""
    shutil.copytree(fixture_store("rabbitmq-clean").folder.parent / "vhost", tmp_path / "vhost")
    path = tmp_path / "vhost" / "msg_store_persistent" / "0.rdq"
    data, store = bytearray(path.read_bytes()), StoreFolder(REAL_DISK, str(tmp_path / "vhost"), "msg_store_persistent")
    records = store.scan(0, []).records
    victim = records[len(records) // 2]
    whole = rabbit_facts(str(tmp_path / "vhost"))[0].files[0]
    data[victim.offset + victim.total_size - 1] = 0  # the mark at its end
    path.write_bytes(data)
    found = rabbit_facts(str(tmp_path / "vhost"))[0].files[0]
    assert (whole.damaged, found.damaged) == (0, victim.total_size)
    assert found.live + found.garbage + found.damaged == found.size_bytes == len(data)
    path.write_bytes(data[:-7])
    found = rabbit_facts(str(tmp_path / "vhost"))[0].files[0]
    assert found.damaged == victim.total_size + records[-1].total_size - 7
    assert "damaged" in run("report", tmp_path / "vhost").out


def test_the_kinds_of_folders_are_shown_by_their_keys(fixture_store: Any) -> None:
    """Each kind of folder has a readable name on the page."""
    page = run("report", fixture_store("plain").store / "commitlog").out
    assert "RocketMQ commit log" in page
    assert "rocketmq-commitlog" not in page
    assert "RocketMQ store" in page_of(fixture_store("plain").store).out


def test_the_report_file_appears_only_when_it_is_complete(fixture_store: Any, tmp_path: Path) -> None:
    """With --out the file appears only when it is complete."""
    out = tmp_path / "page.html"
    assert run("report", "-o", out, fixture_store("plain").store).code == 0
    assert out.read_text().endswith("</html>")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_an_empty_store_has_a_page(tmp_path: Path) -> None:
    """It has no chart, and nothing is divided by zero."""
    with MessageStore.open(tmp_path / "store", config=SMALL):
        pass
    ran = run("report", tmp_path / "store")
    assert ran.code == 0
    assert "No problems were found" in ran.out


def test_the_number_of_time_buckets_is_bounded_and_every_message_is_counted() -> None:
    """One message a day for forty years keeps every message."""
    times = Times()
    for day in range(0, 14_600, 100):
        times.add(((day + one) * 86_400_000, 1, 1) for one in range(100))
    assert len(times.rows()) <= BUCKETS_MAX
    assert sum(row[1] for row in times.rows()) == 14_600


@pytest.mark.deep
def test_extreme_timestamps_use_bounded_memory() -> None:
    """A time may be any 64-bit number."""
    times = Times()
    times.add((number << 40, 1, 1) for number in range(1 << 15))
    assert len(times.rows()) <= 10 * BUCKETS_MAX


def test_the_most_frequent_key_is_found_with_bounded_memory() -> None:
    """With a different key on each message, the frequent one is still found."""
    words = Words()
    for start in range(0, 200_000, 10_000):
        words.add([f"once-{start + number}" for number in range(10_000)] + ["often"] * 10)
    assert words.most()[0] == ("often", 200)


def test_the_page_omits_byte_categories_that_no_file_has(fixture_store: Any, tmp_path: Path) -> None:
    """A page shows only the uses of bytes that its folder has."""
    vhost = fixture_store("rabbitmq-clean").folder.parent / "vhost"
    page = page_of(vhost).out
    assert ("Garbage" in page, "Blank" in page, "Expired" in page) == (True, False, False)
    facts = facts_of(fixture_store("plain").store)
    assert "Blank" in page_of(fixture_store("plain").store).out
    assert len(facts.times) > 1 or facts.bucket_ms == 1000


def test_the_log_is_read_once(fixture_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The facts come from the walk that checks the log: a disk is slower than everything that is done with its bytes."""
    walked, walk = 0, LogFiles.walk

    def counted(files: LogFiles, *arguments: Any, **options: Any) -> Iterator[Any]:
        nonlocal walked
        for step in walk(files, *arguments, **options):
            walked += step.stop - step.start if isinstance(step, Piece) else 0
            yield step

    monkeypatch.setattr(LogFiles, "walk", counted)
    store = fixture_store("plain").store
    assert run("report", store).code == 0
    in_report = walked
    assert in_report == sum(file.live for file in facts_of(store).files) > 0


def test_many_files_are_drawn_in_groups() -> None:
    """A thousand rows would be unreadable."""
    files = [FileMap(str(number), 10, live=number % 10) for number in range(1000)]
    rows = grouped(files)
    assert len(rows) <= FILES_SHOWN
    assert sum(row.live for row in rows) == sum(file.live for file in files)
