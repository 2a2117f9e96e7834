"""Damage in a stream is named, and what lies behind it is read."""

from __future__ import annotations

import os
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rabbitstore import apply_recovery
from rabbitstore.stream import StreamFolder, layout, stream_folders
from rabbitstore.stream.check import check_stream
from rabbitstore.stream.layout import CHUNK_HEAD
from rabbitstore.stream.scan import StreamScan
from storageio import UnsupportedFormat
from storebytes.finding import UNSUPPORTED
from tests.helpers import overwrite

SECTOR = 512


@pytest.fixture
def copy(sources: dict[str, Any], tmp_path: Path) -> Callable[..., Any]:
    """Return a function that copies a stream's folder."""

    def make(name: str, kind: str = "rabbitmq4-streams") -> StreamFolder:
        source = sources[kind].stream(name)
        return StreamFolder(str(shutil.copytree(source.path, tmp_path / source.folder)), queue=name)

    return make


def path_of(stream: StreamFolder, ending: str = "segment", number: int = 0) -> str:
    return f"{stream.path}/{stream.segments()[number] if ending == 'segment' else stream.numbers(ending)[number]:020}.{ending}"


def flip(path: str, at: int, bit: int = 1) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        old = file.read(1)[0]
        file.seek(at)
        file.write(bytes((old ^ bit,)))


def heads(stream: StreamFolder, number: int = 0) -> list[Any]:
    """Return the chunks of one segment."""
    expected = stream.file(stream.segments()[number], "segment")
    return [chunk for segment, chunk in stream.chunks() if segment.file == expected]


def kinds(stream: StreamFolder) -> set[str]:
    return {problem.kind for problem in check_stream(stream).problems}


HEAD = {
    "magic": (0, 0x10, "bad_chunk"),
    "version": (0, 1, "bad_chunk"),
    "type": (1, 4, "bad_chunk"),
    "entries": (3, 1, "bad_chunk"),
    "records": (7, 1, "bad_chunk"),
    "timestamp": (15, 1, "bad_stream_index"),
    "epoch": (23, 1, "bad_stream_index"),
    "chunk id": (31, 1, "bad_chunk"),
    "crc": (33, 1, "bad_chunk"),
    "data size": (39, 1, "bad_chunk"),
    "trailer size": (43, 1, "bad_chunk"),
    "filter size": (44, 1, "bad_chunk"),
    "zeros": (46, 1, "bad_chunk"),
}


@pytest.mark.parametrize("field", HEAD)
def test_a_flipped_bit_in_each_field_of_a_head(copy: Callable[..., Any], field: str) -> None:
    """The problem has its kind; every message of other chunks is still read."""
    stream = copy("s.segments")
    every = {message.seq_id: message.raw for message in stream.messages()}
    at, bit, kind = HEAD[field]
    third = heads(stream)[3]
    flip(path_of(stream), third.position + at, bit)
    assert kind in kinds(stream)
    found = {message.seq_id: message.raw for message in stream.messages()}
    damage = range(third.chunk_id, heads_after(third))
    assert {offset: raw for offset, raw in found.items() if offset not in damage} == {
        offset: raw for offset, raw in every.items() if offset not in damage
    }


def heads_after(chunk: Any) -> int:
    """Return the first offset behind the chunk, which damage in its head cannot affect."""
    return chunk.next_id


def test_a_flipped_bit_in_the_data(copy: Callable[..., Any]) -> None:
    """The CRC finds it; only this chunk's messages are missing, and the gap is named."""
    stream = copy("s.segments")
    every = [message.seq_id for message in stream.messages()]
    chunk = heads(stream, 1)[4]
    flip(path_of(stream, number=1), chunk.data_at + 20)
    checked = check_stream(stream)
    assert [problem.kind for problem in checked.problems][:2] == ["bad_chunk", "lost_offsets"]
    assert "CRC" in checked.problems[0].expected and checked.problems[0].offset == chunk.position + 32
    lost = range(chunk.chunk_id, chunk.next_id)
    assert [message.seq_id for message in stream.messages()] == [offset for offset in every if offset not in lost]


