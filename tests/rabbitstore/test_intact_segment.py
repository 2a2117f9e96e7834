"""The quick readers of version 2 give what the careful ones give, or leave the bytes to them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rabbitstore import RabbitSettings, RabbitStore
from rabbitstore.format.container_writer import encode_container
from rabbitstore.format.content import content_of, decode_content, encode_content
from rabbitstore.format.content_cy import split_container
from rabbitstore.format.layout import PUBLISH_BODY, SEGMENT_HEAD
from rabbitstore.format.message import Content
from rabbitstore.format.segment_cy import read_segment
from rabbitstore.format.terms_cy import decode
from rabbitstore.read.intact_segment_cy import read_intact, read_intact_v2
from rabbitstore.read.stored_message import RabbitMessage
from rabbitstore.read.vhost_folder import VhostFolder
from storageio import StoreCorrupt, UnsupportedFormat
from tests.builds import World

TEXT = st.text(max_size=8)
CONTENTS = st.builds(
    Content, st.just(""), TEXT, st.lists(TEXT, max_size=3).map(tuple),
    st.sampled_from([b"\0\0", b"\x18\0\2\5", b"\x00\x40" + bytes(8)]), st.binary(max_size=40),
    st.just(b"i" * 16), st.booleans(),
)  # fmt: skip


def slowly(term: bytes) -> Content | None:
    """Return the message by way of the whole term, None for a damaged one."""
    try:
        return content_of(decode(term))
    except (StoreCorrupt, UnsupportedFormat):
        return None


@settings(deadline=None)
@given(CONTENTS, st.sampled_from([None, 5, 70_000]))
def test_a_container_is_split_like_its_term(content: Content, ttl_ms: int | None) -> None:
    """The message comes back, and no byte can be changed so that both ways read different messages."""
    term = encode_container(content, ttl_ms=ttl_ms, now_ms=1_700_000_000_000)
    assert split_container(term, "") == tuple(content) == slowly(term)
    for at in range(len(term)):
        assert split_container(term[:at], "") is None
        for bit in (1, 0x80):
            changed = term[:at] + bytes((term[at] ^ bit,)) + term[at + 1 :]
            found = split_container(changed, "")
            assert found is None or found == slowly(changed)


def test_a_container_with_headers_from_the_server_is_left_to_the_slow_path(world: World) -> None:
    """Annotations that become headers, and an unknown one."""
    term = encode_container(Content("", "", ("q",), b"\0\0", b"b", b"i" * 16, True), ttl_ms=None, now_ms=1)
    at = term.index(b"t\0\0\0\4")
    split = world.module("rabbitstore.format.content_cy").split_container
    assert split(term, "") is not None
    for more in (b"m\0\0\0\3x-aa\1", b"w\6deathsj", b"w\3ttlw\x09undefined", b"w\4sizea\1"):
        assert split(term[:at] + b"t\0\0\0\5" + term[at + 5 :] + more, "") is None


def segment(tmp_path: Any) -> tuple[Any, Any, Any]:
    """Return the folder of a queue with messages in `0.qs`, and both files."""
    with RabbitStore.open(tmp_path, settings=RabbitSettings(background=False)) as store:
        store.declare_queue("q")
        for number in range(4):
            store.publish("q", b"body %d" % number, properties={"expiration": "60000"} if number else None)
        store.sync()
    queue = VhostFolder(str(tmp_path)).queue_folders()[0]
    index, stored = (next(tmp_path.rglob(name)) for name in ("0.qi", "0.qs"))
    return queue, index, stored


def quickly(index: Any, stored: Any, name: str) -> Any:
    """Return the entries of a segment, None unless it is intact."""
    found = read_intact_v2(index.read_bytes(), stored.read_bytes(), 0, name)
    return None if found is None else found.entries()


def fields(entries: Any) -> list[tuple[Any, ...]]:
    names = ("seq_id", "msg_id", "expiry_us", "size", "persistent", "term", "embedded", "file", "offset", "delivered", "acked")
    return [tuple(getattr(entry, name) for name in names) for entry in entries]


def test_an_intact_segment_is_read_like_any_other(tmp_path: Any) -> None:
    """Every changed byte of either file is left to the careful reader, unless that one finds nothing wrong with it."""
    queue, index, stored = segment(tmp_path)
    queue.stores.recovery = None  # the terms of a stop are compared before either reader is used
    slow = [queue.index.entry_of(*pair, 0) for pair in queue.index.segment(0, [])]
    name = slow[0].file
    assert len(slow) == 4
    assert fields(quickly(index, stored, name) or []) == fields(slow)
    entries = 64 + 4 * 32
    for path, stop in ((index, entries), (stored, stored.stat().st_size)):
        whole = path.read_bytes()
        for at in range(stop):
            path.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
            problems: list[Any] = []
            found = quickly(index, stored, name)
            careful = [queue.index.entry_of(*pair, 0) for pair in queue.index.segment(0, problems)]
            assert found is None or (problems == [] and fields(found) == fields(careful)), f"{path.name} at {at}"
        path.write_bytes(whole)


def test_a_truncated_segment_is_left_to_the_slow_path(tmp_path: Any, world: World) -> None:
    """An entry or a message without its end, and a segment of another number."""
    _queue, index, stored = segment(tmp_path)
    read = world.module("rabbitstore.read.intact_segment_cy").read_intact_v2
    head, body = index.read_bytes(), stored.read_bytes()
    assert len(read(head, body, 0, "f").entries()) == 4
    for left, right, number in (
        (head[:-1], body, 0),
        (head, body[:-1], 0),
        (head, body, 1),
        (b"", b"", 0),
        (head * 9, body, 0),
    ):
        assert read(left, right, number, "f") is None or len(left) > len(head)


def test_entries_that_share_a_message_are_left_to_the_slow_path(tmp_path: Any, world: World) -> None:
    """A thousand entries that name one message of a MiB would make a batch of a GiB."""
    _queue, index, stored = segment(tmp_path)
    read = world.module("rabbitstore.read.intact_segment_cy").read_intact_v2
    head = index.read_bytes()
    first, second = head[64:96], head[96:128]
    for entries in (first + first, second + first):
        assert read(head[:64] + entries + head[128:], stored.read_bytes(), 0, "f") is None
    assert read(head[:64] + first + bytes(32) + head[128:], stored.read_bytes(), 0, "f") is not None


ROUTES = [("", ("q",)), ("", ("q",)), ("an exchange", ("a", "b")), ("", ())]


def version_1(*, more: bytes = b"") -> bytes:
    """Return a segment: number 5 is acknowledged, 1 delivered; not in the order of the numbers."""
    data = b""
    for relative, (exchange, keys) in zip((0, 5, 1, 3), ROUTES, strict=True):
        body = b"body" * 50 * relative
        content = Content("/", exchange, keys, b"\x18\0\2\5", body, bytes([relative]) * 16, relative != 3)
        term = encode_content(content) if relative != 3 else encode_container(content, ttl_ms=None, now_ms=1)
        data += SEGMENT_HEAD.pack(0x8000 | 0x4000 * content.persistent | relative)
        data += PUBLISH_BODY.pack(content.msg_id, 7 if relative == 1 else 0, len(body), len(term)) + term
    return data + b"".join(SEGMENT_HEAD.pack(0x4000 | relative) for relative in (5, 1, 5)) + more


def test_a_segment_of_version_1_is_read_like_any_other() -> None:
    """Every changed byte, and every cut, is left to the careful reader, unless that one finds nothing wrong with it."""
    whole = version_1()
    assert len(fields(read_intact(whole, 2, 8, "f").entries())) == 4  # type: ignore[union-attr]
    changed = [whole[:at] + bytes((whole[at] ^ bit,)) + whole[at + 1 :] for at in range(len(whole)) for bit in (1, 0x80)]
    for data in [whole, *changed, *(whole[:at] for at in range(len(whole)))]:
        problems: list[Any] = []
        found = read_intact(data, 2, 8, "f")
        careful, _end = read_segment(data, 16, 8, "f", problems)
        in_order = [careful[relative] for relative in sorted(careful)]
        assert found is None or (problems == [] and fields(found.entries()) == fields(in_order))


def test_a_version_1_segment_that_may_be_torn_is_left_to_the_slow_path() -> None:
    """A mark across a sector border with a low byte of zero."""
    terms = (encode_content(Content("/", "", ("q",), b"\0\0", bytes(size), bytes(16), True)) for size in range(2, 520))
    entries = (SEGMENT_HEAD.pack(0x8007) + PUBLISH_BODY.pack(bytes(16), 0, 0, len(term)) + term for term in terms)
    data = next(data for entry in entries if len(data := version_1(more=entry)) % 512 == 511)
    for mark, is_left in ((0x4000, True), (0x4001, False)):
        assert (read_intact(data + SEGMENT_HEAD.pack(mark), 0, 8, "f") is None) == is_left


@pytest.mark.parametrize("version", [1, 2])
def test_counts_are_those_of_the_entries(version: int, tmp_path: Any, world: World) -> None:
    """A changed byte makes a message that is not whole, or counts that the entries have too."""
    module = world.module("rabbitstore.read.intact_segment_cy")
    if version == 1:
        data = version_1()
        read = lambda changed: module.read_intact(changed, 2, 8, "f")  # noqa: E731
    else:
        _queue, index, stored = segment(tmp_path)
        data, head = stored.read_bytes(), index.read_bytes()
        read = lambda changed: module.read_intact_v2(head, changed, 0, "f")  # noqa: E731
    counted = 0
    for at in [-1, *range(len(data))]:
        changed = data if at < 0 else data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]
        part = read(changed)
        if part is None or not part.count_messages():
            assert at >= 0
            continue
        counted += 1
        entries = part.entries()
        alive = [entry for entry in entries if not entry.acked]
        contents = [decode_content(entry.term) for entry in entries]
        assert version == 2 or [one.msg_id for one in contents] == [entry.msg_id for entry in entries]
        assert (part.messages, part.persistent) == (len(alive), sum(entry.persistent for entry in alive))
        assert part.expiring == sum(entry.expiry_us != 0 for entry in alive)
        assert (part.size_bytes, part.largest) == (sum(one.size for one in alive), max(one.size for one in alive))
        assert (part.lowest, part.highest) == (entries[0].seq_id, entries[-1].seq_id)
        assert part.containers == sum(entry.term.startswith(b"\x83h\4w\2mc") for entry in entries)
        steps = [sum(low < one.size <= high for one in alive) for low, high in ((-1, 128), (128, 1024), (1024, 1 << 40))]
        assert [*part.sizes[:2], sum(part.sizes[2:])] == steps
    assert counted == (1 if version == 2 else counted) and counted


def test_a_stored_message_and_another_id_are_not_counted() -> None:
    """The message of the first is in no file of the queue, and that of the second is not the entry's."""
    data = version_1()
    assert read_intact(data, 0, 8, "f").count_messages()  # type: ignore[union-attr]
    stored = SEGMENT_HEAD.pack(0x8002) + PUBLISH_BODY.pack(b"i" * 16, 0, 9000, 0)
    found = read_intact(version_1(more=stored), 0, 8, "f")
    assert found is not None and not found.count_messages() and len(found.entries()) == 5
    wrong = read_intact(data[:2] + b"x" + data[3:], 0, 8, "f")
    assert wrong is not None and not wrong.count_messages() and len(wrong.entries()) == 4


