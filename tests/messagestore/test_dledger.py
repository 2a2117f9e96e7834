"""Stores of real DLedger brokers (4.9.7 and 5.5.1): read as any other store, repaired, copied, and never written to."""

from __future__ import annotations

import json
import re
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brokerstore.identify import FolderKind, identify
from commitlog import Message, StoredMessage, entry_layout
from commitlog.layout import COMPRESSED
from commitlog.walk import LogFiles
from messagestore import MessageStore
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK, StoreError, UnsupportedFormat
from tests.archives import unpack
from tests.brokerstore.tool import run
from tests.dledger import HEADER, NAMES, UNIT, YEARS, checkpoint, data_files, entries, index_units, manifest, peer, unpacked
from tests.helpers import overwrite


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A store of 4.9.7 that was killed: 650 entries in four files."""
    return unpacked("dledger497", tmp_path)


def log_of(store: Path) -> list[StoredMessage]:
    """Return every record that a walk over the log gives."""
    files = LogFiles(REAL_DISK, identify(str(store)).log_folders)
    return [found for found in files.messages() if isinstance(found, StoredMessage)]


def kinds(store: Path) -> set[str]:
    """Return the kinds of problems that `verify` finds."""
    return {problem.kind for problem in verify_store(str(store)).problems}


@pytest.mark.parametrize("name", NAMES)
def test_every_message_is_the_one_that_the_broker_delivered(name: str, tmp_path: Path) -> None:
    """Each by its queue offset: the same physical offset, size, flags, time and body. Of 4.9.7 system topics are missing."""
    store = unpacked(name, tmp_path)
    expected = manifest(store)["messages"]
    with MessageStore.open(store, "r") as opened:
        for row in expected:
            [message] = opened.read(row["topic"], row["queueId"], row["queueOffset"], row["queueOffset"] + 1)
            sys_flag = message.sys_flag & ~COMPRESSED  # a client that unpacks a body takes the flag away
            found = message.physical_offset, message.size, sys_flag, message.store_timestamp_ms
            assert found == (row["commitLogOffset"], row["storeSize"], row["sysFlag"], row["storeTimestamp"])
            assert zlib.crc32(opened.plain_body(message)) & 0x7FFFFFFF == row["bodyCrc32"] & 0x7FFFFFFF
    assert len(expected) > 60


@pytest.mark.parametrize("name", NAMES)
def test_the_log_has_the_entries_of_a_plain_parse_in_their_order(name: str, tmp_path: Path) -> None:
    """Every record is an entry's, 48 bytes behind it; of a converted store the records of the ordinary log come before them."""
    store = unpacked(name, tmp_path)
    model = entries(store)
    first = model[0].position
    found = [(message.physical_offset, message.size) for message in log_of(store)]
    assert [one for one in found if one[0] >= first] == [(one.position + HEADER.size, len(one.record)) for one in model]
    assert bool([one for one in found if one[0] < first]) == (name == "dledger-mixed")
    assert kinds(store) == set()


def test_the_fixture_that_was_converted_begins_with_an_ordinary_log(tmp_path: Path) -> None:
    """Both folders are one log; `identify` names the kind and the folders in the order of their offsets."""
    facts = identify(str(unpacked("dledger-mixed", tmp_path)))
    assert facts.kind is FolderKind.DLEDGER
    assert [Path(folder).name for folder in facts.log_folders] == ["commitlog", "data"]


@pytest.mark.parametrize("command", ["info", "ls", "stats", "dump", "tail", "verify", "report", "recover"])
@pytest.mark.parametrize("name", ["dledger497", "dledger-mixed"])
def test_the_commands_that_read_know_the_kind(name: str, command: str, tmp_path: Path) -> None:
    """None of them refuses the folder or finds a problem."""
    store = unpacked(name, tmp_path)
    shutil.rmtree(store / "rocksdbstore", ignore_errors=True)
    more = ["--out", tmp_path / "report.html"] if command == "report" else []
    done = run(command, store, *more)
    assert done.code == (command == "recover" and name == "dledger497"), done.talk  # 1: it was killed


def test_queries_by_key_give_what_the_broker_gave(old: Path) -> None:
    """The offsets in the index are those of records."""
    expected = manifest(old)["queries"]
    with MessageStore.open(old, "r") as opened:
        for query, offsets in expected.items():
            topic, key = query.split(" ", 1)
            assert sorted(message.physical_offset for message in opened.query(topic, key, max_count=100)) == sorted(offsets)