@pytest.mark.parametrize("where", ["head", "data", "trailer"])
def test_a_cut_tail(copy: Callable[..., Any], where: str) -> None:
    """The last chunk is torn; all before it is read."""
    stream = copy("s.mixed")
    every = [message.seq_id for message in stream.messages()]
    last = heads(stream)[-1]
    size = {"head": last.position + 20, "data": last.data_at + 9, "trailer": last.stop - 1}[where]
    with open(path_of(stream), "r+b") as file:
        file.truncate(size)
    assert "torn_chunk" in kinds(stream)
    assert [message.seq_id for message in stream.messages()] == [offset for offset in every if offset < last.chunk_id]


def test_an_index_that_is_one_record_ahead_is_a_note(copy: Callable[..., Any]) -> None:
    """The server writes the record first, so a kill may leave it without its chunk."""
    stream = copy("s.mixed")
    last = heads(stream)[-1]
    with open(path_of(stream), "r+b") as file:
        file.truncate(last.position)
    checked = check_stream(stream)
    assert checked.problems == [] and [note.kind for note in checked.notes] == ["index_ahead"]


@pytest.mark.parametrize(
    ("number", "position", "expected"), [(-1, 8, "problem"), (-1, 1 << 31, "note"), (-2, 1 << 31, "problem")]
)
def test_an_index_record_with_a_wrong_position_is_damage(
    copy: Callable[..., Any], number: int, position: int, expected: str
) -> None:
    """Only the last one may point behind the end; one that points into the segment is damage."""
    stream = copy("s.mixed")
    records = list(stream.index_records(stream.segments()[0], []))
    at = 8 + 29 * (len(records) + number) + 24
    overwrite(path_of(stream, "index"), at, position.to_bytes(4, "big"))
    checked = check_stream(stream)
    target = [one for one in checked.problems if one.offset >= 8] if expected == "problem" else checked.notes
    assert (target[0].kind, target[0].offset) == ("bad_stream_index" if expected == "problem" else "index_ahead", at - 24)


def test_a_segment_with_only_its_header_is_damage_if_its_index_has_records(copy: Callable[..., Any]) -> None:
    """Its index says what is gone; without records a server had just made both."""
    stream = copy("s.mixed")
    with open(path_of(stream), "r+b") as file:
        file.truncate(8)
    checked = check_stream(stream)
    assert {one.kind for one in checked.problems} == {"bad_stream_index"}
    assert [one.kind for one in checked.notes] == ["index_ahead"] and (checked.chunks, checked.messages) == (0, 0)
    with open(path_of(stream, "index"), "r+b") as file:
        file.truncate(8)
    assert check_stream(stream)[2:] == ([], [])


def test_a_check_counts_the_readable_chunks_and_messages(copy: Callable[..., Any]) -> None:
    """Chunks and messages are those that can be read."""
    stream = copy("s.segments")
    checked = check_stream(stream)
    assert checked.chunks == sum(1 for _ in stream.chunks()) > 0 and checked.messages == sum(1 for _ in stream.messages())


def test_a_node_without_streams(tmp_path: Path) -> None:
    """No folder is no stream."""
    assert stream_folders(str(tmp_path)) == []


def test_a_tracking_chunk_with_another_size(copy: Callable[..., Any]) -> None:
    """Its single entry has the size of its data; the messages are not affected."""
    stream = copy("s.segments")
    every = [message.raw for message in stream.messages()]
    chunk = next(one for one in heads(stream, 1) if one.kind != layout.USER)
    path = path_of(stream, number=1)
    flip(path, chunk.data_at + 3)
    data = Path(path).read_bytes()[chunk.data_at : chunk.trailer_at]
    overwrite(path, chunk.position + 32, zlib.crc32(data).to_bytes(4, "big"))
    (problem,) = check_stream(stream).problems
    assert (problem.kind, problem.offset) == ("bad_tracking", chunk.data_at)
    assert [message.raw for message in stream.messages()] == every


