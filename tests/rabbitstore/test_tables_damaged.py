"""Damage to each clean-stop file is reported, and no row appears that the server did not write."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from rabbitstore import RabbitSettings, RabbitStore, verify
from rabbitstore.format import tables
from rabbitstore.format.dets_table import ACTIVE, BASE_AT, CLOSED_AT, OBJECTS_AT, read_dets, write_dets
from rabbitstore.format.ets_table import CHUNK, HEAD, MAGIC, MD5_FROM, read_ets
from rabbitstore.format.terms import Atom, CharList, encode
from storageio import StoreCorrupt, UnsupportedFormat

from .conftest import WhenItWasWritten

STORE = "msg_store_persistent"
FILES = {
    f"{STORE}/file_summary.ets": tables.read_summary,
    f"{STORE}/msg_store_index.ets": tables.read_locations,
    f"{STORE}/clean.dot": tables.read_clean_mark,
    "recovery.dets": tables.read_recovery,
}
END = [Atom("$end_of_table"), [(Atom("count"), 1)]]


@pytest.mark.parametrize("name", FILES)
def test_a_table_of_the_server_cut_anywhere_is_named(clean: Any, name: str) -> None:
    """Each file is trusted as a whole or not at all."""
    data = (clean.vhost / name).read_bytes()
    whole = len(data.rstrip())
    for size in {*range(0, whole, max(1, whole // 97)), whole - 1}:
        if data[:size].strip().endswith(b"]}."):  # cut between its terms a mark is as RabbitMQ 4 writes it
            assert tables.read_clean_mark(data[:size], name).index_module == ""
            continue
        with pytest.raises(StoreCorrupt):
            FILES[name](data[:size], name)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith("ets")])
def test_a_byte_of_a_table_changed_is_named_or_changes_one_row(clean: Any, name: str) -> None:
    """Small chunks have no checksum: a damaged file that passes has the right number and kind of rows."""
    data = (clean.vhost / name).read_bytes()
    rows = FILES[name](data, name)
    for at in range(0, len(data), max(1, len(data) // 499)):
        damage = data[:at] + bytes((data[at] ^ 0x55,)) + data[at + 1 :]
        try:
            found = FILES[name](damage, name)
        except (StoreCorrupt, UnsupportedFormat):
            continue
        assert len(found) == len(rows) and len(set(found) - set(rows)) <= 1


def ets(*terms: Any) -> bytes:
    """Return a table with these terms as chunks, the first being the properties."""
    parts = [HEAD]
    for term in terms:
        data = term if isinstance(term, bytes) else encode(term)
        parts += [CHUNK.pack(len(data), MAGIC), data]
    return b"".join(parts)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0" * 8 + ets((), END)[8:], "not an ets file"),
        (ets((), Atom("row"), END), "not a row"),
        (ets((), (1, 2)), "without an end"),
        (ets((), (1, 2)) + b"\0\0", "torn chunk"),
        (ets((), (1, 2)) + CHUNK.pack(9, b"ALWb"), "torn chunk"),
        (ets((), (1, 2)) + CHUNK.pack(9, MAGIC) + b"\x83", "torn chunk"),
        (ets((), (1, 2), (3, 4), END), "lost rows"),
        (ets((), END), "lost rows"),
    ],
)
def test_a_damaged_ets_file_is_named(data: bytes, reason: str) -> None:
    """A table has a head, chunks with the magic, tuples, and an end with their number."""
    with pytest.raises(StoreCorrupt, match=reason):
        read_ets(data, "t.ets")


def test_an_ets_chunk_of_64_kib_that_fails_its_md5_is_named() -> None:
    """A large chunk, such as the properties of a table with many clients, has a checksum."""
    term = encode((b"x" * MD5_FROM,))
    good = hashlib.md5(term).digest()
    for md5, is_good in ((good, True), (bytes(16), False)):
        data = HEAD + CHUNK.pack(len(term), MAGIC) + md5 + term + ets((1, 2), END)[len(HEAD) :]
        if is_good:
            assert read_ets(data, "t.ets") == [(1, 2)]
            continue
        with pytest.raises(StoreCorrupt, match="MD5"):
            read_ets(data, "t.ets")


@pytest.mark.parametrize(
    "row",
    [
        (Atom("msg_location"), b"short", 1, 2, 3, 4),
        (Atom("msg_location"), b"i" * 16, 1, 2, 3),
        (b"i" * 16, b"j" * 16, 1, 2, 3),
        (Atom("msg_location"), b"i" * 16, 1, 1 << 62, 3, 4),
        (Atom("msg_location"), 16, 1, 2, 3, 4),
    ],
)
def test_a_location_row_of_another_shape_is_named(row: tuple[Any, ...]) -> None:
    """Wrong ids, widths and numbers are rejected."""
    good = (Atom("msg_location"), b"g" * 16, 1, 2, 3, 4)
    assert tables.read_locations(ets((), good, END), "t") == [tables.LocationRow(b"g" * 16, 1, 2, 3, 4)]
    with pytest.raises(StoreCorrupt, match="another table"):
        tables.read_locations(ets((), row, END), "t")


def test_a_folder_with_invalid_location_rows_is_opened_by_a_scan(clean: Any, tmp_path: Path) -> None:
    """A row of five elements used to end `verify` with an AttributeError."""
    folder = Path(shutil.copytree(clean.vhost, tmp_path / "vhost"))
    (folder / STORE / "msg_store_index.ets").write_bytes(ets((), (Atom("msg_location"), b"i" * 16, 1, 2, 3), END))
    assert "bad_table" in {problem.kind for problem in verify(str(folder)).problems}
    with RabbitStore.open(str(folder), "r+", settings=RabbitSettings(background=False), disk=WhenItWasWritten()) as store:
        assert "bad_table" in {problem.kind for problem in store.problems} and not store.parts.is_resumed
        assert sum(len(store.queue(name)) for name in store.queue_names()) == 3037


def test_a_location_row_with_wide_integers_is_read() -> None:
    """Above 2 GiB integers have another tag; the slow path reads such rows."""
    row = (Atom("msg_location"), b"g" * 16, 1, 2, 1 << 33, 4)
    end = [Atom("$end_of_table"), [(Atom("count"), 2)]]
    small = (Atom("msg_location"), b"h" * 16, 1, 2, 3, 4)
    found = tables.read_locations(ets((), small, row, end), "t")
    assert found == [tables.LocationRow(b"g" * 16, 1, 2, 1 << 33, 4), tables.LocationRow(b"h" * 16, 1, 2, 3, 4)]


def test_a_summary_row_of_another_shape_is_named() -> None:
    """The other reader of integers does the same."""
    with pytest.raises(StoreCorrupt, match="another table"):
        tables.read_summary(ets((), (Atom("file_summary"), 0), END), "t")


def test_rows_of_another_record_are_not_damage() -> None:
    """An unknown name is another format; a known name with one changed letter is damage."""
    other = (Atom("other"), 0, 0, 0, 0, 0, Atom("false"), 0)
    with pytest.raises(UnsupportedFormat, match="row other"):
        tables.read_summary(ets((), other, END), "t")
    with pytest.raises(UnsupportedFormat, match="row another"):
        tables.read_locations(ets((), (Atom("another"), b"i" * 16, 1, 2, 3, 4), END), "t")
    with pytest.raises(StoreCorrupt, match="another table"):
        tables.read_summary(ets((), (Atom("file_sommary"), *other[1:]), END), "t")


def test_a_clean_mark_with_a_number_that_is_no_byte_is_named() -> None:
    """`<<300>>` is not a reference."""
    with pytest.raises(StoreCorrupt, match="not a clean mark"):
        tables.read_clean_mark(b"{client_refs,[<<300>>]}.\n{index_module,rabbit_msg_store_ets_index}.\n", "clean.dot")


TERMS = [(Atom("next_seq_id"), 4), (Atom("next_deliver_seq_id"), 1), (Atom("persistent_count"), 2)]


@pytest.mark.parametrize(
    "row",
    [
        (Atom("no text"), [*TERMS, (Atom("persistent_bytes"), 7)]),
        (CharList(b"folder"), TERMS),
        (CharList(b"folder"), Atom("no_list")),
        (CharList(b"folder"), [*TERMS, (Atom("persistent_bytes"), -7)]),
    ],
)
def test_terms_of_another_shape_are_named(row: tuple[CharList, Atom]) -> None:
    """A key that is not text, a missing or negative number, and wrong terms are rejected."""
    with pytest.raises(StoreCorrupt, match="another table"):
        tables.read_recovery(dets([row]), "recovery.dets")


def dets(rows: list[tuple[CharList, Atom]]) -> bytes:
    """Return a closed table with rows of any kind, also with keys that are not text."""
    text = [(CharList(b"key%d" % number), value) for number, (_, value) in enumerate(rows)]
    data = write_dets(text)
    for (key, value), (located, _) in zip(rows, text, strict=True):
        old, new = encode((located, value)), encode((key, value))
        at = data.index(old)
        assert len(new) <= len(old) + 64
        data = data[: at - 4] + (len(new) + 4).to_bytes(4, "big") + new + data[at + len(old) + len(new) - len(old) :]
        used = int.from_bytes(data[at - 12 : at - 8], "big") + len(new) - len(old)
        data = data[: at - 12] + used.to_bytes(4, "big") + data[at - 8 :]
    return data


ROWS = [(CharList(b"key"), [b"x" * 900]), (CharList(b"other"), [])]


@pytest.mark.parametrize(
    ("at", "change", "reason"),
    [
        (5, b"\0", "not a dets file"),
        (CLOSED_AT + 3, b"\0", "not a closed"),
        (40, b"\x77", "MD5"),
        (BASE_AT, b"\x01", "torn dets file"),
        (OBJECTS_AT, b"\x7f", "torn block"),
        (OBJECTS_AT + 8, b"\x7f", "torn object"),
        (OBJECTS_AT + 12, b"\x82", "torn object"),
    ],
)
def test_a_damaged_dets_file_is_named(at: int, change: bytes, reason: str) -> None:
    """The bytes are those of the format page."""
    data = write_dets(ROWS)
    assert data[OBJECTS_AT + 4 : OBJECTS_AT + 8] == ACTIVE
    with pytest.raises(StoreCorrupt, match=reason):
        read_dets(data[:at] + change + data[at + len(change) :], "recovery.dets")


def test_a_dets_block_without_its_mark_counts_as_lost_objects() -> None:
    """Otherwise its queue would count as one without terms."""
    data = write_dets(ROWS)
    with pytest.raises(StoreCorrupt, match="lost objects"):
        read_dets(data[: OBJECTS_AT + 4] + bytes(4) + data[OBJECTS_AT + 8 :], "recovery.dets")


def test_a_location_with_extra_bytes_is_rejected() -> None:
    """A chunk longer than its term is rejected although the sums agree."""
    row = tables.LocationRow(bytes(16), 1, 0, 0, 40)
    data = tables.write_locations([row])
    assert tables.read_locations(data, "") == [row]
    at = data.index(b"msg_location")
    start = data.rindex(b"bWLA", 0, at) - 4
    length = int.from_bytes(data[start : start + 4], "big")
    stop = start + 8 + length
    longer = data[:start] + (length + 1).to_bytes(4, "big") + data[start + 4 : stop] + b"\0" + data[stop:]
    with pytest.raises(StoreCorrupt, match="bytes after the term"):
        tables.read_locations(longer, "msg_store_index.ets")