def test_export_and_dump_give_the_same_messages(old: Path, tmp_path: Path) -> None:
    """Rows in bulk take sizes from the distance of records, which contains the header of the next entry."""
    lines = run("dump", old, "--json").lines
    assert [(line["physical_offset"], line["size"]) for line in lines] == [(m.physical_offset, m.size) for m in log_of(old)]
    pq = pytest.importorskip("pyarrow.parquet")
    assert run("export", old, "--to", "parquet", "--out", tmp_path / "rows.parquet").code == 0
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table.column("physical_offset").to_pylist() == [line["physical_offset"] for line in lines]
    assert table.column("size").to_pylist() == [line["size"] for line in lines]


@pytest.mark.parametrize("mode", ["a", "r+"])
def test_opening_for_writing_is_refused_with_the_way_out(old: Path, mode: str) -> None:
    """Only a DLedger broker appends entries; the note names `copy`."""
    before = [path.read_bytes() for path in data_files(old)]
    with pytest.raises(UnsupportedFormat, match="DLedger") as caught:
        MessageStore.open(old, mode)
    assert any("brokerstore copy" in note for note in caught.value.__notes__)
    done = run("put", old, "T", "body")
    assert done.code == 3 and "brokerstore copy" in done.talk
    assert [path.read_bytes() for path in data_files(old)] == before


def test_a_folder_of_records_without_headers_is_no_dledger_log(old: Path) -> None:
    """An ordinary file that was moved there is found, and no repair touches the store."""
    with MessageStore.open(old.parent / "plain") as plain:
        plain.put(Message("T", b"x"))
    shutil.copy(old.parent / "plain" / "commitlog" / ("0" * 20), data_files(old)[0])
    assert "bad_entry" in kinds(old)
    with pytest.raises(UnsupportedFormat, match="records without entries"):
        Recovery(str(old), Choice.TRUNCATE).apply()


def test_entries_in_an_ordinary_log_folder_are_found(old: Path) -> None:
    """A broker without DLedger would cut them off; a writer refuses them."""
    (peer(old) / "data").rename(old / "commitlog")
    shutil.rmtree(peer(old))
    assert "bad_entry" in kinds(old)
    with pytest.raises(UnsupportedFormat, match="entries of a DLedger log"):
        MessageStore.open(old)


def test_the_logs_of_two_peers_in_one_store_are_refused_until_one_is_named(old: Path) -> None:
    """A broker reads that of its own name only."""
    shutil.copytree(peer(old), old / "dledger-n1")
    done = run("dump", old)
    assert done.code == 3 and "--commitlog" in done.talk
    assert len(run("dump", old, "--commitlog", old / "dledger-n0" / "data", "--json").lines) == 650


def test_a_log_in_other_folders_is_read_by_their_names(old: Path, tmp_path: Path) -> None:
    """`storePathDLedgerCommitLog` names several folders, with commas."""
    expected = [message.physical_offset for message in log_of(old)]
    names = []
    for number, path in enumerate(data_files(old)):
        folder = tmp_path / f"disk{number % 2}"
        folder.mkdir(exist_ok=True)
        names.append(str(folder))
        path.rename(folder / path.name)
    (peer(old) / "data").rmdir()
    lines = run("dump", old, "--commitlog", ",".join(sorted(set(names))), "--json").lines
    assert [line["physical_offset"] for line in lines] == expected


def test_a_bare_folder_of_entries_is_a_log(old: Path) -> None:
    """As a bare `commitlog` is."""
    assert identify(str(peer(old) / "data")).kind is FolderKind.LOG
    assert len(run("dump", peer(old) / "data", "--json").lines) == 650


# What the peer says about itself


def test_info_has_peer_term_and_last_entry(tmp_path: Path) -> None:
    """From `currterm`, the checkpoint and the log."""
    store = unpacked("dledger551", tmp_path)
    found = run("info", store, "--json").json["dledger"]
    last = entries(store)[-1]
    assert (found["name"], found["leader"], found["was_leader"]) == ("n0", "n0", True)
    assert (found["last_index"], found["last_term"]) == (last.index, last.term)
    assert (found["committed_index"], found["uncommitted"]) == (last.index, 0)