def test_a_zeroed_sector(copy: Callable[..., Any]) -> None:
    """Zeros over several chunks are passed, and the lost offsets named."""
    stream = copy("s.filtered")
    every = {message.seq_id for message in stream.messages()}
    overwrite(path_of(stream), 1024, bytes(SECTOR))
    assert {"bad_chunk", "lost_offsets"} <= kinds(stream)
    found = [message.seq_id for message in stream.messages()]
    assert set(found) < every and max(found) == max(every) and len(found) >= len(every) - 4


@pytest.mark.parametrize("size", [20, 60, -1])
def test_a_torn_end_that_the_index_does_not_have_is_a_note(copy: Callable[..., Any], size: int) -> None:
    """Servers write a chunk before its record, and cut such an end when they start: 3.10.8, 4.0.5 and 4.3.6 lost no message."""
    stream = copy("s.mixed")
    every = [message.seq_id for message in stream.messages()]
    last = heads(stream, -1)[-1]
    file = Path(path_of(stream, number=-1))
    data = file.read_bytes()
    torn = bytearray(data[last.position : last.stop])
    torn[24:32] = last.next_id.to_bytes(8, "big")
    file.write_bytes(data + torn[:size])
    assert kinds(stream) == set()
    assert [(one.kind, one.offset) for one in check_stream(stream).notes] == [("torn_chunk", len(data))]
    assert [message.seq_id for message in stream.messages()] == every and stream.problems == []
    index = Path(path_of(stream, "index", -1))
    index.write_bytes(index.read_bytes()[: -layout.INDEX_RECORD.size])  # no kill leaves two chunks without a record
    assert "torn_chunk" in kinds(stream)


def test_zeros_to_the_end(copy: Callable[..., Any]) -> None:
    """A power cut may leave zeros at the end of the last segment."""
    stream = copy("s.filtered")
    chunk = heads(stream)[10]
    with open(path_of(stream), "r+b") as file:
        size = file.seek(0, 2)
    overwrite(path_of(stream), chunk.position, bytes(size - chunk.position))
    assert "torn_chunk" in kinds(stream)
    assert [message.seq_id for message in stream.messages()] == list(range(chunk.chunk_id))


@pytest.mark.parametrize("ending", ["segment", "index"])
def test_a_damaged_file_head(copy: Callable[..., Any], ending: str) -> None:
    """A wrong magic is named; the chunks are read."""
    stream = copy("s.mixed")
    every = [message.raw for message in stream.messages()]
    flip(path_of(stream, ending), 1)
    assert {"segment": "bad_segment_head", "index": "bad_stream_index"}[ending] in kinds(stream)
    assert [message.raw for message in stream.messages()] == every


def test_another_version_of_a_segment_is_refused(copy: Callable[..., Any]) -> None:
    """The version is named, and nothing is decoded."""
    stream = copy("s.mixed")
    flip(path_of(stream), 7, 3)
    with pytest.raises(UnsupportedFormat, match="version 2"):
        list(stream.messages())
    assert UNSUPPORTED in kinds(stream)


def test_another_version_of_the_first_chunk_is_unsupported(copy: Callable[..., Any]) -> None:
    """A chunk of another version behind known ones is damage instead."""
    stream = copy("s.mixed")
    flip(path_of(stream), 8)
    assert UNSUPPORTED in kinds(stream)


@pytest.mark.parametrize("damage", ["removed", "cut", "zeroed"])
def test_a_damaged_index(copy: Callable[..., Any], damage: str) -> None:
    """The segment alone has every message; the damage is named."""
    stream = copy("s.segments")
    every = [message.raw for message in stream.messages()]
    path = path_of(stream, "index", 1)
    if damage == "removed":
        shutil.move(path, f"{stream.path}/elsewhere")
    elif damage == "cut":
        with open(path, "r+b") as file:
            file.truncate(8 + 29 * 3 + 5)
    else:
        overwrite(path, 8 + 29 * 2, bytes(29))
    assert kinds(stream) == {"missing_stream_index" if damage == "removed" else "bad_stream_index"}
    assert [message.raw for message in stream.messages()] == every


