"""`report` on folders in which every name is an attack on the page's reader: markup, scripts, escapes, directions."""

from __future__ import annotations

import random
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from brokerstore import RabbitStore
from tests.brokerstore.test_json_lines import record
from tests.brokerstore.tool import run

FRAGMENTS = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'><svg onload=alert(1)>", "</title></style></svg></table>",
    "<!--", "-->", "<![CDATA[", "]]>", "&lt;script&gt;", "&#60;b&#62;", "{{ 7*7 }}", "{% raw %}", "javascript:alert(1)",
    "\x1b[31m", "\x1b]8;;http://evil.test\x07", "\x00", "\x7f", "\x9b31m", "\u202e", "\u2066", "\u2028", "\ufeff",
    "$\\frac{1}{0}$", "#000011", "<metadata>", 'width="1"', "a", "日本", "\U0001f600", "=cmd|' /C calc'!A0", "\r\n\r\n", "\t",
]  # fmt: skip
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
FILE_SIZE = 1 << 16


class Shape(HTMLParser):
    """The elements of a page, the attributes of each, and the text outside of them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.texts: list[str] = []
        self.differing: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {(tag, name) for name, _ in attrs}
        self.differing += [
            str(value) for name, value in attrs if name in ("href", "src") and not str(value).startswith(("#", "data:"))
        ]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.differing.append(data)

    def handle_pi(self, data: str) -> None:
        self.differing.append(data)

    def unknown_decl(self, data: str) -> None:
        self.differing.append(data)


def names(seed: int) -> list[str]:
    """Return sixty names made of hostile fragments."""
    chance = random.Random(seed)
    return ["".join(chance.choices(FRAGMENTS, k=chance.randint(1, 4))) for _ in range(60)]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Shape:
    """Return the page of a folder with harmless names and all its charts."""
    folder = tmp_path_factory.mktemp("usual")
    write_log(folder / "store", ["orders", "bills"], ["order-1", "order-2"])
    (folder / "store" / "commitlog" / "notes.txt").touch()  # a stray, so that the page lists a problem
    first = Shape(run("report", folder / "store").out)
    write_rabbit(folder / "vhost", ["mail", "post"])
    second = Shape(run("report", folder / "vhost").out)
    first.elements |= second.elements
    first.attributes |= second.attributes
    return first


def write_log(store: Path, topics: list[str], keys: list[str]) -> None:
    """Write a log with records of these names."""
    data = b""
    for number, (topic, key) in enumerate(zip(topics * 3, keys * 3, strict=True)):
        properties = b"KEYS\1" + key.replace("\1", "").replace("\2", "").encode() + b"\2"
        times = [number, len(data), 1_700_000_000_000 + number, 1_700_000_000_000 + number, 0]
        body = topic.encode()
        ints = [zlib.crc32(body) & 0x7FFFFFFF, *[0] * 6]
        data += record(topic.encode()[:127], properties, body, bytes(4), bytes(4), ints, times, False)
    (store / "commitlog").mkdir(parents=True)
    (store / "commitlog" / f"{0:020d}").write_bytes(data[: FILE_SIZE - 8].ljust(FILE_SIZE, b"\0"))


def write_rabbit(vhost: Path, queues: list[str]) -> None:
    """Declare queues of these names, if a server accepts them."""
    with RabbitStore.open(vhost) as store:
        for queue in dict.fromkeys(name.replace("\0", "")[:60] or "x" for name in queues):
            store.declare_queue(queue)
            store.publish(queue, queue.encode())


def check(page: str, usual: Shape) -> None:
    """Assert that the page has the harmless page's elements only, and no control or direction character."""
    shape = Shape(page)
    assert shape.elements <= usual.elements
    assert shape.attributes <= usual.attributes
    assert shape.differing == []
    assert not CONTROLS.search(page)
    assert page.rstrip().endswith("</html>")
    assert any("alert(1)" in text for text in shape.texts), "the names are there, as text"


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.deep), pytest.param(2, marks=pytest.mark.deep)])
def test_the_report_of_a_rocketmq_log_escapes_hostile_names(tmp_path: Path, usual: Shape, seed: int) -> None:
    """Topics, keys, bodies, the folder's name and stray files, which the page lists as problems."""
    store = tmp_path / names(seed)[0].replace("/", "_").replace("\0", "")[:80]
    evil = [name.replace(" ", "_") or "x" for name in names(seed)]
    write_log(store, evil, evil[::-1])
    for name in evil[:5]:
        (store / "commitlog" / f"x{name}".replace("/", "_").replace("\0", "")[:60]).touch()
    ran = run("report", store)
    assert ran.code == 1
    check(ran.out, usual)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.deep)])
def test_the_report_of_a_rabbitmq_folder_escapes_hostile_names(tmp_path: Path, usual: Shape, seed: int) -> None:
    """The queues have these names."""
    write_rabbit(tmp_path / "vhost", names(10 + seed))
    ran = run("report", tmp_path / "vhost")
    assert ran.code == 0
    check(ran.out, usual)


@pytest.mark.parametrize("name", ["info", "ls", "stats", "dump", "verify"])
def test_other_commands_escape_hostile_names(tmp_path: Path, name: str) -> None:
    """Their text output for people is safe too."""
    evil: Any = [one.replace(" ", "_") or "x" for one in names(7)]
    write_log(tmp_path / "store", evil, evil)
    write_rabbit(tmp_path / "vhost", evil)
    for folder in ("store", "vhost"):
        ran = run(name, tmp_path / folder)
        assert not CONTROLS.search((ran.out + ran.talk).replace("\n", "")), folder
