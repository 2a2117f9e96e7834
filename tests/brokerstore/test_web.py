"""`web`: each view of every folder, the JSON beside it, what is refused, and changes that are shown before they are done."""

from __future__ import annotations

import json
import re
import shutil
import socket
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from brokerstore import RabbitStore
from brokerstore.identify import identify
from brokerstore.web.checks import ANSWER_MAX, Check
from brokerstore.web.message_view import folded
from commitlog import Message
from messagestore import MessageStore
from storageio import StoreError
from tests import archives
from tests.brokerstore.test_report_of_strangers import CONTROLS, FRAGMENTS, Shape, names, write_log, write_rabbit
from tests.brokerstore.tool import run
from tests.brokerstore.web_client import HOST, Answered, Client
from tests.stores import small_config

DATA = Path(__file__).parents[1] / "data"
# Some have only a part of a node, and "years" has snapshots of many releases, which their own tests read.
PARTS = ("rabbitmq4-restart", "rabbitmq-queue-machine", "rabbitmq38-snapshot", "rabbitmq43-cluster", "rabbitmq-upgrades")
FOLDERS = sorted(
    str(path.relative_to(DATA))
    for path in [*DATA.glob("*.xz"), *DATA.glob("cases/*.xz")]
    if not any(part in path.name for part in PARTS)
)
PAGES = ("", "queues", "messages", "findings", "groups")
SMALL = small_config()


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that unpacks an archive once, and finds the store, virtual host or node in it."""
    found: dict[str, Path] = {}

    def unpack(name: str) -> Path:
        if name not in found:
            above = tmp_path_factory.mktemp("data")
            archives.unpack(DATA / name, above)
            offsets = sorted((path for path in above.glob("**/*") if path.is_dir()), key=lambda path: len(path.parts))
            found[name] = next(path for path in offsets if is_folder(path))
        return found[name]

    return unpack


def is_folder(path: Path) -> bool:
    """Return whether the tool knows a folder."""
    try:
        return bool(identify(str(path)))
    except StoreError:
        return False


def links(page: str) -> list[str]:
    """Return the addresses of the page's folder that the page links to, without downloads."""
    found = [unescape(address) for address in re.findall(r'href="(/0/[^"]*)"', page)]
    return [address for address in dict.fromkeys(found) if "/download" not in address]


def settled(client: Client, number: int = 0) -> Answered:
    """Start the checks of a folder, wait for them, and return the page of findings."""
    assert client.post(f"/{number}/check", {}).status == 303
    stop = time.monotonic() + 120
    while any(state.is_running for state in client.site.checks[number].values()):
        assert time.monotonic() < stop
        time.sleep(0.02)
    return client.get(f"/{number}/findings")


@pytest.mark.parametrize("name", FOLDERS)
def test_every_view_of_every_folder_answers_and_is_escaped(unpacked: Any, name: str) -> None:
    """Each page, and what it links to, has status 200, the elements of a page, and no control character."""
    client = Client(unpacked(name))
    seen: set[str] = set()
    waiting = [f"/0/{page}" for page in PAGES]
    while waiting and len(seen) < 40:
        address = waiting.pop(0)
        if address in seen:
            continue
        seen.add(address)
        answered = client.get(address)
        assert answered.status == 200, (address, answered.text[-300:])
        if "html" in answered.headers["content-type"]:
            assert answered.text.rstrip().endswith("</html>") and not CONTROLS.search(answered.text)
            assert not Shape(answered.text).elements & {"script", "style", "iframe", "img"}
            per_page = [link for link in links(answered.text) if link not in seen]
            waiting += per_page[:12]
    assert len(seen) > 4