def test_a_lost_segment(copy: Callable[..., Any]) -> None:
    """Offsets between two segments, and the index that is left, are named."""
    stream = copy("s.segments")
    shutil.move(path_of(stream, number=2), f"{stream.path}/elsewhere")
    assert kinds(stream) == {"lost_offsets", "missing_segment"}


def test_a_damaged_trailer(copy: Callable[..., Any]) -> None:
    """A length that does not fit is named; the messages are not affected."""
    stream = copy("s.mixed")
    every = [message.raw for message in stream.messages()]
    chunk = heads(stream)[0]
    flip(path_of(stream), chunk.trailer_at + 1, 0x40)
    assert kinds(stream) == {"bad_tracking"}
    assert [message.raw for message in stream.messages()] == every


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(60))
def test_random_damage_never_crashes(copy: Any, seed: Any) -> None:
    """Any damage ends in problems or `UnsupportedFormat`, within bounded work."""
    chance = random.Random(seed)
    stream = copy(chance.choice(["s.segments", "s.batched", "s.protocol", "s.kept"]))
    for _ in range(chance.randint(1, 6)):
        path = path_of(stream, chance.choice(["segment", "segment", "index"]))
        with open(path, "rb") as file:
            size = len(file.read())
        data = chance.choice([bytes(chance.randint(1, 600)), chance.randbytes(chance.randint(1, 60))])
        overwrite(path, chance.randrange(size), data)
    check_stream(stream)
    try:
        list(stream.messages())
    except UnsupportedFormat as error:
        assert "version" in str(error)


def test_a_hostile_segment_is_read_in_linear_time() -> None:
    """Heads everywhere, with an index that names each of them, cost work in proportion to the file."""
    head = CHUNK_HEAD.pack(0x50, 0, 1, 1, 0, 1, 5, 1, 40, 0, 0, bytes(3)) + bytes(8)
    data = b"OSIL\x00\x00\x00\x01" + head * 4000
    problems = []
    scan = StreamScan(data, "f", problems, range(8, len(data), 8))
    assert list(scan.chunks()) == [] and problems
    assert scan.budget > -len(data)


def test_a_wrong_epoch_hides_no_message(copy: Callable[..., Any]) -> None:
    """The next chunk's epoch falls then; both chunks are read, and the index shows which epoch is wrong."""
    stream = copy("s.segments")
    messages = [message.raw for message in stream.messages()]
    chunk = heads(stream)[2]
    overwrite(path_of(stream), chunk.position + 16, (7).to_bytes(8, "big"))
    found = check_stream(stream).problems
    assert found[0].expected == "wrong epoch of a chunk: 7"
    assert found[0].offset == heads(stream)[3].position + 16
    assert [problem.kind for problem in found] == ["bad_chunk", "bad_stream_index"]
    assert [message.raw for message in stream.messages()] == messages


def test_an_empty_index_of_the_next_segment_is_a_note(copy: Callable[..., Any]) -> None:
    """The server creates the index before the segment, so a kill may leave it alone; of any other offset it is damage."""
    stream = copy("s.mixed")
    after = heads(stream)[-1].next_id
    for number, expected in ((after, ([], ["missing_segment"])), (after + 1, (["missing_segment"], []))):
        index = Path(stream.path, f"{number:020}.index")
        index.write_bytes(Path(path_of(stream, "index")).read_bytes()[:8])
        checked = check_stream(stream)
        assert tuple([one.kind for one in part] for part in (checked.problems, checked.notes)) == expected
        index.unlink()