def lines_of(module: Any, part: Any, bound: int, capacity: int) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the lines that the kernel writes, and the rows that it leaves."""
    lines, row = module.LineWriter(), 0
    written, left = [], []
    while row < part.count:
        row = part.write_lines(lines, row, ("q", "v"), bound, capacity)
        if lines.size >= capacity:
            written += bytes(lines.take()).splitlines()
        elif row < part.count:
            left.append(row)
            row += 1
    written += bytes(lines.take()).splitlines()
    return [json.loads(line) for line in written], left


@pytest.mark.parametrize("capacity", [1, 700, 1 << 20])
@pytest.mark.parametrize("bound", [0, 18, 1 << 62])
def test_json_lines_equal_those_of_the_decoded_messages(bound: int, capacity: int, world: World) -> None:
    """Messages of both forms; those with an empty body or damaged properties are left to the caller."""
    bad = encode_content(Content("/", "", ("q",), b"\xff\xff\0", b"b", bytes(16), True))
    more = SEGMENT_HEAD.pack(0x8006) + PUBLISH_BODY.pack(bytes(16), 0, 1, len(bad)) + bad
    part = world.module("rabbitstore.read.intact_segment_cy").read_intact(version_1(more=more), 2, 8, "queues/Q/2.idx")
    found, left = lines_of(world.module("rabbitstore.read.json_cy"), part, bound, capacity)
    entries = {row: part.entry(row) for row in range(part.count)}
    assert [entries[row].seq_id for row in left] == [16, 22]  # the first one's body is empty
    kept = [entry for row, entry in entries.items() if row not in left and not entry.acked]
    expected = []
    for entry in kept:
        content = decode_content(entry.term, vhost="v")
        message = RabbitMessage("q", None, entry.seq_id, entry.persistent, False, entry.seq_id < bound, entry.expiry_us,
                                entry.size, True, entry.file, entry.offset, content)  # fmt: skip
        expected.append(message.to_json())
    assert found == expected and len(found) == 2