@pytest.mark.parametrize("name", ["plain", "broker-live", "crash-torn", "rabbitmq-clean", "rabbitmq4-clean"])
def test_json_is_what_the_tool_prints(unpacked: Any, name: str) -> None:
    """The same bytes, for the pages that have a command."""
    folder = unpacked(f"{name}.tar.xz")
    client = Client(folder)
    assert client.get("/0/overview.json").text == run("info", "--json", folder).out
    assert client.get("/0/queues.json").text == run("ls", "--json", folder).out
    if not name.startswith("rabbit"):
        assert client.get("/0/groups.json").text == run("offsets", "show", "--json", folder).out
        assert client.get("/0/messages.jsonl").text == run("dump", "--json", "--limit", 50, folder).out
        assert client.get("/0/download?form=jsonl").text == run("export", folder).out
        row = next(row for row in run("ls", "--json", folder).json["queues"] if row["messages"] > 5)
        at = row["min_offset"] + 3
        address = f"topic={row['topic']}&queue={row['queue_id']}".replace("%", "%25")
        expected = run(
            "get", "--json", "--topic", row["topic"], "--queue", row["queue_id"], "--offset", at, "--count", 50, folder
        )
        assert client.get(f"/0/messages.jsonl?{address}&start={at}").text == expected.out
    else:
        queue = next(row["queue"] for row in run("ls", "--json", folder).json["queues"] if row["messages"])
        expected = run("get", "--json", "--queue", queue, "--offset", 0, "--count", 50, folder)
        assert client.get(f"/0/messages.jsonl?queue={queue}").text == expected.out


@pytest.mark.parametrize("name", ["crash-torn", "rabbitmq-clean"])
def test_findings_are_those_of_verify_and_recover(unpacked: Any, name: str) -> None:
    """With the text of the page of findings, and a link to the bytes."""
    folder = unpacked(f"{name}.tar.xz")
    client = Client(folder)
    page = settled(client)
    found = client.get("/0/findings.json").json
    assert found == {verb: run(verb, "--json", folder).json for verb in ("verify", "recover")}
    assert ("Intact" in page.text) == (name == "rabbitmq-clean")
    if name == "crash-torn":
        assert "What RocketMQ does with it" in page.text
        marked = next(link for link in links(page.text) if "/bytes" in link)
        answered = client.get(marked)
        text = answered.text.replace("<wbr>", "")
        assert answered.status == 200 and "record of the commit log" in text and "prepared_transaction_offset" in text
        assert all(client.get(link).status == 200 for link in links(page.text) if "/bytes" in link)
        assert "problem" in client.get("/0/").text and "RocketMQ" in client.get("/0/").text
    client.site.forget()


@pytest.mark.parametrize(("limit", "expected"), [(ANSWER_MAX, "no such folder"), (10, "has more than")])
def test_a_check_without_an_answer_is_an_error_on_the_page(
    store: Path, monkeypatch: pytest.MonkeyPatch, limit: int, expected: str
) -> None:  # fmt: skip
    """The folder went away meanwhile, or the answer is larger than a page takes in."""
    words = ["--", str(store) if limit == 10 else f"{store}-gone"]
    monkeypatch.setattr("brokerstore.web.checks.ANSWER_MAX", limit)
    monkeypatch.setattr("brokerstore.web.app.Check", lambda verb, _words: Check(verb, words))
    client = Client(store)
    assert expected in settled(client).text
    client.site.forget()


@pytest.mark.parametrize("name", ["plain", "rabbitmq-clean", "rabbitmq-v2"])
def test_pages_go_forward_and_back_over_every_message(unpacked: Any, name: str) -> None:
    """Forward from the first page and back from the last show each message of a queue or log once, in order."""
    folder = unpacked(f"{name}.tar.xz")
    client = Client(folder)
    rows = run("ls", "--json", folder).json["queues"]
    if name == "plain":
        deepest = max(rows, key=lambda row: row["messages"])
        starts = ["/0/messages", f"/0/messages?topic={deepest['topic']}&queue={deepest['queue_id']}"]
        expected = [run("dump", "--json", folder).out, None]
    else:
        queue = max(rows, key=lambda row: row["messages"])["queue"]
        starts, expected = [f"/0/messages?queue={queue}"], [run("dump", "--json", "--queue", queue, folder).out]
    for start, whole in zip(starts, expected, strict=True):
        forward = list(pages(client, start, "Next"))
        last = client.get(start)
        final = re.search(r'href="([^"]*)">Last<', last.text)
        assert final is not None
        backward = list(pages(client, unescape(final[1]), "Previous"))
        assert "".join(forward) == "".join(reversed(backward))
        assert whole is None or "".join(forward) == whole
        assert len(forward) > 1


def pages(client: Client, address: str, word: str) -> Iterator[str]:
    """Yield the JSON lines of a page and of those that its links lead to."""
    following: str | None = address
    while following is not None:
        page = client.get(following)
        assert page.status == 200
        lines = client.get(following.replace("messages", "messages.jsonl", 1)).text
        if lines:
            yield lines
        found = re.search(rf'href="([^"]*)">{word}<', page.text)
        following = None if found is None else unescape(found[1])


