"""The quick readers of version 2 give what the careful ones give, or leave the bytes to them."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rabbitstore import RabbitSettings, RabbitStore
from rabbitstore.format.container_writer import encode_container
from rabbitstore.format.content import content_of
from rabbitstore.format.content_cy import split_container
from rabbitstore.format.message import Content
from rabbitstore.format.terms_cy import decode
from rabbitstore.read.intact_segment_cy import read_intact
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


def test_a_container_with_headers_from_the_server_is_left(world: World) -> None:
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


def fields(entries: Any) -> list[tuple[Any, ...]]:
    names = ("seq_id", "msg_id", "expiry_us", "size", "persistent", "term", "embedded", "file", "offset", "delivered", "acked")
    return [tuple(getattr(entry, name) for name in names) for entry in entries]


def test_an_intact_segment_is_read_like_any_other(tmp_path: Any) -> None:
    """Every changed byte of either file is left to the careful reader, unless that one finds nothing wrong with it."""
    queue, index, stored = segment(tmp_path)
    slow = [queue._from_v2(*pair, 0) for pair in queue.segment_v2(0, [])]
    name = slow[0].file
    assert len(slow) == 4
    assert fields(read_intact(index.read_bytes(), stored.read_bytes(), 0, name) or []) == fields(slow)
    entries = 64 + 4 * 32
    for path, stop in ((index, entries), (stored, stored.stat().st_size)):
        whole = path.read_bytes()
        for at in range(stop):
            path.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
            problems: list[Any] = []
            found = read_intact(index.read_bytes(), stored.read_bytes(), 0, name)
            careful = [queue._from_v2(*pair, 0) for pair in queue.segment_v2(0, problems)]
            assert found is None or (problems == [] and fields(found) == fields(careful)), f"{path.name} at {at}"
        path.write_bytes(whole)


def test_a_segment_that_is_cut_is_left(tmp_path: Any, world: World) -> None:
    """An entry or a message without its end, and a segment of another number."""
    _queue, index, stored = segment(tmp_path)
    read = world.module("rabbitstore.read.intact_segment_cy").read_intact
    head, body = index.read_bytes(), stored.read_bytes()
    assert len(read(head, body, 0, "f")) == 4
    for left, right, number in (
        (head[:-1], body, 0),
        (head, body[:-1], 0),
        (head, body, 1),
        (b"", b"", 0),
        (head * 9, body, 0),
    ):
        assert read(left, right, number, "f") is None or len(left) > len(head)
