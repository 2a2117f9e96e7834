"""`recover` of streams: what is hurt is replaced, every other message keeps its offset, and nothing is left to report."""

from __future__ import annotations

import os
import random
import shutil
import struct
import zlib

import pytest

from rabbitstore import apply_recovery, plan_recovery
from rabbitstore.stream import stream_folders
from rabbitstore.stream.check import check_stream

from .conftest import tracking_of

HEAD = 48


@pytest.fixture
def copy(sources, tmp_path):
    """Return a function that copies a stream and its coordinator into a node's folder; it returns the stream's folder."""

    def make(name="s.segments", kind="rabbitmq4-streams"):
        source = next((sources[kind].node / "stream").glob(f"__{name.replace('.', '_')}_*"))
        shutil.copytree(sources[kind].node / "coordination", tmp_path / "node/coordination", dirs_exist_ok=True)
        return shutil.copytree(source, tmp_path / "node/stream" / source.name)

    return make


def node_of(folder):
    return str(folder.parent.parent)


def stream_of(folder):
    (found,) = stream_folders(node_of(folder))
    return found


def listed(folder):
    return {message.seq_id: message.raw for message in stream_of(folder).messages()}


def chunks(file):
    """Return position, end, chunk id and number of records of each chunk, by the format page."""
    data, found, at = file.read_bytes(), [], 8
    while at < len(data):
        records = struct.unpack_from(">I", data, at + 4)[0]
        chunk_id = struct.unpack_from(">Q", data, at + 24)[0]
        size, trailer, filtered = struct.unpack_from(">IIB", data, at + 36)
        found.append((at, at + HEAD + filtered + size + trailer, chunk_id, records))
        at = found[-1][1]
    return found


def edit(file, at, data):
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(data)


def flip(file, at):
    edit(file, at, bytes((file.read_bytes()[at] ^ 1,)))


def recovered(folder):
    """Recover; messages, offsets and stored offsets are as they were listed, nothing is reported, a second plan is empty."""
    before, tracking = listed(folder), tracking_of(stream_of(folder))
    plan = apply_recovery(node_of(folder))
    assert listed(folder) == before and tracking_of(stream_of(folder)).offsets == tracking.offsets
    checked = check_stream(stream_of(folder))
    assert (checked.problems, checked.notes) == ([], [])
    assert plan_recovery(node_of(folder)).steps == []
    return plan


def segments(folder):
    return sorted(folder.glob("*.segment"))


def expected_without(folder, lost):
    return {offset: raw for offset, raw in listed(folder).items() if offset not in lost}


@pytest.mark.parametrize("field", ["data", "magic", "id", "records", "size", "crc", "zeros"])
def test_a_damaged_chunk_in_the_middle(copy, field):
    """Its offsets are covered by a tracking chunk with the same number of records, and only its messages are gone."""
    folder = copy()
    file = segments(folder)[1]
    at, stop, chunk_id, records = chunks(file)[3]
    expected = expected_without(folder, range(chunk_id, chunk_id + records))
    if field == "zeros":
        edit(file, at, bytes(stop - at))
    else:
        flip(file, {"data": stop - 60, "magic": at, "id": at + 31, "records": at + 7, "size": at + 39, "crc": at + 35}[field])
    plan = recovered(folder)
    assert listed(folder) == expected and plan.cost.stream_offsets_lost == records
    made = next(row for row in chunks(file) if row[2] == chunk_id)
    data = file.read_bytes()[made[0] : made[1]]
    assert (data[0], data[1], made[3], len(data)) == (0x50, 1, records, HEAD + 4)
    assert struct.unpack_from(">I", data, 32)[0] == zlib.crc32(bytes(4))
    assert [step.kind for step in plan.steps] == ["rewrite_segment", "make_index", "commit_staged"]