def test_entries_behind_the_committed_index_are_counted(old: Path) -> None:
    """The next leader of a group may replace them; `verify` notes how many, `info` shows them."""
    (peer(old) / "checkpoint").write_text("committedIndex=600\nendIndex=649\n")
    (peer(old) / "currterm").write_text("voteLeader=n2\ncurrTerm=4\n")
    report = verify_store(str(old))
    assert not report.problems
    assert [note.found for note in report.notes if note.kind == "uncommitted_entries"] == [
        "49 more, which another peer may have replaced"
    ]
    assert "49 of them behind the committed index" in run("info", old).out
    assert "follower of n2" in run("info", old).out


def test_a_checkpoint_that_names_missing_entries_is_a_problem(old: Path) -> None:
    """The log has lost its end."""
    (peer(old) / "checkpoint").write_text("committedIndex=700\nendIndex=701\n")
    assert kinds(old) == {"entries_missing"}


# Damage


def damage_header(field: int, value: int) -> Callable[[Path], None]:
    """Return what changes one field of the header of the 300th entry."""

    def change(store: Path) -> None:
        entry = entries(store)[300]
        path = next(path for path in reversed(data_files(store)) if int(path.name) <= entry.position)
        fields = list(HEADER.unpack(path.read_bytes()[entry.position - int(path.name) :][: HEADER.size]))
        fields[field] = value if field else 3
        overwrite(path, entry.position - int(path.name), HEADER.pack(*fields))

    return change


HEADERS = {"magic": 0, "size": 1, "index": 2, "term": 3, "position": 4, "body size": 8}


@pytest.mark.parametrize("field", HEADERS.values(), ids=HEADERS)
def test_a_damaged_header_ends_the_log_for_the_broker_and_loses_no_record_here(old: Path, field: int) -> None:
    """`verify` names the entry; the walk goes on with its record. A plain parse, as the broker's, ends there."""
    before = [message.physical_offset for message in log_of(old)]
    damage_header(field, -7 if field == 3 else 77)(old)
    assert len(entries(old)) == 300
    assert kinds(old) == {"bad_entry"}
    assert [message.physical_offset for message in log_of(old)] == before


def test_a_damaged_body_is_reported_though_the_broker_delivers_it(old: Path) -> None:
    """The broker checks no CRC: by its rules the log is whole."""
    entry = entries(old)[300]
    path = next(path for path in reversed(data_files(old)) if int(path.name) <= entry.position)
    overwrite(path, entry.position - int(path.name) + HEADER.size + 100, b"\xff\xff")
    assert len(entries(old)) == 650 and not entries(old)[300].is_whole
    report = verify_store(str(old))
    assert [(problem.kind, problem.offset) for problem in report.log.problems] == [
        ("bad_body_crc", entry.position - int(path.name))
    ]
    assert len(log_of(old)) == 649


def test_a_unit_of_the_entry_index_that_differs_is_found_and_repaired(old: Path) -> None:
    """A flipped bit, zeros, and units behind the last entry."""
    index = peer(old) / "index" / ("0" * 20)
    overwrite(index, UNIT.size * 17 + 5, b"\x01")
    overwrite(index, UNIT.size * 400, bytes(UNIT.size * 3))
    overwrite(index, UNIT.size * 650, b"\1" * 40)
    problems = [problem for problem in verify_store(str(old)).problems if problem.kind == "entry_index"]
    assert {problem.offset for problem in problems} >= {UNIT.size * 17, UNIT.size * 650}
    plan = Recovery(str(old)).apply()
    assert [step.kind for step in plan.steps] == ["mark_unclean", "rebuild_entry_index", "close_store"]
    assert index_units(old, 652) == [entry.unit for entry in entries(old)] + [bytes(UNIT.size)] * 2
    assert index.stat().st_size == 167_772_160 and kinds(old) == set()


def test_a_missing_entry_index_is_made_again(old: Path) -> None:
    """As a sparse file of DLedger's size."""
    shutil.rmtree(peer(old) / "index")
    assert kinds(old) == {"entry_index"}
    Recovery(str(old)).apply()
    index = peer(old) / "index" / ("0" * 20)
    assert index_units(old, 651) == [entry.unit for entry in entries(old)] + [bytes(UNIT.size)]
    assert index.stat().st_size == 167_772_160 and index.stat().st_blocks * 512 < 1 << 20