def test_pages_of_a_log_go_past_damage_in_both_directions(fixture_store: Any) -> None:
    """A damaged record is left out, and the records around it are shown."""
    store = fixture_store("plain", own=True).store
    first = sorted((store / "commitlog").iterdir())[0]
    records = run("dump", "--json", "--limit", 60, store).lines
    data = bytearray(first.read_bytes())
    data[records[30]["physical_offset"] + 8] ^= 0xFF
    first.write_bytes(data)
    client = Client(store)
    offsets = [one["physical_offset"] for one in records]
    kept = [at for at in offsets if at != records[30]["physical_offset"]]
    shown = [json.loads(line)["physical_offset"] for line in client.get("/0/messages.jsonl").text.splitlines()]
    assert shown == kept[: len(shown)] and len(shown) == 50
    back = client.get(f"/0/messages.jsonl?before={offsets[40]}").text.splitlines()
    assert [json.loads(line)["physical_offset"] for line in back] == kept[:39]


def test_a_message_shows_its_body_its_references_and_groups(tmp_path: Path) -> None:
    """JSON is folded; unit, index item and the groups that acknowledged it are named; the body is downloaded whole."""
    with MessageStore.open(tmp_path / "store", config=SMALL) as store:
        for number in range(3):
            store.put(Message("orders", b'{"items":[1.50,{"a":null}]}', keys=[f"order-{number}"], queue_id=0))
        store.reset_offsets("orders", "billing", 1)
    client = Client(tmp_path / "store")
    at = run("get", "--json", "--topic", "orders", "--queue", 0, "--offset", 1, tmp_path / "store").json["physical_offset"]
    pages_of = [client.get(f"/0/message?at={one}").text for one in (0, at)]
    assert "<summary>items: [2 items]</summary>" in pages_of[1] and "0: 1.50" in pages_of[1]
    assert "index item of key order-1" in unescape(pages_of[1]).replace("<wbr>", "")
    assert [re.findall("(?:not )?acknowledged", page)[-1] for page in pages_of] == ["acknowledged", "not acknowledged"]
    assert client.get(f"/0/body?at={at}").body == b'{"items":[1.50,{"a":null}]}'
    assert client.get(f"/0/message.json?at={at}").json["queue_offset"] == 1
    unit = re.search(r"consumequeue/.*?/00000000000000000000</td>.*?>(\d+)<", pages_of[1].replace("<wbr>", ""))
    assert unit is not None and unit[1] == "20"
    assert "unit of a queue" in client.get("/0/bytes?file=consumequeue/orders/0/00000000000000000000&offset=20").text


def test_messages_are_found_by_key_id_and_time(tmp_path: Path) -> None:
    """A time selects the first message stored at or after it, in a queue and in the log."""
    with MessageStore.open(tmp_path / "store", config=SMALL) as store:
        for number in range(20):
            store.put(Message("orders", b"x", keys=[f"order-{number}"], queue_id=number % 2))
    client, records = Client(tmp_path / "store"), run("dump", "--json", tmp_path / "store").lines
    one = records[7]
    assert client.get("/0/messages.jsonl?topic=orders&key=order-7").json == one
    assert client.get(f"/0/messages.jsonl?id={one['message_id']}").json == one
    for query in ("", "topic=orders&queue=1&"):
        moment = one["store_timestamp_ms"]
        shown = client.get(f"/0/messages.jsonl?{query}time={moment}").text.splitlines()
        later = [row for row in records if row["store_timestamp_ms"] >= moment and (not query or row["queue_id"] == 1)]
        assert [json.loads(line) for line in shown] == later
    for bad in ("key=x", "time=never", "start=-1", "start=1e3", "topic=orders&queue=x", "topic=none&queue=0", "id=zz"):
        assert client.get(f"/0/messages?{bad}").status in (400, 404), bad