@pytest.mark.parametrize("is_only", [False, True])
@pytest.mark.parametrize("segment", [0, 7, 8])
@pytest.mark.parametrize("index", [0, 4, 8])
def test_a_newest_pair_without_its_heads_is_a_note(copy: Callable[..., Any], is_only: bool, segment: int, index: int) -> None:
    """Servers 3.10.8, 4.0.5 and 4.3.6 delete such a pair when they start, or write the heads of an only one."""
    stream = copy("s.mixed")
    every = [message.seq_id for message in stream.messages()]
    number = heads(stream)[-1].next_id
    heads_of = {ending: Path(path_of(stream, ending)).read_bytes()[:8] for ending in ("segment", "index")}
    for path in Path(stream.path).glob("*.*") if is_only else ():
        path.unlink()
    for ending, size in (("index", index), ("segment", segment)):
        Path(stream.path, f"{number:020}.{ending}").write_bytes(heads_of[ending][:size])
    checked = check_stream(stream)
    expected = (["bad_stream_index"] if index < 8 else []) + (["bad_segment_head"] if segment < 8 else [])
    assert (checked.problems, [one.kind for one in checked.notes]) == ([], expected)
    assert [message.seq_id for message in stream.messages()] == ([] if is_only else every) and not stream.problems


@pytest.mark.parametrize("index", [0, 8])
def test_an_empty_index_alone_is_a_note(copy: Callable[..., Any], index: int) -> None:
    """A kill may leave it of a new stream; 4.0.5 and 4.3.6 write the heads of both files."""
    stream = copy("s.mixed")
    head = Path(path_of(stream, "index")).read_bytes()[:index]
    for path in Path(stream.path).glob("*.*"):
        path.unlink()
    Path(stream.path, f"{0:020}.index").write_bytes(head)
    checked = check_stream(stream)
    assert (checked.problems, [one.kind for one in checked.notes]) == ([], ["missing_segment"])


@pytest.mark.parametrize("damage", ["records in the index", "an older pair", "no index"])
def test_a_short_segment_elsewhere_is_damage(copy: Callable[..., Any], damage: str) -> None:
    """Its messages are lost, or nothing shows that it never had any."""
    stream = copy("s.segments")
    number = 0 if damage == "an older pair" else -1
    segment, index = path_of(stream, number=number), path_of(stream, "index", number)
    os.truncate(segment, 0)
    if damage == "an older pair":
        os.truncate(index, 8)
    elif damage == "no index":
        os.unlink(index)
    assert "bad_segment_head" in kinds(stream)
    assert list(stream.messages()) and "bad_segment_head" in {one.kind for one in stream.problems}


@pytest.mark.parametrize(
    ("flags", "is_damage"), [("[quorum_queue,stream_queue].\n", True), ("[message_containers,stream_queue].\n", False)]
)
def test_an_index_alone_is_damage_before_3_13(sources: dict[str, Any], tmp_path: Path, flags: str, is_damage: bool) -> None:
    """3.10.8 does not start the stream; the feature flags show what the server was."""
    source = sources["rabbitmq4-streams"].stream("s.mixed")
    node = tmp_path / "node"
    shutil.copytree(source.path, node / "stream" / source.folder)
    (tmp_path / "node-feature_flags").write_text(flags)
    (stream,) = stream_folders(str(node))
    index = Path(stream.path, f"{heads(stream)[-1].next_id:020}.index")
    index.write_bytes(b"")
    checked = check_stream(stream)
    assert [one.kind for one in (checked.problems if is_damage else checked.notes)] == ["missing_segment"]
    assert (checked.notes if is_damage else checked.problems) == []
    apply_recovery(str(node))
    assert index.exists() is not is_damage and check_stream(stream).problems == []


@pytest.mark.parametrize("name", ["s.segments", "s.mixed"])
def test_an_index_without_any_record_is_damage(copy: Callable[..., Any], name: str) -> None:
    """4.0.5 deletes the newest segment then, or all chunks of an only one; after a kill at most one chunk has no record."""
    stream = copy(name)
    chunks = len(heads(stream, -1))
    os.truncate(path_of(stream, "index", -1), layout.FILE_HEAD_SIZE)
    assert [(one.kind, one.found) for one in check_stream(stream).problems] == [("bad_stream_index", "no record")] * chunks
    segment = path_of(stream, number=-1)
    os.truncate(segment, heads(stream, -1)[0].stop)
    checked = check_stream(stream)
    assert (checked.problems, [one.kind for one in checked.notes]) == ([], ["index_behind"])