def test_a_torn_end_is_cut_in_data_index_queues_and_checkpoint(old: Path) -> None:
    """A power failure left the last pages of the log unwritten, and whatever is derived from them."""
    model = entries(old)
    cut = model[640]
    path = data_files(old)[-1]
    at = cut.position - int(path.name) + 100
    overwrite(path, at, bytes(path.stat().st_size - at))
    (peer(old) / "checkpoint").write_text("committedIndex=649\nendIndex=649\n")
    plan = Recovery(str(old), Choice.TRUNCATE).apply()
    assert plan.is_applied and plan.valid_end == cut.position
    assert {"rebuild_entry_index", "write_entry_checkpoint"} <= {step.kind for step in plan.steps}
    assert entries(old) == model[:640]
    assert index_units(old, 641) == [entry.unit for entry in model[:640]] + [bytes(UNIT.size)]
    assert checkpoint(old) == {"committedIndex": 639, "endIndex": 639}
    assert kinds(old) == set() and not (old / "abort").exists()
    with MessageStore.open(old, "r") as opened:
        offsets = {m.physical_offset for m in opened.read("MixTran", 0)}
    assert all(offset < cut.position for offset in offsets)


def test_a_hole_before_safe_entries_needs_the_choice_to_truncate(old: Path) -> None:
    """No filler record has the header of an entry; another peer, or a copy of the folder, has the rest."""
    (old / "abort").unlink()
    damage_header(HEADERS["position"], 77)(old)
    plan = Recovery(str(old)).plan()
    assert plan.needs_choice and set(plan.choices) == {"truncate"} and plan.choices["truncate"].messages_lost >= 349
    with pytest.raises(UnsupportedFormat, match="truncate"):
        Recovery(str(old), Choice.SKIP)
    model = entries(old)
    Recovery(str(old), Choice.TRUNCATE).apply()
    assert entries(old) == model and len(model) == 300 and kinds(old) == set()


# The way out


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_is_an_ordinary_store_with_the_same_messages(name: str, tmp_path: Path) -> None:
    """Queue offsets, times, properties and offsets of groups stay; a writer opens it."""
    store, copied = unpacked(name, tmp_path), tmp_path / "copied"
    assert run("copy", store, "--to", copied, "--all").code == 0
    with MessageStore.open(store, "r") as before, MessageStore.open(copied, "r+") as after:
        assert sorted(after.topics()) == sorted(before.topics())
        for topic in before.topics():
            for queue_id in before.queue_ids(topic):
                assert [delivered(one) for one in after.read(topic, queue_id)] == [
                    delivered(one) for one in before.read(topic, queue_id)
                ]
        assert after.put(Message("T", b"body")).physical_offset > 0
    assert kinds(copied) == set() and (copied / "commitlog").is_dir()


def delivered(message: Any) -> tuple[Any, ...]:
    """Return what a consumer gets of a message."""
    properties = {name: value for name, value in message.properties.items() if name != "__CRC32#"}
    return message.queue_offset, message.body, properties, message.store_timestamp_ms, message.born_timestamp_ms


def test_an_ordinary_log_takes_no_entry_for_a_record(tmp_path: Path) -> None:
    """A record whose size field became 1, the magic of an entry, is one of a bad size as before."""
    with MessageStore.open(tmp_path / "store") as store:
        store.put(Message("T", b"x"))
    overwrite(tmp_path / "store" / "commitlog" / ("0" * 20), 0, struct.pack(">i", 1))
    problems = verify_store(str(tmp_path / "store")).log.problems
    assert problems and problems[0].kind == "bad_size"
    with pytest.raises(StoreError):
        MessageStore.open(tmp_path / "store", "r+")


def test_get_names_what_an_offset_inside_of_an_entry_is(old: Path) -> None:
    """The header before a record, and the record."""
    entry = entries(old)[5]
    at = entry.position + HEADER.size
    assert run("get", old, "--at", at).code == 0
    assert f"the header of the entry of the message at {at}" in run("get", old, "--at", entry.position + 7).talk
    assert f"the inside of the message at {at}" in run("get", old, "--at", at + 100).talk