def test_a_search_of_a_rabbitmq_queue_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no index, so a page searches for a bounded time."""
    monkeypatch.setattr("brokerstore.web.views.SEARCH_S", -1.0)
    with RabbitStore.open(tmp_path / "vhost") as store:
        store.declare_queue("mail")
        for number in range(4):
            store.publish("mail", b"x", properties={"message_id": f"letter-{number}"})
    client = Client(tmp_path / "vhost")
    address, seen = "/0/messages?queue=mail&key=letter-2", 0
    while True:
        page = client.get(address)
        seen += 1
        found = re.search(r'href="([^"]*)">Search on<', page.text)
        if found is None or "letter-2" in client.get(address.replace("messages", "messages.jsonl", 1)).text:
            break
        address = unescape(found[1])
    assert seen == 3


def test_download_as_parquet(fixture_store: Any) -> None:
    """The rows of the tool's export."""
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    client = Client(fixture_store("plain").store)
    answered = client.get("/0/download?form=parquet&topic=HotTopic")
    table = parquet.read_table(pa.BufferReader(answered.body))
    rows = run("export", "--topic", "HotTopic", fixture_store("plain").store).lines
    assert table.column("physical_offset").to_pylist() == [row["physical_offset"] for row in rows]
    assert "attachment" in answered.headers["content-disposition"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.test:8123"}, 421), ({"host": "127.0.0.1.evil.test"}, 421), ({"host": ""}, 421),
        ({"origin": "http://evil.test"}, 403), ({"origin": "null"}, 403), ({"cookie": ""}, 403),
        ({"cookie": "brokerstore-8123=wrong"}, 403), ({"origin": f"http://{HOST}"}, 200), ({"host": "localhost:8123"}, 200),
    ],
)  # fmt: skip
def test_other_hosts_pages_and_strangers_are_refused(fixture_store: Any, headers: dict[str, str], status: int) -> None:
    """DNS rebinding, requests of other pages, and requests without the token."""
    client = Client(fixture_store("plain").store)
    assert client.get("/0/queues", **headers).status == status
    assert client.get("/style.css", **headers).status == status