@pytest.mark.parametrize("how", ["cut", "flipped", "garbage"])
def test_a_damaged_end_is_cut(copy, how):
    """The last chunk is gone, or what is behind it; the old segment is kept."""
    folder = copy("s.mixed")
    file = segments(folder)[-1]
    whole = file.read_bytes()
    at, stop, chunk_id, records = chunks(file)[-1]
    expected = expected_without(folder, () if how == "garbage" else range(chunk_id, chunk_id + records))
    if how == "cut":
        file.write_bytes(whole[: stop - 10])
    elif how == "flipped":
        flip(file, stop - 70)
    else:
        file.write_bytes(whole + b"\x50\0\0\1garbage")
    damaged = file.read_bytes()
    recovered(folder)
    assert listed(folder) == expected
    assert file.read_bytes() == (whole if how == "garbage" else whole[:at])
    assert (folder.parent.parent / "brokerstore/cut" / f"stream__{folder.name}__{file.name}").read_bytes() == damaged


@pytest.mark.parametrize("how", ["lost", "cut", "emptied", "flipped", "head", "part"])
def test_an_index_is_made_again(copy, how):
    """Its bytes are those of the server; the segment stays as it is."""
    folder = copy()
    file = sorted(folder.glob("*.index"))[1]
    whole = file.read_bytes()
    if how == "lost":
        file.unlink()
    elif how == "cut":
        file.write_bytes(whole[:50])
    elif how == "emptied":
        file.write_bytes(whole[:8])
    elif how == "part":
        file.write_bytes(whole + whole[-29:-22])
    else:
        flip(file, 1 if how == "head" else 40)
    plan = recovered(folder)
    assert file.read_bytes() == whole and [step.kind for step in plan.steps] == ["make_index", "commit_staged"]