def test_the_entry_table_of_page_and_module_are_the_same() -> None:
    """Offset, size, name and meaning of each field, without a gap; the example on the page is that of the fixture."""
    page = (Path(__file__).parents[2] / "docs" / "formats" / "dledger.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([\w, ]+?) \| (.*?) \|$", page, re.M)
    in_module = re.findall(r"^    (\d+) +(\d+) +(\w+) +(.*)$", entry_layout.__doc__ or "", re.M)
    named = {"body size": "body_size", "channel, two checksums": "unused"}
    assert [(at, size, named.get(name, name)) for at, size, name, _ in rows] == [row[:3] for row in in_module]
    ends = [int(at) + int(size) for at, size, *_ in rows]
    assert ends == [int(at) for at, *_ in rows[1:]] + [entry_layout.ENTRY_HEADER_SIZE] == [*ends[:-1], HEADER.size]
    assert f"{entry_layout.ENTRY_INDEX_FILE_SIZE:,} bytes" in page


def test_the_examples_on_the_page_are_bytes_of_the_fixture(tmp_path: Path) -> None:
    """The first entry with the beginning of its record, and two index units."""
    page = (Path(__file__).parents[2] / "docs" / "formats" / "dledger.md").read_text()
    blocks = [bytes.fromhex(line.replace(" ", "")) for line in re.findall(r"^    ([0-9a-f ]{32,})$", page, re.M)]
    store = unpacked("dledger551", tmp_path)
    data = data_files(store)[0].read_bytes()
    assert blocks[0] + blocks[1] == data[: len(blocks[0] + blocks[1])]
    assert blocks[2:] == index_units(store, 2)


# A group of three peers: its leader n2 was killed in the middle of puts, n0 led the other two, and then all were killed


@pytest.fixture
def group(tmp_path: Path) -> list[Path]:
    """The stores of the three peers, of brokers 4.9.7."""
    unpack(YEARS / "dledger-group.tar.xz", tmp_path)
    return [tmp_path / "dledger-group" / name for name in ("n0", "n1", "n2")]


def test_the_last_leader_and_its_follower_have_what_was_delivered(group: list[Path]) -> None:
    """All messages that the live leader gave out, at the same offsets; nothing is wrong with their logs."""
    rows = json.loads((group[0].parent / "manifest.json").read_text())["messages"]
    expected = sorted((row["commitLogOffset"], row["topic"], row["queueId"], row["queueOffset"]) for row in rows)
    assert len(expected) > 250
    for store in group[:2]:
        found = {(m.physical_offset, m.topic, m.queue_id, m.queue_offset) for m in log_of(store)}
        assert found >= set(expected)
        assert not verify_store(str(store)).log.problems


def test_the_entries_of_a_majority_are_those_that_two_peers_have(group: list[Path]) -> None:
    """The killed leader had not committed its last entry, but both others have it."""
    model = [{(entry.index, entry.term) for entry in entries(store)} for store in group]
    majority = max(index for index, term in model[0] | model[1] | model[2] if sum((index, term) in one for one in model) > 1)
    compared = run("diff", group[0], group[1], "--json").json["dledger"]
    assert compared["same_to_index"] == majority == max(model[0])[0] and compared["more"] == [0, 0]
    compared = run("diff", group[0], group[2], "--json").json["dledger"]
    last = max(model[2])[0]
    assert (compared["same_to_index"], compared["more"]) == (last, [majority - last, 0])
    assert compared["last_term"] == [max(model[0])[1], max(model[2])[1]]
    assert run("info", group[2], "--json").json["dledger"]["uncommitted"] == 1
    text = run("diff", group[0], group[2]).out
    assert f"both have the entries up to {last}; the first has {majority - last} more" in text


def test_entries_that_the_next_leader_replaced_are_distinguished_by_their_term(group: list[Path]) -> None:
    """The killed leader had five entries that it had sent to nobody; a later term has others at their indices."""
    store, path = group[2], data_files(group[2])[-1]
    for entry in entries(store)[-5:]:
        at = entry.position - int(path.name)
        fields = list(HEADER.unpack(path.read_bytes()[at : at + HEADER.size]))
        fields[3] = 7
        overwrite(path, at, HEADER.pack(*fields))
    last = entries(store)[-1].index
    compared = run("diff", group[1], store, "--json").json["dledger"]
    assert compared["same_to_index"] == last - 5 and compared["more"][1] == 5
    assert "the second has 5 more, the last of term 7" in run("diff", group[1], store).out


def test_logs_without_a_common_entry_have_none_in_diff(group: list[Path], old: Path) -> None:
    """Peers of different groups may have the same indices in other terms."""
    assert run("diff", old, group[0]).out.splitlines()[-1].startswith("DLedger: no entry is in both")