def test_the_printed_address_sets_a_cookie_and_leaves_the_token_out(fixture_store: Any) -> None:
    """The token is in no address that a later page could pass on."""
    client = Client(fixture_store("plain").store)
    answered = client.get(f"/0/?token={client.site.token}", cookie="")
    assert (answered.status, answered.headers["location"]) == (303, "/0/")
    cookie = answered.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert client.get("/0/?token=wrong", cookie="").status == 403
    policy = client.get("/0/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script" not in policy
    assert client.site.token not in client.get("/0/").text


def test_the_printed_address_answers_at_once(fixture_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that reads the line connects before the server accepts: it waits, and is not refused."""
    import uvicorn

    def run_until_connected(_server: object, sockets: list[socket.socket]) -> None:
        with socket.create_connection(sockets[0].getsockname(), timeout=10):
            pass

    monkeypatch.setattr(uvicorn.Server, "run", run_until_connected)
    ran = run("web", fixture_store("plain").store)
    assert (ran.code, ran.talk) == (0, "")


def test_no_path_leaves_the_folder(tmp_path: Path, fixture_store: Any) -> None:
    """Neither dots, nor an absolute path, nor a symlink, a pipe or a folder."""
    store = fixture_store("plain", own=True).store
    (tmp_path / "secret").write_bytes(b"TOPSECRET")
    (store / "link").symlink_to(tmp_path / "secret")
    import os

    os.mkfifo(store / "pipe")
    client = Client(store)
    for file in (
        "../" * 12 + "etc/hostname",
        "/etc/hostname",
        str(tmp_path / "secret"),
        "link",
        "pipe",
        "",
        "a%00b",
    ):
        answered = client.get(f"/0/bytes?file={file}&offset=0")
        assert answered.status == 400 and "TOPSECRET" not in answered.text, file
    assert client.get("/1/queues").status == 404
    assert client.get("/0/../../etc/hostname").status in (404, 400)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.deep)])
def test_hostile_names_and_bodies_change_no_page(tmp_path: Path, seed: int) -> None:
    """Topics, keys, bodies, properties, queue names and the folder's own name are text on every page."""
    evil = [name.replace(" ", "_") or "x" for name in names(seed)]
    store = tmp_path / FRAGMENTS[seed].replace("/", "_")
    write_log(store, evil, evil[::-1])
    write_rabbit(tmp_path / "vhost", evil)
    usual: set[str] | None = None
    for folder in (store, tmp_path / "vhost"):
        client = Client(folder)
        waiting, seen = ["/0/", "/0/queues", "/0/messages", *([] if folder is store else ["/0/messages?queue=x"])], set[str]()
        while waiting and len(seen) < 60:
            address = waiting.pop(0)
            seen.add(address)
            answered = client.get(address)
            if "html" not in answered.headers.get("content-type", ""):
                continue
            shape = Shape(answered.text)
            assert not shape.elements & {"script", "img", "iframe", "style", "b2", "svg2"}
            assert not any(name.startswith("on") for _, name in shape.attributes)
            assert not CONTROLS.search(answered.text), address
            assert [one for one in shape.differing if not one.startswith(("/", "?"))] == [], address
            waiting += [link for link in links(answered.text) if link not in seen and link not in waiting][:15]
        assert len(seen) > 10
    assert usual is None


def test_a_body_of_one_long_line_and_deep_json_is_bounded(tmp_path: Path) -> None:
    """A page has a bounded part of it; the download has all."""
    bodies = [
        b'"' + b"\xe2\x80\xae<b>" * 600_000,
        b"[" * 200_000,
        b'{"a":' + b"9" * 10_000 + b"}",
        b"[" + b"1," * 20_000 + b"1]",
    ]
    with MessageStore.open(tmp_path / "store") as store:
        offsets = [store.put(Message("T", body, queue_id=0)).physical_offset for body in bodies]
    client = Client(tmp_path / "store")
    for at, body in zip(offsets, bodies, strict=True):
        page = client.get(f"/0/message?at={at}")
        assert page.status == 200 and len(page.body) < 1 << 20 and not CONTROLS.search(page.text)
        assert client.get(f"/0/body?at={at}").body == body
    assert len(client.get("/0/messages").body) < 1 << 20


def test_json_is_folded_as_it_is_written() -> None:
    """Numbers keep their digits, and what is left out is counted."""
    made = folded(b'{"n":12345678901234567890.10,"l":[true,"x"]}')
    assert made is not None
    assert [one["label"] for one in made["children"]] == ["n: 12345678901234567890.10", "l: [2 items]"]
    assert folded(b"plain") is None and folded(b"{") is None and folded(b"[" * 100_000) is None
    many = folded(b"[" + b"0," * 5000 + b"0]")
    assert many is not None and "not shown" in many["label"] and len(many["children"]) < 2001


# Changes


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Make a store of three messages and a group that took none."""
    with MessageStore.open(tmp_path / "store", config=SMALL) as made:
        for number in range(3):
            made.put(Message("orders", b"x%d" % number, keys=[f"order-{number}"], queue_id=0))
        made.reset_offsets("orders", "billing", 0)
    return tmp_path / "store"


def test_a_change_is_shown_first_and_then_done_and_logged(store: Path) -> None:
    """The plan changes nothing; the second form does what it showed."""
    client = Client(store, allow_changes=True)
    shown = client.post("/0/change/purge", {"topic": "orders", "group": "billing"})
    assert shown.status == 200 and "skips" in shown.text and client.lines == []
    assert run("offsets", "show", "--json", store).json["offsets"][0]["lag"] == 3
    done = client.post("/0/change/purge", {"topic": "orders", "group": "billing", "apply": "1"})
    assert done.status == 200 and "Done" in done.text
    assert run("offsets", "show", "--json", store).json["offsets"][0]["lag"] == 0
    assert len(client.lines) == 1 and "purge" in client.lines[0]
    client.post("/0/change/reset", {"topic": "orders", "group": "billing", "to": "1", "apply": "1"})
    assert run("offsets", "show", "--json", store).json["offsets"][0]["offset"] == 1
    body = "two\r\nlines\x1b\u202e"
    client.post("/0/change/put", {"topic": "orders", "body": body, "keys": "a b", "apply": "1"})
    assert b"two\nlines" in run_body(store, "a") and len(client.lines) == 3


def run_body(store: Path, key: str) -> bytes:
    """Return the body of the message with a key."""
    from base64 import b64decode

    return b64decode(run("query", "--json", store, "orders", key).json["body_base64"])


def test_dead_letters_are_requeued_and_deleted(tmp_path: Path) -> None:
    """As `requeue` and `purge` of the dead letters' topic do."""
    with MessageStore.open(tmp_path / "store", config=SMALL) as made:
        made.put(Message("orders", b"x", queue_id=0))
        for number in range(2):
            properties = {"RETRY_TOPIC": "orders"}
            made.put(Message("%DLQ%billing", b"dead", keys=[f"dead-{number}"], properties=properties, queue_id=0))
    client = Client(tmp_path / "store", allow_changes=True)
    assert "Dead letters" in client.get("/0/").text
    client.post("/0/change/requeue", {"group": "billing", "key": "dead-0", "apply": "1"})
    topics = [one["topic"] for one in run("dump", "--json", tmp_path / "store").lines]
    assert topics == ["orders", "%DLQ%billing", "%DLQ%billing", "orders"]
    answered = client.post("/0/change/delete-dead-letters", {"group": "billing", "apply": "1"})
    assert "Done" in answered.text
    rows = run("offsets", "show", "--json", "--topic", "%DLQ%billing", tmp_path / "store").json["offsets"]
    assert [row["lag"] for row in rows] == [0]


def test_a_change_works_on_a_shared_store_in_use(store: Path) -> None:
    """The process that owns the store does it."""
    from brokerstore import connect

    with connect(store, config=SMALL) as shared:
        client = Client(store, allow_changes=True)
        assert client.get("/0/").status == 200
        done = client.post("/0/change/put", {"topic": "orders", "body": "y", "apply": "1"})
        assert done.status == 200, done.text
        assert shared.max_offset("orders", 0) + sum(shared.max_offset("orders", one) for one in range(1, 4)) >= 4


@pytest.mark.parametrize("form", [{"form_token": ""}, {"form_token": "wrong"}])
def test_a_form_of_another_page_changes_nothing(store: Path, form: dict[str, str]) -> None:
    """Neither without its token, nor with another origin, nor without --allow-changes."""
    before = (store / "config" / "consumerOffset.json").read_bytes()
    client, given = Client(store, allow_changes=True), {"topic": "orders", "group": "billing", "apply": "1"}
    assert client.post("/0/change/purge", given | form).status == 403
    assert client.post("/0/check", form).status == 403
    assert client.post("/0/change/purge", given, origin="http://evil.test").status == 403
    assert client.post("/0/change/purge", given, sec_fetch_site="cross-site").status == 403
    assert Client(store).post("/0/change/purge", given).status == 403
    assert client.get("/0/change/purge?apply=1&topic=orders&group=billing").status == 200
    assert (store / "config" / "consumerOffset.json").read_bytes() == before


def test_a_wrong_change_is_an_error_on_the_page(store: Path, fixture_store: Any) -> None:
    """An unknown topic, a missing field, an offset outside of the queue, and a RabbitMQ folder."""
    client = Client(store, allow_changes=True)
    for name, form in (
        ("purge", {"topic": "none", "group": "g"}), ("purge", {"topic": ""}),
        ("reset", {"topic": "orders", "group": "billing", "to": "99"}), ("reset", {"topic": "orders", "group": "g", "to": "x"}),
        ("put", {"topic": "a/b", "body": "x", "apply": "1"}),
    ):  # fmt: skip
        assert client.post(f"/0/change/{name}", form).status in (200, 400)
    assert client.lines == []
    assert Client(fixture_store("rabbitmq-clean").folder.parent / "vhost", allow_changes=True).post(
        "/0/change/purge", {"topic": "x", "group": "g"}
    ).status in (200, 400)


def test_several_folders_have_a_first_page(store: Path, fixture_store: Any, tmp_path: Path) -> None:
    """One folder goes to its overview, several are listed; one that goes away is an error of its pages alone."""
    shutil.copytree(store, tmp_path / "other")
    client = Client(store, tmp_path / "other")
    assert client.get("/").text.count("<li><a href=") >= 2
    shutil.rmtree(tmp_path / "other")
    assert "no such folder" in client.get("/1/").text
    assert client.get("/0/").status == 200
    assert Client(store).get("/").headers["location"] == "/0/"


def test_the_overview_of_a_store_in_use_shows_rates_between_requests(tmp_path: Path) -> None:
    """The rate lies between the puts in the time around both requests, and in the time between them."""
    with MessageStore.open(tmp_path / "s", config=SMALL) as store:
        client = Client(tmp_path / "s")
        store.put("Jobs", b"before")
        around = time.monotonic()
        assert "0 put/s" in client.get("/0/").text
        between = time.monotonic()
        for _ in range(2000):
            store.put("Jobs", b"x")
        store.max_offset("Jobs", 0)  # waits for the dispatcher: the page counts what is in the queues
        between = time.monotonic() - between
        page = unescape(client.get("/0/").text)
        around = time.monotonic() - around
        found = re.search(r"2001 messages, (\d+) put/s", page)
        assert found is not None and 2000 / (around + 0.002) - 1 <= int(found[1]) <= 2000 / max(0.001, between - 0.002) + 1
    assert "put/s" not in client.get("/0/").text, "the folder is not in use any more"