def files_of(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def set_epochs(folder, epochs):
    """Let the chunks of the second segment, and their index records, have these epochs and the last one again."""
    segment = segments(folder)[1]
    for number, (at, *_rest) in enumerate(chunks(segment)):
        epoch = struct.pack(">Q", epochs[min(number, len(epochs) - 1)])
        edit(segment, at + 16, epoch)
        edit(segment.with_suffix(".index"), 8 + 29 * number + 16, epoch)


@pytest.mark.parametrize("has_index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("bit", [1, 8])
@pytest.mark.parametrize("number", [0, 3, -1])
@pytest.mark.parametrize("epochs", [(1,), (3,), (2, 2, 2, 2, 2, 5)], ids=str)
def test_a_wrong_epoch_of_a_chunk(copy, epochs, number, bit, has_index):
    """No checksum covers it: the index has the right one, or else the chunks around it, because epochs never fall."""
    folder = copy()
    set_epochs(folder, epochs)
    whole = files_of(folder)
    segment = segments(folder)[1]
    at = chunks(segment)[number][0] + 23
    right = segment.read_bytes()[at]
    edit(segment, at, bytes((right ^ bit,)))
    is_possible = (number == 0 and right & bit) or (number == -1 and not right & bit)  # an older leader's, a newer one's
    if not has_index:
        segment.with_suffix(".index").unlink()
    if has_index or not is_possible:
        assert check_stream(stream_of(folder)).problems
        recovered(folder)
        assert files_of(folder) == whole


@pytest.mark.parametrize("number", [0, 3, -1])
@pytest.mark.parametrize("change", ["chunk's epoch", "chunk's time", "record's epoch", "record's time"])
def test_an_epoch_or_time_that_differs_between_segment_and_index(copy, change, number):
    """The one that fits its neighbours is kept, whether it is in the segment or in the index."""
    folder = copy()
    whole = files_of(folder)
    segment = segments(folder)[1]
    found = chunks(segment)
    at = {"chunk's time": found[number][0] + 8, "chunk's epoch": found[number][0] + 16}.get(change)
    record = 8 + 29 * (number % len(found))
    file, at = (segment, at) if at else (segment.with_suffix(".index"), record + (8 if "time" in change else 16))
    flip(file, at + 3)
    recovered(folder)
    assert files_of(folder) == whole


def test_a_missing_index_record_of_the_last_chunk_is_added(copy):
    """A kill leaves the chunk without its record: a note, and the record is added, because the server would drop the chunk."""
    folder = copy("s.mixed")
    file = sorted(folder.glob("*.index"))[-1]
    whole = file.read_bytes()
    file.write_bytes(whole[:-29])
    checked = check_stream(stream_of(folder))
    assert checked.problems == [] and [note.kind for note in checked.notes] == ["index_behind"]
    recovered(folder)
    assert file.read_bytes() == whole


def test_a_segment_without_its_magic(copy):
    """Only the head is written again."""
    folder = copy()
    file = segments(folder)[1]
    whole = file.read_bytes()
    flip(file, 1)
    recovered(folder)
    assert file.read_bytes() == whole


@pytest.mark.parametrize("number", [0, 2, -1])
def test_a_lost_segment(copy, number):
    """Its offsets are covered at the end of the segment before it; the first and the last one need no cover."""
    folder = copy()
    files = segments(folder)
    lost = files[number]
    chunks_lost = chunks(lost)  # the index names the first offset of each; how many the last one had is lost with it
    gone = range(chunks_lost[0][2], chunks_lost[-1][2] + chunks_lost[-1][3])
    expected = expected_without(folder, gone)
    lost.unlink()
    plan = recovered(folder)
    assert listed(folder) == expected and not lost.with_suffix(".index").exists()
    assert plan.cost.stream_offsets_lost == (len(gone) if number == 2 else chunks_lost[-1][2] + 1 - gone[0])
    if number == 2:
        assert chunks(files[1])[-1][2:] == (gone[0], len(gone))


def test_the_stored_offsets_of_a_lost_snapshot(copy):
    """A segment starts with the state of the consumers; when that chunk is damaged, the state before it is written again."""
    folder = copy("s.protocol")
    offsets = tracking_of(stream_of(folder)).offsets
    assert offsets
    last = segments(folder)[-1]
    number = chunks(last)[-1][2] + chunks(last)[-1][3]
    body = b"\x01\x01c" + struct.pack(">Q", 7)
    data = struct.pack(">I", len(body)) + body
    head = struct.pack(">BBHIqQQIIIB3s", 0x50, 2, 1, 1, 5, 9, number, zlib.crc32(data), len(data), 0, 0, b"")
    message = b"\0Sr\xc1\1\0\0Su\xa0\1x"
    entry = struct.pack(">I", len(message)) + message
    user = struct.pack(">BBHIqQQIIIB3s", 0x50, 0, 1, 1, 5, 9, number + 1, zlib.crc32(entry), len(entry), 0, 0, b"")
    file = folder / f"{number:020}.segment"
    file.write_bytes(b"OSIL\0\0\0\1" + head + data + user + entry)
    flip(file, 8 + HEAD + 6)
    apply_recovery(node_of(folder))
    assert check_stream(stream_of(folder)).problems == []
    assert (file.read_bytes()[9], tracking_of(stream_of(folder)).offsets) == (2, offsets)


def test_an_unknown_version_is_left_alone(copy):
    """Nothing is written to a stream of another format."""
    folder = copy()
    flip(segments(folder)[1], 7)
    plan = plan_recovery(node_of(folder))
    assert plan.steps == [] and [one.finding.kind for one in plan.unrepaired] == ["unsupported_format"]


def test_more_lost_offsets_than_a_chunk_can_cover(copy):
    """Nothing is changed then: the name of the last segment may be what is wrong."""
    folder = copy()
    first, *_, last = segments(folder)
    flip(first, chunks(first)[2][0] + HEAD + 20)
    for file in (last, last.with_suffix(".index")):
        file.rename(file.with_name(f"{1 << 40:020}{file.suffix}"))
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    plan = plan_recovery(node_of(folder))
    assert plan.steps == [] and [one.finding.kind for one in plan.unrepaired] == ["lost_offsets"]
    apply_recovery(node_of(folder))
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(40))
def test_random_damage_is_recovered(copy, seed):
    """After any damage the recovery keeps what was listed."""
    chance = random.Random(seed)
    folder = copy()
    for _ in range(chance.randint(1, 5)):
        file = chance.choice(sorted(folder.iterdir()))
        data = chance.choice([bytes(chance.randint(1, 600)), chance.randbytes(chance.randint(1, 60))])
        edit(file, chance.randrange(file.stat().st_size), data)
    before = listed(folder)
    apply_recovery(node_of(folder))
    assert listed(folder) == before
    again = plan_recovery(node_of(folder))
    assert again.steps == [] or again.unrepaired


@pytest.mark.parametrize("damage", ["empty", "zeros", "missing"])
def test_a_lost_last_segment_is_counted_by_its_index(copy, damage):
    """Each chunk that the index names had a message at least; the server starts the segment again."""
    folder = copy("s.mixed")
    (segment,) = folder.glob("*.segment")
    last = chunks(segment)[-1][2]
    segment.unlink() if damage == "missing" else segment.write_bytes(bytes(segment.stat().st_size * (damage == "zeros")))
    plan = apply_recovery(node_of(folder))
    assert plan.cost.stream_offsets_lost == last + 1
    assert check_stream(stream_of(folder)).problems == []


def test_a_lost_only_segment(copy):
    """Nothing is left to keep: the index without its segment is moved aside, and the server starts an empty stream."""
    folder = copy("s.mixed")
    (segment,) = folder.glob("*.segment")
    segment.unlink()
    plan = apply_recovery(node_of(folder))
    assert [step.kind for step in plan.steps] == ["move_aside", "commit_staged"] and not list(folder.iterdir())
    assert check_stream(stream_of(folder)).problems == []


def test_a_chunk_with_records_beyond_its_end_is_replaced(copy):
    """Its CRC is right, but a consumer ends with an error there; its offsets are covered, and nothing else is lost."""
    folder = copy()
    file = segments(folder)[1]
    before = listed(folder)
    at, stop, first, count = chunks(file)[3]
    data = bytearray(file.read_bytes())
    start = at + HEAD + data[at + 44]
    size = struct.unpack_from(">I", data, at + 36)[0]
    struct.pack_into(">I", data, start, (1 << 31) - 1)
    struct.pack_into(">I", data, at + 32, zlib.crc32(data[start : start + size]))
    file.write_bytes(data)
    plan = apply_recovery(node_of(folder))
    lost = set(range(first, first + count))
    assert stop > start and plan.cost.stream_offsets_lost == count
    assert listed(folder) == {number: raw for number, raw in before.items() if number not in lost}
    assert check_stream(stream_of(folder)).problems == []


@pytest.mark.parametrize("is_folder", [False, True], ids=["file", "folder"])
def test_a_file_name_that_prevents_the_start_of_a_stream_is_moved_aside(is_folder, copy):
    """4.0.5 and 4.3.6 start no writer of a stream with a name above U+00FF in its folder; others they pass over."""
    folder = copy()
    for name in ("café", os.fsdecode(b"caf\xe9"), "notes.txt"):
        (folder / name).write_text("x")
    assert check_stream(stream_of(folder)).problems == []
    path = folder / "Тема"
    path.mkdir() if is_folder else path.write_text("x")
    assert [problem.kind for problem in check_stream(stream_of(folder)).problems] == ["unreadable_name"]
    assert [step.kind for step in recovered(folder).steps] == ["move_aside", "commit_staged"]
    assert not path.exists() and (folder / "notes.txt").exists()
    assert [one.name for one in (folder.parent.parent / "brokerstore/cut").iterdir()] == [f"stream__{folder.name}__Тема"]
